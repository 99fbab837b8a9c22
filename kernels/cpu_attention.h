/* Cpu attention: what the driver (cpu_attention.c), the kernels (cpu_attention_kernel.h, compiled once per
 * instruction set) and the KV pool (cpu_kv.c) share: the layout of a block, and the kernels' arguments.
 * Private to kernels/.
 *
 * A block holds 64 tokens. For each layer and KV head it holds K transposed, [head_dim][64], so that a lane
 * is a key and scores need no sums over lanes, then V, [64][padded head_dim], so that a lane is a dimension.
 * Layers of a block lie together: memory is touched block by block.
 *
 * The order of sums, fixed by a query's position alone: positions are split at multiples of CPU_SPLIT; within
 * a split, blocks in order, each rescaling what was summed so far to the new maximum; within a block, scores
 * sum over dimensions in order (q8_0: blocks of 32 dimensions in order, each f = fma(d * s, (float)(sum of q
 * * k), f) with an exact sum of integers; values are multiplied as d * q, exact), values over keys in order,
 * the sum of probabilities in 16 lanes and then one tree. Splits are folded in order. With a window what lies
 * wholly before it is left out: a query's sums begin with the first block, and the first split, that it sees.
 */
#pragma once
#include "cpu.h"
#include "shape.h"

#define CPU_SPLIT 256u /* positions; a multiple of OPS_BLOCK_TOKENS */
#define CPU_SPLIT_BLOCKS (CPU_SPLIT / OPS_BLOCK_TOKENS)
#define CPU_GROUP_ROWS 6u /* rows (a row: one head of one token) whose sums fit the registers */

struct ops_kv {
    struct ops_dev *dev;
    struct ops_kv_shape shape;
    struct shape_kv is;
    size_t mapped;
    unsigned char *base;
};

static inline unsigned char *cpu_kv_head(const struct ops_kv *kv, uint32_t block, uint32_t layer,
                                         uint32_t head)
{
    return kv->base + block * kv->is.block_bytes + layer * kv->is.layer_bytes + head * kv->is.head_bytes;
}

/* 32 numbers of a query for keys in q8_0: s * q. */
struct cpu_query {
    float s;
    int32_t sum; /* of q */
    int8_t q[32];
};

/* What a set of rows has summed so far. Probabilities are powers of 2. */
struct cpu_sums {
    float *m;   /* [row] largest score, times log2(e) */
    float *l;   /* [row] sum of probabilities */
    float *acc; /* [row][padded] */
};

/* The rows of one KV head for n tokens of one sequence: row r is head r % group of token r / group. */
struct cpu_tile {
    const struct ops_kv *kv;
    uint32_t layer, head;       /* KV head */
    uint32_t group;             /* query heads per KV head */
    uint32_t window;            /* positions a query sees, 0: all before it */
    uint32_t pos, rows;         /* position of the first token */
    const uint32_t *blocks;     /* of the sequence */
    const float *q;             /* [row][head_dim], rotated and scaled */
    const struct cpu_query *q8; /* [row][head_dim / 32], the same, for keys in q8_0 */
    float *k, *v;               /* room for one block as float */
    float *score;               /* room for [CPU_GROUP_ROWS][64] */
    float *lanes;               /* room for [rows][16] */
};

/* The first position that a query at pos sees. */
static inline uint32_t cpu_sees_from(uint32_t window, uint32_t pos)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Of a tile at pos: the rows that see anything of the n positions from `start` on are first .. end-1. */
static inline void cpu_rows_seeing(const struct cpu_tile *t, uint32_t start, uint32_t n, uint32_t *ret_first,
                                   uint32_t *ret_end)
{
    const uint64_t last =
        (uint64_t)start + n - 1 + t->window; /* the first position that sees none any more */
    const uint64_t end = last > t->pos ? (last - t->pos) * t->group : 0;
    *ret_first = start > t->pos ? (start - t->pos) * t->group : 0;
    *ret_end = t->window && end < t->rows ? (uint32_t)end : t->rows;
}

/* Tokens of one sequence within one block. */
struct cpu_store {
    const struct ops_attention *a;
    uint32_t head;         /* KV head */
    uint32_t token, n;     /* in the window */
    uint32_t block, place; /* where the first goes: block of the pool, position in it */
};

struct cpu_attention_set {
    /* Norms (norm NULL: does not) and rotates one head's `head_dim` floats with the cosines of `token`; in
     * place when to == from. */
    void (*rotate)(const struct ops_attention *a, uint32_t token, const float *norm, const float *from,
                   float *to);
    /* n floats, a multiple of 32. */
    void (*quantize)(const float *q, uint32_t n, struct cpu_query *to);
    /* Norms and rotates k in place and writes k and v into the block. */
    void (*store)(const struct cpu_store *s);
    /* Sums of one split for the rows that see any of it; others are not written. */
    void (*split)(const struct cpu_tile *t, uint32_t split, const struct cpu_sums *sums);
    /* Adds the sums of a split after 0 to the total for the rows that see any of it; those that see nothing
     * before it begin with it. */
    void (*fold)(const struct cpu_tile *t, uint32_t split, const struct cpu_sums *total,
                 const struct cpu_sums *sums);
    /* to = acc / l of one row. */
    void (*finish)(const struct cpu_sums *total, uint32_t row, uint32_t head_dim, uint32_t padded, float *to);
};

extern const struct cpu_attention_set cpu_attention_portable;
#if defined(__x86_64__)
extern const struct cpu_attention_set cpu_attention_avx2;
extern const struct cpu_attention_set cpu_attention_avx512;
#endif
