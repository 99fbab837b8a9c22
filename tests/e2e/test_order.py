"""Who goes next: many conversations on few slots, and a client with many beside a client with one."""
import statistics
import threading
import time

import pytest

from apikit import eventually, get, metrics
from histories_kit import SLOW, Request, Talk, Vocabulary, body_of

TURNS = 4
FIRST, SAID, HEARD = 1000, 40, 12  # tokens: of a conversation's first prompt, of what is said then, of each answer


@pytest.fixture(scope="module")
def quick_model(make_model):
    return make_model("--layers", 2, "--heads", 3, "--kv-heads", 1, "--embd", 96, "--ff", 192)


class Conversation(threading.Thread):
    """Asks again as soon as it is answered, `turns` times, or until `over` is set."""

    def __init__(self, server, vocabulary, seed, turns=TURNS, first=FIRST, said=SAID, who="127.0.0.1", over=None):
        super().__init__(daemon=True)
        self.server, self.turns, self.first, self.said, self.who, self.over = server, turns, first, said, who, over
        self.talk = Talk(vocabulary, seed)
        self.waits, self.answers, self.failure = [], [], None

    def run(self):
        try:
            while len(self.answers) < self.turns and not (self.over and self.over.is_set()):
                prompt = self.talk.say(self.said if self.answers else self.first).ids
                begin = time.monotonic()
                request = Request(self.server, body_of(self.talk.vocabulary, prompt, HEARD, {"stream": True, "logprobs": 0}),
                                  who=self.who)
                said, wait = [], None
                while (chunk := request.next()) is not None:
                    wait = wait or time.monotonic() - begin
                    for choice in chunk["choices"]:
                        said += (choice["logprobs"] or {}).get("tokens", [])
                self.waits.append(wait)
                self.answers.append(request.answer())
                self.talk.hear([self.talk.vocabulary.id_of[token] for token in said])
                assert len(said) == HEARD
        except Exception as e:  # told by the test
            self.failure = e


def run_all(conversations):
    for c in conversations:
        c.start()
    for c in conversations:
        c.join(120 * SLOW)
        assert c.failure is None and not c.is_alive(), c.failure


def crowd(start_server, model, order):
    """Sixteen conversations in a closed loop on eight slots, with memory for six of them at their full length. Two run at a time:
    with as many rows as slots nothing would be kept that does not run, since whoever has been answered loses the slot, or the
    memory, to one that waits before the next turn comes."""
    longest = FIRST + TURNS * (SAID + HEARD + 8)
    server = start_server({"engine.threads": 1, "engine.slots": 8, "engine.rows": 2, "engine.kv_tokens": 6 * longest,
                           "model.context": 2 * longest, "queue.order": order}, model=model)
    vocabulary = Vocabulary(model)
    everybody = [Conversation(server, vocabulary, 100 + i) for i in range(16)]
    run_all(everybody)
    later = [a for c in everybody for a in c.answers[1:]]
    waits = sorted(w for c in everybody for w in c.waits)
    reused = sum(a.cached >= a.prompt - SAID - HEARD - 8 for a in later) / len(later)
    read = sum(a.processed for c in everybody for a in c.answers)
    print(f"order {order}: {reused:.0%} of later turns reuse all that was kept; {read} tokens read; "
          f"first token p50 {statistics.median(waits):.3f} s, p95 {waits[int(len(waits) * 0.95)]:.3f} s")
    return reused, read


def test_what_the_order_is_worth_to_sixteen_conversations_on_eight_slots(start_server, quick_model):
    least, read = crowd(start_server, quick_model, "least")
    arrival, more = crowd(start_server, quick_model, "arrival")
    assert least > 0.5, "most turns reuse"
    assert arrival < least and read < 0.8 * more


def test_by_arrival_first_come_is_first_served(start_server, quick_model):
    """A long prompt that came first is read before a short one; by the least to read it is not."""
    vocabulary = Vocabulary(quick_model)
    order = {}
    for kind in ("least", "arrival"):
        server = start_server({"engine.threads": 1, "engine.slots": 2, "engine.rows": 1, "queue.order": kind}, model=quick_model)
        busy = Request(server, body_of(vocabulary, Talk(vocabulary, 1).say(20).ids, None, {"stream": True})).read(1)
        waiting = []
        for n in (500, 50):
            waiting.append(Request(server, body_of(vocabulary, Talk(vocabulary, n).say(n).ids, 2, {"stream": True})))
            eventually(lambda: metrics(server)["live"]["waiting"] == len(waiting))
        busy.leave()
        for request in waiting:
            request.answer()
        events = get(server, "/events?format=json").json()["events"]
        order[kind] = [e["job"] for e in events if e["kind"] == "place"]
    assert order == {"least": [1, 3, 2], "arrival": [1, 2, 3]}


def test_a_client_with_one_conversation_is_not_starved_by_one_with_thirty(start_server, quick_model):
    """Thirty short conversations always have less to read than the one of the other client, whose prompts are long."""
    server = start_server({"engine.threads": 1, "engine.slots": 8, "engine.rows": 2, "queue.max": 64}, model=quick_model)
    vocabulary, over = Vocabulary(quick_model), threading.Event()
    many = [Conversation(server, vocabulary, 200 + i, turns=10 ** 6, first=30, said=10, who="127.0.0.2", over=over) for i in range(30)]
    for c in many:
        c.start()
    eventually(lambda: sum(len(c.answers) for c in many) >= 30, 100 * SLOW)
    one = Conversation(server, vocabulary, 300, turns=3, first=600, said=200)
    one.start()
    one.join(100 * SLOW)
    over.set()
    for c in many:
        c.join(60 * SLOW)
        assert c.failure is None, c.failure
    assert one.failure is None and len(one.answers) == 3, one.failure
    reads = [a.processed / 1000 for a in one.answers]  # at a rate no machine is below
    print("waited, s:", *(f"{w:.2f}" for w in one.waits), "beside", sum(len(c.answers) for c in many), "turns of the other client")
    assert all(wait < 60 + 4 * read + 5 * SLOW for wait, read in zip(one.waits, reads))
