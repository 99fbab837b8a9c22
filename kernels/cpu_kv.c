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

static void copy_head(const struct ops_kv *kv, unsigned char *to, const unsigned char *from, uint32_t tokens)
{
    const size_t element = kv->is.element, line = OPS_BLOCK_TOKENS * element;
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

void cpu_kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to)
{
    const size_t element = kv->is.element, row = kv->shape.head_dim * element;
    unsigned char *at = to;
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
