/* Vocab map: the two hash tables of a vocabulary: pairs of numbers to a number, and byte strings to an index.
 * Both are filled once, with a known bound on entries, and then only read, by any number of threads. What
 * fills them comes from a file nobody vouches for: a run of collisions no honest file has is an error, so
 * neither filling nor asking is ever worse than a bounded number of steps. Must not know: tokens, files.
 * Tests: tests/unit/test_tokenizer.c */
#pragma once
#include "model/gguf.h"
#include <stddef.h>
#include <stdint.h>

#define VOCAB_MAP_NONE UINT32_MAX
/* No entry lies further from its home: with a table at most half full the longest run of an honest file is a
 * few dozen. */
#define VOCAB_MAP_PROBES 2048u

struct pairmap_slot {
    uint32_t a, b;
    uint32_t value; /* VOCAB_MAP_NONE: empty */
};

struct pairmap {
    struct pairmap_slot *slots;
    uint32_t mask;
};

/* Room for n entries, n <= 2^27. -ENOMEM; -E2BIG. */
int pairmap_init(struct pairmap *m, size_t n);
void pairmap_free(struct pairmap *m);
/* 0; -EEXIST when (a,b) is there already (its value stays); -ELOOP past the bound on collisions. */
int pairmap_put(struct pairmap *m, uint32_t a, uint32_t b, uint32_t value);

static inline uint32_t pairmap_slot_of(const struct pairmap *m, uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32) & m->mask;
}

static inline uint32_t pairmap_get(const struct pairmap *m, uint32_t a, uint32_t b)
{
    uint32_t i = pairmap_slot_of(m, a, b);
    for (unsigned probes = 0; probes < VOCAB_MAP_PROBES; probes++, i = (i + 1) & m->mask) {
        const struct pairmap_slot *s = &m->slots[i];
        if (s->value == VOCAB_MAP_NONE || (s->a == a && s->b == b))
            return s->value;
    }
    return VOCAB_MAP_NONE;
}

struct strmap_slot {
    uint32_t hash;
    uint32_t index; /* VOCAB_MAP_NONE: empty */
};

struct strmap {
    const struct gguf_str *strings; /* borrowed */
    struct strmap_slot *slots;
    uint32_t mask;
};

/* Maps strings[i] to i; empty to begin with. n <= 2^27. -ENOMEM; -E2BIG. */
int strmap_init(struct strmap *m, const struct gguf_str *strings, size_t n);
void strmap_free(struct strmap *m);
/* As pairmap_put: the first of equal strings stays. */
int strmap_put(struct strmap *m, uint32_t index);
/* VOCAB_MAP_NONE when there is none. */
uint32_t strmap_get(const struct strmap *m, const char *data, size_t len);
