/* Special tokens in a text: where their texts stand, the leftmost first and of those that start there the
 * longest. Immutable once made: any number of threads. Must not know: files, merges. Tests:
 * tests/unit/test_tokenizer.c */
#pragma once
#include "model/gguf.h"
#include <stddef.h>
#include <stdint.h>

struct special_set;

struct special_match {
    size_t at, len;
    int32_t token;
};

/* Tokens ids[0..n) with their texts (borrowed during the call; empty ones are never found). Of two tokens
 * with the same text the first is found. *ret_set is NULL for an empty set. -ENOMEM; -E2BIG; -ELOOP (see
 * matcher_new). */
int special_set_new(const struct gguf_str *texts, const int32_t *ids, size_t n, struct special_set **ret_set);
void special_set_free(struct special_set *s);
/* All matches in order, none overlapping; *ret_matches is malloc'ed, NULL when there are none (always for a
 * NULL set). Linear in len. -ENOMEM. */
int special_set_find(const struct special_set *s, const char *text, size_t len,
                     struct special_match **ret_matches, size_t *ret_n);
