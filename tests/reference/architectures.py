"""The small random models that tests and tools/compare-llama compute twice: what tools/make-model is asked for."""
import importlib.machinery
import importlib.util
from pathlib import Path

VOCAB = 307
TOKENS = 300  # over four borders of KV blocks and one of attention's splits

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


def load_make_model():
    """tools/make-model as a module: starting it again and again and loading numpy would cost more than all the rest."""
    path = str(Path(__file__).resolve().parents[2] / "tools" / "make-model")
    loader = importlib.machinery.SourceFileLoader("make_model", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_model", loader))
    loader.exec_module(module)
    return module


def make(module, path, kind, name):
    args = ARCHITECTURES[name]
    if "--layers" not in args:
        args = [*args, "--layers", "2"]
    # Types in blocks of 256 want matrices that wide: wider ones, of the same shape otherwise.
    if kind.endswith("_K"):
        args = [*args, "--embd", "256", "--ff", "256", "--heads", "8", "--kv-heads", "2", "--head-dim", "32"]
    module.main(["--type", kind, "--vocab", str(VOCAB), *args, str(path)])
    return path
