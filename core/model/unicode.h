/* Unicode: what kind of character a code point is, as pre-tokenizers ask: \p{L} and its cases, \p{M}, \p{N},
 * \s, \p{P} or none of these. Read-only tables written by tools/make-unicode; no locale is asked. Any thread.
 * Tests: tests/unit/test_tokenizer.c */
#pragma once
#include <stdint.h>

enum unicode_class {
    UNICODE_OTHER,
    UNICODE_MARK, /* \p{M}: accents that follow a letter, and the like */
    UNICODE_PUNCTUATION,
    UNICODE_SPACE,
    UNICODE_NUMBER,
    UNICODE_LETTER, /* \p{Lo}\p{Lm}: without case; this and those below are \p{L} */
    UNICODE_UPPER,  /* \p{Lu}\p{Lt} */
    UNICODE_LOWER,  /* \p{Ll} */
};

extern const char unicode_version[]; /* "14.0.0" */

/* For each run of 256 code points the number of its block, up to the last run that is not like the end of the
 * code space; a block holds 256 classes of four bits. */
extern const uint32_t unicode_n_index;
extern const uint8_t unicode_index[];
extern const uint64_t unicode_blocks[][16];

/* Any number is accepted; those above U+10FFFF and unassigned ones are UNICODE_OTHER. */
static inline enum unicode_class unicode_class(uint32_t cp)
{
    uint32_t run = cp >> 8;
    if (run >= unicode_n_index)
        return UNICODE_OTHER;
    uint64_t word = unicode_blocks[unicode_index[run]][(cp >> 4) & 15];
    return (enum unicode_class)((word >> (4 * (cp & 15))) & 15);
}
