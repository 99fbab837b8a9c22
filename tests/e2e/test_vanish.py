"""Clients that leave or do not read: their work stops, and only theirs."""
import json
import socket
import struct

import pytest

from apikit import balanced, chat, eventually, events, idle, metrics, post, text_of, user

LONG = {"messages": user("Tell me about the sea"), "stream": True, "ignore_eos": True, "temperature": 0}


def send(server, body, receive_buffer=None):
    """A raw connection with a request sent on it."""
    peer = socket.socket()
    if receive_buffer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    peer.settimeout(60)
    peer.connect((server.host, server.port))
    data = json.dumps(body).encode()
    peer.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return peer


def reset(peer):
    """Closes with a reset instead of a farewell."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.tsan
def test_a_client_that_leaves_a_stream_is_noticed(server):
    before = metrics(server)["totals"]["cancelled"]
    for close in (socket.socket.close, reset):
        peer = send(server, LONG)
        assert b"data: " in peer.recv(4096) + peer.recv(4096)
        close(peer)
        eventually(lambda: idle(server))
    after = metrics(server)
    assert after["totals"]["cancelled"] == before + 2 and balanced(after)


@pytest.mark.tsan
def test_a_client_that_leaves_before_a_whole_answer_is_noticed(server):
    before = metrics(server)["totals"]["cancelled"]
    peer = send(server, {**LONG, "stream": False})
    eventually(lambda: metrics(server)["live"]["running"] == 1)
    peer.close()
    eventually(lambda: idle(server))
    assert metrics(server)["totals"]["cancelled"] == before + 1


@pytest.mark.tsan
def test_clients_that_leave_the_queue_are_noticed(start_server):
    server = start_server({"engine.rows": 1, "engine.slots": 1})
    running = send(server, {**LONG, "logprobs": True, "top_logprobs": 32}, receive_buffer=4096)
    eventually(lambda: metrics(server)["live"]["running"] == 1)
    waiting = [send(server, LONG) for _ in range(5)]
    eventually(lambda: metrics(server)["live"]["waiting"] == 5)
    for peer in waiting:
        peer.close()
    eventually(lambda: metrics(server)["live"]["waiting"] == 0)
    assert metrics(server)["live"]["running"] == 1
    running.close()
    eventually(lambda: idle(server))
    assert balanced(metrics(server))


@pytest.mark.tsan
def test_two_hundred_that_come_and_go_leave_nothing_behind(server):
    text = text_of(chat(server))
    for i in range(200):
        peer = send(server, {**LONG, "stream": i % 2 == 0, "max_tokens": 200})
        if i % 6 == 0:
            peer.recv(100)
        (reset if i % 5 == 0 else socket.socket.close)(peer)
    eventually(lambda: idle(server))
    assert balanced(metrics(server)) and text_of(chat(server)) == text


def test_a_slow_reader_pauses_only_itself_and_misses_nothing(start_server):
    server = start_server({"server.max_unsent_bytes": 65536})
    fields = {**LONG, "max_tokens": 2500, "logprobs": True, "top_logprobs": 32}
    with post(server, "/v1/chat/completions", fields, stream=True) as reply:
        whole = [json.loads(v) for kind, v in events(reply) if kind == "data" and v != "[DONE]"]
    peer = send(server, fields, receive_buffer=4096)
    # It is held when nothing is generated any more although it has not ended.
    seen = [-1]

    def stands_still():
        seen.append(metrics(server)["totals"]["generated_tokens"])
        chat(server, max_tokens=8)
        seen.append(metrics(server)["totals"]["generated_tokens"])
        return seen[-1] == seen[-2] + 8 and metrics(server)["live"]["running"] == 1

    eventually(stands_still, 60)
    others = text_of(chat(server, "Somebody else", max_tokens=50))
    assert others
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # from now on it reads fast
    data = bytearray()
    while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = peer.recv(1 << 20)
        assert part, data[-200:]
        data += part
    peer.close()
    body, at = bytearray(), data.index(b"\r\n\r\n") + 4
    while at < len(data):
        begin = data.index(b"\r\n", at) + 2
        size = int(data[at:begin], 16)
        body += data[begin:begin + size]
        at = begin + size + 2
    slow = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]

    def tokens(chunks):
        return [t for c in chunks for x in c["choices"] if x["logprobs"] for t in x["logprobs"]["content"]]

    assert len(tokens(slow)) == 2500 and tokens(slow) == tokens(whole)
    assert slow[-1]["choices"][0]["finish_reason"] == "length"
