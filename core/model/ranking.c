/* Ranking: see ranking.h. The maxima of blocks of 64 logits answer most questions: the k-th largest of them
 * is a bound that at least k logits reach, and only blocks that reach it need a look. What is found is sorted
 * by radix, in time linear in its number even when that is everything. */
#include "model/ranking.h"
#include <errno.h>
#include <stdlib.h>

#define BLOCK 64u

/* Where more than this part of all is wanted, everything is sorted at once. */
#define ALL_FROM_PART 8u

int ranking_init(struct ranking *r, uint32_t n)
{
    *r = (struct ranking){ .n = n, .n_blocks = (n + BLOCK - 1) / BLOCK };
    r->block_max = malloc(r->n_blocks * sizeof(float));
    r->select = malloc(r->n_blocks * sizeof(float));
    r->limit = malloc(n * sizeof(float));
    r->sorted = malloc((n + 1ul) * sizeof(uint64_t)); /* one more: see gather() */
    r->spare = malloc((n + 1ul) * sizeof(uint64_t));
    return r->block_max && r->select && r->limit && r->sorted && r->spare ? 0 : -ENOMEM;
}

void ranking_free(struct ranking *r)
{
    free(r->block_max);
    free(r->select);
    free(r->limit);
    free(r->sorted);
    free(r->spare);
}

static inline float larger(float a, float b)
{
    return b > a ? b : a; /* a when b is NaN */
}

/* The largest of n <= BLOCK logits. */
static float max_of(const float *x, uint32_t n)
{
    float lanes[16];
    for (int k = 0; k < 16; k++)
        lanes[k] = -INFINITY;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            lanes[k] = larger(lanes[k], x[i + (uint32_t)k]);
    for (; i < n; i++)
        lanes[0] = larger(lanes[0], x[i]);
    for (int k = 1; k < 16; k++)
        lanes[0] = larger(lanes[0], lanes[k]);
    return lanes[0];
}

static uint32_t block_len(const struct ranking *r, uint32_t block)
{
    uint32_t left = r->n - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

static void find_maxima(struct ranking *r)
{
    r->max = -INFINITY;
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        r->block_max[b] = max_of(r->logits + b * BLOCK, block_len(r, b));
        r->max = larger(r->max, r->block_max[b]);
    }
}

void ranking_begin(struct ranking *r, const float *logits)
{
    r->logits = logits;
    r->n_sorted = 0;
    r->best = NULL;
    r->short_of = false;
    find_maxima(r);
    r->infinite = r->max == INFINITY;
    if (!r->infinite)
        return;
    for (uint32_t i = 0; i < r->n; i++)
        r->limit[i] = logits[i] == INFINITY ? 0.0f : -INFINITY;
    r->logits = r->limit;
    find_maxima(r);
}

uint32_t ranking_first(const struct ranking *r)
{
    if (r->best)
        return ranking_id(r, 0);
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        if (r->block_max[b] != r->max)
            continue;
        for (uint32_t i = b * BLOCK; i < r->n; i++)
            if (r->logits[i] == r->max)
                return i;
    }
    return 0;
}

/* A number that is the smaller the higher the logit; equal for 0 and -0, and for NaN and minus infinity. */
static inline uint32_t sort_key(float logit)
{
    uint32_t bits;
    float x = (logit > -INFINITY ? logit : -INFINITY) + 0.0f;
    memcpy(&bits, &x, sizeof bits);
    uint32_t negative = (uint32_t)((int32_t)bits >> 31);
    return bits ^ (~negative & 0x7fffffffu);
}

void ranking_begin_best(struct ranking *r, const struct sampler_best *best)
{
    r->best = best;
    r->short_of = r->infinite = false;
    r->max = best->max;
    r->logits = r->limit; /* only those that are sorted are looked at */
    r->n_sorted = best->n;
    for (uint32_t i = 0; i < best->n; i++) {
        r->limit[best->id[i]] = best->logit[i];
        r->sorted[i] = (uint64_t)sort_key(best->logit[i]) << 32 | best->id[i];
    }
}

/* Moves from[0..n) to `to` in order of the eight bits at `shift`, equals in the order they had; counts says
 * how often each digit comes. */
static void radix_pass(const uint64_t *restrict from, uint64_t *restrict to, uint32_t n, unsigned shift,
                       const uint32_t counts[256])
{
    uint32_t starts[256], at = 0;
    for (unsigned k = 0; k < 256; k++) {
        starts[k] = at;
        at += counts[k];
    }
    for (uint32_t i = 0; i < n; i++)
        to[starts[from[i] >> shift & 255]++] = from[i];
}

/* Sorts by key; ids are in order to begin with and each pass keeps the order of equals, so equal logits stay
 * in order of id. */
static void sort_all(struct ranking *r)
{
    uint32_t counts[4][256] = { 0 }, n = r->n_sorted;
    const uint64_t *keys = r->sorted;
    for (uint32_t i = 0; i < n; i++)
        for (unsigned d = 0; d < 4; d++)
            counts[d][keys[i] >> (32 + 8 * d) & 255]++;
    for (unsigned d = 0; d < 4; d++) {
        unsigned shift = 32 + 8 * d;
        if (n == 0 || counts[d][r->sorted[0] >> shift & 255] == n)
            continue; /* one digit for all: nothing to move */
        radix_pass(r->sorted, r->spare, n, shift, counts[d]);
        uint64_t *sorted = r->spare;
        r->spare = r->sorted;
        r->sorted = sorted;
    }
}

/* Gathers, in order of id, the logits that are at least `bound` (all of them for minus infinity). */
static void gather(struct ranking *r, float bound)
{
    const float *x = r->logits;
    uint64_t *to = r->sorted;
    uint32_t n = 0;
    bool all = bound == -INFINITY;
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        if (r->block_max[b] < bound)
            continue;
        uint32_t end = b * BLOCK + block_len(r, b);
        /* Written always and kept when wanted: a branch would be guessed wrong too often. */
        for (uint32_t i = b * BLOCK; i < end; i++) {
            to[n] = i;
            n += all | (x[i] >= bound);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        to[i] |= (uint64_t)sort_key(x[to[i]]) << 32;
    r->n_sorted = n;
}

/* The k-th largest of x[0..n), 1 <= k <= n, none of them NaN; x is reordered (Hoare's selection, middle of
 * three as pivot). */
static float kth_largest(float *x, uint32_t n, uint32_t k)
{
    int64_t low = 0, high = (int64_t)n - 1, want = (int64_t)k - 1;
    while (low < high) {
        float a = x[low], b = x[(low + high) / 2], c = x[high];
        float pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                float swap = x[i];
                x[i++] = x[j];
                x[j--] = swap;
            }
        }
        if (want <= j)
            high = j;
        else if (want >= i)
            low = i;
        else
            break;
    }
    return x[want];
}

/* A logit that about `count` others reach, mostly a few more: for few the maxima of blocks promise it, for
 * many a sample of one logit from each block (from another place each time) is a good guess. */
static float bound_for(struct ranking *r, uint32_t count)
{
    if (count > r->n / ALL_FROM_PART)
        return -INFINITY;
    if (count <= r->n_blocks / 2) {
        memcpy(r->select, r->block_max, r->n_blocks * sizeof(float));
        return kth_largest(r->select, r->n_blocks, count);
    }
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        float x = r->logits[b * BLOCK + b * 37u % block_len(r, b)];
        r->select[b] = x > -INFINITY ? x : -INFINITY;
    }
    return kth_largest(r->select, r->n_blocks, count / BLOCK * 5 / 4 + 1);
}

void ranking_sort(struct ranking *r, uint32_t count, uint32_t *ret_count)
{
    count = count < r->n ? count : r->n;
    if (r->best) {
        r->short_of |= count > r->n_sorted;
    } else if (count > r->n_sorted) {
        gather(r, bound_for(r, count));
        if (r->n_sorted < count)
            gather(r, -INFINITY);
        sort_all(r);
    }
    *ret_count = r->n_sorted;
}

typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));

/* ranking_exp of four at once, step by step the same: compilers do not make vectors of it by themselves,
 * because of what its comparisons may trap. */
static inline v4f exp_of_four(v4f x)
{
    v4i in = x > -87.0f;
    v4f y = (v4f)(((v4i)x & in) | ((v4i)(v4f){ -87.0f, -87.0f, -87.0f, -87.0f } & ~in));
    v4i n = __builtin_convertvector(y * 1.44269504f - 0.5f, v4i);
    v4f nf = __builtin_convertvector(n, v4f);
    v4f t = (y - nf * 0.693359375f) - nf * -2.12194440e-4f;
    v4f p = (1.0f / 720.0f) * t + 1.0f / 120.0f;
    p = p * t + 1.0f / 24.0f;
    p = p * t + 1.0f / 6.0f;
    p = p * t + 0.5f;
    p = p * t + 1.0f;
    p = p * t + 1.0f;
    v4f scale = (v4f)((n + 127) << 23);
    return (v4f)((v4i)(p * scale) & in);
}

double ranking_sum(struct ranking *r, float scale)
{
    double total = 0;
    uint32_t i = 0;
    if (r->best) {
        r->short_of |= scale != 1.0f && scale != r->best->scale;
        return scale == 1.0f ? r->best->sum : r->best->scaled_sum;
    }
    while (r->n - i >= 16) {
        /* A float holds the sum of 64 weights without harm; then it goes into the double. */
        uint32_t end = r->n - i < 1024 ? i + (r->n - i) / 16 * 16 : i + 1024;
        v4f lanes[4] = { { 0 } };
        for (; i < end; i += 16)
            for (uint32_t k = 0; k < 4; k++) {
                v4f x;
                memcpy(&x, r->logits + i + 4 * k, sizeof x);
                lanes[k] += exp_of_four((x - r->max) * scale);
            }
        for (int k = 0; k < 16; k++)
            total += (double)lanes[k / 4][k % 4];
    }
    for (; i < r->n; i++)
        total += (double)ranking_exp((r->logits[i] - r->max) * scale);
    return total;
}
