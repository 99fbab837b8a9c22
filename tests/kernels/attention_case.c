/* Attention case: see attention_case.h. */
#include "attention_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* About normal, from a position in the stream of a seed. */
static float noise(uint32_t seed, uint32_t kind, uint32_t position, uint32_t i)
{
    uint32_t h = mix(mix(mix(seed * 4 + kind) + position) + i);
    uint32_t g = mix(h + 0x9e3779b9u);
    float sum = (float)(h & 0xffff) + (float)(h >> 16) + (float)(g & 0xffff) + (float)(g >> 16);
    return (sum / 65536.0f - 2.0f) * 1.7f;
}

bool world_open(struct world *w, const struct shape *shape, const char *isa, uint32_t threads,
                uint32_t layers, uint32_t blocks)
{
    char err[200];
    const bool cuda = isa && !strcmp(isa, "cuda");
    *w = (struct world){ .ops = cuda  ? &ops_cuda
                                : isa ? &ops_cpu
                                      : &ops_ref,
                         .shape = *shape,
                         .layers = layers,
                         .blocks = blocks };
    struct ops_open how = { .isa = isa, .threads = threads };
    if (!w->ops || w->ops->open(&how, &w->dev, err, sizeof err) < 0)
        return false;
    struct ops_kv_shape kv = { .layers = layers,
                               .heads = shape->kv_heads,
                               .head_dim = shape->head_dim,
                               .blocks = blocks,
                               .type = shape->type };
    if (w->ops->kv_new(w->dev, &kv, &w->kv, err, sizeof err) < 0)
        abort();
    world_spoil(w);
    return true;
}

void world_spoil(struct world *w)
{
    const size_t cells = 2 * (size_t)w->layers * w->shape.kv_heads * w->shape.head_dim * OPS_BLOCK_TOKENS;
    void *nan = malloc(cells * sizeof(float));
    if (!nan)
        abort();
    memset(nan, 0xff, cells * sizeof(float));
    for (uint32_t b = 0; b < w->blocks; b++)
        w->ops->kv_put(w->kv, b, OPS_BLOCK_TOKENS, nan);
    free(nan);
    if (w->ops == &ops_cpu) /* what pads a head, too */
        memset(w->kv->base, 0xff, w->kv->mapped);
}

void world_close(struct world *w)
{
    w->ops->kv_free(w->kv);
    w->ops->close(w->dev);
}

uint32_t world_heads(const struct world *w)
{
    return w->shape.kv_heads * w->shape.ratio;
}

void sequence_init(struct sequence *s, const struct world *w, uint32_t seed, uint32_t positions)
{
    const size_t kv = (size_t)positions * w->shape.kv_heads * w->shape.head_dim;
    *s = (struct sequence){ .seed = seed };
    s->out = calloc(kv * w->shape.ratio, sizeof(float));
    s->q = calloc(kv * w->shape.ratio, sizeof(float));
    s->k = calloc(kv, sizeof(float));
    if (!s->out || !s->q || !s->k)
        abort();
}

void sequence_free(struct sequence *s)
{
    free(s->out);
    free(s->q);
    free(s->k);
}

struct window {
    float *q, *k, *v, *out, *cosine, *sine;
    struct ops_row *rows;
};

static void window_fill(const struct world *w, struct window *x, const struct sequence *s,
                        const struct ops_row *row, uint32_t layer)
{
    const uint32_t kv = w->shape.kv_heads * w->shape.head_dim, all = kv * w->shape.ratio;
    const uint32_t pairs = w->shape.rope_dims / 2, seed = s->seed + 1000 * layer;
    for (uint32_t t = 0; t < row->n; t++) {
        const uint32_t pos = row->pos + t, token = row->first + t;
        for (uint32_t i = 0; i < all; i++)
            x->q[(size_t)token * all + i] = noise(seed, 0, pos, i) * w->shape.loud;
        for (uint32_t i = 0; i < kv; i++) {
            const bool broken = (s->nan_from && pos >= s->nan_from) || pos < s->nan_to;
            x->k[(size_t)token * kv + i] = broken ? NAN : noise(seed, 1, pos, i);
            x->v[(size_t)token * kv + i] = broken ? NAN : noise(seed, 2, pos, i);
        }
        for (uint32_t i = 0; i < pairs; i++) {
            double angle = pos * pow(10000.0, -(double)i / pairs);
            x->cosine[(size_t)token * pairs + i] = (float)cos(angle);
            x->sine[(size_t)token * pairs + i] = (float)sin(angle);
        }
    }
}

static float *floats(size_t n)
{
    float *p = malloc((n + 1) * sizeof *p);
    if (!p)
        abort();
    memset(p, 0xff, (n + 1) * sizeof *p);
    return p;
}

/* Device memory with n floats. */
static float *sent(struct world *w, const float *from, size_t n)
{
    float *to = w->ops->alloc(w->dev, (n + 1) * sizeof *to);
    if (!to)
        abort();
    w->ops->upload(w->dev, to, from, n * sizeof *to);
    return to;
}

/* And back, over what was sent. */
static void received(struct world *w, float *memory, float *to, size_t n)
{
    w->ops->download(w->dev, to, memory, n * sizeof *to);
    w->ops->release(w->dev, memory);
}

static void attend(struct world *w, struct window *x, uint32_t layer, uint32_t count, uint32_t tokens)
{
    const size_t kv = (size_t)tokens * w->shape.kv_heads * w->shape.head_dim, all = kv * w->shape.ratio;
    const size_t pairs = (size_t)tokens * w->shape.rope_dims / 2;
    const uint32_t dim = w->shape.head_dim;
    char err[200] = "";
    float norms[2][SHAPE_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < 2 * dim; i++)
        norms[i / dim][i % dim] = 1 + 0.3f * noise(7, 3, layer, i);
    struct ops_attention a = { .kv = w->kv,
                               .layer = layer,
                               .rows = x->rows,
                               .n_rows = count,
                               .n_tokens = tokens,
                               .heads = world_heads(w),
                               .q = sent(w, x->q, all),
                               .k = sent(w, x->k, kv),
                               .v = sent(w, x->v, kv),
                               .out = sent(w, x->out, all),
                               .scale = 1.0f / sqrtf((float)w->shape.head_dim),
                               .rope_cos = sent(w, x->cosine, pairs),
                               .rope_sin = sent(w, x->sine, pairs),
                               .rope_dims = w->shape.rope_dims,
                               .rope_halves = w->shape.halves,
                               .q_norm = w->shape.normed ? sent(w, norms[0], dim) : NULL,
                               .k_norm = w->shape.normed ? sent(w, norms[1], dim) : NULL,
                               .norm_eps = 1e-2f, /* large enough to be missed */
                               .window = w->shape.window };
    w->ops->attention(w->dev, &a);
    received(w, a.q, x->q, all);
    received(w, a.k, x->k, kv);
    received(w, a.out, x->out, all);
    w->ops->release(w->dev, (float *)(uintptr_t)a.v);
    w->ops->release(w->dev, (float *)(uintptr_t)a.rope_cos);
    w->ops->release(w->dev, (float *)(uintptr_t)a.rope_sin);
    w->ops->release(w->dev, (float *)(uintptr_t)a.q_norm);
    w->ops->release(w->dev, (float *)(uintptr_t)a.k_norm);
    if (w->ops->sync(w->dev, err, sizeof err) < 0) {
        fprintf(stderr, "%s\n", err);
        abort();
    }
}

static void window_run(struct world *w, struct window *x, struct sequence *const *sequences, uint32_t count,
                       uint32_t tokens)
{
    const uint32_t kv = w->shape.kv_heads * w->shape.head_dim, all = kv * w->shape.ratio;
    for (uint32_t layer = 0; layer < w->layers; layer++) {
        for (uint32_t i = 0; i < count; i++)
            window_fill(w, x, sequences[i], &x->rows[i], layer);
        attend(w, x, layer, count, tokens);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ops_row *r = &x->rows[i];
        struct sequence *s = sequences[i];
        memcpy(s->out + (size_t)r->pos * all, x->out + (size_t)r->first * all, sizeof(float) * r->n * all);
        memcpy(s->q + (size_t)r->pos * all, x->q + (size_t)r->first * all, sizeof(float) * r->n * all);
        memcpy(s->k + (size_t)r->pos * kv, x->k + (size_t)r->first * kv, sizeof(float) * r->n * kv);
        s->n += r->n;
    }
}

void feed(struct world *w, struct sequence *const *sequences, const uint32_t *n, uint32_t count)
{
    const size_t kv = (size_t)w->shape.kv_heads * w->shape.head_dim, all = kv * w->shape.ratio;
    struct window x = { .rows = calloc(count, sizeof *x.rows) };
    uint32_t tokens = 0;
    if (!x.rows)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        x.rows[i] = (struct ops_row){
            .first = tokens, .n = n[i], .pos = sequences[i]->n, .blocks = sequences[i]->blocks
        };
        tokens += n[i];
    }
    x.q = floats(tokens * all);
    x.out = floats(tokens * all);
    x.k = floats(tokens * kv);
    x.v = floats(tokens * kv);
    x.cosine = floats((size_t)tokens * w->shape.rope_dims / 2);
    x.sine = floats((size_t)tokens * w->shape.rope_dims / 2);
    window_run(w, &x, sequences, count, tokens);
    float *all_memory[] = { x.q, x.out, x.k, x.v, x.cosine, x.sine };
    for (int i = 0; i < 6; i++)
        free(all_memory[i]);
    free(x.rows);
}

void feed_alone(struct world *w, struct sequence *s, uint32_t positions, uint32_t chunk)
{
    while (s->n < positions) {
        uint32_t n = positions - s->n < chunk ? positions - s->n : chunk;
        feed(w, &s, &n, 1);
    }
}
