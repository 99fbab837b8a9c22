/* Matmul case: random products for test_matmul.c and bench_matmul.c: weights as a file has them, inputs,
 * devices to run them on. Functions are inline because two programs of one source file each include them. */
#pragma once
#include "kernels/ops.h"
#include "kernels/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_FN static inline __attribute__((unused))

struct rng {
    uint64_t state;
};

TEST_FN uint32_t rng_next(struct rng *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 33) ^ (uint32_t)(r->state >> 12);
}

TEST_FN uint32_t rng_range(struct rng *r, uint32_t low, uint32_t high) /* both included */
{
    return low + rng_next(r) % (high - low + 1);
}

TEST_FN float rng_normal(struct rng *r)
{
    double u = (rng_next(r) + 1.0) / 4294967297.0, v = rng_next(r) / 4294967296.0;
    return (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979 * v));
}

/* Quantized types, those in blocks of 32 first, and the others; floats are the last 3. */
static const uint32_t case_types[]
    __attribute__((unused)) = { QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0, QUANT_Q4_K,
                                QUANT_Q5_K, QUANT_Q6_K, QUANT_F32,  QUANT_F16,  QUANT_BF16 };
#define CASE_QUANTS 8u
#define CASE_TYPES (CASE_QUANTS + 3u)

TEST_FN bool case_has_minima(uint32_t type)
{
    return type == QUANT_Q4_1 || type == QUANT_Q5_1 || type == QUANT_Q4_K || type == QUANT_Q5_K;
}

/* Where a block's f16 scale lies; its minimum comes after it. */
TEST_FN uint32_t case_scale_at(uint32_t type)
{
    return type == QUANT_Q6_K ? 208 : 0;
}

enum scales { SCALES_USUAL, SCALES_HUGE, SCALES_ZERO, SCALES_TINY, SCALES_MIXED };

TEST_FN uint16_t case_scale(struct rng *r, enum scales how)
{
    switch (how == SCALES_MIXED ? rng_range(r, SCALES_USUAL, SCALES_TINY) : how) {
    case SCALES_HUGE:
        return quant_f32_to_f16(rng_normal(r) > 0 ? 65504.0f : -60000.0f);
    case SCALES_ZERO:
        return rng_next(r) & 1 ? 0x8000 : 0;
    case SCALES_TINY:
        return (uint16_t)rng_range(r, 0, 1023); /* subnormal */
    default:
        return quant_f32_to_f16(0.02f * rng_normal(r));
    }
}

/* rows x cols weights of the type in the file's layout; free(). */
TEST_FN unsigned char *case_weights(struct rng *r, uint32_t type, uint32_t rows, uint32_t cols,
                                    enum scales how)
{
    const struct quant_info *info = quant_info_find(type);
    size_t blocks = (size_t)rows * cols / info->block;
    unsigned char *w = malloc(blocks * info->bytes);
    for (size_t b = 0; b < blocks; b++) {
        unsigned char *at = w + b * info->bytes;
        uint16_t half = case_scale(r, how);
        float f = quant_f16_to_f32(half);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (type == QUANT_F32) {
            memcpy(at, &f, 4);
            continue;
        }
        if (type == QUANT_BF16)
            half = (uint16_t)(bits >> 16);
        for (uint32_t i = 0; i < info->bytes; i++)
            at[i] = (unsigned char)rng_next(r);
        memcpy(at + case_scale_at(type), &half, 2);
        half = case_scale(r, how);
        if (case_has_minima(type))
            memcpy(at + 2, &half, 2);
    }
    return w;
}

struct dut {
    const struct ops *ops;
    struct ops_dev *dev;
    char name[48];
};

/* False when this machine has no such instruction set. isa NULL: the reference; "cuda": a CUDA device. */
TEST_FN bool dut_open(struct dut *d, const char *isa, uint32_t threads, enum ops_activations activations)
{
    char err[200];
    const bool cuda = isa && !strcmp(isa, "cuda");
    struct ops_open how = { .isa = isa && !cuda ? isa : "auto",
                            .threads = threads,
                            .activations = activations };
    d->ops = cuda ? &ops_cuda : isa ? &ops_cpu : &ops_ref;
    if (!d->ops)
        return false;
    snprintf(d->name, sizeof d->name, "%s, %u threads, %s", isa ? isa : "ref", threads,
             (const char *const[]){ "int8", "int16", "f32" }[activations]);
    return d->ops->open(&how, &d->dev, err, sizeof err) == 0;
}

TEST_FN void dut_close(struct dut *d)
{
    d->ops->close(d->dev);
}

struct product_case {
    enum ops_prepare prepare;
    bool add, biased; /* some outputs have a bias */
    uint32_t n, cols, count;
    uint32_t type[OPS_MAX_OUT], rows[OPS_MAX_OUT];
    unsigned char *weight[OPS_MAX_OUT];
    float *x, *x2, *norm;
    float *bias[OPS_MAX_OUT];  /* NULL: none */
    float *start[OPS_MAX_OUT]; /* what the outputs hold before, for add */
};

TEST_FN float *case_floats(struct rng *r, size_t n, float size)
{
    float *f = malloc(n * sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = size * rng_normal(r);
    return f;
}

/* A product of the given shape; weights and inputs random. */
TEST_FN void case_fill(struct rng *r, struct product_case *c, enum scales how)
{
    for (uint32_t j = 0; j < c->count; j++) {
        c->weight[j] = case_weights(r, c->type[j], c->rows[j], c->cols, how);
        c->start[j] = case_floats(r, (size_t)c->n * c->rows[j], 1);
        if (c->biased && rng_next(r) & 1)
            c->bias[j] = case_floats(r, c->rows[j], 1);
    }
    c->x = case_floats(r, (size_t)c->n * c->cols, 2);
    c->x2 = case_floats(r, (size_t)c->n * c->cols, 1);
    c->norm = case_floats(r, c->cols, 1);
}

/* Random shapes: rows 1..70, n 1..33, columns as the types allow. */
TEST_FN void case_random(struct rng *r, struct product_case *c)
{
    const uint32_t how = rng_range(r, 0, 3); /* 0: floats; 1: types of 32 columns, mostly; else any */
    const uint32_t small = 5;
    c->prepare = (enum ops_prepare)rng_range(r, OPS_PLAIN, OPS_GEGLU);
    c->biased = rng_range(r, 0, 1);
    c->add = rng_next(r) & 1;
    c->n = rng_range(r, 1, 33);
    c->cols = how == 0   ? rng_range(r, 1, 300)
              : how == 1 ? 32 * rng_range(r, 1, 12)
                         : 256 * rng_range(r, 1, 2);
    c->count = rng_range(r, 1, OPS_MAX_OUT);
    for (uint32_t j = 0; j < c->count; j++) {
        uint32_t i = rng_range(r, how == 0 ? CASE_QUANTS : 0, CASE_TYPES - 1);
        c->type[j] = case_types[how == 1 && i >= small && i < CASE_QUANTS ? i % small : i];
        c->rows[j] = rng_range(r, 1, 70);
    }
    case_fill(r, c, (enum scales)rng_range(r, SCALES_USUAL, SCALES_MIXED));
}

TEST_FN void case_free(struct product_case *c)
{
    for (uint32_t j = 0; j < c->count; j++) {
        free(c->weight[j]);
        free(c->start[j]);
        free(c->bias[j]);
    }
    free(c->x);
    free(c->x2);
    free(c->norm);
}

/* n floats of device memory as they are after all that was queued; free(). */
TEST_FN float *dut_download(struct dut *d, const float *from, size_t n)
{
    float *to = malloc(n * sizeof *to);
    if (to)
        d->ops->download(d->dev, to, from, n * sizeof *to);
    return to;
}

TEST_FN float *dut_upload(struct dut *d, const float *from, size_t n)
{
    float *to = d->ops->alloc(d->dev, n * sizeof *to);
    if (to)
        d->ops->upload(d->dev, to, from, n * sizeof *to);
    return to;
}

/* Rows first .. first + n - 1 of the case on the device; out[j] gets n rows. False when the device failed. */
TEST_FN bool case_run(const struct product_case *c, struct dut *d, uint32_t first, uint32_t n,
                      float *const out[OPS_MAX_OUT])
{
    char err[200] = "";
    bool ok = true;
    float *x = dut_upload(d, c->x + (size_t)first * c->cols, (size_t)n * c->cols);
    float *x2 = dut_upload(d, c->x2 + (size_t)first * c->cols, (size_t)n * c->cols);
    float *norm = dut_upload(d, c->norm, c->cols);
    struct ops_matmul m = { .prepare = c->prepare, .x = x, .n = n, .count = c->count, .add = c->add };
    struct ops_weight *w[OPS_MAX_OUT] = { 0 };
    float *bias[OPS_MAX_OUT] = { 0 };
    if (c->prepare == OPS_SWIGLU || c->prepare == OPS_GEGLU)
        m.x2 = x2;
    if (c->prepare == OPS_RMS_NORM) {
        m.norm = norm;
        m.eps = 1e-5f;
    }
    for (uint32_t j = 0; j < c->count; j++) {
        struct ops_tensor t = { c->type[j], c->rows[j], c->cols, c->weight[j] };
        ok = ok && d->ops->weight_new(d->dev, &t, &w[j], err, sizeof err) == 0;
        m.weight[j] = w[j];
        m.bias[j] = bias[j] = c->bias[j] ? dut_upload(d, c->bias[j], c->rows[j]) : NULL;
        m.out[j] = dut_upload(d, c->start[j] + (size_t)first * c->rows[j], (size_t)n * c->rows[j]);
    }
    if (ok)
        d->ops->matmul(d->dev, &m);
    for (uint32_t j = 0; j < c->count; j++) {
        d->ops->download(d->dev, out[j], m.out[j], (size_t)n * c->rows[j] * sizeof(float));
        d->ops->weight_free(w[j]);
        d->ops->release(d->dev, m.out[j]);
        d->ops->release(d->dev, bias[j]);
    }
    d->ops->release(d->dev, x);
    d->ops->release(d->dev, x2);
    d->ops->release(d->dev, norm);
    return d->ops->sync(d->dev, err, sizeof err) == 0 && ok;
}

/* Room for n rows of every output; free each. */
TEST_FN void case_outputs(const struct product_case *c, uint32_t n, float *out[OPS_MAX_OUT])
{
    for (uint32_t j = 0; j < c->count; j++)
        out[j] = calloc((size_t)n * c->rows[j], sizeof *out[j]);
}

TEST_FN void case_outputs_free(const struct product_case *c, float *out[OPS_MAX_OUT])
{
    for (uint32_t j = 0; j < c->count; j++)
        free(out[j]);
}
