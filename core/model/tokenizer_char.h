/* Tokenizer char: one character of a text and its class, as the pre-tokenizers look at it. Included by
 * tokenizer_pre.c and tokenizer_deepseek.c alone. */
#pragma once
#include "model/unicode.h"
#include "util/utf8.h"
#include <stdbool.h>
#include <stddef.h>

struct character {
    uint32_t cp; /* of a byte that is not UTF-8: CHARACTER_INVALID */
    enum unicode_class class;
    unsigned len;
};

#define CHARACTER_INVALID UINT32_MAX

static inline struct character character_at(const char *text, size_t len)
{
    uint32_t cp = (unsigned char)text[0];
    if (cp < 0x80)
        return (struct character){ cp, unicode_class(cp), 1 };
    unsigned n = utf8_decode(text, len, &cp);
    if (n == 0)
        return (struct character){ CHARACTER_INVALID, UNICODE_OTHER, 1 };
    return (struct character){ cp, unicode_class(cp), n };
}

static inline bool character_is_newline(struct character c)
{
    return c.cp == '\n' || c.cp == '\r';
}

/* [^\s\p{L}\p{N}] */
static inline bool character_is_symbol(struct character c)
{
    return c.class <= UNICODE_PUNCTUATION;
}

/* \p{L} */
static inline bool character_is_letter(struct character c)
{
    return c.class >= UNICODE_LETTER;
}
