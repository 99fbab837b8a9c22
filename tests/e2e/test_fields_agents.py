"""The tables of request fields in docs/api.md: they are the program's own, and what they say of each field is so. The curl lines work.
And a thousand damaged requests for each dialect: refused, or answered, but never a failure of the server."""
import json
import os
import random
import re
import shlex
import subprocess

import pytest

from agents_kit import LIST, READ, chat_tool, messages_tool, responses_tool
from apikit import error_of, post, user
from test_fields import VALUES, mutate

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "count": "/v1/messages/count_tokens", "responses": "/v1/responses",
         "completions": "/v1/completions", "template": "/apply-template", "tokenize": "/tokenize", "detokenize": "/detokenize"}
# These want a folder: test_slot_files.py asks them.
FILES = {"save": "/slots/ID?action=save", "restore": "/slots/ID?action=restore"}
BASE = {"chat": {"messages": user("Hi"), "max_tokens": 1}, "messages": {"messages": user("Hi"), "max_tokens": 1},
        "count": {"messages": user("Hi")}, "responses": {"input": "Hi", "max_output_tokens": 1},
        "completions": {"prompt": "Hi", "max_tokens": 1}, "template": {"messages": user("Hi")}, "tokenize": {"content": "Hi"},
        "detokenize": {"tokens": [1]}}
# Of honoured fields the types of VALUES that are right; written from the makers' references.
LISTS = {"messages", "tools", "include", "tokens"}
OBJECTS = {"reasoning", "thinking", "text", "output_config", "chat_template_kwargs", "response_format", "metadata", "stream_options",
           "cache_control"}
STRINGS = {"instructions", "reasoning_effort", "suffix"}
TYPES = {"input": {"string", "list"}, "prompt": {"string", "list"}, "system": {"string", "list"}, "stop": {"string", "list"},
         "stop_sequences": {"string", "list"}, "logit_bias": {"object", "list"},
         **{name: {"list"} for name in LISTS}, **{name: {"object"} for name in OBJECTS}, **{name: {"string"} for name in STRINGS}}


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "api.md").read_text()


@pytest.fixture(scope="module")
def tables(page):
    """dialect -> {field: (use, note)}"""
    found = {}
    for title, body in re.findall(r"^### POST (\S+)\n\n\|.*\n\|.*\n((?:\|.*\n)+)", page, re.M):
        name = next(name for name, path in {**PATHS, **FILES}.items() if path == title)
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", body, re.M)
        assert len(rows) == body.count("\n")
        found[name] = {field: (use, note) for field, use, note in rows}
    return found


def test_the_tables_in_the_docs_are_the_programs(berth, page):
    tables = berth("--help-api").stdout
    assert tables.count("### POST") == len(PATHS) + len(FILES) and page.endswith(tables), "docs/api.md: run tools/update-api-doc"


def test_every_dialect_has_its_fields(tables):
    assert set(tables) == set(PATHS) | set(FILES)
    assert set(tables["save"]) == {"filename"} and set(tables["restore"]) == {"filename", "cache_salt"}
    for name, wanted in {"chat": {"messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "max_tokens", "stop", "seed",
                                  "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                                  "repeat_penalty", "logit_bias", "n", "logprobs", "top_logprobs", "ignore_eos", "min_tokens",
                                  "stream_options", "chat_template_kwargs", "cache_prompt", "id_slot", "user", "prompt_cache_key"},
                         "messages": {"system", "messages", "max_tokens", "tools", "tool_choice", "thinking", "stop_sequences", "metadata",
                                      "context_management", "output_config", "cache_control", "seed", "cache_prompt", "id_slot"},
                         "responses": {"input", "instructions", "tools", "previous_response_id", "background", "max_output_tokens",
                                       "reasoning", "include", "store", "prompt_cache_key", "text", "truncation"}}.items():
        assert wanted <= set(tables[name]), wanted - set(tables[name])


def right_kinds(dialect, name, note):
    if name == "tool_choice":
        return {"object"} if dialect in ("messages", "count") else {"string", "object"}
    if name == "logprobs" and dialect == "chat":
        return {"true"}
    if name in TYPES:
        return TYPES[name]
    return {"true"} if note.startswith("true or false") else {"string"} if note.startswith("a string") else {"number"}


@pytest.mark.parametrize("dialect", PATHS)
def test_a_wrong_type_of_an_honoured_field_is_named(server, tables, dialect):
    for name, (use, note) in tables[dialect].items():
        if use != "honoured" and not (use == "ignored" and note.startswith(("a string", "true or false"))):
            continue
        right = {"string"} if name in ("model", "user", "prompt_cache_key") else right_kinds(dialect, name, note)
        for kind in set(VALUES) - right:
            error = reply_error(post(server, PATHS[dialect], {**BASE[dialect], name: VALUES[kind]}))
            assert name in error, (dialect, name, kind, error)


def reply_error(reply):
    assert reply.status_code == 400, (reply.status_code, reply.text[:300])
    return reply.json()["error"]["message"]


@pytest.mark.parametrize("dialect", PATHS)
def test_an_ignored_field_may_be_anything_and_changes_nothing(server, tables, dialect):
    plain = post(server, PATHS[dialect], {**BASE[dialect], "temperature": 0}).json()
    for name, (use, note) in tables[dialect].items():
        if use != "ignored":
            continue
        for value in ["text"] if "a string" in note else [True] if "true or false" in note else VALUES.values():
            reply = post(server, PATHS[dialect], {**BASE[dialect], "temperature": 0, name: value})
            assert reply.status_code == 200, (name, value, reply.text)
            for key in ("choices", "content", "input_tokens", "prompt"):
                if key in plain and dialect != "chat":
                    assert reply.json()[key] == plain[key], (name, value)


@pytest.mark.parametrize("dialect", PATHS)
def test_a_refused_field_is_named_with_the_reason_unless_it_is_empty(server, tables, dialect):
    for name, (use, note) in tables[dialect].items():
        if use != "refused":
            continue
        for value in ("text", 7, True, [1], {"a": 1}):
            error = reply_error(post(server, PATHS[dialect], {**BASE[dialect], name: value}))
            assert name in error and note in error
        for value in (None, False, "", [], {}):
            assert post(server, PATHS[dialect], {**BASE[dialect], name: value}).status_code == 200, (name, value)


def test_an_unknown_field_is_ignored_everywhere(server):
    for dialect, path in PATHS.items():
        assert post(server, path, {**BASE[dialect], "no_such_field": {"a": [1]}}).status_code == 200


def test_extensions_work_in_every_dialect(server):
    for dialect in ("chat", "messages", "responses", "completions"):
        body = {**BASE[dialect], "seed": 7, "min_p": 0.1, "repeat_penalty": 1.1, "id_slot": 2, "cache_prompt": False, "top_k": 5}
        reply = post(server, PATHS[dialect], body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["timings"]["cache_n"] == 0 and reply.headers["X-Berth-Slot"] == "2"


def test_the_curl_lines_of_the_docs_work(server, page):
    block = re.search(r"## Ask\n.*?```sh\n(.*?)```", page, re.S).group(1)
    lines = [line for line in block.replace("\\\n", " ").split("\n") if line.strip()]
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line.replace("http://127.0.0.1:8080", server.url))
        done = subprocess.run([words[0], "-sS", "-w", "\n%{http_code}", *words[1:]], capture_output=True, text=True, timeout=60)
        assert done.stdout.endswith("\n200"), (line, done.stdout, done.stderr)


FULL = {
    "chat": {"model": "m", "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                                        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [
                                            {"id": "a", "type": "function", "function": {"name": "read_berth", "arguments": "{\"path\": 1}"}}]},
                                        {"role": "tool", "tool_call_id": "a", "content": "x"}], "max_tokens": 2,
             "tools": [chat_tool(READ), chat_tool(LIST)], "tool_choice": "auto", "stop": ["a"], "reasoning_effort": "low"},
    "messages": {"model": "m", "max_tokens": 2, "system": [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
                 "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                              {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": "s"},
                                                                {"type": "tool_use", "id": "a", "name": "read_berth", "input": {"path": 1}}]},
                              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
                                  {"type": "text", "text": "x"}, {"type": "tool_reference", "tool_name": "list_berths"}]}]}],
                 "tools": [messages_tool(READ), messages_tool(LIST, defer_loading=True)], "thinking": {"type": "adaptive"},
                 "metadata": {"user_id": "{\"session_id\": \"s\"}"}, "stop_sequences": ["a"], "tool_choice": {"type": "auto"}},
    "responses": {"model": "m", "max_output_tokens": 2, "instructions": "Be brief", "include": ["reasoning.encrypted_content"],
                  "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "encrypted_content": "berth-1.SG0="},
                            {"type": "function_call", "call_id": "a", "name": "look", "namespace": "n", "arguments": "{\"path\": 1}"},
                            {"type": "function_call_output", "call_id": "a", "output": "x"}],
                  "tools": [responses_tool(READ), {"type": "namespace", "name": "n", "tools": [responses_tool(LIST)]}, {"type": "web_search"}],
                  "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
    "completions": {"prompt": ["Hi", "there"], "max_tokens": 2, "logprobs": 1, "stop": "x", "logit_bias": {"5": 1}},
    "count": {"messages": user("Hi"), "system": "x", "tools": [messages_tool(READ)]},
}
ODD = [None, -1, 0, 1e308, "", "x", [], {}, [None], [[]], {"a": None}, "\u0000", True, {"type": "text"}, {"type": 1}, [{"type": "text"}]]


def mutate_inside(rng, value):
    """The same tree with one place changed: a value exchanged, a key lost or doubled under another name."""
    places = []

    def walk(node, set_it):
        places.append((node, set_it))
        if isinstance(node, dict):
            for key in node:
                walk(node[key], lambda new, node=node, key=key: node.__setitem__(key, new))
        elif isinstance(node, list):
            for i in range(len(node)):
                walk(node[i], lambda new, node=node, i=i: node.__setitem__(i, new))

    value = json.loads(json.dumps(value))
    walk(value, lambda new: None)
    node, set_it = rng.choice(places[1:])
    if isinstance(node, dict) and node and rng.random() < 0.4:
        node.pop(rng.choice(list(node)))
    elif isinstance(node, list) and node and rng.random() < 0.4:
        node.append(rng.choice(node))
    else:
        set_it(rng.choice(ODD))
    return value


@pytest.mark.parametrize("dialect", FULL)
def test_a_thousand_damaged_requests(scripted, script, dialect):
    script()
    server = scripted("reasoner", {"model.context": 1024})
    rng = random.Random(dialect)
    n = 1000 if float(os.environ.get("BERTH_SLOW", "1")) == 1 else 100
    seen = {200: 0, 400: 0}
    for i in range(n):
        body = FULL[dialect]
        for _ in range(rng.randrange(1, 4)):
            body = mutate_inside(rng, body)
        if isinstance(body, dict):
            body["stream"] = body.get("stream", i % 3 == 0)
        text = json.dumps(body).encode()
        if i % 4 == 3:
            try:
                text = mutate(rng, text)
            except ValueError:
                pass
        reply = post(server, PATHS[dialect], text)
        assert reply.status_code in seen, (reply.status_code, reply.text, text)
        seen[reply.status_code] += 1
        if reply.status_code == 400:
            assert reply.json()["error"]["message"]
        elif reply.headers["Content-Type"].startswith("text/event-stream"):
            assert b"error" not in reply.content.replace(b"\"error\":null", b""), (reply.content, text)
    server.check_alive()
    assert min(seen.values()) > n // 20, seen


def test_refusals_of_other_kinds_name_the_field(server):
    error = error_of(post(server, PATHS["chat"], {**BASE["chat"], "functions": [{"name": "f"}]}))
    assert error["param"] == "functions" and "use tools" in error["message"]
