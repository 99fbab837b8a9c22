/* Byte pair encoding: one piece of text to token ids, by the merges of a vocabulary: again and again the
 * adjacent pair whose merge stands first in the list is joined, the leftmost first. The rules are immutable
 * once read; a bpe_work is one call's memory. Must not know: files, text outside the piece. Tests:
 * tests/unit/test_tokenizer.c (against a quadratic encoder written there) */
#pragma once
#include "model/vocab_map.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BPE_NONE UINT32_MAX

struct bpe {
    uint32_t
        byte_ids[256];    /* the token of a single byte, or BPE_NONE: such a byte is left out of the result */
    struct pairmap ranks; /* (left token, right token) -> rank; a rank is the merge's place in the list */
    uint32_t *results;    /* rank -> the token that the merge makes */
    uint32_t n_merges;
    /* No merge makes a token that a merge before it wants. True for whatever a trainer wrote, and then pairs
     * can be taken rank by rank in linear time; a file may say anything, and then a heap is needed. */
    bool ordered;
};

/* Room for n_merges; all bytes without a token. -ENOMEM; -E2BIG. */
int bpe_init(struct bpe *b, size_t n_merges);
void bpe_free(struct bpe *b);
/* Adds the next merge. 0; -EEXIST when the pair was there before (this one is counted and never applies);
 * -ELOOP for pairs made to collide. Not more than n_merges calls. */
int bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t result);
/* After the last merge. n_tokens bounds every id given. -ENOMEM. */
int bpe_finish(struct bpe *b, size_t n_tokens);

struct bpe_work {
    void *memory; /* grows as pieces want, shared by the ways for long ones */
    size_t size;
};

/* At least size bytes, what was in them is lost; NULL: no memory. */
void *bpe_work_memory(struct bpe_work *w, size_t size);
void bpe_work_free(struct bpe_work *w);

/* Writes the ids of text[0..len) to ids, which has room for len of them, and returns how many. O(len) for
 * ordered merges, O(len log len) otherwise. len < 2^31. -ENOMEM. */
int64_t bpe_encode(const struct bpe *b, struct bpe_work *w, const char *text, size_t len, int32_t *ids);
