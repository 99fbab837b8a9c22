/* Cpu attention kernels, the part before the scores: heads are normed and rotated, K and V laid into their
 * block. Included by cpu_attention_kernel.h alone, which says how it is compiled. Pure but for its arguments;
 * any thread. Tests: tests/kernels/test_attention.c */
#pragma once
#include "cpu_attention_q8.h"
#include "cpu_math.h"
#include "quant.h"

static void attention_rotate(const struct ops_attention *a, uint32_t token, const float *norm,
                             const float *from, float *to)
{
    const uint32_t head_dim = a->kv->shape.head_dim, pairs = a->rope_dims / 2;
    const float *restrict cosine = a->rope_cos + (size_t)token * pairs;
    const float *restrict sine = a->rope_sin + (size_t)token * pairs;
    float x[SHAPE_HEAD_DIM_MAX];
    if (norm)
        v16_rms_norm(from, norm, a->norm_eps, head_dim, x);
    else
        memcpy(x, from, head_dim * sizeof *x);
    if (a->rope_halves) {
        for (uint32_t i = 0; i < pairs; i++) {
            to[i] = x[i] * cosine[i] - x[i + pairs] * sine[i];
            to[i + pairs] = x[i] * sine[i] + x[i + pairs] * cosine[i];
        }
    } else {
        for (uint32_t i = 0; i < pairs; i++) {
            to[2 * i] = x[2 * i] * cosine[i] - x[2 * i + 1] * sine[i];
            to[2 * i + 1] = x[2 * i] * sine[i] + x[2 * i + 1] * cosine[i];
        }
    }
    for (uint32_t i = 2 * pairs; i < head_dim; i++)
        to[i] = x[i];
}

static void to_half(const float *from, uint16_t *to, uint32_t n)
{
    uint32_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i),
                                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    for (; i < n; i++)
        to[i] = quant_f32_to_f16(from[i]);
}

static void store_half(const struct cpu_store *s, const float *k, const float *v, size_t stride,
                       unsigned char *at)
{
    const struct ops_kv *kv = s->a->kv;
    const uint32_t head_dim = kv->shape.head_dim;
    uint16_t *to_k = (uint16_t *)at + s->place,
             *to_v = (uint16_t *)(at + kv->is.k_bytes) + (size_t)s->place * kv->is.padded;
    uint16_t row[OPS_BLOCK_TOKENS][SHAPE_HEAD_DIM_MAX];
    for (uint32_t t = 0; t < s->n; t++) {
        to_half(k + t * stride, row[t], head_dim);
        to_half(v + t * stride, to_v + (size_t)t * kv->is.padded, head_dim);
    }
    for (uint32_t d = 0; d < head_dim; d++)
        for (uint32_t t = 0; t < s->n; t++)
            to_k[(size_t)d * OPS_BLOCK_TOKENS + t] = row[t][d];
}

static void store_float(const struct cpu_store *s, const float *k, const float *v, size_t stride,
                        unsigned char *at)
{
    const struct ops_kv *kv = s->a->kv;
    const uint32_t head_dim = kv->shape.head_dim;
    float *to_k = (float *)at + s->place,
          *to_v = (float *)(at + kv->is.k_bytes) + (size_t)s->place * kv->is.padded;
    for (uint32_t t = 0; t < s->n; t++)
        memcpy(to_v + (size_t)t * kv->is.padded, v + t * stride, head_dim * sizeof *v);
    for (uint32_t d = 0; d < head_dim; d++)
        for (uint32_t t = 0; t < s->n; t++)
            to_k[(size_t)d * OPS_BLOCK_TOKENS + t] = k[t * stride + d];
}

static void attention_store(const struct cpu_store *s)
{
    const struct ops_attention *a = s->a;
    const struct ops_kv *kv = a->kv;
    const size_t stride = (size_t)kv->shape.heads * kv->shape.head_dim;
    const size_t first = s->token * stride + (size_t)s->head * kv->shape.head_dim;
    for (uint32_t t = 0; (a->rope_dims || a->k_norm) && t < s->n; t++) {
        float *k = a->k + first + t * stride;
        attention_rotate(a, s->token + t, a->k_norm, k, k);
    }
    unsigned char *at = cpu_kv_head(kv, s->block, a->layer, s->head);
    if (kv->shape.type == OPS_KV_F16)
        store_half(s, a->k + first, a->v + first, stride, at);
    else if (kv->shape.type == OPS_KV_Q8_0)
        q8_store(s, a->k + first, a->v + first, stride, at);
    else
        store_float(s, a->k + first, a->v + first, stride, at);
}
