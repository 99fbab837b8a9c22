"""What policies are told of who asks: sessions, parents, sub-agents, side requests and tools, read from the server's trace of decisions."""
import json

import pytest

from agents_kit import LIST, chat_tool, messages_tool, ok, responses_tool
from apikit import eventually, post, user

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@pytest.fixture
def ask(start_server, tmp_path):
    """ask(path, body, headers) -> what the policy was told of the history that the request left."""
    trace = tmp_path / "trace.jsonl"
    server = start_server({"trace.path": trace, "engine.threads": 1})
    asked = []

    def ended():
        lines = [json.loads(line) for line in trace.read_text().split("\n")[:-1]] if trace.exists() else []
        return [line for line in lines if line["call"] == "superseded_slots"]

    def send(path=CHAT, body=None, headers=None):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        asked.append(ok(post(server, path, {limit: 200, "ignore_eos": False, **body}, headers=headers or {})))
        lines = eventually(lambda: ended() if len(ended()) >= len(asked) else None)
        assert len(lines) == len(asked)
        snapshot = lines[-1]["snapshot"]
        return max([*snapshot["slots"], snapshot["main"]], key=lambda history: history["last_use_s"])

    return send


def body(path, text, tools=(), **more):
    if path == RESPONSES:
        return {"input": text, "tools": [responses_tool(t) for t in tools], **more}
    return {"messages": user(text), "tools": [(messages_tool if path == MESSAGES else chat_tool)(t) for t in tools], **more}


def test_each_clients_way_of_naming_its_session(ask):
    ways = [(MESSAGES, {}, {"X-Claude-Code-Session-Id": "s-1"}), (MESSAGES, {"metadata": {"user_id": '{"device_id":"d","session_id":"s-1"}'}}, {}),
            (MESSAGES, {"metadata": {"user_id": "user_ab_account_cd_session_s-1"}}, {}), (RESPONSES, {}, {"session-id": "s-1"}),
            (RESPONSES, {}, {"session_id": "s-1"}), (RESPONSES, {}, {"thread-id": "s-1"}), (RESPONSES, {"prompt_cache_key": "s-1"}, {}),
            (CHAT, {"prompt_cache_key": "s-1"}, {}), (CHAT, {}, {"X-Session-Id": "s-1"}), (CHAT, {}, {"x-opencode-session": "s-1"})]
    keys = [ask(path, body(path, "Hello", **more), headers).get("session_key") for path, more, headers in ways]
    assert len(set(keys)) == 1 and keys[0], keys
    assert ask(CHAT, body(CHAT, "Hello"), {"X-Session-Id": "s-2"})["session_key"] not in (keys[0], None)
    assert "session_key" not in ask(CHAT, body(CHAT, "Hello"))
    both = ask(CHAT, body(CHAT, "Hello", prompt_cache_key="other"), {"X-Session-Id": "s-1"})
    assert both["session_key"] == keys[0], "the header goes first"


def test_parents_and_agents(ask):
    alone = ask(CHAT, body(CHAT, "Hello"), {"X-Session-Id": "a"})
    child = ask(CHAT, body(CHAT, "Hello"), {"X-Session-Id": "b", "X-Parent-Session-Id": "a"})
    assert child["parent_key"] == alone["session_key"] and child["subagent"] and "subagent" not in alone
    reviewer = ask(RESPONSES, body(RESPONSES, "Hello"), {"session-id": "a", "x-openai-subagent": "review"})
    assert reviewer["subagent"] and reviewer["session_key"] == alone["session_key"]
    assert reviewer["line_key"] != alone["line_key"]


def test_a_line_is_session_agent_and_first_message(ask):
    first = ask(CHAT, body(CHAT, "One"), {"X-Session-Id": "a"})["line_key"]
    later = {"messages": [*user("One"), {"role": "assistant", "content": "x"}, *user("Two")]}
    assert ask(CHAT, later, {"X-Session-Id": "a"})["line_key"] == first
    assert ask(CHAT, body(CHAT, "Two"), {"X-Session-Id": "a"})["line_key"] != first
    assert ask(CHAT, body(CHAT, "One"), {"X-Session-Id": "b"})["line_key"] != first
    assert ask(CHAT, body(CHAT, "One", cache_prompt=False), {"X-Session-Id": "a"})["line_key"] == first


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_tools_and_side_requests(ask, path):
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    told = ask(path, body(path, "Hello", [LIST], **{limit: 4}))
    assert told["tools"] and "side" not in told
    assert "tools" not in ask(path, body(path, "Hello"))
    assert ask(path, body(path, "quota", **{limit: 1}))["side"]
    assert "side" not in ask(path, body(path, "Why is the sea salt?"))
    assert ask(path, body(path, "Write a short title for this conversation: ships."))["side"]
    assert "side" not in ask(path, body(path, "The capital of the country. " * 310, **{limit: 1})), "a long prompt is a conversation"
