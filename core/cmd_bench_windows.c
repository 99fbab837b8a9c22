/* Bench of settings: `berth bench --compare KEY=A,B` runs the same conversations with one setting and with
 * the other, in turns, so that whatever else the machine does falls on both; --windows is short for active
 * against padded windows. One thread. Must not know: how conversations run (cmd_bench_talks.c). Tests:
 * tests/e2e/test_bench_windows.py */
#include "cmd_bench_windows.h"
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_bench.h"
#include "util/log.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARMS 2u
#define WINDOWS "engine.windows=active,padded"

struct request {
    const char *config_path, *compare, *streams, *turns, *prompt, *more, *generate, *rounds;
    struct cmd_strings sets, words;
    bool windows, json;
};

struct comparison {
    struct bench_talks talks;
    uint32_t rounds;
    char setting[ARMS][256]; /* "engine.stages=2" */
    struct config *config[ARMS];
    struct bench_arm *arm[ARMS];
    struct bench_talks_result *results[ARMS]; /* [rounds] */
};

static const struct column {
    const char *key, *label, *unit;
    size_t offset;
} columns[] = {
    { "tokens_per_s", "generated", "tok/s", offsetof(struct bench_talks_result, tokens_per_s) },
    { "first_token_p50_s", "first token p50", "s", offsetof(struct bench_talks_result, first_p50_s) },
    { "first_token_p95_s", "first token p95", "s", offsetof(struct bench_talks_result, first_p95_s) },
    { "read_tokens", "prompt tokens read", "", offsetof(struct bench_talks_result, read_tokens) },
};
#define N_COLUMNS (sizeof columns / sizeof *columns)

static double value_of(const struct comparison *x, uint32_t arm, uint32_t round, const struct column *c)
{
    double v;
    memcpy(&v, (const char *)&x->results[arm][round] + c->offset, sizeof v);
    return v;
}

/* Of one arm; of both, `arm` being ARMS: pair by pair, the second against the first. */
static void fill(const struct comparison *x, uint32_t arm, const struct column *c, double *samples)
{
    for (uint32_t i = 0; i < x->rounds; i++)
        samples[i] = arm < ARMS ? value_of(x, arm, i, c) : value_of(x, 1, i, c) / value_of(x, 0, i, c);
}

static void print_text(const struct comparison *x)
{
    const struct bench_talks *t = &x->talks;
    double samples[BENCH_MAX_ROUNDS];
    printf("engine           %s\n", bench_arm_device(x->arm[0]));
    printf("measured         %u conversations at once, %u turns each: a prompt of %u tokens, %u more each "
           "turn, %u generated; %u rounds in\n                 turns after one to warm up: median (least .. "
           "most)\n",
           t->streams, t->turns, t->prompt, t->more, t->generate, x->rounds);
    for (size_t c = 0; c < N_COLUMNS; c++) {
        printf("%s\n", columns[c].label);
        for (uint32_t arm = 0; arm <= ARMS; arm++) {
            fill(x, arm, &columns[c], samples);
            struct bench_spread s = bench_spread_of(samples, x->rounds);
            printf("  %-28s %9.3f %-5s (%.3f .. %.3f%s)\n", arm < ARMS ? x->setting[arm] : "second / first",
                   s.median, arm < ARMS ? columns[c].unit : "", s.min, s.max,
                   arm < ARMS ? "" : ", pair by pair");
        }
    }
}

static json_t *arm_json(const struct comparison *x, uint32_t arm)
{
    double samples[BENCH_MAX_ROUNDS];
    json_t *o = json_object();
    if (arm < ARMS)
        json_object_set_new(o, "setting", json_string(x->setting[arm]));
    for (size_t c = 0; c < N_COLUMNS; c++) {
        fill(x, arm, &columns[c], samples);
        json_object_set_new(o, columns[c].key, bench_series_json(samples, x->rounds));
    }
    return o;
}

static int print_json(const struct comparison *x)
{
    const struct bench_talks *t = &x->talks;
    json_t *root = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "device",
                             bench_arm_device(x->arm[0]), "streams", (int)t->streams, "turns", (int)t->turns,
                             "prompt", (int)t->prompt, "more", (int)t->more, "generate", (int)t->generate,
                             "first", arm_json(x, 0), "second", arm_json(x, 1), "ratio", arm_json(x, ARMS));
    int failed = !root || json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0;
    putchar('\n');
    json_decref(root);
    return failed ? 1 : 0;
}

/* Round 0 warms up: its values are overwritten by round 1's. Another setting begins each time. */
static int run_rounds(struct comparison *x, char *err, size_t errlen)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < ARMS; i++) {
        x->results[i] = calloc(x->rounds, sizeof *x->results[i]);
        r = x->results[i] ? bench_arm_open(x->config[i], &x->talks, &x->arm[i], err, errlen) : -1;
    }
    for (uint32_t round = 0; r == 0 && round <= x->rounds; round++)
        for (uint32_t i = 0; r == 0 && i < ARMS; i++) {
            uint32_t arm = (i + round) % ARMS;
            r = bench_arm_round(x->arm[arm], round, &x->results[arm][round ? round - 1 : 0], err, errlen);
        }
    return r;
}

static int measure(struct comparison *x, bool json)
{
    char err[1400] = "out of memory";
    int code = 1;
    log_level_set(LOG_WARN);
    if (run_rounds(x, err, sizeof err) < 0)
        cmd_error("%s", err);
    else if (json)
        code = print_json(x);
    else
        print_text(x), code = 0;
    for (uint32_t i = 0; i < ARMS; i++) {
        bench_arm_close(x->arm[i]);
        free(x->results[i]);
    }
    return code;
}

/* KEY=A,B */
static int take_settings(struct comparison *x, const char *compare)
{
    const char *equals = strchr(compare, '='), *comma = equals ? strchr(equals, ',') : NULL;
    if (!comma || equals == compare || comma == equals + 1 || !comma[1] || strchr(comma + 1, ',') ||
        strlen(compare) >= sizeof x->setting[0]) {
        cmd_error("--compare: %s: a key and two values are wanted, e.g. --compare engine.stages=1,2",
                  compare);
        return EXIT_USAGE;
    }
    int key = (int)(equals + 1 - compare);
    snprintf(x->setting[0], sizeof x->setting[0], "%.*s", (int)(comma - compare), compare);
    snprintf(x->setting[1], sizeof x->setting[1], "%.*s%s", key, compare, comma + 1);
    return -1;
}

/* A configuration for each, the compared key as the last override. */
static int load_configs(struct comparison *x, const struct request *q)
{
    size_t n = q->sets.n + (q->words.n > 0);
    const char **sets = calloc(n + 1, sizeof *sets);
    char model[4200];
    int code = sets ? -1 : 1;
    if (sets && q->sets.n)
        memcpy(sets, q->sets.items, q->sets.n * sizeof *sets);
    if (sets && q->words.n) {
        snprintf(model, sizeof model, "model.path=%s", q->words.items[0]);
        sets[q->sets.n] = model;
    }
    for (uint32_t i = 0; code < 0 && i < ARMS; i++) {
        struct cmd_strings with = { .items = sets, .n = n + 1 };
        sets[n] = x->setting[i];
        code = cmd_args_config(q->config_path, &with, &x->config[i]);
    }
    free(sets);
    return code;
}

static int take_numbers(const struct request *q, struct comparison *x)
{
    struct bench_talks *t = &x->talks;
    int code = bench_number("--streams", q->streams, 1, 256, 6, &t->streams);
    if (code < 0)
        code = bench_number("--turns", q->turns, 1, 100, 3, &t->turns);
    if (code < 0)
        code = bench_number("--prompt", q->prompt, 1, 1 << 20, 256, &t->prompt);
    if (code < 0)
        code = bench_number("--more", q->more, 1, 1 << 20, 32, &t->more);
    if (code < 0)
        code = bench_number("--generate", q->generate, 1, 1 << 20, 64, &t->generate);
    if (code < 0)
        code = bench_number("--rounds", q->rounds, 1, BENCH_MAX_ROUNDS, 5, &x->rounds);
    return code;
}

static int run(const struct request *q)
{
    struct comparison x = { 0 };
    int code = take_numbers(q, &x);
    if (code < 0 && q->windows == !!q->compare) {
        cmd_error("one of --windows and --compare is wanted");
        code = EXIT_USAGE;
    }
    if (code < 0)
        code = take_settings(&x, q->windows ? WINDOWS : q->compare);
    if (code < 0)
        code = load_configs(&x, q);
    if (code < 0)
        code = measure(&x, q->json);
    for (uint32_t i = 0; i < ARMS; i++)
        config_free(x.config[i]);
    return code;
}

bool cmd_bench_windows_wanted(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--windows") == 0 || strncmp(argv[i], "--compare", 9) == 0)
            return true;
    return false;
}

static const char about[] =
    "Runs the same conversations with two values of one setting, in turns, in this process and through its "
    "own\n"
    "scheduler: all begin at once, and each sends its next turn when the last one is answered. Each round "
    "starts\n"
    "from an empty server. Printed: tokens generated per second over all, the time to the first token (50th "
    "and\n"
    "95th percentile of all turns), and how much of the prompts had to be read.";

int cmd_bench_windows(int argc, char **argv)
{
    struct request q = { 0 };
    const struct cmd_option options[] = {
        { .name = "--windows", .help = "Short for --compare " WINDOWS ".", .flag = &q.windows },
        { .name = "--compare",
          .value = "KEY=A,B",
          .help = "The setting, and two values of it.",
          .text = &q.compare },
        { .name = "--streams", .value = "N", .help = "Conversations at once (6).", .text = &q.streams },
        { .name = "--turns", .value = "N", .help = "Turns of each (3).", .text = &q.turns },
        { .name = "--prompt", .value = "N", .help = "Tokens of the first prompt (256).", .text = &q.prompt },
        { .name = "--more",
          .value = "N",
          .help = "Tokens that each further turn adds (32).",
          .text = &q.more },
        { .name = "--generate", .value = "N", .help = "Tokens of each answer (64).", .text = &q.generate },
        { .name = "--rounds", .value = "N", .help = "Rounds, after one to warm up (5).", .text = &q.rounds },
        { .name = "--json", .help = "Print JSON.", .flag = &q.json },
        CMD_OPTION_CONFIG(&q.config_path),
        CMD_OPTION_SET(&q.sets),
    };
    const struct cmd_spec spec = {
        .usage =
            "berth bench --windows [MODEL.gguf] [OPTION]... | berth bench --compare KEY=A,B [MODEL.gguf] "
            "[OPTION]...",
        .about = about,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &q.words);
    if (code < 0)
        code = run(&q);
    cmd_strings_free(&q.sets);
    cmd_strings_free(&q.words);
    return code;
}
