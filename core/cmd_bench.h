/* Cmd bench, inside: what the parts of `berth bench` share. cmd_bench.c takes the arguments and reports,
 * cmd_bench_run.c measures the engine in this process, cmd_bench_vs.c runs another program,
 * cmd_bench_policy.c measures policies, cmd_bench_http.c measures a running server, cmd_bench_windows.c
 * compares settings. One thread. Tests: tests/e2e/test_bench.py, test_bench_http.py */
#pragma once
#include "engine/engine.h"
#include <jansson.h>
#include <stdint.h>

#define BENCH_MAX_ROUNDS 1000u

struct bench_settings {
    const char *model; /* path */
    uint32_t prompt, generate, streams, depth, rounds, threads, stages;
    const char *device, *isa;
    uint64_t device_memory; /* free on CUDA devices */
    bool any_order;
    const char *activations, *kv_type;
};

/* Tokens per second, over all streams; NAN where nothing was to be measured. */
struct bench_speed {
    double prefill, decode;
};

struct bench;

/* Opens the model and reads `depth` tokens into every stream. err says what failed. */
int bench_open(const struct bench_settings *s, struct bench **ret_bench, char *err, size_t errlen);
void bench_close(struct bench *b);
/* One round: reads a prompt, then generates, each behind the depth and timed by itself. */
int bench_round(struct bench *b, struct bench_speed *ret_speed, char *err, size_t errlen);
const struct model *bench_model(const struct bench *b);
/* What it runs on. */
const struct engine_info *bench_engine(const struct bench *b);

/* Runs `command`, a shell command with {model} {prompt} {generate} {depth} {threads} in it, which prints what
 * llama-bench prints with -o json. -EINVAL when that cannot be read, -EIO when the command failed. */
int bench_vs_round(const char *command, const struct bench_settings *s, struct bench_speed *ret_speed,
                   char *err, size_t errlen);
/* Whether a command names only known placeholders: 0, or -EINVAL with err. */
int bench_vs_check(const char *command, char *err, size_t errlen);

struct bench_spread {
    double median, min, max;
};

/* Of n samples, 1..BENCH_MAX_ROUNDS. */
struct bench_spread bench_spread_of(const double *samples, size_t n);
/* A new object with median, min, max and the samples. */
json_t *bench_series_json(const double *samples, size_t n);
/* A number option, or its default when it was not given. Returns -1 or the exit code. */
int bench_number(const char *name, const char *text, int64_t min, int64_t max, uint32_t otherwise,
                 uint32_t *ret);

/* Whether the arguments ask for a running server to be measured, and that. Returns the exit code. */
bool cmd_bench_http_wanted(int argc, char **argv);
int cmd_bench_http(int argc, char **argv);
/* Whether the arguments ask for two values of a setting to be compared, and that. */
bool cmd_bench_windows_wanted(int argc, char **argv);
int cmd_bench_windows(int argc, char **argv);
/* `berth bench policy`: argv[0] is "policy". */
int cmd_bench_policy(int argc, char **argv);
