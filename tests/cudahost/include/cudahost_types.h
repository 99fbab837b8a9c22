/* cudahost: the vector types of CUDA, with their alignment, and the words before functions. See
 * cuda_runtime.h. */
#pragma once
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CUDAHOST 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
/* Shared memory is made by GPU_SHARED, which gives it an exact end: this refuses the plain word. */
#define __shared__                                                                                           \
    _Pragma("GCC error \"shared memory is declared with GPU_SHARED or GPU_SHARED_DYNAMIC "                   \
            "(kernels/cuda_spelling.cuh)\"")

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

#define CUDAHOST_VECTORS(T, name)                                                                            \
    struct alignas(2 * sizeof(T)) name##2                                                                    \
    {                                                                                                        \
        T x, y;                                                                                              \
    };                                                                                                       \
    struct name##3                                                                                           \
    {                                                                                                        \
        T x, y, z;                                                                                           \
    };                                                                                                       \
    struct alignas(4 * sizeof(T)) name##4                                                                    \
    {                                                                                                        \
        T x, y, z, w;                                                                                        \
    };                                                                                                       \
    static inline name##2 make_##name##2(T x, T y)                                                           \
    {                                                                                                        \
        return { x, y };                                                                                     \
    }                                                                                                        \
    static inline name##3 make_##name##3(T x, T y, T z)                                                      \
    {                                                                                                        \
        return { x, y, z };                                                                                  \
    }                                                                                                        \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                                 \
    {                                                                                                        \
        return { x, y, z, w };                                                                               \
    }
CUDAHOST_VECTORS(unsigned, uint)
CUDAHOST_VECTORS(int, int)
CUDAHOST_VECTORS(float, float)
CUDAHOST_VECTORS(signed char, char)
CUDAHOST_VECTORS(unsigned char, uchar)
CUDAHOST_VECTORS(short, short)
CUDAHOST_VECTORS(unsigned short, ushort)
struct alignas(16) double2 {
    double x, y;
};
struct alignas(16) longlong2 {
    long long x, y;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
