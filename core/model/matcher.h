/* Matcher: many fixed strings looked for in one pass over a text (Aho and Corasick's automaton, 1975): the
 * work is linear in the text whatever the strings are. Special tokens and stop strings are found with it.
 * Immutable after matcher_new: any number of threads. Must not know: tokens.
 * Tests: tests/unit/test_tokenizer.c, tests/unit/test_textout.c */
#pragma once
#include "model/gguf.h"
#include "model/vocab_map.h"
#include <stdbool.h>

#define MATCHER_NONE UINT32_MAX

struct matcher_state {
    uint32_t fail;  /* the longest proper suffix of this state's string that is a state too */
    uint32_t out;   /* the longest string that ends here (the first of equal ones), or MATCHER_NONE */
    uint32_t depth; /* bytes of this state's string: what of the text could still become a match */
};

struct matcher {
    struct matcher_state *states; /* 0 is the root */
    struct pairmap edges;         /* (state, byte) -> state, for states other than the root */
    uint32_t root[256];           /* 0 where no string starts with that byte */
};

/* Builds the automaton of strings[0..n); empty strings are never found. `reversed`: of the strings read
 * backwards, for a walk over the text from its end. Copies nothing that it needs later. -ENOMEM; -E2BIG above
 * 4 MiB of strings; -ELOOP for strings made to collide. */
int matcher_new(const struct gguf_str *strings, size_t n, bool reversed, struct matcher **ret_matcher);
void matcher_free(struct matcher *m);

/* The state after one more byte; start with state 0. Steps back are paid for by steps forward: a text of n
 * bytes costs at most 2n of them. */
static inline uint32_t matcher_step(const struct matcher *m, uint32_t state, unsigned char byte)
{
    while (state) {
        uint32_t next = pairmap_get(&m->edges, state, byte);
        if (next != VOCAB_MAP_NONE)
            return next;
        state = m->states[state].fail;
    }
    return m->root[byte];
}
