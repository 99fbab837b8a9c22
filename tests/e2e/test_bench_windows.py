"""berth bench --compare and --windows: the same conversations with two values of a setting, in turns."""
import json

import pytest

SMALL = ["--streams", "2", "--turns", "2", "--prompt", "30", "--more", "10", "--generate", "8", "--rounds", "2",
         "--set", "engine.threads=1", "--set", "engine.slots=4", "--set", "engine.rows=4"]


def test_both_settings_are_measured_and_compared(berth, synthetic_model):
    result = berth("bench", "--compare", "engine.stages=1,2", synthetic_model, *SMALL, "--json")
    assert result.returncode == 0, result.stderr
    out = json.loads(result.stdout)
    assert (out["streams"], out["turns"], out["prompt"], out["more"], out["generate"]) == (2, 2, 30, 10, 8)
    assert [out[side]["setting"] for side in ("first", "second")] == ["engine.stages=1", "engine.stages=2"]
    for side in ("first", "second"):
        one = out[side]
        assert all(len(one[k]["samples"]) == 2 for k in ("tokens_per_s", "first_token_p50_s", "first_token_p95_s", "read_tokens"))
        assert one["tokens_per_s"]["min"] > 0 and 0 < one["first_token_p50_s"]["median"] <= one["first_token_p95_s"]["median"]
        # The second turns read what they add and the last token of the first answer.
        assert one["read_tokens"]["samples"] == [2 * (30 + 10 + 1)] * 2
    pairs = zip(out["first"]["tokens_per_s"]["samples"], out["second"]["tokens_per_s"]["samples"])
    assert out["ratio"]["tokens_per_s"]["samples"] == pytest.approx([b / a for a, b in pairs], rel=1e-3)


def test_text_names_what_was_compared(berth, synthetic_model):
    result = berth("bench", "--compare=engine.max_pause_ms=5,500", synthetic_model, *SMALL)
    assert result.returncode == 0 and result.stderr == ""
    for wanted in ("engine.max_pause_ms=5 ", "engine.max_pause_ms=500 ", "second / first", "first token p95", "tok/s", "2 rounds"):
        assert wanted in result.stdout, result.stdout


@pytest.mark.parametrize("args, word", [
    (["--compare", "engine.stages"], "two values"), (["--compare", "engine.stages=1"], "two values"),
    (["--compare", "engine.stages=1,2,3"], "two values"), (["--compare", "=1,2"], "two values"),
    (["--compare", "engine.nothing=1,2"], "engine.nothing"), (["--compare", "engine.stages=1,x"], "engine.stages"),
    (["--compare", "engine.stages=1,2", "--windows"], "one of"), (["--compare", "engine.stages=1,2", "--turns", "0"], "--turns"),
])
def test_wrong_arguments_are_named(berth, args, word):
    result = berth("bench", *args)
    assert result.returncode == 2 and word in result.stderr


def test_conversations_must_fit(berth, synthetic_model):
    result = berth("bench", "--compare", "engine.stages=1,2", synthetic_model, *SMALL, "--set", "model.context=50")
    assert result.returncode == 1 and "a conversation of 56 tokens is longer than the context of 50" in result.stderr
