"""tools/bootstrap: what `make run` builds, with which engine, and which ports it takes. It runs in a folder of its own, where
meson, ninja and nvidia-smi are scripts that note how they were called."""
import os
import shutil
import socket
import subprocess
import sys

import pytest

GPU_HERE = os.path.exists("/dev/nvidiactl")
MESON = """#!/bin/sh
echo "meson $*" >>calls
[ "$1" != setup ] || touch "$2/build.ninja"
"""
NINJA = """#!/bin/sh
echo "ninja $*" >>calls
printf '#!/bin/sh\\necho "berth $*" >>calls\\n' >"$2/berth"
chmod +x "$2/berth"
"""


@pytest.fixture
def tree(root, tmp_path):
    """run(arguments, environment) -> the process; .calls() -> what was called since."""
    (tmp_path / "tools").mkdir()
    shutil.copy(root / "tools" / "bootstrap", tmp_path / "tools")
    (tmp_path / "bin").mkdir()

    class Tree:
        path = tmp_path

        def script(self, name, text):
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)

        def run(self, *args, **env):
            keep = {name: value for name, value in os.environ.items() if name != "CUDA"}
            return subprocess.run(["bash", tmp_path / "tools" / "bootstrap", *args], cwd=tmp_path, capture_output=True,
                                  text=True, timeout=60, env={**keep, "PATH": f"{tmp_path}/bin:{keep['PATH']}", **env})

        def calls(self):
            log = tmp_path / "calls"
            lines = log.read_text().splitlines() if log.exists() else []
            log.unlink(missing_ok=True)
            return lines

    made = Tree()
    # Asking python for its pip and venv takes a second each time; the script of the ports is run.
    python = f'#!/bin/sh\n[ "$1" != - ] || exec "{sys.executable}" "$@"\n'
    for name, text in [("meson", MESON), ("ninja", NINJA), ("nvidia-smi", "#!/bin/sh\nexit 1\n"), ("python3", python)]:
        made.script(name, text)
    return made


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_run_builds_the_program_and_its_policies_and_serves(tree):
    port = free_port()
    result = tree.run("run", "a model.gguf", str(port))
    assert result.returncode == 0, result.stderr
    calls = tree.calls()
    assert calls[1] == "ninja -C build --quiet berth plugins/value.so plugins/lru.so"
    assert calls[2:] == [f"berth {command} --set model.path=a model.gguf --set server.listen=127.0.0.1:{port}"
                         for command in ("check", "serve")]
    assert "a few minutes the first time" in result.stderr and f"http://127.0.0.1:{port}/v1/chat/completions" in result.stderr
    assert "the first time" not in tree.run("build").stderr


def test_cuda_is_built_where_a_gpu_is_or_when_asked_for(tree):
    without = tree.run("build")
    assert tree.calls()[0] == f"meson setup build -Dcuda={'auto' if GPU_HERE else 'disabled'} -Dwerror=false"
    assert GPU_HERE or without.stderr.count("no GPU is here (CUDA=yes builds it all the same)") == 1
    tree.script("nvidia-smi", "#!/bin/sh\necho GPU 0\n")
    tree.script("nvcc", "#!/bin/sh\n")
    tree.run("build", "b2")
    tree.run("build", "b3", CUDA="no")
    tree.run("build", "b3", CUDA="yes")
    tree.run("build", "b3")
    assert [line for line in tree.calls() if line.startswith("meson")] == [
        "meson setup b2 -Dcuda=auto -Dwerror=false", "meson setup b3 -Dcuda=disabled -Dwerror=false",
        "meson configure b3 -Dcuda=enabled"]
    wrong = tree.run("build", "b3", CUDA="maybe")
    assert wrong.returncode == 1 and "CUDA=maybe: yes or no is allowed" in wrong.stderr and not tree.calls()


def test_a_port_that_cannot_be_had_is_told_before_anything_is_built(tree):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = tree.run("run", "m.gguf", str(port))
    assert result.returncode == 1 and not tree.calls()
    assert result.stderr.startswith(f"bootstrap: 127.0.0.1:{port}: Address already in use; take another port: make run PORT=")
    for wrong in ["65536", "http"]:
        result = tree.run("run", "m.gguf", wrong)
        assert result.returncode == 1 and result.stderr == f"bootstrap: PORT={wrong}: a number 1..65535 is allowed\n"


def test_progress_is_shown_on_a_terminal(tree):
    """script(1) would do; a pseudo-terminal of our own needs no program."""
    import pty
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(tree.path)
        os.environ["PATH"] = f"{tree.path}/bin:" + os.environ["PATH"]
        os.environ.pop("CUDA", None)
        os.execvp("bash", ["bash", "tools/bootstrap", "build"])
    while True:
        try:
            if not os.read(fd, 4096):
                break
        except OSError: # the other end is gone
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert tree.calls()[1] == "ninja -C build"
