"""berth bench: what it measures and prints, and another program run beside it in turns."""
import json
import os
import stat

import pytest

SMALL = ["--prompt", "40", "--generate", "6", "--rounds", "3", "--set", "engine.threads=1"]


def bench_json(berth, *args):
    result = berth("bench", *args, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def other(tmp_path):
    """other(prefill, decode) -> a program that prints llama-bench's JSON with these speeds, and notes how it was called."""
    def make(prefill, decode, code=0):
        runs = []
        if prefill:
            runs.append({"n_prompt": 40, "n_gen": 0, "avg_ts": prefill})
        if decode:
            runs.append({"n_prompt": 0, "n_gen": 6, "avg_ts": decode})
        path = tmp_path / "other bench"
        path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> '{tmp_path}/calls'\ncat <<'END'\n{json.dumps(runs)}\nEND\n"
                        f"exit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"'{path}' -m {{model}} -p {{prompt}} -n {{generate}} -d {{depth}} -t {{threads}}"
    return make


def test_speeds_and_settings_are_printed(berth, synthetic_model):
    result = berth("bench", synthetic_model, *SMALL)
    assert result.returncode == 0 and result.stderr == ""
    for wanted in ["llama", "1 thread", "activations int8", "KV f16", "prompt 40, generate 6, streams 1, depth 0, 3 rounds",
                   "prefill", "decode", "tok/s"]:
        assert wanted in result.stdout, result.stdout


def test_json_has_every_sample_and_their_median(berth, synthetic_model):
    out = bench_json(berth, synthetic_model, *SMALL, "--streams", "3", "--depth", "70")
    assert (out["prompt"], out["generate"], out["streams"], out["depth"], out["threads"]) == (40, 6, 3, 70, 1)
    for name in ["prefill", "decode"]:
        samples = sorted(out[name]["samples"])
        assert len(samples) == 3 and samples[0] > 0
        assert out[name]["median"] == pytest.approx(samples[1], rel=1e-4)
        assert out[name]["min"] == pytest.approx(samples[0], rel=1e-4)
        assert out[name]["max"] == pytest.approx(samples[2], rel=1e-4)


def test_what_is_not_asked_for_is_left_out(berth, synthetic_model):
    out = bench_json(berth, synthetic_model, *SMALL[2:], "--prompt", "0")
    assert "prefill" not in out and "decode" in out


@pytest.mark.parametrize("streams", [1, 3])
def test_streams_form_groups_on_several_stages(berth, synthetic_model, streams):
    args = [synthetic_model, *SMALL, "--streams", str(streams), "--set", "engine.stages=2"]
    out = bench_json(berth, *args)
    assert out["stages"] == 2 and len(out["prefill"]["samples"]) == len(out["decode"]["samples"]) == 3
    printed = berth("bench", *args).stdout
    assert "stage 1" in printed and "stage 2" in printed and "layers 0-" in printed


def test_settings_come_from_the_configuration(berth, synthetic_model):
    out = bench_json(berth, *SMALL, "--set", f"model.path={synthetic_model}", "--set", "engine.kv_type=f32",
                     "--set", "engine.activations=f32", "--set", "engine.isa=portable")
    assert (out["kv_type"], out["activations"]) == ("f32", "f32")
    assert "portable" in out["device"]


def test_another_program_runs_once_a_round_and_is_compared_pair_by_pair(berth, synthetic_model, other, tmp_path):
    out = bench_json(berth, synthetic_model, *SMALL, "--vs", other(250.0, 50.0))
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"-m {synthetic_model} -p 40 -n 6 -d 0 -t 1"] * 3
    assert out["vs"]["prefill"]["median"] == 250 and out["vs"]["decode"]["median"] == 50
    for name, theirs in [("prefill", 250), ("decode", 50)]:
        ratios = [ours / theirs for ours in out[name]["samples"]]
        assert out["vs"][name + "_ratio"]["samples"] == pytest.approx(ratios, rel=1e-3)


def test_another_programs_speeds_are_in_the_table(berth, synthetic_model, other):
    text = berth("bench", synthetic_model, *SMALL, "--vs", other(250.0, 50.0)).stdout
    assert "its prefill          250.0 tok/s" in text and "decode ratio" in text and "pair by pair" in text


def test_a_model_path_with_blanks_and_quotes_reaches_the_program_whole(berth, synthetic_model, other, tmp_path):
    odd = tmp_path / "it's a model.gguf"
    os.symlink(synthetic_model, odd)
    result = berth("bench", odd, *SMALL, "--vs", other(1.0, 1.0))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "calls").read_text().splitlines()[0].startswith(f"-m {odd} -p")


@pytest.mark.parametrize("speeds, code, message", [
    ((250.0, 0), 0, "its output has no speed of generating"),
    ((0, 50.0), 0, "its output has no speed of reading a prompt"),
    ((250.0, 50.0), 3, "--vs: exit code 3 of: "),
])
def test_a_program_that_fails_is_an_error_of_one_line(berth, synthetic_model, other, speeds, code, message):
    result = berth("bench", synthetic_model, *SMALL, "--vs", other(*speeds, code))
    assert result.returncode == 1 and result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_output_that_is_no_json_is_named(berth, synthetic_model):
    result = berth("bench", synthetic_model, *SMALL, "--vs", "echo fast")
    assert result.returncode == 1
    assert "printed no JSON array as llama-bench does" in result.stderr


@pytest.mark.parametrize("args, message", [
    (["--prompt", "x"], '--prompt: "x" is not a whole number 0..1048576'),
    (["--streams", "0"], "--streams"),
    (["--rounds", "1001"], "--rounds"),
    (["--prompt", "0", "--generate", "0"], "leave nothing to measure"),
    (["--vs", "run {file}"], '"{file}" is none of {model} {prompt} {generate} {depth} {threads}'),
    (["--promt", "1"], "did you mean --prompt"),
])
def test_wrong_usage_is_named(berth, synthetic_model, args, message):
    result = berth("bench", synthetic_model, *args)
    assert result.returncode == 2 and result.stdout == ""
    assert message in result.stderr


def test_a_file_that_is_no_model_is_an_error(berth, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"nothing of that kind")
    result = berth("bench", path)
    assert result.returncode == 1
    assert result.stderr == f"berth: {path}: header: not a GGUF file (it does not start with the letters GGUF)\n"


def test_more_keys_and_values_than_memory_is_an_error(berth, synthetic_model):
    result = berth("bench", synthetic_model, "--streams", "256", "--depth", "1048576")
    assert result.returncode == 1
    assert "tokens of keys and values want" in result.stderr
