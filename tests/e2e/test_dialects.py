"""What every dialect of the API must do the same way in its own words: keys, pages of other origins, errors."""
import hashlib
import json
import signal
import socket
from contextlib import ExitStack

import pytest
import requests

from apikit import endless_stream, eventually, idle, metrics, post, user

BODIES = {"/v1/chat/completions": {"messages": user("Hi"), "max_tokens": 1}, "/v1/messages": {"messages": user("Hi"), "max_tokens": 1},
          "/v1/messages/count_tokens": {"messages": user("Hi")}, "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
          "/v1/completions": {"prompt": "Hi", "max_tokens": 1}}
ORIGIN = "https://pages.example"


def raw_post(server, path, body):
    """A connection on which this was asked, and whose answer nobody reads yet."""
    data = json.dumps(body).encode()
    peer = socket.socket()
    peer.settimeout(60)
    peer.connect((server.host, server.port))
    peer.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                 % (path.encode(), len(data)) + data)
    return peer


def check_error(reply, path, status, kind):
    """An error of this status in the shape of the path's dialect; its message."""
    assert reply.status_code == status, f"{path}: {reply.status_code}: {reply.text[:300]}"
    body = reply.json()
    if path.startswith("/v1/messages"):
        assert set(body) == {"type", "error", "request_id"} and body["type"] == "error" and body["error"]["type"] == kind["anthropic"], body
        assert body["request_id"] == reply.headers["X-Request-Id"]
    else:
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
        assert body["error"]["type"] == kind["openai"], body
    return body["error"]["message"]


@pytest.fixture
def keyed(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{hashlib.sha256(b'key-of-ann').hexdigest()}\n")
    return start_server({"engine.threads": 1, "server.keys_file": keys, "server.cors_origins": json.dumps([ORIGIN])})


def test_keys_and_origins(keyed):
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization, x-api-key, anthropic-version, anthropic-beta, content-type"}
    for path, body in BODIES.items():
        for headers in ({"Authorization": "Bearer key-of-ann"}, {"x-api-key": "key-of-ann"}):
            assert post(keyed, path, body, headers={**headers, "Origin": ORIGIN}).headers["Access-Control-Allow-Origin"] == ORIGIN
            assert post(keyed, path, body, headers=headers).status_code == 200
        for headers in ({}, {"Authorization": "Bearer key-of-bob"}, {"x-api-key": "key-of-bob"}):
            reply = post(keyed, path, body, headers=headers)
            check_error(reply, path, 401, {"anthropic": "authentication_error", "openai": "invalid_request_error"})
            assert reply.headers["X-Should-Retry"] == "false"  # or Claude Code says nothing for minutes
        allowed = requests.options(keyed.url + path, headers=preflight, timeout=60)
        assert allowed.status_code == 204 and "POST" in allowed.headers["Access-Control-Allow-Methods"]
        assert allowed.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert {h.strip() for h in allowed.headers["Access-Control-Allow-Headers"].split(",")} >= {"x-api-key", "anthropic-version", "anthropic-beta"}
        check_error(post(keyed, path, body, headers={"Authorization": "Bearer key-of-ann", "Origin": "https://other.example"}), path, 403,
                    {"anthropic": "permission_error", "openai": "invalid_request_error"})
        check_error(post(keyed, path + "/nothing", body, headers={"x-api-key": "key-of-ann"}), path, 404,
                    {"anthropic": "not_found_error", "openai": "invalid_request_error"})
        check_error(requests.put(keyed.url + path, headers={"x-api-key": "key-of-ann"}, timeout=60), path, 405,
                    {"anthropic": "invalid_request_error", "openai": "invalid_request_error"})


def test_a_full_queue_and_the_end_say_when_to_come_back(start_server):
    """Codex, for one, gives up at a 429 without Retry-After."""
    server = start_server({"engine.threads": 1, "engine.rows": 1, "engine.slots": 1, "queue.max": 2, "server.drain_s": 60})
    with ExitStack() as held:
        held.enter_context(endless_stream(server))
        waiting = held.enter_context(raw_post(server, "/v1/completions", {"prompt": "x"}))  # a client's half of the queue
        eventually(lambda: metrics(server)["live"]["waiting"] == 1)
        for path, body in BODIES.items():
            if not path.endswith("count_tokens"):
                for stream in (False, True):
                    reply = post(server, path, {**body, "stream": stream})
                    assert check_error(reply, path, 429, {"anthropic": "rate_limit_error", "openai": "rate_limit_error"})
                    assert int(reply.headers["Retry-After"]) >= 1, path

        def wait():
            return int(post(server, "/v1/completions", {"prompt": "x"}).headers["Retry-After"])

        first = wait()
        eventually(lambda: wait() > first)  # a queue that does not move is asked more rarely
        waiting.close()
    eventually(lambda: idle(server))
    running = raw_post(server, "/v1/completions", {"prompt": "x", "ignore_eos": True})  # until its client leaves
    eventually(lambda: metrics(server)["live"]["running"] == 1)
    server.signal(signal.SIGTERM)
    server.wait_log("drain .*started")
    for path, body in BODIES.items():
        reply = post(server, path, body)
        assert "shutting down" in check_error(reply, path, 503, {"anthropic": "overloaded_error", "openai": "server_error"})
        assert int(reply.headers["Retry-After"]) >= 1, path
    running.close()
    assert server.wait() == 0
