"""llama.cpp's endpoints in its shapes: /tokenize, /detokenize, /apply-template, /props, /slots; /events."""
import pytest

from apikit import chat, error_of, get, metrics, post, user


@pytest.mark.parametrize("text", ["", "Hello", "  two  spaces", "naïve café", "日本語 text", "\u0000\n\t", "<|im_start|>", "🙂" * 20])
def test_text_comes_back(server, text):
    for special in (True, False):
        ids = post(server, "/tokenize", {"content": text, "parse_special": special}).json()["tokens"]
        assert all(isinstance(i, int) for i in ids)
        assert post(server, "/detokenize", {"tokens": ids}).json() == {"content": text}


def test_special_text_is_a_token_unless_told_otherwise(server):
    one = post(server, "/tokenize", {"content": "<|im_start|>"}).json()["tokens"]
    plain = post(server, "/tokenize", {"content": "<|im_start|>", "parse_special": False}).json()["tokens"]
    assert len(one) == 1 < len(plain)


def test_pieces_are_text_or_bytes(server):
    text = "tide 𐍈"
    tokens = post(server, "/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    raw = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in (t["piece"] for t in tokens))
    assert raw.decode() == text and any(isinstance(t["piece"], list) for t in tokens)
    assert [t["id"] for t in tokens] == post(server, "/tokenize", {"content": text}).json()["tokens"]


@pytest.mark.parametrize("path, body, param", [
    ("/tokenize", {}, "content"), ("/tokenize", {"content": 3}, "content"), ("/tokenize", {"content": "x", "add_special": 1}, "add_special"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens"), ("/detokenize", {"tokens": [1, "x"]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [10**9]}, "tokens"),
    ("/apply-template", {}, "messages"), ("/apply-template", {"messages": [1]}, "messages[0]"),
])
def test_wrong_values_are_named(server, path, body, param):
    assert error_of(post(server, path, body))["param"] == param


def test_props_say_what_is_served(server):
    props = get(server, "/props").json()
    assert props["total_slots"] == 64 and props["default_generation_settings"]["n_ctx"] == 16384
    assert "im_start" in props["chat_template"] and props["default_generation_settings"]["params"]["temperature"] == 0.7
    assert props["model_path"].endswith(".gguf") and props["eos_token"]


def test_slots_say_what_they_hold(start_server):
    server = start_server({"engine.slots": 3, "engine.rows": 2})
    reply = chat(server, max_tokens=5, id_slot=1)
    slots = get(server, "/slots").json()
    assert reply["timings"]["slot"] == 1 and slots[1]["state"] == "expired" and slots[2]["state"] == "blank"
    assert [s["id"] for s in slots] == [0, 1, 2] and not any(s["is_processing"] for s in slots)
    # The last token was chosen and never read.
    assert slots[reply["timings"]["slot"]]["n_prompt_tokens"] == reply["usage"]["total_tokens"] - 1


def test_events_say_where_the_last_requests_ran(start_server):
    server = start_server({"engine.slots": 3, "engine.rows": 2})
    for text in ("Hi", "Something else"):
        assert chat(server, text, max_tokens=5)["timings"]["slot"] == -1, "alone: in the solo session"
    events = get(server, "/events?format=json").json()["events"]
    assert [e["kind"] for e in events] == ["place", "park", "place"]
    assert [e["id"] for e in events] == [1, 2, 3] and [e["slot"] for e in events] == ["main", 0, "main"]
    assert events[1]["source"] == "main" and events[1]["reason"] == "parked"
    assert metrics(server)["live"]["solo_tokens"] > 0


def test_id_slot_is_honoured_when_idle(server):
    for slot in (7, 3):
        reply = post(server, "/v1/chat/completions", {"messages": user("Hi"), "max_tokens": 2, "id_slot": slot})
        assert reply.json()["timings"]["slot"] == slot and reply.headers["X-Berth-Slot"] == str(slot)
