"""What the API tests share: posting JSON, reading a stream of server-sent events, waiting for a state of the server."""
import json
import threading
import time
from contextlib import contextmanager

import requests


def post(server, path, body, **options):
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    return requests.post(server.url + path, data=data, headers=headers, timeout=options.pop("timeout", 120), **options)


def get(server, path, **options):
    return requests.get(server.url + path, timeout=60, **options)


def user(text):
    return [{"role": "user", "content": text}]


def chat(server, text="Tell me about the sea", **fields):
    """A chat that must succeed: the reply's JSON."""
    reply = post(server, "/v1/chat/completions", {"messages": user(text), "temperature": 0, "max_tokens": 24, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def text_of(reply):
    choice = reply["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def events(reply):
    """The events of a stream as they come: ("comment", text) and ("data", text). Keep the iterator as long as the stream is
    wanted: when it is dropped the connection is closed."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    rest = b""
    for part in reply.iter_content(None):
        *whole, rest = (rest + part).split(b"\n\n")
        for event in whole:
            text = event.decode("utf-8")
            if text.startswith(":"):
                yield "comment", text[1:].strip()
            else:
                assert text.startswith("data: ") and "\n" not in text, text
                yield "data", text[6:]
    assert not rest, rest


def stream(server, path="/v1/chat/completions", **fields):
    """All chunks of a stream that must end with [DONE] and nothing after it."""
    body = {"temperature": 0, "max_tokens": 24, "stream": True, **fields}
    if path == "/v1/chat/completions":
        body.setdefault("messages", user("Tell me about the sea"))
    with post(server, path, body, stream=True) as reply:
        data = [value for kind, value in events(reply) if kind == "data"]
    assert data[-1] == "[DONE]" and "[DONE]" not in data[:-1]
    return [json.loads(value) for value in data[:-1]]


def streamed_text(chunks, index=0):
    return "".join((c["delta"].get("content") or "") if "delta" in c else c["text"]
                   for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def error_of(reply, status=400):
    """The error object of a reply that must have this status and OpenAI's shape."""
    assert reply.status_code == status, f"{reply.status_code}: {reply.text[:500]}"
    error = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"} and error["message"], error
    return error


def metrics(server):
    return get(server, "/metrics").json()


def eventually(condition, seconds=30):
    """The first true answer of condition(); asks again until then. For states of the server that nobody announces."""
    until = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < until, f"not within {seconds} s; last answer: {answer!r}"
        time.sleep(0.02)


def idle(server):
    live = metrics(server)["live"]
    return live["running"] == 0 and live["waiting"] == 0


def balanced(m):
    t, live = m["totals"], m["live"]
    return t["started"] == t["completed"] + t["cancelled"] + t["failed"] + live["running"] + live["waiting"]


@contextmanager
def endless_stream(server, n=1):
    """A stream of as many answers as fit into the context, which is read as long as the block runs."""
    with post(server, "/v1/completions", {"prompt": ["x"] * n, "stream": True, "ignore_eos": True}, stream=True) as reply:
        lines, done = events(reply), threading.Event()
        assert next(lines)[0] == "data"

        def read():
            while not done.is_set():
                next(lines)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            done.set()
            reader.join()
    eventually(lambda: metrics(server)["live"]["running"] == 0)
