"""SIGTERM: running requests finish, new ones are refused, what outlasts the time ends with an error event."""
import json
import signal

import pytest
import requests

from apikit import error_of, eventually, events, get, post, user

SLOW_READER = {"messages": user("x"), "stream": True, "ignore_eos": True, "logprobs": True, "top_logprobs": 32}


def begin(server, **fields):
    reply = post(server, "/v1/chat/completions", {**SLOW_READER, **fields}, stream=True)
    lines = events(reply)
    assert next(lines)[0] == "data"
    return reply, lines


def test_a_running_stream_is_finished_and_new_requests_are_refused(start_server, time_scale):
    server = start_server({"server.drain_s": int(90 * time_scale)})
    keep = requests.Session()  # a connection from before, for one who does not know yet
    assert keep.get(server.url + "/ready").status_code == 200
    reply, lines = begin(server, max_tokens=3000)  # too much for the buffers in between: it runs until it is read
    server.signal(signal.SIGTERM)
    server.wait_log("drain .*started")
    ready = get(server, "/ready")
    assert ready.status_code == 503 and ready.json()["status"] == "draining" and "Retry-After" in ready.headers
    refused = post(server, "/v1/chat/completions", {"messages": user("x")})
    assert error_of(refused, 503)["message"] and int(refused.headers["Retry-After"]) >= 1
    assert keep.get(server.url + "/health").json()["status"] == "draining"
    data = [value for kind, value in lines if kind == "data"]
    assert data[-1] == "[DONE]" and json.loads(data[-2])["choices"][0]["finish_reason"] == "length"
    assert json.loads(data[-2])["timings"]["predicted_n"] == 3000
    reply.close()
    assert server.wait() == 0


@pytest.mark.tsan
def test_what_outlasts_the_time_ends_with_an_error_event(start_server):
    server = start_server({"server.drain_s": 1})
    reply, lines = begin(server)
    server.signal(signal.SIGTERM)
    server.wait_log("drain .*over")
    data = [value for kind, value in lines if kind == "data"]
    assert data[-1] == "[DONE]"
    assert "shutting down" in json.loads(data[-2])["error"]["message"]
    reply.close()
    assert server.wait() == 0


@pytest.mark.tsan
def test_a_waiting_request_that_outlasts_the_time_gets_a_503(start_server):
    from concurrent.futures import ThreadPoolExecutor

    server = start_server({"server.drain_s": 1, "engine.rows": 1, "engine.slots": 1})
    reply, lines = begin(server, logprobs=False, top_logprobs=0)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(list, lines)  # one that does not read fast enough would make way
        waiting = pool.submit(post, server, "/v1/chat/completions", {"messages": user("x"), "max_tokens": 1})
        eventually(lambda: get(server, "/metrics").json()["live"]["waiting"] == 1)
        server.signal(signal.SIGTERM)
        assert "shutting down" in error_of(waiting.result(), 503)["message"]
    reply.close()
    assert server.wait() == 0


@pytest.mark.tsan
def test_an_idle_server_ends_at_once(start_server):
    server = start_server({"server.drain_s": 3600})
    server.signal(signal.SIGINT)
    assert server.wait() == 0


@pytest.mark.tsan
def test_a_second_signal_ends_at_once(start_server):
    server = start_server({"server.drain_s": 3600}, wait=True)
    reply, lines = begin(server)
    server.signal(signal.SIGTERM)
    server.wait_log("drain .*started")
    server.signal(signal.SIGTERM)
    assert server.wait() == 1
    reply.close()
