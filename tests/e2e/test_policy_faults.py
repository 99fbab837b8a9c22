"""Policies that are wrong, in a server that serves: what each does is told and counted, and the server lives, but for the
two faults no server in one process survives, which are named before it ends.

The policies are tests/abi/odd.c, built once for each fault. With `when` = "asked" a fault shows for a request of 77 new
tokens; questions without a request have it when the last prompt of a history was 77 tokens long.
"""
import json
import os
import random
import re
import signal
import subprocess

import pytest

from apikit import eventually, get, metrics
from histories_kit import Request, Vocabulary, body_of

SANITIZED = os.environ.get("BERTH_SLOW", "1") != "1"


@pytest.fixture(scope="module")
def vocabulary(synthetic_model):
    return Vocabulary(synthetic_model)


@pytest.fixture
def odd(berth_bin):
    return lambda name: berth_bin.parent / "tests" / "abi" / f"odd_{name}.so"


@pytest.fixture
def start(start_server, odd):
    def run(name, when="asked", **settings):
        return start_server({"engine.threads": 1, "engine.slots": 3, "policy.path": odd(name), "policy.settings.when": when,
                             **settings})
    return run


def prompt_of(vocabulary, seed, n=40):
    rng = random.Random(seed)
    return [vocabulary.turn, *(rng.choice(vocabulary.words) for _ in range(n - 1))]


def request(server, vocabulary, seed, n, n_prompt=40, **fields):
    return Request(server, body_of(vocabulary, prompt_of(vocabulary, seed, n_prompt), n, fields))


def provoke(server, vocabulary, times=1):
    """Requests of 77 tokens beside a stream that is running: each is placed by the policy."""
    beside = request(server, vocabulary, 1, 8000, stream=True).read(1)
    for i in range(times):
        assert request(server, vocabulary, 2 + i, 77).answer().generated == 77
    beside.leave()


def breach_lines(server):
    return [line for line in server.log.splitlines() if " policy_breach " in line]


# ---- answers that are not legal


@pytest.mark.parametrize("name, what", [
    ("slot_range", "place: slot 8 of 3"),
    ("slot_busy", "place: slot [0-2] is busy"),
    ("score_nan", "place: loss is not a number"),
])
def test_an_illegal_place_is_told_and_answered_by_the_builtin(start, vocabulary, berth_bin, odd, name, what):
    server = start(name)
    provoke(server, vocabulary)
    line = server.wait_log(r" warn policy_breach ").string
    assert re.search(f'policy=odd generation=1 what="{what}" count=1 answered=builtin$', line), line
    # The question is there as one line of JSON, which the policy answers wrong again.
    case = json.loads(server.wait_log(r'^\{.*"call": ?"place"').string)
    assert case["request"]["max_new_tokens"] == 77
    replay = subprocess.run([berth_bin, "policy", "eval", str(odd(name)), "--set", "when=asked"],
                            input=json.dumps(case) + "\n", capture_output=True, text=True, timeout=60)
    answer = json.loads(replay.stdout)
    assert answer["ok"] is False and re.search(what, answer["error"]), replay
    server.check_alive()


def test_bits_beyond_the_slots_are_told(start, vocabulary):
    server = start("bits_beyond")
    request(server, vocabulary, 1, 4, n_prompt=77).answer()
    assert server.wait_log(r'policy_breach .*what="superseded_slots: slot 3 of 3"')
    request(server, vocabulary, 2, 4).answer()


def test_three_breaches_within_a_minute_put_a_policy_out_of_use_until_a_reload(start, vocabulary):
    server = start("slot_range")
    out_of_use = r'policy_breach .* generation={} .*state="quarantined until the next reload"'
    provoke(server, vocabulary, times=3)
    server.wait_log(out_of_use.format(1))
    assert len(breach_lines(server)) == 2, "the second of three within ten seconds is not logged"
    provoke(server, vocabulary, times=3)
    assert len(breach_lines(server)) == 2, "it is not asked any more"
    server.signal(signal.SIGHUP)
    server.wait_log(r" reload state=done ")
    provoke(server, vocabulary, times=3)
    server.wait_log(out_of_use.format(2))


def test_breaches_and_slow_calls_are_counted(start, vocabulary):
    def count(server, name):
        text = get(server, "/metrics?format=prometheus").text
        return int(re.search(rf'^berth_policy_{name}_total\{{call="place"\}} (\d+)$', text, re.M).group(1))

    server = start("slot_range")
    provoke(server, vocabulary, times=2)
    assert count(server, "breaches") == 2 and metrics(server)["policy"]["quarantined"] is False
    provoke(server, vocabulary)
    assert count(server, "breaches") == 3 and metrics(server)["policy"]["quarantined"] is True
    server = start("slow")
    provoke(server, vocabulary)
    assert count(server, "slow_calls") >= 1 and count(server, "breaches") == 0, "slow is no breach"


# ---- what does not come back


def test_ready_names_a_call_that_never_returns(start, vocabulary):
    server = start("endless", **{"server.watchdog_s": 1})
    beside = request(server, vocabulary, 1, 8000, stream=True).read(1)
    hung = request(server, vocabulary, 2, 77)

    def named():
        reply = get(server, "/ready")
        return [reply] if "inside policy" in reply.text else None

    reply, = eventually(named)
    assert reply.status_code == 503 and reply.headers["Retry-After"]
    assert reply.json()["status"] == "stuck" and reply.json()["doing"] == "inside policy odd, function place"
    assert get(server, "/health").status_code == 200, "all that needs no slot is answered"
    for r in (beside, hung):
        r.leave()
    server.kill()


def test_a_shadow_that_never_returns_holds_up_nothing_and_is_told_when_it_is_left_behind(start_server, odd, vocabulary, tmp_path):
    conf = tmp_path / "berth.json"
    conf.write_text(json.dumps({"policy": {"shadow": [{"path": str(odd("endless")), "settings": {"when": "asked"}}]}}))
    server = start_server({"engine.threads": 1, "engine.slots": 3}, args=["--config", conf])
    provoke(server, vocabulary)
    eventually(lambda: metrics(server)["policy"]["shadows"][0]["stuck"])
    conf.write_text("{}")
    server.signal(signal.SIGHUP)
    server.wait_log(r" warn policy state=left_behind shadows=1 ")
    server.wait_log(r" reload state=done ")
    provoke(server, vocabulary)
    assert metrics(server)["policy"]["shadows"] == []


@pytest.mark.skipif(SANITIZED, reason="a sanitizer has its own report")
@pytest.mark.parametrize("name", ["crashes", "recurses"])
def test_a_crash_names_the_policy_it_happened_in(start, vocabulary, name):
    server = start(name)
    beside = request(server, vocabulary, 1, 8000, stream=True).read(1)
    hung = request(server, vocabulary, 2, 77)
    assert server.wait() == -signal.SIGSEGV
    assert "berth: signal 11 inside policy odd, function place" in server.log.splitlines()
    for r in (beside, hung):
        r.leave()


def test_a_fault_outside_of_policies_blames_none(start_server):
    server = start_server()
    server.signal(signal.SIGABRT)
    assert server.wait() == -signal.SIGABRT
    assert "berth: signal 6" in server.log.splitlines()


# ---- at the command line, and at start


def test_check_tells_what_it_found(berth, odd):
    result = berth("policy", "check", odd("right"), "--set", "when=asked")
    assert result.returncode == 0 and not result.stderr
    for line in ("policy   odd 1", "summary  Takes the first free slot.", "abi      1.0, needs 1.0",
                 "settings when = asked (--set when; or ODD_WHEN)", "self-test passed"):
        assert line in result.stdout.splitlines(), result.stdout
    result = berth("policy", "check", odd("right"), env={**os.environ, "ODD_WHEN": "always"})
    assert "settings when = always (environment ODD_WHEN; or ODD_WHEN)" in result.stdout


@pytest.mark.parametrize("name, args, why", [
    ("constructor_aborts", [], "probe: killed by signal 6 (Aborted): inside policy unnamed, function constructor"),
    ("create_fails", [], "create: the moon is not full"),
    ("newer_major", [], "ABI 2.0, this server speaks 1.0"),
    ("fickle", ["--set", "when=always"], "self-test: place: asked the same twice, it answers differently"),
    ("right", ["--set", "when=often"], 'when: "often" is not one of never, always, asked (--set when)'),
    ("right", ["--set", "who=me"], "who: unknown (--set who); odd has when"),
])
def test_check_says_why_a_file_would_not_be_loaded(berth, odd, name, args, why):
    result = berth("policy", "check", odd(name), *args)
    assert result.returncode == 1 and not result.stdout
    assert result.stderr.startswith(f"berth: {odd(name)}: {why}"), result.stderr
    assert result.stderr.count("\n") == 1


def test_a_child_is_waited_for_even_where_children_were_ignored(berth, odd):
    result = berth("policy", "check", odd("right"), preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert result.returncode == 0, result.stderr


def test_check_wants_a_file_and_pairs(berth, odd):
    assert berth("policy", "check").returncode == 2
    result = berth("policy", "check", odd("right"), "--set", "when")
    assert result.returncode == 2 and "NAME=VALUE" in result.stderr


@pytest.mark.parametrize("name, why", [
    ("constructor_aborts", "probe: killed by signal 6"),
    ("create_null", "create: failed without a reason"),
    ("undefined_symbol", "undefined symbol: nobody_has_this_function"),
    ("create_hangs", "probe: not finished after 1000 ms, killed"),
])
def test_a_server_does_not_start_on_a_policy_that_cannot_be_loaded(start_server, odd, name, why):
    server = start_server({"policy.path": odd(name), "policy.probe_s": 1}, wait=False)
    assert server.wait() == 1
    assert why in server.log and str(odd(name)) in server.log
