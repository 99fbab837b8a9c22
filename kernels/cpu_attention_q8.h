/* Cpu attention with KV in q8_0: vectors into a block and out of it, queries quantized like keys, scores as
 * integer products. Included by the kernels' headers alone. shape.h says how a block lies. Pure but for its
 * arguments; any thread. Tests: tests/kernels/test_attention.c */
#pragma once
#include "cpu_attention.h"
#include "cpu_math.h"
#include "quant.h"

/* One vector of K or V: 32 numbers by 32. */
static void q8_vector(const float *x, uint32_t blocks, int8_t *q, uint16_t *scale)
{
    for (uint32_t b = 0; b < blocks; b++) {
        int32_t sum[2];
        scale[b] = quant_f32_to_f16(v16_quantize(x + b * SHAPE_KV_BLOCK, q + b * SHAPE_KV_BLOCK, sum));
    }
}

static void q8_store(const struct cpu_store *s, const float *k, const float *v, size_t stride,
                     unsigned char *at)
{
    const uint32_t dim = s->a->kv->shape.head_dim, blocks = dim / SHAPE_KV_BLOCK;
    const struct shape_q8 to = shape_q8(dim, at);
    for (uint32_t t = 0, place = s->place; t < s->n; t++, place++) {
        int8_t q[SHAPE_HEAD_DIM_MAX];
        uint16_t scale[SHAPE_HEAD_DIM_MAX / SHAPE_KV_BLOCK];
        q8_vector(v + t * stride, blocks, to.v + (size_t)place * dim, to.v_scale + (size_t)place * blocks);
        q8_vector(k + t * stride, blocks, q, scale);
        for (uint32_t b = 0; b < blocks; b++)
            to.k_scale[b * OPS_BLOCK_TOKENS + place] = scale[b];
        for (uint32_t d = 0; d < dim; d += 4) {
            uint32_t four;
            memcpy(&four, q + d, sizeof four);
            four ^= 0x80808080u;
            memcpy(to.k + ((size_t)d / 4 * OPS_BLOCK_TOKENS + place) * 4, &four, sizeof four);
        }
    }
}

static void q8_queries(const float *q, uint32_t n, struct cpu_query *to)
{
    for (uint32_t i = 0; i < n; i += SHAPE_KV_BLOCK, to++) {
        int32_t sum[2];
        to->s = v16_quantize(q + i, to->q, sum);
        to->sum = sum[0] + sum[1];
    }
}

/* score[row][key] of a block's 64 keys; q8: [row][blocks]. */
CPU_INLINE void q8_scores(const uint8_t *keys, const uint16_t *scale, const struct cpu_query *queries,
                          uint32_t blocks, const uint32_t rows, float *score)
{
    for (uint32_t c = 0; c < OPS_BLOCK_TOKENS; c += 16) {
        v16f sum[CPU_GROUP_ROWS];
        for (uint32_t r = 0; r < rows; r++)
            sum[r] = v16_zero();
        for (uint32_t b = 0; b < blocks; b++) {
            const uint8_t *k = keys + ((size_t)b * 8 * OPS_BLOCK_TOKENS + c) * 4;
            const v16f d = v16_load_f16(scale + b * OPS_BLOCK_TOKENS + c);
            for (uint32_t r = 0; r < rows; r++) {
                const struct cpu_query *q = queries + r * blocks + b;
                sum[r] = v16_fma(v16_mul(d, v16_set1(q->s)),
                                 v16_dot_32(k, 4 * OPS_BLOCK_TOKENS, q->q, q->sum), sum[r]);
            }
        }
        for (uint32_t r = 0; r < rows; r++)
            v16_store(score + r * OPS_BLOCK_TOKENS + c, sum[r]);
    }
}

/* V of a block as the floats it stands for, exactly. */
static void q8_values(const struct ops_kv *kv, const unsigned char *head, float *to)
{
    const struct shape_q8 at = shape_q8(kv->shape.head_dim, head);
    for (size_t i = 0; i < (size_t)OPS_BLOCK_TOKENS * kv->shape.head_dim; i += 16)
        v16_store(to + i, v16_mul(v16_load_bytes(at.v + i),
                                  v16_set1(quant_f16_to_f32(at.v_scale[i / SHAPE_KV_BLOCK]))));
}
