"""The committed table of character classes against Python's own, whatever Unicode version that Python has."""
import re
import subprocess
import sys
import unicodedata

from conftest import ROOT

OTHER, MARK, PUNCTUATION, SPACE, NUMBER, LETTER, UPPER, LOWER = range(8)


def read_table():
    text = (ROOT / "core/model/unicode_data.c").read_text()
    version = re.search(r'unicode_version\[\] = "([\d.]+)"', text).group(1)
    index = [int(n) for n in re.findall(r"\d+", re.search(r"unicode_index\[\d+\] = \{(.*?)\};", text, re.S).group(1))]
    words = [int(w, 16) for w in re.findall(r"0x([0-9a-f]{16})u", text)]
    return version, index, words


def test_every_character_has_the_class_of_its_category():
    version, index, words = read_table()
    older = tuple(map(int, version.split("."))) < tuple(map(int, unicodedata.unidata_version.split(".")))
    wrong = []
    for cp in range(0x110000):
        block = index[cp >> 8] if cp >> 8 < len(index) else None
        found = OTHER if block is None else words[16 * block + ((cp >> 4) & 15)] >> 4 * (cp & 15) & 15
        category = unicodedata.category(chr(cp))
        want = {"L": LETTER, "N": NUMBER, "Z": SPACE, "P": PUNCTUATION, "M": MARK}.get(category[0], OTHER)
        want = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER}.get(category, want)
        if 9 <= cp <= 13 or cp == 0x85:
            want = SPACE
        # A newer Python knows characters that the table cannot know; what the table knows must still be so.
        if found != want and not (older and found == OTHER):
            wrong.append(f"U+{cp:04X}: {found}, want {want}")
    assert not wrong


def test_the_generator_writes_the_committed_file_again():
    version, _, _ = read_table()
    text = subprocess.run([sys.executable, ROOT / "tools/make-unicode"], capture_output=True, text=True, check=True).stdout
    same = text == (ROOT / "core/model/unicode_data.c").read_text()
    assert same == (version == unicodedata.unidata_version)
