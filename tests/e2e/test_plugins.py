"""What the policies we ship need from outside, told by their symbols: a decision must be a function of its arguments."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# create may allocate, and destroy frees that; everything else is arithmetic.
NEEDS = {"value": {"pow", "malloc", "free"}, "lru": set()}
# What the toolchain puts into every shared object, sanitizers too.
TOOLCHAIN = re.compile(r"__cxa_finalize|__gmon_start__|_ITM_\w+|__stack_chk_fail|__(a|ub|t)san_\w+|__odr_asan\.\w+")


@pytest.fixture(scope="module")
def folder(root):
    return Path(os.environ.get("BERTH_BUILD", root / "build")) / "plugins"


def symbols(path, option):
    out = subprocess.run(["nm", "-D", option, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in out.splitlines()}


@pytest.mark.parametrize("name", NEEDS)
def test_a_policy_shows_one_symbol_and_needs_only_arithmetic(folder, name):
    path = folder / f"{name}.so"
    assert {s for s in symbols(path, "--defined-only") if not TOOLCHAIN.fullmatch(s)} == {"slot_policy_entry"}
    assert {s for s in symbols(path, "--undefined-only") if not TOOLCHAIN.fullmatch(s)} == NEEDS[name]


def test_every_policy_is_looked_at(folder):
    assert {path.stem for path in folder.glob("*.so")} == set(NEEDS)


@pytest.fixture(scope="module")
def plain(folder):
    """The folder, where objdump is there and no sanitizer has put functions and variables of its own into the objects."""
    if not shutil.which("objdump") or any("san_" in s for s in symbols(folder / "lru.so", "--undefined-only")):
        pytest.skip("needs objdump and a build without sanitizers")
    return folder


def objdump(*args):
    return subprocess.run(["objdump", *args], capture_output=True, text=True, check=True).stdout.splitlines()


def test_memory_is_taken_in_create_alone(plain):
    found, function = set(), None
    for line in objdump("-d", "--no-show-raw-insn", plain / "value.so"):
        head = re.match(r"[0-9a-f]+ <(.+)>:", line)
        if head:
            function = head[1]
        elif re.search(r"<(malloc|free)@plt>", line) and not function.endswith("@plt"):
            found.add(function)
    assert found == {"create", "destroy"}


@pytest.mark.parametrize("name", NEEDS)
def test_a_policy_has_nothing_it_could_write(plain, name):
    """Constant tables that hold addresses lie in .data.rel.ro, which is read-only once they are filled in."""
    written = set()
    for line in objdump("-t", plain / f"{name}.so"):
        found = re.match(r"[0-9a-f]+ .{7} (\S+)\s+([0-9a-f]+)\s+(.+)", line)
        if found and found[1] in (".data", ".bss", ".tdata", ".tbss", "*COM*") and int(found[2], 16):
            written.add(found[3])
    assert written <= {"completed.0"}  # the C runtime's own
