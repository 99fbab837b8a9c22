"""Starts tests/http/http_testserver.c and talks to it over plain sockets.

BERTH_HTTP_TESTSERVER: the program (default: tests/http_testserver beside BERTH_BIN, or in build/).
"""
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW = float(os.environ.get("BERTH_SLOW", "1"))
SANITIZER = re.compile(r"(Address|Leak|Thread)Sanitizer|runtime error:")


def program():
    given = os.environ.get("BERTH_HTTP_TESTSERVER")
    beside = Path(os.environ.get("BERTH_BIN", ROOT / "build" / "berth")).parent / "tests" / "http_testserver"
    path = Path(given or beside).resolve()
    assert os.access(path, os.X_OK), f"{path} is not there: ninja -C build, or set BERTH_HTTP_TESTSERVER"
    return path


class Reply:
    """One answer, read to its end. `head` is the bytes before the body."""

    def __init__(self, status, headers, body, head):
        self.status, self.headers, self.body, self.head = status, headers, body, head

    def json(self):
        return json.loads(self.body)

    @property
    def message(self):
        return self.json()["error"]["message"]


class Peer:
    """A client's end of a connection: sends bytes, reads answers by the letter of HTTP/1.1."""

    def __init__(self, sock):
        self.sock = sock
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode())
        return self

    def read_some(self):
        data = self.sock.recv(65536)
        self.rest += data
        return data

    def read_until(self, mark):
        while mark not in self.rest:
            if not self.read_some():
                raise EOFError(f"closed before {mark!r}: {self.rest[:200]!r}")
        found, self.rest = self.rest.split(mark, 1)
        return found + mark

    def read_exactly(self, n):
        while len(self.rest) < n:
            if not self.read_some():
                raise EOFError(f"closed {n - len(self.rest)} bytes early")
        found, self.rest = self.rest[:n], self.rest[n:]
        return found

    def read_head(self):
        head = self.read_until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            if line:
                name, value = line.split(":", 1)
                headers[name.lower()] = value.strip()
        return int(lines[0].split()[1]), headers, head

    def read_chunk(self):
        size = int(self.read_until(b"\r\n").strip(), 16)
        data = self.read_exactly(size)
        assert self.read_exactly(2) == b"\r\n"
        return data

    def read_reply(self, head_only=False):
        status, headers, head = self.read_head()
        body = b""
        if head_only or status in (100, 204, 304):
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while chunk := self.read_chunk():
                body += chunk
        elif "content-length" in headers:
            body = self.read_exactly(int(headers["content-length"]))
        else:
            body = self.read_to_end()
        return Reply(status, headers, body, head)

    def read_to_end(self):
        while self.read_some():
            pass
        found, self.rest = self.rest, b""
        return found

    def closed(self):
        """Whether the server closes without a further byte."""
        try:
            return self.rest == b"" and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def reset(self):
        """Closes with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def get(self, path, headers="", method="GET", version="1.1"):
        self.send(f"{method} {path} HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n")
        return self.read_reply(head_only=method == "HEAD")

    def post(self, path, body=b"", headers="Content-Type: application/json\r\n"):
        self.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
        return self.read_reply()


class HttpServer:
    def __init__(self, *options, descriptors=None):
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))) if descriptors else None
        if not any(o.startswith("listen=") for o in options):
            options = ("listen=127.0.0.1:0", *options)
        self.process = subprocess.Popen([str(program()), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, preexec_fn=limit)
        self.addresses = []
        self.errors = ""
        for line in self.process.stdout:
            if line.startswith("ready"):
                break
            self.addresses.append(line.split()[1])
        else:
            self.code = self.wait()

    def connect(self, i=0, timeout=20):
        address = self.addresses[i]
        if address.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(timeout * SLOW)
            sock.connect(address[5:])
        else:
            host, port = re.fullmatch(r"http://(.*):(\d+)", address).groups()
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout * SLOW)
        return Peer(sock)

    @property
    def port(self):
        return int(self.addresses[0].rsplit(":", 1)[1])

    def get(self, path, headers="", **kwargs):
        with self.connect() as peer:
            return peer.get(path, headers, **kwargs)

    def post(self, path, body=b"", **kwargs):
        with self.connect() as peer:
            return peer.post(path, body, **kwargs)

    def stats(self):
        return self.get("/stats").json()

    def wait_stats(self, good, seconds=10):
        """Asks for the counters until good(counters); each answer is one turn of the server's loop."""
        end = time.monotonic() + seconds * SLOW
        with self.connect() as peer:
            while True:
                stats = peer.get("/stats").json()
                if good(stats):
                    return stats
                assert time.monotonic() < end, f"still {stats}"

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=20):
        try:
            _, self.errors = self.process.communicate(timeout=seconds * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, self.errors = self.process.communicate()
            raise AssertionError(f"the server did not end within {seconds} s: {self.errors}") from None
        assert not SANITIZER.search(self.errors), self.errors
        return self.process.returncode

    def stop(self):
        if self.process.returncode is not None:
            return
        self.signal(signal.SIGUSR2)
        self.signal(signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"exit code {code}: {self.errors}"


@pytest.fixture
def start_http():
    """start_http("max_body=1000", ...) -> HttpServer of this test, which must end well."""
    started = []

    def start(*options, **kwargs):
        started.append(HttpServer(*options, **kwargs))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def shared_http():
    server = HttpServer()
    yield server
    server.stop()


@pytest.fixture
def http(shared_http):
    """A server with the usual limits that the tests of a file share."""
    yield shared_http
    assert shared_http.process.poll() is None, "the server ended"


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]
