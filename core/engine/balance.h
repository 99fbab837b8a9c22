/* Balance: which layers go to which stage, from what they cost. Pure arithmetic: the same costs give the same
 * answer. Must not know: how costs were measured. Tests: tests/unit/test_stages.c */
#pragma once
#include <stdint.h>

struct balance {
    const double *layer; /* [n_layers] cost of each, >= 0, in any unit: what one thread would take */
    uint32_t n_layers;
    double embed, head;      /* on top of the first and of the last stage */
    const uint32_t *threads; /* [n_stages], >= 1: so much faster is a stage */
    uint32_t n_stages;       /* 1..n_layers */
    uint32_t at_first;       /* 1..n_layers - n_stages + 1: the first stage has at least so many */
};

/* Contiguous ranges, at least one layer each, such that the slowest stage takes as little time as possible,
 * and the others, from the first on, are about as fast as each other. Writes n_stages + 1 numbers: stage s
 * has layers ret_first[s] .. ret_first[s + 1] - 1. -ENOMEM. */
int balance_layers(const struct balance *b, uint32_t *ret_first);
