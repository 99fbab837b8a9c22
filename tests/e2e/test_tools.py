"""Tools in chat completions: calls whole and streamed, parallel, malformed; results; templates that know tools and such that do not.

The model says what the test's script says (tests/scripted); everything else is the product.
"""
import json

import pytest

from agents_kit import LIST, READ, call_text, chat_tool, ok
from apikit import error_of, events, get, post, text_of, user

TOOLS = [chat_tool(READ), chat_tool(LIST)]
ASK = {"messages": user("What lies at berth seven?"), "tools": TOOLS, "temperature": 0}


@pytest.fixture
def server(scripted):
    return scripted("qwen25")


def stream(server, body):
    with post(server, "/v1/chat/completions", {**body, "stream": True}, stream=True) as reply:
        data = [value for kind, value in events(reply) if kind == "data"]
    assert data[-1] == "[DONE]"
    return [json.loads(value)["choices"][0] for value in data[:-1]]


def gathered(choices):
    """What a client makes of a stream: content, reasoning, calls, the finish reason."""
    content, reasoning, calls, finish = "", "", [], None
    for choice in choices:
        delta = choice["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", []):
            if part["index"] == len(calls):
                assert part["id"] and part["type"] == "function" and part["function"]["name"]
                calls.append([part["function"]["name"], ""])
            calls[part["index"]][1] += part["function"]["arguments"]
        finish = finish or choice["finish_reason"]
    return content, reasoning, calls, finish


def whole(server, body):
    reply = ok(post(server, "/v1/chat/completions", body))
    choice = reply["choices"][0]
    message = choice["message"]
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])]
    return message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"]


def test_a_call_is_found_whole_and_streamed(server, script):
    script(("berth seven", "I will look.\n" + call_text("read_berth", {"path": "seven"})))
    expected = ("I will look.", "", [["read_berth", '{"path": "seven"}']], "tool_calls")
    assert whole(server, ASK) == expected
    assert gathered(stream(server, ASK)) == expected


def test_content_is_null_when_there_is_only_a_call(server, script):
    script(("berth seven", call_text("list_berths", {})))
    message = ok(post(server, "/v1/chat/completions", ASK))["choices"][0]["message"]
    assert message["content"] is None and message["tool_calls"][0]["id"].startswith("call_")


def test_several_calls_have_ids_of_their_own(server, script):
    calls = [call_text("read_berth", {"path": p}) for p in ("one", "two", "three")]
    script(("berth seven", "\n".join(calls)))
    message = ok(post(server, "/v1/chat/completions", ASK))["choices"][0]["message"]
    assert [json.loads(c["function"]["arguments"])["path"] for c in message["tool_calls"]] == ["one", "two", "three"]
    assert len({c["id"] for c in message["tool_calls"]}) == 3
    assert [c[0] for c in gathered(stream(server, ASK))[2]] == ["read_berth"] * 3


def test_arguments_are_streamed_as_they_are_written(server, script):
    long = "harbour " * 200
    script(("berth seven", call_text("read_berth", {"path": long})))
    choices = stream(server, ASK)
    deltas = [p for c in choices for p in c["delta"].get("tool_calls", [])]
    assert len(deltas) > 3, "not all at once"
    assert json.loads(gathered(choices)[2][0][1]) == {"path": long}


@pytest.mark.parametrize("text", ["<tool_call>\n{\"name\": \"read_berth\", \"arguments\": 7}\n</tool_call>", "<tool_call>not JSON</tool_call>",
                                  "<tool_call>\n{\"name\": \"read_berth\"", "a < b and <tool_call"])
def test_a_malformed_call_is_text(server, script, text):
    script(("berth seven", text))
    assert whole(server, ASK) == (text, "", [], "stop")
    assert gathered(stream(server, ASK)) == (text, "", [], "stop")


def test_a_call_that_breaks_when_it_was_announced_is_text_in_a_whole_answer(server, script):
    text = "Now.\n<tool_call>\n{\"name\": \"read_berth\", \"arguments\": {\"path\": \"x\"]}\n</tool_call>"
    script(("berth seven", text))
    assert whole(server, ASK) == (text, "", [], "stop")
    content, _, calls, finish = gathered(stream(server, ASK))
    # As of any answer that was cut off: who runs what is announced must not run half of it.
    assert content.startswith("Now.") and calls == [["read_berth", '{"path": "x"']] and finish == "length"


@pytest.mark.parametrize("end", ["\n</tool_call>", ""])
def test_a_call_that_lacks_its_last_brace_is_a_call(server, script, end):
    script(("berth seven", '<tool_call>\n{"name": "read_berth", "arguments": {"path": "seven"}' + end))
    expected = ("", "", [["read_berth", '{"path": "seven"}']], "tool_calls")
    assert whole(server, ASK) == expected
    assert gathered(stream(server, ASK)) == expected


def test_one_call_at_a_time_ends_the_answer_after_the_first(server, script):
    calls = [call_text("read_berth", {"path": p}) for p in ("one", "two", "three")]
    script(("berth seven", "Look.\n" + "\n".join(calls)))
    body = {**ASK, "parallel_tool_calls": False}
    expected = ("Look.", "", [["read_berth", '{"path": "one"}']], "tool_calls")
    assert whole(server, body) == expected
    assert gathered(stream(server, body)) == expected
    used = [ok(post(server, "/v1/chat/completions", {**ASK, "parallel_tool_calls": p}))["usage"]["completion_tokens"] for p in (False, True)]
    assert used[0] < used[1] / 2, "it stops there"
    assert len(whole(server, {**ASK, "parallel_tool_calls": True})[2]) == 3


def test_an_image_in_a_result_becomes_words(server):
    def prompt(part):
        call = {"id": "c1", "type": "function", "function": {"name": "read_berth", "arguments": "{}"}}
        return rendered(server, [*user("x"), {"role": "assistant", "content": "", "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Before."}, part]}])

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert "Before.\n[an image was left out: this model reads text only]" in prompt(image)
    error = error_of(post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}))
    assert error["param"] == "messages[0].content[0]" and "image_url" in error["message"]


def test_an_answer_cut_off_inside_a_call_ends_by_length(server, script):
    script(("berth seven", call_text("read_berth", {"path": "a" * 400})))
    assert whole(server, {**ASK, "max_tokens": 30})[3] == "length"
    assert gathered(stream(server, {**ASK, "max_tokens": 30}))[3] == "length"


def test_without_tools_or_with_none_chosen_nothing_is_a_call(server, script):
    text = call_text("read_berth", {"path": "seven"})
    script(("berth seven", text))
    assert whole(server, {"messages": ASK["messages"]})[:3] == (text, "", [])
    assert whole(server, {**ASK, "tool_choice": "none"})[:3] == (text, "", [])
    assert whole(server, {**ASK, "tool_choice": "auto"})[2]


def test_the_slot_is_told_that_a_tool_was_called(server, script):
    script(("berth seven", call_text("list_berths", {})), ("berth eight", "There is nothing."))
    for question, reason in (("What lies at berth seven?", "tool_use"), ("And at berth eight?", "end_turn")):
        body = {**ASK, "messages": user(question), "id_slot": 3}
        ok(post(server, "/v1/chat/completions", body))
        assert get(server, "/slots").json()[3]["stop_reason"] == reason


def test_a_loop_with_the_sdk(server, script):
    client = server.client()
    script(("berth seven", call_text("read_berth", {"path": "seven"})), ("a red buoy", "It is a red buoy."))
    messages = user("What lies at berth seven?")
    with client.chat.completions.create(model="m", messages=messages, tools=TOOLS, stream=True) as chunks:
        chunks = list(chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    done = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    call = done.choices[0].message.tool_calls[0]
    messages += [done.choices[0].message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "a red buoy"}]
    done = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    assert done.choices[0].message.content == "It is a red buoy." and done.choices[0].finish_reason == "stop"


def rendered(server, messages, tools=TOOLS):
    return ok(post(server, "/apply-template", {"messages": messages, "tools": tools}))["prompt"]


def test_arguments_are_written_in_one_form(server):
    def prompt(arguments):
        call = {"id": "c1", "type": "function", "function": {"name": "read_berth", "arguments": arguments}}
        return rendered(server, [*user("x"), {"role": "assistant", "content": "", "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "c1", "content": "y"}])

    forms = ['{"path": "a b", "n": [1, 2.5, null]}', '{"path":"a b","n":[1,2.5,null]}', '{\n "path" : "a b",\n "n": [ 1, 2.5, null ] }']
    assert len({prompt(form) for form in forms}) == 1
    assert '"arguments": {"path": "a b", "n": [1, 2.5, null]}' in prompt(forms[1])
    assert '"arguments": {}' in prompt("") and '"arguments": {}' in prompt(None)
    assert "no json" in prompt("no json")


def test_a_template_without_tools_is_told_of_them_in_words(scripted, script):
    server = scripted()
    prompt = rendered(server, ASK["messages"])
    assert '"name": "list_berths"' in prompt and "<tool_call>" in prompt and prompt.index("list_berths") < prompt.index("berth seven")
    assert "You can call" not in rendered(server, ASK["messages"], [])
    mine = rendered(server, [{"role": "system", "content": "Be brief."}, *ASK["messages"]])
    assert mine.count("<|im_start|>system") == 1 and mine.index("Be brief.") < mine.index("list_berths")
    script(("berth seven", "Yes.\n" + call_text("read_berth", {"path": "seven"})))
    assert whole(server, ASK) == ("Yes.", "", [["read_berth", '{"path": "seven"}']], "tool_calls")
    call = {"id": "c1", "type": "function", "function": {"name": "read_berth", "arguments": "{\"path\":\"seven\"}"}}
    back = rendered(server, [*ASK["messages"], {"role": "assistant", "content": "Yes.", "tool_calls": [call]},
                             {"role": "tool", "tool_call_id": "c1", "content": "a red buoy"}])
    assert back.startswith(prompt + "Yes.\n" + call_text("read_berth", {"path": "seven"}) + "<|im_end|>")
    assert "a red buoy" in back


@pytest.mark.parametrize("template, said", [
    ("mistral", '[TOOL_CALLS][{"name": "read_berth", "arguments": {"path": "seven"}}]'),
    ("llama3", '{"name": "read_berth", "parameters": {"path": "seven"}}'),
    ("hermes", call_text("read_berth", {"path": "seven"})),
    ("qwen3_coder", "<tool_call>\n<function=read_berth>\n<parameter=path>\nseven\n</parameter>\n</function>\n</tool_call>"),
    ("glm45", "<tool_call>read_berth\n<arg_key>path</arg_key>\n<arg_value>seven</arg_value>\n</tool_call>"),
])
def test_the_template_tells_the_format(scripted, script, template, said):
    server = scripted(template)
    script(("berth seven", said), ("a red buoy", "Done."))
    assert whole(server, ASK)[2:] == ([["read_berth", '{"path": "seven"}']], "tool_calls")
    # Ids of any form come back, whatever the template wants of them.
    call = {"id": "call_0123456789", "type": "function", "function": {"name": "read_berth", "arguments": '{"path":"seven"}'}}
    follow = [*ASK["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
              {"role": "tool", "tool_call_id": "call_0123456789", "content": "a red buoy"}]
    assert whole(server, {**ASK, "messages": follow})[0] == "Done."


def test_marks_that_are_control_tokens_are_seen(scripted, script, make_model):
    model = make_model("--control", "[TOOL_CALLS]", "--control", "<think>", "--control", "</think>", "--control", "<unused>")
    server = scripted("mistral", model=model)
    script(("berth seven", 'Look.[TOOL_CALLS][{"name": "list_berths", "arguments": {}}]<unused>'))
    assert whole(server, ASK) == ("Look.", "", [["list_berths", "{}"]], "tool_calls")
    assert whole(server, {"messages": ASK["messages"]})[0] == 'Look.[{"name": "list_berths", "arguments": {}}]'
    server = scripted("reasoner", model=model)
    script(("berth seven", "<think>\nHm.\n</think>\n\nA buoy.<unused>"))
    assert whole(server, ASK) == ("A buoy.", "Hm.", [], "stop")


def test_the_format_can_be_set(scripted, script):
    server = scripted("qwen25", {"model.tool_format": "json"})
    script(("berth seven", '{"name": "read_berth", "arguments": {}}'))
    assert whole(server, ASK)[2] == [["read_berth", "{}"]]
    server = scripted("qwen25", {"model.tool_format": "none"})
    script(("berth seven", call_text("list_berths", {})))
    assert whole(server, ASK)[:3] == (call_text("list_berths", {}), "", [])


def test_a_template_that_takes_no_two_messages_of_one_role_gets_one(scripted):
    server = scripted("mistral")
    prompt = rendered(server, [*user("One."), *user("Two."), {"role": "assistant", "content": "Three."}, *user("Four.")], [])
    assert prompt.index("One.") < prompt.index("Two.") < prompt.index("Three.")
    late = rendered(server, [*user("One."), {"role": "assistant", "content": "Two."}, {"role": "system", "content": "Three."}], [])
    assert "Three." in late


@pytest.mark.parametrize("template", ["qwen3"])
def test_reasoning_is_apart(scripted, script, template):
    server = scripted(template)
    script(("berth seven", "<think>\nIs it *seven*?\n\nYes.\n</think>\n\nA buoy.\n" + call_text("list_berths", {})))
    expected = ("A buoy.", "Is it *seven*?\n\nYes.", [["list_berths", "{}"]], "tool_calls")
    assert whole(server, ASK) == expected
    assert gathered(stream(server, ASK)) == expected
    usage = ok(post(server, "/v1/chat/completions", ASK))["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_a_template_that_takes_one_call_at_a_time_gets_one_at_a_time(scripted):
    server = scripted("llama3")

    def calling(content, *ids):
        calls = [{"id": i, "type": "function", "function": {"name": "read_berth", "arguments": json.dumps({"path": i})}} for i in ids]
        return {"role": "assistant", "content": content, "tool_calls": calls}

    def result(i):
        return {"role": "tool", "tool_call_id": i, "content": f"result {i}"}

    together = [*user("x"), calling("", "a", "b", "c"), result("b"), result("a"), result("c"), *user("y")]
    apart = [*user("x"), calling("", "a"), result("a"), calling("", "b"), result("b"), calling("", "c"), result("c"), *user("y")]
    assert rendered(server, together) == rendered(server, apart)
    assert rendered(server, together[:2]).count('"name": "read_berth"') == rendered(server, apart[:1]).count('"name": "read_berth"') + 3


def test_what_cannot_be_rendered_says_why(scripted):
    server = scripted("mistral")
    error = error_of(post(server, "/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a"}]}))
    assert "template" in error["message"] and "alternate" in error["message"]


def test_logprobs_go_on_beside_calls(server, script):
    script(("berth seven", "Look.\n" + call_text("list_berths", {})))
    body = {**ASK, "logprobs": True}
    total = len(ok(post(server, "/v1/chat/completions", body))["choices"][0]["logprobs"]["content"])
    streamed = sum(len(c["logprobs"]["content"]) for c in stream(server, body) if c["logprobs"])
    assert streamed == total > 5
    assert text_of(ok(post(server, "/v1/chat/completions", body))) == "Look."


ITEMS = """{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}
{%- for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }};{% endfor %}</tool_call>{% endfor %}
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.mark.parametrize("arguments", ['{"path": "se', "[1, 2]", "seven", [1], 7, True])
def test_a_call_that_was_cut_off_does_not_end_the_conversation(start_server, tmp_path, arguments):
    """Clients send back what they got; many templates go through the members of the arguments."""
    template = tmp_path / "items.jinja"
    template.write_text(ITEMS)
    server = start_server({"model.chat_template": template, "engine.threads": 1})
    call = {"id": "call1", "type": "function", "function": {"name": "read_berth", "arguments": arguments}}
    body = {"messages": [*user("Look"), {"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": "call1", "content": "a buoy"}], "max_tokens": 1}
    prompt = ok(post(server, "/apply-template", body))["prompt"]
    assert f"<tool_call>read_bertharguments={json.dumps(arguments)};</tool_call>" in prompt
    assert post(server, "/v1/chat/completions", body).status_code == 200


UNLISTED = """{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""


def test_a_template_that_writes_calls_and_lists_no_tools_has_one_form_of_calls(scripted, script, tmp_path):
    """The model is told in words how to write a call, so that is what it is read by, and what it sees of its calls later."""
    (tmp_path / "unlisted.jinja").write_text(UNLISTED)
    server = scripted(None, {"model.chat_template": tmp_path / "unlisted.jinja"})
    said = "Yes.\n" + call_text("read_berth", {"path": "seven"})
    script(("berth seven", said))
    assert whole(server, ASK) == ("Yes.", "", [["read_berth", '{"path": "seven"}']], "tool_calls")
    call = {"id": "c1", "type": "function", "function": {"name": "read_berth", "arguments": '{"path":"seven"}'}}
    back = rendered(server, [*ASK["messages"], {"role": "assistant", "content": "Yes.", "tool_calls": [call]}])
    assert "[assistant]" + said in back and "CALL" not in back
