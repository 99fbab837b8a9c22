"""Real clients against a berth whose model says what a test wants (tests/scripted). Run by tools/e2e-clients, which installs the
clients and starts pytest in a network namespace that has nothing but its own loopback: no client can ask anybody else.

CLIENTS: the folder in which they are installed. BERTH_BUILD: the build folder, with berth_scripted and clients.gguf.
"""
import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(os.environ.get("CLIENTS", ROOT / ".clients"))
BUILD = Path(os.environ.get("BERTH_BUILD", ROOT / "build"))
BLOCK = 64  # tokens of a block of the pool: what may be read again at most
TIMEOUT_S = 240

spec = importlib.util.spec_from_file_location("e2e_conftest", ROOT / "tests" / "e2e" / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
sys.modules["e2e_conftest"] = e2e
spec.loader.exec_module(e2e)

script = e2e.script
pytest_runtest_makereport = e2e.pytest_runtest_makereport
REQUEST = re.compile(r" request (id=.*)")


def pytest_sessionstart():
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        pytest.exit(f"these tests want a network namespace with loopback only, here are {names}: run tools/e2e-clients", 2)


class Berth:
    """A server, and what its log says of the requests since the last look."""

    def __init__(self, server):
        self.server, self.url, self.seen = server, server.url, 0

    def requests(self):
        """Fields of the new "request" lines, in order; only of requests that were to generate."""
        lines = [m.group(1) for m in map(REQUEST.search, self.server.log.splitlines()) if m]
        new, self.seen = lines[self.seen:], len(lines)
        return [dict(pair.split("=", 1) for pair in line.split(" ") if "=" in pair) for line in new]


@pytest.fixture(scope="module")
def start(script):
    servers = []

    def start_berth(**settings):
        settings = {"model.chat_template": ROOT / "tests/data/templates/qwen25.jinja", "engine.kv_tokens": 300000,
                    **{k.replace("__", "."): v for k, v in settings.items()}}
        server = e2e._start(BUILD / "tests" / "berth_scripted", BUILD / "clients.gguf", settings, env={"BERTH_SCRIPT": str(script.path)})
        servers.append(server)
        return server.wait_ready()

    yield start_berth
    try:
        for server in servers:
            server.stop()
    finally:
        for server in servers:
            e2e._forget(server)


@pytest.fixture(scope="module")
def roomy(start):
    return start()


@pytest.fixture
def berth(roomy):
    """A server into which every client's prompt fits."""
    roomy.check_alive()
    found = Berth(roomy)
    found.requests()
    return found


@pytest.fixture(scope="module")
def narrow_server(start):
    return start(model__context=1024)


@pytest.fixture
def narrow(narrow_server):
    """A server whose context no client's prompt fits into."""
    narrow_server.check_alive()
    found = Berth(narrow_server)
    found.requests()
    return found


@pytest.fixture
def run(tmp_path):
    """run([..], env={..}) in a folder with berths.txt and a home of its own -> CompletedProcess."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "berths.txt").write_text("nine ships lie here\n")

    def run_client(command, env=None, timeout=TIMEOUT_S):
        keep = {k: os.environ[k] for k in ("PATH", "LANG", "TERM") if k in os.environ}
        return subprocess.run([str(c) for c in command], cwd=work, env={**keep, "HOME": str(home), **{k: str(v) for k, v in (env or {}).items()}},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    run_client.work, run_client.home = work, home
    return run_client
