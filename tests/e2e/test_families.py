"""Files as the families have them: template, turn token, end of turn. Each serves a chat and stops where its turn ends."""
import pytest
import requests

from conftest import ROOT

TEMPLATES = ROOT / "tests" / "data" / "templates"
SHAPE = ["--layers", "2", "--embd", "64", "--heads", "2", "--kv-heads", "1", "--ff", "64", "--vocab", "300"]

# The architecture, template, tokens that start and end a turn, further control tokens. Only Mistral's end of turn is also the
# end of sequence that the file names.
FAMILIES = {
    "llama3": ("llama", "llama3", "<|start_header_id|>", "<|eot_id|>", ["<|end_header_id|>", "<|begin_of_text|>"], True),
    "qwen2.5": ("qwen2", "qwen25", "<|im_start|>", "<|im_end|>", ["<tool_call>", "</tool_call>"], True),
    "qwen3": ("qwen3", "qwen3", "<|im_start|>", "<|im_end|>", ["<think>", "</think>"], True),
    "gemma3": ("gemma3", "gemma_tools", "<start_of_turn>", "<end_of_turn>", ["<bos>"], True),
    "mistral": ("llama", "mistral", "[INST]", "</s>", ["[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"], False),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_stops_at_the_end_of_the_turn(start_server, make_model, family):
    arch, template, turn, end, control, eos_is_text = FAMILIES[family]
    args = [*SHAPE, "--arch", arch, "--template", TEMPLATES / f"{template}.jinja", "--turn", turn, "--end", end]
    args += ["--window", "16"] if arch == "gemma3" else []
    args += ["--eos-is-text"] if eos_is_text else []
    for token in control:
        args += ["--control", token]
    server = start_server({"engine.threads": 1, "model.context": 4096, "engine.kv_tokens": 8192}, model=make_model(*args))

    def ids(text):
        return requests.post(server.url + "/tokenize", json={"content": text, "parse_special": True}, timeout=30).json()["tokens"]

    def chat(**fields):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "temperature": 0, **fields}
        reply = requests.post(server.url + "/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        return reply.json()

    assert len(ids(turn)) == len(ids(end)) == 1
    engine = requests.get(server.url + "/metrics?format=json", timeout=30).json()["engine"]
    assert engine["turn_token"] == turn
    open_end = chat(logit_bias={str(ids(end)[0]): -100})
    assert open_end["choices"][0]["finish_reason"] == "length" and open_end["usage"]["completion_tokens"] == 5
    ended = chat(logit_bias={str(ids(end)[0]): 100})
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert not ended["choices"][0]["message"]["content"] and ended["usage"]["completion_tokens"] <= 1


def test_chatml_ends_in_letters_where_it_has_no_token(scripted, script, make_model):
    """A model without a template of its own is spoken to in ChatML, whatever its vocabulary has."""
    model = make_model(*SHAPE, "--turn", "<start_of_turn>", "--end", "<end_of_turn>")
    server = scripted("qwen2", {"model.context": 512, "engine.kv_tokens": 2048}, model)
    script(("Hello", "A buoy.<|im_end|>\n<|im_start|>user\nAnd?"))

    def ask(path, **fields):
        reply = requests.post(server.url + path, json={"max_tokens": 100, **fields}, timeout=60)
        assert reply.status_code == 200, reply.text
        return reply.json()

    messages = [{"role": "user", "content": "Hello"}]
    choice = ask("/v1/chat/completions", messages=messages)["choices"][0]
    assert choice["message"]["content"] == "A buoy." and choice["finish_reason"] == "stop"
    message = ask("/v1/messages", messages=messages, model="m", stop_sequences=["sea"])
    assert message["content"][0]["text"] == "A buoy." and message["stop_reason"] == "end_turn" and message["stop_sequence"] is None
    message = ask("/v1/messages", messages=messages, model="m", stop_sequences=["sea", "uoy"])
    assert message["content"][0]["text"] == "A b" and message["stop_sequence"] == "uoy"
    for path, fields in [("/v1/completions", {"prompt": "Hello"}), ("/v1/chat/completions", {"messages": messages, "ignore_eos": True})]:
        assert "<|im_end|>" in str(ask(path, **fields)["choices"][0])
