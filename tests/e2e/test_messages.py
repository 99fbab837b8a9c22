"""POST /v1/messages: blocks, events, errors, what Claude Code sends; with the anthropic SDK and without."""
import json
import re

import pytest
import requests

from agents_kit import LIST, READ, call_text, messages_tool, named_events, ok
from apikit import post

PATH = "/v1/messages"
TOOLS = [messages_tool(READ), messages_tool(LIST)]
ASK = {"model": "m", "max_tokens": 400, "messages": [{"role": "user", "content": "What lies at berth seven?"}], "tools": TOOLS}


@pytest.fixture
def server(scripted):
    return scripted("qwen25")


def error_of(reply, status=400, kind="invalid_request_error"):
    assert reply.status_code == status, f"{reply.status_code}: {reply.text[:400]}"
    body = reply.json()
    assert body["type"] == "error" and body["error"]["type"] == kind and body["error"]["message"], body
    return body["error"]["message"]


def rebuilt(events):
    """The message that a client makes of a stream, while its order is checked."""
    names = [name for name, _ in events if name != "ping"]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    message, block = dict(events[0][1]["message"]), None
    assert message["content"] == [] and message["stop_reason"] is None
    content = []
    for name, data in events[1:]:
        if name == "content_block_start":
            assert block is None and data["index"] == len(content)
            block = dict(data["content_block"], partial="")
        elif name == "content_block_delta":
            delta = data["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json",
                   "signature_delta": "signature"}[delta["type"]]
            target = "partial" if key == "partial_json" else key
            block[target] += delta[key]
        elif name == "content_block_stop":
            partial = block.pop("partial")
            if block["type"] == "tool_use":
                block["input"] = json.loads(partial)
            content.append(block)
            block = None
        elif name == "message_delta":
            message.update(data["delta"], usage=data["usage"])
    return {**message, "content": content}


def without_names(message):
    """What of a message is the same for the same question: ids and times are not."""
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return content, message["stop_reason"], message["stop_sequence"]


def test_a_message_whole_and_streamed(server, script):
    script(("berth seven", "A red buoy."))
    message = ok(post(server, PATH, ASK))
    assert message["type"] == "message" and message["role"] == "assistant" and message["id"].startswith("msg_")
    assert without_names(message) == ([{"type": "text", "text": "A red buoy."}], "end_turn", None)
    assert without_names(rebuilt(named_events(server, PATH, ASK))) == without_names(message)


def test_calls_whole_and_streamed(server, script):
    script(("berth seven", "Look.\n" + call_text("read_berth", {"path": "seven"}) + "\n" + call_text("list_berths", {})))
    message = ok(post(server, PATH, ASK))
    assert without_names(message) == ([{"type": "text", "text": "Look."},
                                       {"type": "tool_use", "name": "read_berth", "input": {"path": "seven"}},
                                       {"type": "tool_use", "name": "list_berths", "input": {}}], "tool_use", None)
    assert without_names(rebuilt(named_events(server, PATH, ASK))) == without_names(message)
    assert all(block["id"].startswith("toolu_") for block in message["content"][1:])


def test_thinking_whole_and_streamed(scripted, script):
    server = scripted("qwen3")
    script(("berth seven", "<think>\nHm.\n</think>\n\nA buoy."))
    body = {**ASK, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    message = ok(post(server, PATH, body))
    assert [b["type"] for b in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "Hm." and message["content"][0]["signature"]
    assert without_names(rebuilt(named_events(server, PATH, body))) == without_names(message)
    back = [*ASK["messages"], {"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Sure?"}]
    assert ok(post(server, PATH, {**body, "messages": back, "max_tokens": 1}))["type"] == "message"
    prompt = ok(post(server, "/apply-template", {"messages": [{"role": "user", "content": "x"}],
                                                 "chat_template_kwargs": {"enable_thinking": False}}))["prompt"]
    assert prompt.endswith("</think>\n\n"), "this template can do without"
    counts = [ok(post(server, PATH + "/count_tokens", {"messages": ASK["messages"], "thinking": {"type": kind}}))["input_tokens"]
              for kind in ("disabled", "adaptive")]
    assert counts[0] > counts[1]


def test_why_it_stopped(server, script):
    script(("berth seven", "One buoy, two buoys, three buoys."))
    body = {**ASK, "stop_sequences": ["four", " three"]}
    message = ok(post(server, PATH, body))
    assert without_names(message) == ([{"type": "text", "text": "One buoy, two buoys,"}], "stop_sequence", " three")
    assert without_names(rebuilt(named_events(server, PATH, body))) == without_names(message)
    assert ok(post(server, PATH, {**ASK, "max_tokens": 3}))["stop_reason"] == "max_tokens"


def test_usage_counts_what_was_cached(server, script):
    script(("berth seven", "A red buoy."), ("Are you sure", "Yes."))
    first = ok(post(server, PATH, ASK))["usage"]
    assert first["output_tokens"] > 1
    messages = [*ASK["messages"], {"role": "assistant", "content": "A red buoy."}, {"role": "user", "content": "Are you sure?"}]
    reply = post(server, PATH, {**ASK, "messages": messages})
    usage, total = ok(reply)["usage"], ok(post(server, PATH + "/count_tokens", {**ASK, "messages": messages}))["input_tokens"]
    assert usage["cache_read_input_tokens"] >= sum(first[k] for k in ("input_tokens", "cache_read_input_tokens"))
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == total
    assert int(reply.headers["X-Berth-Cached"]) == usage["cache_read_input_tokens"]
    start = named_events(server, PATH, {**ASK, "messages": messages})[0][1]["message"]["usage"]
    assert start["cache_read_input_tokens"] == total - start["input_tokens"] > 0


@pytest.mark.parametrize("where", ["top", "system", "message", "result", "tool"])
def test_what_is_read_counts_as_written_for_who_asks_that_it_be_kept(server, script, where):
    script(("berth eight", "Nothing."), ("a red buoy", "Nothing."))
    mark = {"cache_control": {"type": "ephemeral"}}
    given = {"top": {}, "system": {}, "message": {}, "result": {}, "tool": {}, where: mark}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": f"a red buoy {where}", **given["result"]}]}
    body = {**ASK, **given["top"], "system": [{"type": "text", "text": f"You keep the books of {where}.", **given["system"]}],
            "tools": [messages_tool(READ, **given["tool"])], "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What lies at berth eight?", **given["message"]}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read_berth", "input": {}}]},
                {"role": "user", "content": [result]}]}
    total = tokens(server, body)
    first, second = ok(post(server, PATH, body))["usage"], ok(post(server, PATH, body))["usage"]
    assert first["input_tokens"] == 0 and first["cache_creation_input_tokens"] == total - first["cache_read_input_tokens"] > 50
    assert second["cache_read_input_tokens"] == total - 1 and second["cache_creation_input_tokens"] == 1


def test_one_call_at_a_time(server, script):
    script(("berth seven", call_text("read_berth", {"path": "seven"}) + "\n" + call_text("list_berths", {})))
    body = {**ASK, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    message = ok(post(server, PATH, body))
    assert [b["name"] for b in message["content"]] == ["read_berth"] and message["stop_reason"] == "tool_use"
    assert without_names(rebuilt(named_events(server, PATH, body))) == without_names(message)
    assert len(ok(post(server, PATH, ASK))["content"]) == 2


def test_a_call_that_is_cut_off_ends_as_one(server, script):
    """Its brace apart: a client must not take what there is of it for the whole."""
    script(("berth seven", 'Look.\n<tool_call>\n{"name": "read_berth", "arguments": {"path": "sev'))
    events = named_events(server, PATH, ASK)
    assert [d["content_block"]["type"] for n, d in events if n == "content_block_start"] == ["text", "tool_use"]
    assert events[-2][1]["delta"]["stop_reason"] == "max_tokens"
    assert without_names(ok(post(server, PATH, ASK)))[1:] == ("end_turn", None), "whole it is the text it was"
    script(("berth seven", 'Look.\n<tool_call>\n{"name": "read_berth", "arguments": {"path": "seven"}'))
    assert rebuilt(named_events(server, PATH, ASK))["stop_reason"] == "tool_use"


@pytest.mark.parametrize("template", ["qwen25", "qwen3", "gemma"])
def test_an_answer_begun_by_the_client_is_gone_on_with(scripted, script, template):
    server = scripted(template)
    begun = "  Nine buoys, end of user and"
    script((begun.strip(), " one ship."))  # some templates leave out white space around it
    body = {"model": "m", "max_tokens": 100, "messages": [*ASK["messages"], {"role": "assistant", "content": begun}]}
    message = ok(post(server, PATH, body))
    assert message["content"] == [{"type": "text", "text": " one ship."}]
    # The same as what the template writes for the whole of it: the prompt ends in the middle of that.
    def whole(role):
        role = {"messages": [*ASK["messages"], {"role": role, "content": begun}], "add_generation_prompt": False}
        return ok(post(server, "/apply-template", role))["prompt"]

    text = whole("assistant")
    cut = text[:text.rindex(begun.strip()) + len(begun.strip())]
    count = ok(post(server, "/tokenize", {"content": cut, "add_special": not cut.startswith("<bos>"), "parse_special": True}))["tokens"]
    assert abs(len(count) - tokens(server, body)) <= 1, "and nothing behind it"


def test_an_image_in_a_result_does_not_end_the_conversation(server, script):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    script(("an image was left out", "I see none."), ("a document was left out", "I read none."))
    for block, said in ((image, "I see none."), ({"type": "document", "source": {"type": "base64", "data": "A"}}, "I read none.")):
        messages = [*ASK["messages"], {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read_berth", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [block]}]}]
        assert ok(post(server, PATH, {**ASK, "messages": messages}))["content"][0]["text"] == said
    assert "video" in error_of(post(server, PATH, {**ASK, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "video"}]}]}]}))


def test_the_sdk_goes_through_a_loop(server, script):
    import anthropic  # here: it takes seconds

    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    script(("berth seven", "Look.\n" + call_text("read_berth", {"path": "seven"})), ("a red buoy", "It is a red buoy."))
    message = client.messages.create(**ASK)
    assert message.stop_reason == "tool_use" and message.content[1].input == {"path": "seven"}
    with client.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == "Look."
        final = stream.get_final_message()
    assert final.content[1].input == {"path": "seven"} and final.usage.output_tokens == message.usage.output_tokens
    messages = [*ASK["messages"], {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in final.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": final.content[1].id, "content": "a red buoy"}]}]
    done = client.messages.create(**{**ASK, "messages": messages})
    assert done.content[0].text == "It is a red buoy." and done.stop_reason == "end_turn"
    assert client.messages.count_tokens(model="m", messages=messages, tools=TOOLS).input_tokens == \
        done.usage.input_tokens + done.usage.cache_read_input_tokens
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**ASK, extra_body={"temperature": 9})
    assert client.models.list().data[0].id


def claude_code(text, session="3f2c", billing="a", cached=0):
    """The shape in which Claude Code asks, in our own words."""
    system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{billing}; cch={billing}1;"},
              {"type": "text", "text": "You keep the books of a harbour.", "cache_control": {"type": "ephemeral"}},
              {"type": "text", "text": "Berths have numbers.\nToday the wind is north.", "cache_control": {"type": "ephemeral"}}]
    return {"model": "m", "max_tokens": 32000, "system": system, "messages": [{"role": "user", "content": text}],
            "tools": [*TOOLS, messages_tool(("weather", "Tells the weather", {"type": "object", "properties": {}}), defer_loading=True)],
            "thinking": {"type": "adaptive"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"}, "temperature": 1,
            "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": session})}}


def test_what_claude_code_sends_is_taken(server, script):
    script(("berth seven", "A buoy."))
    body = claude_code([{"type": "text", "text": "<hint>Be brief.</hint>"}, {"type": "text", "text": "What lies at berth seven?",
                                                                         "cache_control": {"type": "ephemeral"}}])
    events = named_events(server, PATH + "?beta=true&x=%20", body, headers={
        "X-Claude-Code-Session-Id": "3f2c", "anthropic-beta": "a,b", "anthropic-version": "2023-06-01"})
    assert rebuilt(events)["content"][0]["text"] == "A buoy."
    later = {**body, "messages": [*body["messages"], {"role": "assistant", "content": [{"type": "text", "text": "A buoy."}]},
                                  {"role": "system", "content": "The tools were changed."},
                                  {"role": "user", "content": "Is that all at berth seven?"}], "max_tokens": 128000}
    assert ok(post(server, PATH, later))["content"][0]["text"] == "A buoy."
    assert requests.head(server.url + "/api/hello", timeout=20).status_code == 200
    models = requests.get(server.url + "/v1/models?limit=1000", timeout=20).json()
    assert models["data"][0]["type"] == "model" and models["has_more"] is False and models["first_id"] == models["data"][0]["id"]


def tokens(server, body):
    return ok(post(server, PATH + "/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"}))["input_tokens"]


def cached(server, body):
    """How much of a prompt that was just read was found again, and its length."""
    usage = ok(post(server, PATH, {**body, "max_tokens": 1}))["usage"]
    return usage["cache_read_input_tokens"], sum(usage[k] for k in ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"))


def test_cache_control_and_blocks_do_not_change_the_prompt(server, script):
    script()
    blocks = claude_code([{"type": "text", "text": "Nine berths, five ships.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}])
    ok(post(server, PATH, {**blocks, "max_tokens": 1}))
    plain = claude_code("Nine berths, five ships.", billing="b")
    for block in plain["system"]:
        block.pop("cache_control", None)
    n, total = cached(server, plain)
    assert n == total - 1


def test_the_billing_line_is_left_out_unless_told_otherwise(server, scripted, script):
    script()
    bodies = [claude_code("Seven berths, two ships.", billing=b) for b in "cd"]
    assert tokens(server, bodies[0]) == tokens(server, {**bodies[0], "system": bodies[0]["system"][1:]})
    ok(post(server, PATH, {**bodies[0], "max_tokens": 1}))
    assert cached(server, bodies[1])[0] > 100
    asis = scripted("qwen25", {"api.normalize": "[]"})
    assert tokens(asis, bodies[0]) > tokens(server, bodies[0])
    ok(post(asis, PATH, {**bodies[0], "max_tokens": 1}))
    assert cached(asis, bodies[1])[0] < 40


def test_a_deferred_tool_is_shown_where_it_is_named(server, script):
    script(("weather", call_text("weather", {})))
    body = claude_code("How is the weather?")
    without = {**body, "tools": TOOLS}
    assert tokens(server, body) == tokens(server, without)
    message = ok(post(server, PATH, body))
    assert message["content"][0]["name"] == "weather", "it may be called all the same"
    found = [*body["messages"],
             {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "list_berths", "input": {}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                           "content": [{"type": "tool_reference", "tool_name": "weather"}]}]}]
    n, total = cached(server, {**body, "messages": found})
    assert n >= tokens(server, body), "nothing before it changes"
    bare = json.loads(json.dumps(found).replace('"weather"', '"nothing"'))
    assert total > tokens(server, {**body, "messages": bare})


def test_a_prompt_that_is_too_long_says_so_in_the_words_clients_look_for(scripted):
    server = scripted("qwen25", {"model.context": 256})
    for text in ("tide " * 300, "tide " * 90000):
        reply = post(server, PATH, {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": text}]})
        numbers = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)\s+maximum", error_of(reply))
        assert numbers and int(numbers[1]) > int(numbers[2]) == 255
    n = ok(post(server, PATH + "/count_tokens", {"messages": [{"role": "user", "content": "tide " * 300}]}))["input_tokens"]
    assert n > 256, "counting refuses nothing"


@pytest.mark.parametrize("change, word", [
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": []}]}]}, "input"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"system": [{"type": "image"}]}, "system[0]"), ({"tools": [{"description": "x"}]}, "tools[0]"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"tool_choice": {"type": "tool", "name": "list_berths"}}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"), ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "disable_parallel_tool_use"),
    ({"cache_control": "yes"}, "cache_control"), ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
    ({"max_tokens": 0}, "max_tokens"), ({"stop_sequences": [""]}, "stop_sequences"), ({"metadata": {"user_id": 1}}, "metadata.user_id"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"messages": [None]}, "messages[0]: null"), ({"messages": ["Hi"]}, "messages[0]: a string"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name: nothing"), ({"tools": [{"name": ""}]}, "tools[0].name: an empty string"),
    ({"tools": [{"name": "f", "input_schema": 7}]}, "tools[0].input_schema: a number"),
])
def test_a_wrong_value_is_named(server, change, word):
    assert word in error_of(post(server, PATH, {**ASK, **change}))


def test_other_servers_tools_and_blocks_are_left_out(server, script):
    script(("berth seven", "A buoy."))
    tools = [*TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    messages = [*ASK["messages"], {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "A buoy."}]}, {"role": "user", "content": "Still at berth seven?"}]
    assert tokens(server, {**ASK, "tools": tools}) == tokens(server, ASK)
    assert ok(post(server, PATH, {**ASK, "tools": tools, "messages": messages}))["content"][0]["text"] == "A buoy."


def test_other_errors_have_the_dialects_shape_too(server):
    assert error_of(post(server, PATH, b"{")) and error_of(post(server, PATH, "[]"))
    assert error_of(requests.get(server.url + PATH, timeout=20), 405)
    assert error_of(post(server, PATH + "/nothing", {}), 404, "not_found_error")


def test_a_silent_stream_pings(start_server):
    server = start_server({"server.keepalive_s": 1, "engine.rows": 1, "engine.slots": 1})
    long = {"model": "m", "messages": [{"role": "user", "content": "Go on"}], "stream": True, "ignore_eos": True, "temperature": 0}
    with post(server, PATH, {**long, "max_tokens": 15000}, stream=True) as first:
        chunks = first.iter_content(None)
        next(chunks)
        with post(server, PATH, {**long, "max_tokens": 5}, stream=True) as second:
            assert b"event: ping\ndata: {\"type\":\"ping\"}\n\n" in next(second.iter_content(None))
