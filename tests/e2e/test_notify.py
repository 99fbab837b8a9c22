"""What the service manager is told: start, reloads, the end and progress, in datagrams to its socket; and the unit for it."""
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from apikit import eventually, get
from histories_kit import Request, Vocabulary, body_of
from reload_kit import Conf


class Manager:
    """A socket like that of a service manager: a path, or an abstract name when it begins with @."""

    def __init__(self, name):
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.seen = []

    def next(self, timeout):
        """The lines of the next datagram as a dictionary."""
        self.socket.settimeout(timeout)
        lines = self.socket.recv(4096).decode().split("\n")
        assert all("=" in line for line in lines), lines
        self.seen.append(dict(line.split("=", 1) for line in lines))
        return self.seen[-1]

    def wait(self, key, timeout):
        """The next datagram with this key; those before it are passed over."""
        until = time.monotonic() + timeout
        while key not in self.next(max(0.01, until - time.monotonic())):
            pass
        return self.seen[-1]


@pytest.fixture
def patience(time_scale):
    return 30 * time_scale


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    name = str(tmp_path / "notify") if request.param == "path" else f"@berth-test-{os.getpid()}-{request.node.name}"
    manager = Manager(name)
    yield manager
    manager.socket.close()


@pytest.fixture
def conf(tmp_path, start_server):
    return Conf(tmp_path / "berth.json", start_server)


def test_it_tells_when_it_is_ready_reloading_and_stopping(manager, conf, patience):
    server = conf.start(env={"NOTIFY_SOCKET": manager.name})
    assert manager.next(patience) == {"READY": "1", "STATUS": "Serving", "MAINPID": str(server.pid)}
    before = time.monotonic()
    server.signal(signal.SIGHUP)
    reloading = manager.next(patience)
    assert reloading["RELOADING"] == "1" and before <= int(reloading["MONOTONIC_USEC"]) / 1e6 <= time.monotonic()
    assert manager.next(patience) == {"READY": "1", "STATUS": "Serving"}
    conf.path.write_text("{")
    server.signal(signal.SIGHUP)
    assert manager.next(patience)["RELOADING"] == "1"
    assert manager.next(patience) == {"READY": "1", "STATUS": "Serving; the last reload failed, see the log"}
    server.signal(signal.SIGTERM)
    assert manager.next(patience)["STOPPING"] == "1"
    assert server.wait() == 0


def test_a_server_that_cannot_start_is_never_ready(manager, conf):
    conf.path.write_text("{")
    server = conf.start_server({}, args=["--config", conf.path], wait=False, env={"NOTIFY_SOCKET": manager.name})
    assert server.wait() == 1
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.socket.recv(4096)


@pytest.mark.parametrize("name", ["", "x", "@", "relative/path", "/nonexistent/socket", "/" + "n" * 200, "vsock:2:1234"])
def test_a_socket_that_is_not_there_is_no_hindrance(conf, name):
    server = conf.start(env={"NOTIFY_SOCKET": name})
    conf.hangup()
    server.check_alive()


def test_the_watchdog_is_fed_as_often_as_it_asks(manager, conf, patience):
    conf.start(env={"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "400000"})
    manager.wait("READY", patience)
    begin = time.monotonic()
    for _ in range(5):
        assert manager.next(patience) == {"WATCHDOG": "1"}
    assert time.monotonic() - begin >= 0.5, "far more often than asked"


def test_a_watchdog_of_another_process_is_not_fed(manager, conf, patience):
    server = conf.start(env={"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"})
    manager.wait("READY", patience)
    conf.hangup()
    manager.wait("READY", patience)
    server.signal(signal.SIGTERM)
    manager.wait("STOPPING", patience)
    assert server.wait() == 0
    assert not any("WATCHDOG" in seen for seen in manager.seen)


def test_without_progress_the_watchdog_hears_nothing_and_the_end_comes_all_the_same(manager, conf, berth_bin, patience,
                                                                                synthetic_model):
    vocabulary = Vocabulary(synthetic_model)
    conf.set(policy__path=str(berth_bin.parent / "tests" / "abi" / "odd_endless.so"), policy__settings={"when": "asked"},
             server__watchdog_s=3600)
    server = conf.start(env={"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "200000"})
    manager.wait("WATCHDOG", patience)
    words = [vocabulary.turn, *vocabulary.words[:30]]
    beside = Request(server, body_of(vocabulary, words, 8000, {"stream": True})).read(1)
    hung = Request(server, body_of(vocabulary, words + vocabulary.words[:9], 77, {}))
    manager.wait("WATCHDOG", patience)
    assert get(server, "/ready").status_code == 200
    conf.set(server__watchdog_s=1)
    conf.reload()
    eventually(lambda: get(server, "/ready").status_code == 503)
    with pytest.raises(TimeoutError):  # what was told before is in the socket still
        for _ in range(1000):
            manager.next(1)
    for r in (beside, hung):
        r.leave()
    server.signal(signal.SIGTERM)
    assert server.wait() == 1
    assert re.search(r'warn exit reason="a policy does not return"', server.log)


def test_the_unit_is_one_that_systemd_understands(root, tmp_path):
    """As it stands, for those of Debian and Ubuntu too that know no notify-reload. tests/systemd/run starts it."""
    text = (root / "conf" / "berth.service").read_text()
    assert "\nType=notify\n" in text and "\nExecReload=/bin/kill -HUP $MAINPID\n" in text
    tool = shutil.which("systemd-analyze")
    if not tool:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "berth.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M))
    result = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    complaints = [line for line in (result.stdout + result.stderr).splitlines() if "berth.service" in line]
    assert result.returncode == 0 and not complaints, result.stderr
