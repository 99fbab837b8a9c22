"""What the tests of the agents' dialects share: tools in each dialect's form, named events, what was processed of a prompt."""
import json

from apikit import post

BLOCK = 64  # tokens of a block of the pool: what may be read again at most
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": "Where it lies"}}, "required": ["path"]}
READ = ("read_berth", "Reads what a berth holds", SCHEMA)
LIST = ("list_berths", "Lists the berths of a harbour", {"type": "object", "properties": {"harbour": {"type": "string"}}})


def chat_tool(tool):
    return {"type": "function", "function": {"name": tool[0], "description": tool[1], "parameters": tool[2]}}


def messages_tool(tool, **more):
    return {"name": tool[0], "description": tool[1], "input_schema": tool[2], **more}


def responses_tool(tool):
    return {"type": "function", "name": tool[0], "description": tool[1], "parameters": tool[2], "strict": False}


def call_text(name, arguments):
    """A call as the Hermes form writes it, with the JSON that templates write."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"


def named_events(server, path, body, **options):
    """The events of a stream as (name, data); comments are left out."""
    with post(server, path, {**body, "stream": True}, stream=True, **options) as reply:
        assert reply.status_code == 200, reply.text
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        blob = b"".join(reply.iter_content(None)).decode()
    assert blob.endswith("\n\n")
    events = []
    for block in blob[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        data = json.loads(data[6:])
        assert data["type"] == name[7:]
        events.append((name[7:], data))
    return events


def ok(reply):
    assert reply.status_code == 200, f"{reply.status_code}: {reply.text[:600]}"
    return reply.json()
