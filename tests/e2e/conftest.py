"""Fixtures that start the real server on a port the kernel chooses, and show its log when a test fails.

BERTH_BIN: the program under test (default build/berth). BERTH_SLOW: how many times slower than usual it is (sanitizers);
every waiting time here is multiplied by it. Tests that measure time multiply what is promised by `time_scale`, which is also
generous: a machine that runs tests is shared, so that only what hangs or grows without bound can be told here. How fast something
is, berth bench measures.
BERTH_SYNTHETIC: a synthetic model that is there already; otherwise tools/make-model writes one.
"""
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW = float(os.environ.get("BERTH_SLOW", "1"))
START_S = 60 * SLOW
STOP_S = 30 * SLOW
SANITIZER = re.compile(r"(Address|Leak|Thread)Sanitizer|runtime error:")
REAL_MODEL = Path(os.environ.get("BERTH_MODELS", ROOT / "models")) / "SmolLM2-135M-Instruct.Q4_1.gguf"


class Server:
    """A running `berth serve`. `url` is its HTTP address, `ready` the pairs of its ready line, `log` what it wrote so far."""

    def __init__(self, binary, model, settings=None, args=(), env=None, cwd=None):
        # A setting of None is left to the file or its default.
        settings = {"server.listen": "127.0.0.1:0", "server.drain_s": 2, **(settings or {})}
        self.command = [str(binary), "serve"]
        if model is not None:
            self.command += ["--set", f"model.path={model}"]
        for key, value in settings.items():
            if value is None:
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self.command += ["--set", f"{key}={text}"]
        self.command += [str(a) for a in args]
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, cwd=cwd, env={**os.environ, **(env or {})})
        self.pid = self.process.pid
        self.url = self.host = self.port = None
        self.ready = {}
        self._lines = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for raw in self.process.stderr:
            with self._changed:
                self._lines.append(raw.decode("utf-8", "replace").rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def log(self):
        with self._changed:
            return "\n".join(self._lines)

    def wait_log(self, pattern, timeout=START_S):
        """The first match of a line of the log, waited for; fails when the server ends or the time is over."""
        def found():
            return next((m for m in (re.search(pattern, line) for line in self._lines) if m), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, timeout)
            match = found()
        if not match:
            raise AssertionError(f"no line like {pattern!r} in the log of {shlex.join(self.command)}:\n{self.log}")
        return match

    def wait_ready(self):
        line = self.wait_log(r"\bready\b .*\baddress=").string
        self.ready = dict(pair.split("=", 1) for pair in shlex.split(line) if "=" in pair)
        match = re.search(r"http://(\[[^\]]+\]|[^:\s\"]+):(\d+)", line)
        if match:
            self.host, self.port = match.group(1).strip("[]"), int(match.group(2))
            self.url = match.group(0)
        return self

    def client(self, **options):
        """An OpenAI client of this server that does not hide failures behind retries."""
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0,
                             timeout=100 * SLOW, **options)

    def connect(self, timeout=60):
        return socket.create_connection((self.host, self.port), timeout=timeout * SLOW)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=STOP_S):
        """The exit code, waited for; a server that does not end is killed and an error."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"pid {self.pid} did not end within {timeout} s:\n{self.log}") from None
        self._reader.join()
        return code

    def stop(self):
        """Ends it the way an operator does and checks that it ends well."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        code = self.wait()
        assert not SANITIZER.search(self.log), self.log
        assert code == 0, f"exit code {code}:\n{self.log}"

    def check_alive(self):
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log}"

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


_running = []


def _start(*args, **kwargs):
    server = Server(*args, **kwargs)
    _running.append(server)
    return server


def _forget(server):
    server.kill()
    _running.remove(server)


def pytest_collection_modifyitems(items):
    for item in items:
        if {"real_model", "real_server"} & set(item.fixturenames):
            item.add_marker("real")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for server in _running:
            report.sections.append((f"log of berth, pid {server.pid}", "\n".join(server.log.splitlines()[-60:])))


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def time_scale():
    return 5 * SLOW


@pytest.fixture(scope="session")
def berth_bin():
    path = Path(os.environ.get("BERTH_BIN", ROOT / "build" / "berth")).resolve()
    assert os.access(path, os.X_OK), f"{path} is not there: make build, or set BERTH_BIN"
    return path


@pytest.fixture(scope="session")
def berth(berth_bin):
    """Runs a subcommand to its end: berth("check", "--config", path) -> CompletedProcess with text."""
    def run(*args, timeout=60, **kwargs):
        result = subprocess.run([str(berth_bin), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                                text=True, timeout=timeout * SLOW, **kwargs)
        assert not SANITIZER.search(result.stderr), result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """make_model("--type", "Q8_0") -> path of a synthetic model written with these arguments (once per session)."""
    made = {}

    def make(*args):
        if args not in made:
            path = tmp_path_factory.mktemp("model") / "synthetic.gguf"
            subprocess.run([sys.executable, str(ROOT / "tools" / "make-model"), *map(str, args), str(path)], check=True)
            made[args] = path
        return made[args]

    return make


@pytest.fixture(scope="session")
def synthetic_model(make_model):
    given = os.environ.get("BERTH_SYNTHETIC")
    return Path(given).resolve() if given else make_model()


@pytest.fixture(scope="session")
def real_model():
    assert REAL_MODEL.is_file(), f"{REAL_MODEL} is not there: tools/bootstrap model brings it"
    return REAL_MODEL


@pytest.fixture(scope="session")
def gemma_model():
    path = REAL_MODEL.parent / "gemma-3-270m-q4_k_m.gguf"
    assert path.is_file(), f"{path} is not there: tools/bootstrap gemma brings it"
    return path


@pytest.fixture(scope="session")
def logits_of():
    """logits_of(model, ids, "exact" or "usual", chunk=64) -> the engine's logits, [position, vocabulary]."""
    import numpy as np  # here: few tests need it, and it takes its time

    program = Path(os.environ.get("BERTH_BUILD", ROOT / "build")) / "tests" / "logits_of"

    def run(model, ids, mode, chunk=64):
        done = subprocess.run([program, model, mode, str(chunk)], input=" ".join(map(str, ids)).encode(), capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return np.frombuffer(done.stdout, np.float32).reshape(len(ids), -1)

    return run


@pytest.fixture(scope="session")
def session_server(berth_bin, synthetic_model):
    server = _start(berth_bin, synthetic_model, {"engine.threads": 1})
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        _forget(server)


@pytest.fixture
def server(session_server):
    """The server on the synthetic model that all tests share. A test that ends it fails."""
    session_server.check_alive()
    yield session_server
    session_server.check_alive()


@pytest.fixture(scope="session")
def real_server(berth_bin, real_model):
    """One server on the real model, shared."""
    server = _start(berth_bin, real_model)
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        _forget(server)


@pytest.fixture
def start_server(berth_bin, synthetic_model):
    """start_server({"engine.slots": 2}, model=..., args=[...]) -> Server of this test alone, ready unless wait=False.

    What still runs at the end of the test must end well on SIGTERM.
    """
    started = []

    def start(settings=None, model=synthetic_model, wait=True, binary=berth_bin, **kwargs):
        server = _start(binary, model, settings, **kwargs)
        started.append(server)
        return server.wait_ready() if wait else server

    yield start
    try:
        for server in started:
            if server.process.poll() is None:
                server.stop()
            else:
                server.wait()
                assert not SANITIZER.search(server.log), server.log
    finally:
        for server in started:
            _forget(server)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """script([("after this in the prompt", "the model says that"), ..]) for the scripted servers of the module."""
    path = tmp_path_factory.mktemp("script") / "script.json"

    def write(*rules):
        new = path.with_suffix(".new")
        new.write_text(json.dumps([{"after": after, "say": say} for after, say in rules]))
        new.rename(path)

    write.path = path
    return write


@pytest.fixture(scope="module")
def scripted(synthetic_model, script):
    """scripted("qwen25", {..}) -> a Server whose model says what `script` says, with a template of tests/data (None: the model's)."""
    build = Path(os.environ.get("BERTH_BUILD", ROOT / "build"))
    started = {}

    def start(template=None, settings=None, model=synthetic_model):
        key = (template, tuple(sorted((settings or {}).items())), model)
        if key not in started:
            settings = {"engine.threads": 1, **(settings or {})}
            if template:
                settings["model.chat_template"] = ROOT / "tests" / "data" / "templates" / f"{template}.jinja"
            started[key] = _start(build / "tests" / "berth_scripted", model, settings,
                                  env={"BERTH_SCRIPT": str(script.path)})
            started[key].wait_ready()
        started[key].check_alive()
        return started[key]

    yield start
    try:
        for server in started.values():
            server.stop()
    finally:
        for server in started.values():
            _forget(server)


@pytest.fixture
def client(server):
    return server.client()
