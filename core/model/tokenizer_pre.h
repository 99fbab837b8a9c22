/* Pre-tokenizers: how a text is cut into the pieces that merges never cross. Each is a row: its name in
 * tokenizer.ggml.pre and a function. Pure; any thread. Must not know: vocabularies.
 * Tests: tests/unit/test_tokenizer.c */
#pragma once
#include <stddef.h>

struct tokenizer_pre {
    const char *name;
    /* The length in bytes, >= 1, of the first piece of text[0..len), len >= 1. It reads no further than one
     * character past that piece, so cutting a whole text is linear. A byte that is not UTF-8 is a character
     * of its own that is neither letter, number nor space. */
    size_t (*piece)(const char *text, size_t len);
};

/* NULL when this build does not have it. */
const struct tokenizer_pre *tokenizer_pre_find(const char *name, size_t len);
/* Their names with ", " between them, for error texts. */
void tokenizer_pre_names(char *text, size_t textlen);
