"""Who may reuse whose prefixes: an outsider tries to see another one's prompts through what is reused of them."""
import hashlib

import pytest

from apikit import error_of, get, post

KEYS = {"ann": "key-of-ann", "bob": "key-of-bob", "root": "key-of-root"}
SECRET = "the launch code of the red submarine is four seven one one, and the captain knows it by heart " * 4


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("".join(f"{name}:{hashlib.sha256(key.encode()).hexdigest()}{':admin' if name == 'root' else ''}\n"
                            for name, key in KEYS.items()))
    return path


@pytest.fixture
def serve(start_server, keys_file):
    """serve("key") -> a server with keys."""
    def start(isolation=None, keys=True, **settings):
        return start_server({"engine.threads": 1, "engine.slots": 4, "cache.isolation": isolation,
                             "server.keys_file": keys_file if keys else None, **settings})
    return start


class Asker:
    def __init__(self, server, who=None):
        self.server, self.headers = server, {"Authorization": f"Bearer {KEYS[who]}"} if who else {}

    def ask(self, prompt, path="/v1/completions", **fields):
        body = {"prompt": prompt} if path.endswith("completions") else {}
        body = {**body, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **fields}
        reply = post(self.server, path, body, headers=self.headers)
        assert reply.status_code == 200, reply.text
        return reply

    def cached(self, prompt, **fields):
        return self.ask(prompt, **fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def beside(server, who=None):
    """Somebody generates from now on, so that requests run in slots and not in the solo session."""
    headers = {"Authorization": f"Bearer {KEYS[who]}"} if who else {}
    reply = post(server, "/v1/completions", {"prompt": "Once", "stream": True, "ignore_eos": True}, headers=headers, stream=True)
    next(reply.iter_lines())
    return reply


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("isolation, shares", [(None, False), ("key", False), ("shared", True)])
def test_a_key_sees_nothing_of_anothers_prompts(serve, isolation, shares, alone):
    server = serve(isolation)
    ann, bob = Asker(server, "ann"), Asker(server, "bob")
    stream = None if alone else beside(server, "root")
    assert ann.cached(SECRET) <= 1
    guess = bob.cached(SECRET[:-20] + "?")
    assert (guess > 50) == shares and (shares or guess == 0), guess
    assert ann.cached(SECRET + " Indeed.") > 50, "what is hers she finds again"
    assert bob.cached(SECRET[:-20] + "!") > 50, "and he finds what he guessed"
    if stream:
        stream.close()


def test_without_keys_all_share_unless_a_salt_says_otherwise(serve):
    server = serve(keys=False)
    one = Asker(server)
    assert one.cached(SECRET) <= 1
    assert one.cached(SECRET + "a") > 50
    assert one.cached(SECRET + "b", cache_salt="mine") == 0
    assert one.cached(SECRET + "c", cache_salt="mine") > 50
    assert one.cached(SECRET + "d", cache_salt="yours") == 0
    assert one.cached(SECRET + "e") > 50


def test_the_same_salt_of_two_keys_is_not_the_same(serve):
    server = serve()
    ann, bob = Asker(server, "ann"), Asker(server, "bob")
    assert ann.cached(SECRET, cache_salt="team") == 0
    assert ann.cached(SECRET + "a", cache_salt="team") > 50
    assert bob.cached(SECRET + "b", cache_salt="team") == 0
    assert ann.cached(SECRET + "c") == 0


def test_a_slot_of_another_key_is_not_had_by_its_number(serve):
    server = serve()
    ann, bob = Asker(server, "ann"), Asker(server, "bob")
    assert ann.ask(SECRET, id_slot=2).headers["X-Berth-Slot"] == "2"
    reply = bob.ask(SECRET, id_slot=2)
    assert reply.headers["X-Berth-Slot"] != "2" and reply.headers["X-Berth-Cached"] == "0"
    reply = ann.ask(SECRET + " Indeed.", id_slot=2)
    assert reply.headers["X-Berth-Slot"] == "2" and int(reply.headers["X-Berth-Cached"]) > 50
    assert bob.ask("Hello", id_slot=3).headers["X-Berth-Slot"] == "3", "an empty one he may have"


def test_a_prompt_that_is_being_read_is_nobody_elses_to_wait_for(serve):
    """Two of one key who ask the same at once are read once; with another key it is read again."""
    server = serve()
    read = []
    for first, second in (("ann", "ann"), ("ann", "bob")):
        prompt = f"{first} {second} " + SECRET * 8
        before = tokens_read(server)
        streams = [post(server, "/v1/completions", {"prompt": prompt, "stream": True, "max_tokens": 2, "ignore_eos": True},
                        headers={"Authorization": f"Bearer {KEYS[who]}"}, stream=True) for who in (first, second)]
        for stream in streams:
            assert b"[DONE]" in stream.content
        read.append(tokens_read(server) - before)
    assert read[1] > read[0] * 1.5, read


def tokens_read(server):
    totals = get(server, "/metrics", headers={"Authorization": f"Bearer {KEYS['root']}"}).json()["totals"]
    return totals["prompt_tokens"] - totals["cached_tokens"]


@pytest.mark.parametrize("salt, said", [("", "0 bytes where 1..256"), ("x" * 257, "257 bytes where 1..256"), (7, "a string is wanted")])
def test_a_salt_is_a_short_text(serve, salt, said):
    server = serve(keys=False)
    reply = post(server, "/v1/completions", {"prompt": "x", "cache_salt": salt})
    assert said in error_of(reply)["message"]


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}),
    ("/v1/responses", {"input": SECRET}),
    ("/v1/completions", {"prompt": SECRET})])
def test_every_dialect_takes_a_salt(serve, path, body):
    server = serve(keys=False)
    limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
    cached = [int(post(server, path, {**body, limit: 2, **({"cache_salt": salt} if salt else {})}).headers["X-Berth-Cached"])
              for salt in (None, None, "s", "s")]
    assert cached[0] <= 3 < 50 < cached[1] and cached[2] == 0 and cached[3] > 50, cached
