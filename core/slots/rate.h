/* Prompt rate: how long reading a prompt takes, as a function of the position, learned from measured chunks.
 *
 * A token at position p costs first + slope * p: everything but attention costs the same everywhere, and
 * attention grows with what lies before. Both are fitted to the chunks seen, later ones counting more; as
 * long as they all lie close together the slope stays near a usual one. So the cost never falls with the
 * position, and a stretch nobody has measured has a sensible price.
 *
 * Pure data; any thread, one at a time. Must not know: slots, the time. Tests: tests/unit/test_slots.c */
#pragma once
#include <stdint.h>

struct prompt_rate {
    double first, slope;                         /* ns per token; per token and position */
    double tokens, ns;                           /* sums over chunks, fading */
    double weight, sum_x, sum_xx, sum_y, sum_xy; /* of the fit */
};

/* Before anything is measured: 1,000 tokens/s at position 0, half of that at 16,384. */
void prompt_rate_init(struct prompt_rate *r);
/* A chunk of n tokens, the first at `from`, took ns. Chunks of fewer than 8 tokens say little and are left
 * out; leave out windows that decoded streams too, where reading was not most of the work. */
void prompt_rate_learn(struct prompt_rate *r, uint32_t from, uint32_t n, uint64_t ns);
/* Time to read positions from..to-1. 0 when from >= to. */
uint64_t prompt_rate_ns(const struct prompt_rate *r, uint32_t from, uint32_t to);
/* Tokens per second over the chunks measured lately; 0 before the first. */
double prompt_rate_measured(const struct prompt_rate *r);
/* How many tokens from a position on can be read within ns; at least 1. */
uint32_t prompt_rate_tokens(const struct prompt_rate *r, uint32_t from, uint64_t ns);
