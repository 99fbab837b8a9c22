/* Cpu matmul, portable: for processors without AVX2, and to check the others by.
 * Agrees with them within rounding (no fused multiply-add), bit for bit with itself. cpu_matmul.h has layouts
 * and orders. Thread: any of the device's. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 1
#include "cpu_matmul_lanes.h"

/* The integer sum of a block for each of 16 rows. */
static void dot_4(const unsigned char *w, const int8_t *q, int32_t *sum)
{
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t lane = 0; lane < CPU_LANES; lane++)
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t both = w[64 * j + 4 * lane + i], c = 4 * j + i;
                sum[lane] += (int32_t)(both & 15) * q[c] + (int32_t)(both >> 4) * q[c + 16];
            }
}

static void dot_8(const unsigned char *w, const int8_t *q, int32_t *sum)
{
    for (uint32_t j = 0; j < 8; j++)
        for (uint32_t lane = 0; lane < CPU_LANES; lane++)
            for (uint32_t i = 0; i < 4; i++)
                sum[lane] += (int32_t)w[64 * j + 4 * lane + i] * q[4 * j + i];
}

static void row_product(const struct cpu_part *p, uint32_t row)
{
    const struct ops_weight *w = p->w;
    const unsigned char *panel = w->data + (size_t)p->panel * w->panel_bytes;
    const int8_t *q = cpu_rows_q(p->x, row);
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    v16f f = v16_zero();
    for (uint32_t b = 0; b < w->blocks; b++, q += p->x->height * CPU_BLOCK, a += p->x->height) {
        const uint16_t *scale = (const uint16_t *)(const void *)(panel + w->scales + b * w->scale_bytes);
        int32_t sum[CPU_LANES];
        v16f whole;
        for (uint32_t i = 0; i < CPU_LANES; i++)
            sum[i] = w->type == QUANT_Q8_0 ? a->minus_128 : w->type == QUANT_Q4_0 ? a->minus_8 : 0;
        if (w->type == QUANT_Q8_0)
            dot_8(panel + b * w->block_bytes, q, sum);
        else
            dot_4(panel + b * w->block_bytes, q, sum);
        for (uint32_t i = 0; i < CPU_LANES; i++)
            whole.v[i] = (float)sum[i];
        f = v16_fma(v16_mul(v16_load_f16(scale), v16_set1(a->s)), whole, f);
        if (w->type == QUANT_Q4_1)
            f = v16_fma(v16_load_f16(scale + 16), v16_set1(a->s_sum), f);
    }
    lanes_write(p, row, f);
}

static void quantized(const struct cpu_part *p)
{
    for (uint32_t row = p->first; row < p->first + p->n; row++)
        row_product(p, row);
}

const struct cpu_matmul_kernels cpu_matmul_portable = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
};
