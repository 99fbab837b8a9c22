/* Engine: loading. Weights go to the device tensor by tensor and the file's pages are let go behind them, so
 * that at no time more than one tensor lies in memory twice. Thread: the scheduler's. Must not know:
 * sessions' reasons, layouts of weights. Tests: tests/unit/test_engine.c */
#include "engine/engine_impl.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ROWS 256u
#define MAX_TOKENS 4096u

struct loader {
    struct engine *e;
    const struct gguf *f;
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
    uint64_t done, total; /* bytes of the file's weights */
    char *err;
    size_t errlen;
};

static int out_of_memory(const char *what, size_t wanted, char *err, size_t errlen)
{
    size_t available = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    snprintf(err, errlen, "out of memory: %s wants %zu bytes, about %zu are free", what, wanted, available);
    return -ENOMEM;
}

static void loaded(struct loader *l, const struct gguf_tensor *t)
{
    gguf_tensor_release(l->f, t);
    l->done += t->size;
    if (l->progress)
        l->progress(l->arg, l->done, l->total);
}

static int load_matrix(struct loader *l, const struct gguf_tensor *t, struct ops_weight **ret)
{
    struct ops_tensor tensor = { .type = t->type, .rows = t->dims[1], .cols = t->dims[0], .data = t->data };
    char why[160] = "";
    int r = l->e->ops->weight_new(l->e->dev, &tensor, ret, why, sizeof why);
    if (r < 0) {
        char what[96];
        snprintf(what, sizeof what, "tensor %.*s", (int)t->name.len, t->name.data);
        if (r == -ENOMEM)
            return out_of_memory(what, t->size, l->err, l->errlen);
        snprintf(l->err, l->errlen, "%s: %s", what, why);
        return r;
    }
    l->e->weight_bytes += l->e->ops->weight_bytes(*ret);
    loaded(l, t);
    return 0;
}

static int load_vector(struct loader *l, const struct gguf_tensor *t, float **ret)
{
    float *memory = l->e->ops->alloc(l->e->dev, t->size);
    if (!memory)
        return out_of_memory("a norm", t->size, l->err, l->errlen);
    l->e->ops->upload(l->e->dev, memory, t->data, t->size);
    *ret = memory;
    l->e->weight_bytes += t->size;
    loaded(l, t);
    return 0;
}

static int load_layer(struct loader *l, const struct model_layer *m, struct layer_weights *w)
{
    int r = load_vector(l, m->attn_norm, &w->attn_norm);
    if (r == 0)
        r = load_matrix(l, m->attn_q, &w->q);
    if (r == 0)
        r = load_matrix(l, m->attn_k, &w->k);
    if (r == 0)
        r = load_matrix(l, m->attn_v, &w->v);
    if (r == 0)
        r = load_matrix(l, m->attn_output, &w->o);
    if (r == 0)
        r = load_vector(l, m->ffn_norm, &w->ffn_norm);
    if (r == 0)
        r = load_matrix(l, m->ffn_gate, &w->gate);
    if (r == 0)
        r = load_matrix(l, m->ffn_up, &w->up);
    if (r == 0)
        r = load_matrix(l, m->ffn_down, &w->down);
    return r;
}

static int load_weights(struct loader *l, const struct model *m)
{
    struct engine *e = l->e;
    int r;

    for (uint64_t i = 0; i < gguf_n_tensors(l->f); i++)
        l->total += gguf_tensor_at(l->f, i)->size;
    e->layers = calloc(m->n_layers, sizeof *e->layers);
    if (!e->layers)
        return out_of_memory("the table of layers", m->n_layers * sizeof *e->layers, l->err, l->errlen);
    r = load_matrix(l, m->token_embd, &e->token_embd);
    for (uint32_t i = 0; r == 0 && i < m->n_layers; i++)
        r = load_layer(l, &m->layers[i], &e->layers[i]);
    if (r == 0)
        r = load_vector(l, m->output_norm, &e->output_norm);
    if (r == 0 && m->output == m->token_embd)
        e->output = e->token_embd;
    else if (r == 0)
        r = load_matrix(l, m->output, &e->output);
    return r;
}

static int check_options(const struct engine_options *o, char *err, size_t errlen)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } bounds[] = { { "threads", o->threads, ENGINE_MAX_THREADS },
                   { "kv_tokens", o->kv_tokens, UINT32_MAX - OPS_BLOCK_TOKENS },
                   { "rows of a window", o->max_rows, MAX_ROWS },
                   { "tokens of a window", o->max_tokens, MAX_TOKENS } };

    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].max) {
            snprintf(err, errlen, "%s: %" PRIu32 " is outside 1..%" PRIu32, bounds[i].name, bounds[i].value,
                     bounds[i].max);
            return -EINVAL;
        }
    return 0;
}

static void take_shape(struct engine *e, const struct model *m, const struct engine_options *o)
{
    e->n_layers = m->n_layers;
    e->n_embd = m->n_embd;
    e->n_ff = m->n_ff;
    e->n_head = m->n_head;
    e->n_head_kv = m->n_head_kv;
    e->head_dim = m->head_dim;
    e->n_vocab = m->n_vocab;
    e->rope_dims = m->rope_dims;
    e->rope_halves = m->rope == MODEL_ROPE_HALVES;
    e->rms_eps = m->rms_eps;
    e->max_rows = o->max_rows;
    e->max_tokens = o->max_tokens;
}

static struct ops_kv_shape kv_shape(const struct model *m, bool kv_f32, uint32_t blocks)
{
    return (struct ops_kv_shape){ .layers = m->n_layers,
                                  .heads = m->n_head_kv,
                                  .head_dim = m->head_dim,
                                  .blocks = blocks,
                                  .type = kv_f32 ? OPS_KV_F32 : OPS_KV_F16 };
}

size_t engine_kv_token_bytes(const struct model *m, bool kv_f32)
{
    return (size_t)m->n_layers * m->n_head_kv * m->head_dim * 2 * (kv_f32 ? sizeof(float) : sizeof(uint16_t));
}

static int open_pool(struct engine *e, const struct model *m, const struct engine_options *o, char *err,
                     size_t errlen)
{
    struct pool *p = &e->pool;
    struct ops_kv_shape shape;
    char why[160] = "";
    int r;

    p->n_blocks = (o->kv_tokens + OPS_BLOCK_TOKENS - 1) / OPS_BLOCK_TOKENS;
    shape = kv_shape(m, o->kv_f32, p->n_blocks);
    e->kv_bytes = (size_t)p->n_blocks * e->ops->kv_block_bytes(&shape);
    p->refs = calloc(p->n_blocks, sizeof *p->refs);
    p->free = calloc(p->n_blocks, sizeof *p->free);
    if (!p->refs || !p->free)
        return out_of_memory("the list of KV blocks", 2 * p->n_blocks * sizeof *p->refs, err, errlen);
    while (p->n_free < p->n_blocks) {
        p->free[p->n_free] = p->n_blocks - 1 - p->n_free; /* block 0 goes first */
        p->n_free++;
    }
    r = e->ops->kv_new(e->dev, &shape, &e->kv, why, sizeof why);
    if (r == -ENOMEM)
        return out_of_memory("the KV pool", e->kv_bytes, err, errlen);
    if (r < 0)
        snprintf(err, errlen, "KV pool: %s", why);
    return r;
}

/* A buffer of max_tokens rows on the device. */
static int open_rows(struct engine *e, size_t cols, float **ret, char *err, size_t errlen)
{
    size_t bytes = e->max_tokens * cols * sizeof(float);
    *ret = e->ops->alloc(e->dev, bytes);
    return *ret ? 0 : out_of_memory("the working memory of a window", bytes, err, errlen);
}

static int open_scratch(struct engine *e, char *err, size_t errlen)
{
    struct scratch *s = &e->scratch;
    size_t heads = (size_t)e->n_head * e->head_dim, kv_heads = (size_t)e->n_head_kv * e->head_dim;
    const struct {
        size_t cols;
        float **memory;
    } buffers[] = { { e->n_embd, &s->x },         { e->n_embd, &s->picked }, { heads, &s->q },
                    { heads, &s->att },           { kv_heads, &s->k },       { kv_heads, &s->v },
                    { e->n_ff, &s->gate },        { e->n_ff, &s->up },       { e->rope_dims / 2, &s->cos },
                    { e->rope_dims / 2, &s->sin } };

    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        int r = open_rows(e, buffers[i].cols, buffers[i].memory, err, errlen);
        if (r < 0)
            return r;
    }
    return 0;
}

static int open_plan(struct engine *e, const struct model *m, char *err, size_t errlen)
{
    struct plan *p = &e->plan;
    uint32_t half = e->rope_dims / 2;

    p->ids = calloc(e->max_tokens, sizeof *p->ids);
    p->wanted = calloc(e->max_tokens, sizeof *p->wanted);
    p->cos = calloc((size_t)e->max_tokens * half, sizeof *p->cos);
    p->sin = calloc((size_t)e->max_tokens * half, sizeof *p->sin);
    p->rows = calloc(e->max_rows, sizeof *p->rows);
    p->growth = calloc(e->max_rows, sizeof *p->growth);
    e->rope_freq = calloc(half, sizeof *e->rope_freq);
    if (!p->ids || !p->wanted || !p->cos || !p->sin || !p->rows || !p->growth || !e->rope_freq)
        return out_of_memory("the plan of a window", (size_t)e->max_tokens * (half + 1) * 8, err, errlen);
    for (uint32_t i = 0; i < half; i++)
        e->rope_freq[i] = pow((double)m->rope_base, -2.0 * i / e->rope_dims);
    return 0;
}

int engine_open_on(const struct ops *ops, const struct gguf *f, const struct model *m,
                   const struct engine_options *o, void (*progress)(void *arg, uint64_t done, uint64_t total),
                   void *arg, struct engine **ret_engine, char *err, size_t errlen)
{
    struct ops_open how = { .isa = o->isa, .threads = o->threads, .f32_activations = o->f32_activations };
    struct engine *e;
    int r = check_options(o, err, errlen);
    if (r < 0)
        return r;
    e = calloc(1, sizeof *e);
    if (!e)
        return out_of_memory("the engine", sizeof *e, err, errlen);
    struct loader l = { .e = e, .f = f, .progress = progress, .arg = arg, .err = err, .errlen = errlen };

    e->ops = ops;
    take_shape(e, m, o);
    r = ops->open(&how, &e->dev, err, errlen);
    if (r < 0)
        goto fail;
    snprintf(e->device, sizeof e->device, "%s %s", ops->name, ops->describe(e->dev));
    r = open_plan(e, m, err, errlen);
    if (r == 0)
        r = open_scratch(e, err, errlen);
    if (r == 0)
        r = open_pool(e, m, o, err, errlen);
    if (r == 0)
        r = load_weights(&l, m);
    if (r == 0)
        r = ops->sync(e->dev, err, errlen);
    if (r < 0)
        goto fail;
    *ret_engine = e;
    return 0;

fail:
    engine_close(e);
    return r;
}

int engine_open(const struct gguf *f, const struct model *m, const struct engine_options *o,
                void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                struct engine **ret_engine, char *err, size_t errlen)
{
    const struct ops *ops = strcmp(o->isa, "ref") == 0 ? &ops_ref : &ops_cpu;
    return engine_open_on(ops, f, m, o, progress, arg, ret_engine, err, errlen);
}

static void free_weights(struct engine *e)
{
    const struct ops *ops = e->ops;

    for (uint32_t i = 0; e->layers && i < e->n_layers; i++) {
        struct layer_weights *w = &e->layers[i];
        struct ops_weight *matrices[] = { w->q, w->k, w->v, w->o, w->gate, w->up, w->down };
        for (size_t j = 0; j < sizeof matrices / sizeof *matrices; j++)
            ops->weight_free(matrices[j]);
        ops->release(e->dev, w->attn_norm);
        ops->release(e->dev, w->ffn_norm);
    }
    if (e->output != e->token_embd)
        ops->weight_free(e->output);
    ops->weight_free(e->token_embd);
    ops->release(e->dev, e->output_norm);
    free(e->layers);
}

static void free_device(struct engine *e)
{
    struct scratch *s = &e->scratch;
    float *buffers[] = {
        s->x, s->picked, s->q, s->att, s->k, s->v, s->gate, s->up, s->cos, s->sin, s->logits
    };

    free_weights(e);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        e->ops->release(e->dev, buffers[i]);
    e->ops->kv_free(e->kv);
    e->ops->close(e->dev);
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    if (e->dev)
        free_device(e);
    free(e->pool.refs);
    free(e->pool.free);
    free(e->plan.ids);
    free(e->plan.wanted);
    free(e->plan.cos);
    free(e->plan.sin);
    free(e->plan.rows);
    free(e->plan.growth);
    free(e->rope_freq);
    free(e);
}

void engine_info_get(const struct engine *e, struct engine_info *ret_info)
{
    *ret_info = (struct engine_info){ .device = e->device,
                                      .n_vocab = e->n_vocab,
                                      .blocks = e->pool.n_blocks,
                                      .blocks_used = e->pool.n_blocks - e->pool.n_free,
                                      .weight_bytes = e->weight_bytes,
                                      .kv_bytes = e->kv_bytes };
}
