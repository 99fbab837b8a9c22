/* cudahost: atomics and the integer and float intrinsics of CUDA as plain arithmetic. See cudahost_device.h.
 *
 * Float intrinsics with a rounding in their name are never contracted: the build says so. Fast ones (__expf)
 * are the exact ones here, so a test must leave them the tolerance that a GPU needs. */
#pragma once
#include "cudahost_device.h"

/* Blocks run one after another and threads change places only in cudahost_atomic: plain updates are atomic.
 */
template <class T, class F> static inline T cudahost_update(T *p, F f)
{
    cudahost_atomic();
    T old = *p;
    *p = f(old);
    return old;
}
template <class T> static inline T atomicAdd(T *p, std::common_type_t<T> v)
{
    return cudahost_update(p, [=](T o) { return (T)(o + v); });
}
template <class T> static inline T atomicMax(T *p, std::common_type_t<T> v)
{
    return cudahost_update(p, [=](T o) { return o > v ? o : v; });
}
template <class T> static inline T atomicMin(T *p, std::common_type_t<T> v)
{
    return cudahost_update(p, [=](T o) { return o < v ? o : v; });
}
template <class T> static inline T atomicExch(T *p, std::common_type_t<T> v)
{
    return cudahost_update(p, [=](T) { return v; });
}
template <class T> static inline T atomicOr(T *p, std::common_type_t<T> v)
{
    return cudahost_update(p, [=](T o) { return o | v; });
}
template <class T> static inline T atomicCAS(T *p, std::common_type_t<T> was, std::common_type_t<T> v)
{
    return cudahost_update(p, [=](T o) { return o == was ? v : o; });
}

template <class To, class From> static inline To cudahost_bits(From f)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To t;
    memcpy(&t, &f, sizeof t);
    return t;
}
static inline int __float_as_int(float f)
{
    return cudahost_bits<int>(f);
}
static inline float __int_as_float(int i)
{
    return cudahost_bits<float>(i);
}
static inline unsigned __float_as_uint(float f)
{
    return cudahost_bits<unsigned>(f);
}
static inline float __uint_as_float(unsigned u)
{
    return cudahost_bits<float>(u);
}

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c = (int)((unsigned)c + (unsigned)((int8_t)((unsigned)a >> i) * (int8_t)((unsigned)b >> i)));
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 32; i += 8)
        c += (a >> i & 255) * (b >> i & 255);
    return c;
}
/* Byte i of the result is byte s[i] (0..7) of b:a, or its sign eight times when bit 3 of s[i] is set. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = s >> (4 * i) & 15, byte = (unsigned)(both >> (8 * (pick & 7))) & 255;
        r |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return r;
}
static inline unsigned cudahost_bytes(unsigned a, unsigned b, int sign)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8)
        r |= (unsigned)((int)(a >> i & 255) + sign * (int)(b >> i & 255)) << i & 255u << i;
    return r;
}
static inline unsigned __vadd4(unsigned a, unsigned b)
{
    return cudahost_bytes(a, b, 1);
}
static inline unsigned __vsub4(unsigned a, unsigned b)
{
    return cudahost_bytes(a, b, -1);
}
static inline unsigned __vsubss4(unsigned a, unsigned b)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8) {
        int d = (int8_t)(a >> i) - (int8_t)(b >> i);
        r |= ((unsigned)(d > 127 ? 127 : d < -128 ? -128 : d) & 255) << i;
    }
    return r;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __mulhi(int a, int b)
{
    return (int)((int64_t)a * b >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (by & 31));
}
static inline int __float2int_rn(float f)
{
    return (int)nearbyintf(f);
}
static inline int __float2int_rz(float f)
{
    return (int)f;
}
static inline float __int2float_rn(int i)
{
    return (float)i;
}
static inline float __uint2float_rn(unsigned i)
{
    return (float)i;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline float __frsqrt_rn(float a)
{
    return (float)(1.0 / sqrt((double)a));
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float rsqrtf(float a)
{
    return (float)(1.0 / sqrt((double)a));
}
/* glibc declares private functions of these names: only macros can take them. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __exp2f(x) exp2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define CUDAHOST_MINMAX(T)                                                                                   \
    static inline T min(T a, T b)                                                                            \
    {                                                                                                        \
        return a < b ? a : b;                                                                                \
    }                                                                                                        \
    static inline T max(T a, T b)                                                                            \
    {                                                                                                        \
        return a > b ? a : b;                                                                                \
    }
CUDAHOST_MINMAX(int)
CUDAHOST_MINMAX(unsigned)
CUDAHOST_MINMAX(long long)
CUDAHOST_MINMAX(unsigned long long)
CUDAHOST_MINMAX(long)
CUDAHOST_MINMAX(unsigned long)
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}

/* Shared memory of one block, exactly `bytes` long up to a guard page, NaN at the block's start. `key` tells
 * the variables of a kernel apart. */
void *cudahost_shared(const void *key, size_t bytes, size_t align);
void *cudahost_shared_dynamic(void);
#define GPU_SHARED(type, name, dims)                                                                         \
    typedef type name##_in_shared dims;                                                                      \
    static const char name##_key = 0;                                                                        \
    name##_in_shared &name = *(name##_in_shared *)cudahost_shared(&name##_key, sizeof(name##_in_shared),     \
                                                                  alignof(name##_in_shared))
#define GPU_SHARED_DYNAMIC(type, name) type *name = (type *)cudahost_shared_dynamic()
