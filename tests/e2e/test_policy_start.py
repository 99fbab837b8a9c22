"""Which policy a server starts with, and what keeps it from starting."""
import hashlib
import os
import re
import shutil
import subprocess

import pytest

from apikit import chat, get
from reload_kit import Conf
from test_swap import BAD_SETTINGS

# Runs a program with write-and-execute memory refused to it, the way MemoryDenyWriteExecute= of systemd does.
DENY = "import ctypes, os, sys; sys.exit(9) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture(scope="session")
def policies(berth_bin):
    return berth_bin.parent / "plugins"


@pytest.fixture
def conf(tmp_path, start_server):
    return Conf(tmp_path / "berth.json", start_server)


@pytest.fixture
def refused(berth, synthetic_model, tmp_path):
    """refused("--set", "a.b=c") -> what `berth serve` said when it did not start; `berth check` must say the same."""
    def run(*args, env=None):
        said = []
        for command in ("serve", "check"):
            result = berth(command, "--set", f"model.path={synthetic_model}", "--set", "server.listen=127.0.0.1:0", *args,
                           env={**os.environ, **(env or {})})
            assert result.returncode == 1, result.stderr
            said.append(result.stderr.splitlines()[-1])
        assert said[0] == said[1], said
        return said[0]

    return run


def test_without_anything_the_builtin_policy_decides(conf):
    conf.start()
    policy = conf.policy()
    assert (policy["name"], policy["path"], policy["generation"], policy["settings"]) == ("builtin", "builtin", 1, {})


def test_a_policy_from_the_file_decides(conf, policies, tmp_path):
    shutil.copy(policies / "lru.so", tmp_path / "mine.so")
    conf.set(policy__path="mine.so")
    server = conf.start()
    policy = conf.policy()
    assert policy["name"] == "lru" and policy["path"] == str(tmp_path / "mine.so")
    assert policy["digest"] == hashlib.sha256((tmp_path / "mine.so").read_bytes()).hexdigest()
    server.wait_log(rf"info policy state=loaded name=lru .*digest={policy['digest'][:16]} ")


def test_the_switch_loads_the_policy_that_came_with_the_server(conf, policies):
    conf.start(env={"STRATA_SLOT_CACHE_AFFINITY": "1", "STRATA_SLOT_TTL_MAX_S": "33"})
    policy = conf.policy()
    assert policy["name"] == "value" and os.path.samefile(policy["path"], policies / "value.so")
    assert policy["settings"]["ttl_max_s"] == {"value": "33", "origin": "environment STRATA_SLOT_TTL_MAX_S"}


def test_the_switch_with_another_policy_leaves_that_one(conf, policies):
    conf.set(policy__path=str(policies / "lru.so"))
    conf.start(env={"STRATA_SLOT_CACHE_AFFINITY": "1"})
    assert conf.policy()["name"] == "lru"


def test_the_installed_policy_is_found_from_where_the_program_lies(berth_bin, policies, synthetic_model, tmp_path):
    """As installed, with the folders that the build names: bin, and the policies' as seen from there."""
    found = re.search(rb"(\.\./[^\x00%]*berth/policies)\x00", berth_bin.read_bytes())
    (tmp_path / "bin").mkdir()
    program = shutil.copy(berth_bin, tmp_path / "bin" / "berth")
    args = [program, "check", "--set", f"model.path={synthetic_model}"]
    env = {**os.environ, "STRATA_SLOT_CACHE_AFFINITY": "1"}
    missing = subprocess.run(args, env=env, capture_output=True, text=True, timeout=60)
    assert missing.returncode == 1
    assert re.search(r"STRATA_SLOT_CACHE_AFFINITY=1: .*/berth/policies/value\.so: No such file.*make build", missing.stderr), missing.stderr
    folder = tmp_path / "bin" / found[1].decode()
    folder.resolve().mkdir(parents=True)
    shutil.copy(policies / "value.so", folder)
    assert subprocess.run(args, env=env, capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("settings, reason", BAD_SETTINGS)
def test_bad_settings_keep_it_from_starting(refused, policies, settings, reason):
    sets = [arg for key, value in settings.items()
            for arg in ("--set", f"policy.settings.{key}={str(value).lower() if isinstance(value, bool) else value}")]
    for fallback in ("none", "builtin"):
        said = refused("--set", f"policy.path={policies}/value.so", *sets, "--set", f"policy.fallback={fallback}")
        assert said.startswith(f"berth: policy.path: {policies}/value.so: "), said
        assert re.search(reason.replace("1000000000 ", "1000000000.0 "), said) and "policy.settings." in said and "--set" in said, said


@pytest.mark.parametrize("text, reason", [
    ("soon", r'"soon" is not a number 0\.\.86400'),
    ("nan", r'"nan" is not a number'),
    ("-5", r"-5 is outside 0\.\.86400 s"),
    ("86401", r"86401 is outside 0\.\.86400 s"),
    ("", r'"" is not a number'),
])
def test_bad_values_in_the_environment_keep_it_from_starting(refused, policies, tmp_path, text, reason):
    path = ("--set", f"policy.path={policies}/value.so")
    said = refused(*path, env={"STRATA_SLOT_TTL_MAX_S": text})
    assert re.search(rf"ttl_max_s: {reason}.*environment STRATA_SLOT_TTL_MAX_S", said), said
    said = refused(*path, "--set", f"env.STRATA_SLOT_TTL_MAX_S={text}", env={"STRATA_SLOT_TTL_MAX_S": "5"})
    assert re.search(rf"ttl_max_s: {reason}.*env\.STRATA_SLOT_TTL_MAX_S, --set", said), said


def test_what_contradicts_itself_keeps_it_from_starting(refused, policies):
    path = ("--set", f"policy.path={policies}/value.so")
    said = refused(*path, env={"STRATA_SLOT_CACHE_AFFINITY": "0"})
    assert re.search(r"STRATA_SLOT_CACHE_AFFINITY=0 .*\(environment .*\), policy\.path for .*value\.so", said), said
    assert 'STRATA_SLOT_CACHE_AFFINITY: "on" where 0 or 1' in refused(env={"STRATA_SLOT_CACHE_AFFINITY": "on"})
    assert 'STRATA_CACHE_TRACE: "2" where 0 or 1' in refused("--set", "env.STRATA_CACHE_TRACE=2")
    assert "the built-in policy has no settings" in refused("--set", "policy.settings.ttl_max_s=5")


def test_a_policy_that_cannot_be_loaded_keeps_it_from_starting(refused, policies, tmp_path):
    (tmp_path / "text.so").write_text("no policy at all, whatever its name says")
    assert "text.so: not an ELF file" in refused("--set", f"policy.path={tmp_path}/text.so")
    assert "none.so: No such file or directory; berth policy list shows" in refused("--set", f"policy.path={tmp_path}/none.so", "--set", "policy.fallback=none")
    said = refused("--set", f"policy.path={policies}/lru.so", "--set", f"policy.shadow={policies}/value.so,{tmp_path}/text.so")
    assert "policy.shadow: item 2: " in said and "text.so: not an ELF file" in said


def test_with_the_fallback_it_starts_on_the_builtin_policy_and_tries_again_at_a_reload(conf, policies, tmp_path):
    conf.set(policy__path="mine.so", policy__fallback="builtin", policy__shadow=[{"path": "mine.so"}])
    server = conf.start()
    server.wait_log(r'warn policy state=fallback reason="policy\.path: .*mine\.so: No such file.*" using=builtin')
    assert conf.policy()["name"] == "builtin" and conf.policy()["shadows"] == []
    assert "mine.so: No such file" in conf.refused()
    shutil.copy(policies / "value.so", tmp_path / "mine.so")
    assert conf.reload()["policy"] == "value"
    assert [shadow["name"] for shadow in conf.policy()["shadows"]] == ["value"]


def test_check_tells_what_serve_would_warn_of(berth, policies, synthetic_model, tmp_path):
    args = ("check", "--set", f"model.path={synthetic_model}", "--set", "policy.fallback=builtin")
    missing = berth(*args, "--set", f"policy.path={tmp_path}/none.so")
    assert missing.returncode == 0
    assert re.search(r"note: left out, as policy\.fallback allows: policy\.path: .*none\.so: No such file", missing.stderr)
    unused = berth(*args, "--set", f"policy.path={policies}/lru.so", env={**os.environ, "STRATA_SLOT_TTL_MAX_S": "x"})
    assert unused.returncode == 0
    assert unused.stderr == "berth: note: no policy knows these environment names: STRATA_SLOT_TTL_MAX_S\n"


def test_the_switch_of_the_trace_writes_to_standard_error_or_to_the_file(conf, tmp_path):
    server = conf.start(env={"STRATA_CACHE_TRACE": "1"})
    chat(server, "one", max_tokens=1)
    chat(server, "two", max_tokens=1)
    server.wait_log(r'^\{.*"call":"\w+"')
    conf.set(trace__path="t.jsonl")
    conf.reload()
    chat(server, "three", max_tokens=1)
    chat(server, "four", max_tokens=1)
    for _ in range(2):
        conf.set(env={"STRATA_CACHE_TRACE": "0"})
        conf.reload()
        assert conf.policy()["trace"]["on"] is True
    conf.drop("trace")
    conf.reload()
    assert conf.policy()["trace"]["on"] is False
    assert '"call":' in (tmp_path / "t.jsonl").read_text()


def test_policies_load_where_memory_is_never_writable_and_executable_at_once(conf, berth_bin, policies, tmp_path):
    probe = subprocess.run(["python3", "-c", DENY, "/bin/true"], timeout=60)
    if probe.returncode == 9:
        pytest.skip("this kernel has no PR_SET_MDWE")
    wrapper = tmp_path / "berth-denied"
    wrapper.write_text(f'#!/bin/sh\nexec python3 -c \'{DENY}\' {berth_bin} "$@"\n')
    wrapper.chmod(0o755)
    conf.set(policy__path=str(policies / "value.so"))
    server = conf.start(binary=wrapper)
    conf.set(policy__path=str(policies / "lru.so"))
    assert conf.reload()["policy"] == "lru"
    with open(f"/proc/{server.pid}/maps") as f:
        assert not [line for line in f if "wx" in line.split()[1]]
    assert get(server, "/health").status_code == 200
