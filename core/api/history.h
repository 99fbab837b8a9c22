/* History (private to the api): since when the server runs, and a sample a second of what it does, the last
 * minute of it, for charts and rates. Thread: the event thread's. Tests: tests/e2e/test_metrics.py */
#pragma once
#include <stdint.h>

struct api;
struct buf;
struct metrics_extra;
struct metrics_view;

#define HISTORY_SAMPLES 60u

struct history {
    uint64_t started_ns; /* monotonic clock */
    char *turn_token;    /* its text; NULL: there is none */
    uint64_t n;
    struct history_sample {
        uint64_t now_ns, wall_ns;
        uint32_t running, waiting;
        uint64_t read, cached, generated; /* tokens since the start */
        double kv_usage;
    } at[HISTORY_SAMPLES + 1]; /* each second is the difference of two */
};

void history_tick(struct api *a);
void history_write(const struct metrics_view *v, struct buf *b);
/* Over the last few seconds. */
void history_rates(const struct api *a, struct metrics_extra *e);
