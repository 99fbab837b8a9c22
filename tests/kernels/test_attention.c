/* Attention and KV blocks of the CPU device: right (against the reference's double sums) and the same bits
 * however the work is cut. All KV memory is NaN before it is written, so a look beyond a query's own position
 * shows in the result. */
#include "../cases.h"
#include "attention_case.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* vector: all those that give the same bits; any: where one will do. Of what is tried many times the emulator
 * and, but for cases_all(), whoever is instrumented try one in SPARSE. */
#ifdef TEST_CUDA
static const char *const isas[] = { "cuda" }, *const vector[] = { "avx512", "avx2", "cuda" };
static const char any[] = "cuda";
#define THREADS_MOST 1u
#define SPARSE (cases_all() ? 4u : 12u)
/* Emulated kernels are not instrumented: only what calls them is. */
#define SHAPES_APART (cases_all() ? 1u : 4u)
#else
static const char *const isas[] = { "avx512", "avx2", "portable" }, *const vector[] = { "avx512", "avx2" };
static const char any[] = "auto";
#define THREADS_MOST 3u
#define SPARSE (cases_all() ? 1u : 4u)
#define SHAPES_APART 1u
#endif

static const struct shape smol = {
    .kv_heads = 3, .ratio = 3, .head_dim = 64, .type = OPS_KV_F16, .rope_dims = 64, .halves = false, .loud = 1
};

static const struct shape shapes[] = {
    { 3, 3, 64, OPS_KV_F16, 64, false, 1, 0, false },   { 3, 3, 64, OPS_KV_F32, 64, true, 1, 0, false },
    { 2, 1, 20, OPS_KV_F16, 20, true, 2, 0, false },    { 1, 16, 80, OPS_KV_F16, 32, true, 1, 0, false },
    { 2, 4, 128, OPS_KV_F32, 128, false, 1, 0, false }, { 1, 7, 8, OPS_KV_F16, 0, false, 3, 0, false },
    { 1, 2, 256, OPS_KV_F16, 256, true, 1, 0, false },  { 5, 5, 34, OPS_KV_F32, 34, false, 1, 0, false },
    { 1, 8, 96, OPS_KV_F16, 96, true, 40, 0, false },   { 2, 3, 2, OPS_KV_F32, 2, true, 10, 0, false },
    { 3, 3, 64, OPS_KV_Q8_0, 64, false, 1, 0, false },  { 1, 4, 256, OPS_KV_Q8_0, 256, true, 1, 0, false },
    { 2, 7, 32, OPS_KV_Q8_0, 16, true, 1, 0, false },
};
static const struct shape smol_q8 = { 3, 3, 64, OPS_KV_Q8_0, 64, false, 1, 0, false };

/* Windows around the borders of blocks (64) and splits (256), smaller than a group's rows and than a tile. */
static const struct shape windowed[] = {
    { 3, 3, 64, OPS_KV_F16, 64, false, 1, 64, false },  { 1, 4, 32, OPS_KV_F32, 32, true, 1, 63, true },
    { 2, 1, 20, OPS_KV_F16, 20, true, 2, 65, true },    { 1, 16, 80, OPS_KV_F16, 32, true, 1, 1, false },
    { 1, 7, 8, OPS_KV_F16, 0, false, 3, 2, true },      { 1, 2, 256, OPS_KV_F16, 256, true, 1, 256, true },
    { 5, 5, 34, OPS_KV_F32, 34, false, 1, 17, false },  { 1, 8, 96, OPS_KV_F16, 96, true, 1, 128, true },
    { 1, 1, 16, OPS_KV_F32, 16, true, 1, 255, false },  { 1, 3, 24, OPS_KV_F32, 24, true, 1, 257, false },
    { 2, 3, 2, OPS_KV_F32, 2, true, 10, 100000, true }, { 1, 4, 32, OPS_KV_Q8_0, 32, true, 1, 63, true },
};

/* Blocks of a sequence out of order and apart: 3, 10, 17, ... modulo a pool size that 7 does not divide. */
static void scatter_blocks(struct sequence *s, uint32_t first, uint32_t pool)
{
    for (uint32_t i = 0; i < LENGTH(s->blocks); i++)
        s->blocks[i] = (first + 7 * i) % pool;
}

static size_t out_floats(const struct world *w, const struct sequence *s)
{
    return (size_t)s->n * world_heads(w) * w->shape.head_dim;
}

static double largest_difference(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= most))
            most = isnan(d) ? INFINITY : d;
    }
    return most;
}

/* One sequence on one device. */
static struct sequence run_alone(const struct shape *shape, const char *isa, uint32_t threads,
                                 uint32_t positions, uint32_t chunk, bool *ret_there)
{
    struct world w;
    struct sequence s = { 0 };
    *ret_there = world_open(&w, shape, isa, threads, 1, 41);
    if (!*ret_there)
        return s;
    sequence_init(&s, &w, 5, positions);
    scatter_blocks(&s, 3, 41);
    feed_alone(&w, &s, positions, chunk);
    world_close(&w);
    return s;
}

/* With f16 keys a rotation that rounds the other way moves a key by half a unit in its last place of 11 bits,
 * with q8_0 a number of a key or query by 1/127 of the largest. */
static double tolerance(const struct shape *s)
{
    return (s->type == OPS_KV_Q8_0  ? 1e-2
            : s->type == OPS_KV_F16 ? 4e-4
                                    : 1e-5) *
           (s->loud > 1 ? s->loud : 1);
}

static void compare_with_reference(const struct shape *shape, uint32_t positions, uint32_t chunk)
{
    bool there;
    struct sequence ref = run_alone(shape, NULL, 1, positions, 64, &there);
    const size_t kv = (size_t)positions * shape->kv_heads * shape->head_dim, all = kv * shape->ratio;
    for (size_t i = 0; i < LENGTH(isas); i++) {
        struct sequence s = run_alone(shape, isas[i], 2, positions, chunk, &there);
        if (!there)
            continue;
        double out = largest_difference(s.out, ref.out, all);
        cr_expect_leq(out, tolerance(shape), "%s, head dimension %u, chunks of %u: off by %g", isas[i],
                      shape->head_dim, chunk, out);
        cr_expect_leq(largest_difference(s.q, ref.q, all), 1e-5 * shape->loud, "%s: rotated queries",
                      isas[i]);
        cr_expect_leq(largest_difference(s.k, ref.k, kv), 1e-5, "%s: rotated keys", isas[i]);
        sequence_free(&s);
    }
    sequence_free(&ref);
}

Test(attention, agrees_with_the_reference_for_prompts)
{
    for (size_t i = 0; i < LENGTH(shapes); i += SHAPES_APART)
        compare_with_reference(&shapes[i], SPARSE > 1 ? 150 : 333, 97);
}

Test(attention, agrees_with_the_reference_token_by_token)
{
    for (size_t i = 0; i < LENGTH(shapes); i += SHAPES_APART)
        compare_with_reference(&shapes[i], SPARSE > 1 ? 70 : 140, 1);
}

Test(attention, agrees_with_the_reference_over_several_splits)
{
    compare_with_reference(&smol, (SPARSE > 1 ? 2 : 3) * CPU_SPLIT + 7, 512);
}

#ifndef TEST_CUDA
/* The emulator's bits are compared with the CPU's instead, which is cheaper. */
Test(attention, windows_and_head_norms_agree_with_the_reference)
{
    for (size_t i = 0; i < LENGTH(windowed); i++)
        compare_with_reference(&windowed[i], 2 * CPU_SPLIT + 70, 97);
}

/* The reference itself by plain loops over all positions at once: f32, one head, no rotation. */
Test(attention, the_reference_looks_at_the_window_and_no_further)
{
    const struct shape shape = { 1, 1, 4, OPS_KV_F32, 0, false, 1, 5, false };
    bool there;
    enum { N = 12 };
    struct sequence all = run_alone(&shape, NULL, 1, N, N, &there);
    for (uint32_t own = 0; own < N; own++) {
        /* The last 5 positions up to its own, alone in a sequence without a window. */
        const struct shape open = { 1, 1, 4, OPS_KV_F32, 0, false, 1, 0, false };
        const uint32_t from = own < 4 ? 0 : own - 4;
        double score[N], total = 0, sum[4] = { 0 };
        struct world w;
        struct sequence s;
        cr_assert(world_open(&w, &open, NULL, 1, 1, 41));
        sequence_init(&s, &w, 5, N);
        scatter_blocks(&s, 3, 41);
        feed_alone(&w, &s, N, N);
        float cells[2 * OPS_BLOCK_TOKENS * 4]; /* K, then V of one block */
        w.ops->kv_get(w.kv, s.blocks[0], N, cells);
        for (uint32_t p = from; p <= own; p++) {
            score[p] = 0;
            for (uint32_t d = 0; d < 4; d++)
                score[p] += (double)s.q[own * 4 + d] * cells[p * 4 + d];
            total += exp(score[p] / 2);
        }
        for (uint32_t p = from; p <= own; p++)
            for (uint32_t d = 0; d < 4; d++)
                sum[d] += exp(score[p] / 2) / total * cells[(N + p) * 4 + d];
        for (uint32_t d = 0; d < 4; d++)
            cr_expect_float_eq(all.out[own * 4 + d], sum[d], 1e-6, "position %u", own);
        sequence_free(&s);
        world_close(&w);
    }
    sequence_free(&all);
}
#endif

Test(attention, one_token_sees_only_itself)
{
    struct world w;
    cr_assert(world_open(&w, &smol, any, 1, 1, 2));
    struct sequence s;
    sequence_init(&s, &w, 1, 1);
    feed_alone(&w, &s, 1, 1);
    /* out is v as stored in f16, whatever q and k are: the three heads of a group agree. */
    cr_expect_arr_eq(s.out, s.out + smol.head_dim, smol.head_dim * sizeof(float));
    cr_expect(isfinite(s.out[0]));
    sequence_free(&s);
    world_close(&w);
}

/* Later tokens of the same window are memory that must not be multiplied, too: a probability of 0 times NaN
 * is NaN. */
static void later_nan(const struct shape *shape, const char *isa, uint32_t from)
{
    struct world w;
    if (!world_open(&w, shape, isa, 2, 1, 8))
        return;
    struct sequence good, bad;
    sequence_init(&good, &w, 6, 200);
    sequence_init(&bad, &w, 6, 200);
    for (uint32_t i = 0; i < 4; i++) {
        good.blocks[i] = i;
        bad.blocks[i] = 4 + i;
    }
    bad.nan_from = from;
    feed_alone(&w, &good, 200, 200);
    feed_alone(&w, &bad, 200, 200);
    const size_t row = (size_t)world_heads(&w) * shape->head_dim;
    cr_expect_arr_eq(bad.out, good.out, from * row * sizeof(float), "%s, NaN from position %u", isa, from);
    cr_expect(isnan(bad.out[from * row]), "%s: position %u sees a NaN", isa, from);
    sequence_free(&good);
    sequence_free(&bad);
    world_close(&w);
}

Test(attention, what_comes_later_in_the_window_is_never_multiplied)
{
    for (size_t i = 0; i < LENGTH(isas); i++)
        for (uint32_t from = 125; from<133; from += SPARSE> 1 ? 3 : 1) {
            later_nan(&smol, isas[i], from);
            later_nan(&shapes[2], isas[i], from);
            later_nan(&smol_q8, isas[i], from);
        }
}

/* What lies before the window is not multiplied either. */
static void earlier_nan(const struct shape *shape, const char *isa, uint32_t chunk)
{
    enum { POSITIONS = 600 };
    struct world w;
    if (!world_open(&w, shape, isa, 2, 1, 24))
        return;
    struct sequence good, bad;
    sequence_init(&good, &w, 6, POSITIONS);
    sequence_init(&bad, &w, 6, POSITIONS);
    for (uint32_t i = 0; i < 12; i++) {
        good.blocks[i] = i;
        bad.blocks[i] = 12 + i;
    }
    bad.nan_to = 200;
    feed_alone(&w, &good, POSITIONS, chunk);
    feed_alone(&w, &bad, POSITIONS, chunk);
    const size_t row = (size_t)world_heads(&w) * shape->head_dim, sees_none = bad.nan_to + shape->window - 1;
    cr_expect_arr_eq(bad.out + sees_none * row, good.out + sees_none * row,
                     (POSITIONS - sees_none) * row * sizeof(float), "%s, window %u, chunks of %u", isa,
                     shape->window, chunk);
    cr_expect(isnan(bad.out[(sees_none - 1) * row]), "%s, window %u: the one before sees a NaN", isa,
              shape->window);
    sequence_free(&good);
    sequence_free(&bad);
    world_close(&w);
}

Test(attention, what_lies_before_the_window_is_never_multiplied)
{
    for (size_t i = 0; i < LENGTH(isas); i++)
        for (size_t k = 0; k < 3; k++) {
            if (SPARSE == 1)
                earlier_nan(&windowed[k], isas[i], 1);
            earlier_nan(&windowed[k], isas[i], 300);
        }
}

/* ---- the same bits ---- */

static void expect_same_bits(const struct shape *shape, uint32_t positions)
{
    static const uint32_t chunks[] = { 1, 7, 64, 512 };
    bool there;
    struct sequence first = { 0 };
    for (size_t i = 0; i < LENGTH(vector) && !first.out; i++)
        first = run_alone(shape, vector[i], 1, positions, 512, &there);
    const size_t all = (size_t)positions * shape->kv_heads * shape->ratio * shape->head_dim;
    for (size_t i = 0; i < LENGTH(vector); i++)
        for (uint32_t threads = 1; threads <= THREADS_MOST; threads += SPARSE > 1 ? 2 : 1)
            for (size_t c = SPARSE > 1; c < LENGTH(chunks); c++) {
                if (SPARSE > 1 && THREADS_MOST > 1 && c % 2 == (threads == 1))
                    continue;
                struct sequence s = run_alone(shape, vector[i], threads, positions, chunks[c], &there);
                if (!there)
                    continue;
                cr_expect_arr_eq(s.out, first.out, all * sizeof(float), "%s, %u threads, chunks of %u",
                                 vector[i], threads, chunks[c]);
                cr_expect_arr_eq(s.q, first.q, all * sizeof(float));
                sequence_free(&s);
            }
    sequence_free(&first);
}

Test(attention, bits_depend_on_neither_chunks_threads_nor_isa)
{
    expect_same_bits(&smol, (SPARSE > 1 ? 1 : 2) * CPU_SPLIT + 70);
}

Test(attention, bits_depend_on_neither_chunks_threads_nor_isa_for_odd_shapes)
{
    for (size_t i = 1; i < LENGTH(shapes); i += SHAPES_APART)
        expect_same_bits(&shapes[i], 131);
}

Test(attention, bits_with_windows_and_norms_depend_on_neither_chunks_threads_nor_isa)
{
    for (size_t i = 0; i < LENGTH(windowed); i++)
        if (SPARSE == 1 || i % 4 == 3)
            expect_same_bits(&windowed[i], CPU_SPLIT + 150);
}

Test(attention, bits_with_q8_depend_on_neither_chunks_threads_nor_isa)
{
    expect_same_bits(&smol_q8, SPARSE > 1 ? CPU_SPLIT + 30 : 2 * CPU_SPLIT + 70);
}

Test(attention, portable_bits_depend_on_neither_chunks_nor_threads)
{
    bool there;
    struct sequence a = run_alone(&smol, "portable", 1, 300, 300, &there);
    struct sequence b = run_alone(&smol, "portable", 3, 300, 1, &there);
    cr_expect_arr_eq(a.out, b.out, sizeof(float) * 300 * 9 * 64);
    sequence_free(&a);
    sequence_free(&b);
}

/* Eight sequences of different lengths, fed in windows of mixed rows, against each alone. */
Test(attention, a_window_of_several_rows_gives_each_what_it_gets_alone)
{
    enum { N_MOST = 8, POOL = 89 };
    const uint32_t n_sequences = SPARSE > 1 ? 5 : N_MOST;
    struct world w;
    cr_assert(world_open(&w, &smol, any, 2, 2, POOL));
    struct sequence s[N_MOST], *in_window[N_MOST];
    for (uint32_t i = 0; i < n_sequences; i++) {
        sequence_init(&s[i], &w, 100 + i, 400);
        for (uint32_t b = 0; b < 8; b++)
            s[i].blocks[b] = (i * 8 + b) * 3 % POOL; /* distinct, as 3 does not divide 89 */
        feed_alone(&w, &s[i], 30 + 37 * i, 64);
    }
    for (uint32_t step = 0; step < 60 / SPARSE; step++) {
        uint32_t n[N_MOST], count = 0;
        for (uint32_t i = 0; i < n_sequences; i++)
            if ((step + i) % 3) {
                n[count] = step % 5 == 4 && i == step % n_sequences ? 11 : 1;
                in_window[count++] = &s[i];
            }
        feed(&w, in_window, n, count);
    }
    for (uint32_t i = 0; i < n_sequences; i++) {
        struct world alone;
        struct sequence a;
        cr_assert(world_open(&alone, &smol, any, 1, 2, 16));
        sequence_init(&a, &alone, 100 + i, 400);
        scatter_blocks(&a, 0, 16);
        feed_alone(&alone, &a, s[i].n, 50);
        cr_expect_arr_eq(a.out, s[i].out, out_floats(&w, &s[i]) * sizeof(float), "sequence %u of %u tokens",
                         i, s[i].n);
        sequence_free(&a);
        world_close(&alone);
    }
    for (uint32_t i = 0; i < n_sequences; i++)
        sequence_free(&s[i]);
    world_close(&w);
}

/* ---- blocks ---- */

Test(kv, sequences_share_the_blocks_of_a_prefix)
{
    struct world w;
    cr_assert(world_open(&w, &smol, any, 2, 1, 32));
    struct sequence a, b, *both[] = { &a, &b };
    sequence_init(&a, &w, 9, 400);
    sequence_init(&b, &w, 9, 400);
    scatter_blocks(&a, 2, 32);
    feed_alone(&w, &a, 256, 100);
    /* b continues after the shared 192 positions in blocks of its own, with the same tokens: the same
     * results. */
    memcpy(b.blocks, a.blocks, sizeof b.blocks);
    for (uint32_t i = 3; i < 7; i++)
        b.blocks[i] = (a.blocks[i] + 1) % 32;
    b.n = 192;
    feed_alone(&w, &b, 256, 64);
    uint32_t one[] = { 1, 1 };
    for (uint32_t i = 0; i < 80 / SPARSE; i++)
        feed(&w, both, one, 2);
    const size_t row = 9 * 64;
    cr_expect_arr_eq(a.out + 192 * row, b.out + 192 * row, (a.n - 192) * row * sizeof(float));
    sequence_free(&a);
    sequence_free(&b);
    world_close(&w);
}

/* Two rows of one sequence at consecutive positions: the second must see what the first stores in this very
 * window. */
Test(kv, a_row_sees_what_another_row_of_its_window_writes)
{
    struct world w;
    cr_assert(world_open(&w, &smol, any, 3, 1, 16));
    struct sequence a, b, *both[] = { &a, &b };
    sequence_init(&a, &w, 9, 200);
    sequence_init(&b, &w, 9, 200);
    for (uint32_t n = 100; n<180; n += SPARSE> 1 ? 27 : 2) { /* 127: in two blocks */
        uint32_t one[] = { 1, 1 };
        a.n = b.n = 0;
        world_spoil(&w);
        scatter_blocks(&a, 1, 16);
        scatter_blocks(&b, 1, 16);
        feed_alone(&w, &a, n, 512);
        b.n = n + 1;
        feed(&w, both, one, 2);
        float *second = b.out + (size_t)(n + 1) * 9 * 64, copy[9 * 64];
        memcpy(copy, second, sizeof copy);
        a.n = 0;
        feed_alone(&w, &a, n + 2, 512);
        cr_assert_arr_eq(copy, a.out + (size_t)(n + 1) * 9 * 64, sizeof copy, "position %u", n + 1);
    }
    sequence_free(&a);
    sequence_free(&b);
    world_close(&w);
}

static void fork_at(const struct shape *shape, uint32_t at)
{
    struct world w;
    cr_assert(world_open(&w, shape, any, 2, SPARSE > 1 ? 2 : 3, 20));
    struct sequence a, b;
    sequence_init(&a, &w, 4, 150);
    sequence_init(&b, &w, 4, 150);
    scatter_blocks(&a, 0, 20);
    feed_alone(&w, &a, 128, 128);
    memcpy(b.blocks, a.blocks, sizeof b.blocks);
    b.blocks[1] = 1;
    b.blocks[2] = 2;
    w.ops->kv_copy(w.kv, 1, a.blocks[1], at - 64);
    b.n = at;
    feed_alone(&w, &b, 150, 5);
    feed_alone(&w, &a, 150, 1);
    const size_t row = (size_t)world_heads(&w) * shape->head_dim;
    cr_expect_arr_eq(a.out + at * row, b.out + at * row, (150 - at) * row * sizeof(float), "fork at %u", at);
    sequence_free(&a);
    sequence_free(&b);
    world_close(&w);
}

Test(kv, a_copy_of_part_of_a_block_continues_the_same)
{
    static const uint32_t at[] = { 65, 66, 81, 100, 127, 128 };
    for (size_t i = 0; i < LENGTH(at); i += SPARSE) {
        if (SPARSE == 1)
            fork_at(&smol, at[i]);
        fork_at(&shapes[2], at[i]);
        fork_at(&shapes[7], at[i]);
        fork_at(&shapes[12], at[i]); /* q8_0 */
    }
}

Test(kv, a_copy_touches_only_the_positions_asked_for)
{
    enum { TOKENS = 10, ROW = 20, SIDES = 2 * 2 * 2 }; /* of 2 layers, 2 heads, K and V */
    static uint16_t cells[SIDES * OPS_BLOCK_TOKENS * ROW];
    struct world w;
    cr_assert(world_open(&w, &shapes[2], any, 1, 2, 4));
    memset(cells, 0, sizeof cells);
    for (uint32_t b = 0; b < 4; b++)
        w.ops->kv_put(w.kv, b, OPS_BLOCK_TOKENS, cells);
    memset(cells, 0x33, sizeof cells);
    w.ops->kv_put(w.kv, 2, OPS_BLOCK_TOKENS, cells);
    w.ops->kv_copy(w.kv, 1, 2, TOKENS);
    cr_assert_eq(w.ops->sync(w.dev, (char[200]){ 0 }, 200), 0);
    w.ops->kv_get(w.kv, 1, OPS_BLOCK_TOKENS, cells);
    for (size_t i = 0; i < LENGTH(cells); i++)
        cr_assert_eq(cells[i], i / ROW % OPS_BLOCK_TOKENS < TOKENS ? 0x3333 : 0, "cell %zu", i);
    for (uint32_t b = 0; b < 4; b += 3) {
        w.ops->kv_get(w.kv, b, OPS_BLOCK_TOKENS, cells);
        for (size_t i = 0; i < LENGTH(cells); i++)
            cr_assert_eq(cells[i], 0, "block %u", b);
    }
    world_close(&w);
}

/* The first `tokens` positions of block 2 of a sequence, in the form that all devices have; to be freed. */
static unsigned char *block_of(const struct shape *shape, const char *isa, uint32_t tokens, size_t *ret_bytes)
{
    const struct ops_kv_shape kv = {
        .layers = 1, .heads = shape->kv_heads, .head_dim = shape->head_dim, .blocks = 1, .type = shape->type
    };
    struct world w;
    struct sequence s;
    if (!world_open(&w, shape, isa, 2, 1, 8))
        return NULL;
    *ret_bytes = 2 * (size_t)shape->kv_heads * tokens * shape_of_kv(&kv).row_bytes;
    unsigned char *cells = malloc(*ret_bytes), *again = malloc(*ret_bytes);
    cr_assert(cells && again);
    sequence_init(&s, &w, 3, 64 + tokens);
    scatter_blocks(&s, 1, 8);
    s.blocks[1] = 2;
    feed_alone(&w, &s, 64 + tokens, 50);
    w.ops->kv_get(w.kv, 2, tokens, cells);
    w.ops->kv_put(w.kv, 5, tokens, cells); /* and through another block */
    w.ops->kv_get(w.kv, 5, tokens, again);
    cr_expect_arr_eq(again, cells, *ret_bytes, "%s, KV type %d", isa, (int)shape->type);
    sequence_free(&s);
    world_close(&w);
    free(again);
    return cells;
}

Test(kv, in_host_memory_a_block_is_the_same_bytes_from_every_device)
{
    const struct shape *const of[] = { &smol, &shapes[7], &smol_q8 };
    for (size_t k = 0; k < LENGTH(of); k++) {
        unsigned char *first = NULL;
        for (size_t i = 0; i < LENGTH(vector); i++) {
            size_t bytes = 0;
            unsigned char *cells = block_of(of[k], vector[i], 21, &bytes);
            if (first && cells)
                cr_expect_arr_eq(cells, first, bytes, "%s, KV type %d", vector[i], (int)of[k]->type);
            if (first || !cells)
                free(cells);
            else
                first = cells;
        }
        free(first);
    }
}

Test(kv, refuses_impossible_pools)
{
    const struct ops *ops = strcmp(any, "cuda") ? &ops_cpu : &ops_cuda;
    struct ops_open how = { .isa = "auto", .threads = 1 };
    struct ops_dev *d;
    struct ops_kv *kv;
    char err[200] = "";
    cr_assert_eq(ops->open(&how, &d, err, sizeof err), 0);
    struct ops_kv_shape odd = { .layers = 1, .heads = 1, .head_dim = 63, .blocks = 1 };
    cr_expect_eq(ops->kv_new(d, &odd, &kv, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "63") != NULL, "%s", err);
    struct ops_kv_shape wide = { .layers = 1, .heads = 1, .head_dim = 512, .blocks = 1 };
    cr_expect_eq(ops->kv_new(d, &wide, &kv, err, sizeof err), -EINVAL);
    struct ops_kv_shape none = { .layers = 1, .heads = 1, .head_dim = 64, .blocks = 0 };
    cr_expect_eq(ops->kv_new(d, &none, &kv, err, sizeof err), -EINVAL);
    struct ops_kv_shape huge = { .layers = 60000, .heads = 60000, .head_dim = 256, .blocks = UINT32_MAX };
    cr_expect_eq(ops->kv_new(d, &huge, &kv, err, sizeof err), -ENOMEM);
    struct ops_kv_shape uneven = {
        .layers = 1, .heads = 1, .head_dim = 80, .blocks = 1, .type = OPS_KV_Q8_0
    };
    cr_expect_eq(ops->kv_new(d, &uneven, &kv, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "head dimension 80: KV in q8_0 needs a multiple of 32") != NULL, "%s", err);
    struct ops_kv_shape type = {
        .layers = 1, .heads = 1, .head_dim = 64, .blocks = 1, .type = (enum ops_kv_type)7
    };
    cr_expect_eq(ops->kv_new(d, &type, &kv, err, sizeof err), -ENOTSUP);
    ops->close(d);
}

#ifndef TEST_CUDA
static size_t resident_bytes(void)
{
    unsigned long pages = 0, total = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%lu %lu", &total, &pages), 2);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

Test(kv, memory_is_taken_as_it_is_written)
{
    struct ops_open how = { .isa = "auto", .threads = 1 };
    struct world w = { .ops = &ops_cpu, .shape = smol, .layers = 30 };
    char err[200];
    cr_assert_eq(ops_cpu.open(&how, &w.dev, err, sizeof err), 0);
    struct ops_kv_shape shape = {
        .layers = 30, .heads = 3, .head_dim = 64, .blocks = 10000, .type = OPS_KV_F16
    };
    const uint32_t n = cases_of(10, 3);
    const size_t before = resident_bytes(), block = ops_cpu.kv_block_bytes(&shape);
    cr_assert_eq(ops_cpu.kv_new(w.dev, &shape, &w.kv, err, sizeof err), 0, "%s", err);
    cr_expect_eq(block, 30u * 3 * 2 * 64 * 64 * 2);
    struct sequence s;
    sequence_init(&s, &w, 1, 64 * n);
    for (uint32_t i = 0; i < n; i++)
        s.blocks[i] = 977 * i;
    feed_alone(&w, &s, 64 * n, 512);
    const size_t grown = resident_bytes() - before;
    cr_expect_geq(grown, n * block);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was freed */
    cr_expect_leq(grown, n * block + (12u << 20), "%u blocks of %zu bytes took %zu", n, block, grown);
#endif
    sequence_free(&s);
    world_close(&w);
}
#endif
