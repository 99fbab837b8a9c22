/* Cpu matmul, AVX-512 with VNNI: a panel's 16 rows in the lanes of one register, up to 8 activation rows at a
 * time. cpu_matmul.h has layouts and orders; the forms for 1 to 8 rows are one function and give the same
 * bits. Thread: any of the device's. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 4
#include "cpu_matmul_512.h"

#define TILE 8

/* How far ahead of use a panel is asked for: memory takes longer than the processor looks ahead on its own.
 */
#define PREFETCH 4096

/* c += four columns of 16 rows times the same four activations. Written out because gcc loads and broadcasts
 * them by an instruction of its own, and the kernel then waits for the front end: 284 instead of 400 GOPS. */
CPU_INLINE __m512i dot_four(__m512i c, __m512i w, const int8_t *q)
{
#if defined(__AVX512VNNI__)
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(c) : "v"(w), "m"(*(const int8_t(*)[4])q));
    return c;
#else /* emulated */
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_dpbusd_epi32(c, w, _mm512_set1_epi32(four));
#endif
}

/* sum[1] is Q6_K's alone. */
CPU_INLINE void dot_block(const __m512i *w, const int8_t *q, const struct cpu_block *a, const uint32_t type,
                          __m512i sum[2])
{
    sum[0] = sum[1] = _mm512_setzero_si512();
    if (type == QUANT_Q6_K) {
        int32_t two;
        memcpy(&two, a->minus_16, sizeof two);
        const __m512i both = _mm512_set1_epi32(two);
        sum[0] = _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 15);
        sum[1] = _mm512_slli_epi32(_mm512_srai_epi32(both, 16), 1);
    } else if (quant_zero(type)) {
        sum[0] = _mm512_slli_epi32(_mm512_set1_epi32(a->minus_8), CPU_EIGHTS(type));
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const int half = type == QUANT_Q6_K ? j / 4 : 0;
        sum[half] = dot_four(sum[half], w[j], q + 4 * j);
    }
}

CPU_INLINE void tile(const struct cpu_part *p, uint32_t row, const uint32_t type, const uint32_t rows)
{
    const struct cpu_form form = cpu_form_of(type);
    const int8_t *q = cpu_rows_q(p->x, row);
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    const uint32_t height = p->x->height;
    __m512 f[TILE];
#pragma GCC unroll 8
    for (uint32_t t = 0; t < rows; t++)
        f[t] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < p->w->blocks; i++, q += height * CPU_BLOCK, a += height) {
        const struct cpu_place at = cpu_place(p->w, p->panel, i, form);
        struct scales_512 s;
        __m512i w[8];
        for (size_t line = 0; line < form.quants + form.scales; line += 64)
            _mm_prefetch((const char *)at.quants + PREFETCH + line, _MM_HINT_T0);
        load_quants(at.quants, form.bits, w);
        load_scales(at, type, &s);
#pragma GCC unroll 8
        for (uint32_t t = 0; t < rows; t++) {
            __m512i sum[2];
            dot_block(w, q + t * CPU_BLOCK, a + t, type, sum);
            f[t] = add_sums(&s, sum, a + t, type, f[t]);
        }
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
    CPU_WITH_TYPE(p->w->type, tiles, p)
}

const struct cpu_matmul_kernels cpu_matmul_avx512 = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
};
