/* Bench over HTTP: `berth bench --url` measures a server that runs, berth or any other that speaks OpenAI's
 * completions, as a client sees it; with --vs-url two of them in turns. One thread. Must not know: how
 * anything is measured. Tests: tests/e2e/test_bench_http.py */
#include "cmd_bench_http.h"
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_bench.h"
#include "util/rng.h"
#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEY 1024u
#define MAX_TOKENS (1 << 20)
/* The first stream of a stall must go on for a while before and while the second prompt is read. */
#define STALL_MIN_GENERATE 16

struct request {
    const char *url, *vs_url, *streams, *prompt, *generate, *rounds, *timeout, *model, *key_file;
    bool stall, json;
};

bool cmd_bench_http_wanted(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--url") == 0 || strncmp(argv[i], "--url=", 6) == 0 ||
            strncmp(argv[i], "--vs-url", 8) == 0)
            return true;
    return false;
}

static int take_numbers(const struct request *q, struct bench_http *b, uint32_t *timeout_s)
{
    int code = bench_number("--streams", q->streams, 1, 256, 1, &b->streams);
    if (code < 0 && q->stall && q->streams) {
        cmd_error("--stall has two requests of its own; --streams does not go with it");
        code = EXIT_USAGE;
    }
    if (code < 0)
        code = bench_number("--prompt-tokens", q->prompt, 1, MAX_TOKENS, q->stall ? 6000 : 64, &b->prompt);
    if (code < 0)
        code = bench_number("--generate", q->generate, q->stall ? STALL_MIN_GENERATE : 1, MAX_TOKENS,
                            q->stall ? 1024 : 128, &b->generate);
    if (code < 0)
        code = bench_number("--rounds", q->rounds, 1, BENCH_MAX_ROUNDS, 5, &b->rounds);
    if (code < 0)
        code = bench_number("--timeout", q->timeout, 1, 86400, 600, timeout_s);
    return code;
}

static int take_targets(const struct request *q, struct bench_http *b, uint32_t timeout_s)
{
    const char *const urls[BENCH_MAX_TARGETS] = { q->url, q->vs_url };
    char err[512];

    if (!q->url) {
        cmd_error("--vs-url wants --url too: the server that is compared with it");
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < BENCH_MAX_TARGETS && urls[i]; i++) {
        if (bench_target_parse(urls[i], &b->targets[i], err, sizeof err) < 0) {
            cmd_error("%s: %s", i ? "--vs-url" : "--url", err);
            return EXIT_USAGE;
        }
        b->targets[i].timeout_s = timeout_s;
        b->n_targets++;
    }
    return -1;
}

/* The first line of a file, without blanks around it. */
static int read_key(const char *path, char *key, size_t size)
{
    FILE *f = fopen(path, "re");
    size_t len;

    if (!f) {
        cmd_error("--key-file: %s: %s", path, strerror(errno));
        return 1;
    }
    len = fread(key, 1, size - 1, f);
    fclose(f);
    key[len] = '\0';
    len = strcspn(key, "\r\n");
    while (len && (key[len - 1] == ' ' || key[len - 1] == '\t'))
        len--;
    for (size_t i = 0; i < len; i++)
        if (key[i] <= ' ' || key[i] > '~') {
            cmd_error("--key-file: %s: byte %zu is no part of a key (printable ASCII)", path, i + 1);
            return 1;
        }
    if (len == 0 || len == size - 1) {
        cmd_error("--key-file: %s: its first line is no key of 1..%zu characters", path, size - 2);
        return 1;
    }
    key[len] = '\0';
    return -1;
}

/* Round 0 warms up: its values are overwritten by round 1's. Of two servers another one begins each time. */
static int run_rounds(struct bench_http *b, const struct bench_scenario *s, double *const *values, char *err,
                      size_t errlen)
{
    int r = bench_http_fit_words(b, err, errlen);
    for (uint64_t round = 0; r == 0 && round <= b->rounds; round++)
        for (size_t i = 0; r == 0 && i < b->n_targets; i++) {
            size_t which = (i + round) % b->n_targets;
            r = s->round(b, &b->targets[which], round + 1,
                         values[which] + (round ? round - 1 : 0) * s->n_metrics, err, errlen);
        }
    return r;
}

static int measure(const struct request *q, struct bench_http *b)
{
    const struct bench_scenario *s = q->stall ? &bench_scenario_stall : &bench_scenario_streams;
    double *values[BENCH_MAX_TARGETS] = { NULL };
    char err[2048] = "out of memory";
    int code = 1, r = 0;

    signal(SIGPIPE, SIG_IGN);
    b->base = event_base_new();
    for (size_t i = 0; i < b->n_targets; i++) {
        values[i] = calloc((size_t)b->rounds * s->n_metrics, sizeof **values);
        if (!values[i])
            r = -ENOMEM;
    }
    if (!b->base)
        r = -ENOMEM;
    if (r == 0)
        r = run_rounds(b, s, values, err, sizeof err);
    if (r < 0)
        cmd_error("%s", err);
    else if (q->json)
        code = bench_http_print_json(b, s, values);
    else
        code = bench_http_print_text(b, s, values);
    for (size_t i = 0; i < b->n_targets; i++)
        free(values[i]);
    if (b->base)
        event_base_free(b->base);
    return code;
}

static int run(const struct request *q)
{
    struct bench_http b = { .model = q->model, .seed = rng_system_seed() };
    char key[MAX_KEY + 2];
    uint32_t timeout_s = 0;
    int code = take_numbers(q, &b, &timeout_s);

    if (code < 0)
        code = take_targets(q, &b, timeout_s);
    if (code < 0 && q->key_file) {
        code = read_key(q->key_file, key, sizeof key);
        for (size_t i = 0; i < b.n_targets; i++)
            b.targets[i].key = key;
    }
    return code < 0 ? measure(q, &b) : code;
}

static const char about[] =
    "Measures a running server over HTTP as a client sees it: berth, llama-server or any other that answers\n"
    "OpenAI's POST /v1/completions with a stream. In each round all streams begin at once, each with a "
    "prompt\n"
    "of its own that no earlier one begins like, and generate greedily to the full length. Printed per "
    "round\n"
    "and as median, least and most: generated tokens per second over all streams from the first request "
    "sent\n"
    "to the last one done, the time to the first token (50th and 95th percentile, greatest), the longest "
    "gap\n"
    "between two pieces of a stream, the median speed of one stream after its first token, and with one\n"
    "stream the speed of reading the prompt. Tokens are counted by the server (usage).\n\n"
    "--stall lets one stream generate while a second request's prompt is read: the longest gap in the first\n"
    "(and before the second was sent), its pieces per second meanwhile, the second's time to its first "
    "token.\n\n"
    "--vs-url measures a second server in turns with the first, the same prompts for both, and prints the\n"
    "ratio of every pair: first server / second server.";

int cmd_bench_http(int argc, char **argv)
{
    struct request q = { 0 };
    const struct cmd_option options[] = {
        { .name = "--url", .value = "URL", .help = "The server: http://HOST:PORT.", .text = &q.url },
        { .name = "--vs-url", .value = "URL", .help = "Another one, in turns with it.", .text = &q.vs_url },
        { .name = "--stall", .help = "One stream beside a long prompt; see above.", .flag = &q.stall },
        { .name = "--streams", .value = "N", .help = "Requests at once (1).", .text = &q.streams },
        { .name = "--prompt-tokens",
          .value = "N",
          .help = "Tokens of each prompt, about (64; --stall: 6000).",
          .text = &q.prompt },
        { .name = "--generate",
          .value = "N",
          .help = "Tokens generated by each stream (128; --stall: at most 1024).",
          .text = &q.generate },
        { .name = "--rounds", .value = "N", .help = "Rounds, after one to warm up (5).", .text = &q.rounds },
        { .name = "--model",
          .value = "NAME",
          .help = "The model to ask for; without it the server chooses.",
          .text = &q.model },
        { .name = "--key-file",
          .value = "FILE",
          .help = "File whose first line is the API key.",
          .text = &q.key_file },
        { .name = "--timeout",
          .value = "S",
          .help = "Longest silence of a server in seconds (600).",
          .text = &q.timeout },
        { .name = "--json", .help = "Print JSON.", .flag = &q.json },
    };
    const struct cmd_spec spec = {
        .usage = "berth bench --url URL [OPTION]...",
        .about = about,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    int code = cmd_args_parse(&spec, argc, argv, NULL);
    return code < 0 ? run(&q) : code;
}
