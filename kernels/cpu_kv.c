/* Cpu KV: pools of blocks. Address space for the whole pool is reserved at once and the system gives memory
 * page by page as blocks are written, so a pool may be sized for the longest day and costs what is used.
 *
 * Thread: the stage thread; copies of several layers are spread over the pool of threads. What goes to and
 * from host memory, in the form of ops.h, goes by the calling thread alone: any.
 * Must not know: who holds a block and why.
 * Tests: tests/kernels/test_attention.c */
#include "cpu_attention.h"
#include "kv_form.h"

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
    const uint32_t dim = kv->shape.head_dim, blocks = dim / SHAPE_KV_BLOCK;
    const struct shape_q8 t = shape_q8(dim, to), f = shape_q8(dim, from);
    for (size_t d = 0; d < dim; d += 4)
        memcpy(t.k + d * OPS_BLOCK_TOKENS, f.k + d * OPS_BLOCK_TOKENS, 4 * (size_t)tokens);
    for (size_t b = 0; b < blocks; b++)
        memcpy(t.k_scale + b * OPS_BLOCK_TOKENS, f.k_scale + b * OPS_BLOCK_TOKENS,
               tokens * sizeof *t.k_scale);
    memcpy(t.v, f.v, (size_t)tokens * dim);
    memcpy(t.v_scale, f.v_scale, (size_t)tokens * blocks * sizeof *t.v_scale);
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

void cpu_kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to)
{
    kv_form_get(&kv->shape, cpu_kv_head(kv, block, 0, 0), tokens, to);
}

void cpu_kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from)
{
    kv_form_put(&kv->shape, cpu_kv_head(kv, block, 0, 0), tokens, from);
}
