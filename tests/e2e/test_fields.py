"""Every known field with every wrong JSON type and with values out of bounds: a 400 that names it. And mutated bodies: never a 500."""
import json
import random

import pytest

from apikit import error_of, get, post, user

VALUES = {"string": "text", "number": 7.25, "true": True, "list": [1.5], "object": {"a": {}}}
BOTH, CHAT, COMPLETIONS = ("chat", "completions"), ("chat",), ("completions",)
# The types a field takes, and where it is known; written from the documentation, not from the server's table.
FIELDS = {
    "messages": (("list",), CHAT), "tools": (("list",), CHAT), "tool_choice": (("string", "object"), CHAT),
    "parallel_tool_calls": (("true",), CHAT), "response_format": (("object",), CHAT),
    "chat_template_kwargs": (("object",), CHAT), "add_generation_prompt": (("true",), CHAT),
    "max_completion_tokens": (("number",), CHAT), "top_logprobs": (("number",), CHAT),
    "prompt": (("string", "list"), COMPLETIONS), "echo": (("true",), COMPLETIONS), "suffix": (("string",), COMPLETIONS),
    "best_of": (("number",), COMPLETIONS),
    "model": (("string",), BOTH), "max_tokens": (("number",), BOTH), "stop": (("string", "list"), BOTH),
    "temperature": (("number",), BOTH), "top_p": (("number",), BOTH), "top_k": (("number",), BOTH),
    "min_p": (("number",), BOTH), "repeat_penalty": (("number",), BOTH), "presence_penalty": (("number",), BOTH),
    "frequency_penalty": (("number",), BOTH), "logit_bias": (("object", "list"), BOTH), "seed": (("number",), BOTH),
    "n": (("number",), BOTH), "ignore_eos": (("true",), BOTH), "min_tokens": (("number",), BOTH),
    "stream": (("true",), BOTH), "stream_options": (("object",), BOTH), "cache_prompt": (("true",), BOTH),
    "id_slot": (("number",), BOTH), "user": (("string",), BOTH), "prompt_cache_key": (("string",), BOTH),
}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
BASE = {"chat": {"messages": user("Hi"), "max_tokens": 1}, "completions": {"prompt": "Hi", "max_tokens": 1}}


def wrong_types():
    for name, (right, where) in FIELDS.items():
        for endpoint in where:
            yield from ((endpoint, name, kind) for kind in VALUES if kind not in right)
    yield from (("chat", "logprobs", kind) for kind in VALUES if kind != "true")
    yield from (("completions", "logprobs", kind) for kind in VALUES if kind != "number")


@pytest.mark.parametrize("endpoint", PATHS)
def test_a_wrong_type_is_named(server, endpoint):
    checked = 0
    for where, name, kind in wrong_types():
        if where != endpoint:
            continue
        error = error_of(post(server, PATHS[where], {**BASE[where], name: VALUES[kind]}))
        assert error["param"] == name and name in error["message"], (name, kind, error)
        assert error["type"] == "invalid_request_error"
        checked += 1
    assert checked > 80


@pytest.mark.parametrize("name, value", [
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", 1e300), ("top_p", -1), ("top_p", 1.5), ("top_k", -2),
    ("top_k", 2**40), ("top_k", 1.5), ("min_p", 2), ("repeat_penalty", 0), ("repeat_penalty", -1), ("repeat_penalty", 10.5), ("presence_penalty", 2.5),
    ("frequency_penalty", -3), ("max_tokens", 0), ("max_tokens", -5), ("max_tokens", 1.5),
    ("seed", -2), ("seed", 1e30), ("seed", 0.5), ("n", 0), ("n", 129), ("n", 1.5), ("min_tokens", -1), ("id_slot", 5000), ("id_slot", -2),
    ("stop", ""), ("stop", [""]), ("stop", ["x"] * 17), ("stop", [1]), ("stop", ["ok", None]), ("stop", "x" * 5000),
    ("logit_bias", {"x": 1}), ("logit_bias", {"1": "x"}), ("logit_bias", {"1": 101}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"99999999999999999999": 1}), ("logit_bias", {"100000000": 1}), ("logit_bias", [[1]]), ("logit_bias", [1]),
    ("logit_bias", {"": 1}), ("logit_bias", {" 1": 1}), ("logit_bias", {"+1": 1}), ("logit_bias", {"01": 1}), ("logit_bias", {"-0": 1}),
    ("logit_bias", {"1 ": 1}), ("logit_bias", {"1.0": 1}), ("logit_bias", {"0x1": 1}), ("logit_bias", {"00": 1}),
])
def test_a_value_out_of_bounds_is_named(server, name, value):
    for endpoint, path in PATHS.items():
        error = error_of(post(server, path, {**BASE[endpoint], name: value}))
        assert error["param"] == name and name in error["message"], error


@pytest.mark.parametrize("much", [2**31 - 1, 2**31, 2**32 + 1, 2**53, 2**63 - 1, 1e30])
def test_as_many_tokens_as_one_likes_are_what_fits(scripted, much):
    """Clients whose users set no limit send one nevertheless."""
    server = scripted(None, {"model.context": 128})
    for path, body in (("/v1/chat/completions", {"messages": user("Hi"), "max_tokens": much}), ("/v1/completions", {"prompt": "Hi", "max_tokens": much}),
                       ("/v1/chat/completions", {"messages": user("Hi"), "max_completion_tokens": much}),
                       ("/v1/messages", {"messages": user("Hi"), "max_tokens": much}), ("/v1/responses", {"input": "Hi", "max_output_tokens": much})):
        reply = post(server, path, {**body, "ignore_eos": True})
        assert reply.status_code == 200, (path, reply.text)
        timings = reply.json()["timings"]
        assert timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"] == 128, (path, timings)


@pytest.mark.parametrize("fields, param", [
    ({"response_format": {"type": "json_object"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": [1]}, "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 33}, "top_logprobs"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
])
def test_what_this_server_cannot_do_is_refused_by_name(server, fields, param):
    error = error_of(post(server, PATHS["chat"], {**BASE["chat"], **fields}))
    assert error["param"] == param and param.split(".")[0] in error["message"], error


def test_the_ends_of_the_bounds_are_allowed(server):
    low = {"temperature": 0, "top_p": 0, "top_k": -1, "min_p": 0, "presence_penalty": -2, "frequency_penalty": -2, "seed": -1,
           "min_tokens": 0, "id_slot": -1, "stop": [], "logit_bias": {}, "max_tokens": 1}
    high = {"temperature": 2, "top_p": 1, "top_k": 2**31 - 1, "min_p": 1, "presence_penalty": 2, "frequency_penalty": 2,
            "seed": 2**63 - 1, "min_tokens": 1, "id_slot": 0, "stop": ["x"] * 16, "logit_bias": {"1": 100}, "max_tokens": 1}
    for fields in (low, high):
        reply = post(server, PATHS["chat"], {**BASE["chat"], **fields})
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("body", ["", "{", "[]", "3", "null", "\"x\"", "{}{}", "{\"messages\":", "nul", "{'a': 1}", "\ufeff{}",
                                  "{\"a\": 01}", "{\"a\": \"\\ud800\"}", "{\"a\": NaN}"])
def test_broken_json_is_a_400(server, body):
    for path in [*PATHS.values(), "/tokenize", "/detokenize", "/apply-template"]:
        assert error_of(post(server, path, body.encode()))["message"]


@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_invalid_utf8_is_a_400(server, bad):
    body = b'{"messages": [{"role": "user", "content": "' + bad + b'"}]}'
    assert "UTF-8" in error_of(post(server, PATHS["chat"], body))["message"]


def mutate(rng, text):
    kind = rng.randrange(5)
    at = rng.randrange(len(text))
    if kind == 0:
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1:]
    if kind == 1:
        return text[:at] + text[at + rng.randrange(1, 9):]
    if kind == 2:
        return text[:at] + text[at:at + 20] + text[at:]
    if kind == 3:
        return text[:at] + rng.choice([b"null", b"[]", b"{}", b"-1", b"1e999", b"\"\"", b"\\u0000", b"true", b"\"", b"}"]) + text[at:]
    body = json.loads(text)
    key = rng.choice(list(body))
    body[key] = rng.choice([None, -1, 0, 1e308, "", [], {}, [None], [[]], {"a": None}, "\u0000", 2**64, True])
    return json.dumps(body).encode()


def test_mutated_bodies_never_break_the_server(start_server):
    server = start_server({"model.context": 96, "engine.threads": 1})
    rng = random.Random(7)
    full = {"model": "m", "messages": [{"role": "system", "content": "Be brief"}, *user("Hi")], "max_tokens": 2, "temperature": 0.5,
            "top_p": 0.9, "top_k": 5, "stop": ["a", "b"], "seed": 1, "logit_bias": {"5": 1.5}, "logprobs": True,
            "top_logprobs": 2, "stream": False, "tools": [{"type": "function", "function": {"name": "f"}}]}
    plain = {"prompt": ["Hi", "there"], "max_tokens": 2, "temperature": 0.5, "logprobs": 1, "stop": "x", "user": "u"}
    seen = {200: 0, 400: 0}
    for i in range(500):
        path, body = (PATHS["chat"], full) if i % 2 else (PATHS["completions"], plain)
        text = json.dumps(body).encode()
        for _ in range(rng.randrange(1, 4)):
            try:
                text = mutate(rng, text)
            except ValueError:
                break
        reply = post(server, path, text)
        assert reply.status_code in seen, (reply.status_code, reply.text, text)
        seen[reply.status_code] += 1
        if reply.status_code == 400:
            error_of(reply)
    server.check_alive()
    assert min(seen.values()) > 20, seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
                                  "/v1/responses", "/tokenize", "/detokenize", "/apply-template"])
def test_a_request_without_a_body_is_told_so(server, path):
    reply = post(server, path, b"")
    assert reply.status_code == 400 and "the request has no body" in reply.json()["error"]["message"], reply.text


@pytest.mark.parametrize("path, body, said", [
    ("/v1/chat/completions", {"messages": user("Hi"), "tools": [{"type": "web_search", "function": {"name": "f"}}]},
     'tools[0].type: "web_search" where'),
    ("/v1/messages", {"messages": [{"role": "pir\u00e4te", "content": "x"}]}, 'messages[0].role: "pir\\u00E4te" where'),
    ("/v1/messages", {"messages": [{"content": "x"}]}, "messages[0].role: missing where"),
    ("/v1/messages", {"messages": user("Hi"), "thinking": {"type": 7}}, "thinking.type: 7 where"),
    ("/metrics?format=xml", None, 'format: "xml" where'), ("/events?format=xml", None, 'format: "xml" where'),
    ("/events?after=x", None, 'after: "x" where'), ("/placements/none", None, 'the job number "none"'),
])
def test_a_refusal_names_the_value(server, path, body, said):
    reply = get(server, path) if body is None else post(server, path, body)
    assert reply.status_code in (400, 404) and said in reply.json()["error"]["message"], reply.text


@pytest.mark.parametrize("number, allowed", [
    (str(2**63), "-2^63..2^63-1"), (str(-2**63 - 1), "-2^63..2^63-1"), ("9" * 40, "-2^63..2^63-1"), ("1e999", "1.8e308")])
def test_a_number_too_large_for_any_field_says_what_is_allowed(server, number, allowed):
    body = '{"prompt": "x",\n "max_tokens": 1, "seed": %s}' % number
    message = error_of(post(server, "/v1/completions", body))["message"]
    assert allowed in message and "line 2" in message and "not valid JSON" not in message
