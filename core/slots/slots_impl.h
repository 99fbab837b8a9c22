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

/* Length of the common prefix of two sequences of n tokens. */
uint32_t tokens_common(const int32_t *a, const int32_t *b, uint32_t n);
