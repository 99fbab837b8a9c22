/* Pre-tokenizer deepseek-llm: six patterns, each of which cuts the pieces that those before it left, so that
 * both what it matches and what lies between becomes a piece:
 *
 *     [\r\n]    \s?LETTERS+    \s?MARKS+    \s+$    IDEOGRAPHS+    \p{N}+
 *
 * with three sets of characters that are listed here and overlap: ASCII letters are MARKS as well, and
 * IDEOGRAPHS begin at U+0800. No pattern looks back, so a piece's end is the first place where any of them
 * ends or begins, and what follows can be taken as a text of its own. Pure; any thread.
 * Tests: tests/e2e/test_tokenizers.py */
#include "model/tokenizer_char.h"
#include "model/tokenizer_pre.h"

struct range {
    uint32_t first, last;
};

/* clang-format off */
static const struct range letters[] = {
    { 0x41, 0x5a }, { 0x61, 0x7a }, { 0xb5, 0xb5 }, { 0xc0, 0xd6 }, { 0xd8, 0xf6 }, { 0xf8, 0x1ba },
    { 0x1bc, 0x1bf }, { 0x1c4, 0x293 }, { 0x295, 0x2af }, { 0x370, 0x373 }, { 0x376, 0x377 },
    { 0x37b, 0x37d }, { 0x37f, 0x37f }, { 0x386, 0x386 }, { 0x388, 0x38a }, { 0x38c, 0x38c },
    { 0x38e, 0x3a1 }, { 0x3a3, 0x3f5 }, { 0x3f7, 0x481 }, { 0x48a, 0x52f }, { 0x531, 0x556 },
    { 0x10a0, 0x10c5 }, { 0x13a0, 0x13f5 }, { 0x13f8, 0x13fd }, { 0x1c90, 0x1cba }, { 0x1cbd, 0x1cbf },
    { 0x1d00, 0x1d2b }, { 0x1d6b, 0x1d77 }, { 0x1d79, 0x1d9a }, { 0x1e00, 0x1f15 }, { 0x1f18, 0x1f1d },
    { 0x1f20, 0x1f45 }, { 0x1f48, 0x1f4d }, { 0x1f50, 0x1f57 }, { 0x1f59, 0x1f59 }, { 0x1f5b, 0x1f5b },
    { 0x1f5d, 0x1f5d }, { 0x1f5f, 0x1f7d }, { 0x1f80, 0x1fb4 }, { 0x1fb6, 0x1fbc }, { 0x1fbe, 0x1fbe },
    { 0x1fc2, 0x1fc4 }, { 0x1fc6, 0x1fcc }, { 0x1fd0, 0x1fd3 }, { 0x1fd6, 0x1fdb }, { 0x1fe0, 0x1fec },
    { 0x1ff2, 0x1ff4 }, { 0x1ff6, 0x1ffc }, { 0x2102, 0x2102 }, { 0x2107, 0x2107 }, { 0x210a, 0x2113 },
    { 0x2115, 0x2115 }, { 0x2119, 0x211d }, { 0x2124, 0x2124 }, { 0x2126, 0x2126 }, { 0x2128, 0x2128 },
    { 0x212a, 0x212d }, { 0x212f, 0x2134 }, { 0x2139, 0x2139 }, { 0x213c, 0x213f }, { 0x2145, 0x2149 },
    { 0x214e, 0x214e }, { 0x2183, 0x2184 }, { 0x2c00, 0x2c7b }, { 0x2c7e, 0x2ce4 }, { 0x2ceb, 0x2cee },
    { 0x2cf2, 0x2cf3 }, { 0xa640, 0xa66d }, { 0xa680, 0xa69b }, { 0xa722, 0xa76f }, { 0xa771, 0xa787 },
    { 0xa78b, 0xa78e }, { 0xab70, 0xabbf }, { 0xfb00, 0xfb06 }, { 0xfb13, 0xfb17 }, { 0xff21, 0xff3a },
    { 0xff41, 0xff5a }, { 0x10400, 0x1044f }, { 0x104b0, 0x104d3 }, { 0x104d8, 0x104fb },
    { 0x10c80, 0x10cb2 }, { 0x10cc0, 0x10cf2 }, { 0x118a0, 0x118df }, { 0x1e900, 0x1e943 },
};
/* clang-format on */

static const struct range marks[] = { { '!', '/' },       { ':', '~' },       { 0x2018, 0x201f },
                                      { 0x3000, 0x3002 }, { 0xff01, 0xff0f }, { 0xff1a, 0xff5e } };

static const struct range ideographs[] = { { 0x800, 0x9fa5 }, { 0xac00, 0xd7ff } };

static bool in_ranges(const struct range *ranges, size_t n, uint32_t cp)
{
    size_t low = 0;
    while (n > 0) {
        size_t half = n / 2;
        if (ranges[low + half].last < cp) {
            low += half + 1;
            n -= half + 1;
        } else {
            if (ranges[low + half].first <= cp)
                return true;
            n = half;
        }
    }
    return false;
}

#define IN(set, c) in_ranges(set, sizeof(set) / sizeof(set)[0], (c).cp)

/* A place in the text, and what the patterns say of the character there. */
struct place {
    const char *text;
    size_t len, at;
    struct character c; /* len 0: the text ends here, or a line break does it */
};

static struct place place_at(const char *text, size_t len, size_t at)
{
    struct place p = { .text = text, .len = len, .at = at };
    if (at < len)
        p.c = character_at(text + at, len - at);
    if (character_is_newline(p.c))
        p.c.len = 0;
    return p;
}

static struct place after(struct place p)
{
    return place_at(p.text, p.len, p.at + p.c.len);
}

/* Whether a match of \s?LETTERS+ begins here. */
static bool begins_word(struct place p)
{
    if (IN(letters, p.c))
        return true;
    return p.c.class == UNICODE_SPACE && IN(letters, after(p).c);
}

/* Which patterns' matches the place lies in. */
struct inside {
    bool word, marks, ideographs, number;
};

/* Whether the place p, not the first of a piece, goes on with what the second pattern made of it. */
static bool same_word(struct inside in, struct place p)
{
    return p.c.len && (in.word ? IN(letters, p.c) : !begins_word(p));
}

/* Whether a match of \s?MARKS+ begins here. */
static bool begins_marks(struct inside in, struct place p)
{
    if (IN(marks, p.c))
        return true;
    struct place next = after(p);
    return p.c.class == UNICODE_SPACE && same_word(in, next) && IN(marks, next.c);
}

static bool same_marks(struct inside in, struct place p)
{
    return same_word(in, p) && (in.marks ? IN(marks, p.c) : !begins_marks(in, p));
}

/* Whether nothing but spaces is left of the piece that the first three patterns made. */
static bool only_spaces_left(struct inside in, struct place p)
{
    while (same_marks(in, p) && p.c.class == UNICODE_SPACE)
        p = after(p);
    return !same_marks(in, p);
}

size_t tokenizer_deepseek_piece(const char *text, size_t len)
{
    struct place p = place_at(text, len, 0);
    struct inside in = { 0 };
    if (p.c.len == 0)
        return 1;
    in.word = begins_word(p);
    in.marks = begins_marks(in, p);
    in.ideographs = IN(ideographs, p.c);
    in.number = p.c.class == UNICODE_NUMBER;

    for (bool spaces = true;;) {
        spaces = spaces && p.c.class == UNICODE_SPACE;
        p = after(p);
        if (!same_marks(in, p) || IN(ideographs, p.c) != in.ideographs ||
            (p.c.class == UNICODE_NUMBER) != in.number)
            return p.at;
        /* Asked once for each run of spaces, so that cutting a text stays linear: either the piece ends here,
         * or it takes the run in, and what begins with spaces need not ask. */
        if (p.c.class == UNICODE_SPACE && !spaces) {
            if (only_spaces_left(in, p))
                return p.at;
            spaces = true;
        }
    }
}
