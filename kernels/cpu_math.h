/* Cpu math: vectors of 16 float lanes that mean the same on every instruction set.
 *
 * A file that includes this is compiled once per instruction set with that set's flags. With AVX-512 a vector
 * is one zmm, with AVX2 two ymm halves, and both do the same roundings in the same places: same bits. The
 * portable form has no fused multiply-add and agrees within rounding. Sums over lanes use one tree: 16 -> 8
 * -> 4 -> 2 -> 1, lane i with lane i + half. Private to kernels/; pure. Tests: tests/kernels/test_matmul.c
 * (equality between instruction sets) */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define CPU_LANES 16u

#if defined(__AVX512F__)
#include "cpu_math_avx512.h"
#elif defined(__AVX2__)
#include "cpu_math_avx2.h"
#else
#include "cpu_math_portable.h"
#endif

/* The rest is written once, from the operations of the three headers. */

#define CPU_INLINE static inline __attribute__((always_inline))

/* e^x within about 1 ulp; 0 below -104, infinity above 89, NaN for NaN. */
CPU_INLINE v16f v16_exp(v16f x)
{
    /* The second operand comes back when one is NaN. */
    x = v16_max(v16_set1(-104.0f), v16_min(v16_set1(89.0f), x));
    v16f n = v16_round(v16_mul(x, v16_set1(0x1.715476p+0f)));
    /* ln 2 in two parts: the first has few enough bits that n times it is exact. */
    v16f r = v16_fma(n, v16_set1(-0x1.62e400p-1f), x);
    r = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), r);
    /* 1 + r + r^2 p(r), p fitted for the least relative error on |r| <= ln(2)/2. */
    v16f p = v16_set1(0x1.6a23d2p-10f);
    p = v16_fma(p, r, v16_set1(0x1.123a20p-7f));
    p = v16_fma(p, r, v16_set1(0x1.5558f2p-5f));
    p = v16_fma(p, r, v16_set1(0x1.555492p-3f));
    p = v16_fma(p, r, v16_set1(0x1.fffffcp-2f));
    p = v16_fma(v16_mul(r, r), p, r);
    return v16_scale(v16_add(p, v16_set1(1.0f)), n);
}

/* 2^x for x <= 0 within about 2 ulp; NaN for NaN. Below -125 it stays at 2^-125, which beside the 1 of the
 * largest score is nothing: results that are subnormal or round to 0 would cost the processor a hundred
 * cycles each. */
CPU_INLINE v16f v16_exp2(v16f x)
{
    /* The second operand comes back when one is NaN. */
    x = v16_max(v16_set1(-125.0f), x);
    v16f n = v16_round(x);
    v16f r = v16_sub(x, n);
    /* Fitted for the least relative error on |r| <= 1/2 with p(0) = 1, so that 2^0 is 1 exactly. */
    v16f p = v16_set1(0x1.5bba14p-10f);
    p = v16_fma(p, r, v16_set1(0x1.3cea88p-7f));
    p = v16_fma(p, r, v16_set1(0x1.c6b752p-5f));
    p = v16_fma(p, r, v16_set1(0x1.ebf9bcp-3f));
    p = v16_fma(p, r, v16_set1(0x1.62e42ap-1f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_scale(p, n);
}

/* x / (1 + e^-x) */
CPU_INLINE v16f v16_silu(v16f x)
{
    v16f e = v16_exp(v16_sub(v16_zero(), x));
    return v16_div(x, v16_add(v16_set1(1.0f), e));
}

/* x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3). Where x^3 overflows e does too, to the right side. */
CPU_INLINE v16f v16_gelu(v16f x)
{
    v16f by = v16_fma(v16_mul(x, x), v16_set1(-0x1.2444f2p-4f), v16_set1(-0x1.988454p+0f));
    v16f e = v16_exp(v16_mul(x, by));
    return v16_div(x, v16_add(v16_set1(1.0f), e));
}

/* y[i] = x[i] * factor * norm[i], factor = 1 / sqrt(mean(x^2) + eps); lane i sums columns i, i + 16, ... y
 * may be x. */
static inline void v16_rms_norm(const float *x, const float *norm, float eps, uint32_t cols, float *y)
{
    v16f sum = v16_zero();
    uint32_t whole = cols / CPU_LANES * CPU_LANES, rest = cols - whole, i;
    for (i = 0; i < whole; i += CPU_LANES) {
        v16f v = v16_load(x + i);
        sum = v16_fma(v, v, sum);
    }
    if (rest) {
        v16f v = v16_load_n(x + whole, rest);
        sum = v16_fma(v, v, sum);
    }
    v16f factor = v16_set1(1.0f / sqrtf(v16_sum(sum) / (float)cols + eps));
    for (i = 0; i < whole; i += CPU_LANES)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), factor), v16_load(norm + i)));
    if (rest)
        v16_store_n(y + whole,
                    v16_mul(v16_mul(v16_load_n(x + whole, rest), factor), v16_load_n(norm + whole, rest)),
                    rest);
}

/* 32 floats as s * q, and the sums of the first 16 q and of the others: scale amax / 127, values rounded to
 * nearest even. Below 2^-120 all counts as zero (127 / amax would overflow); with a NaN or infinity the scale
 * is NaN, so that what is computed says so. */
CPU_INLINE float v16_quantize(const float *y, int8_t *q, int32_t sum[2])
{
    v16f a = v16_load(y), b = v16_load(y + CPU_LANES);
    uint32_t bits = v16_amax_bits(a, b);
    float amax, by, s;
    memcpy(&amax, &bits, sizeof amax);
    if (__builtin_expect(bits - 0x03800000u >= 0x7f800000u - 0x03800000u, 0)) {
        by = 0;
        s = bits >= 0x7f800000u ? NAN : 0;
        a = b = v16_zero();
    } else {
        by = 127.0f / amax;
        s = amax / 127.0f;
    }
    v16_to_bytes(a, b, by, q, sum);
    return s;
}
