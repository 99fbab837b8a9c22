"""berth policy eval, berth policy list and berth bench policy, as a user runs them."""
import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CASE = {"id": 1, "call": "place", "request": {"prompt_tokens": 100},
        "snapshot": {"slots": [{"id": 4, "tokens": 7, "turn_tokens": 7}, {"id": 9}]}}


@pytest.fixture(scope="module")
def value(berth_bin):
    path = Path(berth_bin).parent / "plugins" / "value.so"
    assert path.is_file()
    return path


def run(berth_bin, *args, cases=(), code=0):
    lines = "".join((c if isinstance(c, str) else json.dumps(c)) + "\n" for c in cases)
    done = subprocess.run([berth_bin, *map(str, args)], input=lines, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done


def answers(berth_bin, *args, cases, code=0):
    return [json.loads(line) for line in run(berth_bin, "policy", "eval", *args, cases=cases, code=code).stdout.splitlines()]


def same(a, b):
    """Equal, and numbers to 1e-12."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
        return a == pytest.approx(b, rel=1e-12, abs=0)
    return a == b


def test_recorded_cases_come_out_equal(berth_bin, root, value):
    groups = {}
    with gzip.open(root / "tests" / "data" / "policy-value-cases.jsonl.gz", "rt") as f:
        for line in f:
            one = json.loads(line)
            groups.setdefault(json.dumps(one["settings"]), []).append(one)
    assert sum(map(len, groups.values())) == 3995
    wrong = []
    for settings, ones in groups.items():
        sets = [f"--set={name}={text}" for name, text in json.loads(settings).items()]
        got = answers(berth_bin, value, *sets, cases=[one["case"] for one in ones])
        wrong += [(g, one["expect"]) for g, one in zip(got, ones, strict=True) if not same(g, one["expect"])]
    assert not wrong, (len(wrong), wrong[0])


def test_a_bad_case_is_answered_and_the_run_goes_on(berth_bin):
    bad = json.loads(json.dumps(CASE))
    bad["snapshot"]["slots"][0]["turn_tokens"] = 8
    bad["id"] = {"any": [1.5, "é"]}
    got = answers(berth_bin, "builtin", cases=[CASE, "", bad, "no json", '{"id":1,"id":2}', "[]", CASE], code=1)
    assert got[0] == got[5] == {"id": 1, "ok": True, "slot": 9, "source": None, "reason": "new_blank", "loss": 0,
                                "tokens_lost": 0}
    assert got[1] == {"id": {"any": [1.5, "é"]}, "ok": False,
                      "error": "snapshot.slots[0].turn_tokens: 8 is above tokens, which is 7"}
    assert got[2]["id"] is None and got[2]["error"].startswith("line 4 column ")
    assert "duplicate" in got[3]["error"]
    assert got[4] == {"id": None, "ok": False, "error": "a list where a case, an object, is wanted"}
    err = run(berth_bin, "policy", "eval", "builtin", cases=["{}", CASE], code=1).stderr
    assert err == "berth: 1 of 2 cases were not answered\n"


def test_answers_come_as_the_cases_do(berth_bin):
    with subprocess.Popen([berth_bin, "policy", "eval", "builtin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        for i in range(3):
            p.stdin.write(json.dumps(dict(CASE, id=i)) + "\n")
            p.stdin.flush()
            assert json.loads(p.stdout.readline())["id"] == i
        p.stdin.close()
        assert p.wait(timeout=20) == 0


def test_a_reader_that_leaves_is_an_error_and_no_crash(berth_bin):
    p = subprocess.Popen([berth_bin, "policy", "eval", "builtin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, restore_signals=False)
    p.stdout.close()
    _, err = p.communicate(json.dumps(CASE) + "\n", timeout=20)
    assert p.returncode == 1
    assert "could not write to standard output" in err


@pytest.mark.parametrize("args,code,message", [
    (["policy"], 2, "usage: berth policy"),
    (["policy", "evl"], 2, "did you mean eval"),
    (["policy", "eval"], 2, "an argument is missing"),
    (["policy", "eval", "no-such.so"], 1, "no-such.so: No such file or directory"),
    (["policy", "eval", "builtin", "--set", "a=1"], 2, "--set a=1: the built-in policy has no settings"),
    (["policy", "eval", "builtin", "--set", "a"], 2, "--set a: NAME=VALUE is wanted"),
    (["bench", "policy", "no-such.so"], 1, "no-such.so: No such file or directory"),
    (["bench", "policy", "--slots", "0"], 2, "--slots: \"0\" is not a whole number 1..1024"),
    (["bench", "policy", "--set", "a=1"], 2, "--set a=1: the built-in policy has no settings"),
])
def test_mistakes_are_named(berth_bin, args, code, message):
    assert message in run(berth_bin, *args, code=code).stderr


def test_bad_settings_are_named(berth_bin, value):
    for text, message in [("ttl_max_s=-1", "ttl_max_s: -1 is outside 0..86400"), ("tll=1", "tll: unknown"),
                          ("ttl_max_s=nan", "ttl_max_s: "), ("ttl_max_s=", "ttl_max_s: ")]:
        done = run(berth_bin, "policy", "eval", value, "--set", text, code=2)
        assert message in done.stderr and "--set" in done.stderr


def test_a_file_that_is_no_policy_is_refused(berth_bin, root):
    assert "README.md: " in run(berth_bin, "policy", "eval", root / "README.md", code=1).stderr


def test_policies_are_listed_with_their_settings(berth_bin, value):
    text = run(berth_bin, "policy", "list", value.parent).stdout
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == ["builtin", "lru", "value"]
    assert "    ttl_max_s = 120 (0..86400 s) STRATA_SLOT_TTL_MAX_S\n" in text
    listed = {p["name"]: p for p in json.loads(run(berth_bin, "policy", "list", "--json").stdout)}
    assert set(listed) == {"builtin", "lru", "value"}, "those that lie beside the program"
    assert listed["value"]["path"] == str(value) and len(listed["value"]["digest"]) == 64
    share = listed["value"]["settings"][-1]
    assert share == {"name": "park_kept_share", "kind": "real", "default": "0.98", "min": 0.01, "max": 1.0, "unit": "",
                     "help": share["help"], "env": "STRATA_SLOT_PARK_KEPT_SHARE"}


def test_a_folder_of_any_name_is_listed(berth_bin, value, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    shutil.copy(value, folder)
    listed = {p["name"]: p for p in json.loads(run(berth_bin, "policy", "list", "--json", folder).stdout)}
    assert listed["value"]["path"] == f"{tmp_path}/caf?/value.so"


def test_what_cannot_be_loaded_is_named_and_the_rest_listed(berth_bin, value, tmp_path):
    folder = tmp_path / "with [odd] name"
    folder.mkdir()
    (folder / "broken.so").write_text("no object")
    (folder / "readme.txt").write_text("")
    (folder / "value.so").symlink_to(value)
    done = run(berth_bin, "policy", "list", folder, code=1)
    assert f"{folder}/broken.so: " in done.stderr and done.stderr.count("\n") == 1
    assert f"value 1  {folder}/value.so\n" in done.stdout
    assert "no-such: No such file" in run(berth_bin, "policy", "list", tmp_path / "no-such", code=1).stderr


@pytest.mark.parametrize("words", [["policy"], ["policy", "eval"], ["policy", "list"], ["bench", "policy"]])
def test_help(berth_bin, words):
    assert run(berth_bin, *words, "--help").stdout.startswith("usage: berth " + " ".join(words))


def test_help_names_every_field_of_a_case(berth_bin, root):
    text = run(berth_bin, "policy", "eval", "--help").stdout
    source = (root / "core" / "policy" / "case_read.c").read_text()
    known = re.findall(r'\{ "(\w+)", [A-Z0-9]+,', source)
    assert len(known) > 40
    assert not [name for name in known if f'"{name}"' not in text]
    assert max(map(len, text.splitlines())) <= 110


def test_bench_policy(berth_bin, value):
    got = json.loads(run(berth_bin, "bench", "policy", value, "--rounds", 2, "--ms", 1, "--json").stdout)
    assert got["slots"] == 64 and [p["policy"] for p in got["policies"]] == ["builtin", "value"]
    for p in got["policies"]:
        assert set(p["decisions_per_s"]) == {"place", "park_destination", "cache_state", "superseded_slots"}
        assert all(d["min"] > 0 and len(d["samples"]) == 2 for d in p["decisions_per_s"].values())
    text = run(berth_bin, "bench", "policy", "--rounds", 1, "--ms", 1, "--slots", 3).stdout
    assert "3 slots" in text and "ratio" not in text
