/* Slot table, inside: what slots.c and prompt.c share. */
#pragma once
#include "slots/hash.h"
#include "slots/slots.h"

struct slots {
    struct slots_options o;
    uint32_t n; /* histories: o.n_slots + 1 */
    uint32_t n_busy;
    uint64_t versions;
    struct slots_history *h;
    uint32_t *shared; /* [n][n], symmetric, the diagonal is each history's length */
    struct hasher hasher;
};

/* The opening of n tokens without turns: a conversation is known by so many of its first ones. */
static inline uint32_t slots_opening_default(uint32_t n)
{
    return n < 64 ? n : 64;
}

/* Length of the common prefix of two sequences of n tokens. */
uint32_t tokens_common(const int32_t *a, const int32_t *b, uint32_t n);
