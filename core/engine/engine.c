/* Engine: opening and closing: the book of blocks, the stages with their devices and working memory. Thread:
 * the scheduler's; what touches a device runs on its stage's. Must not know: sessions' reasons, layouts of
 * weights. Tests: tests/unit/test_engine.c, tests/unit/test_stages.c */
#include "engine/flight.h"
#include "engine/load.h"
#include "engine/stage.h"
#include "kernels/shape.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ROWS 256u
#define MAX_TOKENS 4096u

int engine_no_memory(const char *what, size_t wanted, char *err, size_t errlen)
{
    size_t available = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    snprintf(err, errlen, "out of memory: %s wants %zu bytes, about %zu are free", what, wanted, available);
    return -ENOMEM;
}

int stage_no_memory(const struct stage *st, const char *what, size_t wanted, char *err, size_t errlen)
{
    const struct ops *ops = st->engine->ops;
    int r;
    if (ops->plain_memory)
        return engine_no_memory(what, wanted, err, errlen);
    r = ops->sync(st->dev, err, errlen);
    if (r < 0) /* a device that has failed has no memory either */
        return r;
    snprintf(err, errlen, "out of memory on %s: %s wants %zu bytes, about %zu are free", st->device, what,
             wanted, ops->memory_free(st->dev));
    return -ENOMEM;
}

static const char *const kv_names[] = {
    [OPS_KV_F16] = "f16",
    [OPS_KV_F32] = "f32",
    [OPS_KV_Q8_0] = "q8_0",
};

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* Its index, or n. */
static size_t name_find(const char *const *names, size_t n, const char *name)
{
    size_t i = 0;
    while (i < n && strcmp(name, names[i]) != 0)
        i++;
    return i;
}

static bool kv_type_find(const char *name, enum ops_kv_type *ret_type)
{
    size_t i = name ? name_find(kv_names, LENGTH(kv_names), name) : OPS_KV_F16;
    *ret_type = i < LENGTH(kv_names) ? (enum ops_kv_type)i : OPS_KV_F16;
    return i < LENGTH(kv_names);
}

static const char *const activation_names[] = {
    [OPS_INT8] = "int8", [OPS_INT16] = "int16", [OPS_F32] = "f32"
};

static bool activations_find(const char *name, const struct model *m, enum ops_activations *ret_activations)
{
    const bool is_auto = !name || strcmp(name, "auto") == 0;
    size_t i = is_auto ? m->int16 ? OPS_INT16 : OPS_INT8
                       : name_find(activation_names, LENGTH(activation_names), name);
    *ret_activations = i < LENGTH(activation_names) ? (enum ops_activations)i : OPS_INT8;
    return i < LENGTH(activation_names);
}

const char *engine_kv_name(enum ops_kv_type type)
{
    return kv_names[type];
}

size_t engine_kv_head_bytes(enum ops_kv_type type, uint32_t head_dim)
{
    const struct ops_kv_shape shape = { .head_dim = head_dim, .type = type };
    return type == OPS_KV_Q8_0 && head_dim % SHAPE_KV_BLOCK ? 0 : shape_of_kv(&shape).row_bytes;
}

static int check_options(const struct model *m, const struct engine_options *o, char *err, size_t errlen)
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
    enum ops_kv_type type;
    if (!kv_type_find(o->kv_type, &type)) {
        snprintf(err, errlen, "KV in %s: f16, f32 and q8_0 are known", o->kv_type);
        return -EINVAL;
    }
    enum ops_activations activations;
    if (!activations_find(o->activations, m, &activations)) {
        snprintf(err, errlen, "activations in %s: auto, int8, int16 and f32 are known", o->activations);
        return -EINVAL;
    }
    if (o->stages > ENGINE_MAX_STAGES || o->stages > m->n_layers) {
        snprintf(err, errlen,
                 "stages: %" PRIu32 " for a model of %" PRIu32 " layers; at most one a layer, and %u",
                 o->stages, m->n_layers, ENGINE_MAX_STAGES);
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
    e->embd_scale = m->embd_scale;
    e->attn_scale = m->attn_scale;
    e->gate = m->gate == MODEL_GATE_GELU ? OPS_GEGLU : OPS_SWIGLU;
    e->window = m->window;
    e->post_norms = m->layers[0].attn_post_norm != NULL;
    e->n_ropes = m->window ? 2 : 1;
    activations_find(o->activations, m, &e->activations);
    kv_type_find(o->kv_type, &e->kv_type);
    e->max_rows = o->max_rows;
    e->max_tokens = o->max_tokens;
}

size_t engine_kv_token_bytes(const struct model *m, const char *kv_type)
{
    enum ops_kv_type type;
    kv_type_find(kv_type, &type);
    return (size_t)m->n_layers * m->n_head_kv * 2 * engine_kv_head_bytes(type, m->head_dim);
}

static int open_pool(struct engine *e, const struct engine_options *o, char *err, size_t errlen)
{
    struct pool *p = &e->pool;

    p->n_blocks = (o->kv_tokens + OPS_BLOCK_TOKENS - 1) / OPS_BLOCK_TOKENS;
    p->refs = calloc(p->n_blocks, sizeof *p->refs);
    p->free = calloc(p->n_blocks, sizeof *p->free);
    if (!p->refs || !p->free)
        return engine_no_memory("the list of KV blocks", 2 * p->n_blocks * sizeof *p->refs, err, errlen);
    while (p->n_free < p->n_blocks) {
        p->free[p->n_free] = p->n_blocks - 1 - p->n_free; /* block 0 goes first */
        p->n_free++;
    }
    return 0;
}

static int open_rope(struct engine *e, const struct model *m, char *err, size_t errlen)
{
    uint32_t half = e->rope_dims / 2;

    e->windowed = calloc(e->n_layers, sizeof *e->windowed);
    if (!e->windowed)
        return engine_no_memory("the table of layers", e->n_layers * sizeof *e->windowed, err, errlen);
    for (uint32_t i = 0; i < e->n_layers; i++)
        e->windowed[i] = model_layer_has_window(m, i);
    for (uint32_t i = 0; i < e->n_ropes; i++) {
        double *frequency = calloc(half, sizeof *frequency);
        if (!frequency)
            return engine_no_memory("the angles of positions", half * sizeof *frequency, err, errlen);
        e->ropes[i].frequency = frequency;
        model_rope_frequencies(m, i == 1, frequency, &e->ropes[i].magnitude);
    }
    return 0;
}

/* ---- stages ---- */

/* A buffer of max_tokens rows on the device. */
static int open_rows(struct stage *st, size_t cols, float **ret, char *err, size_t errlen)
{
    size_t bytes = st->engine->max_tokens * cols * sizeof(float);
    *ret = st->engine->ops->alloc(st->dev, bytes);
    return *ret ? 0 : stage_no_memory(st, "the working memory of a window", bytes, err, errlen);
}

static int open_scratch(struct stage *st, char *err, size_t errlen)
{
    const struct engine *e = st->engine;
    struct scratch *s = &st->scratch;
    size_t heads = (size_t)e->n_head * e->head_dim, kv_heads = (size_t)e->n_head_kv * e->head_dim;
    const struct {
        size_t cols;
        float **memory;
    } buffers[] = { { e->n_embd, &s->x },  { e->n_embd, &s->picked }, { heads, &s->q },
                    { heads, &s->att },    { kv_heads, &s->k },       { kv_heads, &s->v },
                    { e->n_ff, &s->gate }, { e->n_ff, &s->up } };
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof buffers / sizeof *buffers; i++)
        r = open_rows(st, buffers[i].cols, buffers[i].memory, err, errlen);
    if (r == 0 && e->post_norms)
        r = open_rows(st, e->n_embd, &s->added, err, errlen);
    for (uint32_t i = 0; r == 0 && i < e->n_ropes; i++) {
        r = open_rows(st, e->rope_dims / 2, &s->cos[i], err, errlen);
        if (r == 0)
            r = open_rows(st, e->rope_dims / 2, &s->sin[i], err, errlen);
    }
    return r;
}

static int open_device(struct stage *st, void *arg, char *err, size_t errlen)
{
    const struct engine_options *o = arg;
    const struct ops *ops = st->engine->ops;
    struct ops_open how = { .isa = o->isa,
                            .threads = st->threads,
                            .part = st->index,
                            .parts = st->engine->n_stages,
                            .any_order = o->any_order,
                            .activations = st->engine->activations };
    int r = ops->open(&how, &st->dev, err, errlen);
    if (r < 0)
        return r;
    snprintf(st->device, sizeof st->device, "%s %s", ops->name, ops->describe(st->dev));
    return open_scratch(st, err, errlen);
}

static int open_kv(struct stage *st, void *arg, char *err, size_t errlen)
{
    struct engine *e = st->engine;
    struct ops_kv_shape shape = load_kv_shape(e, st->n_layers, e->pool.n_blocks);
    size_t bytes = e->pool.n_blocks * e->ops->kv_block_bytes(&shape);
    char why[160] = "";
    int r = e->ops->kv_new(st->dev, &shape, &st->kv, why, sizeof why);
    (void)arg;

    if (r == -ENOMEM)
        return stage_no_memory(st, "the KV pool", bytes, err, errlen);
    if (r < 0) {
        snprintf(err, errlen, "KV pool: %s", why);
        return r;
    }
    e->kv_bytes += bytes;
    return 0;
}

static int close_device(struct stage *st, void *arg, char *err, size_t errlen)
{
    const struct engine *e = st->engine;
    struct scratch *s = &st->scratch;
    float *buffers[] = { s->x,    s->added, s->picked, s->q,      s->att,    s->k,     s->v,
                         s->gate, s->up,    s->cos[0], s->sin[0], s->cos[1], s->sin[1] };

    (void)arg;
    (void)err;
    (void)errlen;
    if (!st->dev)
        return 0;
    load_free(st);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        e->ops->release(st->dev, buffers[i]);
    for (struct flight *f = e->idle; f && st->index + 1 == e->n_stages; f = f->next)
        e->ops->release(st->dev, f->logits);
    e->ops->kv_free(st->kv);
    e->ops->close(st->dev);
    return 0;
}

/* Stage s of n has so many of all threads, as evenly as can be, and at least one: that which drives a device
 * that computes by itself. */
static uint32_t threads_of(const struct engine *e, uint32_t threads, uint32_t s, uint32_t n)
{
    uint32_t own = threads * (s + 1) / n - threads * s / n;
    return own && e->ops->plain_memory ? own : 1;
}

static int open_stages(struct engine *e, const struct engine_options *o, char *err, size_t errlen)
{
    uint32_t n = o->stages ? o->stages : 1;
    int r = 0;

    e->stages = calloc(n, sizeof *e->stages);
    e->infos = calloc(n, sizeof *e->infos);
    e->layers = calloc(e->n_layers, sizeof *e->layers);
    if (!e->stages || !e->infos || !e->layers)
        return engine_no_memory("the table of layers", e->n_layers * sizeof *e->layers, err, errlen);
    for (e->n_stages = 0; e->n_stages < n; e->n_stages++) {
        struct stage *st = &e->stages[e->n_stages];
        *st = (struct stage){ .engine = e,
                              .index = e->n_stages,
                              .threads = threads_of(e, o->threads, e->n_stages, n) };
        pthread_cond_init(&st->changed, NULL);
    }
    for (uint32_t s = 0; r == 0 && s < n; s++) {
        if (n > 1)
            r = stage_start(&e->stages[s], err, errlen);
        if (r == 0)
            r = stage_call(&e->stages[s], open_device, (void *)(uintptr_t)o, err, errlen);
    }
    return r;
}

static void fill_infos(struct engine *e)
{
    for (uint32_t s = 0; s < e->n_stages; s++) {
        const struct stage *st = &e->stages[s];
        e->infos[s] = (struct engine_stage_info){ .device = st->device,
                                                  .first_layer = st->first,
                                                  .n_layers = st->n_layers,
                                                  .threads = st->threads,
                                                  .weight_bytes = st->weight_bytes };
    }
}

/* ---- opening and closing ---- */

int engine_open_on(const struct ops *ops, const struct gguf *f, const struct model *m,
                   const struct engine_options *o, void (*progress)(void *arg, uint64_t done, uint64_t total),
                   void *arg, struct engine **ret_engine, char *err, size_t errlen)
{
    struct load l = { .file = f, .model = m, .progress = progress, .arg = arg, .sample = o->sample };
    struct engine *e;
    int r = check_options(m, o, err, errlen);
    if (r < 0)
        return r;
    e = calloc(1, sizeof *e);
    if (!e)
        return engine_no_memory("the engine", sizeof *e, err, errlen);

    e->ops = ops;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    take_shape(e, m, o);
    r = open_rope(e, m, err, errlen);
    if (r == 0)
        r = open_pool(e, o, err, errlen);
    if (r == 0)
        r = open_stages(e, o, err, errlen);
    if (r == 0)
        r = load_divide(e, &l, err, errlen);
    for (uint32_t s = 0; r == 0 && s < e->n_stages; s++)
        r = stage_call(&e->stages[s], open_kv, (void *)(uintptr_t)o, err, errlen);
    if (r == 0)
        r = load_rest(e, &l, err, errlen);
    if (r < 0) {
        engine_close(e);
        return r;
    }
    fill_infos(e);
    *ret_engine = e;
    return 0;
}

/* ---- which device ---- */

/* A weak symbol: its address tells whether it was linked, which a compiler that sees an object does not
 * expect. */
static bool has_cuda(void)
{
    const struct ops *volatile table = &ops_cuda;
    return table != NULL;
}

/* Stages beyond the number of devices share them: each device counts once. */
static int measure_cuda(uint32_t stages, uint64_t *ret_free, char *err, size_t errlen)
{
    char first[160] = "";
    int r = 0;

    *ret_free = 0;
    for (uint32_t s = 0; r == 0 && s < stages; s++) {
        const struct ops_open how = { .isa = "auto", .threads = 1, .part = s, .parts = stages };
        struct ops_dev *d;
        r = ops_cuda.open(&how, &d, err, errlen);
        if (r < 0)
            break;
        bool again = strcmp(first, ops_cuda.describe(d)) == 0;
        if (s == 0)
            snprintf(first, sizeof first, "%s", ops_cuda.describe(d));
        if (!again)
            *ret_free += ops_cuda.memory_free(d);
        ops_cuda.close(d);
        if (again)
            break;
    }
    return r;
}

int engine_device_find(const char *asked, uint32_t stages, const char **ret_device, uint64_t *ret_free,
                       char *err, size_t errlen)
{
    int r;

    *ret_device = "cpu";
    snprintf(err, errlen, "%s", "");
    if (strcmp(asked, "cpu") == 0 || (strcmp(asked, "auto") == 0 && !has_cuda()))
        return 0;
    if (!has_cuda()) {
        snprintf(err, errlen, "this build has no CUDA");
        return -ENODEV;
    }
    r = measure_cuda(stages, ret_free, err, errlen);
    if (r == 0)
        *ret_device = "cuda";
    return r < 0 && strcmp(asked, "auto") == 0 ? 0 : r < 0 ? -ENODEV : 0;
}

int engine_open(const struct gguf *f, const struct model *m, const struct engine_options *o,
                void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                struct engine **ret_engine, char *err, size_t errlen)
{
    const struct ops *ops = strcmp(o->isa, "ref") == 0 ? &ops_ref : &ops_cpu;

    if (o->device && strcmp(o->device, "cuda") == 0) {
        if (!has_cuda()) {
            snprintf(err, errlen, "this build has no CUDA");
            return -ENODEV;
        }
        ops = &ops_cuda;
    }
    return engine_open_on(ops, f, m, o, progress, arg, ret_engine, err, errlen);
}

void engine_close(struct engine *e)
{
    struct flight *f;

    if (!e)
        return;
    assert(e->n_open == 0);
    for (uint32_t s = 0; s < e->n_stages; s++) {
        stage_call(&e->stages[s], close_device, NULL, NULL, 0);
        stage_stop(&e->stages[s]);
        pthread_cond_destroy(&e->stages[s].changed);
    }
    while ((f = e->idle)) {
        e->idle = f->next;
        flight_free(f);
    }
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e->layers);
    free(e->stages);
    free(e->infos);
    free(e->pool.refs);
    free(e->pool.free);
    for (uint32_t i = 0; i < e->n_ropes; i++)
        free(e->ropes[i].frequency);
    free(e->windowed);
    free(e);
}

void engine_info_get(const struct engine *e, struct engine_info *ret_info)
{
    *ret_info = (struct engine_info){ .device = e->infos[0].device,
                                      .activations = activation_names[e->activations],
                                      .kv_type = kv_names[e->kv_type],
                                      .n_vocab = e->n_vocab,
                                      .blocks = e->pool.n_blocks,
                                      .blocks_used = e->pool.n_blocks - e->pool.n_free,
                                      .blocks_flying = e->pool.n_flying,
                                      .kv_bytes = e->kv_bytes,
                                      .n_stages = e->n_stages,
                                      .stages = e->infos };
    for (uint32_t s = 0; s < e->n_stages; s++)
        ret_info->weight_bytes += e->stages[s].weight_bytes;
}
