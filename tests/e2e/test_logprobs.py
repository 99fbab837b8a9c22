"""The real model's logprobs against a float32 reference (tests/data/logits-smollm2.json), over HTTP."""
import json
import os
from pathlib import Path

import pytest

from apikit import post

DATA = Path(os.environ.get("BERTH_TEST_DATA", Path(__file__).resolve().parents[1] / "data"))
CASES = json.loads((DATA / "logits-smollm2.json").read_text())["cases"]


def piece(server, token):
    return post(server, "/detokenize", {"tokens": [token]}).json()["content"]


def next_token(server, ids, logprobs=1):
    reply = post(server, "/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": logprobs})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_prompt_is_tokenized_as_the_reference_says(real_server, case):
    ids = post(real_server, "/tokenize", {"content": CASES[case]["prompt"], "parse_special": True}).json()["tokens"]
    assert ids == CASES[case]["ids"]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_first_logprobs_are_near_the_reference(real_server, case):
    top = next_token(real_server, CASES[case]["ids"], 32)["logprobs"]["top_logprobs"][0]
    assert len(top) == 32
    for token, wanted in CASES[case]["top32_logprobs"][:8]:
        assert top[piece(real_server, token)] == pytest.approx(wanted, abs=0.35)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_greedy_tokens_are_the_references_wherever_it_is_sure(real_server, case):
    ids, checked = list(CASES[case]["ids"]), 0
    for token, margin in zip(CASES[case]["greedy"], CASES[case]["margin"]):
        if margin > 0.7:
            choice = next_token(real_server, ids)
            # The end of a turn has no text.
            assert choice["text"] == piece(real_server, token) or choice["finish_reason"] == "stop"
            checked += 1
        ids.append(token)
    assert checked >= 8


def test_chat_renders_the_references_prompt(real_server):
    prompt = CASES[0]["prompt"]
    question = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    rendered = post(real_server, "/apply-template", {"messages": [{"role": "user", "content": question}]}).json()["prompt"]
    assert rendered == prompt
