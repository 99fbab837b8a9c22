/* Compute: see compute.h. */
#include "engine/compute.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_last(const struct stage *st)
{
    return st->index + 1 == st->engine->n_stages;
}

static void queue_attention(struct stage *st, const struct flight *f, uint32_t layer)
{
    const struct engine *e = st->engine;
    const struct layer_weights *w = &e->layers[layer];
    struct scratch *s = &st->scratch;
    const uint32_t rope = e->windowed[layer]; /* layers with a window have angles of their own */
    struct ops_matmul qkv = { .prepare = OPS_RMS_NORM,
                              .x = s->x,
                              .norm = w->attn_norm,
                              .eps = e->rms_eps,
                              .n = f->n_tokens,
                              .count = 3,
                              .weight = { w->q, w->k, w->v },
                              .bias = { w->q_bias, w->k_bias, w->v_bias },
                              .out = { s->q, s->k, s->v } };
    struct ops_attention attention = { .kv = st->kv,
                                       .layer = layer - st->first,
                                       .rows = f->ops,
                                       .n_rows = f->n_rows,
                                       .n_tokens = f->n_tokens,
                                       .heads = e->n_head,
                                       .q = s->q,
                                       .k = s->k,
                                       .v = s->v,
                                       .out = s->att,
                                       .scale = e->attn_scale,
                                       .rope_cos = s->cos[rope],
                                       .rope_sin = s->sin[rope],
                                       .rope_dims = e->rope_dims,
                                       .rope_halves = e->rope_halves,
                                       .q_norm = w->q_norm,
                                       .k_norm = w->k_norm,
                                       .norm_eps = e->rms_eps,
                                       .window = e->windowed[layer] ? e->window : 0 };
    e->ops->matmul(st->dev, &qkv);
    e->ops->attention(st->dev, &attention);
}

/* x += weight * prepare(in), or where the model has a post norm x += its norm. */
static void queue_block(struct stage *st, struct ops_matmul m, const float *post_norm, float *x)
{
    const struct engine *e = st->engine;

    m.add = !post_norm;
    m.out[0] = post_norm ? st->scratch.added : x;
    e->ops->matmul(st->dev, &m);
    if (post_norm)
        e->ops->norm_add(st->dev, st->scratch.added, post_norm, e->rms_eps, m.n, e->n_embd, x);
}

/* The rest of a layer for n tokens: x += o(att), x += down(gate(gate, up)). */
static void queue_feed_forward(struct stage *st, uint32_t layer, const float *att, float *x, uint32_t n)
{
    const struct engine *e = st->engine;
    const struct layer_weights *w = &e->layers[layer];
    struct scratch *s = &st->scratch;
    struct ops_matmul o = { .x = att, .n = n, .count = 1, .weight = { w->o } };
    struct ops_matmul gate_up = { .prepare = OPS_RMS_NORM,
                                  .x = x,
                                  .norm = w->ffn_norm,
                                  .eps = e->rms_eps,
                                  .n = n,
                                  .count = 2,
                                  .weight = { w->gate, w->up },
                                  .out = { s->gate, s->up } };
    struct ops_matmul down = {
        .prepare = e->gate, .x = s->gate, .x2 = s->up, .n = n, .count = 1, .weight = { w->down }
    };
    queue_block(st, o, w->attn_post_norm, x);
    e->ops->matmul(st->dev, &gate_up);
    queue_block(st, down, w->ffn_post_norm, x);
}

void compute_embed(struct stage *st, const struct flight *f)
{
    st->engine->ops->embed(st->dev, st->token_embd, f->ids, f->n_tokens, st->engine->embd_scale,
                           st->scratch.x);
}

void compute_layer(struct stage *st, const struct flight *f, uint32_t layer)
{
    queue_attention(st, f, layer);
    queue_feed_forward(st, layer, st->scratch.att, st->scratch.x, f->n_tokens);
}

void compute_head(struct stage *st, const struct flight *f)
{
    struct ops_matmul head = { .prepare = OPS_RMS_NORM,
                               .x = st->scratch.picked,
                               .norm = st->output_norm,
                               .eps = st->engine->rms_eps,
                               .n = f->n_wanted,
                               .count = 1,
                               .weight = { st->output },
                               .out = { f->logits } };
    st->engine->ops->matmul(st->dev, &head);
}

/* After the last attention nothing looks at other tokens any more: the rest is for those whose logits are
 * wanted, which in a prompt is one. q is not read again and holds their attention. */
static void queue_last_layer(struct stage *st, const struct flight *f)
{
    const struct engine *e = st->engine;
    struct scratch *s = &st->scratch;
    uint32_t last = e->n_layers - 1;

    queue_attention(st, f, last);
    if (f->n_wanted == 0)
        return;
    e->ops->gather(st->dev, s->x, f->wanted, f->n_wanted, e->n_embd, s->picked);
    e->ops->gather(st->dev, s->att, f->wanted, f->n_wanted, e->n_head * e->head_dim, s->q);
    queue_feed_forward(st, last, s->q, s->picked, f->n_wanted);
    compute_head(st, f);
}

static void queue_copies(struct stage *st, const struct flight *f)
{
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct flight_row *row = &f->rows[i];
        if (row->copy_tokens)
            st->engine->ops->kv_copy(st->kv, f->blocks[row->at + row->kept], row->copy_from,
                                     row->copy_tokens);
    }
}

int compute_reserve_logits(struct stage *st, struct flight *f, char *err, size_t errlen)
{
    const struct engine *e = st->engine;
    size_t bytes = (size_t)f->n_wanted * e->n_vocab * sizeof *f->logits;
    struct ops_best *best = NULL;
    float *memory, *host = NULL;

    if (f->n_wanted <= f->logits_rows)
        return 0;
    if (!e->ops->plain_memory) {
        host = malloc(bytes);
        best = malloc(f->n_wanted * sizeof *best);
        if (!host || !best) {
            free(host);
            free(best);
            return engine_no_memory("logits of a window", bytes, err, errlen);
        }
    }
    memory = e->ops->alloc(st->dev, bytes);
    if (!memory) {
        free(host);
        free(best);
        return stage_no_memory(st, "logits of a window", bytes, err, errlen);
    }
    e->ops->release(st->dev, f->logits);
    free(f->host_logits);
    free(f->best);
    f->logits = memory;
    f->host_logits = host;
    f->best = best;
    f->logits_rows = f->n_wanted;
    return 0;
}

void compute_fetch_logits(struct stage *st, struct flight *f, uint32_t first, uint32_t n)
{
    const struct engine *e = st->engine;
    const size_t at = (size_t)first * e->n_vocab;

    e->ops->download(st->dev, f->host_logits + at, f->logits + at,
                     (size_t)n * e->n_vocab * sizeof *f->logits);
}

/* What the caller is going to read. */
static void fetch_wanted(struct stage *st, struct flight *f)
{
    const struct engine *e = st->engine;
    uint32_t first = 0;

    if (f->has_best)
        e->ops->best(st->dev, f->logits, f->n_wanted, e->n_vocab, f->scale, f->best);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        if (f->rows[i].n_logits && !f->rows[i].best)
            compute_fetch_logits(st, f, first, f->rows[i].n_logits);
        first += f->rows[i].n_logits;
    }
}

int compute_window(struct stage *st, struct flight *f, char *err, size_t errlen)
{
    const struct engine *e = st->engine;
    struct scratch *s = &st->scratch;
    size_t rope_bytes = (size_t)f->n_tokens * (e->rope_dims / 2) * sizeof(float);
    size_t x_bytes = (size_t)f->n_tokens * e->n_embd * sizeof(float);
    uint32_t end = st->first + st->n_layers - is_last(st);
    int r = is_last(st) ? compute_reserve_logits(st, f, err, errlen) : 0;
    if (r < 0)
        return r;

    queue_copies(st, f);
    for (uint32_t i = 0; i < e->n_ropes; i++) {
        e->ops->upload(st->dev, s->cos[i], f->cos[i], rope_bytes);
        e->ops->upload(st->dev, s->sin[i], f->sin[i], rope_bytes);
    }
    if (st->index == 0)
        compute_embed(st, f);
    else
        e->ops->upload(st->dev, s->x, f->x, x_bytes);
    for (uint32_t i = st->first; i < end; i++)
        compute_layer(st, f, i);
    if (is_last(st))
        queue_last_layer(st, f);
    if (is_last(st) && f->host_logits)
        fetch_wanted(st, f);
    if (!is_last(st))
        e->ops->download(st->dev, f->x, s->x, x_bytes);
    return e->ops->sync(st->dev, err, errlen);
}
