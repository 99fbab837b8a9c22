/* Cmd bench, inside: what the parts of `berth bench` share. cmd_bench.c takes the arguments and reports,
 * cmd_bench_run.c measures the engine in this process, cmd_bench_vs.c runs another program. One thread.
 * Tests: tests/e2e/test_bench.py */
#pragma once
#include "engine/engine.h"
#include <stdint.h>

#define BENCH_MAX_ROUNDS 1000u

struct bench_settings {
    const char *model; /* path */
    uint32_t prompt, generate, streams, depth, rounds, threads;
    const char *isa;
    bool f32_activations, kv_f32;
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
/* What it runs on: "cpu avx512 vnni, 2 threads". */
const char *bench_device(const struct bench *b);

/* Runs `command`, a shell command with {model} {prompt} {generate} {depth} {threads} in it, which prints what
 * llama-bench prints with -o json. -EINVAL when that cannot be read, -EIO when the command failed. */
int bench_vs_round(const char *command, const struct bench_settings *s, struct bench_speed *ret_speed,
                   char *err, size_t errlen);
/* Whether a command names only known placeholders: 0, or -EINVAL with err. */
int bench_vs_check(const char *command, char *err, size_t errlen);
