/* Bench, measuring: the engine in this process, with the windows a server would make: prompts in chunks of
 * 512 tokens, one token a stream when generating. Tokens are random and nothing is sampled: their choice
 * costs the same for everybody. One thread drives the engine. Must not know: what is printed. Tests:
 * tests/e2e/test_bench.py */
#include "cmd_bench.h"
#include "cmd_serve_load.h"
#include "util/clock.h"
#include "util/rng.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 512u
#define SEED 1u

struct bench {
    struct bench_settings s;
    struct gguf *file;
    struct model *model;
    struct engine *engine;
    struct engine_info info;
    struct session **sessions; /* one a stream */
    struct engine_row *rows;
    int32_t *tokens; /* random, as many as the longest prompt */
    uint32_t n_tokens;
};

static uint32_t largest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static int open_engine(struct bench *b, char *err, size_t errlen)
{
    const struct bench_settings *s = &b->s;
    uint64_t each = (uint64_t)s->depth + largest(s->prompt, s->generate) + 64;
    uint64_t kv_tokens = s->streams * each;
    uint64_t bytes = kv_tokens * engine_kv_token_bytes(b->model, s->kv_type),
             free_bytes = strcmp(s->device, "cuda") == 0 ? s->device_memory : machine_memory_available();
    struct engine_options o = { .device = s->device,
                                .isa = s->isa,
                                .threads = s->threads,
                                .stages = s->stages,
                                .activations = s->activations,
                                .any_order = s->any_order,
                                .kv_type = s->kv_type,
                                .kv_tokens = (uint32_t)kv_tokens,
                                .max_rows = s->streams,
                                .max_tokens = CHUNK };

    if (kv_tokens > UINT32_MAX / 2 || (free_bytes && bytes > free_bytes)) {
        snprintf(err, errlen,
                 "%" PRIu64 " tokens of keys and values want %" PRIu64 " MB, %" PRIu64 " MB are free",
                 kv_tokens, bytes >> 20, free_bytes >> 20);
        return -ENOMEM;
    }
    return engine_open(b->file, b->model, &o, NULL, NULL, &b->engine, err, errlen);
}

static int out_of_memory(char *err, size_t errlen)
{
    snprintf(err, errlen, "out of memory");
    return -ENOMEM;
}

static int make_streams(struct bench *b, char *err, size_t errlen)
{
    b->n_tokens = largest(largest(b->s.prompt, b->s.generate), largest(b->s.depth, 1));
    b->tokens = calloc(b->n_tokens, sizeof *b->tokens);
    b->sessions = calloc(b->s.streams, sizeof(struct session *));
    b->rows = calloc(b->s.streams, sizeof *b->rows);
    if (!b->tokens || !b->sessions || !b->rows)
        return out_of_memory(err, errlen);
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        uint32_t words[4];
        rng_philox(SEED, i, words);
        b->tokens[i] = (int32_t)(words[0] % b->info.n_vocab);
    }
    for (uint32_t i = 0; i < b->s.streams; i++)
        if (session_new(b->engine, &b->sessions[i]) < 0)
            return out_of_memory(err, errlen);
    return 0;
}

/* Streams that share their windows, and how far they are. */
struct group {
    uint32_t first, n; /* streams */
    uint32_t at;
    struct flight *flight;
};

/* The next window of a group, of the n tokens that each of its streams reads: one each when generating, else
 * CHUNK over all. Logits are computed for each token generated, and for the last one read. */
static int begin(struct bench *b, struct group *g, uint32_t n, bool generate, char *err, size_t errlen)
{
    uint32_t step = generate ? 1 : CHUNK / g->n;
    if (step > n - g->at)
        step = n - g->at;
    for (uint32_t i = 0; i < g->n; i++)
        b->rows[i] = (struct engine_row){ .session = b->sessions[g->first + i],
                                          .tokens = b->tokens + g->at,
                                          .n = step,
                                          .n_logits = generate || g->at + step == n,
                                          .best = true,
                                          .scale = 1 };
    g->at += step;
    return engine_begin(b->engine, b->rows, g->n, &g->flight, err, errlen);
}

static struct group *group_of(struct group *groups, const struct flight *f)
{
    while (groups->flight != f)
        groups++;
    return groups;
}

/* Every stream reads or generates n tokens, each group in one window after the other. */
static int advance(struct bench *b, uint32_t n, bool generate, char *err, size_t errlen)
{
    uint32_t n_groups = b->s.stages < b->s.streams ? b->s.stages : b->s.streams;
    struct group groups[ENGINE_MAX_STAGES] = { 0 };
    struct flight *f;
    int r = 0;

    for (uint32_t i = 0; n && r == 0 && i < n_groups; i++) {
        struct group *g = &groups[i];
        g->first = b->s.streams * i / n_groups;
        g->n = b->s.streams * (i + 1) / n_groups - g->first;
        r = begin(b, g, n, generate, err, errlen);
    }
    /* After a failure those under way are still waited for. */
    while ((f = engine_next_finished(b->engine, true))) {
        struct group *g = group_of(groups, f);
        if (r == 0)
            r = flight_end(f, err, errlen);
        flight_release(f);
        g->flight = NULL;
        if (r == 0 && g->at < n)
            r = begin(b, g, n, generate, err, errlen);
    }
    return r;
}

/* Tokens per second of one part; the streams are back at the depth after it. */
static int measure(struct bench *b, uint32_t n, bool generate, double *ret, char *err, size_t errlen)
{
    uint64_t start = clock_now_ns();
    int r;

    *ret = NAN;
    if (n == 0)
        return 0;
    r = advance(b, n, generate, err, errlen);
    if (r < 0)
        return r;
    *ret = (double)n * b->s.streams * 1e9 / (double)(clock_now_ns() - start);
    for (uint32_t i = 0; i < b->s.streams; i++)
        session_cut(b->sessions[i], b->s.depth);
    return 0;
}

int bench_round(struct bench *b, struct bench_speed *ret_speed, char *err, size_t errlen)
{
    int r = measure(b, b->s.prompt, false, &ret_speed->prefill, err, errlen);
    return r < 0 ? r : measure(b, b->s.generate, true, &ret_speed->decode, err, errlen);
}

int bench_open(const struct bench_settings *s, struct bench **ret_bench, char *err, size_t errlen)
{
    int r;
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        return out_of_memory(err, errlen);

    b->s = *s;
    r = gguf_open(s->model, &b->file, err, errlen);
    if (r == 0)
        r = model_read(b->file, &b->model, err, errlen);
    if (r == 0)
        r = open_engine(b, err, errlen);
    if (r == 0) {
        engine_info_get(b->engine, &b->info);
        r = make_streams(b, err, errlen);
    }
    if (r == 0)
        r = advance(b, s->depth, false, err, errlen);
    if (r < 0) {
        bench_close(b);
        return r;
    }
    *ret_bench = b;
    return 0;
}

void bench_close(struct bench *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; b->sessions && i < b->s.streams; i++)
        session_free(b->sessions[i]);
    free(b->sessions);
    free(b->rows);
    free(b->tokens);
    engine_close(b->engine);
    model_free(b->model);
    gguf_close(b->file);
    free(b);
}

const struct model *bench_model(const struct bench *b)
{
    return b->model;
}

const struct engine_info *bench_engine(const struct bench *b)
{
    return &b->info;
}
