"""POST /v1/completions: prompts of every kind, several at once, legacy logprobs."""
import codecs
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from apikit import error_of, eventually, idle, post, stream, streamed_text, text_of


def complete(server, prompt, **fields):
    reply = post(server, "/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 16, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_text_and_its_tokens_give_the_same(server):
    prompt = "The harbour was quiet when"
    ids = post(server, "/tokenize", {"content": prompt, "add_special": True}).json()["tokens"]
    by_text, by_ids = complete(server, prompt), complete(server, ids)
    assert by_text["object"] == "text_completion" and by_text["id"].startswith("cmpl-")
    assert text_of(by_text) == text_of(by_ids) and by_text["usage"]["prompt_tokens"] == len(ids)


def test_several_prompts_are_several_choices_in_one_reply(server):
    prompts = ["The harbour was", "Once upon a time", "int main("]
    together = complete(server, prompts)
    assert [c["index"] for c in together["choices"]] == [0, 1, 2]
    for choice, prompt in zip(together["choices"], prompts):
        assert choice["text"] == text_of(complete(server, prompt))
    assert together["usage"]["completion_tokens"] == 48


def test_lists_of_ids_are_several_prompts(server):
    ids = [post(server, "/tokenize", {"content": p}).json()["tokens"] for p in ("water is cold", "the storm took")]
    together = complete(server, ids)
    assert [c["text"] for c in together["choices"]] == [text_of(complete(server, i)) for i in ids]


def test_a_stream_of_several_prompts_gives_each_its_text(server):
    prompts = ["The harbour was", "Once upon a time"]
    chunks = stream(server, "/v1/completions", prompt=prompts, max_tokens=16)
    whole = complete(server, prompts)
    for i in range(2):
        assert streamed_text(chunks, i) == whole["choices"][i]["text"]
        assert [c["finish_reason"] for k in chunks for c in k["choices"] if c["index"] == i and c["finish_reason"]] == ["length"]


def test_the_sdk_understands_it(client, server):
    done = client.completions.create(model="m", prompt="The ships went by", max_tokens=8, temperature=0)
    assert done.choices[0].text == text_of(complete(server, "The ships went by", max_tokens=8))


def test_legacy_logprobs_fit_the_text(server):
    choice = complete(server, "The harbour was", logprobs=3)["choices"][0]
    logprobs = choice["logprobs"]
    n = len(logprobs["tokens"])
    assert n == 16 == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])
    assert logprobs["text_offset"][0] == 0 and logprobs["text_offset"] == sorted(logprobs["text_offset"])
    for token, logprob, top, offset in zip(*(logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))):
        assert len(top) <= 3 and logprob == pytest.approx(top[token]) and logprob == max(top.values())
        if not token.startswith("bytes:"):
            assert choice["text"].startswith(token, offset)
    assert complete(server, "The harbour was")["choices"][0]["logprobs"] is None


def test_streamed_logprobs_are_the_whole_ones(server):
    whole = complete(server, "The harbour was", logprobs=2)["choices"][0]["logprobs"]
    chunks = stream(server, "/v1/completions", prompt="The harbour was", logprobs=2, max_tokens=16)
    for key in whole:
        parts = [c["logprobs"][key] for k in chunks for c in k["choices"] if c["logprobs"]]
        assert [x for part in parts for x in part] == whole[key]


@pytest.mark.parametrize("fields, param", [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [1, "x"]}, "prompt"),
    ({"prompt": ["x", 1]}, "prompt[1]"),
    ({"prompt": ["x", None]}, "prompt[1]"),
    ({"prompt": [1, 2.5]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": [1, 10**7]}, "prompt"),
    ({"prompt": [1, 1e30]}, "prompt"),
    ({"prompt": ["x"] * 1000}, "prompt"),
    ({"prompt": "x", "echo": True}, "echo"),
    ({"prompt": "x", "suffix": "y"}, "suffix"),
    ({"prompt": "x", "best_of": 2}, "best_of"),
    ({"prompt": ["x"] * 65, "n": 2}, "n"),
    ({"prompt": "x", "logprobs": 33}, "logprobs"),
    ({"prompt": "x", "logprobs": -1}, "logprobs"),
])
def test_what_is_not_possible_is_refused_by_name(server, fields, param):
    error = error_of(post(server, "/v1/completions", fields))
    assert error["param"] == param and param in error["message"], error


def test_null_and_harmless_values_are_as_if_left_out(server):
    plain = complete(server, "The harbour was")
    same = complete(server, "The harbour was", echo=False, suffix=None, best_of=1, n=1, logprobs=None, stop=None, seed=None,
                    user=None, logit_bias=None, stream=False, something_unknown={"a": [1]})
    assert text_of(plain) == text_of(same)


def test_prompts_that_meet_a_full_queue_are_refused_together(start_server):
    """Some of the eight find room before the others do not: what is answered is why, not that the first were cancelled."""
    server = start_server({"queue.max": 2, "engine.rows": 2, "engine.slots": 2})
    body = {"prompt": ["a"] * 8, "max_tokens": 200}

    def ask(i):
        reply = post(server, "/v1/completions", {**body, "stream": i % 2 == 1})
        return reply.status_code, reply.headers.get("Retry-After"), reply.text

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(24)))
    for status, retry, text in answers:
        assert status in (200, 429), text
        if status == 429:
            assert int(retry) > 0 and json.loads(text)["error"]["type"] == "rate_limit_error"
    assert any(status == 429 for status, _, _ in answers)
    line = server.wait_log(r"request .*outcome=refused .*status=429 code=\"(queue_full|client_share_exceeded)\" param=\"\"").string
    assert "endpoint=completions" in line
    eventually(lambda: idle(server))
    assert complete(server, "a")["choices"]


def names_in(text):
    """The JSON with its objects as lists of pairs, so that a name that stands twice is seen."""
    return json.loads(text, object_pairs_hook=lambda pairs: pairs)


def test_two_tokens_never_share_a_name(server):
    seen = 0
    for seed in range(20):
        reply = post(server, "/v1/completions", {"prompt": "x", "temperature": 2, "seed": seed, "logprobs": 32, "max_tokens": 24})
        choice = dict(dict(names_in(reply.text))["choices"][0])
        for token, top in zip(dict(choice["logprobs"])["tokens"], dict(choice["logprobs"])["top_logprobs"]):
            names = [name for name, _ in top]
            assert len(names) == len(set(names)) == 32, names
            assert "\ufffd" not in token and not any("\ufffd" in name for name in names)
            seen += sum(name.startswith("bytes:\\x") for name in names)
    assert seen > 0


def bytes_of(name):
    """The token's bytes."""
    if name.startswith("bytes:\\x"):
        return bytes.fromhex(name[6:].replace("\\x", ""))
    return name.encode()


CONTROL = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def place(raw, byte):
    """The number of the character that the byte after `raw` belongs to, by Python's decoder."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    whole = len(decoder.decode(raw + byte))
    return whole if decoder.getstate()[0] else whole - 1


def test_offsets_find_each_token_in_the_text(server):
    whole = broken = 0
    for seed in range(60):
        choice = complete(server, "x", temperature=2, seed=seed, logprobs=0, max_tokens=48)["choices"][0]
        text, logprobs, raw = choice["text"], choice["logprobs"], b""
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
            if token in CONTROL:  # has no place in the text
                continue
            data = bytes_of(token)
            assert offset == place(raw, data[:1]), (seed, token)
            if token.startswith("bytes:"):
                broken += 1
            else:
                assert text.startswith(token, offset), (seed, token, offset, text)
                whole += 1
            raw += data
        assert text == raw.decode("utf-8", "replace")
    assert whole > 500 and broken > 50, (whole, broken)
