/* Architectures: what each computes is the same bits however a prompt is cut up, alone or among others, on
 * any number of threads and stages, from a reused prefix; and agrees with the reference device. What they
 * should compute at all: tests/e2e/test_architectures.py. */
#include "engine_rig.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define LONG 200u /* tokens: over three block borders */

/* Windows within a block, over its border, and of all there is. */
static const struct tiny_shape shapes[] = {
    { .arch = "llama",
      .biased = true,
      .factors = true,
      .scaling = "yarn",
      .layers = 2,
      .embd = 64,
      .heads = 8,
      .kv_heads = 2,
      .head_dim = 20,
      .ff = 96,
      .vocab = 61,
      .type = 8,
      .seed = 1 },
    { .arch = "llama",
      .scaling = "linear",
      .layers = 2,
      .embd = 64,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 16,
      .ff = 32,
      .vocab = 61,
      .type = 3,
      .seed = 2 },
    { .arch = "qwen2",
      .layers = 2,
      .embd = 64,
      .heads = 7,
      .kv_heads = 1,
      .head_dim = 32,
      .ff = 96,
      .vocab = 70,
      .type = 2,
      .seed = 3 },
    { .arch = "qwen3",
      .layers = 2,
      .embd = 96,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 40,
      .ff = 64,
      .vocab = 61,
      .type = 8,
      .untied = true,
      .seed = 4 },
    { .arch = "gemma3",
      .window = 40,
      .layers = 7,
      .embd = 64,
      .heads = 3,
      .kv_heads = 1,
      .head_dim = 32,
      .ff = 96,
      .vocab = 99,
      .type = 8,
      .seed = 5 },
    { .arch = "gemma3",
      .window = 70,
      .scaling = "linear",
      .layers = 6,
      .embd = 32,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 8,
      .ff = 64,
      .vocab = 61,
      .type = 1,
      .seed = 6 },
};

static const struct engine_options usual = {
    .isa = "auto", .threads = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512
};

static void expect_same(const struct rig *r, const float *got, const float *wanted, uint32_t from, uint32_t n,
                        const char *what)
{
    size_t row = r->m->n_vocab;
    for (size_t i = from * row; i < (from + (size_t)n) * row; i++)
        if (memcmp(&got[i], &wanted[i], sizeof *got) != 0) {
            cr_expect(false, "%s, %s: token %zu, logit %zu is %a, not %a", r->m->arch, what, i / row, i % row,
                      (double)got[i], (double)wanted[i]);
            return;
        }
}

static float *logits_room(const struct rig *r)
{
    float *logits = malloc((size_t)LONG * r->m->n_vocab * sizeof *logits);
    cr_assert_not_null(logits);
    return logits;
}

static void check_chunks(struct rig *r, const int32_t *tokens, const float *wanted)
{
    static const uint32_t chunks[] = { 1, 7, 64, 130 };
    float *logits = logits_room(r);
    for (size_t i = 0; i < LENGTH(chunks); i++) {
        struct session *s = rig_session(r);
        rig_feed(r, s, tokens, LONG, chunks[i], logits);
        expect_same(r, logits, wanted, 0, LONG, "in chunks");
        session_free(s);
    }
    free(logits);
}

/* A fork of the first 100 tokens continues as the whole does. */
static void check_prefix(struct rig *r, const int32_t *tokens, const float *wanted)
{
    float *logits = logits_room(r);
    struct session *whole = rig_session(r), *fork = rig_session(r);
    rig_feed(r, whole, tokens, LONG, 512, NULL);
    cr_assert_eq(session_fork(fork, whole, 100), 0);
    rig_feed(r, fork, tokens + 100, LONG - 100, 33, logits + (size_t)100 * r->m->n_vocab);
    expect_same(r, logits, wanted, 100, LONG - 100, "after a reused prefix");
    session_cut(whole, 130);
    rig_feed(r, whole, tokens + 130, LONG - 130, 512, logits + (size_t)130 * r->m->n_vocab);
    expect_same(r, logits, wanted, 130, LONG - 130, "after a cut");
    session_free(whole);
    session_free(fork);
    free(logits);
}

/* Among seven others of other lengths, token by token; the others read something else. */
static void check_window(struct rig *r, const int32_t *tokens, const float *wanted)
{
    enum { N = 8 };
    char err[512] = "";
    float *logits = logits_room(r);
    struct session *s[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = rig_session(r);
        rig_feed(r, s[i], i ? tokens + 3 * i : tokens, i ? 20 * i : 150, 512, NULL);
    }
    for (uint32_t at = 150; at < LONG; at++) {
        struct engine_row rows[N];
        for (uint32_t i = 0; i < N; i++)
            rows[i] = (struct engine_row){ .session = s[i], .tokens = tokens + (i ? at % 90 : at), .n = 1 };
        rows[0].n_logits = 1;
        cr_assert_eq(engine_window(r->e, rows, N, err, sizeof err), 0, "%s", err);
        memcpy(logits + (size_t)at * r->m->n_vocab, rows[0].logits, r->m->n_vocab * sizeof *logits);
    }
    expect_same(r, logits, wanted, 150, LONG - 150, "in a window of 8");
    for (uint32_t i = 0; i < N; i++)
        session_free(s[i]);
    free(logits);
}

/* Other threads, stages and instruction sets. */
static void check_engines(const struct tiny_shape *s, const int32_t *tokens, const float *wanted)
{
    const struct {
        const char *isa;
        uint32_t threads, stages;
    } others[] = { { "auto", 1, 1 }, { "auto", 3, 2 }, { "avx2", 2, 1 } };
    for (size_t i = 0; i < LENGTH(others); i++) {
        struct engine_options o = usual;
        struct rig r;
        char err[512] = "", what[64];
        o.isa = others[i].isa;
        o.threads = others[i].threads;
        o.stages = others[i].stages;
        int code = rig_try_open(s, &o, &r, err, sizeof err);
        cr_assert(code == 0 || (i == 2 && code == -ENOTSUP), "%s", err);
        if (code < 0)
            continue;
        float *logits = rig_alone(&r, tokens, LONG);
        snprintf(what, sizeof what, "%s, %u threads, %u stages", o.isa, o.threads, o.stages);
        expect_same(&r, logits, wanted, 0, LONG, what);
        free(logits);
        rig_close(&r);
    }
}

static bool is_portable(const struct rig *r)
{
    struct engine_info info;
    engine_info_get(r->e, &info);
    return strstr(info.device, "portable") != NULL;
}

Test(archs, bits_depend_on_position_and_tokens_alone)
{
    for (size_t i = 0; i < LENGTH(shapes); i++) {
        struct rig r = rig_open(&shapes[i], &usual);
        int32_t *tokens = rig_tokens(LONG, shapes[i].vocab, 9);
        float *wanted = rig_alone(&r, tokens, LONG);
        check_chunks(&r, tokens, wanted);
        check_prefix(&r, tokens, wanted);
        check_window(&r, tokens, wanted);
        if (!is_portable(&r))
            check_engines(&shapes[i], tokens, wanted);
        free(wanted);
        free(tokens);
        rig_close(&r);
    }
}

Test(archs, only_gemma_asks_for_activations_of_16_bits)
{
    for (size_t i = 0; i < LENGTH(shapes); i++) {
        struct engine_info info;
        struct rig r = rig_open(&shapes[i], &usual);
        engine_info_get(r.e, &info);
        cr_expect_str_eq(info.activations, strcmp(r.m->arch, "gemma3") ? "int8" : "int16", "%s", r.m->arch);
        rig_close(&r);
    }
}

/* Float activations and float KV on every instruction set, against double sums. */
Test(archs, exact_mode_agrees_with_the_reference)
{
    static const char *const isas[] = { "auto", "avx2", "portable" };
    for (size_t i = 0; i < LENGTH(shapes); i++) {
        struct engine_options o = usual;
        struct rig r;
        o.isa = "ref";
        o.activations = "f32";
        o.kv_type = "f32";
        r = rig_open(&shapes[i], &o);
        int32_t *tokens = rig_tokens(LONG, shapes[i].vocab, 9);
        float *wanted = rig_alone(&r, tokens, LONG);
        rig_close(&r);
        for (size_t k = 0; k < LENGTH(isas); k++) {
            char err[512] = "";
            double worst = 0;
            o.isa = isas[k];
            int code = rig_try_open(&shapes[i], &o, &r, err, sizeof err);
            cr_assert(code == 0 || (k == 1 && code == -ENOTSUP), "%s", err);
            if (code < 0)
                continue;
            float *got = rig_alone(&r, tokens, LONG);
            for (size_t l = 0; l < (size_t)LONG * shapes[i].vocab; l++)
                worst = fmax(worst, fabs((double)got[l] - wanted[l]));
            cr_expect_leq(worst, 1e-4, "%s on %s: off by %g", r.m->arch, isas[k], worst);
            free(got);
            rig_close(&r);
        }
        free(wanted);
        free(tokens);
    }
}
