"""Allocations that fail, each of a request's in turn (tests/starved): the request gets a 503, or an answer to what it asked and not to
a part of it; nothing crashes, and the next request is answered as ever. AddressSanitizer's run of this looks for leaks at the end.
"""
import mmap
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from agents_kit import READ, chat_tool, messages_tool, responses_tool
from apikit import balanced, get, metrics, post

TALK = [{"role": "system", "content": "Berths have numbers."}, {"role": "user", "content": "Count the ships."}]
CALL = {"id": "a", "type": "function", "function": {"name": "read_berth", "arguments": '{"path": "seven"}'}}
COMMON = {"temperature": 0, "cache_prompt": False}
BODIES = {
    "/v1/chat/completions": {"messages": [*TALK, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "a", "content": "nine"}],
                             "tools": [chat_tool(READ)], "max_tokens": 4, "stop": ["zzz"], "logprobs": True, "top_logprobs": 2},
    "/v1/messages": {"system": [{"type": "text", "text": "Berths have numbers."}], "tools": [messages_tool(READ)], "max_tokens": 4, "messages": [
        *TALK[1:], {"role": "assistant", "content": [{"type": "thinking", "thinking": "Well."},
                                                     {"type": "tool_use", "id": "a", "name": "read_berth", "input": {"path": "seven"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "nine"}]}]},
    "/v1/responses": {"instructions": "Berths have numbers.", "tools": [responses_tool(READ)], "max_output_tokens": 4, "input": [
        *TALK[1:], {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Well."}]},
        {"type": "function_call", "call_id": "a", "name": "read_berth", "arguments": '{"path": "seven"}'},
        {"type": "function_call_output", "call_id": "a", "output": "nine"}]},
    "/v1/completions": {"prompt": ["Ships", "Tides"], "max_tokens": 4, "logit_bias": {"40": 1}},
    "/tokenize": {"content": "Berths have numbers.", "with_pieces": True},
    "/apply-template": {"messages": TALK},
}


class Ration:
    """How many more allocations succeed before one fails; how many failed."""

    def __init__(self, path):
        path.write_bytes(bytes(16))
        with open(path, "r+b") as f:
            self.path, self.map = path, mmap.mmap(f.fileno(), 16)

    def set(self, n):
        self.map[:8] = struct.pack("<q", n)

    @property
    def failed(self):
        return struct.unpack("<q", self.map[8:])[0]


@pytest.fixture
def ration(tmp_path):
    return Ration(tmp_path / "ration")


@pytest.fixture
def binary():
    return Path(os.environ["BERTH_BUILD"]) / "tests" / "berth_starved"


def told(answer):
    """What does not differ from one answer to the next."""
    return {k: v for k, v in answer.items() if k in ("usage", "choices", "content", "tokens", "prompt")} | {
        "output": [[c["text"] for c in item["content"]] for item in answer.get("output", [])]}


def starve(ration, step, ask, wanted, good):
    """Has allocations of ask() fail, each step-th in turn, until ask() needs fewer; returns how many it needs."""
    n, reached = 1 - step, True
    while reached:
        n, before = n + step, ration.failed
        ration.set(n)
        reply = ask()
        ration.set(0)
        reached = ration.failed > before
        if reply.status_code == 200:
            assert good(reply.json()) == wanted, n
        else:
            assert reached and reply.status_code in (500, 503), (n, reply.status_code, reply.text)
    return n


STEPS = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])


@STEPS
@pytest.mark.parametrize("path", BODIES)
def test_a_request(start_server, root, binary, ration, path, step):
    server = start_server({"engine.threads": 1, "model.chat_template": root / "tests" / "data" / "templates" / "qwen25.jinja"}, binary=binary,
                          env={"BERTH_STARVE": str(ration.path)})
    body = {**BODIES[path], **COMMON}
    wanted = told(post(server, path, body).json())
    assert starve(ration, step, lambda: post(server, path, body), wanted, told) > 10
    assert told(post(server, path, body).json()) == wanted
    assert balanced(metrics(server)) and get(server, "/ready").status_code == 200


@STEPS
def test_a_reload(start_server, binary, ration, step):
    """Another policy comes into use, or the old one stays with all settings; and the next reload works."""
    plugins = Path(os.environ["BERTH_BUILD"]) / "plugins"
    server = start_server({"engine.threads": 1, "policy.path": plugins / "lru.so"}, binary=binary, env={"BERTH_STARVE": str(ration.path)})

    def state():
        return {k: v for k, v in get(server, "/admin/policy").json().items() if k in ("name", "path", "settings")}

    wanted, n, reached = state(), 1 - step, True
    while reached:
        n, before = n + 8 * step, ration.failed
        ration.set(n)
        reply = post(server, "/admin/reload", {})
        ration.set(0)
        reached = ration.failed > before
        assert reply.status_code == 200 or reached and reply.status_code in (422, 500, 503), (n, reply.text)
        assert state() == wanted, n
    assert n > 100


@STEPS
@pytest.mark.parametrize("words, least", [("check --set engine.threads=1 --set model.path=", 300), ("model info ", 100)])
def test_a_command(binary, synthetic_model, ration, words, least, step):
    """It ends as ever, or with a message of one line."""
    command = [binary, *(words + str(synthetic_model)).split(" ")]

    def run():
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "BERTH_STARVE": str(ration.path)}, timeout=60)

    wanted, n, reached = run(), 1 - step, True
    while reached:
        n, before = n + 3 * step, ration.failed
        ration.set(n)
        done = run()
        reached = ration.failed > before
        if done.returncode == 0:
            assert done.stdout == wanted.stdout or re.search("(because|template error) .* memory", done.stdout), (n, done)
        else:
            assert done.returncode == 1 and re.fullmatch("berth: .*[Mm]emory.*\n", done.stderr), (n, done)
    assert n > least
