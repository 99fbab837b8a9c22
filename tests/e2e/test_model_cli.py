"""berth model: info on files that run and files that do not, tokens, and rendered conversations."""
import json
import re
import struct
import subprocess

import gguf
import numpy as np
import pytest


def info_json(berth, path):
    result = berth("model", "info", path, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def fed(berth_bin, stdin, *args):
    return subprocess.run([str(berth_bin), "model", *map(str, args)], input=stdin, capture_output=True, timeout=60)


def test_info_agrees_with_the_file(berth, synthetic_model):
    reader = gguf.GGUFReader(synthetic_model)
    out = info_json(berth, synthetic_model)
    field = lambda name: reader.fields[name].contents()  # noqa: E731
    assert out["architecture"] == "llama" and out["runs"] is True and "reason" not in out
    assert out["file_bytes"] == synthetic_model.stat().st_size
    assert out["layers"] == field("llama.block_count")
    assert out["embedding"] == field("llama.embedding_length")
    assert out["context"] == field("llama.context_length")
    assert out["vocabulary"] == len(field("tokenizer.ggml.tokens")) == out["tokenizer"]["tokens"]
    assert out["parameters"] == sum(int(t.n_elements) for t in reader.tensors)
    by_type = {}
    for t in reader.tensors:
        n, size = by_type.get(t.tensor_type.name, (0, 0))
        by_type[t.tensor_type.name] = (n + 1, size + int(t.n_bytes))
    assert {e["type"]: (e["tensors"], e["bytes"]) for e in out["tensor_types"]} == by_type
    assert out["tokenizer"]["kind"] == "gpt2/smollm"
    assert out["tokenizer"]["turn"] == {"id": 1, "text": "<|im_start|>"}
    assert out["tokenizer"]["eos"] == {"id": 2, "text": "<|im_end|>"}
    assert out["chat_template"] is True and "chat_template_error" not in out
    assert out["activations"] == "int8"


def test_info_tells_the_memory(berth, synthetic_model):
    out = info_json(berth, synthetic_model)
    per_token = out["layers"] * out["kv_heads"] * out["head_dim"] * 2
    assert out["kv_bytes_per_token_f16"] == per_token * 2
    assert out["kv_bytes_per_token_f32"] == per_token * 4
    assert out["kv_bytes_per_token_q8_0"] == per_token * 34 // 32
    assert out["memory_bytes"] == out["tensor_bytes"] + (64 << 20) + out["context"] * per_token * 2


def test_info_writes_floats_as_people_do(berth, synthetic_model):
    text = berth("model", "info", synthetic_model, "--json").stdout
    field = gguf.GGUFReader(synthetic_model).fields["llama.attention.layer_norm_rms_epsilon"].contents()
    assert np.float32(info_json(berth, synthetic_model)["norm_epsilon"]) == np.float32(field)
    assert all(len(n) <= 12 for n in re.findall(r"-?\d+\.\d+(?:e[-+]?\d+)?", text)), text
    assert "llama.attention.layer_norm_rms_epsilon = 1e-05" in berth("model", "info", synthetic_model, "--keys").stdout


def test_info_tells_what_ends_an_answer(berth, synthetic_model):
    assert [end["text"] for end in info_json(berth, synthetic_model)["tokenizer"]["ends"]] == ["<|endoftext|>", "<|im_end|>"]
    assert "end tokens         <|endoftext|> (0)" in berth("model", "info", synthetic_model).stdout


def test_nothing_of_a_file_reaches_the_terminal_as_control(berth, tmp_path):
    path = tmp_path / "names.gguf"
    w = gguf.GGUFWriter(path, "lla\x1bma")
    w.add_name("bell\a\x1b[31m\nred\u202e \u0085 caf\u00e9")
    w.add_string("k\x1bey", "v\x1balue")
    w.add_tokenizer_model("gp\x1bt2")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    shown = berth("model", "info", path).stdout
    assert r"bell\x07\x1b[31m\x0ared\u202e \u0085 café" in shown
    for text in [shown, berth("model", "info", path, "--keys").stdout, berth("model", "tokenize", path, "x").stderr,
                 berth("check", "--set", f"model.path={path}").stderr]:
        assert text and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text), text
    assert info_json(berth, path)["name"] == "bell\a\x1b[31m\nred\u202e \u0085 café"


def test_info_for_people_says_the_same(berth, synthetic_model):
    out = info_json(berth, synthetic_model)
    text = berth("model", "info", synthetic_model).stdout
    for wanted in ["architecture       llama", f"layers             {out['layers']}", "runs here          yes",
                   "tokenizer          gpt2/smollm", "turn token         <|im_start|> (1)"]:
        assert wanted in text


def test_keys_are_all_shown(berth, synthetic_model):
    text = berth("model", "info", synthetic_model, "--keys").stdout
    for key in gguf.GGUFReader(synthetic_model).fields:
        if not key.startswith("GGUF."):
            assert f"{key} = " in text


@pytest.fixture
def strange_model(tmp_path):
    """strange_model(arch, type) -> a file with one tensor of an architecture and a raw type number."""
    def make(arch="mamba", kind=gguf.GGMLQuantizationType.F32):
        path = tmp_path / "strange.gguf"
        w = gguf.GGUFWriter(path, arch)
        w.add_block_count(7)
        w.add_context_length(99)
        data = bytes(gguf.GGML_QUANT_SIZES[kind][1])
        w.add_tensor("blk.0.odd.weight", np.frombuffer(data, dtype=np.uint8), raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return path
    return make


def test_info_describes_a_file_it_cannot_run_and_says_why(berth, strange_model):
    out = info_json(berth, strange_model(kind=gguf.GGMLQuantizationType.IQ3_S))
    assert out["architecture"] == "mamba" and out["layers"] == 7 and out["context"] == 99
    assert out["tensor_types"] == [{"type": "IQ3_S", "tensors": 1, "bytes": 110}]
    assert out["runs"] is False
    assert out["reason"].startswith('architecture "mamba" is not one this build runs (llama')
    assert out["chat_template"] is False
    assert "kv_bytes_per_token_f16" not in out and "memory_bytes" not in out


def test_info_tells_the_memory_of_a_file_it_cannot_run(berth, tmp_path):
    path = tmp_path / "moe.gguf"
    w = gguf.GGUFWriter(path, "mixture")
    w.add_block_count(3)
    w.add_embedding_length(64)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_context_length(100)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    out = info_json(berth, path)
    assert out["runs"] is False and "activations" not in out
    assert out["kv_bytes_per_token_f16"] == 3 * 2 * 16 * 2 * 2 and out["kv_bytes_per_token_f32"] == 3 * 2 * 16 * 2 * 4
    assert out["memory_bytes"] == (64 << 20) + 100 * out["kv_bytes_per_token_f16"]


@pytest.mark.long
def test_ten_million_tokens_are_refused_in_a_line(berth, tmp_path):
    path = tmp_path / "many.gguf"
    n, key = 10_000_000, b"tokenizer.ggml.tokens"
    tokens = np.zeros((n, 16), np.uint8)
    tokens[:, 0] = 8
    tokens[:, 8:] = np.char.encode(np.char.zfill(np.arange(n).astype("U8"), 8), "ascii").view(np.uint8).reshape(n, 8)
    model = struct.pack("<Q20sIQ5s", 20, b"tokenizer.ggml.model", 8, 5, b"llama")
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + model + struct.pack("<Q21sIIQ", len(key), key, 9, 8, n))
        tokens.tofile(f)
    out = info_json(berth, path)
    assert out["tokenizer"]["kind"] is None
    result = berth("model", "tokenize", path, "x")
    assert result.returncode == 1
    assert result.stderr == f"berth: {path}: tokenizer.ggml.tokens: 10000000 tokens; 1..4194304 are allowed\n"


def test_a_broken_file_is_an_error_of_one_line(berth, synthetic_model, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(synthetic_model.read_bytes()[:100000])
    result = berth("model", "info", path)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith(f"berth: {path}: tensor ") and "past the end of the file" in result.stderr
    assert result.stderr.count("\n") == 1
    assert berth("model", "info", tmp_path / "none.gguf").returncode == 1


def test_flipped_bits_in_the_header_give_an_answer_or_an_error(berth, synthetic_model, tmp_path):
    original = synthetic_model.read_bytes()
    path = tmp_path / "flipped.gguf"
    for i in range(40):
        data = bytearray(original)
        data[(i * 7919) % 20000] ^= 1 << (i % 8)
        path.write_bytes(data)
        result = berth("model", "info", path, "--json")
        assert result.returncode in (0, 1)
        if result.returncode == 0:
            assert json.loads(result.stdout)["file_bytes"] == len(data)
        else:
            assert result.stderr.startswith("berth: ")


def test_tokens_are_printed_with_their_pieces(berth, synthetic_model):
    vocabulary = gguf.GGUFReader(synthetic_model).fields["tokenizer.ggml.tokens"].contents()
    lines = berth("model", "tokenize", synthetic_model, 'the "harbour"\n').stdout.splitlines()
    ids = [int(line.split("\t")[0]) for line in lines]
    pieces = [json.loads(line.split("\t")[1]) for line in lines]
    assert "".join(pieces) == 'the "harbour"\n'
    assert [vocabulary[i].replace("Ġ", " ").replace("Ċ", "\n") for i in ids] == pieces


def test_ids_pieces_and_standard_input(berth_bin, berth, synthetic_model):
    ids = berth("model", "tokenize", synthetic_model, "a clock", "--ids").stdout
    assert fed(berth_bin, b"a clock", "tokenize", synthetic_model, "--ids").stdout.decode() == ids
    assert ids == " ".join(ids.split()) + "\n"
    pieces = berth("model", "tokenize", synthetic_model, "a clock", "--pieces").stdout
    assert "".join(json.loads(p) for p in pieces.splitlines()) == "a clock"
    assert berth("model", "tokenize", synthetic_model, "", "--ids").stdout == "\n"
    assert berth("model", "tokenize", synthetic_model, "x", "--ids", "--pieces").returncode == 2


def test_special_tokens_are_read_unless_the_text_is_plain(berth, synthetic_model):
    assert berth("model", "tokenize", synthetic_model, "<|im_end|>", "--ids").stdout == "2\n"
    plain = berth("model", "tokenize", synthetic_model, "<|im_end|>", "--ids", "--plain").stdout.split()
    assert len(plain) > 1 and "2" not in plain


def test_a_conversation_is_rendered_with_the_models_template(berth_bin, synthetic_model):
    request = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]}
    result = fed(berth_bin, json.dumps(request).encode(), "render", synthetic_model)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (b"<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                             b"<|im_start|>assistant\n")


def test_a_template_file_gets_only_the_variables_it_is_given(berth_bin, tmp_path):
    path = tmp_path / "template"
    path.write_text("{{ greeting }}{% if add_generation_prompt %}!{% endif %}")
    assert fed(berth_bin, b'{"greeting": "hello"}', "render", "--template", path).stdout == b"hello"


def test_a_templates_own_error_is_printed(berth_bin, tmp_path):
    path = tmp_path / "template"
    path.write_text("{{ raise_exception('roles must alternate') }}")
    result = fed(berth_bin, b"{}", "render", "--template", path)
    assert result.returncode == 1 and result.stdout == b""
    assert b"roles must alternate" in result.stderr


@pytest.mark.parametrize("stdin, message", [
    (b"{", b"standard input: line 1"),
    (b"[]", b"standard input: a list where an object"),
])
def test_a_request_that_is_no_object_is_named(berth_bin, synthetic_model, stdin, message):
    result = fed(berth_bin, stdin, "render", synthetic_model)
    assert result.returncode == 1 and message in result.stderr


def test_words_and_usage(berth):
    assert berth("model").returncode == 2
    result = berth("model", "inof")
    assert result.returncode == 2 and "did you mean info" in result.stderr
    for word in ["info", "tokenize", "render"]:
        assert berth("model", word, "--help").stdout.startswith(f"usage: berth model {word}")
    assert berth("model", "render").returncode == 2
    assert "im_start" in berth("model", "render", "--chatml").stdout


def test_the_real_model_is_described(berth, real_model):
    out = info_json(berth, real_model)
    assert out["runs"] is True and out["parameters"] == 134515008 and out["kv_bytes_per_token_f16"] == 23040
    assert {e["type"]: e["tensors"] for e in out["tensor_types"]} == {"Q8_0": 1, "F32": 61, "Q4_1": 210}
