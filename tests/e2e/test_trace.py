"""A server's trace: a line for each decision, which `berth policy eval` decides again, and shadows that watch the same ones."""
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apikit import chat, eventually, get

SMALL = {"engine.threads": 1, "engine.kv_tokens": 1024, "engine.slots": 4, "engine.rows": 3}


@pytest.fixture(scope="module")
def value(berth_bin):
    return Path(berth_bin).parent / "plugins" / "value.so"


def talk(server, n_rounds=3):
    """One at a time on main, which parks them, then several at once, until memory is short."""
    for i in range(3):
        chat(server, f"{i} alone " * 20, max_tokens=8)
    with ThreadPoolExecutor(6) as pool:
        for k in range(n_rounds):
            list(pool.map(lambda i: chat(server, f"{i} says word {k} " * 25, max_tokens=16), range(6)))


def read(lines):
    """Numbers stay as they were written."""
    return [json.loads(line, parse_float=str, parse_int=str) for line in lines]


def decide_again(berth_bin, value, lines):
    done = subprocess.run([berth_bin, "policy", "eval", value, "--set", "ttl_max_s=5"], input="".join(lines), capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = read(done.stdout.splitlines())
    assert len(answers) == len(lines)
    for line, answer in zip(read(lines), answers):
        assert answer.pop("ok") is True and answer.pop("id") == line["id"]
        decision = line["decision"]
        assert {name: decision[name] for name in answer} == answer, line
        assert decision["policy"] == "value" and decision["by_builtin"] is False


def test_a_trace_is_decided_again_to_the_last_digit(start_server, berth_bin, value, tmp_path):
    trace = tmp_path / "trace.jsonl"
    server = start_server({**SMALL, "policy.path": value, "policy.settings.ttl_max_s": 5, "trace.path": trace,
                           "policy.shadow": f"{value},{value.with_name('lru.so')}"})
    talk(server)
    status = get(server, "/admin/policy").json()
    assert status["trace"]["dropped"] == status["trace"]["failed"] == 0
    server.stop()
    lines = trace.read_text().splitlines(keepends=True)
    calls = [line["call"] for line in read(lines)]
    assert {"place", "park_destination", "superseded_slots", "cache_state"} == set(calls), set(calls)
    assert calls.count("place") >= 10
    decide_again(berth_bin, value, lines)


def test_shadows_are_counted_and_one_of_the_same_policy_agrees(start_server, value):
    server = start_server({**SMALL, "policy.path": value, "policy.shadow": f"{value},{value.with_name('lru.so')}"})
    talk(server, 1)

    def when_asked():
        twin, other = get(server, "/admin/policy").json()["shadows"]
        return sum(twin["asked"].values()) > 20 and (twin, other)

    twin, other = eventually(when_asked)
    assert (twin["name"], other["name"], twin["dropped"], twin["stuck"]) == ("value", "lru", 0, False)
    assert twin["agreed"] == twin["asked"], twin
    assert not any(twin["disagreed"].values()) and not any(twin["breaches"].values())
    assert sum(other["disagreed"].values()) > 0, "these two do not value alike"


def test_without_a_file_lines_go_to_standard_error(start_server, berth_bin, value):
    server = start_server({**SMALL, "policy.path": value, "policy.settings.ttl_max_s": 5}, env={"STRATA_CACHE_TRACE": "1"})
    talk(server, 1)
    server.stop()
    lines = [line + "\n" for line in server.log.splitlines() if line.startswith("{")]
    assert len(lines) > 5
    decide_again(berth_bin, value, lines)


def test_a_trace_that_cannot_be_written_is_told_once_and_counted(start_server):
    server = start_server({**SMALL, "trace.path": "/dev/full"})
    talk(server, 1)

    def failed():
        text = get(server, "/metrics?format=prometheus").text
        return int(re.search(r"^berth_trace_failed_total (\d+)$", text, re.M).group(1))

    eventually(lambda: failed() > 5)
    assert get(server, "/admin/policy").json()["trace"]["failed"] >= 5
    server.stop()
    assert len(re.findall(r' warn trace state=failing reason="No space left on device"', server.log)) == 1
