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
