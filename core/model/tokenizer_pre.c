/* Pre-tokenizers: see tokenizer_pre.h. The patterns are regular expressions in the models' own
 * configurations; here each is a few lines that look at one character at a time, because none of them ever
 * needs to look back. */
#include "model/tokenizer_pre.h"
#include "model/unicode.h"
#include "util/utf8.h"
#include <stdio.h>
#include <string.h>

struct character {
    enum unicode_class class;
    unsigned len;
};

static inline struct character character_at(const char *text, size_t len)
{
    uint32_t cp = (unsigned char)text[0];
    if (cp < 0x80)
        return (struct character){ unicode_class(cp), 1 };
    unsigned n = utf8_decode(text, len, &cp);
    if (n == 0)
        return (struct character){ UNICODE_OTHER, 1 };
    return (struct character){ unicode_class(cp), n };
}

/* 's 't 're 've 'm 'll 'd: the length of the one that text starts with, or 0. */
static size_t contraction(const char *text, size_t len)
{
    if (len < 2 || text[0] != '\'')
        return 0;
    if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd')
        return 2;
    if (len < 3)
        return 0;
    if ((text[2] == 'e' && (text[1] == 'r' || text[1] == 'v')) || (text[1] == 'l' && text[2] == 'l'))
        return 3;
    return 0;
}

/* The end of the run of characters of `class` that goes on at `at`. */
static size_t run_end(const char *text, size_t len, size_t at, enum unicode_class class)
{
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (c.class != class)
            break;
        at += c.len;
    }
    return at;
}

/* A run of spaces. Its last one is left for the word that follows, unless nothing follows or a number does.
 */
static size_t space_run(const char *text, size_t len)
{
    size_t at = 0, last = 0;
    while (at < len) {
        struct character c = character_at(text + at, len - at);
        if (c.class == UNICODE_NUMBER)
            break;
        if (c.class != UNICODE_SPACE)
            return last ? last : at;
        last = at;
        at += c.len;
    }
    return at;
}

/* Every number character by itself (\p{N}), and what lies between two of them, as if it were a text of its
 * own, as GPT-2 did: contractions, words and other runs, both with one space in front, and what spaces are
 * left: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t smollm(const char *text, size_t len)
{
    struct character first = character_at(text, len);
    if (first.class == UNICODE_NUMBER)
        return first.len;
    size_t n = contraction(text, len);
    if (n)
        return n;

    size_t start = 0;
    if (text[0] == ' ' && len > 1) {
        struct character next = character_at(text + 1, len - 1);
        if (next.class == UNICODE_LETTER || next.class == UNICODE_OTHER) {
            start = 1;
            first = next;
        }
    }
    if (first.class == UNICODE_SPACE)
        return space_run(text, len);
    return run_end(text, len, start + first.len, first.class);
}

static const struct tokenizer_pre rows[] = {
    { "smollm", smollm },
};

const struct tokenizer_pre *tokenizer_pre_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0)
            return &rows[i];
    return NULL;
}

void tokenizer_pre_names(char *text, size_t textlen)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && used < textlen; i++) {
        int n = snprintf(text + used, textlen - used, "%s%s", i ? ", " : "", rows[i].name);
        used += n > 0 ? (size_t)n : 0;
    }
}
