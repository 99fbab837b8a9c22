/* Cuda quants: blocks of 32 weights as cuda_common.cuh lays them, unpacked, and their integer products with
 * activations, by four at a time (dp4a) or by a whole warp (mma). Products are exact, so which one is used
 * shows in no bit. One text for all quantized types: what differs is in cuda_form_of.
 * Private to the product kernels and cuda_weight.cu. */
#pragma once
#include "cuda_common.cuh"

#define CUDA_SUPER 8u /* blocks that share the scale of their scales */

/* How a quantized type lies. */
struct cuda_form {
    uint32_t bits; /* of a quant: 4, 5, 6 or 8 */
    uint32_t zero; /* what quants stand above their values */
    bool minima;
    bool supers; /* scales are whole numbers, times halves that 8 blocks share */
};

/* All fields 0 for types that are not quantized. */
constexpr struct cuda_form cuda_form_of(uint32_t type)
{
    switch (type) {
    case QUANT_Q4_0:
        return { 4, 8, false, false };
    case QUANT_Q4_1:
        return { 4, 0, true, false };
    case QUANT_Q5_0:
        return { 5, 16, false, false };
    case QUANT_Q5_1:
        return { 5, 0, true, false };
    case QUANT_Q8_0:
        return { 8, 0, false, false };
    case QUANT_Q4_K:
        return { 4, 0, true, true };
    case QUANT_Q5_K:
        return { 5, 0, true, true };
    case QUANT_Q6_K:
        return { 6, 32, false, true };
    default:
        return { 0, 0, false, false };
    }
}

template <uint32_t TYPE> struct cuda_quant {
    static constexpr uint32_t bits = cuda_form_of(TYPE).bits, zero = cuda_form_of(TYPE).zero;
    static constexpr bool minima = cuda_form_of(TYPE).minima, supers = cuda_form_of(TYPE).supers;
    static constexpr bool halves = supers && !minima; /* scales of 16 columns */
    /* Words of a block's low and high. */
    static constexpr uint32_t low_words = bits == 8 ? 8 : 4, high_words = bits < 5    ? 0
                                                                          : bits == 5 ? 1
                                                                                      : 2 * (bits == 6);
};

/* Calls fn<type>(arguments..) for a quantized type. */
#define CUDA_WITH_TYPE(type, fn, ...)                                                                        \
    switch (type) {                                                                                          \
        QUANT_CASES(CUDA_TYPE_CASE, fn, __VA_ARGS__)                                                         \
    default:                                                                                                 \
        break;                                                                                               \
    }
#define CUDA_TYPE_CASE(type, fn, ...)                                                                        \
    case type:                                                                                               \
        return fn<type>(__VA_ARGS__);

/* ---- scales ---- */

/* Of a block: w = d q + m; Q6_K: d a[0] q for the first 16 columns, d a[1] q for the others. */
struct cuda_scales {
    float d, m;
    int a[2];
};

/* Products of a half and a whole number of 8 bits are exact. */
template <uint32_t TYPE>
static __device__ __forceinline__ struct cuda_scales load_scales(const struct cuda_layout &w, size_t block)
{
    using form = cuda_quant<TYPE>;
    struct cuda_scales s = { 0, 0, { 1, 1 } };
    const unsigned char *number = w.scale + 2 * block;
    const __half *half = form::supers ? (const __half *)w.super + block / CUDA_SUPER * (form::minima ? 2 : 1)
                                      : (const __half *)w.scale + block * (form::minima ? 2 : 1);
    s.d = __half2float(half[0]);
    if (form::minima)
        s.m = __half2float(half[1]);
    if (form::halves) {
        s.a[0] = (int8_t)number[0];
        s.a[1] = (int8_t)number[1];
    } else if (form::supers) {
        s.d *= (float)number[0];
        s.m = 0.0f - s.m * (float)number[1];
    }
    return s;
}

/* ---- quants ---- */

/* The low or the high nibbles of 4 bytes, as 4 bytes. */
static __device__ __forceinline__ uint32_t low_nibbles(uint32_t v)
{
    return v & 0x0f0f0f0fu;
}

static __device__ __forceinline__ uint32_t high_nibbles(uint32_t v)
{
    return (v >> 4) & 0x0f0f0f0fu;
}

/* Columns 4 j .. 4 j + 3 as signed bytes, from their nibbles and the word of high bits that holds theirs. No
 * byte borrows from its neighbour: the bit that is set before and cleared after sees to it. */
template <uint32_t TYPE>
static __device__ __forceinline__ int signed_bytes(uint32_t nibbles, uint32_t high, uint32_t j)
{
    using form = cuda_quant<TYPE>;
    if (form::bits == 5)
        nibbles |= high >> j << 4 & 0x10101010u;
    if (form::bits == 6)
        nibbles |= high >> 2 * (j % 4) << 4 & 0x30303030u;
    if (form::zero)
        nibbles = ((nibbles | 0x80808080u) - form::zero * 0x01010101u) ^ 0x80808080u;
    return (int)nibbles;
}

/* A block's 32 columns, four a word. */
template <uint32_t TYPE>
static __device__ __forceinline__ void load_block(const struct cuda_layout &w, size_t block, int q[8])
{
    using form = cuda_quant<TYPE>;
    const int4 *low = (const int4 *)w.low + block * (form::low_words / 4);
    const int4 first = low[0];
    if (form::bits == 8) {
        const int4 second = low[form::bits == 8];
        q[0] = first.x, q[1] = first.y, q[2] = first.z, q[3] = first.w;
        q[4] = second.x, q[5] = second.y, q[6] = second.z, q[7] = second.w;
        return;
    }
    const uint32_t both[4] = { (uint32_t)first.x, (uint32_t)first.y, (uint32_t)first.z, (uint32_t)first.w };
    uint32_t high[2] = { 0, 0 };
    if (form::bits == 5)
        high[0] = high[1] = ((const uint32_t *)w.high)[block];
    if (form::bits == 6) {
        const uint2 two = ((const uint2 *)w.high)[block];
        high[0] = two.x, high[1] = two.y;
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        q[j] = signed_bytes<TYPE>(low_nibbles(both[j]), high[0], j);
        q[j + 4] = signed_bytes<TYPE>(high_nibbles(both[j]), high[1], j + 4);
    }
}

/* Weight i of any type, as quant_dequantize has it: rounded once, where the minimum is added. */
template <uint32_t TYPE>
static __device__ __forceinline__ float weight_at(const struct cuda_layout &w, size_t i)
{
    using form = cuda_quant<TYPE>;
    if (TYPE == QUANT_F32)
        return ((const float *)w.low)[i];
    if (TYPE == QUANT_F16)
        return __half2float(((const __half *)w.low)[i]);
    if (TYPE == QUANT_BF16)
        return __uint_as_float((uint32_t)((const uint16_t *)w.low)[i] << 16);
    const size_t block = i / CUDA_BLOCK;
    const uint32_t c = i % CUDA_BLOCK;
    const struct cuda_scales s = load_scales<TYPE>(w, block);
    int q = w.low[form::bits == 8 ? i : block * 16 + c % 16];
    if (form::bits == 8)
        q = (int8_t)q;
    else
        q = c < 16 ? q & 15 : q >> 4;
    if (form::bits == 5)
        q |= (w.high[block * 4 + c % 4] >> c / 4 & 1) << 4;
    if (form::bits == 6)
        q |= (w.high[block * 8 + c / 16 * 4 + c % 4] >> 2 * (c / 4 % 4) & 3) << 4;
    const int a = c < 16 ? s.a[0] : s.a[1]; /* an index would put them into memory */
    return s.d * (float)a * (float)(q - (int)form::zero) + s.m;
}

/* ---- products ---- */

/* Four times four signed bytes of each. */
static __device__ __forceinline__ int dot_16(const int a[4], int4 b)
{
    return __dp4a(a[0], b.x, __dp4a(a[1], b.y, __dp4a(a[2], b.z, __dp4a(a[3], b.w, 0))));
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
