/* Load: see load.h. Weights go to the device tensor by tensor and the file's pages are let go behind them, so
 * that at no time more than one tensor lies in memory twice.
 *
 * With several stages, what has its place anyway is loaded first: the embedding and a few layers on the first
 * stage, the head on the last. They are timed there in turns, with a window as most are: one token in each of
 * a few rows, at the start of a sequence. A layer costs its share of the bytes. One layer alone would be
 * too small to be compared with a head: it would lie in a cache, where its like never does in service, and
 * get through between two interruptions on a busy machine. The least of a few runs counts, by the clock or
 * by the processors' time: what else the machine does only ever makes the one longer, what else this process
 * does the other. */
#include "engine/load.h"
#include "engine/balance.h"
#include "engine/compute.h"
#include "engine/flight.h"
#include "engine/stage.h"
#include "util/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PROBE_ROWS 8u
#define PROBE_RUNS 8u /* the first warms up */

static void loaded(struct load *l, const struct gguf_tensor *t)
{
    gguf_tensor_release(l->file, t);
    l->done += t->size;
    if (l->progress)
        l->progress(l->arg, l->done, l->total);
}

static int load_matrix(struct stage *st, struct load *l, const struct gguf_tensor *t, struct ops_weight **ret,
                       char *err, size_t errlen)
{
    const struct ops *ops = st->engine->ops;
    struct ops_tensor tensor = {
        .type = t->type, .rows = l->sample ? 1 : t->dims[1], .cols = t->dims[0], .data = t->data
    };
    char why[160] = "";
    int r = ops->weight_new(st->dev, &tensor, ret, why, sizeof why);
    if (r < 0) {
        char what[96];
        snprintf(what, sizeof what, "tensor %.*s", (int)t->name.len, t->name.data);
        if (r == -ENOMEM)
            return stage_no_memory(st, what, t->size, err, errlen);
        snprintf(err, errlen, "%s: %s", what, why);
        return r;
    }
    st->weight_bytes += ops->weight_bytes(*ret);
    loaded(l, t);
    return 0;
}

static int load_vector(struct stage *st, struct load *l, const struct gguf_tensor *t, float **ret, char *err,
                       size_t errlen)
{
    const struct ops *ops = st->engine->ops;
    float *memory = ops->alloc(st->dev, t->size);
    if (!memory)
        return stage_no_memory(st, "a norm or bias", t->size, err, errlen);
    ops->upload(st->dev, memory, t->data, t->size);
    *ret = memory;
    st->weight_bytes += t->size;
    loaded(l, t);
    return 0;
}

static int load_layer(struct stage *st, struct load *l, uint32_t layer, char *err, size_t errlen)
{
    const struct model_layer *m = &l->model->layers[layer];
    struct layer_weights *w = &st->engine->layers[layer];
    const struct {
        const struct gguf_tensor *from;
        struct ops_weight **matrix;
        float **vector;
    } parts[] = { { m->attn_norm, NULL, &w->attn_norm },
                  { m->attn_q, &w->q, NULL },
                  { m->attn_k, &w->k, NULL },
                  { m->attn_v, &w->v, NULL },
                  { m->attn_q_bias, NULL, &w->q_bias },
                  { m->attn_k_bias, NULL, &w->k_bias },
                  { m->attn_v_bias, NULL, &w->v_bias },
                  { m->attn_q_norm, NULL, &w->q_norm },
                  { m->attn_k_norm, NULL, &w->k_norm },
                  { m->attn_output, &w->o, NULL },
                  { m->attn_post_norm, NULL, &w->attn_post_norm },
                  { m->ffn_norm, NULL, &w->ffn_norm },
                  { m->ffn_gate, &w->gate, NULL },
                  { m->ffn_up, &w->up, NULL },
                  { m->ffn_down, &w->down, NULL },
                  { m->ffn_post_norm, NULL, &w->ffn_post_norm } };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].from) /* the architecture has none */
            continue;
        int r = parts[i].matrix ? load_matrix(st, l, parts[i].from, parts[i].matrix, err, errlen)
                                : load_vector(st, l, parts[i].from, parts[i].vector, err, errlen);
        if (r < 0)
            return r;
    }
    return 0;
}

static bool is_last(const struct stage *st)
{
    return st->index + 1 == st->engine->n_stages;
}

static int load_head(struct stage *st, void *arg, char *err, size_t errlen)
{
    struct load *l = arg;
    const struct model *m = l->model;
    int r = load_vector(st, l, m->output_norm, &st->output_norm, err, errlen);

    if (r == 0 && m->output == m->token_embd && st->token_embd)
        st->output = st->token_embd;
    else if (r == 0)
        r = load_matrix(st, l, m->output, &st->output, err, errlen);
    return r;
}

/* The stage's layers, where an earlier call did not load them. */
static int load_layers(struct stage *st, void *arg, char *err, size_t errlen)
{
    struct load *l = arg;
    int r = 0;

    if (st->index == 0 && !st->token_embd)
        r = load_matrix(st, l, l->model->token_embd, &st->token_embd, err, errlen);
    for (uint32_t i = st->first; r == 0 && i < st->first + st->n_layers; i++)
        if (!st->engine->layers[i].attn_norm)
            r = load_layer(st, l, i, err, errlen);
    return r;
}

/* ---- what parts cost ---- */

struct probe {
    struct stage *stage;
    struct flight *f;
    void (*queue)(struct stage *st, const struct flight *f);
    uint64_t ns; /* of the fastest run, in the time of one thread */
};

static void queue_layers(struct stage *st, const struct flight *f)
{
    for (uint32_t i = 0; i < st->n_layers; i++)
        compute_layer(st, f, i);
}

/* One token in each of a few rows, position 0, in blocks of their own. */
static int plan_probe(struct flight *f, char *err, size_t errlen)
{
    const struct engine *e = f->engine;
    uint32_t n = e->max_rows < e->max_tokens ? e->max_rows : e->max_tokens;

    f->n_rows = f->n_tokens = f->n_wanted = n < PROBE_ROWS ? n : PROBE_ROWS;
    f->blocks = calloc(PROBE_ROWS, sizeof *f->blocks);
    if (!f->blocks)
        return engine_no_memory("a window", PROBE_ROWS * sizeof *f->blocks, err, errlen);
    f->blocks_cap = PROBE_ROWS;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        f->blocks[i] = i;
        f->wanted[i] = i;
        f->ids[i] = (int32_t)(i % e->n_vocab);
        f->ops[i] = (struct ops_row){ .first = i, .n = 1, .blocks = &f->blocks[i] };
    }
    return 0;
}

static int open_probe(struct stage *st, void *arg, char *err, size_t errlen)
{
    const struct probe *p = arg;
    struct ops_kv_shape shape;
    if (is_last(st))
        return compute_reserve_logits(st, p->f, err, errlen);
    shape = load_kv_shape(st->engine, st->n_layers, PROBE_ROWS);
    return st->engine->ops->kv_new(st->dev, &shape, &st->kv, err, errlen);
}

static int close_probe(struct stage *st, void *arg, char *err, size_t errlen)
{
    (void)arg;
    (void)err;
    (void)errlen;
    st->engine->ops->kv_free(st->kv);
    st->kv = NULL;
    return 0;
}

static int run_probe(struct stage *st, void *arg, char *err, size_t errlen)
{
    struct probe *p = arg;
    uint64_t begin = clock_now_ns(), cpu_begin = clock_process_ns(), took, cpu;
    int r;

    p->queue(st, p->f);
    r = st->engine->ops->sync(st->dev, err, errlen);
    took = (clock_now_ns() - begin) * st->threads;
    cpu = clock_process_ns() - cpu_begin;
    if (st->engine->ops->plain_memory) /* else somebody else computes */
        took = cpu < took ? cpu : took;
    if (r == 0 && took < p->ns)
        p->ns = took;
    return r;
}

static int run_probes(struct probe *probes, size_t n, char *err, size_t errlen)
{
    int r = 0;
    for (uint32_t run = 0; r == 0 && run < PROBE_RUNS; run++)
        for (size_t i = 0; r == 0 && i < n; i++) {
            if (run <= 1)
                probes[i].ns = UINT64_MAX;
            r = stage_call(probes[i].stage, run_probe, &probes[i], err, errlen);
        }
    return r;
}

static uint64_t layer_bytes(const struct model_layer *m)
{
    return m->attn_q->size + m->attn_k->size + m->attn_v->size + m->attn_output->size + m->ffn_gate->size +
           m->ffn_up->size + m->ffn_down->size;
}

/* `layers`: what those of the first stage took. */
static int divide(struct engine *e, const struct load *l, struct balance *b, double layers, char *err,
                  size_t errlen)
{
    double *costs = calloc(e->n_layers, sizeof *costs), bytes = 0;
    uint32_t *threads = calloc(e->n_stages, sizeof *threads), *first = calloc(e->n_stages + 1, sizeof *first);
    int r = costs && threads && first ? 0 : -ENOMEM;

    b->layer = costs;
    b->threads = threads;
    b->n_layers = e->n_layers;
    b->n_stages = e->n_stages;
    b->at_first = e->stages[0].n_layers;
    for (uint32_t i = 0; i < b->at_first; i++)
        bytes += (double)layer_bytes(&l->model->layers[i]);
    for (uint32_t i = 0; r == 0 && i < e->n_layers; i++)
        costs[i] = layers * (double)layer_bytes(&l->model->layers[i]) / bytes;
    for (uint32_t s = 0; r == 0 && s < e->n_stages; s++)
        threads[s] = e->stages[s].threads;
    if (r == 0)
        r = balance_layers(b, first);
    if (r < 0)
        engine_no_memory("dividing the layers", e->n_layers * sizeof *costs * e->n_stages, err, errlen);
    for (uint32_t s = 0; r == 0 && s < e->n_stages; s++) {
        e->stages[s].first = first[s];
        e->stages[s].n_layers = first[s + 1] - first[s];
    }
    free(first);
    free(threads);
    free(costs);
    return r;
}

static int measure_and_divide(struct engine *e, const struct load *l, char *err, size_t errlen)
{
    struct stage *first = &e->stages[0], *last = &e->stages[e->n_stages - 1];
    struct balance b = { 0 };
    struct flight *f;
    int r = flight_take(e, &f, err, errlen);
    if (r < 0)
        return r;
    struct probe probes[] = { { .stage = first, .f = f, .queue = compute_embed },
                              { .stage = first, .f = f, .queue = queue_layers },
                              { .stage = last, .f = f, .queue = compute_head } };
    r = plan_probe(f, err, errlen);
    if (r == 0)
        r = stage_call(first, open_probe, &probes[0], err, errlen);
    if (r == 0)
        r = stage_call(last, open_probe, &probes[0], err, errlen);
    if (r == 0)
        r = run_probes(probes, sizeof probes / sizeof *probes, err, errlen);
    stage_call(first, close_probe, NULL, NULL, 0);
    b.embed = (double)probes[0].ns;
    b.head = (double)probes[2].ns;
    if (r == 0)
        r = divide(e, l, &b, (double)probes[1].ns, err, errlen);
    flight_put_back(f);
    return r;
}

/* ---- all of it ---- */

int load_divide(struct engine *e, struct load *l, char *err, size_t errlen)
{
    const struct model *m = l->model;
    struct stage *first = &e->stages[0], *last = &e->stages[e->n_stages - 1];
    int r;

    for (uint64_t i = 0; i < gguf_n_tensors(l->file); i++)
        l->total += gguf_tensor_at(l->file, i)->size;
    if (first == last || l->sample) {
        for (uint32_t s = 0; s < e->n_stages; s++) {
            e->stages[s].first = s;
            e->stages[s].n_layers = 1;
        }
        last->n_layers = e->n_layers - last->first;
        return 0;
    }
    if (m->output == m->token_embd)
        l->total += m->output->size;
    /* Half an even share: it will have these in any case. */
    first->n_layers = e->n_layers / (2 * e->n_stages) ? e->n_layers / (2 * e->n_stages) : 1;
    r = stage_call(first, load_layers, l, err, errlen);
    if (r == 0)
        r = stage_call(last, load_head, l, err, errlen);
    return r < 0 ? r : measure_and_divide(e, l, err, errlen);
}

static int sync_stage(struct stage *st, void *arg, char *err, size_t errlen)
{
    (void)arg;
    return st->engine->ops->sync(st->dev, err, errlen);
}

int load_rest(struct engine *e, struct load *l, char *err, size_t errlen)
{
    struct stage *last = &e->stages[e->n_stages - 1];
    int r = 0;

    for (uint32_t s = 0; r == 0 && s < e->n_stages; s++)
        r = stage_call(&e->stages[s], load_layers, l, err, errlen);
    if (r == 0 && !last->output)
        r = stage_call(last, load_head, l, err, errlen);
    for (uint32_t s = 0; r == 0 && s < e->n_stages; s++)
        r = stage_call(&e->stages[s], sync_stage, NULL, err, errlen);
    return r;
}

void load_free(struct stage *st)
{
    const struct engine *e = st->engine;
    const struct ops *ops = e->ops;

    for (uint32_t i = st->first; i < st->first + st->n_layers; i++) {
        struct layer_weights *w = &e->layers[i];
        struct ops_weight *matrices[] = { w->q, w->k, w->v, w->o, w->gate, w->up, w->down };
        for (size_t j = 0; j < sizeof matrices / sizeof *matrices; j++)
            ops->weight_free(matrices[j]);
        float *vectors[] = { w->attn_norm, w->ffn_norm, w->q_bias,         w->k_bias,       w->v_bias,
                             w->q_norm,    w->k_norm,   w->attn_post_norm, w->ffn_post_norm };
        for (size_t j = 0; j < sizeof vectors / sizeof *vectors; j++)
            ops->release(st->dev, vectors[j]);
    }
    if (st->output != st->token_embd)
        ops->weight_free(st->output);
    ops->weight_free(st->token_embd);
    ops->release(st->dev, st->output_norm);
}

struct ops_kv_shape load_kv_shape(const struct engine *e, uint32_t layers, uint32_t blocks)
{
    return (struct ops_kv_shape){
        .layers = layers, .heads = e->n_head_kv, .head_dim = e->head_dim, .blocks = blocks, .type = e->kv_type
    };
}
