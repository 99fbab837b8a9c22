/* Cpu matmul, portable: for processors without AVX2, and to check the others by.
 * Agrees with them within rounding (no fused multiply-add), bit for bit with itself. cpu_matmul.h has layouts
 * and orders. Thread: any of the device's. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 1
#include "cpu_matmul_lanes.h"

/* For each of 16 weight rows the sum over columns 4 j .. 4 j + 3, added to sum. */
static void dot_four(const uint8_t *w, const int8_t *x, int32_t *sum)
{
    for (uint32_t lane = 0; lane < CPU_LANES; lane++)
        for (uint32_t i = 0; i < 4; i++)
            sum[lane] += (int32_t)w[4 * lane + i] * x[i];
}

static v16f dot_block(const uint8_t *w, const int8_t *x, const struct cpu_block *a, struct cpu_place at,
                      const uint32_t type)
{
    int32_t sum[2][CPU_LANES] = { 0 };
    v16f whole;
    for (uint32_t j = 0; j < 8; j++)
        dot_four(w + 64 * j, x + 4 * j, sum[j / 4]);
    for (uint32_t lane = 0; lane < CPU_LANES; lane++) {
        int32_t both = sum[0][lane] + sum[1][lane] + quant_zero(type) / 8 * a->minus_8;
        if (type == QUANT_Q6_K)
            both = (int8_t)at.scales[lane] * (sum[0][lane] + 2 * a->minus_16[0]) +
                   (int8_t)at.scales[CPU_LANES + lane] * (sum[1][lane] + 2 * a->minus_16[1]);
        whole.v[lane] = (float)both;
    }
    return whole;
}

CPU_INLINE void row_product(const struct cpu_part *p, uint32_t row, const uint32_t type)
{
    const struct cpu_form form = cpu_form_of(type);
    const int8_t *x = cpu_rows_q(p->x, row);
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    v16f f = v16_zero();
    for (uint32_t b = 0; b < p->w->blocks; b++, x += p->x->height * CPU_BLOCK, a += p->x->height) {
        const struct cpu_place at = cpu_place(p->w, p->panel, b, form);
        const struct lanes_scales s = lanes_scales(at, type);
        uint8_t w[512];
        lanes_bytes(at.quants, form.bits, w);
        f = v16_fma(v16_mul(s.d, v16_set1(a->s)), dot_block(w, x, a, at, type), f);
        if (form.minima)
            f = v16_fma(s.m, v16_set1(a->s_sum), f);
    }
    lanes_write(p, row, f);
}

CPU_INLINE void rows_product(const struct cpu_part *p, const uint32_t type)
{
    for (uint32_t row = p->first; row < p->first + p->n; row++)
        row_product(p, row, type);
}

static void quantized(const struct cpu_part *p)
{
    CPU_WITH_TYPE(p->w->type, rows_product, p)
}

const struct cpu_matmul_kernels cpu_matmul_portable = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
};
