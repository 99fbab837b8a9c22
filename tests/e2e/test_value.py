"""The value policy at work in a running server: what Strata's operators count on, with short histories and settings scaled to them.

Every answer is compared with that of a server that reuses nothing, and what was reused is known to the token. Worth follows from
length alone here (no protection, no decay) unless a test is about age; histories of one length are worth the same.
"""
import os
import time
from pathlib import Path

import pytest

from apikit import eventually
from conftest import Server
from histories_kit import PATIENCE_S, Cold, House, Vocabulary

# What a history of so many tokens is worth, against what another one is: 400 tokens 1, 600 about 2.6, 2,000 about 27 times that.
BY_LENGTH = {"ttl_max_s": 0, "idle_value_zero_s": 0, "expired_keep_score": 1e-6, "park_min_value": 1e-6}

NOTHING = 3  # tokens that any two talks may share: they all begin with a turn


@pytest.fixture(scope="module")
def quick_model(make_model):
    return make_model("--layers", 2, "--heads", 3, "--kv-heads", 1, "--embd", 96, "--ff", 192)


@pytest.fixture(scope="module")
def cold(berth_bin, quick_model):
    server = Server(berth_bin, quick_model, {"engine.threads": 1})
    try:
        yield Cold(server.wait_ready(), Vocabulary(quick_model))
        server.stop()
    finally:
        server.kill()


@pytest.fixture
def house(start_server, quick_model, cold, root):
    """house(slots, {"ttl_max_s": 0}) -> a server with the value policy. It must be at peace at the test's end."""
    made = []
    policy = Path(os.environ.get("BERTH_BUILD", root / "build")) / "plugins/value.so"

    def make(slots, settings):
        settings = {f"policy.settings.{name}": value for name, value in settings.items()}
        settings |= {"engine.threads": 1, "engine.slots": slots, "policy.path": policy}
        made.append(House(start_server(settings, model=quick_model), cold))
        return made[-1]

    yield make
    for h in made:
        h.empty()


def parks(h):
    """(kind, slot, reason) of what became of the solo session's history each time it was replaced."""
    return [(e["kind"], e["slot"], e["reason"]) for e in h.events("park", "park_skip")]


def solo_age_s(h):
    return h.metrics()["live"]["solo_age_s"]


def stream_without_end(h, seed=900):
    """Somebody else is being answered from now on: other requests are placed in slots."""
    prompt = h.talk(seed).say(20).ids
    return h.start(prompt).read(1), prompt


def end_stream(h, stream, prompt):
    h.check_part(stream.read(stream.parts + 4), prompt, 64)
    stream.leave()


# Park


def test_a_park_keeps_the_last_use(house):
    h = house(3, BY_LENGTH)
    h.start(h.talk(10).say(1500).ids, 16).answer()
    used = time.monotonic()
    eventually(lambda: solo_age_s(h) > 0.5, PATIENCE_S)
    h.turn(h.talk(11), 100)
    assert parks(h) == [("park", 0, "parked")]
    since = time.monotonic() - used
    assert h.slots()[0]["age_s"] >= since  # renewed by the park it would be younger by all the waiting
    assert h.slots()[0]["turns"] == 1


def test_a_history_past_the_zero_age_is_not_parked(house):
    h = house(3, {**BY_LENGTH, "idle_value_zero_s": 0.5})
    a = h.talk(20)
    h.turn(a, 1500)
    eventually(lambda: solo_age_s(h) > 0.5, PATIENCE_S)
    h.turn(h.talk(21), 100)
    assert parks(h) == [("park_skip", None, "main_low_value")]  # though every slot is blank
    assert all(slot["state"] == "blank" for slot in h.slots())
    assert h.turn(a, 20).cached <= NOTHING


def test_without_decay_age_means_nothing(house):
    h = house(3, BY_LENGTH)
    a = h.talk(30)
    h.turn(a, 1500)
    eventually(lambda: solo_age_s(h) > 0.5, PATIENCE_S)
    h.turn(h.talk(31), 100)
    assert parks(h) == [("park", 0, "parked")]
    kept = a.kept
    assert h.turn(a, 20).cached == kept


def test_a_protected_history_is_parked_but_never_over_another(house):
    """ttl_max_s at its bound protects a thousand tokens for minutes."""
    h = house(1, {**BY_LENGTH, "ttl_max_s": 86400})
    small, large = h.talk(40), h.talk(41)
    h.turn(small, 600)
    h.turn(large, 2500)
    h.turn(h.talk(42), 50)
    assert parks(h) == [("park", 0, "parked"), ("park_skip", None, "no_destination")]
    assert h.slots()[0]["state"] == "protected"
    kept = small.kept
    assert h.turn(small, 20).cached == kept
    assert h.turn(large, 20).cached <= NOTHING


def fill(h, *lengths):
    """Conversations of these lengths, each parked by the next; the last one lies in the solo session."""
    talks = [h.talk(100 + i) for i in range(len(lengths))]
    for talk, n in zip(talks, lengths):
        h.turn(talk, n)
    assert parks(h) == [("park", i, "parked") for i in range(len(lengths) - 1)]
    return talks


def test_what_is_not_worth_twice_as_much_takes_no_kept_slot(house):
    h = house(2, BY_LENGTH)
    one, two, lost = fill(h, 1000, 1000, 1300)  # worth about 1.7 times as much
    h.turn(h.talk(50), 100)
    assert parks(h)[2:] == [("park_skip", None, "no_destination")]
    for talk in one, two:
        kept = talk.kept
        assert h.turn(talk, 20).cached == kept
    assert h.turn(lost, 20).cached <= NOTHING


@pytest.mark.parametrize("ratio, parked", [(2, True), (60, False), (0, False)])
def test_what_is_worth_more_takes_the_slot_of_least_value(house, ratio, parked):
    h = house(3, {**BY_LENGTH, "park_value_ratio": ratio})
    least = 1  # not the one used longest ago, nor the first
    talks = fill(h, 600, 400, 500, 2000)
    h.turn(h.talk(60), 100)
    assert parks(h)[3:] == [("park", least, "parked") if parked else ("park_skip", None, "no_destination")]
    lost = talks.pop(least if parked else 3)
    for talk in talks:
        kept = talk.kept
        assert h.turn(talk, 20).cached == kept
    assert h.turn(lost, 20).cached <= NOTHING


def test_an_older_copy_of_its_own_is_overwritten_first(house):
    h = house(3, BY_LENGTH)
    a = h.talk(70)
    h.turn(a, 1000)
    h.turn(h.talk(71), 500)
    assert parks(h) == [("park", 0, "parked")]
    kept = a.kept
    assert h.turn(a, 400).cached == kept  # read on in the solo session, which holds more than the copy now
    assert parks(h)[1:] == [("park", 1, "parked")]
    h.turn(h.talk(72), 60)
    assert parks(h)[2:] == [("park", 0, "own_copy")]  # slot 2 is empty still
    kept = a.kept
    assert h.turn(a, 20).cached == kept


@pytest.mark.parametrize("share, skipped", [(0.98, True), (1, False)])
def test_a_slot_that_holds_nearly_all_of_it_keeps_it_already(house, share, skipped):
    h = house(3, {**BY_LENGTH, "park_kept_share": share})
    a = h.talk(80)
    h.turn(a, 2000)
    copy = a.kept
    h.turn(h.talk(81), 500)
    h.turn(a, 5, n=4)  # less than a hundredth more
    assert copy > 0.98 * a.kept
    h.turn(h.talk(82), 60)
    assert parks(h)[2:] == [("park_skip", None, "already_kept") if skipped else ("park", 0, "own_copy")]
    kept = copy if skipped else a.kept
    assert h.turn(a, 20).cached == kept


# Place


def test_two_conversations_taking_turns_under_load_keep_their_slots(house):
    h = house(4, BY_LENGTH)
    a, b, c = h.talk(200), h.talk(201), h.talk(202)
    stream, prompt = stream_without_end(h)
    h.turn(a, 1500)
    slots = {}
    for _ in range(4):
        for talk, n in (b, 150), (c, 60):  # c's slot is always the one least missed
            kept = talk.kept
            answer = h.turn(talk, n)
            assert answer.cached == kept or not kept
            assert slots.setdefault(talk, answer.slot) == answer.slot
    assert len(set(slots.values())) == 2 and not h.events("overwrite")
    kept = a.kept
    assert h.turn(a, 20).cached == kept
    end_stream(h, stream, prompt)


def test_short_conversations_push_out_each_other_and_not_a_long_one(house):
    """One slot is left for two: they take it from each other, however long ago the long one was used."""
    h = house(3, BY_LENGTH)
    a, b, c = h.talk(210), h.talk(211), h.talk(212)
    stream, prompt = stream_without_end(h)
    h.turn(a, 2000)
    for _ in range(3):
        for talk in b, c:
            assert h.turn(talk, 100).cached <= NOTHING
    assert len(h.events("overwrite")) == 5 and {e["tokens"] < 1000 for e in h.events("overwrite")} == {True}
    kept = a.kept
    assert h.turn(a, 20).cached == kept
    end_stream(h, stream, prompt)
