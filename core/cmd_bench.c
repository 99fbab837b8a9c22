/* Bench: `berth bench` measures how fast the engine reads prompts and generates, in this process, and another
 * program beside it when asked: round by round in turns, so that whatever else the machine does falls on
 * both. One thread. Must not know: how anything is computed. Tests: tests/e2e/test_bench.py */
#include "cmd_bench.h"
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_serve_load.h"
#include "config/config.h"
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    const char *config_path, *prompt, *generate, *streams, *depth, *rounds, *vs;
    struct cmd_strings sets, words;
    bool json;
};

/* Every round's speeds, and their other-program counterparts. */
struct results {
    struct bench_speed *ours, *theirs;
    size_t n;
};

static int order_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct bench_spread bench_spread_of(const double *samples, size_t n)
{
    double sorted[BENCH_MAX_ROUNDS];
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, order_doubles);
    return (struct bench_spread){ (sorted[(n - 1) / 2] + sorted[n / 2]) / 2, sorted[0], sorted[n - 1] };
}

static double pick(struct bench_speed s, bool decode)
{
    return decode ? s.decode : s.prefill;
}

enum series { OURS, THEIRS, RATIO };

static void fill_series(const struct results *r, enum series which, bool decode, double *samples)
{
    for (size_t i = 0; i < r->n; i++) {
        double ours = pick(r->ours[i], decode), theirs = r->theirs ? pick(r->theirs[i], decode) : NAN;
        samples[i] = which == OURS ? ours : which == THEIRS ? theirs : ours / theirs;
    }
}

static void print_row(const struct results *r, const char *name, enum series which, bool decode)
{
    double samples[BENCH_MAX_ROUNDS];
    struct bench_spread s;

    fill_series(r, which, decode, samples);
    if (isnan(samples[0]))
        return;
    s = bench_spread_of(samples, r->n);
    if (which == RATIO)
        printf("%-16s %9.2f times  (%.2f .. %.2f, pair by pair)\n", name, s.median, s.min, s.max);
    else
        printf("%-16s %9.1f tok/s  (%.1f .. %.1f)\n", name, s.median, s.min, s.max);
}

static void print_text(const struct bench *b, const struct bench_settings *s, const struct results *r,
                       const char *vs)
{
    const struct model *m = bench_model(b);
    const struct engine_info *info = bench_engine(b);

    printf("model            %s: %s, %.1fM parameters\n", s->model, m->arch, (double)m->n_params / 1e6);
    printf("engine           %s; activations %s, KV %s\n", info->device, info->activations, s->kv_type);
    for (uint32_t i = 0; info->n_stages > 1 && i < info->n_stages; i++)
        printf("stage %-10u %s: layers %u-%u\n", i + 1, info->stages[i].device, info->stages[i].first_layer,
               info->stages[i].first_layer + info->stages[i].n_layers - 1);
    printf("measured         prompt %u, generate %u, streams %u, depth %u, %zu rounds after one to warm up: "
           "median "
           "(least .. most)\n",
           s->prompt, s->generate, s->streams, s->depth, r->n);
    print_row(r, "prefill", OURS, false);
    print_row(r, "decode", OURS, true);
    if (!vs)
        return;
    printf("beside           %s\n", vs);
    print_row(r, "its prefill", THEIRS, false);
    print_row(r, "its decode", THEIRS, true);
    print_row(r, "prefill ratio", RATIO, false);
    print_row(r, "decode ratio", RATIO, true);
}

json_t *bench_series_json(const double *samples, size_t n)
{
    struct bench_spread s = bench_spread_of(samples, n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_real(samples[i]));
    return json_pack("{s:f, s:f, s:f, s:o}", "median", s.median, "min", s.min, "max", s.max, "samples", list);
}

static void put_series(json_t *object, const char *name, const struct results *r, enum series which,
                       bool decode)
{
    double samples[BENCH_MAX_ROUNDS] = { NAN };

    fill_series(r, which, decode, samples);
    if (!isnan(samples[0]))
        json_object_set_new(object, name, bench_series_json(samples, r->n));
}

static int print_json(const struct bench *b, const struct bench_settings *s, const struct results *r,
                      const char *vs)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:s, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:i}", "model", s->model, "architecture",
        bench_model(b)->arch, "parameters", (json_int_t)bench_model(b)->n_params, "device",
        bench_engine(b)->device, "threads", (int)s->threads, "stages", (int)s->stages, "activations",
        bench_engine(b)->activations, "kv_type", s->kv_type, "prompt", (int)s->prompt, "generate",
        (int)s->generate, "streams", (int)s->streams, "depth", (int)s->depth);
    int failed;

    if (!root) {
        cmd_error("the results cannot be written as JSON: a name in them is not UTF-8");
        return 1;
    }
    put_series(root, "prefill", r, OURS, false);
    put_series(root, "decode", r, OURS, true);
    if (vs) {
        json_t *other = json_pack("{s:s}", "command", vs);
        put_series(other, "prefill", r, THEIRS, false);
        put_series(other, "decode", r, THEIRS, true);
        put_series(other, "prefill_ratio", r, RATIO, false);
        put_series(other, "decode_ratio", r, RATIO, true);
        json_object_set_new(root, "vs", other);
    }
    failed = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0;
    putchar('\n');
    json_decref(root);
    return failed ? 1 : 0;
}

/* Ours and theirs in turns, a different one first each time. */
static int run_round(struct bench *b, const struct bench_settings *s, const char *vs, struct results *r,
                     size_t i, char *err, size_t errlen)
{
    int e = 0;
    if (vs && i % 2)
        e = bench_vs_round(vs, s, &r->theirs[i], err, errlen);
    if (e == 0)
        e = bench_round(b, &r->ours[i], err, errlen);
    if (e == 0 && vs && i % 2 == 0)
        e = bench_vs_round(vs, s, &r->theirs[i], err, errlen);
    return e;
}

static int measure(const struct bench_settings *s, const struct request *q)
{
    char err[1024] = "out of memory";
    struct results r = { .n = s->rounds };
    struct bench_speed warm_up;
    struct bench *b = NULL;
    int code = 1, e = -ENOMEM;

    r.ours = calloc(r.n, sizeof *r.ours);
    r.theirs = q->vs ? calloc(r.n, sizeof *r.theirs) : NULL;
    if (!r.ours || (q->vs && !r.theirs))
        goto out;
    e = bench_open(s, &b, err, sizeof err);
    if (e == 0)
        e = bench_round(b, &warm_up, err, sizeof err);
    for (size_t i = 0; e == 0 && i < r.n; i++)
        e = run_round(b, s, q->vs, &r, i, err, sizeof err);
    if (e < 0)
        goto out;
    code = 0;
    if (q->json)
        code = print_json(b, s, &r, q->vs);
    else
        print_text(b, s, &r, q->vs);
out:
    if (e < 0)
        cmd_error("%s", err);
    bench_close(b);
    free(r.ours);
    free(r.theirs);
    return code;
}

int bench_number(const char *name, const char *text, int64_t min, int64_t max, uint32_t otherwise,
                 uint32_t *ret)
{
    int64_t v = otherwise;
    int code = text ? cmd_args_int(name, text, min, max, &v) : -1;
    *ret = (uint32_t)v;
    return code;
}

static int take_numbers(const struct request *q, struct bench_settings *s)
{
    int code = bench_number("--prompt", q->prompt, 0, 1 << 20, 512, &s->prompt);
    if (code < 0)
        code = bench_number("--generate", q->generate, 0, 1 << 20, 128, &s->generate);
    if (code < 0)
        code = bench_number("--streams", q->streams, 1, 256, 1, &s->streams);
    if (code < 0)
        code = bench_number("--depth", q->depth, 0, 1 << 20, 0, &s->depth);
    if (code < 0)
        code = bench_number("--rounds", q->rounds, 1, BENCH_MAX_ROUNDS, 5, &s->rounds);
    if (code < 0 && s->prompt == 0 && s->generate == 0) {
        cmd_error("--prompt 0 and --generate 0 leave nothing to measure");
        code = EXIT_USAGE;
    }
    return code;
}

/* The model named on the command line, else in the config, else the first one in ./models. */
static int choose_model(const struct config *c, const struct request *q, glob_t *found, const char **ret)
{
    *ret = q->words.n ? q->words.items[0] : c->model.path;
    if (!*ret && glob("models/*.gguf", 0, NULL, found) == 0)
        *ret = found->gl_pathv[0];
    if (*ret)
        return 0;
    cmd_error("no model: there is no models/*.gguf here; name one: berth bench FILE.gguf");
    return -ENOENT;
}

static int run(const struct request *q)
{
    struct bench_settings s = { 0 };
    struct config *c;
    glob_t found = { 0 };
    char err[256];
    int code = take_numbers(q, &s);

    if (code < 0 && q->vs && bench_vs_check(q->vs, err, sizeof err) < 0) {
        cmd_error("%s", err);
        code = EXIT_USAGE;
    }
    if (code < 0)
        code = cmd_args_config(q->config_path, &q->sets, &c);
    if (code >= 0)
        return code;

    if (choose_device(c, &s.device, &s.device_memory, err, sizeof err) < 0) {
        cmd_error("%s", err);
        config_free(c);
        return 1;
    }
    s.isa = c->engine.isa;
    s.threads = engine_threads(c);
    s.stages = (uint32_t)c->engine.stages;
    s.activations = c->engine.activations;
    s.any_order = !c->engine.deterministic;
    s.kv_type = c->engine.kv_type;
    code = choose_model(c, q, &found, &s.model) < 0 ? 1 : measure(&s, q);
    globfree(&found);
    config_free(c);
    return code;
}

int cmd_bench(int argc, char **argv)
{
    struct request q = { 0 };
    const struct cmd_option options[] = {
        { .name = "--prompt",
          .value = "N",
          .help = "Tokens of the prompt that is read (512); 0: none.",
          .text = &q.prompt },
        { .name = "--generate",
          .value = "N",
          .help = "Tokens generated (128); 0: none.",
          .text = &q.generate },
        { .name = "--streams",
          .value = "N",
          .help = "Sequences that share each window (1).",
          .text = &q.streams },
        { .name = "--depth",
          .value = "N",
          .help = "Tokens each sequence holds before (0).",
          .text = &q.depth },
        { .name = "--rounds", .value = "N", .help = "Rounds, after one to warm up (5).", .text = &q.rounds },
        { .name = "--vs",
          .value = "COMMAND",
          .help = "Run another program in turns; see above.",
          .text = &q.vs },
        { .name = "--json", .help = "Print JSON.", .flag = &q.json },
        CMD_OPTION_CONFIG(&q.config_path),
        CMD_OPTION_SET(&q.sets),
    };
    const struct cmd_spec spec = {
        .usage = "berth bench [MODEL.gguf] [OPTION]... | berth bench --url URL [OPTION]... | berth bench "
                 "policy [FILE] [OPTION]... | berth bench --compare KEY=A,B [OPTION]...",
        .about =
            "Measures prompt reading (prefill) and generating (decode) in this process: medians over "
            "rounds, with\n"
            "the least and the most. Speeds are over all streams together. With engine.stages the "
            "streams form as "
            "many\n"
            "groups, whose windows are under way at once.\n\n"
            "--vs runs another program round by round in turns and prints both and their ratio, pair by "
            "pair. It\n"
            "is a shell command with {model} {prompt} {generate} {depth} {threads} that prints "
            "llama-bench's JSON:\n"
            "  --vs 'llama-bench -m {model} -p {prompt} -n {generate} \\\n"
            "        -t {threads} -r 1 -o json'\n\n"
            "--url URL measures a running server over HTTP instead, berth or llama-server alike, and "
            "has options\n"
            "of its own: berth bench --url --help. berth bench policy measures decisions: berth bench "
            "policy --help.\n"
            "--windows and --compare run conversations with two values of a setting in turns: berth bench "
            "--compare --help",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_words = 1,
    };
    int code;

    if (argc > 1 && strcmp(argv[1], "policy") == 0)
        return cmd_bench_policy(argc - 1, argv + 1);
    if (cmd_bench_http_wanted(argc, argv))
        return cmd_bench_http(argc, argv);
    if (cmd_bench_windows_wanted(argc, argv))
        return cmd_bench_windows(argc, argv);
    code = cmd_args_parse(&spec, argc, argv, &q.words);
    if (code < 0)
        code = run(&q);
    cmd_strings_free(&q.sets);
    cmd_strings_free(&q.words);
    return code;
}
