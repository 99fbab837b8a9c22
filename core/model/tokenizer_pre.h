/* Pre-tokenizers: how a text is cut into the pieces that merges never cross. Each is a row: the names it has
 * in tokenizer.ggml.pre, and a function. Pure; any thread. Must not know: vocabularies.
 * Tests: tests/e2e/test_tokenizers.py (against the regular expressions), tests/unit/test_tokenizer.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct tokenizer_pre {
    const char *name;
    /* The length in bytes, >= 1, of the first piece of text[0..len), len >= 1. Cutting a whole text piece by
     * piece is linear. A byte that is not UTF-8 is a character of its own that is neither letter, number,
     * punctuation nor space. */
    size_t (*piece)(const char *text, size_t len);
    /* A piece that is a token as a whole is that token, whatever the merges say. */
    bool ignore_merges;
    bool add_bos; /* where the file does not say */
};

/* NULL when this build does not have it. */
const struct tokenizer_pre *tokenizer_pre_find(const char *name, size_t len);
/* Their names with ", " between them, for error texts. */
void tokenizer_pre_names(char *text, size_t textlen);

/* The one of deepseek-llm (tokenizer_deepseek.c): as tokenizer_pre.piece. */
size_t tokenizer_deepseek_piece(const char *text, size_t len);
