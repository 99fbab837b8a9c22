/* Measures, and checks nothing: what it costs to park, move, fork and hand over a history of 36,000 tokens,
 * table and block references together, among 64 slots; nothing else runs meanwhile, so this is how long
 * everybody would be paused. The size of the model does not matter: no keys or values are touched. */
#include "sched/histories.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS 64u
#define TOKENS 36000u
#define REPEATS 201u
#define CHUNK 512u

static void must(int r, const char *what)
{
    if (r < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-r));
        exit(1);
    }
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void report(const char *what, double *us)
{
    qsort(us, REPEATS, sizeof *us, by_value);
    printf("%-28s median %6.1f us, range %.1f..%.1f of %u\n", what, us[REPEATS / 2], us[0], us[REPEATS - 1],
           REPEATS);
}

static void read_prompt(struct histories *h, uint32_t at, uint32_t n)
{
    int32_t chunk[CHUNK];
    char err[256];
    struct slots_request r = { .prompt_tokens = n };
    must(histories_begin(h, at, SLOTS_NONE, 0, &r), "begin");
    for (uint32_t done = 0; done < n; done += CHUNK) {
        uint32_t len = n - done < CHUNK ? n - done : CHUNK;
        for (uint32_t i = 0; i < len; i++)
            chunk[i] = (int32_t)(3 + (at * 7919 + (done + i) * 31) % 300);
        struct engine_row row = { .session = h->sessions[at], .tokens = chunk, .n = len };
        must(slots_reserve(h->table, at, len), "reserve");
        must(engine_window(h->engine, &row, 1, err, sizeof err), "window");
        histories_took(h, at, chunk, len);
    }
    must(slots_end(h->table, at, SLOTS_END_STOP, at + 1), "end");
}

static void measure(struct histories *h)
{
    double park[REPEATS], move[REPEATS], fork[REPEATS], over[REPEATS];
    struct slots_request r = { .prompt_tokens = TOKENS };
    for (uint32_t i = 0; i < REPEATS; i++) {
        double begin = now_us();
        must(histories_park(h, 10), "park");
        park[i] = now_us() - begin;

        begin = now_us();
        must(histories_move(h, 10, 11), "move");
        move[i] = now_us() - begin;

        begin = now_us();
        must(histories_begin(h, 12, 11, TOKENS - 20, &r), "fork");
        fork[i] = now_us() - begin;

        begin = now_us();
        must(histories_hand_over(h, 12, 13, 1000 + i), "hand over");
        over[i] = now_us() - begin;
        must(slots_end(h->table, 13, SLOTS_END_STOP, 1000 + i), "end");
        for (uint32_t at = 11; at <= 13; at++)
            histories_cut(h, at, 0);
    }
    report("park", park);
    report("move", move);
    report("fork and begin a request", fork);
    report("promote or back to solo", over);
}

int main(void)
{
    const char *data = getenv("BERTH_TEST_DATA");
    char path[4096], err[512] = "";
    struct gguf *f = NULL;
    struct model *m = NULL;
    struct engine *e = NULL;
    struct histories h;
    struct engine_options eo = {
        .isa = "auto", .threads = 2, .kv_tokens = 65536, .max_rows = 1, .max_tokens = CHUNK
    };
    struct slots_options so = { .n_slots = SLOTS, .group_slots = SLOTS, .turn_token = 1, .key = { 1, 2 } };
    snprintf(path, sizeof path, "%s/tiny-chatml.gguf", data ? data : "tests/data");
    must(gguf_open(path, &f, err, sizeof err), err);
    must(model_read(f, &m, err, sizeof err), err);
    must(engine_open(f, m, &eo, NULL, NULL, &e, err, sizeof err), err);
    must(histories_init(&h, e, &so), "histories");
    for (uint32_t i = 20; i < SLOTS; i++)
        read_prompt(&h, i, 400);
    read_prompt(&h, SLOTS, TOKENS);
    printf("a history of %u tokens on main, %u others in %u slots\n", TOKENS, SLOTS - 20, SLOTS);
    measure(&h);
    histories_clear(&h);
    engine_close(e);
    model_free(m);
    gguf_close(f);
    return 0;
}
