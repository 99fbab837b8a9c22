"""Tokenizers against brute force: the published regular expressions of each pre-tokenizer, merges tried one by one, and
SentencePiece's rules over random vocabularies; and the reference's ids for Gemma 3."""
import json
import os
import random
import struct
import subprocess
from pathlib import Path

import gguf
import pytest
import regex
import requests
from conftest import ROOT
from test_unicode import LETTER, LOWER, MARK, NUMBER, OTHER, PUNCTUATION, SPACE, UPPER, read_table

PARSE_SPECIAL, ADD_SPECIAL, ADD_END = 1, 2, 4
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-"
    "\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18"
    "-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-"
    "\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-"
    "\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-"
    "\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
HEAD, TAIL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{HEAD}*{TAIL}+|[^\r\n\p{{L}}\p{{N}}]?{HEAD}+{TAIL}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
# Each pattern cuts the pieces that the ones before it left: what it matches is a piece, and so is what lies between.
PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [WORDS.replace("{DIGITS}", "{1,3}")],
    "qwen2": [WORDS.replace("{DIGITS}", "")],
    "tekken": [TEKKEN],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+",
                     "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+\Z",
                     "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+"],
}


def compiled(pattern):
    return regex.compile(pattern.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}"))


def cut(patterns, text):
    pieces = [text]
    for pattern in patterns:
        finer = []
        for piece in pieces:
            at = 0
            for match in pattern.finditer(piece):
                finer += [piece[at:match.start()], match.group()]
                at = match.end()
            finer.append(piece[at:])
        pieces = [piece for piece in finer if piece]
    return pieces


def as_text(data):
    """Bytes as the patterns see them: each that is not UTF-8 is a character that is none of anything."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text):
    return text.encode("utf-8", "surrogateescape")


class Tokenizer:
    def __init__(self, berth_bin, path):
        build = Path(os.environ.get("BERTH_BUILD", berth_bin.parent))
        self.args = [str(build / "tests" / "tokenize_cases"), str(path)]

    def __call__(self, cases):
        """[(bytes, flags)] -> [(ids, the bytes they stand for)]"""
        stdin = b"".join(struct.pack("<IB", len(data), flags) + data for data, flags in cases)
        result = subprocess.run(self.args, input=stdin, capture_output=True, timeout=100)
        assert result.returncode == 0, result.stderr.decode()
        out, at, answers = result.stdout, 0, []
        while at < len(out):
            n, = struct.unpack_from("<I", out, at)
            ids = list(struct.unpack_from(f"<{n}i", out, at + 4))
            size, = struct.unpack_from("<I", out, at + 4 + 4 * n)
            at += 8 + 4 * n
            answers.append((ids, out[at:at + size]))
            at += size
        assert len(answers) == len(cases)
        return answers


@pytest.fixture
def opened(berth_bin, tmp_path):
    """opened(model, tokens, ...) -> a Tokenizer over a file with this vocabulary"""
    def make(model, tokens, types, pre=None, merges=None, scores=None, **keys):
        path = tmp_path / "vocabulary.gguf"
        w = gguf.GGUFWriter(path, "llama")
        w.add_tokenizer_model(model)
        if pre:
            w.add_tokenizer_pre(pre)
        w.add_token_list(tokens)
        w.add_token_types(types)
        if merges is not None:
            w.add_token_merges(merges)
        if scores is not None:
            w.add_token_scores(scores)
        for name, value in keys.items():
            (w.add_bool if isinstance(value, bool) else w.add_uint32)(f"tokenizer.ggml.{name}", value)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.close()
        return Tokenizer(berth_bin, path)
    return make


@pytest.fixture(scope="module")
def characters():
    """Some characters of every class, those that patterns name, and all of the first 384."""
    _, index, words = read_table()
    by_class = {n: [] for n in range(8)}
    for cp in range(0x110000):
        if cp >> 8 < len(index) and not 0xd800 <= cp < 0xe000:
            by_class[words[16 * index[cp >> 8] + (cp >> 4 & 15)] >> 4 * (cp & 15) & 15].append(chr(cp))
    # `regex` may know a newer Unicode: where it differs there is nothing to compare.
    same = {LETTER: r"[\p{Lm}\p{Lo}]", UPPER: r"[\p{Lu}\p{Lt}]", LOWER: r"\p{Ll}", NUMBER: r"\p{N}", SPACE: r"\p{White_Space}",
            PUNCTUATION: r"\p{P}", MARK: r"\p{M}", OTHER: r"[^\p{L}\p{M}\p{N}\p{White_Space}\p{P}]"}
    rng = random.Random(1)
    found = {}
    for kind, chars in by_class.items():
        chosen = rng.sample(chars, min(len(chars), 150)) + [c for c in chars if c < "\u0180"]
        found[kind] = [c for c in chosen if regex.fullmatch(same[kind], c)]
        assert len(found[kind]) > 20
    return found


def random_text(rng, characters):
    """Text that patterns stumble over, as bytes: characters of all classes, long runs of one, invalid UTF-8."""
    words = ["'s", "'LL", "'\u017f", "'\u017fab", "'Re", "don't", " the", "x", "Ab", "\r\n", "\n\n", "  ", "   \n ", "123", " 4567", "!?",
             " -- ", "\t", "\u3000", "\u2003", "é", "café", "\u2018a", "中文", "가나", "１２３", "٣٤٥", "Ḁb", "$+<", "🙂", "HTTPServer", "ÉCOLEs", "A\u0301b", "!\r/\n", "//", "ǅab", " \u3000", "  \u3000a",
             "。a", "\u0301", "1", "12", "<|x|>"]
    out = []
    for _ in range(rng.randrange(1, 14)):
        roll = rng.randrange(20)
        if roll < 8:
            out.append(rng.choice(words).encode())
        elif roll < 17:
            out.append(rng.choice(characters[rng.randrange(8)]).encode())
        elif roll == 17:
            out.append(rng.choice(characters[rng.randrange(8)]).encode() * rng.randrange(2, 40))
        elif roll == 18:
            out.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 4))))
        else:
            out.append(rng.choice(["\u2003 ", " \u3000", "  \u3000a", "a1", "ḀA", "! ", "1\u0663", "日AB!", "\u0301A?"]).encode() * rng.randrange(2, 20))
    return b"".join(out)


def byte_letters():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(plain)]
    return {**{b: chr(b) for b in plain}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


LETTERS = byte_letters()


class ByteLevel:
    """Byte pair encoding by trying every pair again and again. The merges are learned from texts that were not cut, so
    that they join whatever a pre-tokenizer forgets to keep apart."""

    def __init__(self, rng, texts, n_merges, ignore_merges):
        self.ignore_merges = ignore_merges
        self.merges = {}
        tokens = [LETTERS[b] for b in range(256)]
        joined = [[LETTERS[b] for b in text] for text in texts]
        while len(self.merges) < n_merges:
            text = rng.choice([text for text in joined if len(text) > 1])
            at = rng.randrange(len(text) - 1)
            pair = text[at], text[at + 1]
            if len("".join(pair)) > 24 or "".join(pair) in tokens:
                joined = [text[:at] + text[at + 1:]] + joined if rng.randrange(8) == 0 else joined
                continue
            self.merges[pair] = len(self.merges)
            tokens.append("".join(pair))
            joined = [self.join(text, pair) for text in joined]
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}

    @staticmethod
    def join(symbols, pair):
        out, i = [], 0
        while i < len(symbols):
            if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
                out.append(symbols[i] + symbols[i + 1])
                i += 2
            else:
                out.append(symbols[i])
                i += 1
        return out

    def add(self, token):
        if token not in self.ids:
            self.ids[token] = len(self.tokens)
            self.tokens.append(token)

    def encode(self, piece):
        symbols = [LETTERS[b] for b in as_bytes(piece)]
        if self.ignore_merges and "".join(symbols) in self.ids:
            return [self.ids["".join(symbols)]]
        while True:
            pairs = [p for p in zip(symbols, symbols[1:]) if p in self.merges]
            if not pairs:
                return [self.ids[s] for s in symbols]
            symbols = self.join(symbols, min(pairs, key=self.merges.get))


@pytest.mark.parametrize("name", PATTERNS)
def test_pieces_are_those_of_the_regular_expressions(opened, characters, name):
    rng = random.Random(name)
    texts = [random_text(rng, characters) for _ in range(400)]
    patterns = [compiled(p) for p in PATTERNS[name]]
    vocabulary = ByteLevel(rng, texts[:120], 400, name in ("llama-bpe", "tekken"))
    for text in texts[:60]:
        # Whole pieces that no merge makes.
        vocabulary.add("".join(LETTERS[b] for b in as_bytes(rng.choice(cut(patterns, as_text(text))))))
    tokens = vocabulary.tokens
    answers = opened("gpt2", tokens, [NORMAL] * len(tokens), pre=name, merges=[" ".join(m) for m in vocabulary.merges])(
        [(text, 0) for text in texts])
    for text, (ids, back) in zip(texts, answers):
        pieces = cut(patterns, as_text(text))
        assert back == text
        assert ids == [i for piece in pieces for i in vocabulary.encode(piece)], (text, pieces)


def test_names_that_mean_the_same_pre_tokenizer(opened):
    tokens = [LETTERS[b] for b in range(256)] + ["don", "12"]
    for names, bos in [(["llama-bpe", "llama3", "llama-v3"], [3]), (["qwen2", "deepseek-r1-qwen"], [])]:
        for name in names:
            tokenizer = opened("gpt2", tokens, [NORMAL] * 258, pre=name, merges=["1 2"], bos_token_id=3)
            assert tokenizer([(b"don", ADD_SPECIAL)])[0][0] == bos + ([256] if bos else list(b"don"))
            assert tokenizer([(b"12", 0)])[0][0] == ([257] if bos else list(b"12"))


# --- SentencePiece-style ---


class SentencePiece:
    """The rules by the letter: the best pair of all is joined, the leftmost of equals, and all are looked at again."""

    def __init__(self, tokens, types, scores, space_prefix, unknown):
        self.scores, self.space_prefix, self.unknown = scores, space_prefix, unknown
        self.normal, self.bytes, self.special = {}, {}, {}
        for i, (token, kind) in enumerate(zip(tokens, types)):
            if kind == NORMAL:
                self.normal.setdefault(token.replace("▁", " "), i)
            elif kind == BYTE:
                self.bytes[int(token[3:5], 16)] = i
            elif kind != UNUSED:
                self.special[token.replace("▁", " ")] = (i, kind)

    def encode_plain(self, text, first):
        spaced = text.startswith(" ") and not first
        symbols = list((" " if self.space_prefix and not spaced else "") + text)
        while True:
            best = None
            for i, pair in enumerate(zip(symbols, symbols[1:])):
                token = self.normal.get("".join(pair))
                if token is not None and (best is None or self.scores[token] > self.scores[best[0]]):
                    best = token, i
            if best is None:
                break
            symbols[best[1]:best[1] + 2] = ["".join(symbols[best[1]:best[1] + 2])]
        ids = []
        for symbol in symbols:
            if symbol in self.normal:
                ids.append(self.normal[symbol])
            elif self.bytes:
                ids += [self.bytes[b] for b in as_bytes(symbol)]
            else:
                ids.append(self.unknown)
        return ids

    def encode(self, text, parse_special):
        ids, plain, at = [], "", 0
        text = text.replace("▁", " ")
        while at < len(text):
            here = [t for t, (_, kind) in self.special.items()
                    if text.startswith(t, at) and (parse_special or kind == USER_DEFINED)]
            if not here:
                plain += text[at]
                at += 1
                continue
            token = max(here, key=lambda t: len(t.encode()))
            ids += self.encode_plain(plain, not ids) if plain else []
            ids.append(self.special[token][0])
            plain = ""
            at += len(token)
        return ids + (self.encode_plain(plain, not ids) if plain else [])


def random_vocabulary(rng, texts, with_bytes, tied):
    tokens = ["<unk>", "<s>", "</s>", "<u>", "  ", "<u><u>", "<pad7>", "▁<v>"]
    types = [UNKNOWN, CONTROL, CONTROL, USER_DEFINED, USER_DEFINED, USER_DEFINED, UNUSED, CONTROL]
    if with_bytes:
        tokens += [f"<0x{b:02X}>" for b in range(256)]
        types += [BYTE] * 256
    words = set()
    for text in texts:
        text = (" " + text).replace(" ", "▁")
        words |= set(rng.sample(text, len(text) // 2))
        for _ in range(10):
            at = rng.randrange(len(text))
            words |= {text[at:at + n] for n in range(1, rng.randrange(1, 9)) if text[at:at + n]}
    words = sorted(w for w in words if w not in tokens and not regex.search(r"[\ud800-\udfff]", w))
    rng.shuffle(words)
    tokens += words
    types += [NORMAL] * len(words)
    scores = [float(-rng.randrange(6)) if tied else -float(i) for i in range(len(tokens))]
    if not tied:
        rng.shuffle(scores)
    return tokens, types, scores


@pytest.mark.parametrize("with_bytes", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_by_the_letter(opened, characters, with_bytes, tied, space_prefix):
    rng = random.Random(f"{with_bytes} {tied} {space_prefix}")
    alphabet = list("aabbc  ▁é中🙂") + rng.sample(characters[LETTER], 3)
    texts = []
    for i in range(400):
        parts = [rng.choice(alphabet) for _ in range(rng.randrange(1, 100 if i % 8 == 0 else 20))]
        parts += rng.choices(["<u>", "<s>", "</s>", "  ", "<u", "<pad7>", " <v>", "▁<v>", "▁ ", "\udcff", "\udce2\udc96"], k=rng.randrange(4))
        rng.shuffle(parts)
        texts.append(as_text(as_bytes("".join(parts))))
    tokens, types, scores = random_vocabulary(rng, texts[:40], with_bytes, tied)
    brute = SentencePiece(tokens, types, scores, space_prefix, 0)
    tokenizer = opened("llama", tokens, types, scores=scores, add_space_prefix=space_prefix)
    cases = [(text, special) for text in texts for special in (0, PARSE_SPECIAL)]
    answers = tokenizer([(as_bytes(text), special) for text, special in cases])
    for (text, special), (ids, back) in zip(cases, answers):
        assert ids == brute.encode(text, special), text
        if with_bytes and not space_prefix:
            assert back.replace("▁".encode(), b" ") == as_bytes(text.replace("▁", " "))


def test_sentencepiece_adds_what_the_model_wants(opened):
    tokens, types = ["<unk>", "<s>", "</s>", "a", "▁"], [UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL]
    scores = [0.0, 0.0, 0.0, -1.0, -2.0]
    for keys, want in [({}, [1, 4, 3]), ({"add_bos_token": False}, [4, 3]), ({"add_eos_token": True}, [1, 4, 3, 2]),
                       ({"add_space_prefix": False}, [1, 3]), ({"bos_token_id": 2}, [2, 4, 3])]:
        assert opened("llama", tokens, types, scores=scores, **keys)([(b"a", ADD_SPECIAL | ADD_END)])[0][0] == want
    tokenizer = opened("llama", tokens, types, scores=scores)
    assert tokenizer([(b"", ADD_SPECIAL), (b"<s>a</s>", PARSE_SPECIAL), (b"a??b", 0)]) == [
        ([1], b"<s>"), ([1, 4, 3, 2], b"<s> a</s>"), ([4, 3, 0, 0, 0], b" a<unk><unk><unk>")]
    # A template's own space is that space, or the model would read its answer otherwise than it wrote it.
    assert tokenizer([(b" a", 0), (b"<s> a</s>", PARSE_SPECIAL), (b"<s>  a", PARSE_SPECIAL)]) == [
        ([4, 4, 3], b"  a"), ([1, 4, 3, 2], b"<s> a</s>"), ([1, 4, 4, 3], b"<s>  a")]


def test_a_server_speaks_through_a_sentencepiece_vocabulary(start_server, make_model):
    server = start_server({"engine.threads": 1}, model=make_model("--layers", "2", "--tokenizer", "llama"))

    def post(path, **body):
        reply = requests.post(server.url + path, json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        return reply

    for text in ["the harbour", " two  spaces", "café 🙂", "a<|im_end|>b", ""]:
        tokens = post("/tokenize", content=text).json()["tokens"]
        # A space before text after a special token is not taken back: nobody knows whose it was.
        assert post("/detokenize", tokens=tokens).json()["content"] == text.replace("<|im_end|>b", "<|im_end|> b")
    assert post("/detokenize", tokens=[]).json()["content"] == ""
    pieces = post("/tokenize", content="the 🙂", with_pieces=True).json()["tokens"]
    assert pieces[0]["piece"].startswith(" t") and [p["piece"] for p in pieces[-4:]] == [[b] for b in "🙂".encode()]

    smile = [p["id"] for p in pieces[-4:]]
    body = {"prompt": "the harbour", "max_tokens": 6, "temperature": 0, "stream": True, "logit_bias": {smile[0]: 100}}
    lines = [json.loads(line[6:]) for line in post("/v1/completions", **body).content.decode().splitlines()
             if line.startswith("data: {")]
    # Bytes that never become a character come out as one replacement each.
    assert "".join(line["choices"][0]["text"] for line in lines if line["choices"]) == "\ufffd" * 6


@pytest.mark.long
def test_the_ids_of_the_reference_for_gemma(berth_bin, gemma_model):
    cases = [json.loads(line) for line in (ROOT / "tests/data/tokenizer-gemma3.jsonl").read_text().splitlines()]
    flags = [PARSE_SPECIAL * c["parse_special"] | ADD_SPECIAL * c["add_special"] for c in cases]
    answers = Tokenizer(berth_bin, gemma_model)([(c["text"].encode(), f) for c, f in zip(cases, flags)])
    assert len(cases) >= 460
    for case, (ids, _) in zip(cases, answers):
        assert ids == case["ids"], case["text"]
