/* Cpu matmul, what the AVX-512 and AMX kernels share: a panel's 16 rows in the lanes of one register, how its
 * quants and scales are loaded, and the float steps of a block. cpu_matmul.h has layouts and orders.
 * Included by cpu_matmul_avx512.c and cpu_matmul_amx.c alone. Tests: tests/kernels/test_matmul.c */
#pragma once
#include "cpu_matmul_lanes.h"

/* The bits of v from `from` on turned to bit 4, where they are alone by `mask`. */
CPU_INLINE __m512i high_bits(__m512i v, const int from, const int mask)
{
    return _mm512_and_si512(_mm512_rolv_epi32(v, _mm512_set1_epi32((4 - from) & 31)),
                            _mm512_set1_epi8((char)mask));
}

/* w[j]: unsigned bytes, 16 rows by columns 4 j .. 4 j + 3. */
CPU_INLINE void load_quants(const unsigned char *q, const uint32_t bits, __m512i w[8])
{
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i v = _mm512_load_si512(q + 64 * j);
        w[j] = bits == 8 ? v : _mm512_and_si512(v, low);
        w[j + 4] =
            bits == 8 ? _mm512_load_si512(q + 256 + 64 * j) : _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (bits == 5) {
        __m512i v = _mm512_load_si512(q + 256);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            w[j] = _mm512_or_si512(w[j], high_bits(v, j, 0x10));
    } else if (bits == 6) {
        __m512i v[2] = { _mm512_load_si512(q + 256), _mm512_load_si512(q + 320) };
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            w[j] = _mm512_or_si512(w[j], high_bits(v[j / 4], 2 * (j % 4), 0x30));
    }
}

struct scales_512 {
    __m512 d, m;
    __m512 a[2]; /* Q6_K: scales of 16 columns */
};

CPU_INLINE __m512 load_halves(const unsigned char *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

CPU_INLINE __m128i load_16(const unsigned char *p)
{
    return _mm_load_si128((const __m128i *)(const void *)p);
}

CPU_INLINE void load_scales(struct cpu_place at, const uint32_t type, struct scales_512 *s)
{
    const struct cpu_form form = cpu_form_of(type);
    const unsigned char *d = form.supers ? at.supers : at.scales;
    s->d = load_halves(d);
    if (form.minima)
        s->m = load_halves(d + 32);
    if (form.supers && form.minima) {
        s->d = _mm512_mul_ps(s->d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(at.scales))));
        s->m = _mm512_sub_ps(
            _mm512_setzero_ps(),
            _mm512_mul_ps(s->m, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(at.scales + 16)))));
    } else if (form.supers) {
        s->a[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(at.scales)));
        s->a[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(at.scales + 16)));
    }
}

/* The block's sums of quants by activations, without what quants stand too high; Q6_K's for 16 columns and 16
 * more, whose products with their scales and the sum of these are whole numbers below 2^24: exact. */
CPU_INLINE __m512 add_sums(const struct scales_512 *s, const __m512i sum[2], const struct cpu_block *a,
                           const uint32_t type, __m512 f)
{
    __m512 whole = _mm512_cvtepi32_ps(sum[0]);
    if (type == QUANT_Q6_K)
        whole = _mm512_fmadd_ps(s->a[1], _mm512_cvtepi32_ps(sum[1]), _mm512_mul_ps(s->a[0], whole));
    f = _mm512_fmadd_ps(_mm512_mul_ps(s->d, _mm512_set1_ps(a->s)), whole, f);
    if (cpu_form_of(type).minima)
        f = _mm512_fmadd_ps(s->m, _mm512_set1_ps(a->s_sum), f);
    return f;
}
