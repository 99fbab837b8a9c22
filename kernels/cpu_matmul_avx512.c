/* Cpu matmul, AVX-512 with VNNI: a panel's 16 rows in the lanes of one register, up to 8 activation rows at a
 * time. cpu_matmul.h has layouts and orders; the forms for 1 to 8 rows are one function and give the same
 * bits. Thread: any of the device's. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 4
#include "cpu_matmul_lanes.h"

#define TILE 8

/* How far ahead of use a panel is asked for: memory takes longer than the processor looks ahead on its own.
 */
#define PREFETCH 4096

struct block_512 {
    __m512i w[8]; /* unsigned bytes: 16 rows by columns 4 j .. 4 j + 3 */
    __m512 d, m;
};

CPU_INLINE void load_block(const unsigned char *q, const unsigned char *scale, const uint32_t type,
                           struct block_512 *b)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < (type == QUANT_Q8_0 ? 8 : 4); j++) {
        __m512i v = _mm512_load_si512(q + 64 * j);
        if (type == QUANT_Q8_0) {
            b->w[j] = v;
        } else {
            b->w[j] = _mm512_and_si512(v, low);
            b->w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        }
    }
    b->d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)scale));
    if (type == QUANT_Q4_1)
        b->m = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(scale + 32)));
}

/* c += four columns of 16 rows times the same four activations. Written out because gcc loads and broadcasts
 * them by an instruction of its own, and the kernel then waits for the front end: 284 instead of 400 GOPS. */
CPU_INLINE __m512i dot_four(__m512i c, __m512i w, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(c) : "v"(w), "m"(*(const int8_t(*)[4])q));
    return c;
}

CPU_INLINE __m512 add_block(const struct block_512 *b, const int8_t *q, const struct cpu_block *a,
                            const uint32_t type, __m512 f)
{
    __m512i c = _mm512_setzero_si512();
    if (type == QUANT_Q8_0)
        c = _mm512_set1_epi32(a->minus_128);
    else if (type == QUANT_Q4_0)
        c = _mm512_set1_epi32(a->minus_8);
    for (int j = 0; j < 8; j++)
        c = dot_four(c, b->w[j], q + 4 * j);
    f = _mm512_fmadd_ps(_mm512_mul_ps(b->d, _mm512_set1_ps(a->s)), _mm512_cvtepi32_ps(c), f);
    if (type == QUANT_Q4_1)
        f = _mm512_fmadd_ps(b->m, _mm512_set1_ps(a->s_sum), f);
    return f;
}

CPU_INLINE void tile(const struct cpu_part *p, uint32_t row, const uint32_t type, const uint32_t rows)
{
    const struct ops_weight *w = p->w;
    const size_t q_bytes = type == QUANT_Q8_0 ? 512 : 256, scale_bytes = type == QUANT_Q4_1 ? 64 : 32;
    const unsigned char *at = w->data + (size_t)p->panel * w->panel_bytes, *scale = at + w->scales;
    const int8_t *q = cpu_rows_q(p->x, row);
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    const uint32_t height = p->x->height;
    __m512 f[TILE];
#pragma GCC unroll 8
    for (uint32_t t = 0; t < rows; t++)
        f[t] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < w->blocks;
         i++, at += q_bytes, scale += scale_bytes, q += height * CPU_BLOCK, a += height) {
        struct block_512 b;
        for (size_t line = 0; line < q_bytes + scale_bytes; line += 64)
            _mm_prefetch((const char *)at + PREFETCH + line, _MM_HINT_T0);
        load_block(at, scale, type, &b);
#pragma GCC unroll 8
        for (uint32_t t = 0; t < rows; t++)
            f[t] = add_block(&b, q + t * CPU_BLOCK, a + t, type, f[t]);
    }
#pragma GCC unroll 8
    for (uint32_t t = 0; t < rows; t++)
        lanes_write(p, row + t, f[t]);
}

CPU_INLINE void tiles(const struct cpu_part *p, const uint32_t type)
{
    uint32_t row = p->first, end = p->first + p->n;
    for (; row + TILE <= end; row += TILE)
        tile(p, row, type, TILE);
    switch (end - row) {
    case 7:
        tile(p, row, type, 7);
        break;
    case 6:
        tile(p, row, type, 6);
        break;
    case 5:
        tile(p, row, type, 5);
        break;
    case 4:
        tile(p, row, type, 4);
        break;
    case 3:
        tile(p, row, type, 3);
        break;
    case 2:
        tile(p, row, type, 2);
        break;
    case 1:
        tile(p, row, type, 1);
        break;
    default:
        break;
    }
}

static void quantized(const struct cpu_part *p)
{
    if (p->w->type == QUANT_Q4_0)
        tiles(p, QUANT_Q4_0);
    else if (p->w->type == QUANT_Q4_1)
        tiles(p, QUANT_Q4_1);
    else
        tiles(p, QUANT_Q8_0);
}

const struct cpu_matmul_kernels cpu_matmul_avx512 = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
};
