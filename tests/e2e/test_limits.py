"""Bodies made to be slow: large, wide and deep ones are answered within a second, and nobody else notices."""
import json
import threading
import time

import pytest

from apikit import error_of, get, post, user

pytestmark = pytest.mark.alone

MB = 1 << 20
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1'


def body_of(kind):
    if kind == "10 MB of spaces":
        return b" " * (10 * MB), 400
    if kind == "10 MB of spaces around a request":
        return b" " * (5 * MB) + CHAT + b"}" + b"\n" * (5 * MB), 200
    if kind == "10 MB of spaces in a message":
        return json.dumps({"messages": user(" " * (10 * MB))}).encode(), 400
    if kind == "100,000 unknown keys":
        return CHAT + b"".join(b', "key%d": %d' % (i, i) for i in range(100_000)) + b"}", 200
    if kind == "100,000 equal keys":
        return CHAT + b', "k": 1' * 100_000 + b"}", 200
    if kind == "brackets 100,000 deep":
        return CHAT + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400
    if kind == "brackets 100,000 deep, unclosed":
        return b"[" * 100_000, 400
    if kind == "objects 100,000 deep":
        return b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400
    if kind == "100,000 stop strings":
        return CHAT + b', "stop": [' + b", ".join([b'"x"'] * 100_000) + b"]}", 400
    if kind == "a number of 1,000,000 digits":
        return CHAT + b', "temperature": ' + b"1" * 1_000_000 + b"}", 400
    if kind == "30,000 messages":
        return json.dumps({"messages": user("x") * 30_000}).encode(), 400
    raise ValueError(kind)


KINDS = ["10 MB of spaces", "10 MB of spaces around a request", "10 MB of spaces in a message", "100,000 unknown keys",
         "100,000 equal keys", "brackets 100,000 deep", "brackets 100,000 deep, unclosed", "objects 100,000 deep",
         "100,000 stop strings", "a number of 1,000,000 digits", "30,000 messages"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_answered_within_a_second(server, time_scale, kind):
    body, status = body_of(kind)
    begin = time.monotonic()
    reply = post(server, "/v1/chat/completions", body)
    took = time.monotonic() - begin
    print(f"{kind}: {took:.3f} s")
    if status == 400:
        error_of(reply)
    else:
        assert reply.status_code == status, reply.text[:500]
    assert took < 1 * time_scale, f"{kind}: {took:.2f} s"


def test_a_message_that_cannot_fit_is_refused_with_both_numbers(server):
    error = error_of(post(server, "/v1/chat/completions", body_of("10 MB of spaces in a message")[0]))
    context = get(server, "/v1/models").json()["data"][0]["max_model_len"]
    assert str(context) in error["message"] and "at least" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_health_answers_while_such_bodies_come(server, time_scale):
    stop = threading.Event()

    def bombard():
        while not stop.is_set():
            for kind in ("10 MB of spaces around a request", "100,000 unknown keys", "brackets 100,000 deep"):
                post(server, "/v1/chat/completions", body_of(kind)[0])

    sender = threading.Thread(target=bombard)
    sender.start()
    times = []
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            begin = time.monotonic()
            assert get(server, "/health").status_code == 200
            times.append(time.monotonic() - begin)
    finally:
        stop.set()
        sender.join()
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(f"/health while large bodies come: p50 {times[len(times) // 2] * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms of {len(times)}")
    assert p99 < 0.25 * time_scale


def test_a_body_above_the_limit_is_a_413(start_server):
    server = start_server({"server.max_body_bytes": 4096})
    reply = post(server, "/v1/chat/completions", CHAT + b" " * 8192 + b"}")
    assert reply.status_code == 413 and reply.json()["error"]["message"]
    assert post(server, "/v1/chat/completions", CHAT + b"}").status_code == 200


def test_a_long_tokenize_is_linear(server, time_scale):
    for text in ("a" * MB, " " * MB, "\u00e9" * (MB // 2), "ab " * (MB // 3)):
        begin = time.monotonic()
        reply = post(server, "/tokenize", {"content": text})
        took = time.monotonic() - begin
        assert reply.status_code == 200 and took < 2 * time_scale, (text[:3], took)
        ids = reply.json()["tokens"]
        assert post(server, "/detokenize", {"tokens": ids}).json()["content"] == text
