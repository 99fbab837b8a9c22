/* Shape: which weights and KV pools a device can be asked for, and the sizes that follow: the same on the CPU
 * and on CUDA, where the same histories and the same figures have to fit.
 * Pure; any thread. Must not know: devices, where anything lies. Tests: tests/kernels/test_matmul.c,
 * tests/kernels/test_attention.c (what is refused) */
#pragma once
#include "ops.h"
#include "quant.h"

#define SHAPE_HEAD_DIM_MAX 256u
#define SHAPE_KV_BLOCK 32u /* numbers of q8_0 that share a scale */

/* A matrix: 1 to 2^30 rows and columns, columns a multiple of the type's block; sizes of those bounds fit 64
 * bits. Gives what is known of its type. -ENOTSUP for a type that quant.h does not list, -EINVAL for the
 * rest; the text says what is allowed. */
int shape_check_weight(const struct ops_tensor *t, const struct quant_info **ret_info, char *err,
                       size_t errlen);

/* A pool of KV blocks: an even head dimension of 2 to SHAPE_HEAD_DIM_MAX, at most 65,536 layers and 65,535
 * heads, f16, f32 or, of head dimensions that are multiples of 32, q8_0. -EINVAL or -ENOTSUP. */
int shape_check_kv(const struct ops_kv_shape *s, char *err, size_t errlen);

/* How a block lies on either device: [layer][head], K transposed, [head_dim][64], then V, [64][padded]. Of
 * q8_0 K is [head_dim / 4][64][4], each plus 128 and without a sign, then f16 scales [head_dim / 32][64]; V
 * is [64][head_dim], signed, then f16 scales [64][head_dim / 32]. */
struct shape_kv {
    uint32_t padded; /* head_dim up to a multiple of 16 */
    size_t element; /* bytes of a number (q8_0: 1), and of the parts: K of a head, a head, a layer, a block */
    size_t k_bytes, head_bytes, layer_bytes, block_bytes;
    size_t row_bytes; /* of a head's vector outside, where it is head_dim numbers, or blocks of quant_q8_0 */
};

struct shape_kv shape_of_kv(const struct ops_kv_shape *s);

/* The parts of a head in q8_0. */
struct shape_q8 {
    uint8_t *k;
    uint16_t *k_scale;
    int8_t *v;
    uint16_t *v_scale;
};

static inline struct shape_q8 shape_q8(uint32_t head_dim, const unsigned char *head)
{
    const size_t quants = (size_t)OPS_BLOCK_TOKENS * head_dim;
    unsigned char *k = (unsigned char *)(uintptr_t)head,
                  *v = k + quants + quants / SHAPE_KV_BLOCK * sizeof(uint16_t);
    struct shape_q8 s = { k, (uint16_t *)(void *)(k + quants), (int8_t *)v,
                          (uint16_t *)(void *)(v + quants) };
    return s;
}
