/* Cpu math, AVX2 with FMA and F16C: a vector is two registers. Included by cpu_math.h alone, which says what
 * holds for all forms; cpu_math_avx512.h says what each function does. */
#pragma once
#include <immintrin.h>

typedef struct {
    __m256 lo, hi;
} v16f;

#define V16_FN static inline __attribute__((always_inline))

V16_FN v16f v16_pair(__m256 lo, __m256 hi)
{
    return (v16f){ lo, hi };
}

V16_FN v16f v16_zero(void)
{
    return v16_pair(_mm256_setzero_ps(), _mm256_setzero_ps());
}

V16_FN v16f v16_set1(float x)
{
    return v16_pair(_mm256_set1_ps(x), _mm256_set1_ps(x));
}

V16_FN v16f v16_load(const float *p)
{
    return v16_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

V16_FN void v16_store(float *p, v16f a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

/* Mask of the lanes below n, lane 0 being number `from`. */
V16_FN __m256i v16_mask(uint32_t n, int from)
{
    __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(from));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

V16_FN v16f v16_load_n(const float *p, uint32_t n)
{
    return v16_pair(_mm256_maskload_ps(p, v16_mask(n, 0)), _mm256_maskload_ps(p + 8, v16_mask(n, 8)));
}

V16_FN void v16_store_n(float *p, v16f a, uint32_t n)
{
    _mm256_maskstore_ps(p, v16_mask(n, 0), a.lo);
    _mm256_maskstore_ps(p + 8, v16_mask(n, 8), a.hi);
}

V16_FN v16f v16_load_f16(const uint16_t *p)
{
    return v16_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}

V16_FN v16f v16_load_bf16(const uint16_t *p)
{
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
    return v16_pair(_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)));
}

V16_FN v16f v16_load_bits(const uint8_t *p, uint32_t from, uint32_t mask)
{
    const __m256i bits = _mm256_set1_epi32((int)mask);
    __m128i by = _mm_cvtsi32_si128((int)from);
    __m256i lo = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)p), by);
    __m256i hi = _mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(p + 32)), by);
    return v16_pair(_mm256_cvtepi32_ps(_mm256_and_si256(lo, bits)),
                    _mm256_cvtepi32_ps(_mm256_and_si256(hi, bits)));
}

V16_FN v16f v16_add(v16f a, v16f b)
{
    return v16_pair(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}

V16_FN v16f v16_sub(v16f a, v16f b)
{
    return v16_pair(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}

V16_FN v16f v16_mul(v16f a, v16f b)
{
    return v16_pair(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}

V16_FN v16f v16_div(v16f a, v16f b)
{
    return v16_pair(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}

V16_FN v16f v16_fma(v16f a, v16f b, v16f c)
{
    return v16_pair(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

V16_FN v16f v16_max(v16f a, v16f b)
{
    return v16_pair(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}

V16_FN v16f v16_min(v16f a, v16f b)
{
    return v16_pair(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}

V16_FN v16f v16_round(v16f a)
{
    return v16_pair(_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                    _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* In two factors, so that neither overflows the exponent field; the first product is exact. */
V16_FN __m256 v16_scale_half(__m256 a, __m256 n)
{
    __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1);
    __m256i second = _mm256_sub_epi32(whole, first), bias = _mm256_set1_epi32(127);
    __m256 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
    __m256 s = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(a, f), s);
}

V16_FN v16f v16_scale(v16f a, v16f n)
{
    return v16_pair(v16_scale_half(a.lo, n.lo), v16_scale_half(a.hi, n.hi));
}

V16_FN float v16_sum(v16f a)
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

V16_FN float v16_max_lane(v16f a)
{
    __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

V16_FN uint32_t v16_amax_bits(v16f a, v16f b)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i v = _mm256_max_epu32(_mm256_and_si256(_mm256_castps_si256(a.lo), magnitude),
                                 _mm256_and_si256(_mm256_castps_si256(a.hi), magnitude));
    v = _mm256_max_epu32(v, _mm256_and_si256(_mm256_castps_si256(b.lo), magnitude));
    v = _mm256_max_epu32(v, _mm256_and_si256(_mm256_castps_si256(b.hi), magnitude));
    __m128i w = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    w = _mm_max_epu32(w, _mm_shuffle_epi32(w, 0x4e));
    w = _mm_max_epu32(w, _mm_shuffle_epi32(w, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(w);
}

V16_FN void v16_to_bytes(v16f a, v16f b, float by, int8_t *to, int32_t sum[2])
{
    const __m256 f = _mm256_set1_ps(by);
    __m256i x0 = _mm256_cvtps_epi32(_mm256_mul_ps(a.lo, f)), x1 = _mm256_cvtps_epi32(_mm256_mul_ps(a.hi, f));
    __m256i y0 = _mm256_cvtps_epi32(_mm256_mul_ps(b.lo, f)), y1 = _mm256_cvtps_epi32(_mm256_mul_ps(b.hi, f));
    /* Packing works within 128-bit halves; the permutation puts the groups of 4 back in order. */
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(x0, x1), _mm256_packs_epi32(y0, y1));
    q = _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)to, q);
    __m256i s = _mm256_hadd_epi32(_mm256_add_epi32(x0, x1), _mm256_add_epi32(y0, y1));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    _mm_storel_epi64((__m128i *)sum, _mm_hadd_epi32(t, t));
}

V16_FN v16f v16_load_bytes(const int8_t *p)
{
    return v16_pair(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))));
}

/* Four products a lane: |k| times q with k's sign, two of them at most 2 * 128 * 127 in 16 bits. */
V16_FN __m256i v16_dot_4(__m256i c, const uint8_t *k, __m256i q)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i w = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)k), _mm256_set1_epi8(-128));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
    return _mm256_add_epi32(c, _mm256_madd_epi16(pairs, one));
}

V16_FN v16f v16_dot_32(const uint8_t *k, size_t stride, const int8_t *q, int32_t sum_q)
{
    __m256i lo = _mm256_setzero_si256(), hi = lo;
    (void)sum_q;
    for (int j = 0; j < 8; j++, k += stride, q += 4) {
        int32_t four;
        memcpy(&four, q, sizeof four);
        lo = v16_dot_4(lo, k, _mm256_set1_epi32(four));
        hi = v16_dot_4(hi, k + 32, _mm256_set1_epi32(four));
    }
    return v16_pair(_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi));
}
