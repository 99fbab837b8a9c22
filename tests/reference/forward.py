"""A model file computed a second time: plain numpy in float32 over dequantized weights, one whole sequence at once. Nothing
is shared with the engine but the GGUF format, which the `gguf` package reads. Written to be read, not to be fast.

    python tests/reference/forward.py FILE 1 17 25 ...     the best five next tokens after these
"""
import sys

import gguf
import numpy as np

F32 = np.float32


class Model:
    """Keys and weights of a file. Keys lose their architecture's name: model["block_count"]."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        self.tensors = {t.name: t for t in reader.tensors}
        self.arch = self.keys["general.architecture"]
        self.head_dim = self.get("attention.key_length", self["embedding_length"] // self["attention.head_count"])

    def __getitem__(self, suffix):
        return self.keys[f"{self.arch}.{suffix}"]

    def get(self, suffix, default=None):
        return self.keys.get(f"{self.arch}.{suffix}", default)

    def weight(self, name):
        """[outputs, inputs] or a vector; None when the file has no such tensor."""
        t = self.tensors.get(name)
        if t is None:
            return None
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(F32).reshape(t.shape[::-1])


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=F32) + F32(eps)) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return F32(0.5) * x * (1 + np.tanh(np.sqrt(F32(2 / np.pi)) * (x + F32(0.044715) * x**3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rope_table(model, n, base, scaled):
    """Cosines and sines [position, pair] in double: what the angles are is not float arithmetic's business."""
    dims = model.get("rope.dimension_count", model.head_dim)
    pair = np.arange(dims // 2)
    frequency = base ** (-2.0 * pair / dims)
    magnitude = 1.0
    factors = model.weight("rope_freqs.weight")
    if scaled and factors is not None:
        frequency = frequency / factors
    kind, factor = model.get("rope.scaling.type", "linear"), model.get("rope.scaling.factor", 1.0)
    if scaled and kind == "linear":
        frequency = frequency / factor
    if scaled and kind == "yarn":
        context = model.get("rope.scaling.original_context_length", model["context_length"])

        def pair_turning(turns):  # so many times within the original context
            return dims * np.log(context / (turns * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(pair_turning(model.get("rope.scaling.yarn_beta_fast", 32.0))), 0)
        high = min(np.ceil(pair_turning(model.get("rope.scaling.yarn_beta_slow", 1.0))), dims - 1)
        stretched = np.clip((pair - low) / max(high - low, 0.001), 0, 1)
        frequency = frequency * (1 - stretched) + frequency / factor * stretched
        magnitude = model.get("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * np.log(factor))
    angle = np.arange(n)[:, None] * frequency[None, :]
    return (np.cos(angle) * magnitude).astype(F32), (np.sin(angle) * magnitude).astype(F32)


def rotate(x, table, halves):
    """x: [position, head, head_dim]. Rotates pairs (i, i + pairs) or (2i, 2i + 1) of the first dimensions."""
    cos, sin = (each[:, None, :] for each in table)
    pairs = cos.shape[-1]
    first, second = (slice(0, pairs), slice(pairs, 2 * pairs)) if halves else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attention(q, k, v, scale, window):
    """q: [position, heads, head_dim]; k, v with fewer heads. Position i sees i - window + 1 .. i."""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    at = np.arange(n)
    hidden = at[None, :] > at[:, None]
    if window:
        hidden |= at[None, :] <= at[:, None] - window
    out = np.empty_like(q)
    for h in range(heads):
        scores = q[:, h] @ k[:, h // group].T * F32(scale)
        scores[hidden] = -np.inf
        out[:, h] = softmax(scores) @ v[:, h // group]
    return out.reshape(n, heads * dim)


def layer(model, i, x, tables):
    gemma, halves = model.arch == "gemma3", model.arch != "llama"
    window = model.get("attention.sliding_window", 0) if gemma and (i + 1) % 6 else 0
    eps, heads, kv_heads = (model[k] for k in
                            ["attention.layer_norm_rms_epsilon", "attention.head_count", "attention.head_count_kv"])
    n, dim = x.shape[0], model.head_dim

    def weight(name):
        return model.weight(f"blk.{i}.{name}")

    def project(h, name, count):
        y = h @ weight(f"attn_{name}.weight").T
        bias, norm = weight(f"attn_{name}.bias"), weight(f"attn_{name}_norm.weight")
        y = (y if bias is None else y + bias).reshape(n, count, dim)
        return y if norm is None else rms_norm(y, norm, eps)

    h = rms_norm(x, weight("attn_norm.weight"), eps)
    q, k, v = project(h, "q", heads), project(h, "k", kv_heads), project(h, "v", kv_heads)
    table = tables["window" if window else "all"]
    q, k = rotate(q, table, halves), rotate(k, table, halves)
    y = attention(q, k, v, 1 / np.sqrt(dim), window) @ weight("attn_output.weight").T
    x = x + (rms_norm(y, weight("post_attention_norm.weight"), eps) if gemma else y)

    h = rms_norm(x, weight("ffn_norm.weight"), eps)
    gate = (gelu if gemma else silu)(h @ weight("ffn_gate.weight").T)
    y = (gate * (h @ weight("ffn_up.weight").T)) @ weight("ffn_down.weight").T
    return x + (rms_norm(y, weight("post_ffw_norm.weight"), eps) if gemma else y)


def logits(model, ids):
    """[position, vocabulary] of a sequence."""
    embd = model.weight("token_embd.weight")
    x = embd[np.asarray(ids)]
    if model.arch == "gemma3":
        x = x * np.sqrt(F32(model["embedding_length"]))
    tables = {"all": rope_table(model, len(ids), model.get("rope.freq_base", 10000.0), True),
              "window": rope_table(model, len(ids), model.get("rope.freq_base_swa", 10000.0), False)}
    for i in range(model["block_count"]):
        x = layer(model, i, x, tables)
    x = rms_norm(x, model.weight("output_norm.weight"), model["attention.layer_norm_rms_epsilon"])
    output = model.weight("output.weight")
    return x @ (embd if output is None else output).T


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


if __name__ == "__main__":
    last = log_softmax(logits(Model(sys.argv[1]), [int(a) for a in sys.argv[2:]])[-1])
    for token in np.argsort(-last)[:5]:
        print(token, f"{last[token]:.5f}")
