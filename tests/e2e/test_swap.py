"""Policies exchanged under a running server: files that change under it, streams beside it, and what must stay."""
import hashlib
import os
import re
import signal
import threading
import time

import pytest

from apikit import chat, eventually, get, idle, metrics, text_of, user
from histories_kit import SLOW
from reload_kit import Conf, Crowd, descriptors, large_memory, mappings, outcomes, put_file


@pytest.fixture(scope="session")
def policies(berth_bin):
    folder = berth_bin.parent / "plugins"
    assert (folder / "value.so").is_file(), f"{folder}/value.so is not there: make build"
    return folder


@pytest.fixture(scope="session")
def value(policies):
    return (policies / "value.so").read_bytes()


@pytest.fixture(scope="session")
def lru(policies):
    return (policies / "lru.so").read_bytes()


@pytest.fixture
def conf(tmp_path, start_server):
    return Conf(tmp_path / "berth.json", start_server)


@pytest.fixture
def on_value(conf, tmp_path, value):
    """A server that runs with a copy of the value policy at `p.so`."""
    (tmp_path / "p.so").write_bytes(value)
    conf.set(policy__path="p.so").start()
    return conf


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def in_use(conf):
    policy = conf.policy()
    return policy["name"], policy["generation"], policy["digest"]


# ---- files that change


def test_a_file_rebuilt_at_the_same_path_is_picked_up_every_time(on_value, tmp_path, value, lru):
    path = tmp_path / "p.so"
    assert in_use(on_value) == ("value", 1, sha256(value))
    for generation, (name, data) in enumerate([("lru", lru), ("value", value + b"\0"), ("value", value + b"\0\0"),
                                               ("lru", lru + b"!")], 2):
        put_file(path, data)
        on_value.reload()
        assert in_use(on_value) == (name, generation, sha256(data))
        chat(on_value.server, max_tokens=2)
        assert metrics(on_value.server)["policy"]["name"] == name


def test_the_same_file_again_is_a_new_instance(on_value, value):
    for generation in (2, 3):
        assert f"policy=value/{generation} " in on_value.hangup()
        assert in_use(on_value) == ("value", generation, sha256(value))


def test_a_symlink_is_followed_anew(conf, tmp_path, policies, value, lru):
    link = tmp_path / "current.so"
    link.symlink_to(policies / "value.so")
    conf.set(policy__path="current.so").start()
    for generation, (name, data) in enumerate([("lru", lru), ("value", value)], 2):
        link.unlink()
        link.symlink_to(policies / f"{name}.so")
        conf.reload()
        assert in_use(conf) == (name, generation, sha256(data))


def test_a_file_overwritten_in_place_changes_nothing_until_a_reload(on_value, tmp_path, value, lru):
    path = tmp_path / "p.so"
    with Crowd(on_value.server, 2):
        with open(path, "r+b") as f:  # the same inode
            f.write(b"\xcc" * len(value))
            f.truncate()
        for _ in range(3):
            chat(on_value.server, max_tokens=2)
        assert "not an ELF file" in on_value.refused()
        with open(path, "r+b") as f:
            f.truncate(0)
        chat(on_value.server, max_tokens=2)
        assert on_value.refused()
        assert in_use(on_value) == ("value", 1, sha256(value))
        with open(path, "r+b") as f:
            f.write(lru)
        on_value.reload()
        assert in_use(on_value) == ("lru", 2, sha256(lru))


def test_a_file_deleted_while_it_serves_goes_on_serving(on_value, tmp_path, value, lru):
    (tmp_path / "p.so").unlink()
    chat(on_value.server, max_tokens=2)
    message = on_value.refused()
    assert "policy.path: " in message and "p.so: No such file" in message and "kept: value/1" in message
    assert in_use(on_value) == ("value", 1, sha256(value))
    put_file(tmp_path / "p.so", lru)
    on_value.reload()
    assert in_use(on_value) == ("lru", 2, sha256(lru))


def test_a_copy_in_progress_is_refused_until_it_is_whole(on_value, tmp_path, value, lru):
    path = tmp_path / "p.so"
    for part in (0, 1, 63, 64, 1000, len(lru) // 2, len(lru) - 1):
        path.write_bytes(lru[:part])
        line = on_value.hangup()
        if "state=failed" in line:
            assert "kept=value/1" in line
        else:  # what is missing is nothing that is loaded: section names and the like
            assert part > len(lru) // 2
            path.write_bytes(value)
            on_value.reload()
            break
        chat(on_value.server, max_tokens=2)
    path.write_bytes(lru)
    assert re.search("state=done policy=lru/[24] ", on_value.hangup())


def test_reloads_beside_a_copy_find_a_whole_policy_or_keep_the_old_one(on_value, tmp_path, value, lru):
    path, done = tmp_path / "p.so", threading.Event()

    def copy():
        with open(path, "wb") as f:
            for at in range(0, len(lru), 512):
                f.write(lru[at:at + 512])
                f.flush()
                os.sched_yield()
        done.set()

    copier = threading.Thread(target=copy)
    copier.start()
    while not done.is_set():
        on_value.hangup()
    copier.join()
    on_value.reload()
    assert in_use(on_value)[::2] == ("lru", sha256(lru))
    # Whole is also one that lacks only what is never loaded, at its end.
    whole = "|".join(sha256(data)[:16] for data in [value, *(lru[:n] for n in range(0, len(lru) + 512, 512))])
    for line in outcomes(on_value.server):
        assert re.search(rf"state=(failed .*kept=(value|lru)/\d+$|done .* digest=({whole}) )", line), line


def test_a_pipe_or_a_folder_in_place_of_the_file_holds_nobody_up(on_value, tmp_path):
    path = tmp_path / "p.so"
    path.unlink()
    os.mkfifo(path)
    assert "kept: value/1" in on_value.refused()
    path.unlink()
    path.mkdir()
    assert "kept: value/1" in on_value.refused()


# ---- settings


BAD_SETTINGS = [
    ({"ttl_max_s": "soon"}, r'ttl_max_s: "soon" is not a number 0\.\.86400'),
    ({"ttl_max_s": "nan"}, r'ttl_max_s: "nan" is not a number 0\.\.86400'),
    ({"ttl_max_s": "inf"}, r"ttl_max_s: inf is outside 0\.\.86400 s"),
    ({"ttl_max_s": -1}, r"ttl_max_s: -1 is outside 0\.\.86400 s"),
    ({"ttl_max_s": 1e9}, r"ttl_max_s: 1000000000 is outside 0\.\.86400 s"),
    ({"ttl_max_s": ""}, r'ttl_max_s: "" is not a number'),
    ({"ttl_max_s": True}, r'ttl_max_s: "true" is not a number'),
    ({"park_kept_share": 0}, r"park_kept_share: 0 is outside 0\.01"),
    ({"ttl_maxs": 5}, r"ttl_maxs: unknown .*; value has ttl_max_s, "),
    ({"ttl_max_s": 5, "STRATA_SLOT_TTL_MAX_S": 5}, r"ttl_max_s: given twice \(.*ttl_max_s, .*; .*STRATA_SLOT_TTL_MAX_S, "),
]


@pytest.mark.parametrize("settings, reason", BAD_SETTINGS)
def test_bad_settings_are_refused_at_a_reload(on_value, settings, reason, value):
    on_value.set(policy__settings=settings)
    message = on_value.refused()
    assert re.search(reason, message), message
    assert "policy.settings." in message and "berth.json line " in message, message
    assert in_use(on_value) == ("value", 1, sha256(value))


def test_settings_take_effect_and_say_where_they_came_from(on_value):
    on_value.set(policy__settings={"ttl_max_s": 60, "park_value_ratio": 0.5},
                 env={"STRATA_SLOT_TTL_MAX_S": "7", "STRATA_SLOT_IDLE_VALUE_ZERO_S": "900"})
    on_value.reload()
    settings = on_value.policy()["settings"]
    assert settings["ttl_max_s"]["value"] == "60" and "policy.settings.ttl_max_s" in settings["ttl_max_s"]["origin"]
    assert settings["park_value_ratio"]["value"] == "0.5"
    assert settings["idle_value_zero_s"]["value"] == "900"
    assert re.search(r"env\.STRATA_SLOT_IDLE_VALUE_ZERO_S, .*berth\.json line \d+", settings["idle_value_zero_s"]["origin"])
    assert settings["expired_keep_score"] == {"value": "0.01", "origin": "default"}
    chat(on_value.server, "A story of the sea, as long as it is told " * 20, max_tokens=2)
    eventually(lambda: idle(on_value.server))
    ttl = max(slot["ttl_s"] for slot in get(on_value.server, "/slots").json())
    on_value.set(policy__settings={"ttl_max_s": 120})
    on_value.reload()
    eventually(lambda: max(slot["ttl_s"] for slot in get(on_value.server, "/slots").json()) == pytest.approx(2 * ttl))


def test_the_environment_of_another_policy_is_told_once_and_keeps_nobody_out(conf, policies):
    conf.set(policy__path=str(policies / "value.so"), env={"STRATA_SLOT_PARK_VALUE_RATIO": "2"})
    conf.start(env={"STRATA_SLOT_TTL_MAX_S": "30"})
    assert conf.policy()["settings"]["ttl_max_s"] == {"value": "30", "origin": "environment STRATA_SLOT_TTL_MAX_S"}
    assert "state=unused" not in conf.server.log
    conf.set(policy__path=str(policies / "lru.so"))
    conf.reload()
    conf.server.wait_log(r'warn policy state=unused names="STRATA_SLOT_PARK_VALUE_RATIO,STRATA_SLOT_TTL_MAX_S"')
    conf.set(policy__path=str(policies / "value.so"))
    conf.reload()
    assert conf.server.log.count("state=unused") == 1


def test_the_switch_of_the_environment_chooses_the_policy(conf, value):
    conf.set(env={"STRATA_SLOT_CACHE_AFFINITY": "0"}).start(env={"STRATA_SLOT_CACHE_AFFINITY": "1"})
    assert in_use(conf)[0] == "builtin"
    conf.drop("env")
    conf.reload()
    assert in_use(conf) == ("value", 2, sha256(value))
    conf.set(env={"STRATA_SLOT_CACHE_AFFINITY": "0"})
    conf.reload()
    assert in_use(conf) == ("builtin", 3, "")


# ---- shadows and the trace


def test_shadows_are_exchanged_and_their_counts_begin_anew(on_value, policies, lru):
    on_value.set(policy__shadow=[{"path": str(policies / "lru.so")},
                                 {"path": str(policies / "value.so"), "settings": {"ttl_max_s": 0}}])
    on_value.reload()
    with Crowd(on_value.server, 2, tokens=10):  # a request that is alone has its place without a question
        eventually(lambda: all(s["asked"]["place"] for s in on_value.policy()["shadows"]))
    shadows = on_value.policy()["shadows"]
    assert [s["name"] for s in shadows] == ["lru", "value"] and shadows[0]["digest"] == sha256(lru)
    on_value.set(policy__shadow=[{"path": str(policies / "lru.so"), "settings": {"nothing": 1}}])
    assert re.search(r"policy\.shadow: item 1: .*lru\.so: nothing: unknown", on_value.refused())
    assert len(on_value.policy()["shadows"]) == 2
    on_value.set(policy__shadow=[{"path": str(policies / "lru.so")}])
    on_value.reload()
    assert [s["asked"]["place"] for s in on_value.policy()["shadows"]] == [0]
    on_value.set(policy__shadow=[])
    on_value.reload()
    assert on_value.policy()["shadows"] == []


def test_a_trace_that_was_moved_away_is_begun_anew(on_value, tmp_path):
    trace = tmp_path / "trace.jsonl"
    on_value.set(trace__path="trace.jsonl")
    on_value.reload()
    with Crowd(on_value.server, 2, tokens=10):
        eventually(lambda: "place" in trace.read_text())
        trace.rename(tmp_path / "old.jsonl")
        on_value.reload()
        before = (tmp_path / "old.jsonl").read_text()
        eventually(lambda: "place" in trace.read_text())
    assert (tmp_path / "old.jsonl").read_text() == before
    on_value.drop("trace")
    on_value.reload()
    assert on_value.policy()["trace"]["on"] is False


# ---- beside requests


def test_a_storm_of_hangups_becomes_a_few_reloads(on_value):
    server = on_value.server
    with Crowd(server, 6):
        on_value.reload()
        before = on_value.policy()["reloads"]
        on_value.set(policy__settings={"ttl_max_s": 77})
        for _ in range(100):
            server.signal(signal.SIGHUP)
        eventually(lambda: on_value.policy()["settings"]["ttl_max_s"]["value"] == "77")
        outcome = on_value.reload()
    n = on_value.policy()["reloads"] - before
    assert 2 <= n <= 50 and outcome["generation"] == 2 + n
    assert all("state=done" in line for line in outcomes(server))


def settles(look, wanted, seconds=10):
    """The old policies are destroyed by the loader, a little after the last one who asked them let go."""
    until = time.monotonic() + seconds
    while look() != wanted and time.monotonic() < until:
        time.sleep(0.02)
    assert look() == wanted


def test_every_request_for_a_reload_gets_the_outcome_of_one_that_began_after_it(on_value):
    """Others ask all the time, so that most come while a reload is under way."""
    server, stop, replies = on_value.server, threading.Event(), []

    def ask():
        while not stop.is_set():
            server.signal(signal.SIGHUP)
            replies.append(on_value.post_reload().json()["generation"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for ttl in range(1, 11):
            on_value.set(policy__settings={"ttl_max_s": ttl})
            on_value.reload()
            assert on_value.policy()["settings"]["ttl_max_s"]["value"] == str(ttl)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert on_value.reload()["generation"] == on_value.policy()["reloads"] + 1 > max(replies)


def swap_many_times(conf, tmp_path, n, value, lru):
    """n swaps between value, lru and one that is broken, with six streams running; what must stay is checked."""
    server, path = conf.server, tmp_path / "p.so"
    # So short a conversation is worth nothing to the value policy, otherwise; the lru policy does not mind the names.
    conf.set(env={"STRATA_SLOT_PARK_MIN_VALUE": "0", "STRATA_SLOT_EXPIRED_KEEP_SCORE": "0"})
    conf.reload()
    fields = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    talk = user("Remember the lighthouse, the gulls, the rocks and the long way home " * 4)
    first = chat(server, messages=talk, **fields)
    talk += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "And then?"}]
    crowd = Crowd(server, 6)
    for data in (lru, value):
        put_file(path, data)
        conf.reload()
    eventually(lambda: idle(server))
    settles(lambda: sum("berth-policy" in name for name in descriptors(server.pid)), 1)
    fds, maps = descriptors(server.pid), mappings(server.pid)
    # A sanitizer has memory of its own, which comes and goes.
    memory = large_memory(server.pid) if SLOW == 1 else set()
    kinds = [("value", value), ("broken", value[:len(value) // 3]), ("lru", lru)]
    generation = conf.policy()["generation"]
    with crowd:
        for i in range(n):
            name, data = kinds[i % 3]
            put_file(path, data)
            if name == "broken":
                assert f"(kept: value/{generation} " in conf.refused()
            else:
                generation += 1
                outcome = conf.reload()
                assert (outcome["policy"], outcome["generation"], outcome["digest"]) == (name, generation, sha256(data))
    put_file(path, value)
    conf.reload()
    eventually(lambda: idle(server))
    server.check_alive()
    assert not memory - large_memory(server.pid), "the model or what it remembers was moved"
    settles(lambda: descriptors(server.pid), fds)
    settles(lambda: mappings(server.pid), maps)
    second = chat(server, messages=talk, **fields)
    # The reply's own end is the template's to write again.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 2
    policy = metrics(server)["policy"]
    assert policy["reload_failures"] == n // 3 + (n % 3 > 1) and policy["generation"] == generation + 1
    assert crowd.rounds and sum(crowd.rounds) >= 6


def test_swaps_lose_nothing(on_value, tmp_path, value, lru):
    swap_many_times(on_value, tmp_path, 60, value, lru)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_swaps_lose_nothing(on_value, tmp_path, value, lru):
    swap_many_times(on_value, tmp_path, 1000, value, lru)


@pytest.mark.tsan
def test_a_few_swaps_beside_streams(on_value, tmp_path, value, lru):
    with Crowd(on_value.server, 3, tokens=30):
        for data in (lru, value, value[:100], lru, value):
            put_file(tmp_path / "p.so", data)
            on_value.hangup()


def children(pid):
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children") as f:
            found += f.read().split()
    return found


def test_a_policy_that_hangs_when_it_is_tried_does_not_hold_up_the_end(on_value, berth_bin):
    on_value.set(policy__path=str(berth_bin.parent / "tests" / "abi" / "odd_create_hangs.so"), policy__probe_s=600)
    on_value.server.signal(signal.SIGHUP)
    probe, = eventually(lambda: children(on_value.server.pid))
    on_value.server.signal(signal.SIGTERM)
    assert on_value.server.wait(4 * SLOW) == 0
    assert "reload state=failed" in on_value.server.log and "given up" in on_value.server.log
    assert not os.path.exists(f"/proc/{probe}"), "it was left behind"


def test_a_reload_under_way_does_not_hold_up_the_end(on_value):
    on_value.server.signal(signal.SIGHUP)
    on_value.server.signal(signal.SIGTERM)
    assert on_value.server.wait() == 0
