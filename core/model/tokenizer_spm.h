/* SentencePiece-style encoding: a text begins as its characters, and again and again the adjacent pair that
 * makes the token with the highest score is joined, the leftmost first; a character that ends up in no token
 * is written as its bytes. The rules are immutable once read. Spaces are spaces here: the U+2581 that the
 * vocabulary writes for them has been replaced, in its tokens and in the text. Must not know: files.
 * Tests: tests/e2e/test_tokenizers.py, tests/unit/test_spm.c */
#pragma once
#include "model/tokenizer_bpe.h"
#include "model/vocab_map.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest token that text can become: looking one up costs its length, so there must be a bound. */
#define SPM_MAX_TOKEN 1024u

struct spm {
    struct strmap by_text; /* the tokens that text can become */
    uint32_t *ranks; /* token -> its score's place among all scores, the highest first; equal ones share */
    uint64_t *pairs; /* a bit for each hash of two characters that stand side by side in a token */
    size_t longest;  /* bytes of the longest of those tokens */
    uint32_t byte_ids[256]; /* the token of a byte, or BPE_NONE: `unknown` stands for the character */
    uint32_t unknown;       /* BPE_NONE: such a character is left out */
};

/* Copies a text with each U+2581 as the space it stands for; out has room for len. Returns its length. */
size_t spm_spaces(const char *text, size_t len, char *out);

/* From pieces[0..n), which live as long as this: those with `ordinary` can come from text. No score is NaN.
 * byte_ids and unknown are the caller's to fill. -ENOMEM; -E2BIG when one is longer than SPM_MAX_TOKEN;
 * -ELOOP for texts made to collide. */
int spm_init(struct spm *s, const struct gguf_str *pieces, const bool *ordinary, const float *scores,
             size_t n);
void spm_free(struct spm *s);

/* The length in bytes, >= 1, of the first part of text[0..len), len >= 1, that nothing can join with what
 * follows: no token has those two characters side by side. */
size_t spm_piece(const struct spm *s, const char *text, size_t len);
/* Writes the ids of text[0..len) to ids, which has room for len of them, and returns how many. O(len log
 * len). len < 2^31. -ENOMEM. */
int64_t spm_encode(const struct spm *s, struct bpe_work *w, const char *text, size_t len, int32_t *ids);
