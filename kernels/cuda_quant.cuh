/* Cuda quants: integer products of blocks of 32, by four at a time (dp4a) or by a whole warp (mma).
 * Both are exact, so which one is used shows in no bit. Private to the product kernels. */
#pragma once
#include "cuda_common.cuh"

/* The low or the high nibbles of 4 bytes, as 4 bytes. */
static __device__ __forceinline__ int low_nibbles(int v)
{
    return v & 0x0f0f0f0f;
}

static __device__ __forceinline__ int high_nibbles(int v)
{
    return (v >> 4) & 0x0f0f0f0f;
}

/* Four times four signed bytes of each. */
static __device__ __forceinline__ int dot_16(int4 a, int4 b, int sum)
{
    sum = __dp4a(a.x, b.x, sum);
    sum = __dp4a(a.y, b.y, sum);
    sum = __dp4a(a.z, b.z, sum);
    return __dp4a(a.w, b.w, sum);
}

/* What is missing from a sum over quants as they lie: Q4_0's zero is 8. */
template <uint32_t TYPE> static __device__ __forceinline__ int sum_offset(int activations)
{
    return TYPE == QUANT_Q4_0 ? -8 * activations : 0;
}

/* c[4] = the products of 16 rows of a (32 signed bytes each) with 8 of b, held by a warp. With g = lane / 4
 * and t = lane % 4: a[0] is bytes 4 t .. 4 t + 3 of row g, a[1] of row g + 8, a[2] and a[3] the same 16 bytes
 * further; b[0] is bytes 4 t .. of row g, b[1] 16 bytes further; c[0], c[1] are row g of a by rows 2 t and
 * 2 t + 1 of b, c[2], c[3] row g + 8. */
static __device__ __forceinline__ void mma_16x8x32(int c[4], const int a[4], const int b[2])
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
#else
    cudahost_mma_16x8x32(c, a, b);
#endif
}
