"""The reference for the chat renderer: Python's jinja2, set up the way Hugging Face's transformers sets it up, and a
batch driver for ours. Used by test_render.py and test_render_random.py."""
import copy
import datetime
import functools
import json
import os
import pathlib
import subprocess

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOW = 1760000000  # 2025-10-09 08:53:20 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model said; when a prompt is made it changes nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(fmt):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(fmt)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


@functools.lru_cache(maxsize=64)
def _compiled(env, template):
    return env.from_string(template)


def reference(env, template, variables):
    """("text", result) or ("error", what was raised)."""
    try:
        text = _compiled(env, template).render(**copy.deepcopy(variables))
        text.encode("utf-8")
        return "text", text
    except jinja2.exceptions.TemplateError as e:
        return "error", f"{type(e).__name__}: {e}"
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError,
            AssertionError, LookupError, SyntaxError) as e:
        return "error", f"{type(e).__name__}: {e}"


def driver():
    berth = pathlib.Path(os.environ.get("BERTH_BIN", ROOT / "build" / "berth"))
    path = pathlib.Path(os.environ.get("BERTH_BUILD", berth.parent)) / "tests" / "render_cases"
    assert path.exists(), f"{path} is not built"
    return path


def render_all(cases):
    """cases: (template, variables) pairs. Returns ("text", result) or ("error", message) for each."""
    lines = "".join(json.dumps({"template": t, "vars": v, "now": NOW}) + "\n" for t, v in cases)
    done = subprocess.run([str(driver())], input=lines.encode(), capture_output=True, timeout=300, check=True)
    assert done.stderr == b"", done.stderr.decode()  # what a sanitizer has to say
    out = []
    for line in done.stdout.decode().removesuffix("\n").split("\n"):
        answer = json.loads(line)
        out.append(("text", answer["text"]) if "text" in answer else ("error", answer["error"]))
    assert len(out) == len(cases)
    return out


def differences(cases):
    """What differs, as text; texts must be the same byte for byte, and where jinja2 fails ours must fail too."""
    env = environment()
    wrong = []
    for (template, variables), ours in zip(cases, render_all(cases)):
        theirs = reference(env, template, variables)
        if theirs[0] != ours[0] or (ours[0] == "text" and theirs[1] != ours[1]):
            wrong.append(f"template: {template!r}\nvars: {json.dumps(variables)[:2000]}\njinja2: {theirs}\nours:   {ours}\n")
    return wrong
