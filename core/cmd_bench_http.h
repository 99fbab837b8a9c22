/* Bench over HTTP, inside: what the parts of `berth bench --url` share. cmd_bench_http.c takes the arguments
 * and alternates the rounds, cmd_bench_http_load.c asks and measures, cmd_bench_http_wire.c speaks HTTP,
 * cmd_bench_http_report.c prints. One thread. Tests: tests/e2e/test_bench_http.py */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_MAX_METRICS 12
#define BENCH_MAX_TARGETS 2

struct event_base;

/* A server under measurement. */
struct bench_target {
    const char *url;                     /* as it was given */
    char host[256], port[12], path[256]; /* path: what goes before /v1/completions, mostly nothing */
    const char *key;                     /* the API key; NULL: none */
    uint32_t timeout_s;                  /* longest silence */
    char model[128];                     /* what its replies call the model; empty before the first */
};

struct bench_http {
    struct event_base *base;
    const char *model; /* asked for; NULL: the server's own choice */
    uint32_t streams, prompt, generate, rounds;
    uint32_t words; /* what makes `prompt` tokens, found by asking */
    uint64_t seed;  /* where the prompts' words come from; another one in every run */
    struct bench_target targets[BENCH_MAX_TARGETS];
    size_t n_targets;
};

/* One number of a round. */
struct bench_metric {
    const char *key;   /* in JSON */
    const char *label; /* in text, and `head` over its column in the table of rounds */
    const char *head;
    const char *unit;
    bool compared; /* whether a ratio between two servers says something */
};

struct bench_scenario {
    const char *name;
    const struct bench_metric *metrics;
    size_t n_metrics;
    /* One round with the prompts of that number. Fills ret_values[n_metrics]; NAN where nothing was to be
     * measured. */
    int (*round)(struct bench_http *b, struct bench_target *t, uint64_t number, double *ret_values, char *err,
                 size_t errlen);
};

extern const struct bench_scenario bench_scenario_streams, bench_scenario_stall;

/* Finds how many words make the prompt wanted: asks the first server for the tokens of a few. */
int bench_http_fit_words(struct bench_http *b, char *err, size_t errlen);

/* values[target][round * n_metrics + metric]. Return exit codes. */
int bench_http_print_text(const struct bench_http *b, const struct bench_scenario *s, double *const *values);
int bench_http_print_json(const struct bench_http *b, const struct bench_scenario *s, double *const *values);

/* http://HOST[:PORT][/PREFIX], with or without /v1 at its end. -EINVAL with err otherwise. */
int bench_target_parse(const char *url, struct bench_target *ret_target, char *err, size_t errlen);

/* One POST on a connection of its own, whose reply is a stream of server-sent events. */
struct bench_call;

struct bench_call_events {
    void (*on_event)(void *arg, const char *data, size_t len);
    /* Once: the reply is complete (err NULL) or will not come. The call must not be closed inside either. */
    void (*on_end)(void *arg, const char *err);
};

/* Connects, and waits for it. `events` and `target` are borrowed until the call is closed. */
int bench_call_open(struct event_base *base, const struct bench_target *target,
                    const struct bench_call_events *events, void *arg, struct bench_call **ret_call,
                    char *err, size_t errlen);
/* Sends the request; the body is copied. */
int bench_call_send(struct bench_call *c, const char *body, size_t len);
/* NULL is fine. A reply still coming is given up. */
void bench_call_close(struct bench_call *c);
