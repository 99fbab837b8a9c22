"""POST /v1/responses: items, numbered events, errors, what Codex sends; with the openai SDK and without."""
import json

import openai
import pytest

from agents_kit import LIST, READ, call_text, chat_tool, named_events, ok, responses_tool
from apikit import error_of, post

PATH = "/v1/responses"
TOOLS = [responses_tool(READ), responses_tool(LIST)]
ASK = {"model": "m", "input": "What lies at berth seven?", "tools": TOOLS}


@pytest.fixture
def server(scripted):
    return scripted("qwen25")


def without_names(items):
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def checked(events):
    """The response of a stream, while numbers, order, and what events say of one another are checked."""
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1][0] in ("response.completed", "response.incomplete")
    items, text = [], ""
    for name, data in events[2:-1]:
        if name == "response.output_item.added":
            assert data["output_index"] == len(items) and data["item"]["status"] == "in_progress"
            items.append(data["item"])
            text = ""
        elif name.endswith(".delta"):
            assert data["item_id"] == items[-1]["id"] and data["output_index"] == len(items) - 1
            text += data["delta"]
        elif name.endswith((".done",)) and name.split(".")[1] in ("output_text", "reasoning_text", "function_call_arguments"):
            assert data.get("text", data.get("arguments")) == text
        elif name == "response.output_item.done":
            assert data["item"]["id"] == items[-1]["id"]
            items[-1] = data["item"]
    assert events[-1][1]["response"]["output"] == items
    return events[-1][1]["response"]


def test_a_response_whole_and_streamed(server, script):
    script(("berth seven", "A red buoy."))
    response = ok(post(server, PATH, ASK))
    assert response["object"] == "response" and response["status"] == "completed" and response["id"].startswith("resp_")
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "A red buoy.", "annotations": [], "logprobs": []}]
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    streamed = checked(named_events(server, PATH, ASK))
    assert without_names(streamed["output"]) == without_names(response["output"])
    assert streamed["usage"]["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1


def test_calls_whole_and_streamed(server, script):
    script(("berth seven", "Look.\n" + call_text("read_berth", {"path": "seven"}) + "\n" + call_text("list_berths", {})))
    response = ok(post(server, PATH, ASK))
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    call = response["output"][1]
    assert call["name"] == "read_berth" and call["arguments"] == '{"path": "seven"}' and call["status"] == "completed"
    assert without_names(checked(named_events(server, PATH, ASK))["output"]) == without_names(response["output"])


def test_what_was_read_anew_counts_as_written(server, script):
    script(("berth nine", "Nothing."))
    usages = [ok(post(server, PATH, {**ASK, "input": "What lies at berth nine?"}))["usage"] for _ in range(2)]
    for usage in usages:
        details = usage["input_tokens_details"]
        assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]
    assert usages[0]["input_tokens_details"]["cache_write_tokens"] > 1 == usages[1]["input_tokens_details"]["cache_write_tokens"]


def test_one_call_at_a_time(server, script):
    script(("berth seven", call_text("read_berth", {"path": "seven"}) + "\n" + call_text("list_berths", {})))
    body = {**ASK, "parallel_tool_calls": False}
    response = ok(post(server, PATH, body))
    assert [item["name"] for item in response["output"]] == ["read_berth"] and response["parallel_tool_calls"] is False
    assert without_names(checked(named_events(server, PATH, body))["output"]) == without_names(response["output"])
    both = ok(post(server, PATH, ASK))
    assert len(both["output"]) == 2 and both["parallel_tool_calls"] is True


def test_an_image_in_an_output_becomes_words(server, script):
    script(("an image was left out", "I see none."))
    items = [{"role": "user", "content": "Look"}, {"type": "function_call", "call_id": "a", "name": "read_berth", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]
    assert ok(post(server, PATH, {**ASK, "input": items}))["output"][0]["content"][0]["text"] == "I see none."


def test_an_answer_that_is_cut_off_is_incomplete(server, script):
    script(("berth seven", "One buoy, two buoys, three buoys."))
    response = ok(post(server, PATH, {**ASK, "max_output_tokens": 4}))
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    events = named_events(server, PATH, {**ASK, "max_output_tokens": 4})
    assert events[-1][0] == "response.incomplete" and checked(events)["status"] == "incomplete"
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert [item["status"] for item in response["output"] + done] == ["incomplete"] * 2
    assert ok(post(server, PATH, ASK))["output"][0]["status"] == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_says_what_was_asked(server, script, stream):
    script(("berth seven", "A buoy."))
    asked = {"instructions": "You keep the books “of” a harbour.\n", "max_output_tokens": 10**18, "metadata": {"a": "b"},
             "tools": [responses_tool(READ), {"type": "web_search"}], "reasoning": {"effort": "low"}}
    plain = {"instructions": None, "max_output_tokens": None, "metadata": {}, "tools": [], "reasoning": None}
    for fields, wanted in ((asked, asked), ({"tools": None}, plain), ({"tools": [], "metadata": [1]}, plain)):
        if stream:
            found = [data["response"] for _, data in named_events(server, PATH, {**ASK, **fields}) if "response" in data]
            assert len(found) >= 3
        else:
            found = [ok(post(server, PATH, {**ASK, **fields}))]
        for response in found:
            assert {name: response[name] for name in wanted} == wanted


def test_reasoning_goes_out_and_comes_back(scripted, script):
    server = scripted("qwen3")
    script(("berth seven", "<think>\nHm, sieben …\n</think>\n\n" + call_text("list_berths", {})), ("one, two", "Two."))
    body = {**ASK, "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high", "summary": "auto"}}
    response = ok(post(server, PATH, body))
    reasoning, call = response["output"]
    assert reasoning["type"] == "reasoning" and reasoning["content"][0]["text"] == "Hm, sieben …"
    assert without_names(checked(named_events(server, PATH, body))["output"]) == without_names(response["output"])
    assert ok(post(server, PATH, ASK))["output"][0]["encrypted_content"] is None

    def asked(item):
        items = [{"role": "user", "content": ASK["input"]}, item, call,
                 {"type": "function_call_output", "call_id": call["call_id"], "output": "one, two"}]
        reply = ok(post(server, PATH, {**body, "input": items, "max_output_tokens": 1}))
        return reply["usage"]["input_tokens"], reply["usage"]["input_tokens_details"]["cached_tokens"]

    sealed = {k: v for k, v in reasoning.items() if k not in ("content", "status")}
    opened = {"type": "reasoning", "summary": [], "content": reasoning["content"]}
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm, sieben …"}], "encrypted_content": "another's"}
    lengths = {asked(item)[0] for item in (sealed, opened, summed)}
    assert len(lengths) == 1
    assert asked({"type": "reasoning", "summary": []})[0] < lengths.pop()
    assert asked(sealed)[1] > response["usage"]["input_tokens"], "what was thought is found again"


def test_effort_none_turns_reasoning_off(scripted, script):
    server = scripted("qwen3")
    script()
    lengths = [ok(post(server, PATH, {**ASK, "reasoning": {"effort": e}, "max_output_tokens": 1}))["usage"]["input_tokens"]
               for e in ("none", "high", None)]
    assert lengths[0] > lengths[1] == lengths[2]


def test_the_sdk_goes_through_a_loop(server, script):
    client = server.client()
    script(("berth seven", "Look.\n" + call_text("read_berth", {"path": "seven"})), ("a red buoy", "It is a red buoy."))
    with client.responses.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds and final.output[1].arguments == '{"path": "seven"}'
    response = client.responses.create(**ASK)
    items = [{"role": "user", "content": ASK["input"]}, *[item.model_dump(exclude_none=True) for item in response.output],
             {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "a red buoy"}]
    done = client.responses.create(model="m", input=items, tools=TOOLS)
    assert done.output_text == "It is a red buoy."
    assert done.usage.input_tokens_details.cached_tokens > response.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="m", input="x", previous_response_id="resp_1")


def test_what_codex_sends_is_taken(server, script):
    script(("berth seven", call_text("mcp__books__look_up", {"word": "x"})), ("a page", "Done."))
    body = {"model": "m", "instructions": "You keep the books of a harbour.", "store": False, "stream": True, "tool_choice": "auto",
            "parallel_tool_calls": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-a",
            "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"}, "client_metadata": {"x": "y"},
            "tools": [*TOOLS, {"type": "web_search", "external_web_access": False}, {"type": "custom", "name": "patch", "format": {}},
                      {"type": "namespace", "name": "mcp__books", "description": "The books", "tools": [
                          {"type": "function", "name": "look_up", "description": "Looks a word up", "strict": False,
                           "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}]}],
            "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Ask before you sail."}]},
                      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<wind>north</wind>"}]},
                      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What lies at berth seven?"}]}]}
    headers = {"session-id": "0199-a", "thread-id": "0199-a", "originator": "codex_exec"}
    response = checked(named_events(server, PATH, body, headers=headers))
    call = response["output"][0]
    assert (call["name"], call["namespace"], call["arguments"]) == ("look_up", "mcp__books", '{"word": "x"}')
    back = {k: call[k] for k in ("type", "name", "namespace", "arguments", "call_id")}
    items = [*body["input"], {"type": "web_search_call", "id": "ws", "status": "completed"}, back,
             {"type": "function_call_output", "call_id": call["call_id"], "output": [{"type": "input_text", "text": "a page"}]}]
    response = checked(named_events(server, PATH, {**body, "input": items}, headers=headers))
    assert response["output"][0]["content"][0]["text"] == "Done."
    used = response["usage"]
    assert used["input_tokens_details"]["cached_tokens"] > 300


def test_items_become_the_messages_they_were(server):
    """An assistant's message, its calls and their results are the same conversation in every dialect."""
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "One"},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two", "annotations": []}]},
             {"type": "function_call", "call_id": "a", "name": "read_berth", "arguments": "{\"path\":\"x\"}"},
             {"type": "function_call", "call_id": "b", "name": "list_berths", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "a", "output": "3"},
             {"type": "function_call_output", "call_id": "b", "output": "4"}, {"role": "user", "content": "Five"}]
    call = {"type": "function"}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One"},
                {"role": "assistant", "content": "Two", "tool_calls": [
                    {**call, "id": "a", "function": {"name": "read_berth", "arguments": "{\"path\": \"x\"}"}},
                    {**call, "id": "b", "function": {"name": "list_berths", "arguments": ""}}]},
                {"role": "tool", "tool_call_id": "a", "content": "3"}, {"role": "tool", "tool_call_id": "b", "content": "4"},
                {"role": "user", "content": "Five"}]
    chat = ok(post(server, "/v1/chat/completions", {"messages": messages, "tools": [chat_tool(READ), chat_tool(LIST)], "max_tokens": 1}))
    usage = ok(post(server, PATH, {"input": items, "tools": TOOLS, "max_output_tokens": 1}))["usage"]
    assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1


def test_nothing_may_be_asked(server):
    for nothing in ([], ""):
        assert ok(post(server, PATH, {"input": nothing, "max_output_tokens": 1}))["usage"]["output_tokens"] == 1


@pytest.mark.parametrize("change, param", [
    ({"previous_response_id": "r"}, "previous_response_id"), ({"background": True}, "background"),
    ({"conversation": {"id": "c"}}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"), ({"input": 3}, "input"), ({"input": None}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"), ({"input": [7]}, "input[0]"),
    ({"input": [{"role": "pirate", "content": "x"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"), ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format.type"), ({"include": "all"}, "include"),
    ({"max_output_tokens": 0}, "max_output_tokens"), ({"instructions": 1}, "instructions"), ({"reasoning": {"effort": 3}}, "reasoning.effort"),
])
def test_a_wrong_value_is_named(server, change, param):
    assert error_of(post(server, PATH, {**ASK, **change}))["param"] == param


def test_what_is_turned_off_is_taken(server, script):
    script(("berth seven", "A buoy."))
    off = {"previous_response_id": None, "background": False, "conversation": None, "prompt": None, "store": True, "truncation": "auto"}
    assert ok(post(server, PATH, {**ASK, **off}))["status"] == "completed"


def test_a_prompt_that_is_too_long_is_refused(scripted):
    server = scripted("qwen25", {"model.context": 256})
    error = error_of(post(server, PATH, {"input": "tide " * 300, "stream": True}))
    assert error["code"] == "context_length_exceeded" and "maximum" in error["message"]
    assert ok(post(server, PATH, {"input": "Hi", "ignore_eos": True}))["usage"]["total_tokens"] == 256, "bounded by the context"


def test_a_silent_stream_says_that_it_goes_on(start_server):
    server = start_server({"server.keepalive_s": 1, "engine.rows": 1, "engine.slots": 1})
    long = {"input": "Go on", "stream": True, "ignore_eos": True, "temperature": 0}
    with post(server, PATH, {**long, "max_output_tokens": 15000}, stream=True) as first:
        chunks = first.iter_content(None)
        next(chunks)
        with post(server, PATH, {**long, "max_output_tokens": 5}, stream=True) as second:
            blob = next(second.iter_content(None)).decode()
            assert [line[7:] for line in blob.split("\n") if line.startswith("event: ")] == [
                "response.created", "response.in_progress", "response.in_progress"]


def test_a_failing_stream_says_so(start_server):
    server = start_server({"server.drain_s": 0, "engine.threads": 1})
    body = {"input": "Go on", "stream": True, "ignore_eos": True, "temperature": 0}
    with post(server, PATH, body, stream=True) as reply:
        chunks = reply.iter_content(None)
        blob = next(chunks)
        server.signal(15)
        blob += b"".join(chunks)
    last = blob.decode().rstrip("\n").rpartition("\n\n")[2]
    assert last.startswith("event: response.failed\n")
    assert json.loads(last.partition("data: ")[2])["response"]["error"]["message"]
    assert server.wait() == 0
