"""GET /placements/{id}: why a request ran where it did. And each reason of a miss, from the outside."""
import pytest

from apikit import error_of, eventually, get, idle, metrics, post
from histories_kit import Cold, House, Vocabulary, system_prompt

CHATML_SLOTS = {"engine.threads": 1, "engine.rows": 1, "model.context": 2048}


@pytest.fixture(scope="module")
def vocabulary(synthetic_model):
    return Vocabulary(synthetic_model)


@pytest.fixture
def open_house(start_server, vocabulary):
    """open_house({"engine.slots": 2}) -> House of a server of this test alone, that is compared with itself."""
    def start(settings=None):
        server = start_server({**CHATML_SLOTS, **(settings or {})})
        return House(server, Cold(server, vocabulary))

    return start


class Watcher:
    """Turns of talks, each with the reason why it missed: None for one that did not."""

    def __init__(self, house):
        self.house = house

    def turn(self, talk, said=60, heard=12):
        before = metrics(self.house.server)["misses"]
        prompt = list(talk.say(said).ids)
        answer = self.house.start(prompt, heard, stream=False, logprobs=0).answer()
        talk.hear([self.house.vocabulary.id_of[t] for t in answer.logprobs["tokens"]])
        after = metrics(self.house.server)["misses"]
        grown = {k: tuple(after[k][f] - before[k][f] for f in ("prompts", "tokens")) for k in after}
        grown = {k: v for k, v in grown.items() if v != (0, 0)}
        assert len(grown) <= 1, grown
        self.answer = answer
        for reason, (prompts, tokens) in grown.items():
            assert prompts == 1
            self.tokens = tokens
            return reason
        return None


def test_first_turn_and_resumed(open_house):
    house = open_house()
    watcher, talk = Watcher(house), house.talk(1)
    assert watcher.turn(talk) == "first_turn" and watcher.tokens == watcher.answer.prompt
    assert watcher.turn(talk) is None and watcher.answer.cached > 0
    # The same beginning, another conversation: what it shares is reused, and it is a first turn all the same.
    system = system_prompt(house.vocabulary, 5, 130)
    assert watcher.turn(house.talk(2, system)) == "first_turn"
    assert watcher.turn(house.talk(3, system)) == "first_turn"
    assert watcher.answer.cached >= 128 and watcher.tokens == watcher.answer.prompt - watcher.answer.cached
    assert metrics(house.server)["totals"]["resumed"] == 1


def test_slot_taken(open_house):
    house = open_house({"engine.slots": 1})
    watcher, talks = Watcher(house), [house.talk(k) for k in range(4)]
    for talk in talks:
        assert watcher.turn(talk, 100) == "first_turn"
    # Main has the last, the one slot the one before, which was parked over the others.
    assert watcher.turn(talks[0]) == "slot_taken"
    assert watcher.answer.cached <= 1 and watcher.tokens >= 100


def test_replaced_on_main(open_house):
    house = open_house({"engine.slots": 1})
    watcher, first, second = Watcher(house), house.talk(1), house.talk(2)
    assert watcher.turn(first) == "first_turn"
    assert watcher.turn(second, 100) == "first_turn"  # on main; the first is parked in the one slot
    assert watcher.turn(first) is None  # from there to main: no slot is left for what was there
    assert house.events("park_skip")[-1]["tokens"] == second.kept
    assert watcher.turn(second, 50) == "replaced_on_main"
    assert watcher.tokens >= 100


def test_client_changed_history(open_house):
    house = open_house()
    watcher, talk = Watcher(house), house.talk(1)
    watcher.turn(talk)
    watcher.turn(talk)
    changed = talk.copy(7)
    at = changed.ids.index(house.vocabulary.turn, 1)  # what the model said first is told differently
    changed.ids[at + 6] = next(w for w in changed.words if w != changed.ids[at + 6])
    assert watcher.turn(changed) == "client_changed_history"
    assert watcher.tokens == watcher.answer.prompt - watcher.answer.cached


def test_evicted_memory(open_house):
    house = open_house({"engine.slots": 4, "engine.kv_tokens": 2048, "model.context": 1900})
    watcher, talk = Watcher(house), house.talk(1)
    watcher.turn(talk, 700)
    assert watcher.turn(house.talk(2), 1500) == "first_turn"  # takes the memory of the first
    assert [e for e in house.events("evict")]
    assert watcher.turn(talk, 30) == "evicted_memory"
    assert watcher.tokens + watcher.answer.cached <= talk.kept and watcher.tokens > 0


def test_restart(open_house):
    house, talk = open_house(), None
    talk = house.talk(1)
    Watcher(house).turn(talk)
    Watcher(house).turn(talk)
    other = open_house()  # another process: nothing of it is known there
    watcher = Watcher(other)
    assert watcher.turn(talk) == "restart" and watcher.tokens == watcher.answer.prompt


def test_messages_tell_whether_it_is_a_first_turn(start_server):
    server = start_server()
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
            "max_tokens": 1}
    post(server, "/v1/chat/completions", body)
    m = metrics(server)["misses"]
    assert m["restart"]["prompts"] == 1 and m["first_turn"]["prompts"] == 0
    users = [{"role": "user", "content": f"only me {k}"} for k in range(6)]
    post(server, "/v1/chat/completions", {"messages": users, "max_tokens": 1})
    assert metrics(server)["misses"]["first_turn"]["prompts"] == 1


def placed(server, name):
    reply = get(server, f"/placements/{name}")
    assert reply.status_code == 200, reply.text
    return reply.json()["requests"]


def test_why_a_request_ran_where_it_did(start_server):
    server = start_server({"engine.slots": 4})
    headers = {"X-Request-Id": "the-first.1"}
    post(server, "/v1/completions", {"prompt": list(range(5, 90)), "max_tokens": 2}, headers=headers)
    post(server, "/v1/completions", {"prompt": list(range(100, 200)), "max_tokens": 2, "temperature": 0},
         headers={"X-Request-Id": "second"})
    (first,) = placed(server, "the-first.1")
    assert first["request"] == "the-first.1" and first["prompt_tokens"] == 85 and first["miss"] == "first_turn"
    (alone,) = first["decisions"]
    assert alone["slot"] == "main" and alone["policy"] is None and "main" in alone["sentence"]
    (second,) = placed(server, "second")
    park, alone = second["decisions"]
    assert park["kind"] == "park" and park["slot"] == 0 and park["source"] == "main" and park["policy"] == "builtin"
    assert park["reason"] and park["sentence"] and park["generation"] >= 1
    assert [row["slot"] for row in park["table"]] == [0, 1, 2, 3, "main"]
    assert park["table"][4]["tokens"] == 86 and park["table"][0]["state"] == "blank" and park["table"][0]["tokens"] == 0
    assert alone["table"][0]["tokens"] == 86
    assert placed(server, str(second["job"])) == [second]
    event = get(server, "/events?format=json").json()["events"][-1]
    assert event["request"] == "second" and event["job"] == second["job"]


def test_a_policy_s_choice_with_the_losses_of_the_others(start_server):
    server = start_server({"engine.slots": 4})
    streams = [post(server, "/v1/completions", {"prompt": list(range(5 + k, 60 + k)), "max_tokens": 3000, "stream": True},
                    headers={"X-Request-Id": f"r{k}"}, stream=True) for k in range(2)]
    eventually(lambda: metrics(server)["live"]["running"] == 2)
    (second,) = placed(server, "r1")
    for reply in streams:
        reply.close()
    choice = next(d for d in second["decisions"] if d["kind"] in ("place", "continue"))
    assert choice["policy"] == "builtin" and choice["loss"] == 0 and choice["tokens_lost"] == 0 and not choice["by_builtin"]
    row = {r["slot"]: r for r in choice["table"]}
    assert row[choice["slot"]]["loss"] == 0 and row["main"]["loss"] is None
    assert any(r["state"] == "busy" and r["loss"] is None for r in choice["table"])
    promoted = placed(server, "r0")[0]["decisions"]
    assert [d["kind"] for d in promoted][:2] == ["place", "promote"]


def test_each_choice_of_a_request_is_found_by_its_id(server):
    post(server, "/v1/completions", {"prompt": [[7, 8, 9], [9, 8, 7], [1, 2, 3]], "max_tokens": 1}, headers={"X-Request-Id": "three"})
    found = placed(server, "three")
    assert len(found) == 3 and len({r["job"] for r in found}) == 3


def test_who_is_not_known(server):
    for name in ("nobody", "0", "99999999999", "a" * 300, "%00", "x%2Fy", "1%20"):
        error = error_of(get(server, f"/placements/{name}"), 404)
        assert "500" in error["message"]
    assert error_of(get(server, "/placements/"), 404)
