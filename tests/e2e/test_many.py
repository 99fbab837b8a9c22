"""Many at once: 64 streams and a long prompt being read, on the real model; how fast everything else still answers."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from apikit import events, idle, metrics, post, user

WORDS = "the tide comes in and the tide goes out while the keeper of the light writes down every ship "


@pytest.mark.timeout(400)
@pytest.mark.parametrize("about", [2000, pytest.param(7000, marks=pytest.mark.long)])
def test_health_answers_while_64_streams_run_and_a_long_prompt_is_read(real_server, time_scale, about):
    server = real_server
    n_words = about * len(WORDS.split()) // len(post(server, "/tokenize", {"content": WORDS}).json()["tokens"])
    long = " ".join((WORDS.split() * (n_words // len(WORDS.split()) + 1))[:n_words])
    reading, gaps, times = threading.Event(), [], []

    def read_long():
        reading.set()
        begin = time.monotonic()
        reply = post(server, "/v1/completions", {"prompt": long, "max_tokens": 1, "temperature": 0}, timeout=60 * time_scale)
        assert reply.status_code == 200, reply.text
        return reply.json()["usage"]["prompt_tokens"], time.monotonic() - begin

    def run_stream(i):
        reading.wait()
        with post(server, "/v1/chat/completions", {"messages": user(f"Count from {i}"), "max_tokens": 20, "ignore_eos": True,
                                                   "stream": True}, stream=True, timeout=60 * time_scale) as reply:
            last, n = None, 0
            for kind, value in events(reply):
                now = time.monotonic()
                if kind == "data" and value != "[DONE]":
                    n += 1
                    if last and n > 2:
                        gaps.append(now - last)
                    last = now
        return n

    with ThreadPoolExecutor(65) as pool:
        prompt = pool.submit(read_long)
        streams = [pool.submit(run_stream, i) for i in range(64)]
        session = requests.Session()
        while not (prompt.done() and all(s.done() for s in streams)):
            begin = time.monotonic()
            assert session.get(server.url + "/health", timeout=60).status_code == 200
            times.append(time.monotonic() - begin)
            time.sleep(0.005)  # the measuring must not be the load
        n_tokens, seconds = prompt.result()
        assert all(s.result() > 2 for s in streams)
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(f"\n64 streams and a prompt of {n_tokens} tokens ({seconds:.1f} s): /health p50 {times[len(times) // 2] * 1e3:.1f} ms, "
          f"p99 {p99 * 1e3:.1f} ms, longest {times[-1] * 1e3:.1f} ms of {len(times)}; longest gap of a stream {max(gaps):.2f} s")
    assert n_tokens > 0.9 * about and len(times) > 50
    # 50 ms is the aim, on a quiet machine; what a test may rely on elsewhere is that nothing hangs.
    assert p99 < 0.25 * time_scale
    assert idle(server) and metrics(server)["totals"]["failed"] == 0
