"""Streams: order of chunks, equality with the whole answer, stop strings, UTF-8, comments while waiting."""
import json

import pytest

from apikit import chat, endless_stream, events, metrics, post, stream, streamed_text, text_of, user


@pytest.mark.tsan
def test_chunks_come_in_order(server):
    chunks = stream(server, stream_options={"include_usage": True})
    assert len({c["id"] for c in chunks}) == 1 and {c["object"] for c in chunks} == {"chat.completion.chunk"}
    first, *middle, stop, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["choices"][0]["delta"]["content"] for c in middle)
    assert all(c["choices"][0]["finish_reason"] is None for c in [first, *middle])
    assert stop["choices"][0]["delta"] == {} and stop["choices"][0]["finish_reason"] == "length"
    assert stop["timings"]["predicted_n"] == 24 and stop["seed"] >= 0
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 24
    assert all(c["usage"] is None for c in chunks[:-1])


def test_without_include_usage_there_is_none(server):
    assert not any("usage" in chunk for chunk in stream(server))


def test_a_stream_says_what_the_whole_answer_says(client, server):
    whole = text_of(chat(server, max_tokens=100))
    assert streamed_text(stream(server, max_tokens=100)) == whole
    pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(
        model="m", messages=user("Tell me about the sea"), temperature=0, max_tokens=100, stream=True) if c.choices]
    assert "".join(pieces) == whole and len(pieces) > 2


def test_the_headers_keep_proxies_from_holding_back(server):
    with post(server, "/v1/chat/completions", {"messages": user("x"), "max_tokens": 2, "stream": True}, stream=True) as reply:
        list(events(reply))
    assert reply.headers["X-Accel-Buffering"] == "no" and "no-store" in reply.headers["Cache-Control"]


def test_stop_strings_never_show_wherever_they_lie(server):
    whole = text_of(chat(server, max_tokens=80))
    for start in range(1, len(whole) - 12, 7):
        stop = whole[start:start + 9]
        chunks = stream(server, max_tokens=80, stop=[stop, "never said"])
        assert streamed_text(chunks) == whole[:whole.index(stop)], (start, stop)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_what_only_looked_like_a_stop_string_comes_out_in_the_end(server):
    whole = text_of(chat(server, max_tokens=40))
    chunks = stream(server, max_tokens=40, stop=[whole[-3:] + "\x00not this"])
    assert streamed_text(chunks) == whole and chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_characters_are_never_split(server):
    """Bytes of one character forced one token at a time: the stream shows whole characters only."""
    ids = post(server, "/tokenize", {"content": "𐍈"}).json()["tokens"]
    assert len(ids) > 1, "this character is several tokens for this vocabulary"
    # Nothing but its tokens is possible, in any order: valid and invalid sequences.
    for seed in range(8):
        fields = {"logit_bias": {str(i): 100 for i in ids}, "max_tokens": 40, "temperature": 1.5, "seed": seed, "ignore_eos": True}
        whole = text_of(chat(server, **fields))
        with post(server, "/v1/chat/completions", {"messages": user("Tell me about the sea"), "stream": True, **fields},
                  stream=True) as reply:
            raw = b"".join(reply.iter_content(None))
        assert streamed_text([json.loads(l[6:]) for l in raw.decode("utf-8").split("\n\n") if l.startswith("data: {")]) == whole


def test_logprobs_of_a_stream_are_those_of_the_whole_answer(server):
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 30}
    whole = chat(server, **fields)["choices"][0]["logprobs"]["content"]
    parts = [c["logprobs"]["content"] for k in stream(server, **fields) for c in k["choices"] if c["logprobs"]]
    assert [t for part in parts for t in part] == whole and len(whole) == 30


@pytest.mark.tsan
def test_whoever_waits_gets_comments(start_server):
    server = start_server({"engine.rows": 1, "engine.slots": 1, "server.keepalive_s": 1})
    with endless_stream(server, n=8):  # one after the other: there is one slot
        with post(server, "/v1/chat/completions", {"messages": user("x"), "stream": True}, stream=True) as waiting:
            second = events(waiting)
            assert next(second) == ("comment", "waiting for a place")
            assert metrics(server)["live"]["running"] == 1


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.tsan
def test_eight_at_once_say_what_each_says_alone(server, temperature):
    from concurrent.futures import ThreadPoolExecutor

    questions = [f"Tell me about number {i}" for i in range(8)]
    fields = {"temperature": temperature, "seed": 5, "max_tokens": 60}
    alone = [text_of(chat(server, q, **fields)) for q in questions]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda q: streamed_text(stream(server, messages=user(q), **fields)), questions))
    assert together == alone
