/* Cpu attention kernels, written once over the 16 lanes of cpu_math.h and compiled once per instruction set:
 * the including file defines KERNEL_SET (the name of its table), and KERNEL_ROWS (6, or 2) and KERNEL_COLUMNS
 * (vectors of 16), whose product of sums fits the registers.
 *
 *   score[key] = sum over d of q[d] k[d][key]     p = 2^(score - m)     acc[d] = sum over keys of p[key]
 * v[key][d]
 *
 * The one decision: rows come in groups of up to 6, and K and V of a block are used by all rows of a tile
 * while they lie in the first-level cache: 6 rows by 64 keys are 24 sums in registers, each loaded vector is
 * used 6 times. Keys a row does not see, after its own position or before its window: their scores are
 * replaced before anything is compared with them, and the sum over values leaves them out, so what lies there
 * may be NaN.
 *
 * Everything here is pure but for its arguments; any thread. Tests: tests/kernels/test_attention.c */
#include "cpu_attention_q8.h"
#include "cpu_attention_store.h"

#define BLOCK OPS_BLOCK_TOKENS

/* What K and V are to a group's kernels: floats, f16 for both, or K in q8_0 and V, which was, as floats. */
enum numbers { FLOATS, HALVES, Q8 };

/* 16 numbers of K or V. */
CPU_INLINE v16f load_kv(const void *p, size_t i, const enum numbers how)
{
    return how == HALVES ? v16_load_f16((const uint16_t *)p + i) : v16_load((const float *)p + i);
}

CPU_INLINE uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- one group of rows and one block ---- */

struct group {
    const float *q; /* [rows][head_dim] */
    const void *k, *v;
    const struct cpu_query *q8; /* [rows][head_dim / 32], and K's scales: for Q8 */
    const uint16_t *k_scale;
    const void *next; /* where K of the block after this one lies, or anything */
    float *score, *m, *lanes, *acc;
    float scale[16]; /* of what was summed before this block */
    uint32_t head_dim, padded;
    /* Keys of the block each row sees: from .. to-1, at least one; both ascending. */
    uint32_t from[KERNEL_ROWS], to[KERNEL_ROWS];
};

/* With few rows memory is what is waited for, and it is asked in time: V while the scores are made, the next
 * block's K while the values are added. 128 bytes: 64 halves. */
CPU_INLINE void fetch_line(const void *p, uint32_t i)
{
    __builtin_prefetch((const char *)p + (size_t)i * 128);
    __builtin_prefetch((const char *)p + (size_t)i * 128 + 64);
}

CPU_INLINE void scores(const struct group *g, const uint32_t rows, const enum numbers how)
{
    if (how == Q8) {
        q8_scores(g->k, g->k_scale, g->q8, g->head_dim / SHAPE_KV_BLOCK, rows, g->score);
        return;
    }
    for (uint32_t c = 0; c < BLOCK / 16; c += KERNEL_COLUMNS) {
        v16f sum[KERNEL_ROWS][KERNEL_COLUMNS];
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < KERNEL_COLUMNS; i++)
                sum[r][i] = v16_zero();
        for (uint32_t d = 0; d < g->head_dim; d++) {
            if (how == HALVES && c == 0)
                fetch_line(g->v, d);
            v16f k[KERNEL_COLUMNS];
            for (uint32_t i = 0; i < KERNEL_COLUMNS; i++)
                k[i] = load_kv(g->k, (size_t)d * BLOCK + (c + i) * 16, how);
            for (uint32_t r = 0; r < rows; r++) {
                v16f q = v16_set1(g->q[r * g->head_dim + d]);
                for (uint32_t i = 0; i < KERNEL_COLUMNS; i++)
                    sum[r][i] = v16_fma(q, k[i], sum[r][i]);
            }
        }
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < KERNEL_COLUMNS; i++)
                v16_store(g->score + r * BLOCK + (c + i) * 16, sum[r][i]);
    }
}

/* Scores become probabilities in place; `scale` is what the new maximum makes of what was summed before. */
CPU_INLINE void probabilities(struct group *g, const uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++) {
        float *s = g->score + r * BLOCK;
        for (uint32_t j = 0; j < g->from[r]; j++)
            s[j] = -INFINITY;
        for (uint32_t j = g->to[r]; j < BLOCK; j++)
            s[j] = -INFINITY;
        v16f top =
            v16_max(v16_max(v16_load(s), v16_load(s + 16)), v16_max(v16_load(s + 32), v16_load(s + 48)));
        float before = g->m[r], now = v16_max_lane(top);
        now = now > before ? now : before;
        g->m[r] = now;
        g->scale[r] = before - now;
    }
    v16_store(g->scale, v16_exp2(v16_load(g->scale)));
    for (uint32_t r = 0; r < rows; r++) {
        float *s = g->score + r * BLOCK;
        v16f m = v16_set1(g->m[r]), p[4];
        for (uint32_t i = 0; i < 4; i++) {
            p[i] = v16_exp2(v16_sub(v16_load(s + 16 * i), m));
            v16_store(s + 16 * i, p[i]);
            if (g->to[r] < 16 * (i + 1) || g->from[r] > 16 * i) {
                /* Exactly 0 for the keys it does not see. */
                for (uint32_t j = 16 * i; j < min_u32(g->from[r], 16 * (i + 1)); j++)
                    s[j] = 0;
                p[i] = v16_load_n(s + 16 * i, g->to[r] > 16 * i ? min_u32(g->to[r] - 16 * i, 16) : 0);
                v16_store(s + 16 * i, p[i]);
            }
        }
        v16f sum = v16_add(v16_add(p[0], p[1]), v16_add(p[2], p[3]));
        float *lanes = g->lanes + r * 16;
        v16_store(lanes, v16_fma(v16_load(lanes), v16_set1(g->scale[r]), sum));
    }
}

/* acc = acc * scale + p v over keys from .. to-1; rows and columns (in vectors of 16) are constants where
 * this is inlined. */
CPU_INLINE void values_part(const struct group *g, const uint32_t first_row, const uint32_t rows,
                            uint32_t column, const uint32_t columns, uint32_t from, uint32_t to,
                            const bool scaled, const enum numbers how)
{
    float *acc = g->acc + first_row * g->padded + column * 16;
    const float *p = g->score + first_row * BLOCK;
    v16f sum[KERNEL_ROWS][KERNEL_COLUMNS];
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < columns; i++) {
            sum[r][i] = v16_load(acc + r * g->padded + i * 16);
            if (scaled)
                sum[r][i] = v16_mul(sum[r][i], v16_set1(g->scale[first_row + r]));
        }
    for (uint32_t j = from; j < to; j++) {
        if (how == HALVES && scaled && column == 0)
            fetch_line(g->next, j);
        v16f v[KERNEL_COLUMNS];
        for (uint32_t i = 0; i < columns; i++)
            v[i] = load_kv(g->v, (size_t)j * g->padded + (column + i) * 16, how);
        for (uint32_t r = 0; r < rows; r++) {
            v16f pr = v16_set1(p[r * BLOCK + j]);
            for (uint32_t i = 0; i < columns; i++)
                sum[r][i] = v16_fma(pr, v[i], sum[r][i]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < columns; i++)
            v16_store(acc + r * g->padded + i * 16, sum[r][i]);
}

/* All of a row's keys between `from` and `to`, one row by itself. */
CPU_INLINE void values_row(const struct group *g, uint32_t r, uint32_t from, uint32_t to, const bool scaled,
                           const enum numbers how)
{
    for (uint32_t c = 0; c < g->padded / 16; c++)
        values_part(g, r, 1, c, 1, from, to, scaled, how);
}

/* The keys `from` .. `to`-1 that all rows see together. */
CPU_INLINE void values_all(const struct group *g, const uint32_t rows, uint32_t from, uint32_t to,
                           const bool scaled, const enum numbers how)
{
    uint32_t columns = g->padded / 16, c = 0;
    for (; c + KERNEL_COLUMNS <= columns; c += KERNEL_COLUMNS)
        values_part(g, 0, rows, c, KERNEL_COLUMNS, from, to, scaled, how);
    for (; c < columns; c++)
        values_part(g, 0, rows, c, 1, from, to, scaled, how);
}

CPU_INLINE void values(const struct group *g, const uint32_t rows, const enum numbers how)
{
    /* All rows see the keys from where the last one begins to where the first one ends; what a row sees
     * before them and after is added for it alone, all of it in the order of keys. */
    const uint32_t begin = g->from[rows - 1], end = g->to[0];
    if (begin == 0) {
        values_all(g, rows, 0, end, true, how);
    } else if (begin < end) {
        for (uint32_t r = 0; r < rows; r++)
            values_row(g, r, g->from[r], begin, true, how);
        values_all(g, rows, begin, end, false, how);
    } else {
        for (uint32_t r = 0; r < rows; r++)
            values_row(g, r, g->from[r], g->to[r], true, how);
        return;
    }
    for (uint32_t r = 1; r < rows; r++)
        if (g->to[r] > end)
            values_row(g, r, end, g->to[r], false, how);
}

CPU_INLINE void group_block(struct group *g, const uint32_t rows, const enum numbers how)
{
    scores(g, rows, how);
    probabilities(g, rows);
    values(g, rows, how);
}

#define GROUP_ROWS(n, how)                                                                                   \
    case n:                                                                                                  \
        group_block(g, n, how);                                                                              \
        break

#if KERNEL_ROWS == 6
/* 5 is 3 and 2: one instance less, and hardly ever met. */
#define GROUP_SIZES(how)                                                                                     \
    GROUP_ROWS(1, how);                                                                                      \
    GROUP_ROWS(2, how);                                                                                      \
    GROUP_ROWS(3, how);                                                                                      \
    GROUP_ROWS(4, how);                                                                                      \
    GROUP_ROWS(6, how)

/* Two groups of 4 rather than 6 and 2: few rows leave the multipliers waiting for each other. */
static uint32_t next_group(uint32_t rows)
{
    static const uint8_t size[2 * KERNEL_ROWS] = { 0, 1, 2, 3, 4, 3, 6, 4, 4, 6, 6, 6 };
    return rows < 2 * KERNEL_ROWS ? size[rows] : KERNEL_ROWS;
}

static void group_half(struct group *g, uint32_t rows)
{
    switch (rows) {
        GROUP_SIZES(HALVES);
    }
}
#else
#define GROUP_SIZES(how)                                                                                     \
    GROUP_ROWS(1, how);                                                                                      \
    GROUP_ROWS(2, how)

static uint32_t next_group(uint32_t rows)
{
    return min_u32(rows, 2);
}
#endif

static void group_float(struct group *g, uint32_t rows)
{
    switch (rows) {
        GROUP_SIZES(FLOATS);
    }
}

static void group_q8(struct group *g, uint32_t rows)
{
    switch (rows) {
        GROUP_SIZES(Q8);
    }
}

/* ---- one split ---- */

static void to_float(const uint16_t *from, float *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        v16_store(to + i, v16_load_f16(from + i));
}

/* All rows that see something of the block at `start`. */
static void tile_block(const struct cpu_tile *t, uint32_t start, const struct cpu_sums *sums)
{
    const struct ops_kv *kv = t->kv;
    const uint32_t head_dim = kv->shape.head_dim;
    uint32_t first, end;
    cpu_rows_seeing(t, start, BLOCK, &first, &end);
    if (first >= end)
        return;
    const unsigned char *at = cpu_kv_head(kv, t->blocks[start / BLOCK], t->layer, t->head);
    enum numbers how = kv->shape.type == OPS_KV_F16 ? HALVES : kv->shape.type == OPS_KV_Q8_0 ? Q8 : FLOATS;
    struct group g = {
        .k = at, .v = at + kv->is.k_bytes, .score = t->score, .head_dim = head_dim, .padded = kv->is.padded
    };
    /* Few rows convert what they load as they go, where that is one instruction. */
    const uint32_t after = start / BLOCK + 1;
    g.next = after * BLOCK <= t->pos ? cpu_kv_head(kv, t->blocks[after], t->layer, t->head) : at;
    if (how == Q8) {
        g.k_scale = shape_q8(head_dim, at).k_scale;
        q8_values(kv, at, t->v);
        g.v = t->v;
    }
    if (how == HALVES && (KERNEL_ROWS != CPU_GROUP_ROWS || end - first > CPU_GROUP_ROWS)) {
        to_float(g.k, t->k, head_dim * BLOCK);
        to_float(g.v, t->v, kv->is.padded * BLOCK);
        g.k = t->k;
        g.v = t->v;
        how = FLOATS;
    }
    for (uint32_t r = first, n; r < end; r += n) {
        n = next_group(end - r);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t pos = t->pos + (r + i) / t->group, from = cpu_sees_from(t->window, pos);
            g.from[i] = from > start ? from - start : 0;
            g.to[i] = min_u32(pos + 1 - start, BLOCK);
        }
        g.q = t->q + (size_t)r * head_dim;
        g.q8 = how == Q8 ? t->q8 + (size_t)r * (head_dim / SHAPE_KV_BLOCK) : NULL;
        g.m = sums->m + r;
        g.lanes = t->lanes + (size_t)r * 16;
        g.acc = sums->acc + (size_t)r * kv->is.padded;
        if (how == Q8)
            group_q8(&g, n);
#if KERNEL_ROWS == 6
        else if (how == HALVES)
            group_half(&g, n);
#endif
        else
            group_float(&g, n);
    }
}

static void attention_split(const struct cpu_tile *t, uint32_t split, const struct cpu_sums *sums)
{
    const uint32_t padded = t->kv->is.padded, last_pos = t->pos + (t->rows - 1) / t->group;
    const uint32_t start = split * CPU_SPLIT;
    uint32_t first, end;
    cpu_rows_seeing(t, start, CPU_SPLIT, &first, &end);
    for (uint32_t r = first; r < end; r++) {
        sums->m[r] = -INFINITY;
        memset(t->lanes + (size_t)r * 16, 0, 16 * sizeof(float));
        memset(sums->acc + (size_t)r * padded, 0, padded * sizeof(float));
    }
    for (uint32_t i = 0; i < CPU_SPLIT_BLOCKS && start + i * BLOCK <= last_pos; i++)
        tile_block(t, start + i * BLOCK, sums);
    for (uint32_t r = first; r < end; r++)
        sums->l[r] = v16_sum(v16_load(t->lanes + (size_t)r * 16));
}

/* ---- folding ---- */

static void fold_row(float *to, const float *from, float to_scale, float from_scale, uint32_t padded)
{
    v16f a = v16_set1(to_scale), b = v16_set1(from_scale);
    for (uint32_t i = 0; i < padded; i += 16)
        v16_store(to + i, v16_add(v16_mul(v16_load(to + i), a), v16_mul(v16_load(from + i), b)));
}

static void begin_row(const struct cpu_sums *total, const struct cpu_sums *sums, uint32_t r, uint32_t padded)
{
    total->m[r] = sums->m[r];
    total->l[r] = sums->l[r];
    memcpy(total->acc + (size_t)r * padded, sums->acc + (size_t)r * padded, padded * sizeof(float));
}

static void attention_fold(const struct cpu_tile *t, uint32_t split, const struct cpu_sums *total,
                           const struct cpu_sums *sums)
{
    const uint32_t padded = t->kv->is.padded, start = split * CPU_SPLIT;
    uint32_t first, end, before, new_from;
    cpu_rows_seeing(t, start, CPU_SPLIT, &first, &end);
    cpu_rows_seeing(t, start - 1, 1, &before, &new_from);
    for (uint32_t r = first < new_from ? new_from : first; r < end; r++)
        begin_row(total, sums, r, padded);
    end = min_u32(end, new_from);
    for (uint32_t r = first, n; r < end; r += n) {
        n = min_u32(end - r, 16);
        v16f a = v16_load_n(total->m + r, n), b = v16_load_n(sums->m + r, n), m = v16_max(a, b);
        v16f a_scale = v16_exp2(v16_sub(a, m)), b_scale = v16_exp2(v16_sub(b, m));
        v16f l = v16_add(v16_mul(v16_load_n(total->l + r, n), a_scale),
                         v16_mul(v16_load_n(sums->l + r, n), b_scale));
        v16_store_n(total->m + r, m, n);
        v16_store_n(total->l + r, l, n);
        float to_scale[16], from_scale[16];
        v16_store(to_scale, a_scale);
        v16_store(from_scale, b_scale);
        for (uint32_t i = 0; i < n; i++)
            fold_row(total->acc + (size_t)(r + i) * padded, sums->acc + (size_t)(r + i) * padded, to_scale[i],
                     from_scale[i], padded);
    }
}

static void attention_finish(const struct cpu_sums *total, uint32_t row, uint32_t head_dim, uint32_t padded,
                             float *to)
{
    const float *from = total->acc + (size_t)row * padded;
    v16f l = v16_set1(total->l[row]);
    for (uint32_t i = 0; i < head_dim; i += 16)
        v16_store_n(to + i, v16_div(v16_load(from + i), l), min_u32(16, head_dim - i));
}

const struct cpu_attention_set KERNEL_SET = {
    .rotate = attention_rotate,
    .quantize = q8_queries,
    .store = attention_store,
    .split = attention_split,
    .fold = attention_fold,
    .finish = attention_finish,
};
