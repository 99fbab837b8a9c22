"""What each architecture computes, against tests/reference/forward.py: random weights, odd sizes, grouped heads, 300 tokens."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small, and other tests run beside these
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from conftest import ROOT  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import forward  # noqa: E402

TOKENS = 300  # over four borders of KV blocks and one of attention's splits
VOCAB = 307

ARCHITECTURES = {
    "llama": ["--heads", "6", "--kv-heads", "2", "--embd", "96", "--ff", "160"],
    "llama-biased": ["--heads", "8", "--kv-heads", "2", "--head-dim", "20", "--embd", "96", "--ff", "160", "--biased", "--untied"],
    "llama-linear": ["--rope", "linear", "--heads", "3", "--kv-heads", "3", "--embd", "96", "--ff", "96"],
    "llama-factors": ["--rope", "factors", "--heads", "6", "--kv-heads", "3", "--embd", "96", "--ff", "160"],
    "llama-yarn": ["--rope", "yarn", "--context", "1024", "--heads", "2", "--kv-heads", "1", "--head-dim", "48", "--embd", "64",
                   "--ff", "96"],
    "qwen2": ["--arch", "qwen2", "--heads", "7", "--kv-heads", "1", "--head-dim", "32", "--embd", "224", "--ff", "96"],
    "qwen2-yarn": ["--arch", "qwen2", "--rope", "yarn", "--context", "512", "--heads", "4", "--kv-heads", "2", "--embd", "128",
                   "--ff", "96"],
    "qwen3": ["--arch", "qwen3", "--heads", "4", "--kv-heads", "2", "--head-dim", "40", "--embd", "96", "--ff", "160", "--untied"],
    "gemma3": ["--arch", "gemma3", "--window", "70", "--layers", "7", "--heads", "4", "--kv-heads", "1", "--head-dim", "40",
               "--embd", "96", "--ff", "160"],
    "gemma3-linear": ["--arch", "gemma3", "--window", "129", "--rope", "linear", "--layers", "6", "--heads", "2", "--kv-heads", "2",
                      "--head-dim", "64", "--embd", "64", "--ff", "96"],
}
# In every run: all architectures with one type, all types with some architecture. The others are marked long.
OFTEN = {
    "Q8_0": list(ARCHITECTURES),
    "F16": ["qwen3"],
    "BF16": ["qwen2"],
    "Q4_0": ["llama"],
    "Q4_1": ["gemma3"],
}
CASES = [pytest.param(kind, name, marks=[] if name in OFTEN[kind] else [pytest.mark.long])
         for kind in OFTEN for name in ARCHITECTURES]


@pytest.fixture(scope="module")
def make_model():
    """In this process: starting another and loading numpy would cost more than all the rest."""
    loader = importlib.machinery.SourceFileLoader("make_model", str(ROOT / "tools" / "make-model"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_model", loader))
    loader.exec_module(module)

    def make(path, kind, args):
        if "--layers" not in args:
            args = [*args, "--layers", "2"]
        module.main(["--type", kind, "--vocab", str(VOCAB), *args, str(path)])
        return path
    return make


@pytest.fixture(scope="module")
def logits_of():
    program = Path(os.environ.get("BERTH_BUILD", ROOT / "build")) / "tests" / "logits_of"

    def run(model, ids, mode, chunk=64):
        done = subprocess.run([program, model, mode, str(chunk)], capture_output=True,
                              input=" ".join(map(str, ids)).encode())
        assert done.returncode == 0, done.stderr.decode()
        return np.frombuffer(done.stdout, np.float32).reshape(len(ids), -1)
    return run


@pytest.mark.parametrize("kind, name", CASES)
def test_exact_mode_is_the_reference(make_model, logits_of, tmp_path, kind, name):
    path = make_model(tmp_path / "model.gguf", kind, ARCHITECTURES[name])
    ids = np.random.default_rng(3).integers(0, VOCAB, TOKENS)
    reference = forward.log_softmax(forward.logits(forward.Model(path), ids))
    exact = np.abs(forward.log_softmax(logits_of(path, ids, "exact")) - reference)
    usual = np.abs(forward.log_softmax(logits_of(path, ids, "usual")) - reference)
    print(f"{name} {kind}: exact mode off by {exact.max():.1e} at most, as served by {usual.mean():.1e} in the mean")
    assert exact.max() < 1e-3
    assert usual.mean() < 0.15  # int8 activations, f16 KV
