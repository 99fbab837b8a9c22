"""Conversations as large as a body may be: the time and the memory they take grow with the body and not faster, and what is too
long for the context is refused in the words that clients look for."""
import pytest

from agents_kit import READ, chat_tool, messages_tool, ok
from apikit import error_of, post, user

MANY = 80000


def long_of(reply):
    message = error_of(reply)["message"] if "param" in reply.json()["error"] else reply.json()["error"]["message"]
    assert reply.status_code == 400 and "prompt is too long: " in message, message


def calls(ids):
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": i, "type": "function", "function": {"name": "read_berth", "arguments": "{}"}} for i in ids]}


@pytest.mark.parametrize("template", ["gemma", "llama3", "mistral"])
@pytest.mark.parametrize("role", ["user", "system"])
def test_many_messages_of_one_role(scripted, time_scale, template, role):
    """Templates that take no two in a row, or none later on, get one made of them."""
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": role, "content": "A buoy swam by."}] * MANY + user("And?")}
    long_of(post(scripted(template), "/v1/messages", body, timeout=15 * time_scale))


@pytest.mark.parametrize("ids", [[f"call{i}" for i in range(20000)], [""] * 20000], ids=["named", "nameless"])
def test_many_calls_of_a_template_that_takes_one(scripted, time_scale, ids):
    body = {"messages": [*user("Look"), calls(ids), *({"role": "tool", "tool_call_id": i, "content": "A buoy"} for i in ids)]}
    long_of(post(scripted("llama3"), "/v1/chat/completions", body, timeout=15 * time_scale))


def test_results_find_their_calls(scripted):
    results = [{"role": "tool", "tool_call_id": i, "content": text} for i, text in
               (("c", "three"), ("a", "one"), ("lost", "none's"), ("b", "two"), ("b", "repeated"))]
    body = {"messages": [*user("Look"), calls(["a", "b", "c", "d"]), *results], "tools": [chat_tool(READ)]}
    prompt = ok(post(scripted("llama3"), "/apply-template", body))["prompt"]
    words = ["one", "two", "three", "none's", "repeated"]
    places = [prompt.index(word + "<|eot_id|>") for word in words]
    assert places == sorted(places)
    assert prompt.count('"name": "read_berth", "parameters"') == 4
    before = [prompt.rindex('"name": "read_berth", "parameters"', 0, place) for place in places[:3]]
    assert len(set(before)) == 3, "each result follows its own call"


def test_a_tool_that_is_named_often_is_shown_once(scripted, script):
    """A megabyte named a thousand times is a megabyte."""
    server = scripted("qwen25")
    tool = messages_tool(("weather", "Tells the weather", {"type": "object", "x": "y" * 2000}), defer_loading=True)
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "weather"}]}

    def count(n):
        body = {"messages": [{"role": "user", "content": [{**result, "content": result["content"] * n}]}], "tools": [tool]}
        return ok(post(server, "/v1/messages/count_tokens", body))["input_tokens"]

    script(("weather", "Mild."))
    none, one, many = count(0), count(1), count(200)
    assert one - none > 1000 and many - one < 200 * 20


def test_tools_that_cannot_be_written_are_refused(scripted, time_scale):
    """They are never just left out: the model would answer as if there were none."""
    tool = chat_tool(("read_berth", "Reads", {"type": "object", "enum": [1] * 1500000}))
    reply = post(scripted("gemma"), "/v1/chat/completions", {"messages": user("Look"), "tools": [tool], "max_tokens": 1},
                 timeout=40 * time_scale)
    assert "tools: " in error_of(reply)["message"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
def test_more_than_the_template_can_hold_is_too_long(scripted, path, time_scale):
    text = "A buoy. " * 2500000
    body = {"model": "m", "max_tokens": 1, "messages": user(text)} if path != "/v1/responses" else {"input": text}
    long_of(post(scripted("qwen25"), path, body, timeout=40 * time_scale))
