"""plugins/README.md as somebody follows it: out of tree, from an installed berth, every command and every line of the example as
it stands there, and then swapped into a running server twice."""
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from apikit import eventually, get

SLOW = float(os.environ.get("BERTH_SLOW", "1"))


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


@pytest.fixture(scope="module")
def readme(root):
    return (root / "plugins/README.md").read_text()


@pytest.fixture(scope="module")
def installed(root, tmp_path_factory):
    """The environment of somebody who has berth installed, here below a folder instead of at the root."""
    top = tmp_path_factory.mktemp("installed")
    build = Path(os.environ.get("BERTH_BUILD", root / "build"))
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet"], env={**os.environ, "DESTDIR": str(top)}, check=True)
    (program,) = top.glob("**/bin/berth")
    (package,) = top.glob("**/pkgconfig/berth-policy.pc")
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PKG_CONFIG_PATH": str(package.parent),
            "PKG_CONFIG_SYSROOT_DIR": str(top)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("short")


def shell(command, folder, env):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=60 * SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_tells_version_and_folder(installed):
    def variable(name):
        return subprocess.run(["pkg-config", f"--variable={name}", "berth-policy"], env=installed, capture_output=True, text=True,
                              check=True).stdout.strip()

    assert variable("abi_version") == "1.0"
    policies = Path(variable("policydir"))
    if not policies.is_dir():  # not every pkg-config puts the folder of the installation before variables
        policies = Path(installed["PKG_CONFIG_SYSROOT_DIR"] + str(policies))
    assert {path.name for path in policies.iterdir()} == {"value.so", "lru.so"}


@pytest.fixture(scope="module")
def built(readme, installed, folder):
    """short.so, built as the guide says."""
    (folder / "short.c").write_text(blocks(readme, "c")[0])
    shell(blocks(readme, "sh")[0], folder, installed)
    return folder / "short.so"


def test_it_is_checked_and_answers_as_told(readme, installed, built):
    assert len(blocks(readme, "c")) == 1
    _, check, evaluate = blocks(readme, "sh")
    answer, _ = blocks(readme, "json")
    said = shell(check, built.parent, installed)
    assert "short 1" in said and "patience_s = 10 s" in said and "self-test passed" in said
    assert shell(evaluate, built.parent, installed) == answer


def test_it_is_swapped_into_a_running_server(readme, installed, built, synthetic_model, start_server):
    config = built.parent / "berth.json"
    model = {"model": {"path": str(synthetic_model)}}
    config.write_text(json.dumps(model))
    server = start_server(model=None, args=["--config", config])

    def policy():
        return get(server, "/admin/policy").json()

    assert policy()["name"] == "builtin"
    config.write_text(json.dumps({**model, **json.loads(blocks(readme, "json")[1])}))
    os.kill(server.pid, signal.SIGHUP)
    eventually(lambda: policy()["name"] == "short", 30 * SLOW)

    # Changed, built over the file in use, and reloaded.
    source = built.with_suffix(".c")
    source.write_text(source.read_text().replace('.version = "1"', '.version = "2"'))
    shell(blocks(readme, "sh")[0], built.parent, installed)
    os.kill(server.pid, signal.SIGHUP)
    eventually(lambda: policy()["version"] == "2", 30 * SLOW)


@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_a_policy_in_cxx(root, installed, folder):
    flags = "-std=c++11 -O2 -Wall -Wextra -Wpedantic -Werror -shared -fPIC -fno-exceptions"
    shell(f"c++ {flags} $(pkg-config --cflags berth-policy) -o cxx.so {root}/tests/unit/abi_cxx.cpp", folder, installed)
    assert "self-test passed" in shell("berth policy check ./cxx.so", folder, installed)


def test_the_settings_of_value_are_told_as_they_are(readme, installed, root):
    """The table of the guide against what the policy says of itself."""
    build = Path(os.environ.get("BERTH_BUILD", root / "build"))
    said = shell(f"berth policy check {build / 'plugins' / 'value.so'}", root, installed)
    real = re.findall(r"^(?:settings)? +(\w+) = (\S+).* \(default; (\S+); or (\w+)\)$", said, re.M)
    told = re.findall(r"^\| `(\w+)` \| `(STRATA_\w+)` \| (\S+) \| (\S+) \|", readme, re.M)
    assert len(real) == 6 and real == [(name, default, bounds, env) for name, env, default, bounds in told]
