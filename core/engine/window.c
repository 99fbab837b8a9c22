/* Window: one step over rows. Everything is checked and every block is taken before the device is asked for
 * anything, and when the device fails the blocks are given back: a window happens wholly or not at all.
 * Thread: the scheduler's. Must not know: why a session exists, what a row is for.
 * Tests: tests/unit/test_engine.c, tests/unit/test_logits.c, tests/property/kv_model.c */
#include "engine/engine_impl.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int check_row(const struct engine *e, const struct engine_row *rows, uint32_t i, char *err,
                     size_t errlen)
{
    const struct engine_row *row = &rows[i];

    if (!row->session || row->session->engine != e || row->n == 0 || !row->tokens || row->n_logits > row->n) {
        snprintf(err, errlen,
                 "row %" PRIu32 ": wants a session of this engine, tokens, and logits for at most them", i);
        return -EINVAL;
    }
    for (uint32_t j = 0; j < i; j++)
        if (rows[j].session == row->session) {
            snprintf(err, errlen, "rows %" PRIu32 " and %" PRIu32 " are of one session", j, i);
            return -EINVAL;
        }
    for (uint32_t t = 0; t < row->n; t++)
        if (row->tokens[t] < 0 || (uint32_t)row->tokens[t] >= e->n_vocab) {
            snprintf(err, errlen, "row %" PRIu32 ": token %" PRId32 " is outside 0..%" PRIu32, i,
                     row->tokens[t], e->n_vocab - 1);
            return -EINVAL;
        }
    return 0;
}

static int check_rows(const struct engine *e, const struct engine_row *rows, uint32_t n_rows, char *err,
                      size_t errlen)
{
    uint64_t tokens = 0;

    if (n_rows < 1 || n_rows > e->max_rows) {
        snprintf(err, errlen, "%" PRIu32 " rows in a window: 1..%" PRIu32 " are possible", n_rows,
                 e->max_rows);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < n_rows; i++) {
        int r = check_row(e, rows, i, err, errlen);
        if (r < 0)
            return r;
        tokens += rows[i].n;
    }
    if (tokens > e->max_tokens) {
        snprintf(err, errlen, "%" PRIu64 " tokens in a window: at most %" PRIu32 " are possible", tokens,
                 e->max_tokens);
        return -EINVAL;
    }
    return 0;
}

/* Room for the logits asked for: few in service (one a row), many in tests that look at every position. */
static int reserve_logits(struct engine *e, const struct engine_row *rows, uint32_t n_rows, char *err,
                          size_t errlen)
{
    struct scratch *s = &e->scratch;
    uint32_t wanted = 0;
    float *memory;

    for (uint32_t i = 0; i < n_rows; i++)
        wanted += rows[i].n_logits;
    if (wanted <= s->logits_rows)
        return 0;
    memory = e->ops->alloc(e->dev, (size_t)wanted * e->n_vocab * sizeof *memory);
    if (!memory) {
        snprintf(err, errlen, "out of memory: logits of %" PRIu32 " tokens want %zu bytes", wanted,
                 (size_t)wanted * e->n_vocab * sizeof *memory);
        return -ENOMEM;
    }
    e->ops->release(e->dev, s->logits);
    s->logits = memory;
    s->logits_rows = wanted;
    return 0;
}

static void undo(struct engine *e, struct engine_row *rows, uint32_t n)
{
    while (n > 0) {
        n--;
        session_shrink_back(rows[n].session, &e->plan.growth[n]);
    }
}

static int grow_all(struct engine *e, struct engine_row *rows, uint32_t n_rows, char *err, size_t errlen)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        int r = session_grow(rows[i].session, rows[i].n, &e->plan.growth[i]);
        if (r < 0) {
            if (r == -ENOSPC)
                snprintf(err, errlen, "the pool of %" PRIu32 " blocks has too few free ones for row %" PRIu32,
                         e->pool.n_blocks, i);
            else
                snprintf(err, errlen, "out of memory for the block list of row %" PRIu32, i);
            undo(e, rows, i);
            return r;
        }
    }
    return 0;
}

/* cos and sin of every token's angles, in double: a float angle at position 100,000 would be off by a
 * hundredth. */
static void plan_rope(struct engine *e, uint32_t token, uint32_t pos)
{
    uint32_t half = e->rope_dims / 2;
    float *c = e->plan.cos + (size_t)token * half, *s = e->plan.sin + (size_t)token * half;

    for (uint32_t i = 0; i < half; i++) {
        double sine, cosine;
        sincos((double)pos * e->rope_freq[i], &sine, &cosine);
        c[i] = (float)cosine;
        s[i] = (float)sine;
    }
}

static void make_plan(struct engine *e, const struct engine_row *rows, uint32_t n_rows)
{
    struct plan *p = &e->plan;

    p->n_tokens = p->n_wanted = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct engine_row *row = &rows[i];
        uint32_t pos = p->growth[i].len;
        p->rows[i] =
            (struct ops_row){ .first = p->n_tokens, .n = row->n, .pos = pos, .blocks = row->session->blocks };
        memcpy(p->ids + p->n_tokens, row->tokens, row->n * sizeof *p->ids);
        for (uint32_t t = 0; t < row->n; t++) {
            plan_rope(e, p->n_tokens, pos + t);
            if (t + row->n_logits >= row->n)
                p->wanted[p->n_wanted++] = p->n_tokens;
            p->n_tokens++;
        }
    }
}

static void queue_attention(struct engine *e, uint32_t layer, uint32_t n_rows)
{
    const struct layer_weights *w = &e->layers[layer];
    struct scratch *s = &e->scratch;
    struct ops_matmul qkv = { .prepare = OPS_RMS_NORM,
                              .x = s->x,
                              .norm = w->attn_norm,
                              .eps = e->rms_eps,
                              .n = e->plan.n_tokens,
                              .count = 3,
                              .weight = { w->q, w->k, w->v },
                              .out = { s->q, s->k, s->v } };
    struct ops_attention attention = { .kv = e->kv,
                                       .layer = layer,
                                       .rows = e->plan.rows,
                                       .n_rows = n_rows,
                                       .n_tokens = e->plan.n_tokens,
                                       .heads = e->n_head,
                                       .q = s->q,
                                       .k = s->k,
                                       .v = s->v,
                                       .out = s->att,
                                       .scale = (float)(1 / sqrt((double)e->head_dim)),
                                       .rope_cos = s->cos,
                                       .rope_sin = s->sin,
                                       .rope_dims = e->rope_dims,
                                       .rope_halves = e->rope_halves };
    e->ops->matmul(e->dev, &qkv);
    e->ops->attention(e->dev, &attention);
}

/* The rest of a layer for n tokens: x += o(att), x += down(swiglu(gate, up)). */
static void queue_feed_forward(struct engine *e, uint32_t layer, const float *att, float *x, uint32_t n)
{
    const struct layer_weights *w = &e->layers[layer];
    struct scratch *s = &e->scratch;
    struct ops_matmul o = { .x = att, .n = n, .count = 1, .weight = { w->o }, .out = { x }, .add = true };
    struct ops_matmul gate_up = { .prepare = OPS_RMS_NORM,
                                  .x = x,
                                  .norm = w->ffn_norm,
                                  .eps = e->rms_eps,
                                  .n = n,
                                  .count = 2,
                                  .weight = { w->gate, w->up },
                                  .out = { s->gate, s->up } };
    struct ops_matmul down = { .prepare = OPS_SWIGLU,
                               .x = s->gate,
                               .x2 = s->up,
                               .n = n,
                               .count = 1,
                               .weight = { w->down },
                               .out = { x },
                               .add = true };
    e->ops->matmul(e->dev, &o);
    e->ops->matmul(e->dev, &gate_up);
    e->ops->matmul(e->dev, &down);
}

static void queue_window(struct engine *e, uint32_t n_rows)
{
    const struct ops *ops = e->ops;
    struct scratch *s = &e->scratch;
    const struct plan *p = &e->plan;
    uint32_t head_cols = e->n_head * e->head_dim, last = e->n_layers - 1;
    size_t rope_bytes = (size_t)p->n_tokens * (e->rope_dims / 2) * sizeof(float);
    struct ops_matmul head = { .prepare = OPS_RMS_NORM,
                               .x = s->picked,
                               .norm = e->output_norm,
                               .eps = e->rms_eps,
                               .n = p->n_wanted,
                               .count = 1,
                               .weight = { e->output },
                               .out = { s->logits } };

    ops->upload(e->dev, s->cos, p->cos, rope_bytes);
    ops->upload(e->dev, s->sin, p->sin, rope_bytes);
    ops->embed(e->dev, e->token_embd, p->ids, p->n_tokens, s->x);
    for (uint32_t i = 0; i < last; i++) {
        queue_attention(e, i, n_rows);
        queue_feed_forward(e, i, s->att, s->x, p->n_tokens);
    }
    /* After the last attention nothing looks at other tokens any more: the rest is for those whose logits are
     * wanted, which in a prompt is one. q is not read again and holds their attention. */
    queue_attention(e, last, n_rows);
    if (p->n_wanted == 0)
        return;
    ops->gather(e->dev, s->x, p->wanted, p->n_wanted, e->n_embd, s->picked);
    ops->gather(e->dev, s->att, p->wanted, p->n_wanted, head_cols, s->q);
    queue_feed_forward(e, last, s->q, s->picked, p->n_wanted);
    ops->matmul(e->dev, &head);
}

int engine_window(struct engine *e, struct engine_row *rows, uint32_t n_rows, char *err, size_t errlen)
{
    const float *logits;
    int r = check_rows(e, rows, n_rows, err, errlen);
    if (r == 0)
        r = reserve_logits(e, rows, n_rows, err, errlen);
    if (r == 0)
        r = grow_all(e, rows, n_rows, err, errlen);
    if (r < 0)
        return r;

    make_plan(e, rows, n_rows);
    for (uint32_t i = 0; i < n_rows; i++)
        session_copy_shared(rows[i].session, &e->plan.growth[i]);
    queue_window(e, n_rows);
    r = e->ops->sync(e->dev, err, errlen);
    if (r < 0) {
        undo(e, rows, n_rows);
        return r;
    }

    /* Device memory is plain memory here (ops.h): the caller reads the logits where they were computed. */
    logits = e->scratch.logits;
    for (uint32_t i = 0; i < n_rows; i++) {
        session_grown(rows[i].session, &e->plan.growth[i]);
        rows[i].logits = rows[i].n_logits ? logits : NULL;
        logits += (size_t)rows[i].n_logits * e->n_vocab;
    }
    return 0;
}
