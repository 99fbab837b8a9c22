/* Cpu matmul: how a product is shared among the device's threads, and which kernels compute it.
 *
 * Rows are prepared (normed, gated, quantized) first. A few rows every thread prepares for itself, which
 * costs less than waiting for another; many rows are prepared once, shared out. Then pieces of some panels by
 * some rows are taken in order: rows in chunks that stay in the second-level cache with their panels passing
 * by. Nothing here affects a bit. Thread: the stage thread and the device's pool. Must not know: which matrix
 * of which layer this is. Tests: tests/kernels/test_matmul.c */
#include "cpu_matmul.h"

#include <errno.h>

#define OWN_VALUES 4096u         /* prepared by each thread for itself up to here */
#define CHUNK_BYTES (256u << 10) /* of prepared rows */
#define PIECES_PER_THREAD 16u
#define ALONE_BYTES (16u << 10) /* products of fewer bytes of weights are not worth waking a thread for */

struct product {
    const struct ops_dev *d;
    const struct ops_matmul *m;
    const struct cpu_matmul_kernels *k;
    bool quantized, floats; /* forms of the rows that some weight needs */
    bool shared;            /* rows prepared once */
    struct cpu_rows rows;   /* the shared ones */
    uint32_t cols;
    uint32_t terms; /* of each row, quantized */
    uint32_t chunk; /* rows of input of a piece */
    uint32_t panels, panels_each,
        groups; /* of all weights, one after the other; of a piece; pieces of a chunk */
    size_t work_at, rows_at, scratch_bytes; /* in a thread's scratch: kernel's own, cols floats, rows */
    struct cpu_work prepare, multiply;
};

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

static const struct cpu_matmul_kernels *kernels_for(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_AMX)
        return &cpu_matmul_amx;
    if (isa >= CPU_AVX512)
        return &cpu_matmul_avx512;
    if (isa >= CPU_AVX2)
        return &cpu_matmul_avx2;
#endif
    (void)isa;
    return &cpu_matmul_portable;
}

static bool weight_takes_floats(const struct product *p, const struct ops_weight *w)
{
    return !cpu_weight_is_quantized(w) || p->d->activations == OPS_F32;
}

/* Where n rows of input lie in `at`; returns the bytes they take. at may be NULL, to ask for the size alone.
 */
static size_t place_rows(const struct product *p, uint32_t n, unsigned char *at, struct cpu_rows *rows)
{
    uint32_t quantized = n * p->terms;
    uint32_t height = quantized <= CPU_TILE / 2 ? quantized : CPU_TILE;
    size_t whole = ((size_t)quantized + height - 1) / height * height;
    size_t q = p->quantized ? round_up(whole * p->cols) : 0;
    size_t block = p->quantized ? round_up(whole * (p->cols / CPU_BLOCK) * sizeof *rows->block) : 0;
    size_t f = p->floats ? round_up((size_t)n * p->cols * sizeof *rows->f) : 0;
    *rows = (struct cpu_rows){ .cols = p->cols, .terms = p->terms, .height = height };
    if (at && q) {
        rows->q = (int8_t *)at;
        rows->block = (struct cpu_block *)(void *)(at + q);
    }
    if (at && f)
        rows->f = (float *)(void *)(at + q + block);
    return q + block + f;
}

/* Panel number `panel` of all weights one after the other, by n rows of input from `first`. */
static void multiply_panel(const struct product *p, const struct cpu_rows *rows, uint32_t panel,
                           uint32_t first, uint32_t n, void *scratch)
{
    const struct ops_matmul *m = p->m;
    uint32_t j = 0;
    while (panel >= m->weight[j]->panels)
        panel -= m->weight[j++]->panels;
    struct cpu_part part = { .w = m->weight[j],
                             .panel = panel,
                             .x = rows,
                             .first = first,
                             .n = n,
                             .bias = m->bias[j],
                             .out = m->out[j],
                             .terms = 1,
                             .add = m->add,
                             .scratch = scratch };
    if (weight_takes_floats(p, m->weight[j])) {
        p->k->floats(&part);
        return;
    }
    part.terms = rows->terms;
    part.first *= rows->terms;
    part.n *= rows->terms;
    p->k->quantized(&part);
}

static void multiply_piece(const struct product *p, const struct cpu_rows *rows, uint32_t piece,
                           void *scratch)
{
    uint32_t first = piece / p->groups * p->chunk, left = p->m->n - first;
    uint32_t panel = piece % p->groups * p->panels_each;
    for (uint32_t i = 0; i < p->panels_each && panel + i < p->panels; i++)
        multiply_panel(p, rows, panel + i, first, left < p->chunk ? left : p->chunk, scratch);
}

static void prepare_own(const struct product *p, unsigned char *scratch, struct cpu_rows *rows)
{
    place_rows(p, p->m->n, scratch + p->rows_at, rows);
    for (uint32_t i = 0; i < p->m->n; i++)
        p->k->prepare(p->m, i, rows, i, (float *)(void *)(scratch + p->work_at));
}

static void section(void *arg, uint32_t thread)
{
    struct product *p = arg;
    unsigned char *scratch = cpu_scratch(p->d, thread);
    struct cpu_rows rows = p->rows;
    uint32_t i;
    if (p->shared) {
        while (cpu_work_take(&p->prepare, &i)) {
            p->k->prepare(p->m, i, &rows, i, (float *)(void *)(scratch + p->work_at));
            cpu_work_finish(&p->prepare);
        }
        cpu_work_wait(&p->prepare);
    }
    if (!cpu_work_take(&p->multiply, &i))
        return;
    if (!p->shared)
        prepare_own(p, scratch, &rows);
    if (p->k->enter)
        p->k->enter();
    do
        multiply_piece(p, &rows, i, scratch);
    while (cpu_work_take(&p->multiply, &i));
    if (p->k->leave)
        p->k->leave();
}

static void plan_pieces(struct product *p)
{
    size_t row_bytes = (p->quantized ? (p->cols + p->cols / 2) * (size_t)p->terms : 0) +
                       (p->floats ? 4 * (size_t)p->cols : 0);
    uint32_t n = p->m->n, chunk = (uint32_t)(CHUNK_BYTES / row_bytes) / CPU_TILE * CPU_TILE;
    p->chunk = chunk < CPU_TILE ? CPU_TILE : chunk;
    uint32_t chunks = (n + p->chunk - 1) / p->chunk;
    p->chunk = (n + chunks - 1) / chunks;                                        /* of about equal size, */
    p->chunk = chunks > 1 ? (p->chunk + CPU_TILE - 1) / CPU_TILE * CPU_TILE : n; /* in whole tiles */
    chunks = (n + p->chunk - 1) / p->chunk;

    uint64_t wanted = (uint64_t)p->d->threads * PIECES_PER_THREAD;
    uint64_t each = ((uint64_t)p->panels * chunks + wanted - 1) / wanted;
    p->panels_each = each < 1 ? 1 : each > 64 ? 64 : (uint32_t)each;
    p->groups = (p->panels + p->panels_each - 1) / p->panels_each;
    cpu_work_init(&p->prepare, p->shared ? n : 0);
    cpu_work_init(&p->multiply, chunks * p->groups);
}

static int plan_memory(struct product *p, struct ops_dev *d)
{
    size_t kernel = 0;
    for (uint32_t j = 0; j < p->m->count && p->k->scratch; j++) {
        size_t want = p->k->scratch(p->m->weight[j]);
        kernel = want > kernel ? want : kernel;
    }
    p->work_at = round_up(kernel);
    p->rows_at = p->work_at + round_up((size_t)p->cols * sizeof(float));
    size_t bytes = place_rows(p, p->m->n, NULL, &p->rows);
    if (p->shared) {
        void *at = cpu_shared(d, bytes);
        if (!at)
            return -ENOMEM;
        place_rows(p, p->m->n, at, &p->rows);
    }
    return cpu_scratch_reserve(d, p->rows_at + (p->shared ? 0 : bytes));
}

void cpu_matmul(struct ops_dev *d, const struct ops_matmul *m)
{
    struct product p = { .d = d, .m = m, .k = kernels_for(d->isa), .cols = m->weight[0]->cols };
    p.terms = d->activations == OPS_INT16 ? 2 : 1;
    size_t bytes = 0;
    for (uint32_t j = 0; j < m->count; j++) {
        const struct ops_weight *w = m->weight[j];
        if (weight_takes_floats(&p, w))
            p.floats = true;
        else
            p.quantized = true;
        p.panels += w->panels;
        bytes += w->panels * w->panel_bytes;
    }
    if (m->n == 0)
        return;
    bool alone = d->threads == 1 || bytes * m->n < ALONE_BYTES;
    p.shared = !alone && (uint64_t)m->n * p.cols > OWN_VALUES;
    plan_pieces(&p);
    if (plan_memory(&p, d) < 0) /* recorded where it failed */
        return;
    cpu_parallel(d, alone ? 1 : p.multiply.total, section, &p);
}

struct norms {
    const struct ops_dev *d;
    const struct cpu_matmul_kernels *k;
    const float *x, *norm;
    float eps;
    uint32_t cols;
    float *out;
    struct cpu_work rows;
};

static void norm_rows(void *arg, uint32_t thread)
{
    struct norms *p = arg;
    uint32_t i;
    while (cpu_work_take(&p->rows, &i)) {
        const size_t at = (size_t)i * p->cols;
        p->k->norm_add(p->x + at, p->norm, p->eps, p->cols, cpu_scratch(p->d, thread), p->out + at);
    }
}

void cpu_norm_add(struct ops_dev *d, const float *x, const float *norm, float eps, uint32_t n, uint32_t cols,
                  float *out)
{
    struct norms p = {
        .d = d, .k = kernels_for(d->isa), .x = x, .norm = norm, .eps = eps, .cols = cols, .out = out
    };
    if (cpu_scratch_reserve(d, cols * sizeof *x) < 0) /* recorded where it failed */
        return;
    cpu_work_init(&p.rows, n);
    cpu_parallel(d, (uint64_t)n * cols <= OWN_VALUES ? 1 : n, norm_rows, &p);
}
