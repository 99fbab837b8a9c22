/* cudahost: half precision of CUDA: a 16-bit float, rounded to nearest even by every operation. See
 * cuda_runtime.h. */
#pragma once
#include "cuda_runtime.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float f);
    operator float() const;
};
typedef __half half;
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

#if defined(__F16C__)
static inline float __half2float(__half h)
{
    return _cvtsh_ss(h.bits);
}
static inline __half __float2half_rn(float f)
{
    __half h;
    h.bits = f != f ? 0x7fff /* the one NaN that a GPU's conversion makes */ : _cvtss_sh(f, 0);
    return h;
}
#else
static inline float __half2float(__half h)
{
    /* Shifted into place the exponent is 112 too small: the product mends that, for subnormals as well. */
    unsigned sign = (h.bits & 0x8000u) << 16, rest = (h.bits & 0x7fffu) << 13;
    if (rest >= 0x0f800000u)
        return __uint_as_float(sign | 0x7f800000u | (rest & 0x007fffffu));
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest) * 0x1p112f));
}
static inline __half __float2half_rn(float f)
{
    unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
    __half h;
    if (rest > 0x7f800000u)
        h.bits = 0x7fff;
    else if (rest >= 0x477ff000u)
        h.bits = (unsigned short)(sign | 0x7c00u);
    else if (rest < 0x38800000u) /* subnormal: the addition rounds at the right bit */
        h.bits = (unsigned short)(sign | (__float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u));
    else
        h.bits = (unsigned short)(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
    return h;
}
#endif
inline __half::__half(float f) : bits(__float2half_rn(f).bits)
{
}
inline __half::operator float() const
{
    return __half2float(*this);
}

static inline __half __float2half(float f)
{
    return __float2half_rn(f);
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return { __float2half_rn(x), __float2half_rn(y) };
}
static inline __half2 __float22half2_rn(float2 v)
{
    return __floats2half2_rn(v.x, v.y);
}
static inline __half2 __float2half2_rn(float v)
{
    return __floats2half2_rn(v, v);
}
static inline float2 __half22float2(__half2 h)
{
    return { __half2float(h.x), __half2float(h.y) };
}
static inline __half2 __halves2half2(__half x, __half y)
{
    return { x, y };
}
static inline __half2 __half2half2(__half h)
{
    return { h, h };
}
static inline __half2 make_half2(__half x, __half y)
{
    return { x, y };
}
static inline __half __low2half(__half2 h)
{
    return h.x;
}
static inline __half __high2half(__half2 h)
{
    return h.y;
}
static inline float __low2float(__half2 h)
{
    return __half2float(h.x);
}
static inline float __high2float(__half2 h)
{
    return __half2float(h.y);
}
static inline unsigned short __half_as_ushort(__half h)
{
    return h.bits;
}
static inline __half __ushort_as_half(unsigned short u)
{
    __half h;
    h.bits = u;
    return h;
}
static inline __half __hadd(__half a, __half b)
{
    return __float2half_rn(__half2float(a) + __half2float(b));
}
static inline __half __hsub(__half a, __half b)
{
    return __float2half_rn(__half2float(a) - __half2float(b));
}
static inline __half __hmul(__half a, __half b)
{
    return __float2half_rn(__half2float(a) * __half2float(b));
}
static inline __half __hfma(__half a, __half b, __half c)
{
    /* Exact in double but for extreme exponents; rounding to odd on the way to float keeps the second
     * rounding right. */
    double sum = (double)__half2float(a) * (double)__half2float(b) + (double)__half2float(c);
    float f = (float)sum;
    if ((double)f != sum && !(__float_as_uint(f) & 1u))
        f = nextafterf(f, sum > (double)f ? INFINITY : -INFINITY);
    return __float2half_rn(f);
}
static inline __half2 __hadd2(__half2 a, __half2 b)
{
    return { __hadd(a.x, b.x), __hadd(a.y, b.y) };
}
static inline __half2 __hsub2(__half2 a, __half2 b)
{
    return { __hsub(a.x, b.x), __hsub(a.y, b.y) };
}
static inline __half2 __hmul2(__half2 a, __half2 b)
{
    return { __hmul(a.x, b.x), __hmul(a.y, b.y) };
}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return { __hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y) };
}
