"""Everything that several threads touch at once, in a few seconds: these run on a ThreadSanitizer build too."""
import json
import signal
import threading

import httpx
import pytest

pytestmark = pytest.mark.tsan

STREAMS = 8


def together(n, work):
    """Runs work(i) in n threads; raises the first thing that went wrong in any of them."""
    wrong = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def chat(prompt, **more):
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "ignore_eos": True, **more}


def events(response):
    """The data of a stream's events, parsed; the closing [DONE] included as a string."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line[len("data: "):]
            yield data if data == "[DONE]" else json.loads(data)


def stream_text(http, body):
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        parts = list(events(response))
    assert parts[-1] == "[DONE]"
    assert not any("error" in part for part in parts[:-1])
    return "".join(c["delta"].get("content") or "" for part in parts[:-1] for c in part["choices"])


@pytest.fixture
def busy(start_server, time_scale):
    """A server with compute threads, several workers and few rows, so that requests also wait."""
    server = start_server({"engine.threads": 2, "engine.rows": 4, "engine.slots": 6, "server.workers": 3})
    with httpx.Client(base_url=server.url, timeout=60 * time_scale,
                      limits=httpx.Limits(max_connections=64)) as http:
        yield server, http


def test_streams_at_once_are_what_they_are_alone(busy):
    _, http = busy
    bodies = [chat(f"Tell me about the number {i}. " * (i + 1), seed=i, temperature=1.0) for i in range(STREAMS)]
    alone = [stream_text(http, body) for body in bodies]
    assert len(set(alone)) > 1

    def work(i):
        assert stream_text(http, bodies[i]) == alone[i]

    together(STREAMS, work)


def test_readers_that_leave_disturb_nobody(busy):
    server, http = busy
    wanted = stream_text(http, chat("stay", temperature=0))

    def work(i):
        if i % 2:
            assert stream_text(http, chat("stay", temperature=0)) == wanted
            return
        with http.stream("POST", "/v1/chat/completions", json=chat("leave", max_tokens=400, stream=True)) as response:
            next(events(response))

    together(STREAMS, work)
    server.check_alive()


def test_looking_on_while_requests_run(busy):
    _, http = busy
    paths = ["/health", "/ready", "/metrics", "/slots", "/v1/models", "/props"]

    def work(i):
        if i < 4:
            stream_text(http, chat("x" * 200, temperature=0))
            return
        for path in paths * 3:
            assert http.get(path).status_code == 200, path
        tokens = http.post("/tokenize", json={"content": f"number {i}"}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == f"number {i}"

    together(STREAMS, work)


def test_a_stop_in_the_middle_of_everything_ends_well(start_server, time_scale):
    server = start_server({"engine.threads": 2, "engine.rows": STREAMS, "server.drain_s": 0})
    begun = threading.Barrier(STREAMS + 1, timeout=60 * time_scale)

    def work(i):
        with httpx.Client(base_url=server.url, timeout=60 * time_scale) as http:
            body = chat("go on", stream=True)
            if i < 4:
                del body["max_tokens"]  # goes on until the context is full
            try:
                with http.stream("POST", "/v1/chat/completions", json=body) as response:
                    begun.wait()
                    response.read()
            except httpx.RemoteProtocolError:
                pass  # cut off: what a stop without a drain may do

    threads = [threading.Thread(target=work, args=(i,)) for i in range(STREAMS)]
    for thread in threads:
        thread.start()
    begun.wait()
    server.signal(signal.SIGTERM)
    code = server.wait()
    for thread in threads:
        thread.join()
    assert code == 0, server.log
