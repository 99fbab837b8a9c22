"""Which part may include what, and the lengths that keep files and functions readable.

The arrows are those of the architecture: nothing points up or sideways.
"""
import re
import statistics
import subprocess

import pytest

# room -> rooms whose headers it may include (its own and util are always allowed).
ARROWS = {
    "core/util": set(),
    "core/config": set(),
    "core/model": set(),
    "core/engine": {"core/model", "kernels"},
    "core/abi": set(),
    "core/slots": {"core/abi"},
    "core/policy": {"core/abi", "core/slots"},
    "core/sched": {"core/engine", "core/model", "core/slots", "core/policy", "core/abi"},
    "core/http": set(),
    "core/api": {"core/http", "core/model", "core/sched"},
    "core": {"core/policy", "core/abi", "core/config", "core/sched", "core/http", "core/api", "core/engine", "core/model"},
    "kernels": set(),
    "plugins": {"core/abi"},
}
# Files of a room that may see less than the room: pure parts know no engine, no threads, no time.
FORBIDDEN = {
    "core/model": r"<(pthread|threads|event2/.*)\.h>|\"util/(clock|queue|log)\.h\"",
    "core/engine": r"<event2/.*>|<jansson\.h>",
    "core/abi": r"\"util/",  # what a policy includes stands alone
    "core/slots": r"<(pthread|threads|event2/.*|jansson)\.h>|\"util/(clock|queue|log)\.h\"",
    "core/policy": r"<event2/.*>",
    "core/policy/host.c": r"<(event2/.*|jansson)\.h>|\"util/(clock|queue)\.h\"",  # asks and checks, no more
    "core/policy/builtin.c": r"<|\"(util|slots)/",
    "core/sched": r"<event2/.*>|<jansson\.h>|<sys/socket\.h>",
    "core/http": r"<jansson\.h>",
    "kernels": r"<event2/.*>|<jansson\.h>|\"util/|\"model/|\"engine/",
    "core/api": r"<sys/socket\.h>|<event2/http.*>|<event2/event\.h>",
    "plugins": r"\"(?!policy\.h|policy_words\.h)|<(?!(math|stdlib|string)\.h>)",
}


def sources(root, *patterns):
    out = subprocess.run(["git", "ls-files", *patterns], cwd=root, capture_output=True, text=True, check=True).stdout
    return [root / name for name in out.split() if (root / name).is_file()]


def room_of(root, path):
    parent = path.parent.relative_to(root).as_posix()
    while parent not in ARROWS:
        parent = parent.rpartition("/")[0]
    return parent


def resolve(root, path, name):
    bases = (root / "core/abi",) if path.parent.name == "plugins" else (path.parent, root / "core", root)
    for base in bases:
        if (base / name).is_file():
            return base / name
    return None


@pytest.fixture(scope="module")
def ours(root):
    files = sources(root, "core/*.c", "core/*.h", "kernels/*.c", "kernels/*.h", "plugins/*.c")
    assert len(files) > 40
    return files


def test_includes_follow_the_arrows(root, ours):
    wrong = []
    for path in ours:
        room = room_of(root, path)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
            target = resolve(root, path, name)
            if target is None:
                wrong.append(f"{path.relative_to(root)}: {name} is not found")
                continue
            other = room_of(root, target)
            if other not in ARROWS[room] | {room, "core/util"} or (room == "kernels" and other != "kernels"):
                wrong.append(f"{path.relative_to(root)} includes {name}: {room} may not see {other}")
    assert not wrong, "\n".join(wrong)


def test_every_part_stays_ignorant_of_what_it_must_not_know(root, ours):
    wrong = []
    for path in ours:
        pattern = FORBIDDEN.get(path.relative_to(root).as_posix(), FORBIDDEN.get(room_of(root, path)))
        for line in re.findall(r"^\s*#\s*include\s+(.*)$", path.read_text(), re.M):
            if pattern and re.match(pattern, line):
                wrong.append(f"{path.relative_to(root)} includes {line}")
    assert not wrong, "\n".join(wrong)


def test_only_the_clock_asks_what_time_it_is(root, ours):
    calls = re.compile(r"\b(clock_gettime|gettimeofday|timespec_get|clock|time)\s*\(\s*(NULL|0|CLOCK|&|\))")
    wrong = [str(p.relative_to(root)) for p in ours if "core" in p.parts and p.name != "clock.c" and calls.search(p.read_text())]
    assert not wrong, " ".join(wrong)


def test_files_and_headers_keep_their_length(root):
    wrong = []
    for path in sources(root, "*.c", "*.h", "*.cu", "*.cuh", "*.py"):
        lines = path.read_text().count("\n")
        name = path.relative_to(root).as_posix()
        limit = 150 if path.suffix == ".h" else 800
        # Code that is compiled once per instruction set, or into one test program, is a body and not an interface.
        if path.suffix == ".h" and name.startswith(("kernels/cpu_", "tests/")):
            limit = 400
        if name.startswith("core/abi/"):
            limit = 500  # these are documents: thread tags, lifetimes and bounds of every word
        if re.search(r"_data\.(c|h)$", path.name):  # tables written by a tool
            continue
        if lines > limit:
            wrong.append(f"{path.relative_to(root)}: {lines} lines, {limit} allowed")
    assert not wrong, "\n".join(wrong)


def functions(path):
    """(name, lines) of every function defined in a C file formatted the way ours are: braces in column one."""
    name, start, result = None, 0, []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line == "{" and number:
            head = " ".join(lines[max(0, number - 8):number])
            found = re.findall(r"(\w+)\([^;{}]*\)[^;{}]*$", head)
            name, start = (found[0] if found else f"line {number}"), number
        elif line == "}" and name:
            result.append((name, number - start + 1))
            name = None
    return result


def test_functions_keep_their_length(root):
    lengths, too_long = [], []
    for path in sources(root, "core/*.c", "kernels/*.c", "plugins/*.c"):
        for name, n in functions(path):
            lengths.append(n)
            if n > 120:
                too_long.append(f"{path.relative_to(root)} {name}: {n} lines, 120 allowed")
    assert len(lengths) > 200
    assert not too_long, "\n".join(too_long)
    assert statistics.median(lengths) < 20
    assert sum(n <= 50 for n in lengths) >= 0.9 * len(lengths)


def test_every_file_opens_with_what_it_is(root, ours):
    wrong = [str(p.relative_to(root)) for p in ours if not p.read_text().startswith("/*")]
    assert not wrong, "files without an opening comment: " + " ".join(wrong)


def test_nothing_is_left_for_later(root):
    files = sources(root, "core", "kernels", "plugins", "tests", "tools", "conf", "*.md", "Makefile", "meson.build")
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK" + r")\b")
    wrong = [f"{p.relative_to(root)}:{n}" for p in files if p.suffix not in (".json", ".jsonl", ".gguf", ".jinja", ".txt")
             for n, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
             if words.search(line) and "words = re" not in line]
    assert not wrong, " ".join(wrong)
