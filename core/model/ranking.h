/* Ranking: logits, best first, as far down as somebody asks: the higher logit first, the lower id among
 * equals. Nothing is sorted that is not asked for, because a vocabulary is a hundred thousand tokens and a
 * choice looks at a few. NaN counts as minus infinity. Where the best is plus infinity, those that are it
 * count as 0 and all others as minus infinity: the limit, as that logit grows. Pure; one thread at a time.
 * Must not know: what is sampled how. Tests: tests/unit/test_sampler.c */
#pragma once
#include "model/sampler.h"
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ranking {
    uint32_t n;
    const float *logits; /* those being ranked */
    float max;           /* -INFINITY when there is nothing else */
    bool infinite;       /* the best was, and is 0 now */
    float *block_max;    /* of each 64 logits */
    uint32_t n_blocks;
    float *limit;     /* room for logits when the best is infinite */
    float *select;    /* room for finding a block */
    uint64_t *sorted; /* the first n_sorted: sorting key of the logit in the high half, id in the low one */
    uint64_t *spare;
    uint32_t n_sorted;
    const struct sampler_best *best; /* all that is known; NULL: everything is */
    bool short_of;                   /* more was asked for than is known: what was answered means nothing */
};

/* Room for n logits, n >= 1. -ENOMEM, and then r may still be freed. */
int ranking_init(struct ranking *r, uint32_t n);
void ranking_free(struct ranking *r);
/* Starts over with these logits, which must stay as they are while r is asked. */
void ranking_begin(struct ranking *r, const float *logits);
/* Starts over with what is known of logits with a finite maximum; short_of says afterwards whether that was
 * enough for what was asked. */
void ranking_begin_best(struct ranking *r, const struct sampler_best *best);
/* The best; 0 when all are minus infinity. */
uint32_t ranking_first(const struct ranking *r);
/* Sorts at least the first `count` (or all); *ret_count is how many are sorted now. */
void ranking_sort(struct ranking *r, uint32_t count, uint32_t *ret_count);
/* The sum over all of exp((logit - max) * scale); 0 < scale < infinity. */
double ranking_sum(struct ranking *r, float scale);

static inline uint32_t ranking_id(const struct ranking *r, uint32_t place)
{
    return (uint32_t)r->sorted[place];
}

/* e to the x for x <= 0, within 3e-7 of it; 0 below -87 and for NaN. The same bits everywhere: no library is
 * asked. */
static inline float ranking_exp(float x)
{
    float y = x > -87.0f ? x : -87.0f;
    int32_t n = (int32_t)(y * 1.44269504f - 0.5f);
    float nf = (float)n;
    float t =
        (y - nf * 0.693359375f) - nf * -2.12194440e-4f; /* ln 2 in two parts: the first product is exact */
    float p = 1.0f / 720.0f;
    p = p * t + 1.0f / 120.0f;
    p = p * t + 1.0f / 24.0f;
    p = p * t + 1.0f / 6.0f;
    p = p * t + 0.5f;
    p = p * t + 1.0f;
    p = p * t + 1.0f;
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x > -87.0f ? p * scale : 0.0f;
}

/* exp((logit - max) * scale) of the logit at a place that is sorted. */
static inline float ranking_weight(const struct ranking *r, uint32_t place, float scale)
{
    return ranking_exp((r->logits[ranking_id(r, place)] - r->max) * scale);
}
