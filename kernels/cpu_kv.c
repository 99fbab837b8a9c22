/* Cpu KV: pools of blocks. Address space for the whole pool is reserved at once and the system gives memory
 * page by page as blocks are written, so a pool may be sized for the longest day and costs what is used.
 *
 * Thread: the stage thread; copies of several layers are spread over the pool of threads. What goes to and
 * from host memory, in the form of ops.h, goes by the calling thread alone: any.
 * Must not know: who holds a block and why.
 * Tests: tests/kernels/test_attention.c */
#include "cpu_attention.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

size_t cpu_kv_block_bytes(const struct ops_kv_shape *shape)
{
    return shape_of_kv(shape).block_bytes;
}

int cpu_kv_new(struct ops_dev *d, const struct ops_kv_shape *shape, struct ops_kv **ret_kv, char *err,
               size_t errlen)
{
    int r = shape_check_kv(shape, err, errlen);
    if (r < 0)
        return r;
    struct ops_kv *kv = calloc(1, sizeof *kv);
    if (!kv)
        goto no_memory;
    kv->dev = d;
    kv->shape = *shape;
    kv->is = shape_of_kv(shape);
    if (__builtin_mul_overflow(kv->is.block_bytes, (size_t)shape->blocks, &kv->mapped))
        goto no_memory;
    void *at =
        mmap(NULL, kv->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        goto no_memory;
    kv->base = at;
    *ret_kv = kv;
    return 0;

no_memory:
    snprintf(err, errlen, "no address space for %u KV blocks of %zu bytes", shape->blocks,
             cpu_kv_block_bytes(shape));
    cpu_kv_free(kv);
    return -ENOMEM;
}

void cpu_kv_free(struct ops_kv *kv)
{
    if (!kv)
        return;
    if (kv->base)
        munmap(kv->base, kv->mapped);
    free(kv);
}

/* ---- copying ---- */

struct copy {
    struct ops_kv *kv;
    uint32_t to, from, tokens;
    struct cpu_work layers;
};

static void copy_head_q8(const struct ops_kv *kv, unsigned char *to, const unsigned char *from,
                         uint32_t tokens)
{
    const struct cpu_kv_q8 t = cpu_kv_q8(kv, to), f = cpu_kv_q8(kv, from);
    const size_t dim = kv->shape.head_dim, blocks = dim / SHAPE_KV_BLOCK;
    for (size_t d = 0; d < dim; d += 4)
        memcpy(t.k + d * OPS_BLOCK_TOKENS, f.k + d * OPS_BLOCK_TOKENS, 4 * (size_t)tokens);
    for (size_t b = 0; b < blocks; b++)
        memcpy(t.k_scale + b * OPS_BLOCK_TOKENS, f.k_scale + b * OPS_BLOCK_TOKENS,
               tokens * sizeof *t.k_scale);
    memcpy(t.v, f.v, tokens * dim);
    memcpy(t.v_scale, f.v_scale, tokens * blocks * sizeof *t.v_scale);
}

static void copy_head(const struct ops_kv *kv, unsigned char *to, const unsigned char *from, uint32_t tokens)
{
    const size_t element = kv->is.element, line = OPS_BLOCK_TOKENS * element;
    if (kv->shape.type == OPS_KV_Q8_0) {
        copy_head_q8(kv, to, from, tokens);
        return;
    }
    for (uint32_t d = 0; d < kv->shape.head_dim; d++)
        memcpy(to + d * line, from + d * line, tokens * element);
    memcpy(to + kv->is.k_bytes, from + kv->is.k_bytes, tokens * kv->is.padded * element);
}

static void copy_layers(void *arg, uint32_t thread)
{
    (void)thread;
    struct copy *c = arg;
    for (uint32_t layer; cpu_work_take(&c->layers, &layer);)
        for (uint32_t h = 0; h < c->kv->shape.heads; h++)
            copy_head(c->kv, cpu_kv_head(c->kv, c->to, layer, h), cpu_kv_head(c->kv, c->from, layer, h),
                      c->tokens);
}

void cpu_kv_copy(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens)
{
    if (to == from)
        return;
    struct copy c = { .kv = kv, .to = to, .from = from, .tokens = tokens };
    cpu_work_init(&c.layers, kv->shape.layers);
    cpu_parallel(kv->dev, kv->shape.layers, copy_layers, &c);
}

/* ---- to and from host memory ---- */

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
static void get_q8(const struct ops_kv *kv, unsigned char *head, uint32_t side, uint32_t token,
                   unsigned char *to)
{
    const struct cpu_kv_q8 at = cpu_kv_q8(kv, head);
    const uint32_t blocks = kv->shape.head_dim / SHAPE_KV_BLOCK;
    for (uint32_t b = 0; b < blocks; b++, to += sizeof(struct quant_q8_0)) {
        struct quant_q8_0 x;
        x.d = side ? at.v_scale[token * blocks + b] : at.k_scale[b * OPS_BLOCK_TOKENS + token];
        for (uint32_t i = 0, d = b * SHAPE_KV_BLOCK; i < SHAPE_KV_BLOCK; i++, d++)
            x.qs[i] = side ? at.v[(size_t)token * kv->shape.head_dim + d]
                           : (int8_t)(at.k[(d / 4 * OPS_BLOCK_TOKENS + token) * 4 + d % 4] - 128);
        memcpy(to, &x, sizeof x);
    }
}

static void put_q8(const struct ops_kv *kv, unsigned char *head, uint32_t side, uint32_t token,
                   const unsigned char *from)
{
    const struct cpu_kv_q8 at = cpu_kv_q8(kv, head);
    const uint32_t blocks = kv->shape.head_dim / SHAPE_KV_BLOCK;
    for (uint32_t b = 0; b < blocks; b++, from += sizeof(struct quant_q8_0)) {
        struct quant_q8_0 x;
        memcpy(&x, from, sizeof x);
        *(side ? &at.v_scale[token * blocks + b] : &at.k_scale[b * OPS_BLOCK_TOKENS + token]) = x.d;
        for (uint32_t i = 0, d = b * SHAPE_KV_BLOCK; i < SHAPE_KV_BLOCK; i++, d++)
            if (side)
                at.v[(size_t)token * kv->shape.head_dim + d] = x.qs[i];
            else
                at.k[(d / 4 * OPS_BLOCK_TOKENS + token) * 4 + d % 4] = (uint8_t)(x.qs[i] + 128);
    }
}

/* All heads of a block in the order of ops.h; from or to is NULL. */
static void all_q8(struct ops_kv *kv, uint32_t block, uint32_t tokens, unsigned char *to,
                   const unsigned char *from)
{
    size_t at = 0;
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        for (uint32_t h = 0; h < kv->shape.heads; h++)
            for (uint32_t side = 0; side < 2; side++)
                for (uint32_t t = 0; t < tokens; t++, at += kv->is.row_bytes)
                    if (to)
                        get_q8(kv, cpu_kv_head(kv, block, layer, h), side, t, to + at);
                    else
                        put_q8(kv, cpu_kv_head(kv, block, layer, h), side, t, from + at);
}

void cpu_kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to)
{
    const size_t element = kv->is.element, row = kv->shape.head_dim * element;
    unsigned char *at = to;
    if (kv->shape.type == OPS_KV_Q8_0) {
        all_q8(kv, block, tokens, to, NULL);
        return;
    }
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        for (uint32_t h = 0; h < kv->shape.heads; h++) {
            const unsigned char *k = cpu_kv_head(kv, block, layer, h), *v = k + kv->is.k_bytes;
            if (element == sizeof(uint16_t)) /* the copies become moves */
                get_k(k, tokens, kv->shape.head_dim, sizeof(uint16_t), at);
            else
                get_k(k, tokens, kv->shape.head_dim, sizeof(float), at);
            at += tokens * row;
            for (uint32_t t = 0; t < tokens; t++, at += row)
                memcpy(at, v + t * kv->is.padded * element, row);
        }
    }
}

void cpu_kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from)
{
    const size_t element = kv->is.element, row = kv->shape.head_dim * element;
    const unsigned char *at = from;
    if (kv->shape.type == OPS_KV_Q8_0) {
        all_q8(kv, block, tokens, NULL, from);
        return;
    }
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        for (uint32_t h = 0; h < kv->shape.heads; h++) {
            unsigned char *k = cpu_kv_head(kv, block, layer, h), *v = k + kv->is.k_bytes;
            if (element == sizeof(uint16_t))
                put_k(k, tokens, kv->shape.head_dim, sizeof(uint16_t), at);
            else
                put_k(k, tokens, kv->shape.head_dim, sizeof(float), at);
            at += tokens * row;
            for (uint32_t t = 0; t < tokens; t++, at += row)
                memcpy(v + t * kv->is.padded * element, at, row);
        }
    }
}
