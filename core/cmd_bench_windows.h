/* Bench of settings, inside: what the parts of `berth bench --compare` share. cmd_bench_windows.c takes the
 * arguments and reports, cmd_bench_talks.c lets conversations run through a scheduler and measures them.
 * Tests: tests/e2e/test_bench_windows.py */
#pragma once
#include "config/config.h"
#include <stdint.h>

struct bench_arm; /* a model loaded with one configuration */

struct bench_talks {
    uint32_t streams, turns; /* conversations at once, and the turns of each */
    uint32_t prompt, more;   /* tokens of the first prompt, and those that every other turn adds */
    uint32_t generate;
};

/* One round. */
struct bench_talks_result {
    double tokens_per_s;             /* generated, over all streams */
    double first_p50_s, first_p95_s; /* to the first token, over all turns */
    double read_tokens;              /* of prompts, those that were not reused */
};

/* err says what failed. */
int bench_arm_open(const struct config *c, const struct bench_talks *t, struct bench_arm **ret_arm, char *err,
                   size_t errlen);
void bench_arm_close(struct bench_arm *a); /* NULL is fine */
/* All conversations from an empty server on, with the tokens of that number. */
int bench_arm_round(struct bench_arm *a, uint64_t number, struct bench_talks_result *ret, char *err,
                    size_t errlen);
const char *bench_arm_device(const struct bench_arm *a);
