/* KV form: see kv_form.h. */
#include "kv_form.h"
#include "shape.h"

#include <string.h>

/* K lies transposed: one dimension's 64 tokens after another's. */
static inline void get_k(const unsigned char *k, uint32_t tokens, uint32_t dim, size_t element,
                         unsigned char *to)
{
    const size_t line = OPS_BLOCK_TOKENS * element;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t d = 0; d < dim; d++)
            memcpy(to + ((size_t)t * dim + d) * element, k + d * line + t * element, element);
}

static inline void put_k(unsigned char *k, uint32_t tokens, uint32_t dim, size_t element,
                         const unsigned char *from)
{
    const size_t line = OPS_BLOCK_TOKENS * element;
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t t = 0; t < tokens; t++)
            memcpy(k + d * line + t * element, from + ((size_t)t * dim + d) * element, element);
}

/* A token's vector of K (side 0) or V, as blocks of quant_q8_0. */
static void get_q8(uint32_t dim, const unsigned char *head, uint32_t side, uint32_t token, unsigned char *to)
{
    const struct shape_q8 at = shape_q8(dim, head);
    const uint32_t blocks = dim / SHAPE_KV_BLOCK;
    for (uint32_t b = 0; b < blocks; b++, to += sizeof(struct quant_q8_0)) {
        struct quant_q8_0 x;
        x.d = side ? at.v_scale[token * blocks + b] : at.k_scale[b * OPS_BLOCK_TOKENS + token];
        for (uint32_t i = 0, d = b * SHAPE_KV_BLOCK; i < SHAPE_KV_BLOCK; i++, d++)
            x.qs[i] = side ? at.v[(size_t)token * dim + d]
                           : (int8_t)(at.k[(d / 4 * OPS_BLOCK_TOKENS + token) * 4 + d % 4] - 128);
        memcpy(to, &x, sizeof x);
    }
}

static void put_q8(uint32_t dim, unsigned char *head, uint32_t side, uint32_t token,
                   const unsigned char *from)
{
    const struct shape_q8 at = shape_q8(dim, head);
    const uint32_t blocks = dim / SHAPE_KV_BLOCK;
    for (uint32_t b = 0; b < blocks; b++, from += sizeof(struct quant_q8_0)) {
        struct quant_q8_0 x;
        memcpy(&x, from, sizeof x);
        *(side ? &at.v_scale[token * blocks + b] : &at.k_scale[b * OPS_BLOCK_TOKENS + token]) = x.d;
        for (uint32_t i = 0, d = b * SHAPE_KV_BLOCK; i < SHAPE_KV_BLOCK; i++, d++)
            if (side)
                at.v[(size_t)token * dim + d] = x.qs[i];
            else
                at.k[(d / 4 * OPS_BLOCK_TOKENS + token) * 4 + d % 4] = (uint8_t)(x.qs[i] + 128);
    }
}

/* ---- one head ---- */

static void get_head(const struct ops_kv_shape *s, const struct shape_kv *is, const unsigned char *head,
                     uint32_t tokens, unsigned char *to)
{
    const size_t row = is->row_bytes;
    if (s->type == OPS_KV_Q8_0) {
        for (uint32_t i = 0; i < 2 * tokens; i++)
            get_q8(s->head_dim, head, i / tokens, i % tokens, to + i * row);
        return;
    }
    if (s->type == OPS_KV_F16) /* the copies become moves */
        get_k(head, tokens, s->head_dim, sizeof(uint16_t), to);
    else
        get_k(head, tokens, s->head_dim, sizeof(float), to);
    for (uint32_t t = 0; t < tokens; t++)
        memcpy(to + (tokens + t) * row, head + is->k_bytes + t * is->padded * is->element, row);
}

static void put_head(const struct ops_kv_shape *s, const struct shape_kv *is, unsigned char *head,
                     uint32_t tokens, const unsigned char *from)
{
    const size_t row = is->row_bytes;
    if (s->type == OPS_KV_Q8_0) {
        for (uint32_t i = 0; i < 2 * tokens; i++)
            put_q8(s->head_dim, head, i / tokens, i % tokens, from + i * row);
        return;
    }
    if (s->type == OPS_KV_F16)
        put_k(head, tokens, s->head_dim, sizeof(uint16_t), from);
    else
        put_k(head, tokens, s->head_dim, sizeof(float), from);
    for (uint32_t t = 0; t < tokens; t++)
        memcpy(head + is->k_bytes + t * is->padded * is->element, from + (tokens + t) * row, row);
}

void kv_form_get(const struct ops_kv_shape *shape, const unsigned char *block, uint32_t tokens, void *to)
{
    const struct shape_kv is = shape_of_kv(shape);
    for (size_t head = 0; head < (size_t)shape->layers * shape->heads; head++)
        get_head(shape, &is, block + head * is.head_bytes, tokens,
                 (unsigned char *)to + head * 2 * tokens * is.row_bytes);
}

void kv_form_put(const struct ops_kv_shape *shape, unsigned char *block, uint32_t tokens, const void *from)
{
    const struct shape_kv is = shape_of_kv(shape);
    for (size_t head = 0; head < (size_t)shape->layers * shape->heads; head++)
        put_head(shape, &is, block + head * is.head_bytes, tokens,
                 (const unsigned char *)from + head * 2 * tokens * is.row_bytes);
}
