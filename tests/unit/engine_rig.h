/* Engine rig: an engine over a tiny model, for tests: opening it in any way, feeding sessions, and a device
 * that fails when it is told to. */
#pragma once
#include "engine/engine_impl.h"
#include "tiny_model.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>

struct rig {
    struct gguf *f;
    struct model *m;
    struct engine *e;
};

static const struct tiny_shape rig_shape = { .layers = 2,
                                             .embd = 64,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 16,
                                             .ff = 96,
                                             .vocab = 99,
                                             .type = 8,
                                             .seed = 3 };

static const struct engine_options rig_options = {
    .isa = "auto", .threads = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512
};

/* A device that works like another one until rig_fail_in syncs, of all stages together, have passed. */
static const struct ops *rig_real;
static atomic_int rig_fail_in; /* 0 or less: never */

static inline int rig_sync(struct ops_dev *d, char *err, size_t errlen)
{
    int r = rig_real->sync(d, err, errlen);
    if (r < 0 || atomic_load(&rig_fail_in) <= 0 || atomic_fetch_sub(&rig_fail_in, 1) != 1)
        return r;
    snprintf(err, errlen, "the device failed, as it was told to");
    return -EIO;
}

static inline int rig_try_open(const struct tiny_shape *s, const struct engine_options *o, struct rig *ret,
                               char *err, size_t errlen)
{
    static struct ops ops;
    struct bytes file = tiny_model(s, NULL);
    int r;
    cr_assert_eq(open_bytes(file.data, file.len, &ret->f, err, errlen), 0, "%s", err);
    free(file.data);
    cr_assert_eq(model_read(ret->f, &ret->m, err, errlen), 0, "%s", err);
    rig_real = strcmp(o->isa, "ref") == 0 ? &ops_ref : &ops_cpu;
    if (o->device && strcmp(o->device, "cuda") == 0)
        rig_real = &ops_cuda;
    ops = *rig_real;
    ops.sync = rig_sync;
    r = engine_open_on(&ops, ret->f, ret->m, o, NULL, NULL, &ret->e, err, errlen);
    if (r < 0) {
        model_free(ret->m);
        gguf_close(ret->f);
        *ret = (struct rig){ 0 };
    }
    return r;
}

static inline struct rig rig_open(const struct tiny_shape *s, const struct engine_options *o)
{
    char err[512] = "";
    struct rig rig;
    cr_assert_eq(rig_try_open(s, o, &rig, err, sizeof err), 0, "%s", err);
    return rig;
}

static inline void rig_close(struct rig *r)
{
    engine_close(r->e);
    model_free(r->m);
    gguf_close(r->f);
}

static inline struct session *rig_session(struct rig *r)
{
    struct session *s;
    cr_assert_eq(session_new(r->e, &s), 0);
    return s;
}

static inline uint32_t rig_blocks_used(const struct rig *r)
{
    struct engine_info info;
    engine_info_get(r->e, &info);
    return info.blocks_used;
}

/* Appends n tokens in chunks; *logits (may be NULL) gets every token's. */
static inline void rig_feed(struct rig *r, struct session *s, const int32_t *tokens, uint32_t n,
                            uint32_t chunk, float *logits)
{
    char err[512] = "";
    for (uint32_t at = 0; at < n; at += chunk) {
        struct engine_row row = { .session = s, .tokens = tokens + at, .n = n - at < chunk ? n - at : chunk };
        row.n_logits = logits ? row.n : 0;
        cr_assert_eq(engine_window(r->e, &row, 1, err, sizeof err), 0, "%s", err);
        if (logits)
            memcpy(logits + (size_t)at * r->m->n_vocab, row.logits,
                   (size_t)row.n * r->m->n_vocab * sizeof *logits);
    }
}

/* Every token's logits of a sequence that is alone, read in one go (or as large pieces as a window takes). To
 * be freed. */
static inline float *rig_alone(struct rig *r, const int32_t *tokens, uint32_t n)
{
    float *logits = malloc((size_t)n * r->m->n_vocab * sizeof *logits);
    struct session *s = rig_session(r);
    cr_assert_not_null(logits);
    rig_feed(r, s, tokens, n, r->e->max_tokens, logits);
    session_free(s);
    return logits;
}

static inline int32_t *rig_tokens(uint32_t n, uint32_t n_vocab, uint64_t seed)
{
    int32_t *tokens = malloc(n * sizeof *tokens);
    cr_assert_not_null(tokens);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)random_below(&seed, n_vocab);
    return tokens;
}
