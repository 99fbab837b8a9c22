"""GET /events: placement events as server-sent events: live, resumable, bounded, and of no harm to the server."""
import json
import socket
import threading

import pytest

from apikit import chat, error_of, eventually, get, idle, metrics, post, user


class Listener:
    """A stream of /events that is read event by event: (id, data) pairs, comments apart."""

    def __init__(self, server, path="/events", headers=()):
        self.socket = server.connect()
        lines = [f"GET {path} HTTP/1.1", f"Host: {server.host}:{server.port}", *headers, "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = dict(line.decode().strip().lower().split(": ", 1) for line in iter(self.file.readline, b"\r\n"))
        self.rest, self.comments = b"", 0

    def _chunk(self):
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        self.file.readline()
        return data

    def next(self):
        """The next event, or None at the end of the stream."""
        while True:
            while b"\n\n" not in self.rest:
                data = self._chunk()
                if not data:
                    return None
                self.rest += data
            block, self.rest = self.rest.split(b"\n\n", 1)
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
            if "data" in fields:
                return fields["id"], json.loads(fields["data"])
            self.comments += 1

    def take(self, n):
        return [self.next() for _ in range(n)]

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def listen():
    opened = []

    def start(server, path="/events", *headers):
        opened.append(Listener(server, path, headers))
        assert opened[-1].status == 200 and opened[-1].headers["content-type"].startswith("text/event-stream")
        return opened[-1]

    yield start
    for listener in opened:
        listener.close()


def listed(server, path="/events?format=json"):
    return get(server, path).json()["events"]


@pytest.mark.tsan
def test_events_come_as_they_happen(start_server, listen):
    server = start_server()
    listener = listen(server)
    for k in range(3):
        chat(server, f"Something new, number {k}", max_tokens=2)
        told = listed(server)
        new = listener.take(len(told) - (0 if k == 0 else before))
        assert [data for _, data in new] == told[-len(new):]
        assert [int(i.split("-")[1]) for i, _ in new] == [e["id"] for e in told[-len(new):]]
        before = len(told)
    assert told == metrics(server)["live"]["cache_events"]
    assert {"place", "park"} <= {e["kind"] for e in told}


def test_an_event_names_its_request(server):
    post(server, "/v1/chat/completions", {"messages": user("Whose?"), "max_tokens": 1}, headers={"X-Request-Id": "whose-1"})
    event = [e for e in listed(server) if e["request"] == "whose-1"][-1]
    assert event["job"] and len(event["client"]) == 16 and event["generation"] >= 1


def test_a_stream_is_taken_up_where_it_broke_off(start_server, listen):
    server = start_server()
    chat(server, "One", max_tokens=2)
    chat(server, "Two", max_tokens=2)
    told = listed(server)
    assert len(told) >= 3
    ids = [i for i, _ in listen(server).take(len(told))]
    for header, path in ((f"Last-Event-ID: {ids[0]}", "/events"), (None, f"/events?after={ids[0]}"), (None, "/events?after=1"),
                         (f"Last-Event-ID: {ids[-1]}", f"/events?after={told[0]['id']}")):
        listener = listen(server, path, *([header] if header else []))
        assert [data for _, data in listener.take(len(told) - 1)] == told[1:]
    # Of another run of the server, or of the future: all there is.
    for other in ("Last-Event-ID: 12345-2", f"Last-Event-ID: {ids[-1]}999"):
        assert [data for _, data in listen(server, "/events", other).take(len(told))] == told
    assert listed(server, f"/events?format=json&after={ids[1]}") == told[2:]
    # Nothing is left to say: the next thing to come is new.
    listener = listen(server, f"/events?after={ids[-1]}")
    chat(server, "Three", max_tokens=1)
    assert listener.next()[1]["id"] == told[-1]["id"] + 1


def test_what_is_no_id_is_refused(server):
    for bad in ("x", "1x", "-1", "1-", "1-x", "1.5", "99999999999999999999", "1 2"):
        assert "id of an event" in error_of(get(server, "/events", params={"after": bad}))["message"], bad
    assert error_of(get(server, "/events", headers={"Last-Event-ID": "abc"}))["param"] == "Last-Event-ID"
    assert "sse" in error_of(get(server, "/events?format=xml"))["message"]


def test_the_ring_keeps_the_last_96(start_server, listen):
    server = start_server({"engine.slots": 2})
    for k in range(70):
        chat(server, f"{k}", max_tokens=1)
    told = listed(server)
    assert len(told) == 96 and [e["id"] for e in told] == list(range(told[0]["id"], told[0]["id"] + 96))
    assert [data for _, data in listen(server, "/events?after=1").take(96)] == told


def test_silence_is_broken_by_comments(start_server, listen):
    server = start_server({"server.keepalive_s": 1})
    listener = listen(server)
    thread = threading.Thread(target=listener.next, daemon=True)
    thread.start()
    eventually(lambda: listener.comments >= 2)
    chat(server, "Enough", max_tokens=1)
    thread.join(30)
    assert not thread.is_alive()


def test_a_slow_reader_loses_its_stream_and_the_server_nothing(start_server):
    server = start_server({"server.max_unsent_bytes": 4096, "engine.slots": 2})
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.settimeout(60)
    slow.connect((server.host, server.port))
    slow.sendall(f"GET /events HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n\r\n".encode())
    eventually(lambda: metrics(server)["live"]["event_listeners"] == 1)
    for k in range(400):
        prompts = [[5 + (k * 40 + i) % 600, 6 + k, 7] for i in range(40)]
        assert post(server, "/v1/completions", {"prompt": prompts, "max_tokens": 1}).status_code == 200
        if metrics(server)["live"]["event_listeners"] == 0:
            break
    else:
        pytest.fail("it was never given up")
    slow.close()
    eventually(lambda: metrics(server)["live"]["open_requests"] == 1)  # /metrics itself
    chat(server, "And on it goes", max_tokens=1)


@pytest.mark.tsan
def test_many_may_listen_but_not_more(start_server, listen):
    server = start_server()
    listeners = [listen(server) for _ in range(64)]
    refused = get(server, "/events")
    assert error_of(refused, 503) and refused.headers["Retry-After"]
    chat(server, "To all of you", max_tokens=1)
    told = listed(server)
    for listener in listeners:
        assert [data for _, data in listener.take(len(told))] == told
    listeners.pop().close()
    eventually(lambda: metrics(server)["live"]["event_listeners"] == 63)
    listen(server)


def test_a_drain_ends_the_streams(start_server, listen):
    server = start_server({"server.drain_s": 60})
    listener = listen(server)
    server.stop()
    assert listener.next() is None


@pytest.mark.tsan
def test_head_and_listeners_that_leave(server, listen):
    import requests
    reply = requests.head(server.url + "/events", timeout=30)
    assert reply.status_code == 200 and not reply.content
    for _ in range(20):
        listen(server).close()
    eventually(lambda: metrics(server)["live"]["event_listeners"] == 0)
    chat(server, "Nobody hears", max_tokens=1)
    eventually(lambda: idle(server))


@pytest.mark.tsan
def test_a_reload_is_an_event(start_server, listen):
    server = start_server()
    listener = listen(server)
    reply = post(server, "/admin/reload", {})
    assert reply.status_code == 200, reply.text
    _, event = listener.next()
    assert (event["kind"], event["slot"], event["job"], event["request"]) == ("reload", None, 0, None)
    assert event["reason"] == "builtin" and event["generation"] == reply.json()["generation"] == 2
    m = metrics(server)
    assert m["policy"]["generation"] == 2 and m["policy"]["reloads"] == 1 and m["policy"]["reload_failures"] == 0
    assert "berth_policy_reloads_total 1\n" in get(server, "/metrics?format=prometheus").text
    chat(server, "And on", max_tokens=1)
    assert listener.next()[1]["generation"] == 2


def test_a_failed_reload_is_one_too(start_server, listen, tmp_path):
    config = tmp_path / "berth.json"
    config.write_text("{}")
    server = start_server(args=["--config", config])
    config.write_text('{"policy": {"path": "nowhere.so"}}')
    listener = listen(server)
    assert post(server, "/admin/reload", {}).status_code == 422
    _, event = listener.next()
    assert (event["kind"], event["reason"], event["generation"]) == ("reload_failed", "builtin", 1)
    policy = metrics(server)["policy"]
    assert policy["reload_failures"] == 1 and "nowhere.so" in policy["last_reload_error"]
