"""Groups, stages and padded windows in a running server: they change where requests run and what is lost, never an answer.

Every answer is compared with that of a server that reuses nothing and has one stage and one group.
"""
import os
import random
import re
from pathlib import Path

import pytest

from conftest import Server
from histories_kit import Cold, Crowd, House, Vocabulary

# Every history of some hundred tokens is protected for a long time.
PROTECTED = {"ttl_max_s": 86400}
# None is, and each is worth keeping.
EXPIRED = {"ttl_max_s": 0.01, "expired_keep_score": 1e-6, "park_min_value": 1e-6}


@pytest.fixture(scope="module")
def deep_model(make_model):
    return make_model("--layers", 4, "--heads", 3, "--kv-heads", 1, "--embd", 96, "--ff", 192)


@pytest.fixture(scope="module")
def cold(berth_bin, deep_model):
    server = Server(berth_bin, deep_model, {"engine.threads": 1})
    try:
        yield Cold(server.wait_ready(), Vocabulary(deep_model))
        server.stop()
    finally:
        server.kill()


@pytest.fixture
def house(start_server, deep_model, cold, root):
    """house({"engine.groups": 2}, "value", {"ttl_max_s": 0}) -> a server of this test. It must be at peace at the test's end."""
    made = []
    plugins = Path(os.environ.get("BERTH_BUILD", root / "build")) / "plugins"

    def make(settings, policy=None, policy_settings={}, **kwargs):
        settings = {"engine.threads": 1, **settings}
        if policy:
            settings["policy.path"] = plugins / f"{policy}.so"
            settings |= {f"policy.settings.{name}": value for name, value in policy_settings.items()}
        made.append(House(start_server(settings, model=deep_model, **kwargs), cold))
        return made[-1]

    yield make
    for h in made:
        h.empty()


# The answers


@pytest.mark.parametrize("slots, stages, groups, windows", [
    (8, 1, 4, "active"), (8, 2, 2, "active"), (256, 3, 4, "active"), (8, 4, 1, "active"), (8, 1, 1, "padded"), (8, 2, 2, "padded"),
    (8, 3, 2, "padded")])
def test_a_crowd_is_answered_as_if_each_were_alone(house, slots, stages, groups, windows):
    h = house({"engine.slots": slots, "engine.stages": stages, "engine.groups": groups, "engine.windows": windows,
               "engine.kv_tokens": 4096, "model.context": 4096})
    rng = random.Random(stages * 10 + groups)
    crowd = Crowd(h)
    talks = [h.talk(30 + i) for i in range(6)]
    for turn in range(3):
        under_way = []
        for talk in talks:
            prompt, n = list(talk.say(rng.choice([10, 60, 300])).ids), rng.choice([8, 24])
            leave = 2 if rng.random() < 0.15 else None
            under_way.append((talk, prompt, n, crowd.begin(prompt, n, leave_after=leave)))
        for talk, prompt, n, item in under_way:
            crowd.end(item)
            talk.hear(h.cold(prompt, n)[0])
    if windows == "active":
        assert crowd.cached > crowd.prompt / 3


# What is told and refused


def engine(h):
    m = h.metrics()["engine"]
    return m["stages"], m["groups"], m["padding_safe"]


def test_groups_and_padding_are_told(house):
    assert engine(house({"engine.slots": 12, "engine.stages": 3})) == (3, 3, True)
    fewer = house({"engine.slots": 8, "engine.stages": 3})
    assert engine(fewer) == (3, 2, True)
    assert [s["group"] for s in fewer.slots()] == [0] * 4 + [1] * 4 == [s["group"] for s in fewer.metrics()["live"]["slots"]]
    devices = re.findall(r"info stage number=\d .*device=\"(.*)\"", fewer.server.log)
    device = fewer.metrics()["engine"]["device"]
    assert len(devices) == 3 and device == "; ".join(devices) and f'device="{device}"' in fewer.server.log
    assert re.search(r"warn groups groups=2 stages=3 slots=8 reason=", fewer.server.log)
    assert engine(house({"engine.slots": 8, "engine.groups": 4, "engine.windows": "padded"})) == (1, 4, False)


@pytest.mark.parametrize("where", ["process", "env"])
def test_strata_names_the_kind_of_windows(house, where):
    def safe(value, **settings):
        name = "STRATA_PIPELINE_ACTIVE_ROWS"
        if where == "env":
            h = house({f"env.{name}": value, **settings})
        else:
            h = house(settings, env={name: value})
        return h.metrics()["engine"]["padding_safe"]

    assert safe("0") is False
    assert safe("1") is True
    assert safe("0", **{"engine.windows": "padded"}) is False


def test_what_contradicts_is_refused(berth, deep_model):
    def said(*sets):
        result = berth("check", "--set", f"model.path={deep_model}", *[a for s in sets for a in ("--set", s)])
        assert result.returncode == 1
        return result.stderr

    name = "env.STRATA_PIPELINE_ACTIVE_ROWS"
    assert "STRATA_PIPELINE_ACTIVE_ROWS=0 asks for padded windows (env.STRATA_PIPELINE_ACTIVE_ROWS, --set), engine.windows for " \
        "active ones" in said(f"{name}=0", "engine.windows=active")
    assert "STRATA_PIPELINE_ACTIVE_ROWS=1 asks for active" in said(f"{name}=1", "engine.windows=padded")
    assert 'STRATA_PIPELINE_ACTIVE_ROWS: "yes" where 0 or 1' in said(f"{name}=yes")
    assert "padded windows have a row for each slot of a group, at most 256; engine.slots is 512, engine.groups 1" in said(
        "engine.windows=padded", "engine.slots=512")


# Padding and the policy


@pytest.mark.parametrize("policy, windows, slot, kept", [
    ("value", "active", 1, True), ("value", "padded", 4, True), ("lru", "padded", 1, False)])
def test_the_value_policy_starts_nobody_where_a_padded_window_would_destroy_a_conversation(house, policy, windows, slot, kept):
    """Group 0 is the idle one, and slot 0 holds a protected conversation. Group 1 is busy."""
    h = house({"engine.slots": 6, "engine.groups": 2, "engine.windows": windows}, policy, PROTECTED if policy == "value" else {})
    talk = h.talk(50)
    h.turn(talk, 300, id_slot=0)
    prompt = h.talk(51).say(20).ids
    stream = h.start(prompt, id_slot=3).read(1)
    assert h.turn(h.talk(52), 40).slot == slot
    pads = [(e["slot"], e["tokens"]) for e in h.events("pad")]
    assert pads == ([] if kept else [(0, talk.kept)])
    was = talk.kept
    answer = h.turn(talk, 20)
    assert answer.cached == was if kept else answer.cached <= 3
    h.check_part(stream.read(stream.parts + 4), prompt, 64)
    stream.leave()


def test_what_a_padded_window_destroyed_is_blank(house):
    h = house({"engine.slots": 4, "engine.windows": "padded"})
    talk = h.talk(60)
    h.turn(talk, 100, id_slot=1)
    h.turn(h.talk(61), 30, id_slot=3)
    slot = h.slots()[1]
    assert slot["state"] == "blank", slot
    events = h.events("pad")
    assert [(e["slot"], e["tokens"], e["reason"]) for e in events] == [(1, talk.kept, "padded")]
    assert h.turn(talk, 10).cached <= 3
    assert h.metrics()["misses"]["slot_taken"]["prompts"] == 1


# Conversations in groups


@pytest.mark.parametrize("policy, settings", [("value", PROTECTED), ("value", EXPIRED), ("lru", {}), (None, {})])
def test_two_idle_conversations_in_two_groups_are_never_swapped(house, policy, settings):
    """The load is in the one group and in the other by turns; each conversation goes on where it lies. No slot is blank."""
    h = house({"engine.slots": 4, "engine.groups": 2}, policy, settings)
    talks = {0: h.talk(70), 2: h.talk(71)}
    for slot, talk in talks.items():
        h.turn(talk, 200, id_slot=slot)
        h.turn(h.talk(75 + slot), 100, id_slot=slot + 1)
    for turn in range(6):
        prompt = h.talk(80 + turn).say(20).ids
        load = h.start(prompt, id_slot=1 if turn % 2 else 3).read(1)
        for slot, talk in talks.items():
            was = talk.kept
            answer = h.turn(talk, 15)
            assert (answer.slot, answer.cached) == (slot, was)
        h.check_part(load.read(load.parts + 2), prompt, 64)
        load.leave()
        h.settle()


def test_two_conversations_taking_turns_past_their_protection_keep_all_but_what_is_new(house):
    """Two clients generate, one in each group; B and C come back by turns, long after their protection has ended."""
    h = house({"engine.slots": 4, "engine.groups": 2}, "value", EXPIRED)
    prompts = [h.talk(90 + i).say(20).ids for i in range(2)]
    streams = [h.start(prompt, who=f"127.0.0.{2 + i}").read(1) for i, prompt in enumerate(prompts)]
    b, c = h.talk(92), h.talk(93)
    read = []
    for turn in range(6):
        for talk in (b, c):
            was, length = talk.kept, len(talk.ids)
            answer = h.turn(talk, 400 if not turn else 30)
            if turn:
                assert answer.cached == was
                read.append((answer.prompt, answer.processed))
                assert answer.processed == answer.prompt - length + 1  # what was said, and the last token of the answer before
    print("B and C by turns: prompt tokens, tokens read:", *read)
    for stream, prompt in zip(streams, prompts):
        h.check_part(stream.read(stream.parts + 2), prompt, 64)
        stream.leave()
    assert {e["slot"] for e in h.events("place", "continue", "promote")} - {"main"} == {0, 1, 2, 3}
