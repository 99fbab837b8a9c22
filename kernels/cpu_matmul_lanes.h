/* Cpu matmul, what is written once for every instruction set in 16-lane vectors: preparing rows, quantizing
 * them, and products with float activations. A kernel file defines FLOAT_TILE (rows that share a pass over a
 * panel: 4 where registers allow) and includes this. Tests: tests/kernels/test_matmul.c */
#pragma once
#include "cpu_math.h"
#include "cpu_matmul.h"
#include "quant.h"

#include <math.h>

/* ---- preparing ---- */

/* out += the norm of x. */
static void lanes_norm_add(const float *x, const float *norm, float eps, uint32_t cols, float *work,
                           float *out)
{
    uint32_t i = 0;
    v16_rms_norm(x, norm, eps, cols, work);
    for (; i + CPU_LANES <= cols; i += CPU_LANES)
        v16_store(out + i, v16_add(v16_load(out + i), v16_load(work + i)));
    v16_store_n(out + i, v16_add(v16_load_n(out + i, cols - i), v16_load_n(work + i, cols - i)), cols - i);
}

CPU_INLINE v16f lanes_gate(v16f x, v16f x2, const enum ops_prepare prepare)
{
    return v16_mul(prepare == OPS_GEGLU ? v16_gelu(x) : v16_silu(x), x2);
}

CPU_INLINE void lanes_glu(const float *x, const float *x2, uint32_t cols, const enum ops_prepare prepare,
                          float *y)
{
    uint32_t whole = cols / CPU_LANES * CPU_LANES, rest = cols - whole;
    for (uint32_t i = 0; i < whole; i += CPU_LANES)
        v16_store(y + i, lanes_gate(v16_load(x + i), v16_load(x2 + i), prepare));
    if (rest)
        v16_store_n(y + whole, lanes_gate(v16_load_n(x + whole, rest), v16_load_n(x2 + whole, rest), prepare),
                    rest);
}

static void lanes_quantize(const float *y, const struct cpu_rows *to, uint32_t row)
{
    int8_t *q = cpu_rows_q(to, row);
    struct cpu_block *block = cpu_rows_block(to, row);
    for (uint32_t c = 0; c < to->cols; c += CPU_BLOCK, q += to->height * CPU_BLOCK, block += to->height) {
        int32_t half[2];
        const float s = v16_quantize(y + c, q, half);
        const int32_t sum = half[0] + half[1];
        *block = (struct cpu_block){
            s, s * (float)sum, -8 * sum, { (int16_t)(-16 * half[0]), (int16_t)(-16 * half[1]) }
        };
    }
}

/* What quantized row `row` leaves of y. */
static void lanes_rest(const float *y, const struct cpu_rows *of, uint32_t row, float *rest)
{
    const int8_t *q = cpu_rows_q(of, row);
    const struct cpu_block *block = cpu_rows_block(of, row);
    for (uint32_t c = 0; c < of->cols; c += CPU_BLOCK, q += of->height * CPU_BLOCK, block += of->height) {
        const v16f minus_s = v16_set1(-block->s);
        for (uint32_t i = 0; i < CPU_BLOCK; i += CPU_LANES)
            v16_store(rest + c + i, v16_fma(minus_s, v16_load_bytes(q + i), v16_load(y + c + i)));
    }
}

static void lanes_prepare(const struct ops_matmul *m, uint32_t row, const struct cpu_rows *to, uint32_t at,
                          float *work)
{
    uint32_t cols = to->cols;
    const float *x = m->x + (size_t)row * cols;
    const bool copied = m->prepare != OPS_PLAIN || to->f;
    float *mine = to->f ? to->f + (size_t)at * cols : work;
    if (m->prepare == OPS_RMS_NORM)
        v16_rms_norm(x, m->norm, m->eps, cols, mine);
    else if (m->prepare == OPS_SWIGLU)
        lanes_glu(x, m->x2 + (size_t)row * cols, cols, OPS_SWIGLU, mine);
    else if (m->prepare == OPS_GEGLU)
        lanes_glu(x, m->x2 + (size_t)row * cols, cols, OPS_GEGLU, mine);
    else if (copied)
        memcpy(mine, x, cols * sizeof *x);
    if (!to->q)
        return;
    const float *y = copied ? mine : x;
    lanes_quantize(y, to, at * to->terms);
    if (to->terms > 1) {
        lanes_rest(y, to, at * to->terms, work);
        lanes_quantize(work, to, at * to->terms + 1);
    }
}

/* ---- weights ---- */

/* The quants of a block as bytes: byte 64 j + 4 lane + i is column 4 j + i. */
CPU_INLINE void lanes_bytes(const unsigned char *q, const uint32_t bits, uint8_t *to)
{
    if (bits == 8) {
        memcpy(to, q, 512);
        return;
    }
    for (uint32_t i = 0; i < 256; i++) {
        to[i] = q[i] & 15;
        to[i + 256] = q[i] >> 4;
    }
    for (uint32_t j = 0; j < 8 && bits == 5; j++)
        for (uint32_t i = 0; i < 64; i++)
            to[64 * j + i] = (uint8_t)(to[64 * j + i] | (q[256 + i] >> j & 1) << 4);
    for (uint32_t j = 0; j < 8 && bits == 6; j++)
        for (uint32_t i = 0; i < 64; i++)
            to[64 * j + i] = (uint8_t)(to[64 * j + i] | (q[256 + 64 * (j / 4) + i] >> 2 * (j % 4) & 3) << 4);
}

/* What a block's sums are multiplied by, and what is added: Q6_K's scales of 16 columns are not in d. */
struct lanes_scales {
    v16f d, m;
};

CPU_INLINE struct lanes_scales lanes_scales(struct cpu_place at, const uint32_t type)
{
    const struct cpu_form form = cpu_form_of(type);
    const uint16_t *half = (const uint16_t *)(const void *)(form.supers ? at.supers : at.scales);
    const int8_t *scale = (const int8_t *)at.scales; /* 0..63 where there are minima */
    struct lanes_scales s = { v16_load_f16(half), v16_zero() };
    if (form.minima)
        s.m = v16_load_f16(half + CPU_LANES);
    if (form.supers && form.minima) {
        s.d = v16_mul(s.d, v16_load_bytes(scale));
        s.m = v16_sub(v16_zero(), v16_mul(s.m, v16_load_bytes(scale + CPU_LANES)));
    }
    return s;
}

/* Block b of a quantized panel as 32 vectors of weights. d * q is exact in float, so this rounds once, as
 * quant_dequantize does. */
CPU_INLINE void lanes_unpack_type(const struct ops_weight *w, uint32_t panel, uint32_t b, float *to,
                                  const uint32_t type)
{
    const struct cpu_form form = cpu_form_of(type);
    const struct cpu_place at = cpu_place(w, panel, b, form);
    const struct lanes_scales s = lanes_scales(at, type);
    const v16f zero = v16_set1((float)quant_zero(type));
    v16f d[2] = { s.d, s.d };
    uint8_t q[512];
    for (uint32_t i = 0; i < 2 && type == QUANT_Q6_K; i++)
        d[i] = v16_mul(s.d, v16_load_bytes((const int8_t *)at.scales + i * CPU_LANES));
    lanes_bytes(at.quants, form.bits, q);
    for (uint32_t c = 0; c < CPU_BLOCK; c++)
        v16_store(
            to + c * CPU_LANES,
            v16_add(v16_mul(d[c / 16], v16_sub(v16_load_bits(q + 64 * (c / 4), 8 * (c % 4), 255), zero)),
                    s.m));
}

static void lanes_unpack(const struct ops_weight *w, uint32_t panel, uint32_t b, float *to)
{
    CPU_WITH_TYPE(w->type, lanes_unpack_type, w, panel, b, to)
}

/* Columns c .. c + n - 1 (n <= 32, c a multiple of 32) of a panel as vectors of floats, at `to` or where they
 * lie. */
static const float *lanes_columns(const struct ops_weight *w, uint32_t panel_index, uint32_t c, uint32_t n,
                                  float *to)
{
    const unsigned char *panel = w->data + (size_t)panel_index * w->panel_bytes;
    size_t at = (size_t)c * CPU_LANES;
    if (w->type == QUANT_F32)
        return (const float *)(const void *)panel + at;
    if (w->type == QUANT_F16 || w->type == QUANT_BF16) {
        const uint16_t *from = (const uint16_t *)(const void *)panel + at;
        for (uint32_t i = 0; i < n * CPU_LANES; i += CPU_LANES)
            v16_store(to + i, w->type == QUANT_F16 ? v16_load_f16(from + i) : v16_load_bf16(from + i));
        return to;
    }
    lanes_unpack(w, panel_index, c / CPU_BLOCK, to);
    return to;
}

/* A panel's 16 sums of a row of x: the outputs, or what is added to them after the row before. */
CPU_INLINE void lanes_write(const struct cpu_part *p, uint32_t row, v16f f)
{
    const uint32_t left = p->w->rows - p->panel * CPU_LANES, n = left < CPU_LANES ? left : CPU_LANES;
    const bool further = row % p->terms != 0;
    float *out = p->out + (size_t)(row / p->terms) * p->w->rows + p->panel * CPU_LANES;
    if (p->bias && !further)
        f = v16_add(f, v16_load_n(p->bias + p->panel * CPU_LANES, n));
    if (p->add || further)
        f = v16_add(v16_load_n(out, n), f);
    v16_store_n(out, f, n);
}

/* ---- float activations ---- */

CPU_INLINE void lanes_float_tile(const struct cpu_part *p, uint32_t row, const uint32_t rows)
{
    const struct ops_weight *w = p->w;
    const float *x = p->x->f + (size_t)row * w->cols;
    _Alignas(64) float buffer[CPU_BLOCK * CPU_LANES];
    v16f f[FLOAT_TILE][4];
    for (uint32_t t = 0; t < rows; t++)
        f[t][0] = f[t][1] = f[t][2] = f[t][3] = v16_zero();
    for (uint32_t c = 0; c < w->cols; c += CPU_BLOCK) {
        uint32_t n = w->cols - c < CPU_BLOCK ? w->cols - c : CPU_BLOCK, i = 0;
        const float *v = lanes_columns(w, p->panel, c, n, buffer);
        for (; i + 4 <= n; i += 4)
            for (uint32_t k = 0; k < 4; k++) {
                v16f col = v16_load(v + (i + k) * CPU_LANES);
                for (uint32_t t = 0; t < rows; t++)
                    f[t][k] = v16_fma(col, v16_set1(x[(size_t)t * w->cols + c + i + k]), f[t][k]);
            }
        for (uint32_t k = 0; k < 3; k++) /* n % 4 columns more */
            for (uint32_t t = 0; t < rows && i + k < n; t++)
                f[t][k] = v16_fma(v16_load(v + (i + k) * CPU_LANES),
                                  v16_set1(x[(size_t)t * w->cols + c + i + k]), f[t][k]);
    }
    for (uint32_t t = 0; t < rows; t++)
        lanes_write(p, row + t, v16_add(v16_add(f[t][0], f[t][1]), v16_add(f[t][2], f[t][3])));
}

static void lanes_floats(const struct cpu_part *p)
{
    uint32_t row = p->first, end = p->first + p->n;
    for (; row + FLOAT_TILE <= end; row += FLOAT_TILE)
        lanes_float_tile(p, row, FLOAT_TILE);
    for (; row < end; row++)
        lanes_float_tile(p, row, 1);
}
