"""The http room's rules over raw sockets: paths and methods, request ids, keys, Host, Origin, CORS, addresses."""
import hashlib
import os
import re
import signal
import socket

import pytest
from http_testserver import HttpServer
from http_testserver import http, shared_http, start_http  # noqa: F401 (fixtures)

JSON = "Content-Type: application/json\r\n"


# Paths, methods, types


def test_an_unknown_path_names_the_nearest_known_one(http):
    reply = http.get("/helth")
    assert reply.status == 404 and "/health" in reply.message
    assert http.get("/" + "x" * 5000).status == 404
    assert http.get("/caf\u00e9%22%0d%0a").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "FROB"])
def test_a_wrong_method_says_which_are_right(http, method):
    with http.connect() as peer:
        peer.send(f"{method} /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        reply = peer.read_reply()
        assert reply.status == 405 and reply.headers["allow"] == "GET, HEAD, OPTIONS"


def test_head_has_the_header_of_get_and_no_body(http):
    with http.connect() as peer:
        reply = peer.get("/big?size=12345", method="HEAD")
        assert reply.status == 200 and reply.headers["content-length"] == "12345"
        assert peer.get("/stream?n=3", method="HEAD").status == 200
        assert peer.get("/health").body == b'{"status":"ok"}\n'


@pytest.mark.parametrize("kind,status", [
    ("application/json", 200), ("APPLICATION/JSON; charset=utf-8", 200), (None, 200), ("text/plain", 415),
    ("application/x-www-form-urlencoded", 415), ("application/jsonx", 415), ("application/json-seq", 415),
])
def test_a_body_must_be_json(http, kind, status):
    reply = http.post("/echo", b"[1]", headers=f"Content-Type: {kind}\r\n" if kind else "")
    assert reply.status == status
    if status == 415:
        assert "application/json" in reply.message


def test_paths_below_one_are_taken_by_its_route_and_an_exact_one_comes_first(http):
    assert http.get("/things/a").body == b"a"
    assert http.get("/things/a/b%20c%2fd?q=1").body == b"a/b c/d"
    assert b"path=/things/own\n" in http.get("/things/own").body
    for path in ("/things", "/things/", "/thingsx", "/thing/a"):
        assert http.get(path).status == 404, path
    reply = http.post("/things/a")
    assert reply.status == 405 and reply.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("line, named", [("GET //health", "//health"), ("GET //health?x=1", "//health"), ("CONNECT a.example:443", "a.example:443")])
def test_what_has_no_path_is_named_all_the_same(http, line, named):
    with http.connect() as peer:
        peer.send(f"{line} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reply = peer.read_reply()
        assert reply.status == 404 and reply.message.startswith(named)
        assert int(reply.headers["content-length"]) == len(reply.body)
        assert line.startswith("GET") or (reply.headers["connection"] == "close" and peer.closed())


def test_two_hosts_are_refused(http):
    for hosts in ("Host: localhost\r\nHost: localhost\r\n", "Host: localhost\r\nhost: evil.example\r\n"):
        reply = get_raw(http, hosts)
        assert reply.status == 400 and "Host" in reply.message


def test_errors_say_their_charset_as_other_replies_do(http):
    assert http.get("/nothing").headers["content-type"] == "application/json; charset=utf-8"


def test_errors_below_v1_messages_have_anthropics_shape(http):
    reply = http.post("/v1/messages", b"x", headers="Content-Type: text/plain\r\nX-Request-Id: my-id\r\n")
    assert reply.json() == {"type": "error", "request_id": "my-id", "error": {
        "type": "invalid_request_error", "message": "Content-Type: text/plain where application/json is wanted (curl: -H "
        "'Content-Type: application/json')"}}
    odd = http.post("/v1/messages", b"x", headers="Content-Type: " + "\u00e9" * 100 + "\r\n")
    assert odd.status == 415 and "where application/json is wanted" in odd.message
    assert http.get("/v1/messages/none").json()["error"]["type"] == "not_found_error"


def test_query_parameters_are_decoded(http):
    assert b"q=a b&c=d\n" in http.get("/who?x=1&q=a+b%26c%3Dd").body
    assert b"q=\n" in http.get("/who?q").body
    assert b"q=(none)\n" in http.get("/who?qq=1").body


def test_a_handler_that_gives_up_answers_500(http):
    reply = http.get("/silent")
    assert reply.status == 500 and reply.json()["error"]["type"] == "server_error"


def test_an_absolute_uri_is_taken(http):
    with http.connect() as peer:
        peer.send("GET http://localhost/who?q=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"path=/who\n" in peer.read_reply().body


# Request ids and header injection


def test_a_sane_request_id_is_kept_and_another_replaced(http):
    assert http.get("/who", "X-Request-Id: Ab.9_-\r\n").headers["x-request-id"] == "Ab.9_-"
    for bad in ("a b", "a" * 129, "a\u00e9", "a;b", '"'):
        assert re.fullmatch(r"req_[0-9a-f]{24}", http.get("/who", f"X-Request-Id: {bad}\r\n").headers["x-request-id"])
    ids = {http.get("/health").headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20


@pytest.mark.parametrize("value", [b"a\r\n Injected: yes", b"a\rInjected: yes", b"a\x00\r\nb", b"a\n\tInjected: yes"])
def test_no_header_is_injected_through_a_request_id(http, value):
    with http.connect() as peer:
        peer.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + value + b"\r\n\r\n")
        reply = peer.read_reply()
        assert "injected" not in reply.headers and b"Injected" not in reply.head


def test_no_header_is_injected_by_a_handler(http):
    reply = http.get("/who")
    assert reply.headers["x-sane"] == "yes" and "x-injected" not in reply.headers


def test_a_stream_tells_proxies_not_to_buffer(http):
    headers = http.get("/stream").headers
    assert headers["x-accel-buffering"] == "no" and headers["cache-control"] == "no-store"


# Keys


def key_line(name, key, admin=False):
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}{':admin' if admin else ''}\n"


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# people\n" + key_line("ann", "key-of-ann") + "\n" + key_line("root", "key-of-root", admin=True))
    return path


def bearer(key):
    return f"Authorization: Bearer {key}\r\n"


def test_without_a_right_key_the_answer_is_401(start_http, keys_file):
    http = start_http(f"keys_file={keys_file}")
    for headers in ("", bearer("wrong"), "x-api-key: \r\n", "Authorization: Basic a2V5\r\n", bearer("key-of-ann" + "x")):
        reply = http.get("/who", headers)
        assert reply.status == 401 and reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.json()["error"]["code"] == "invalid_api_key"
    assert http.get("/health").status == 200


def test_what_is_refused_is_seen_in_the_log(start_http, keys_file):
    http = start_http(f"keys_file={keys_file}", "max_body=1000")
    http.get("/who?secret=1", bearer("wrong") + "X-Request-Id: mine\r\n")
    http.post("/admin", headers=bearer("key-of-ann"))
    http.get('/nothing"\\')
    http.post("/health")
    http.post("/echo", b" " * 1001, headers=bearer("key-of-ann"))
    http.post("/echo", b"x", headers=bearer("key-of-ann") + "Content-Type: text/plain\r\n")
    http.get("/health")
    http.stop()
    lines = [line for line in http.errors.splitlines() if " info refused " in line]
    assert [re.search(r"status=(\d+)", line).group(1) for line in lines] == ["401", "403", "404", "405", "413", "415"]
    assert 'id=mine status=401 method=GET path="/who" from=127.0.0.1' in lines[0]
    assert "wrong" not in http.errors and "secret" not in http.errors


def test_a_flood_of_refusals_is_counted_and_not_written(start_http):
    http = start_http()
    with http.connect() as peer:
        for _ in range(500):
            peer.get("/nothing")
    http.stop()
    lines = [line for line in http.errors.splitlines() if " info refused " in line]
    counted = [int(m.group(1)) for line in lines if (m := re.search(r"more=(\d+)", line))]
    seconds = len({line.split(".")[0] for line in lines}) + 1
    assert len(lines) <= 11 * seconds and sum(counted) + len(lines) - len(counted) == 500


def test_a_key_opens_and_names_its_owner(start_http, keys_file):
    http = start_http(f"keys_file={keys_file}")
    for headers in (bearer("key-of-ann"), "authorization: bearer   key-of-ann\r\n", "X-Api-Key: key-of-ann\r\n"):
        assert b"key=ann\n" in http.get("/who", headers).body
    client = {re.search(rb"client=(\d+)", http.get("/who", bearer(f"key-of-{who}")).body).group(1)
              for who in ("ann", "ann", "root")}
    assert len(client) == 2 and b"0" not in client


def test_admin_paths_want_the_admin_key(start_http, keys_file):
    http = start_http(f"keys_file={keys_file}")
    assert http.post("/admin").status == 401
    plain = http.post("/admin", headers=bearer("key-of-ann"))
    assert plain.status == 403 and "does not end in :admin" in plain.message
    assert http.post("/admin", headers=bearer("key-of-root")).status == 200
    assert http.get("/metrics").status == 401
    assert http.get("/metrics", bearer("key-of-ann")).status == 403
    assert http.get("/metrics", bearer("key-of-root")).status == 200
    assert start_http(f"keys_file={keys_file}", "metrics_open=1").get("/metrics").status == 200


def test_keys_are_exchanged_on_reload_and_kept_when_the_file_is_broken(start_http, keys_file):
    http = start_http(f"keys_file={keys_file}")
    with http.connect() as peer:
        assert peer.get("/who", bearer("key-of-ann")).status == 200
        keys_file.write_text(key_line("eve", "key-of-eve"))
        http.signal(signal.SIGHUP)
        assert http.process.stdout.readline() == "reloaded\n"
        assert peer.get("/who", bearer("key-of-ann")).status == 401
        assert peer.get("/who", bearer("key-of-eve")).status == 200
        keys_file.write_text("eve:123\n")
        http.signal(signal.SIGHUP)
        assert http.process.stdout.readline() == "kept\n"
        assert peer.get("/who", bearer("key-of-eve")).status == 200


def test_without_keys_admin_paths_answer_on_loopback(http):
    assert http.post("/admin").status == 200


def test_beyond_loopback_keys_are_wanted_or_open(start_http, keys_file):
    refused = start_http("listen=0.0.0.0:0")
    assert refused.code == 1 and "keys" in refused.errors and "server.open" in refused.errors
    assert start_http("listen=0.0.0.0:0", "open=1").get("/health", "").status == 200
    assert start_http("listen=0.0.0.0:0", f"keys_file={keys_file}").get("/health").status == 200


# Host and Origin


def get_raw(http, headers):
    with http.connect() as peer:
        peer.send(f"GET /health HTTP/1.1\r\n{headers}\r\n")
        return peer.read_reply()


def test_without_keys_only_names_of_this_machine_are_answered(http):
    port = http.port
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", f"127.0.0.1:{port}", "LOCALHOST", "127.1.2.3", "[::1]",
                 f"[::1]:{port}", f"localhost:{port + 1}"):
        assert get_raw(http, f"Host: {host}\r\n").status == 200, host
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
                 "localhost:", "localhost:x", "", "[::2]", "127.0.0.1@evil.example"):
        reply = get_raw(http, f"Host: {host}\r\n")
        assert reply.status == 403 and "Host" in reply.message and "any port" in reply.message, host
    assert get_raw(http, "").status == 200


def test_with_keys_any_name_is_answered(start_http, keys_file):
    http = start_http(f"keys_file={keys_file}")
    assert get_raw(http, "Host: berth.example\r\n").status == 200


def test_pages_of_other_hosts_are_refused(http):
    port = http.port
    host = f"Host: localhost:{port}\r\n"
    assert get_raw(http, f"{host}Origin: http://localhost:{port}\r\n").status == 200
    assert get_raw(http, "Host: localhost\r\nOrigin: http://localhost\r\n").status == 200
    for origin in ("http://evil.example", "null", f"http://localhost:{port + 1}", "http://localhost", "file://", "x",
                   f"ftp://localhost:{port}"):
        reply = get_raw(http, f"{host}Origin: {origin}\r\n")
        assert reply.status == 403 and "Origin" in reply.message, origin
        assert "access-control-allow-origin" not in reply.headers


def test_listed_origins_pass_and_read_the_answer(start_http):
    http = start_http("cors=https://app.example", "cors=tauri://localhost")
    for origin in ("https://app.example", "tauri://localhost"):
        reply = http.get("/health", f"Origin: {origin}\r\n")
        assert reply.status == 200 and reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["vary"] == "Origin"
    reply = http.get("/health", "Origin: https://other.example\r\n")
    assert reply.status == 403 and reply.headers["vary"] == "Origin"
    assert http.get("/health").headers["vary"] == "Origin"
    assert "vary" not in start_http().get("/health").headers


def test_a_preflight_is_answered_without_a_key(start_http, keys_file):
    http = start_http("cors=https://app.example", f"keys_file={keys_file}")
    ask = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n"
    reply = http.get("/echo", "Origin: https://app.example\r\n" + ask, method="OPTIONS")
    assert reply.status == 204 and reply.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert http.get("/echo", "Origin: https://other.example\r\n" + ask, method="OPTIONS").status == 403
    reply = http.get("/echo", method="OPTIONS")
    assert reply.status == 204 and reply.headers["allow"] == "POST, OPTIONS"


# Addresses


def test_a_unix_socket_is_served_and_removed_at_the_end(start_http, tmp_path):
    path = tmp_path / "s.sock"
    http = start_http(f"listen=unix:{path}")
    assert http.addresses == [f"unix:{path}"]
    with http.connect() as peer:
        assert peer.get("/health").status == 200
        assert peer.send("POST /admin HTTP/1.1\r\nHost: whatever\r\nContent-Length: 0\r\n\r\n").read_reply().status == 200
        peer.send("GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        http.wait_stats(lambda s: s["requests"] == 2)
    http.wait_stats(lambda s: s["left"] == 1)
    http.stop()
    assert not path.exists()


def test_a_stale_socket_file_is_replaced_and_a_live_one_is_not(start_http, tmp_path):
    path = tmp_path / "s.sock"
    first = start_http(f"listen=unix:{path}")
    second = start_http(f"listen=unix:{path}")
    assert second.code == 1 and "in use" in second.errors
    first.process.kill()
    first.wait()
    assert path.exists()
    third = start_http(f"listen=unix:{path}")
    assert third.connect().get("/health").status == 200
    os.unlink(path)
    path.write_text("mine")
    fourth = start_http(f"listen=unix:{path}")
    assert fourth.code == 1 and "no socket" in fourth.errors
    third.stop()
    assert path.read_text() == "mine"


def test_a_client_with_a_long_name_of_its_own_is_served(start_http, tmp_path):
    path = tmp_path / "s.sock"
    http = start_http(f"listen=unix:{path}")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("\0" + "n" * 107)
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.0 200 ")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
        return True
    except OSError:
        return False


def test_several_addresses_are_served_by_one_server(start_http, tmp_path):
    listen = ["listen=127.0.0.1:0", f"listen=unix:{tmp_path}/s.sock", "listen=127.0.0.2:0"]
    http = start_http(*listen, *(["listen=[::1]:0"] if has_ipv6() else []))
    for i in range(len(http.addresses)):
        with http.connect(i) as peer:
            assert peer.get("/health").status == 200


def test_an_address_in_use_says_so_and_what_to_do(start_http, http):
    second = start_http(f"listen=127.0.0.1:{http.port}")
    assert second.code == 1
    assert f"127.0.0.1:{http.port}: address in use" in second.errors and "server.listen" in second.errors


@pytest.mark.parametrize("address", ["", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:80x", "::1:8080",
                                     "[::1:80", "unix:", "unix:/" + "x" * 200, "unix:/no/such/folder/s", "192.0.2.1:0",
                                     "no.such.name.invalid:80"])
def test_a_bad_address_is_named(address):
    server = HttpServer(f"listen={address}", "open=1")
    assert server.code == 1 and server.errors.startswith(f"{address}: ") and server.errors.count("\n") == 1
