"""What of a conversation is read again: for each client's way of asking, a question, a round of tools and a further question.

Each request after the first processes what is new in it and at most one block more: whatever the client does to the answer when it
sends it back (other spaces in arguments, a list of parts for a string, reasoning sealed or open, cache marks that move).
"""
import json

import pytest

from agents_kit import BLOCK, LIST, READ, call_text, chat_tool, messages_tool, named_events, ok, responses_tool
from apikit import events, post

# Template, and what the model says first. Where the template knows no reasoning it says none.
LOOK = "I will look at two things. Both are short.\n" + call_text("read_berth", {"path": "seven/ü.txt", "lines": [1, 2.5], "deep": {"a": None}}) \
    + "\n" + call_text("list_berths", {"harbour": "north"})
ONE = call_text("read_berth", {"path": "seven"})
# The same in the form of Qwen's coders: a string is written as it is, anything else as JSON.
XML = """I will look at two things. Both are short.

<tool_call>
<function=read_berth>
<parameter=path>
 5
seven/ü.txt
</parameter>
<parameter=deep>
{"a": [1, 2.5, null]}
</parameter>
</function>
</tool_call>
<tool_call>
<function=list_berths>
<parameter=harbour>
north
</parameter>
</function>
</tool_call>"""
XML_ONE = "<tool_call>\n<function=read_berth>\n<parameter=path>\n7\n</parameter>\n</function>\n</tool_call>"
CASES = {"qwen25": LOOK, "reasoner": "<think>\nThe list first?\nNo.\n</think>\n\n" + LOOK, None: LOOK, "qwen3_coder": XML}


class Client:
    """A conversation as one client leads it. `ask` sends it on and takes the answer into it."""

    path = "/v1/chat/completions"

    def __init__(self, server):
        self.server, self.calls = server, []

    def say(self, text):
        raise NotImplementedError

    def results(self, texts):
        """The results of the last answer's calls."""
        raise NotImplementedError

    def ask(self):
        """(tokens of the prompt, of them cached, tokens of the answer)"""
        raise NotImplementedError


class QwenCode(Client):
    """Streams; every content is a list of parts; writes arguments anew, without spaces; sends reasoning back."""

    def __init__(self, server):
        super().__init__(server)
        self.messages = [{"role": "system", "content": [{"type": "text", "text": "You keep the books of a harbour. " * 8}]}]

    def say(self, text):
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def results(self, texts):
        for call, text in zip(self.calls, texts):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": text}]})

    def ask(self):
        body = {"model": "m", "messages": self.messages, "tools": [chat_tool(READ), chat_tool(LIST)], "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, "max_tokens": 8000}
        with post(self.server, self.path, body, stream=True) as reply:
            chunks = [json.loads(value) for kind, value in events(reply) if kind == "data" and value != "[DONE]"]
        message, calls = {"content": "", "reasoning_content": ""}, []
        for chunk in chunks[:-1]:
            delta = chunk["choices"][0]["delta"]
            for key in message:
                message[key] += delta.get(key) or ""
            for part in delta.get("tool_calls", []):
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": "function", "function": {"name": part["function"]["name"], "arguments": ""}})
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        for call in calls:
            parsed = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False)
        self.calls = calls
        answer = {"role": "assistant", "content": [{"type": "text", "text": message["content"]}] if message["content"] else None}
        if message["reasoning_content"]:
            answer["reasoning_content"] = message["reasoning_content"]
        self.messages.append({**answer, **({"tool_calls": calls} if calls else {})})
        usage = chunks[-1]["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


class MiniSwe(Client):
    """Does not stream; the answer goes back as it came; users speak twice in a row; one tool at a time."""

    def __init__(self, server):
        super().__init__(server)
        self.messages = [{"role": "system", "content": "You keep the books of a harbour. " * 8}]

    def say(self, text):
        self.messages += [{"role": "user", "content": text}, {"role": "user", "content": "Answer soon."}]

    def results(self, texts):
        for call, text in zip(self.calls, texts):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def ask(self):
        reply = ok(post(self.server, self.path, {"model": "m", "messages": self.messages, "tools": [chat_tool(READ), chat_tool(LIST)]}))
        message = reply["choices"][0]["message"]
        self.messages.append(message)
        self.calls = message.get("tool_calls", [])
        usage = reply["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


class OpenCode(QwenCode):
    """Streams as qwen-code does, and all contents are strings."""

    def ask(self):
        for message in self.messages:
            if isinstance(message["content"], list):
                message["content"] = message["content"][0]["text"]
        return super().ask()


class ClaudeCode(Client):
    """Streams Messages; the first message is a list of one block, later a string; the cache mark moves; the billing line changes;
    thinking goes back with its signature."""

    path = "/v1/messages?beta=true"

    def __init__(self, server):
        super().__init__(server)
        self.messages, self.turn = [], 0

    def say(self, text):
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]})

    def results(self, texts):
        blocks = [{"type": "tool_result", "tool_use_id": call["id"], "content": text} for call, text in zip(self.calls, texts)]
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
        self.messages.append({"role": "user", "content": blocks})

    def ask(self):
        self.turn += 1
        for message in self.messages[:-1]:
            for block in message["content"] if isinstance(message["content"], list) else []:
                block.pop("cache_control", None)
            if isinstance(message["content"], list) and [b["type"] for b in message["content"]] == ["text"] and message["role"] == "user":
                message["content"] = message["content"][0]["text"]
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={self.turn}{id(self)};"},
                  {"type": "text", "text": "You keep the books.", "cache_control": {"type": "ephemeral"}},
                  {"type": "text", "text": "Berths have numbers. " * 8}]
        body = {"model": "m", "max_tokens": 32000, "system": system, "messages": self.messages, "thinking": {"type": "adaptive"},
                "tools": [messages_tool(READ), messages_tool(LIST), messages_tool(("later", "", {"type": "object"}), defer_loading=True)]}
        content, usage = [], None
        for name, data in named_events(self.server, self.path, body):
            if name == "content_block_start":
                content.append(dict(data["content_block"]))
                partial = ""
            elif name == "content_block_delta":
                delta = data["delta"]
                if delta["type"] == "input_json_delta":
                    partial += delta["partial_json"]
                else:
                    key = delta["type"].removesuffix("_delta")
                    content[-1][key] += delta[key]
            elif name == "content_block_stop" and content[-1]["type"] == "tool_use":
                content[-1]["input"] = json.loads(partial)
            elif name == "message_delta":
                usage = data["usage"]
        self.messages.append({"role": "assistant", "content": content})
        self.calls = [b for b in content if b["type"] == "tool_use"]
        cached = usage["cache_read_input_tokens"]
        return cached + usage["cache_creation_input_tokens"] + usage["input_tokens"], cached, usage["output_tokens"]


class Codex(Client):
    """Streams Responses; sends items back one by one, reasoning sealed, without ids; no limit to the answer."""

    path = "/v1/responses"

    def __init__(self, server):
        super().__init__(server)
        self.items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Berths have numbers. " * 6}]},
                      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<wind>north</wind>"}]}]

    def say(self, text):
        self.items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})

    def results(self, texts):
        for call, text in zip(self.calls, texts):
            self.items.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})

    def ask(self):
        body = {"model": "m", "instructions": "You keep the books.", "input": self.items, "store": False,
                "tools": [responses_tool(READ), responses_tool(LIST), {"type": "web_search"}], "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "k"}
        stream = named_events(self.server, self.path, body)
        done = [data["item"] for name, data in stream if name == "response.output_item.done"]
        self.calls = [item for item in done if item["type"] == "function_call"]
        for item in done:
            kept = {k: v for k, v in item.items() if k not in ("id", "status")}
            if item["type"] == "reasoning":
                kept["content"] = None
            self.items.append({k: v for k, v in kept.items() if v is not None})
        usage = stream[-1][1]["response"]["usage"]
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


@pytest.mark.parametrize("template", CASES, ids=lambda t: t or "own")
@pytest.mark.parametrize("kind", [QwenCode, OpenCode, MiniSwe, ClaudeCode, Codex])
def test_each_turn_reads_what_is_new_and_at_most_one_block(scripted, script, kind, template):
    server = scripted(template)
    think = "<think>\nOnly one.\n</think>\n\n" if template == "reasoner" else ""
    script((f"berths of {kind.__name__}", CASES[template]), ("nine ships", think + (XML_ONE if template == "qwen3_coder" else ONE)), ("a red buoy", "It is a red buoy."),
           ("And now", "Nothing more."))
    client = kind(server)
    client.say(f"Tell me about the berths of {kind.__name__}.")
    prompt, cached, generated = client.ask()
    assert len(client.calls) == 2
    for step, texts in enumerate((["three, four", "nine ships"], ["a red buoy"])):
        client.results(texts)
        before, said = prompt, generated
        prompt, cached, generated = client.ask()
        assert prompt - cached <= prompt - (before + said) + BLOCK, (step, prompt, cached, before, said)
    assert not client.calls
    client.say("And now?")
    before, said = prompt, generated
    prompt, cached, generated = client.ask()
    if template != "reasoner":  # which takes the reasoning out of what was said before a question
        assert prompt - cached <= prompt - (before + said) + BLOCK, (prompt, cached, before, said)


def test_two_answers_of_one_conversation_share_their_beginning(scripted, script):
    """A retry, or another client with the same beginning: all of it is there."""
    server = scripted("qwen25")
    script(("berths of Nobody", "None."))
    for kind in (QwenCode, Codex):
        first, second = kind(server), kind(server)
        for client in (first, second):
            client.say("Tell me about the berths of Nobody.")
        n, _, _ = first.ask()
        assert second.ask()[:2] == (n, n - 1)


@pytest.mark.parametrize("kind", [QwenCode, OpenCode, MiniSwe, ClaudeCode, Codex])
def test_a_call_that_the_model_wrote_otherwise_is_all_that_is_read_again(scripted, script, kind):
    """The template writes calls in one form; where the model's own differs the next turn reads it once more, in that form."""
    server = scripted("qwen25")
    said = '<tool_call>{"name":"read_berth","arguments":{"lines":[1,2],\n   "path":"seven"}}</tool_call>'
    script((f"compact {kind.__name__}", said), ("a red buoy", ONE), ("nine ships", "Nothing more."))
    client = kind(server)
    client.say(f"Tell me about the compact {kind.__name__}.")
    first, _, _ = client.ask()
    client.results(["a red buoy"])
    prompt, cached, generated = client.ask()
    assert cached >= first - BLOCK, "nothing before the call"
    client.results(["nine ships"])
    before, said = prompt, generated
    prompt, cached, _ = client.ask()
    assert prompt - cached <= prompt - (before + said) + BLOCK, "and only once"
