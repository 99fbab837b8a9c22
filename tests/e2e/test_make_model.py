"""tools/make-model: the synthetic model everything else is tested on."""
import json
import subprocess
import sys

import pytest


def make(root, path, *args):
    return subprocess.run([sys.executable, root / "tools" / "make-model", *args, path], capture_output=True, text=True)


def test_the_same_arguments_give_the_same_bytes(root, tmp_path):
    for name in ["a", "b"]:
        assert make(root, tmp_path / name).returncode == 0
    assert make(root, tmp_path / "c", "--seed", "2").returncode == 0
    first = (tmp_path / "a").read_bytes()
    assert first == (tmp_path / "b").read_bytes() and first != (tmp_path / "c").read_bytes()
    assert 1e6 < len(first) < 2e6


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_every_type_is_a_model_that_runs(berth, root, tmp_path, kind):
    path = tmp_path / "model.gguf"
    embd, heads, ff = (256, 16, 512) if kind.endswith("_K") else (96, 6, 160)
    made = make(root, path, "--type", kind, "--layers", "2", "--embd", str(embd), "--heads", str(heads),
                "--kv-heads", str(heads // 2), "--ff", str(ff), "--vocab", "400", "--context", "9000", "--untied")
    assert made.returncode == 0, made.stderr
    out = json.loads(berth("model", "info", path, "--json").stdout)
    assert out["runs"] is True, out.get("reason")
    assert (out["layers"], out["embedding"], out["heads"], out["kv_heads"], out["head_dim"]) == (2, embd, heads, heads // 2, 16)
    assert (out["vocabulary"], out["context"], out["output_tied"]) == (400, 9000, False)
    assert kind in [each["type"] for each in out["tensor_types"]]
    assert berth("bench", path, "--prompt", "9", "--generate", "2", "--rounds", "1").returncode == 0


@pytest.mark.parametrize("args, message", [
    (["--embd", "100", "--heads", "7"], "--embd must be an even multiple of --heads"),
    (["--kv-heads", "4"], "--heads must be a multiple of --kv-heads"),
    (["--ff", "100"], "must be multiples of 32 for Q8_0"),
    (["--vocab", "100"], "--vocab must be at least 259"),
    (["--vocab", "5000"], "use a smaller --vocab"),
])
def test_shapes_that_cannot_be_are_refused(root, tmp_path, args, message):
    made = make(root, tmp_path / "model.gguf", *args)
    assert made.returncode != 0 and message in made.stderr
