"""What each architecture and weight type computes, against tests/reference/forward.py: random weights, odd sizes, grouped heads."""
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small, and other tests run beside these
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from conftest import ROOT  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import architectures  # noqa: E402
import forward  # noqa: E402

# In every run: all architectures with one type, all types with some architecture. The others are marked long.
OFTEN = {
    "Q8_0": list(architectures.ARCHITECTURES),
    "F32": ["llama-factors"],
    "F16": ["qwen3"],
    "BF16": ["qwen2"],
    "Q4_0": ["llama"],
    "Q4_1": ["gemma3"],
    "Q5_0": ["qwen3"],
    "Q5_1": ["llama"],
    "Q4_K": ["qwen2"],
    "Q5_K": ["gemma3"],
    "Q6_K": ["llama"],
}
CASES = [pytest.param(kind, name, marks=[] if name in OFTEN[kind] else [pytest.mark.long])
         for kind in OFTEN for name in architectures.ARCHITECTURES]


@pytest.fixture(scope="module")
def maker():
    return architectures.load_make_model()


@pytest.mark.parametrize("kind, name", CASES)
def test_exact_mode_is_the_reference(maker, logits_of, tmp_path, kind, name):
    path = architectures.make(maker, tmp_path / "model.gguf", kind, name)
    ids = np.random.default_rng(3).integers(0, architectures.VOCAB, architectures.TOKENS)
    reference = forward.log_softmax(forward.logits(forward.Model(path), ids))
    exact = np.abs(forward.log_softmax(logits_of(path, ids, "exact")) - reference)
    usual = np.abs(forward.log_softmax(logits_of(path, ids, "usual")) - reference)
    print(f"{name} {kind}: exact mode off by {exact.max():.1e} at most, as served by {usual.mean():.1e} in the mean")
    assert exact.max() < 1e-3
    assert usual.mean() < 0.15  # int8 activations, f16 KV
