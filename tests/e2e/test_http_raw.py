"""The http room over raw sockets: framing, limits, time limits, departures, slow readers, many connections, the end.

The server is tests/http/http_testserver.c: core/http and nothing else. What a handler would do there is plain, so what
is seen here is the room's own doing. Times are measured with the server's own clock where they matter (CLOCK_MONOTONIC is
one for all processes).
"""
import random
import signal
import socket
import time

import pytest
from http_testserver import SLOW, percentile
from http_testserver import http, shared_http, start_http  # noqa: F401 (fixtures)

pytestmark = pytest.mark.tsan
JSON = "Content-Type: application/json\r\n"


def chunked(*chunks):
    return b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"


def post_head(path, headers):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}{headers}\r\n"


# Framing


def test_three_requests_use_one_connection(http):
    with http.connect() as peer:
        for i in range(3):
            reply = peer.post("/echo", b'{"n":%d}' % i)
            assert (reply.status, reply.body) == (200, b'{"n":%d}' % i)


def test_requests_sent_ahead_are_answered_in_order(http):
    with http.connect() as peer:
        peer.send("".join(f"GET /who?q={i} HTTP/1.1\r\nHost: localhost\r\n\r\n" for i in range(20)))
        for i in range(20):
            assert f"q={i}\n".encode() in peer.read_reply().body


def test_bytes_sent_ahead_wait_for_the_end_of_a_stream(http):
    with http.connect() as peer:
        peer.send("GET /stream?n=50&size=10&every_us=2000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, _, _ = peer.read_head()
        first = peer.read_chunk()
        for byte in b"GET /who?q=ahead HTTP/1.1\r\nHost: localhost\r\n\r\n":
            peer.send(bytes([byte]))
        data = first
        while chunk := peer.read_chunk():
            data += chunk
        assert status == 200 and len(data) == 500
        assert b"q=ahead\n" in peer.read_reply().body


def test_bytes_sent_ahead_wait_for_a_late_reply(http):
    with http.connect() as peer:
        peer.send(post_head("/late?after_ms=100", "Content-Length: 0\r\n"))
        peer.send("GET /who?q=ahead HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.read_reply().body == b"late\n"
        assert b"q=ahead\n" in peer.read_reply().body


def test_a_megabyte_sent_ahead_of_a_late_reply_is_not_gathered(http):
    """What does not fit the kernel's buffers stays with the client until the reply is through."""
    with http.connect() as peer:
        peer.send(post_head("/late?after_ms=300", "Content-Length: 0\r\n"))
        peer.sock.settimeout(0.1)
        sent = 0
        filler = b"GET /who HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
        with pytest.raises(socket.timeout):
            while sent < 1 << 30:
                sent += peer.sock.send(filler)
        peer.sock.settimeout(20 * SLOW)
        assert peer.read_reply().body == b"late\n"
        assert peer.read_reply().status == 200


def test_a_half_header_arrives_byte_by_byte(http):
    with http.connect() as peer:
        for byte in b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n[1]":
            peer.send(bytes([byte]))
        assert peer.read_reply().body == b"[1]"


@pytest.mark.parametrize("chunks", [[b"[1,2,3]"], [b"[", b"1", b"]"], [b'"', b"x" * 100000, b'"'], [b" "] * 5000])
def test_a_chunked_body_is_put_together(http, chunks):
    with http.connect() as peer:
        peer.send(post_head("/echo", "Transfer-Encoding: chunked\r\n")).send(chunked(*chunks))
        assert peer.read_reply().body == b"".join(chunks)
        assert peer.get("/health").status == 200


def test_a_chunked_body_arrives_byte_by_byte_and_with_trailers(http):
    body = chunked(b"[1,", b"22]")[:-2] + b"X-Trailer: yes\r\n\r\n"
    with http.connect() as peer:
        peer.send(post_head("/echo", "Transfer-Encoding: chunked\r\n"))
        for byte in body:
            peer.send(bytes([byte]))
        assert peer.read_reply().body == b"[1,22]"
        assert peer.get("/health").status == 200


@pytest.mark.parametrize("body", [b"zz\r\n", b"-1\r\n", b"5 \rx\n", b" 5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5" * 300])
def test_a_chunk_size_that_is_none_is_refused(http, body):
    with http.connect() as peer:
        peer.send(post_head("/echo", "Transfer-Encoding: chunked\r\n")).send(body)
        reply = peer.read_reply()
        assert reply.status in (400, 413) and reply.json()["error"]["message"]
        assert peer.closed()


@pytest.mark.parametrize("headers", [
    "Content-Length: 3\r\nContent-Length: 3\r\n",
    "Content-Length: 3\r\nContent-Length: 4\r\n",
    "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 3x\r\n",
    "Content-Length: 99999999999999999999\r\n",
])
def test_a_body_whose_length_is_unclear_is_refused(http, headers):
    with http.connect() as peer:
        peer.send(post_head("/echo", headers)).send(b"3\r\nabc\r\n0\r\n\r\n")
        reply = peer.read_reply()
        assert reply.status in (400, 413) and reply.json()["error"]["type"] == "invalid_request_error"
        assert peer.closed()


def test_a_body_longer_than_promised_is_no_part_of_the_request(http):
    with http.connect() as peer:
        peer.send(post_head("/echo", "Content-Length: 3\r\n")).send(b"[1]and what is this\r\n\r\n")
        assert peer.read_reply().body == b"[1]"
        reply = peer.read_reply()
        assert reply.status == 400 and reply.json()["error"]["message"]
        assert peer.closed()


def test_a_body_shorter_than_promised_never_reaches_the_handler(http):
    with http.connect() as peer:
        peer.send(post_head("/echo", "Content-Length: 100\r\n")).send(b"[1]")
        peer.sock.shutdown(socket.SHUT_WR)
        assert peer.closed()
    assert http.get("/health").status == 200


def test_a_client_that_waits_for_100_continue_gets_it(http):
    with http.connect() as peer:
        peer.send(post_head("/echo", "Content-Length: 3\r\nExpect: 100-continue\r\n"))
        assert peer.read_reply().status == 100
        peer.send(b"[1]")
        assert peer.read_reply().body == b"[1]"


def test_an_unknown_expectation_is_refused_in_json(http):
    with http.connect() as peer:
        peer.send(post_head("/echo", "Content-Length: 3\r\nExpect: a-miracle\r\n"))
        reply = peer.read_reply()
        assert reply.status == 417 and "100-continue" in reply.message


@pytest.mark.parametrize("data", [
    b"\r\n\r\n", b"HELO\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/2.0\r\n\r\n", b"GET /health HTTP/x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n", b"\x00" * 40 + b"\n\n",
])
def test_what_is_no_request_gets_a_400_in_json(http, data):
    with http.connect() as peer:
        peer.send(data)
        reply = peer.read_reply()
        assert reply.status == 400 and reply.headers["content-type"] == "application/json; charset=utf-8"
        assert reply.json()["error"]["message"] and reply.headers["x-request-id"]
        assert peer.closed()


def test_a_last_reply_arrives_whole_although_the_client_sends_on(http):
    """Closing with bytes unread would send a reset, and a reset destroys what the client has not read yet."""
    with http.connect() as peer:
        peer.send("GET /big?size=3000000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        peer.send(b"x" * 200000)
        assert len(peer.read_reply().body) == 3000000
        assert peer.closed()


def test_bytes_of_a_path_that_are_no_text_are_shown_as_such_in_the_log(start_http):
    http = start_http()
    with http.connect() as peer:
        peer.send(b"GET /\xf7\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.read_reply().status in (400, 404)
    http.stop()
    assert 'path="/\\xf7' in http.errors, http.errors


def test_a_thousand_damaged_requests_do_no_harm(http):
    """Valid requests with bytes flipped, cut out, doubled and cut off, sent in pieces, some left at once."""
    rng = random.Random(5)
    seeds = [
        post_head("/echo", "Content-Length: 5\r\n").encode() + b"[1,2]",
        post_head("/echo", "Transfer-Encoding: chunked\r\n").encode() + chunked(b"[1,", b"2]"),
        b"GET /stream?n=3&size=5 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
        post_head("/late?after_ms=1", "Content-Length: 2\r\nExpect: 100-continue\r\n").encode() + b"[]",
        b"GET /who?q=%41%zz&q=1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ]
    for _ in range(1000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            at, n = rng.randrange(len(data)), rng.randrange(1, 9)
            kind = rng.randrange(4)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1 and len(data) > n + 1:
                del data[at:at + n]
            elif kind == 2:
                data[at:at] = data[at:at + n]
            else:
                data[at] = rng.choice(b"\r\n :\x000f/?%")
        cut = rng.randrange(len(data))
        with http.connect() as peer:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                peer.send(bytes(data[:cut])).send(bytes(data[cut:]))
                if rng.randrange(3) == 0:
                    peer.reset()
                else:
                    peer.sock.shutdown(socket.SHUT_WR)
                    while peer.read_some():
                        pass
            except OSError:
                pass  # the server ended it first
    http.wait_stats(lambda s: s["requests"] == 1)


# HTTP/1.0


def test_a_stream_to_http_1_0_is_not_chunked_and_ends_by_closing(http):
    for headers in ("", "Connection: keep-alive\r\n"):
        with http.connect() as peer:
            reply = peer.get("/stream?n=3&size=4", headers, version="1.0")
            assert "transfer-encoding" not in reply.headers and "content-length" not in reply.headers
            assert reply.body == b"aaaabbbbcccc"


def test_http_1_0_closes_after_a_reply_unless_asked_to_stay(http):
    with http.connect() as peer:
        assert peer.get("/health", version="1.0").status == 200
        assert peer.closed()
    with http.connect() as peer:
        for _ in range(3):
            assert peer.get("/health", "Connection: keep-alive\r\n", version="1.0").status == 200


def test_a_client_that_closes_its_half_still_reads_a_reply_given_at_once(http):
    with http.connect() as peer:
        peer.send("GET /big?size=3000000 HTTP/1.0\r\n\r\n")
        peer.sock.shutdown(socket.SHUT_WR)
        assert len(peer.read_reply().body) == 3000000


# Limits


@pytest.mark.parametrize("data", [
    b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 70000,
    b"GET /" + b"a" * 70000,
    b"GET /health HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 7000,
    b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 70000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * 1000000 + b"\r\n\r\n",
])
def test_a_header_beyond_the_limit_gets_a_431(http, data):
    with http.connect() as peer:
        peer.send(data)
        reply = peer.read_reply()
        assert reply.status == 431 and reply.json()["error"]["message"]
        assert peer.closed()


def test_a_header_below_the_limit_is_read(http):
    assert http.get("/health", "X-Long: " + "a" * 60000 + "\r\n").status == 200


def test_a_body_at_the_limit_is_read_and_one_beyond_gets_a_413(start_http):
    http = start_http("max_body=1000000")
    assert http.post("/echo", b" " * 1000000).body == b" " * 1000000
    reply = http.post("/echo", b" " * 1000001)
    assert reply.status == 413 and "1000000" in reply.message
    with http.connect() as peer:
        peer.send(post_head("/echo", "Transfer-Encoding: chunked\r\n")).send(chunked(b" " * 600000, b" " * 600000))
        assert peer.read_reply().status == 413
        assert peer.closed()


def test_a_client_that_sends_the_whole_of_a_body_too_long_still_reads_why(start_http):
    http = start_http("max_body=8000000")
    with http.connect() as peer:
        peer.send(post_head("/echo", "Content-Length: 8000001\r\n")).send(b" " * 8000001)
        reply = peer.read_reply()
        assert reply.status == 413 and reply.headers["connection"] == "close"


def test_a_body_too_long_is_refused_before_it_is_sent_when_the_client_asks(http):
    with http.connect() as peer:
        peer.send(post_head("/echo", f"Content-Length: {1 << 30}\r\nExpect: 100-continue\r\n"))
        assert peer.read_reply().status == 413


def test_large_bodies_on_their_way_are_bounded_together(http):
    """Nine bodies of 31 MiB that never end are more than eight of the largest size: one is turned away."""
    peers = [http.connect() for _ in range(9)]
    part = b" " * (31 << 20)
    refused = 0
    for peer in peers:
        peer.send(post_head("/echo", f"Content-Length: {32 << 20}\r\n"))
        try:
            peer.send(part)
        except (ConnectionResetError, BrokenPipeError):
            refused += 1
    for peer in peers:
        peer.sock.settimeout(0.2)
        try:
            reply = peer.read_reply()
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
            refused += 1
        except (socket.timeout, ConnectionResetError, EOFError):
            pass
        peer.sock.close()
    assert 1 <= refused < 9
    assert http.post("/echo", b" " * 100000).status == 200


# Time limits


def health_times(http, n):
    times = []
    with http.connect() as peer:
        for _ in range(n):
            start = time.monotonic()
            assert peer.get("/health").status == 200
            times.append((time.monotonic() - start) * 1000)
    return times


@pytest.mark.alone
def test_half_headers_disturb_nobody_and_are_closed_in_time(start_http, time_scale):
    http = start_http("header_timeout=2")
    start = time.monotonic()
    peers = [http.connect().send("GET /health HTTP/1.1\r\nHost: loc") for _ in range(100)]
    times = health_times(http, 300)
    p99 = percentile(times, 0.99)
    print(f"health beside 100 half headers: median {percentile(times, 0.5):.2f} ms, p99 {p99:.2f} ms")
    assert p99 < 50 * time_scale
    for peer in peers:
        reply = peer.read_reply()
        assert reply.status == 408 and "2 s" in reply.message
        assert peer.closed()
    assert 1.5 < time.monotonic() - start < 4 * time_scale


@pytest.mark.alone
def test_a_header_that_trickles_does_not_gain_time(start_http, time_scale):
    http = start_http("header_timeout=1")
    with http.connect(timeout=0.1 / SLOW) as peer:
        start = time.monotonic()
        peer.send("GET /health HTTP/1.1\r\nX-Slow: ")
        data = b""
        while b"\r\n\r\n" not in data:
            assert time.monotonic() - start < 5 * time_scale
            try:
                peer.send("a")
                data += peer.sock.recv(1000)
            except socket.timeout:
                continue
        assert data.startswith(b"HTTP/1.1 408 ")


@pytest.mark.alone
def test_a_body_that_stops_is_given_up_and_an_idle_connection_closed(start_http, time_scale):
    http = start_http("idle_timeout=1")
    with http.connect() as stuck, http.connect() as idle, http.connect() as fresh:
        stuck.send(post_head("/echo", "Content-Length: 10\r\n")).send(b"[1")
        assert idle.get("/health").status == 200
        start = time.monotonic()
        assert stuck.read_reply().status == 408
        assert idle.closed() and fresh.closed()
        assert 0.5 < time.monotonic() - start < 3 * time_scale


def test_a_reply_that_nobody_reads_is_given_up(start_http):
    http = start_http("idle_timeout=1")
    with http.connect() as peer:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.send("GET /big?size=30000000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        http.wait_stats(lambda s: s["requests"] == 2)
        http.wait_stats(lambda s: s["requests"] == 1)


def test_a_long_silent_wait_for_a_reply_is_no_idleness(start_http):
    http = start_http("idle_timeout=1", "header_timeout=1")
    assert http.post("/late?after_ms=2500").body == b"late\n"


# Departures


def leave(peer, how):
    if how == "ahead":
        peer.send("GET /health HT")
    left = time.monotonic_ns()
    if how == "fin" or how == "half":
        peer.sock.shutdown(socket.SHUT_WR)
    if how == "fin":
        peer.sock.close()
    elif how != "half":
        peer.reset()
    return left


@pytest.mark.alone
@pytest.mark.parametrize("how", ["fin", "half", "reset", "ahead"])
@pytest.mark.parametrize("path", ["/never", "/forever?size=100&every_us=1000", "/forever?size=10&every_us=100000000"])
def test_a_departure_is_told_to_the_handler_at_once(http, path, how, time_scale):
    before = http.stats()["left"]
    peer = http.connect().send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    http.wait_stats(lambda s: s["requests"] == 2)
    left = leave(peer, how)
    stats = http.wait_stats(lambda s: s["left"] == before + 1)
    took_ms = (stats["left_ns"] - left) / 1e6
    peer.sock.close()
    print(f"{path} {how}: told after {took_ms:.2f} ms")
    assert took_ms < 100 * time_scale
    http.wait_stats(lambda s: s["requests"] == 1)


@pytest.mark.alone
def test_a_reset_while_a_reply_is_awaited_does_not_spin_the_loop(http):
    """libevent shows a reset to readers and writers only; with neither on the descriptor it would be asked for ever."""
    http.connect().send("GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n").reset()
    http.wait_stats(lambda s: s["requests"] == 1)
    before = http.cpu_s()
    with http.connect() as peer:
        assert peer.post("/late?after_ms=500").body == b"late\n"
    assert http.cpu_s() - before < 0.25 * SLOW


def test_departures_of_fifty_streams_at_once_leave_nothing_behind(http):
    before = http.stats()["left"]
    peers = [http.connect().send("GET /forever?size=50 HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(50)]
    for peer in peers:
        assert peer.read_head()[0] == 200
    for i, peer in enumerate(peers):
        leave(peer, ["fin", "reset", "ahead"][i % 3])
    http.wait_stats(lambda s: s["left"] == before + 50 and s["requests"] == 1)


def test_a_departure_in_the_middle_of_a_reply_that_is_done_is_nobodys_business(http):
    before = http.stats()["left"]
    peer = http.connect()
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.send("GET /big?size=30000000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    http.wait_stats(lambda s: s["requests"] == 2)
    peer.reset()
    assert http.wait_stats(lambda s: s["requests"] == 1)["left"] == before


# Streams


def test_a_slow_reader_pauses_its_own_stream_and_goes_on(http):
    before = http.stats()
    with http.connect() as slow:
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.send("GET /forever?size=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        http.wait_stats(lambda s: s["paused"] > before["paused"])
        assert len(http.get("/stream?n=100&size=1000").body) == 100000
        slow.read_head()
        for i in range(500):
            assert slow.read_chunk() == bytes([ord("a") + i % 26]) * 20000
        http.wait_stats(lambda s: s["drains"] > before["drains"])
    http.wait_stats(lambda s: s["requests"] == 1)


def test_sixteen_streams_of_many_chunks_arrive_whole_and_in_order(http):
    n = 400
    peers = [http.connect().send(f"GET /stream?n={n}&size=1&every_us=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
             for _ in range(16)]
    cpu, posts = http.cpu_s(), http.stats()["posts"]
    want = bytes(ord("a") + i % 26 for i in range(n))
    for peer in peers:
        assert peer.read_reply().body == want
    stats = http.stats()
    print(f"{stats['posts'] - posts} posts, {http.cpu_s() - cpu:.2f} s of processor time, "
          f"longest way of a post {stats['max_post_lag_us']} us")


@pytest.mark.alone
def test_health_answers_beside_streams_and_uploads(http, time_scale):
    peers = [http.connect().send("GET /forever?size=200&every_us=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(32)]
    with http.connect() as upload:
        upload.send(post_head("/echo", "Content-Length: 30000000\r\n"))
        upload.sock.setblocking(False)
        data, sent, times = memoryview(b" " * 29000000), 0, []
        with http.connect() as peer:
            while len(times) < 300:
                try:
                    sent += upload.sock.send(data[sent:sent + (1 << 20)]) if sent < len(data) else 0
                except BlockingIOError:
                    pass
                start = time.monotonic()
                assert peer.get("/health").status == 200
                times.append((time.monotonic() - start) * 1000)
    for peer in peers:
        peer.sock.close()
    p99 = percentile(times, 0.99)
    print(f"health beside 32 streams and an upload: median {percentile(times, 0.5):.2f} ms, p99 {p99:.2f} ms")
    assert p99 < 50 * time_scale
    http.wait_stats(lambda s: s["requests"] == 1)


# Many connections


def test_three_hundred_connections_at_once_are_all_answered(http):
    peers = [http.connect() for _ in range(300)]
    for peer in peers:
        peer.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for peer in peers:
        assert peer.read_reply().status == 200
        peer.sock.close()


def test_beyond_the_cap_a_connection_waits_for_a_place(start_http):
    http = start_http("max_connections=4")
    peers = [http.connect().send("GET /forever?every_us=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(4)]
    for peer in peers:
        assert peer.read_head()[0] == 200
    with http.connect(timeout=0.3) as waiting:
        waiting.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(socket.timeout):
            waiting.read_some()
        peers[0].sock.close()
        waiting.sock.settimeout(20 * SLOW)
        assert waiting.read_reply().status == 200
    for peer in peers[1:]:
        peer.sock.close()


def test_at_the_cap_the_longest_idle_connection_gives_way(start_http):
    http = start_http("max_connections=4")
    peers = [http.connect() for _ in range(4)]
    for peer in peers:
        assert peer.get("/health").status == 200
    with http.connect() as new:
        assert new.get("/health").status == 200
    assert peers[0].closed()
    for peer in peers[1:]:
        peer.sock.close()


@pytest.mark.alone
def test_without_descriptors_the_server_waits_and_does_not_spin(start_http):
    http = start_http(descriptors=64)
    peers = [http.connect() for _ in range(100)]
    before = http.cpu_s()
    with pytest.raises(socket.timeout):
        peers[-1].sock.settimeout(1)
        peers[-1].get("/health")
    assert http.cpu_s() - before < 0.5 * SLOW
    for peer in peers[:80]:
        peer.sock.close()
    peers[-1].sock.settimeout(20 * SLOW)
    assert peers[-1].read_reply().status == 200
    for peer in peers[80:]:
        peer.sock.close()


# The end


def test_sigterm_lets_a_stream_finish_and_closes_the_door_at_once(start_http):
    http = start_http()
    with http.connect() as peer, http.connect() as idle, http.connect() as half:
        assert idle.get("/health").status == 200
        half.send("GET /hea")
        peer.send("GET /stream?n=300&size=10&every_us=5000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.read_head()[0] == 200
        http.signal(signal.SIGTERM)
        assert idle.closed() and half.closed()
        with pytest.raises(ConnectionRefusedError):
            http.connect()
        data = b""
        while chunk := peer.read_chunk():
            data += chunk
        assert len(data) == 3000
    assert http.wait() == 0


def test_what_still_runs_after_sigterm_can_be_ended(start_http):
    http = start_http()
    with http.connect() as peer, http.connect() as never:
        never.send("GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n")
        peer.send("GET /forever?size=10&every_us=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.read_head()[0] == 200
        http.wait_stats(lambda s: s["requests"] == 3)
        http.signal(signal.SIGTERM)
        http.signal(signal.SIGUSR2)
        last = b""
        while chunk := peer.read_chunk():
            last = chunk
        assert last == b"aborted\n"
        assert never.read_reply().status == 200
    assert http.wait() == 0


def test_a_stop_does_not_wait_for_a_client_that_left(start_http):
    http = start_http()
    peer = http.connect().send("GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n")
    http.wait_stats(lambda s: s["requests"] == 2)
    http.signal(signal.SIGTERM)
    peer.sock.close()
    assert http.wait() == 0


def test_with_the_listeners_closed_open_connections_are_served_and_told_to_go(start_http):
    http = start_http()
    with http.connect() as peer, http.connect() as other:
        assert "connection" not in peer.get("/health").headers
        other.send("GET /stream?n=20&size=10&every_us=10000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.read_head()[0] == 200
        http.signal(signal.SIGUSR1)
        data = b""
        while chunk := other.read_chunk():
            data += chunk
        assert len(data) == 200
        reply = peer.get("/health")
        assert reply.status == 200 and reply.headers["connection"] == "close"
        assert peer.closed()
