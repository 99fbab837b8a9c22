"""POST /v1/chat/completions, whole answers: shape, sampling, conversations, errors."""
import pytest

from apikit import balanced, chat, error_of, get, metrics, post, text_of, user


def test_an_answer_has_openais_shape(server):
    reply = post(server, "/v1/chat/completions", {"messages": user("Hello"), "max_tokens": 7, "temperature": 0})
    body = reply.json()
    assert reply.status_code == 200 and body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["model"] == get(server, "/v1/models").json()["data"][0]["id"]
    assert body["choices"][0]["message"]["role"] == "assistant" and body["choices"][0]["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == 7 and usage["total_tokens"] == usage["prompt_tokens"] + 7
    timings = body["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"] and timings["predicted_n"] == 7
    assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"] == int(reply.headers["X-Berth-Cached"])
    assert int(reply.headers["X-Berth-Slot"]) == timings["slot"]


def test_the_sdk_understands_it(client, server):
    done = client.chat.completions.create(model="any", messages=user("What is a tide?"), max_tokens=12, temperature=0)
    assert done.choices[0].message.content == text_of(chat(server, "What is a tide?", max_tokens=12))
    assert done.usage.completion_tokens == 12


def test_the_prompt_is_the_rendered_template(server):
    messages = [{"role": "system", "content": "Be short."}, *user("Why is the sky blue?")]
    prompt = post(server, "/apply-template", {"messages": messages}).json()["prompt"]
    assert "Be short." in prompt and prompt.endswith("assistant\n")
    plain = post(server, "/v1/completions", {"prompt": prompt, "max_tokens": 20, "temperature": 0}).json()
    told = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 20, "temperature": 0}).json()
    assert text_of(told) == text_of(plain)
    assert told["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    ids = post(server, "/tokenize", {"content": prompt, "parse_special": True}).json()["tokens"]
    assert told["usage"]["prompt_tokens"] == len(ids)


def test_a_second_turn_reads_only_what_is_new(server):
    messages = user("Once upon a time there was a keeper who would not leave the light.")
    first = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 30, "temperature": 0}).json()
    messages += [{"role": "assistant", "content": text_of(first)}, *user("And then?")]
    body = {"messages": messages, "max_tokens": 16, "temperature": 0}
    second = post(server, "/v1/chat/completions", body).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
    cold = post(server, "/v1/chat/completions", {**body, "cache_prompt": False}).json()
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert text_of(second) == text_of(cold)


def test_content_may_be_text_parts(server):
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    one = post(server, "/apply-template", {"messages": [{"role": "user", "content": parts}]}).json()
    assert one == post(server, "/apply-template", {"messages": user("Hello\nthere")}).json()
    single = post(server, "/apply-template", {"messages": [{"role": "user", "content": parts[:1]}]}).json()
    assert single == post(server, "/apply-template", {"messages": user("Hello")}).json()


def test_other_parts_are_refused_by_name(server):
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    error = error_of(post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}))
    assert error["param"] == "messages[0].content[1]" and "image_url" in error["message"] and "text" in error["message"]


def test_a_developer_message_is_a_system_message(server):
    developer = post(server, "/apply-template", {"messages": [{"role": "developer", "content": "x"}, *user("y")]}).json()
    system = post(server, "/apply-template", {"messages": [{"role": "system", "content": "x"}, *user("y")]}).json()
    assert developer == system


def test_tool_messages_and_tools_pass(server):
    messages = [*user("What time is it?"),
                {"role": "assistant", "content": None,
                 "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{\"tz\": \"UTC\"}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "12:00"}]
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
    reply = post(server, "/v1/chat/completions", {"messages": messages, "tools": tools, "tool_choice": "auto",
                                                  "parallel_tool_calls": True, "max_tokens": 3})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("messages, param", [
    ([], "messages"),
    ([1], "messages[0]"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "pirate", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 3}], "messages[0].content"),
    ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": "z"}], "messages[1].tool_calls"),
    ([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}], "messages[1].tool_calls"),
])
def test_a_broken_message_is_named(server, messages, param):
    error = error_of(post(server, "/v1/chat/completions", {"messages": messages}))
    assert error["param"] == param and error["type"] == "invalid_request_error" and param in error["message"]


def test_a_missing_prompt_is_named(server):
    assert error_of(post(server, "/v1/chat/completions", {}))["param"] == "messages"
    assert error_of(post(server, "/v1/chat/completions", {"messages": None}))["param"] == "messages"
    assert error_of(post(server, "/v1/completions", {}))["param"] == "prompt"


def test_the_same_seed_gives_the_same_text_and_the_seed_is_told(server):
    fields = {"temperature": 1.2, "max_tokens": 40}
    first = chat(server, "Tell me a story", **fields)
    again = chat(server, "Tell me a story", **fields, seed=first["seed"])
    other = chat(server, "Tell me a story", **fields, seed=first["seed"] + 1)
    assert text_of(first) == text_of(again) and again["seed"] == first["seed"]
    assert text_of(first) != text_of(other)
    assert chat(server, "x", seed=-1)["seed"] >= 0


def test_a_stop_string_ends_the_text(server):
    text = text_of(chat(server, max_tokens=60))
    stop = text[20:26]
    reply = chat(server, max_tokens=60, stop=stop)
    assert text_of(reply) == text[:text.index(stop)] and reply["choices"][0]["finish_reason"] == "stop"
    several = chat(server, max_tokens=60, stop=["never said ", stop, "nor this"])
    assert text_of(several) == text_of(reply)


def test_min_tokens_and_ignore_eos_hold_back_the_end(server):
    eos = post(server, "/tokenize", {"content": "<|im_end|>", "parse_special": True}).json()["tokens"]
    assert len(eos) == 1
    bias = {str(eos[0]): 100}
    ended = chat(server, logit_bias=bias)
    assert ended["choices"][0]["finish_reason"] == "stop" and text_of(ended) == ""
    assert chat(server, logit_bias=bias, min_tokens=6)["usage"]["completion_tokens"] == 7
    assert chat(server, logit_bias=bias, ignore_eos=True)["choices"][0]["finish_reason"] == "length"


def test_logit_bias_forces_a_token(server):
    token = post(server, "/tokenize", {"content": "x"}).json()["tokens"][0]
    assert text_of(chat(server, logit_bias={str(token): 100}, max_tokens=4)) == "xxxx"
    assert text_of(chat(server, logit_bias=[[token, 100]], max_tokens=4)) == "xxxx"


def test_max_tokens_is_clamped_to_the_context(start_server):
    server = start_server({"model.context": 64})
    reply = chat(server, "Hi", max_tokens=100000, ignore_eos=True)
    assert reply["usage"]["total_tokens"] == 64 and reply["choices"][0]["finish_reason"] == "length"
    assert chat(server, "Hi", max_tokens=None, ignore_eos=True)["usage"]["total_tokens"] == 64


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(start_server):
    server = start_server({"model.context": 128})
    ids = post(server, "/tokenize", {"content": "tide " * 300}).json()["tokens"]
    error = error_of(post(server, "/v1/completions", {"prompt": ids}))
    assert str(len(ids)) in error["message"] and "128" in error["message"]
    assert error["code"] == "context_length_exceeded"
    error = error_of(post(server, "/v1/chat/completions", {"messages": user("tide " * 300)}))
    assert "128" in error["message"] and error["code"] == "context_length_exceeded"


def test_logprobs_have_openais_shape(client, server):
    done = client.chat.completions.create(model="m", messages=user("Hello"), max_tokens=6, temperature=0, logprobs=True,
                                          top_logprobs=3)
    content = done.choices[0].logprobs.content
    assert len(content) == 6
    assert "".join(bytes(t.bytes).decode("utf-8", "replace") for t in content) == done.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.logprob == token.top_logprobs[0].logprob and token.token == token.top_logprobs[0].token
    none = client.chat.completions.create(model="m", messages=user("Hello"), max_tokens=2, logprobs=True)
    assert none.choices[0].logprobs.content[0].top_logprobs == []
    assert chat(server)["choices"][0]["logprobs"] is None


def test_the_queue_is_bounded(start_server):
    from concurrent.futures import ThreadPoolExecutor

    server = start_server({"engine.rows": 1, "engine.slots": 1, "queue.max": 2})
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda i: post(server, "/v1/chat/completions", {
            "messages": user(f"Question {i}"), "max_tokens": 400, "ignore_eos": True}), range(12)))
    refused = [r for r in replies if r.status_code != 200]
    assert refused and len(refused) < 12
    for reply in refused:
        error = error_of(reply, 429)
        assert error["type"] == "rate_limit_error" and int(reply.headers["Retry-After"]) >= 1
    assert balanced(metrics(server))
