"""What the tests of kept conversations share: talks in token ids, requests that can be left at any moment, cold answers.

A talk is a list of token ids in ChatML turns of random words, so that a test knows to the token what two prompts share. What a
server must answer is what another one answers that reuses nothing: `Cold` asks that one, once for each prompt.
"""
import http.client
import json
import os
import random
import socket
from dataclasses import dataclass

import gguf

from apikit import eventually, get, idle, metrics

SLOW = float(os.environ.get("BERTH_SLOW", "1"))
PATIENCE_S = 50 * SLOW
CHUNK = 512  # the longest piece of a prompt that one window reads
BLOCK = 64  # tokens of one block of the pool


def longest_common(a, b):
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


class Vocabulary:
    """The tokens of a model file. `words`: ids whose text is theirs alone and whole, so that an answer's text tells its ids."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        names = fields["tokenizer.ggml.tokens"].contents()
        kinds = fields["tokenizer.ggml.token_type"].contents()
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        letters = {chr(b): b for b in plain}
        letters.update({chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
        self.text, self.bias = {}, {}
        for i, (name, kind) in enumerate(zip(names, kinds)):
            try:
                assert kind == gguf.TokenType.NORMAL
                self.text[i] = bytes(letters[c] for c in name).decode()
            except (AssertionError, UnicodeDecodeError):
                self.bias[str(i)] = -100
        self.words = sorted(self.text)
        self.id_of = {text: i for i, text in self.text.items()}
        assert len(self.id_of) == len(self.words)
        self.turn = names.index("<|im_start|>")
        self.end = names.index("<|im_end|>")


@dataclass
class Answer:
    text: str
    prompt: int  # tokens of the prompt,
    cached: int  # of which so many were not read again
    processed: int
    generated: int
    finish: str
    slot: int
    logprobs: list  # None where they were not asked for
    ids: list


def body_of(vocabulary, prompt, n, fields):
    body = {"prompt": prompt, "temperature": 0, "logit_bias": vocabulary.bias, **fields}
    return body if n is None else {**body, "max_tokens": n}


class Request:
    """A request on a connection of its own. `who` is the address it comes from: another address is another client.
    receive_buffer: bytes that the kernel may hold for it; a small one is soon full when nothing is read."""

    def __init__(self, server, body, path="/v1/completions", who="127.0.0.1", receive_buffer=None):
        self.text, self.timings, self.finish, self.usage = "", None, None, None
        self.parts = 0  # pieces of text so far
        self.body, self.reply, self._rest = body, None, b""
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S, source_address=(who, 0))
        if receive_buffer:
            self.connection.sock = sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.settimeout(PATIENCE_S)
            sock.bind((who, 0))
            sock.connect((server.host, server.port))
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})

    def _open(self):
        if not self.reply:
            self.reply = self.connection.getresponse()
        assert self.reply.status == 200, self.reply.read()

    def leave(self):
        """Goes away, whatever has come so far."""
        if self.connection.sock:
            self.connection.sock.close()
        if self.reply:
            self.reply.close()
        self.connection.close()

    def next(self):
        """The next chunk of the stream; None after the last."""
        self._open()
        while b"\n\n" not in self._rest:
            part = self.reply.read1(65536)
            if not part:
                assert not self._rest, self._rest
                return None
            self._rest += part
        event, self._rest = self._rest.split(b"\n\n", 1)
        if event.startswith(b":"):
            return self.next()
        assert event.startswith(b"data: "), event
        if event == b"data: [DONE]":
            return self.next()
        chunk = json.loads(event[6:])
        assert "error" not in chunk, chunk
        self.timings = chunk.get("timings") or self.timings
        for choice in chunk["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            self.text += piece
            self.parts += bool(piece)
            self.finish = choice["finish_reason"] or self.finish
        return chunk

    def read(self, parts):
        """Reads on until so many pieces of text have come since the start; fewer only when the stream ends."""
        while self.parts < parts and self.next() is not None:
            pass
        return self

    def answer(self):
        """The whole answer, waited for."""
        if self.body.get("stream"):
            while self.next() is not None:
                pass
            self.connection.close()
            t = self.timings
            return Answer(self.text, t["cache_n"] + t["prompt_n"], t["cache_n"], t["prompt_n"], t["predicted_n"], self.finish,
                          t["slot"], None, None)
        self._open()
        reply = json.loads(self.reply.read())
        self.connection.close()
        usage, t, choice = reply["usage"], reply["timings"], reply["choices"][0]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == t["cache_n"] == int(self.reply.headers["X-Berth-Cached"]), reply
        assert usage["prompt_tokens"] == t["cache_n"] + t["prompt_n"] and usage["completion_tokens"] == t["predicted_n"], reply
        assert self.reply.headers["X-Berth-Slot"] == str(t["slot"])
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return Answer(text, usage["prompt_tokens"], cached, t["prompt_n"], t["predicted_n"], choice["finish_reason"], t["slot"],
                      choice.get("logprobs"), None)


class Cold:
    """The answers of a server that reuses nothing, remembered."""

    def __init__(self, server, vocabulary):
        self.server, self.vocabulary, self.known = server, vocabulary, {}

    def __call__(self, prompt, n):
        """Token ids, text and logprobs of the n tokens that follow a prompt."""
        ids, logprobs = self.known.get(tuple(prompt), ([], []))
        if len(ids) < n:
            body = body_of(self.vocabulary, prompt, n, {"cache_prompt": False, "logprobs": 0})
            answer = Request(self.server, body).answer()
            assert answer.cached == 0 and answer.prompt == len(prompt) and answer.finish == "length"
            ids = [self.vocabulary.id_of[text] for text in answer.logprobs["tokens"]]
            logprobs = answer.logprobs["token_logprobs"]
            assert len(ids) == n and answer.text == self.text(ids)
            self.known[tuple(prompt)] = ids, logprobs
        return ids[:n], self.text(ids[:n]), logprobs[:n]

    def text(self, ids):
        return "".join(self.vocabulary.text[i] for i in ids)


class Talk:
    """A conversation: `ids` is what its next request sends, and after an answer everything up to the answer's end."""

    def __init__(self, vocabulary, seed, system=(), words=None):
        self.vocabulary, self.rng, self.words = vocabulary, random.Random(seed), words or vocabulary.words
        self.ids, self.open, self.kept = list(system), False, 0

    def random(self, n):
        return [self.rng.choice(self.words) for _ in range(n)]

    def say(self, n):
        """A user's message of n tokens, and the head of the reply. Returns the talk."""
        v = self.vocabulary
        self.ids += [v.end] * self.open + [v.turn, *self.random(n), v.end, v.turn, *v.words[:2]]
        self.open = False
        return self

    def hear(self, ids):
        """A reply. What a server may have kept of it all is everything but the last token, which was never read."""
        self.kept = len(self.ids) + len(ids) - 1
        self.ids += ids
        self.open = True

    def copy(self, seed=None):
        other = Talk(self.vocabulary, seed, words=self.words)
        if seed is None:
            other.rng.setstate(self.rng.getstate())
        other.ids, other.open, other.kept = list(self.ids), self.open, self.kept
        return other


def system_prompt(vocabulary, seed, n):
    """n tokens that many talks begin with."""
    rng = random.Random(seed)
    return [vocabulary.turn, *(rng.choice(vocabulary.words) for _ in range(n - 2)), vocabulary.end]


class House:
    """A server under test, and what it has to answer."""

    def __init__(self, server, cold, seed=0):
        self.server, self.cold, self.vocabulary = server, cold, cold.vocabulary
        self.rng = random.Random(seed)  # decides which requests ask for logprobs
        self.requests = []

    def talk(self, seed, system=(), **more):
        return Talk(self.vocabulary, seed, system, **more)

    def start(self, prompt, n=None, who="127.0.0.1", stream=True, receive_buffer=None, **fields):
        """Sends a request and does not wait for anything."""
        fields = {"stream": True, **fields} if stream else fields
        self.requests.append(Request(self.server, body_of(self.vocabulary, list(prompt), n, fields), who=who,
                                     receive_buffer=receive_buffer))
        return self.requests[-1]

    def check(self, answer, prompt, n):
        """An answer must be the cold one, the count of its prompt must add up."""
        ids, text, logprobs = self.cold(prompt, n)
        assert answer.text == text
        assert (answer.prompt, answer.generated, answer.finish) == (len(prompt), n, "length")
        assert 0 <= answer.cached <= len(prompt) - 1
        if answer.logprobs:
            # To the last bit: far-away tokens move these long before they move the text.
            assert answer.logprobs["token_logprobs"] == logprobs
        answer.ids = ids
        return answer

    def ask(self, prompt, n, **fields):
        """A whole answer, equal to the cold one, with logprobs or without."""
        if self.rng.random() < 0.5:
            fields = {"logprobs": 0, **fields}
        return self.check(self.start(prompt, n, stream=False, **fields).answer(), prompt, n)

    def turn(self, talk, n_said, n=16, **fields):
        """The talk's next turn: says n_said tokens, hears n. Exactly what was kept of it tells Answer.cached."""
        prompt = talk.say(n_said).ids
        answer = self.ask(prompt, n, **fields)
        talk.hear(answer.ids)
        return answer

    def finish(self, request, prompt, n):
        """The rest of a stream that must have been the cold answer."""
        return self.check(request.answer(), prompt, n)

    def check_part(self, request, prompt, n):
        """What a stream has said so far must be how the cold answer begins, of which n tokens are compared."""
        _, text, _ = self.cold(prompt, n)
        assert request.text[:len(text)] == text[:len(request.text)]

    def events(self, *kinds):
        """The last placement events, of these kinds."""
        events = get(self.server, "/events?format=json").json()["events"]
        return [e for e in events if e["kind"] in kinds or not kinds]

    def slots(self):
        return get(self.server, "/slots").json()

    def metrics(self):
        return metrics(self.server)

    def empty(self):
        """Nobody wants anything any more."""
        for request in self.requests:
            request.leave()
        return self.settle()

    def settle(self):
        """Waits until nothing runs or waits; everything that began must have ended in exactly one way."""
        eventually(lambda: idle(self.server), PATIENCE_S)
        m = self.metrics()
        t = m["totals"]
        assert t["started"] == t["completed"] + t["cancelled"] + t["failed"], t
        assert t["failed"] == 0, t
        assert not any(slot["is_processing"] for slot in self.slots())
        return m


class Crowd:
    """Requests under way at once. Each must end as its cold run does, or is left; none may have reused more than the longest
    prefix that another request until then could have left behind."""

    def __init__(self, house):
        self.house, self.running, self.sent = house, [], []
        self.left = self.prompt = self.cached = 0

    def begin(self, prompt, n, leave_after=None, **fields):
        """leave_after: pieces of text after which the client goes away."""
        prompt = list(prompt)
        self.running.append((self.house.start(prompt, n, **fields), prompt, n, leave_after, fields, len(self.sent)))
        # What it may leave in a history: its prompt, and its answer but for the last token.
        self.sent.append(prompt + self.house.cold(prompt, n)[0][:-1])
        return self.running[-1]

    def end(self, item):
        """Its Answer; None for one that is left."""
        self.running.remove(item)
        request, prompt, n, leave_after, fields, number = item
        if leave_after is not None:
            request.read(leave_after)
            self.house.check_part(request, prompt, n)
            request.leave()
            self.left += 1
            return None
        answer = self.house.finish(request, prompt, n)
        others = self.sent[:number] + self.sent[number + 1:]
        assert answer.cached <= max((longest_common(prompt, other) for other in others), default=0)
        assert answer.cached == 0 or fields.get("cache_prompt", True)
        self.prompt += answer.prompt
        self.cached += answer.cached
        return answer

    def end_all(self):
        while self.running:
            self.end(self.running[0])
