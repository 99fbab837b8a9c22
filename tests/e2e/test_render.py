"""The chat renderer against Python's jinja2: every template of tests/data/templates with every conversation, byte for
byte, and small templates for single features. Where jinja2 raises, ours must refuse."""
import itertools
import json
import os
import pathlib
import subprocess

import pytest

import jinja_reference as reference
from conftest import SLOW

DATA = pathlib.Path(os.environ.get("BERTH_TEST_DATA", pathlib.Path(__file__).parent.parent / "data"))
TEMPLATES = sorted((DATA / "templates").glob("*.jinja"))

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a <city> & its \"suburbs\"",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "for example Zürich "},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "days": {"type": ["integer", "null"], "description": "how many"},
            "where": {"type": "array", "items": {"type": "number"}},
            "more": {"type": "object", "properties": {"a": {"type": "boolean"}}}}}}},
    {"type": "function", "function": {"name": "now", "description": "the time", "parameters": {
        "type": "object", "properties": {}}}},
]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def calls(*arguments):
    return [{"id": f"call0000{i}", "type": "function", "function": {"name": "get_weather", "arguments": a}}
            for i, a in enumerate(arguments)]


SYSTEM = {"role": "system", "content": "Be brief.\n"}
CONVERSATIONS = {
    "one": [user("Hello")],
    "turns": [SYSTEM, user(" Hello\nthere  "), assistant("Hi! "), user("ünïcödé 日本語 🎉\t<b>\"&'")],
    "thought": [user("a"), assistant("<think>\nhm\n</think>\n\nanswer"), user("b"), assistant("x", reasoning_content="why")],
    "call": [SYSTEM, user("w?"), assistant(None, tool_calls=calls({"city": "Paris", "days": 1.5, "ok": True, "x": None})),
             {"role": "tool", "tool_call_id": "call00000", "name": "get_weather", "content": "{\"t\": 20}"},
             assistant("20."), user("thanks")],
    "calls": [user("w?"), assistant("", tool_calls=calls("{\"city\": \"Rome\"}", {})),
              {"role": "tool", "tool_call_id": "call00000", "content": "20"},
              {"role": "tool", "tool_call_id": "call00001", "content": "<21>"}],
    "parts": [user([{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": " two"}]),
              assistant([{"type": "text", "text": "ok"}]), user("go on")],
    "same role twice": [user("a"), user("b")],
    "assistant first": [assistant("x"), user("b")],
    "unknown role": [user("a"), {"role": "developer", "content": "c"}],
    "empty text": [SYSTEM, user(""), assistant("")],
    "nothing": [],
}
SETTINGS = [
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": TOOLS, "enable_thinking": False, "reasoning_effort": "high"},
    {"add_generation_prompt": True, "tools": None, "documents": [{"title": "t", "text": "x"}], "date_string": "1 May"},
]


def corpus(path):
    template = path.read_text(encoding="utf-8")
    for messages, settings in itertools.product(CONVERSATIONS.values(), SETTINGS):
        yield template, {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", **settings}


def test_there_are_templates():
    assert len(TEMPLATES) >= 40


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_a_template_gives_what_jinja2_gives(path):
    wrong = reference.differences(list(corpus(path)))
    assert not wrong, wrong[0]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_a_template_works_for_most_conversations(path):
    """So that the comparison is not one of errors with errors."""
    env = reference.environment()
    kinds = [reference.reference(env, t, v)[0] for t, v in corpus(path)]
    assert kinds.count("text") >= len(kinds) // 4


def test_raise_exception_gives_the_same_message():
    env = reference.environment()
    for path in TEMPLATES:
        cases = list(corpus(path))
        for (template, variables), ours in zip(cases, reference.render_all(cases)):
            kind, theirs = reference.reference(env, template, variables)
            if kind == "error" and theirs.startswith("TemplateError: "):
                assert ours == ("error", theirs.removeprefix("TemplateError: "))


VARIABLES = {
    "s": "Hello, Wörld! ", "e": "", "n": 7, "z": 0, "f": 2.5, "t": True, "none": None, "l": [3, 1, 2, 1],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": 5}, "m": [{"k": "b", "v": 2}, {"k": "a", "v": 1}, {"k": "B"}],
    "lines": "one\n\n  two\r\nthree\u2028four\n", "big": "x" * 300,
}

FEATURES = [line for line in (DATA / "templates" / "features.txt").read_text(encoding="utf-8").split("\n---\n") if line]


def test_single_features():
    wrong = reference.differences([(t, VARIABLES) for t in FEATURES])
    assert not wrong, "\n".join(wrong)


def test_case_mappings_are_pythons():
    """Every character there is, in blocks, through upper, lower, title and capitalize."""
    text = "{{ s|upper }}\n{{ s|lower }}\n{{ s.title() }}\n{{ s|title }}\n{{ s|capitalize }}\n{{ s.swapcase() }}"
    cases = []
    for start in range(0, 0x20000, 64):
        chars = [chr(c) for c in range(start, start + 64) if not 0xD800 <= c < 0xE000]
        cases.append((text, {"s": " ".join(chars)}))
        cases.append((text, {"s": "".join(c + "a" for c in chars)}))
    env = reference.environment()
    wrong = 0
    for (template, variables), ours in zip(cases, reference.render_all(cases)):
        theirs = reference.reference(env, template, variables)
        wrong += theirs != ours
    # a Python with a newer Unicode knows a few letters more
    assert wrong <= 10


HOSTILE = {
    "endless": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
    "calls itself": ("{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}", "deeper"),
    "writes much": ("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "16 MiB"),
    "keeps much": ("{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "16 MiB"),
    "both": ("{% set s = 'x' * 7900000 %}{% for a in range(9) %}{{ s }}{% endfor %}", "16 MiB"),
    "large source": ("{{ 'a' " + "'a' " * 60000 + "}}", "15 MiB"),
    "deep brackets": ("{{ " + "(" * 200000, "inside one another"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_template_ends_soon_and_small(berth_bin, what, tmp_path):
    source, words = HOSTILE[what]

    def run(text):
        (tmp_path / "t.jinja").write_text(text)
        with open(tmp_path / "in.json", "w+") as given, open(tmp_path / "err", "w+") as told:
            given.write("{}")
            given.seek(0)
            child = subprocess.Popen([str(berth_bin), "model", "render", "--template", str(tmp_path / "t.jinja")], stdin=given,
                                     stdout=subprocess.DEVNULL, stderr=told)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, (tmp_path / "err").read_text()

    code, seconds, mib, _ = run("harmless")
    assert code == 0
    hostile_code, hostile_seconds, hostile_mib, told = run(source)
    assert hostile_code == 1 and words in told
    if SLOW == 1:  # a sanitizer has its own ideas of time and memory
        assert hostile_seconds - seconds < 0.5, "0.1 s is the aim; what nothing bounds takes many seconds"
        assert hostile_mib - mib < 17, "16 MiB, and what the allocator and the source take"


def test_berth_model_render_is_the_same_renderer(berth_bin):
    path = DATA / "templates" / "llama3.jinja"
    template = path.read_text(encoding="utf-8")
    request = {"messages": CONVERSATIONS["turns"], "add_generation_prompt": True, "date_string": "1 May",
               "bos_token": "<s>", "eos_token": "</s>"}
    done = subprocess.run([str(berth_bin), "model", "render", "--template", str(path)], input=json.dumps(request).encode(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    kind, text = reference.reference(reference.environment(), template, request)
    assert kind == "text"
    assert done.stdout.decode() == text
