/* Cpu math, AVX-512: a vector is one register. Included by cpu_math.h alone, which says what holds for all
 * forms. */
#pragma once
#include <immintrin.h>

typedef __m512 v16f;

#define V16_FN static inline __attribute__((always_inline))

V16_FN v16f v16_zero(void)
{
    return _mm512_setzero_ps();
}

V16_FN v16f v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

V16_FN v16f v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

V16_FN void v16_store(float *p, v16f a)
{
    _mm512_storeu_ps(p, a);
}

/* The first n lanes (0..16); the others are zero and their memory is not touched. */
V16_FN v16f v16_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

V16_FN void v16_store_n(float *p, v16f a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}

/* 16 halves. */
V16_FN v16f v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

V16_FN v16f v16_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

/* 16 groups of 4 bytes, each a number of 32 bits, little endian: of each its bits from `from` on by `mask`.
 */
V16_FN v16f v16_load_bits(const uint8_t *p, uint32_t from, uint32_t mask)
{
    __m512i u = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128((int)from));
    return _mm512_cvtepi32_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)mask)));
}

V16_FN v16f v16_add(v16f a, v16f b)
{
    return _mm512_add_ps(a, b);
}

V16_FN v16f v16_sub(v16f a, v16f b)
{
    return _mm512_sub_ps(a, b);
}

V16_FN v16f v16_mul(v16f a, v16f b)
{
    return _mm512_mul_ps(a, b);
}

V16_FN v16f v16_div(v16f a, v16f b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
V16_FN v16f v16_fma(v16f a, v16f b, v16f c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a > b ? a : b, thus b when one is NaN. */
V16_FN v16f v16_max(v16f a, v16f b)
{
    return _mm512_max_ps(a, b);
}

V16_FN v16f v16_min(v16f a, v16f b)
{
    return _mm512_min_ps(a, b);
}

/* To the nearest whole number, ties to even. */
V16_FN v16f v16_round(v16f a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n for whole n, rounded once where the result is subnormal. */
V16_FN v16f v16_scale(v16f a, v16f n)
{
    return _mm512_scalef_ps(a, n);
}

/* Lane i of a with lane i + 8, and so on. */
V16_FN float v16_sum(v16f a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a),
                             _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* The largest lane; which of two zeros or what of a NaN is not defined. */
V16_FN float v16_max_lane(v16f a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a),
                             _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* The largest magnitude of 32 floats, as bits: above 0x7f800000 when one is NaN. */
V16_FN uint32_t v16_amax_bits(v16f a, v16f b)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i u = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
    u = _mm512_max_epu32(u, _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    __m256i v = _mm256_max_epu32(_mm512_castsi512_si256(u), _mm512_extracti64x4_epi64(u, 1));
    __m128i w = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    w = _mm_max_epu32(w, _mm_shuffle_epi32(w, 0x4e));
    w = _mm_max_epu32(w, _mm_shuffle_epi32(w, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(w);
}

/* round(x * by) of 32 floats to signed bytes (within -127..127 by the caller's choice of `by`), and the sums
 * of the first 16 and of the others. */
V16_FN void v16_to_bytes(v16f a, v16f b, float by, int8_t *to, int32_t sum[2])
{
    __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(by)));
    __m512i y = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(by)));
    __m256i q =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(x)), _mm512_cvtepi32_epi8(y), 1);
    _mm256_storeu_si256((__m256i *)to, q);
    __m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
    __m128i t = _mm_hadd_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    _mm_storel_epi64((__m128i *)sum, _mm_hadd_epi32(t, t));
}

/* 16 signed bytes. */
V16_FN v16f v16_load_bytes(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* For each of 16 lanes the sum over 32 of k * q, a whole number: k + 128 in groups of 4 bytes a lane, a
 * group's lanes together and groups `stride` bytes apart; sum_q is the sum of q. */
V16_FN v16f v16_dot_32(const uint8_t *k, size_t stride, const int8_t *q, int32_t sum_q)
{
    __m512i c = _mm512_set1_epi32(-128 * sum_q);
    for (int j = 0; j < 8; j++, k += stride, q += 4) {
        int32_t four;
        memcpy(&four, q, sizeof four);
        c = _mm512_dpbusd_epi32(c, _mm512_loadu_si512(k), _mm512_set1_epi32(four));
    }
    return _mm512_cvtepi32_ps(c);
}
