/* Bench over HTTP, the report: the rounds as a table, their medians, and two servers' ratios; or all of it as
 * JSON. One thread. Must not know: where the numbers come from. Tests: tests/e2e/test_bench_http.py */
#include "cmd.h"
#include "cmd_bench.h"
#include "cmd_bench_http.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RATIO = BENCH_MAX_TARGETS };

struct report {
    const struct bench_http *b;
    const struct bench_scenario *s;
    double *const *values;
};

/* The values of one metric in all rounds; `which`: a server, or RATIO. Returns whether all are there. */
static bool fill(const struct report *r, size_t which, size_t metric, double *samples)
{
    bool whole = true;
    for (uint32_t i = 0; i < r->b->rounds; i++) {
        size_t at = i * r->s->n_metrics + metric;
        samples[i] = which == RATIO ? r->values[0][at] / r->values[1][at] : r->values[which][at];
        whole = whole && isfinite(samples[i]);
    }
    return whole;
}

static int decimals(const struct bench_metric *m)
{
    return m->unit[0] == '\0' ? 0 : strcmp(m->unit, "s") == 0 ? 2 : 1;
}

static void print_rounds(const struct report *r)
{
    static const char *const names[BENCH_MAX_TARGETS] = { "url", "vs" };
    bool two = r->b->n_targets > 1;

    printf("\n%5s%s", "round", two ? "  server" : "");
    for (size_t k = 0; k < r->s->n_metrics; k++)
        printf(" %9s", r->s->metrics[k].head);
    printf("\n%5s%s", "", two ? "        " : "");
    for (size_t k = 0; k < r->s->n_metrics; k++)
        printf(" %9s", r->s->metrics[k].unit[0] ? r->s->metrics[k].unit : "tokens");
    putchar('\n');
    for (uint32_t i = 0; i < r->b->rounds; i++)
        for (size_t t = 0; t < r->b->n_targets; t++) {
            printf("%5" PRIu32, i + 1);
            if (two)
                printf("  %-6s", names[t]);
            for (size_t k = 0; k < r->s->n_metrics; k++) {
                double v = r->values[t][i * r->s->n_metrics + k];
                if (isfinite(v))
                    printf(" %9.*f", decimals(&r->s->metrics[k]), v);
                else
                    printf(" %9s", "-");
            }
            putchar('\n');
        }
}

static void print_medians(const struct report *r, size_t which)
{
    double samples[BENCH_MAX_ROUNDS];

    for (size_t k = 0; k < r->s->n_metrics; k++) {
        const struct bench_metric *m = &r->s->metrics[k];
        struct bench_spread s;
        int n = decimals(m);
        if ((which == RATIO && !m->compared) || !fill(r, which, k, samples))
            continue;
        s = bench_spread_of(samples, r->b->rounds);
        if (which == RATIO)
            printf("%-20s %9.2f times  (%.2f .. %.2f)\n", m->label, s.median, s.min, s.max);
        else
            printf("%-20s %9.*f %-6s (%.*f .. %.*f)\n", m->label, n, s.median, m->unit, n, s.min, n, s.max);
    }
}

static void print_server(const struct report *r, const char *name, size_t which)
{
    const struct bench_target *t = &r->b->targets[which];
    printf("%-16s %s%s%s\n", name, t->url, t->model[0] ? ", model " : "", t->model);
}

int bench_http_print_text(const struct bench_http *b, const struct bench_scenario *s, double *const *values)
{
    const struct report r = { b, s, values };

    print_server(&r, "server", 0);
    if (b->n_targets > 1)
        print_server(&r, "beside", 1);
    if (s == &bench_scenario_stall)
        printf("measured         a stream while a prompt of about %" PRIu32 " tokens is read", b->prompt);
    else
        printf("measured         %" PRIu32 " %s, prompt about %" PRIu32 " tokens, generate %" PRIu32,
               b->streams, b->streams == 1 ? "stream" : "streams at once", b->prompt, b->generate);
    printf(", %" PRIu32 " round%s after one to warm up\n", b->rounds, b->rounds == 1 ? "" : "s");
    print_rounds(&r);
    for (size_t i = 0; i < b->n_targets; i++) {
        printf("\n%s: median (least .. most)\n", b->targets[i].url);
        print_medians(&r, i);
    }
    if (b->n_targets > 1) {
        printf("\n%s / %s: median of the pairs (least .. most)\n", b->targets[0].url, b->targets[1].url);
        print_medians(&r, RATIO);
    }
    return 0;
}

static void put_metrics(const struct report *r, size_t which, json_t *object)
{
    double samples[BENCH_MAX_ROUNDS];
    char key[64];

    for (size_t k = 0; k < r->s->n_metrics; k++) {
        const struct bench_metric *m = &r->s->metrics[k];
        if ((which == RATIO && !m->compared) || !fill(r, which, k, samples))
            continue;
        snprintf(key, sizeof key, "%s%s", m->key, which == RATIO ? "_ratio" : "");
        json_object_set_new(object, key, bench_series_json(samples, r->b->rounds));
    }
}

int bench_http_print_json(const struct bench_http *b, const struct bench_scenario *s, double *const *values)
{
    const struct report r = { b, s, values };
    const struct bench_target *t = b->targets;
    json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:i}", "scenario", s->name, "url", t[0].url, "model",
                             t[0].model, "generate", (int)b->generate, "rounds", (int)b->rounds);
    int failed;

    if (!root) {
        cmd_error("the results cannot be written as JSON: a name in them is not UTF-8");
        return 1;
    }
    if (s == &bench_scenario_streams)
        json_object_set_new(root, "streams", json_integer((json_int_t)b->streams));
    put_metrics(&r, 0, root);
    if (b->n_targets > 1) {
        json_t *other = json_pack("{s:s, s:s}", "url", t[1].url, "model", t[1].model);
        put_metrics(&r, 1, other);
        put_metrics(&r, RATIO, other);
        json_object_set_new(root, "vs", other);
    }
    failed = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0;
    putchar('\n');
    json_decref(root);
    return failed ? 1 : 0;
}
