/* Logits: the real model against reference logits (a float32 forward pass over dequantized weights), fed the
 * reference's own tokens, so that one early difference does not hide the rest. Prints the largest deviations.
 */
#include "engine/engine.h"
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPT 512

struct limits {
    size_t n_compared; /* of the listed logprobs, best first */
    double logprob;    /* the most they may be off */
    double margin;     /* above it the greedy token must be the same */
};

struct found {
    double worst;    /* logprob difference */
    double surprise; /* the largest margin at which greedy differed */
    unsigned greedy, same;
};

static const char *wanted_path(const char *variable, const char *name, char *path, size_t len)
{
    const char *folder = getenv(variable);
    cr_assert_not_null(folder, "%s is not set: it must name the folder of %s", variable, name);
    snprintf(path, len, "%s/%s", folder, name);
    return path;
}

static json_t *load_cases(void)
{
    char path[4096];
    json_error_t error;
    json_t *root =
        json_load_file(wanted_path("BERTH_TEST_DATA", "logits-smollm2.json", path, sizeof path), 0, &error);
    cr_assert_not_null(root, "%s: %s", path, error.text);
    return root;
}

static struct engine *open_engine(bool f32_activations, bool kv_f32)
{
    char path[4096], err[512] = "";
    struct engine_options o = { .isa = "auto",
                                .threads = 2,
                                .activations = f32_activations ? "f32" : "auto",
                                .kv_type = kv_f32 ? "f32" : "f16",
                                .kv_tokens = 1024,
                                .max_rows = 1,
                                .max_tokens = 64 };
    struct gguf *f;
    struct model *m;
    struct engine *e;

    wanted_path("BERTH_MODELS", "SmolLM2-135M-Instruct.Q4_1.gguf", path, sizeof path);
    cr_assert_eq(gguf_open(path, &f, err, sizeof err), 0, "%s (make run brings the model)", err);
    cr_assert_eq(model_read(f, &m, err, sizeof err), 0, "%s", err);
    cr_assert_eq(engine_open(f, m, &o, NULL, NULL, &e, err, sizeof err), 0, "%s", err);
    model_free(m);
    gguf_close(f);
    return e;
}

static const float *feed(struct engine *e, struct session *s, const int32_t *tokens, uint32_t n)
{
    char err[512] = "";
    struct engine_row row = { .session = s };
    for (uint32_t at = 0; at < n; at += row.n) {
        row.tokens = tokens + at;
        row.n = n - at < 64 ? n - at : 64;
        row.n_logits = at + row.n == n;
        cr_assert_eq(engine_window(e, &row, 1, err, sizeof err), 0, "%s", err);
    }
    return row.logits;
}

static double log_sum(const float *logits, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

static int32_t best(const float *logits, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at])
            at = i;
    return (int32_t)at;
}

static void compare_logprobs(const json_t *listed, const float *logits, uint32_t n_vocab,
                             const struct limits *l, struct found *found)
{
    double sum = log_sum(logits, n_vocab);
    cr_assert_geq(json_array_size(listed), l->n_compared);
    for (size_t i = 0; i < l->n_compared; i++) {
        const json_t *pair = json_array_get(listed, i);
        json_int_t token = json_integer_value(json_array_get(pair, 0));
        double d = fabs((double)logits[token] - sum - json_number_value(json_array_get(pair, 1)));
        found->worst = d <= found->worst ? found->worst : d;
    }
}

static void run_case(struct engine *e, const json_t *c, const struct limits *l, struct found *found)
{
    const json_t *ids = json_object_get(c, "ids"), *greedy = json_object_get(c, "greedy"),
                 *margins = json_object_get(c, "margin");
    int32_t tokens[MAX_PROMPT], next;
    size_t n = json_array_size(ids);
    struct engine_info info;
    struct session *s;
    const float *logits;

    engine_info_get(e, &info);
    cr_assert(n > 0 && n <= MAX_PROMPT && json_array_size(greedy) > 0 &&
              json_array_size(greedy) == json_array_size(margins));
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    cr_assert_eq(session_new(e, &s), 0);
    logits = feed(e, s, tokens, (uint32_t)n);
    compare_logprobs(json_object_get(c, "top32_logprobs"), logits, info.n_vocab, l, found);
    for (size_t i = 0; i < json_array_size(greedy); i++) {
        double margin = json_number_value(json_array_get(margins, i));
        next = (int32_t)json_integer_value(json_array_get(greedy, i));
        found->greedy++;
        if (best(logits, info.n_vocab) == next)
            found->same++;
        else
            found->surprise = fmax(found->surprise, margin);
        logits = feed(e, s, &next, 1);
    }
    session_free(s);
}

static void run(const char *mode, bool f32_activations, bool kv_f32, const struct limits *l)
{
    struct engine *e = open_engine(f32_activations, kv_f32);
    json_t *root = load_cases(), *cases = json_object_get(root, "cases");
    struct found found = { 0 };
    struct engine_info info;

    engine_info_get(e, &info);
    cr_assert_geq(json_array_size(cases), 3);
    for (size_t i = 0; i < json_array_size(cases); i++)
        run_case(e, json_array_get(cases, i), l, &found);
    fprintf(stderr,
            "logits, %s on %s: largest logprob difference %.5f (%.3f allowed), greedy equal %u of %u, "
            "largest margin lost %.4f (%.2f allowed)\n",
            mode, info.device, found.worst, l->logprob, found.same, found.greedy, found.surprise, l->margin);
    cr_expect_leq(found.worst, l->logprob);
    cr_expect_leq(found.surprise, l->margin);
    json_decref(root);
    engine_close(e);
}

Test(logits, exact_activations_match_the_reference_closely)
{
    run("f32 activations and KV", true, true, &(struct limits){ 32, 5e-3, 0.02 });
}

Test(logits, integer_activations_match_the_reference_within_their_rounding)
{
    run("int8 activations, f16 KV", false, false, &(struct limits){ 8, 0.35, 0.7 });
}
