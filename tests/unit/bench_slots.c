/* Measures, and checks nothing: what the slot table, the snapshot, the built-in policy and drafts cost.
 * 64 slots hold 100,000 tokens each and share various lengths with a prompt of 100,000.
 * Usage: bench_slots [POLICY.so]... */
#include "engine/drafts.h"
#include "policy/host.h"
#include "policy/load.h"
#include "slots/prompt.h"
#include "slots/snapshot.h"
#include "util/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS 64u
#define LONG 100000u
#define PARKED 36000u

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void must(int r, const char *what)
{
    if (r < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-r));
        exit(1);
    }
}

static void fill(struct slots *s, uint32_t at, const int32_t *prompt, uint32_t shared, uint32_t n)
{
    int32_t *t = malloc(n * sizeof *t);
    struct slots_request r = { .prompt_tokens = n };
    if (!t)
        exit(1);
    for (uint32_t i = 0; i < n; i++)
        t[i] = i < shared ? prompt[i] : (int32_t)(at * 1000 + i);
    must(slots_begin(s, at, SLOTS_NONE, 0, &r), "begin");
    must(slots_append(s, at, t, n), "append");
    must(slots_end(s, at, SLOTS_END_STOP, at), "end");
    free(t);
}

static void bench_prompt(struct slots *s, const int32_t *prompt)
{
    double best = 1e9, again = 1e9;
    uint32_t longest = 0;
    for (int i = 0; i < 20; i++) {
        struct slots_prompt *p = NULL;
        double begin = now_us();
        must(slots_prompt_new(s, prompt, LONG, 0, &p), "prompt");
        uint32_t from = slots_prompt_longest(s, p, &longest);
        longest = from == SLOTS_NONE ? 0 : slots_prompt_verify(s, p, from);
        double us = now_us() - begin;
        best = us < best ? us : best;
        begin = now_us();
        slots_prompt_longest(s, p, &longest);
        us = now_us() - begin;
        again = us < again ? us : again;
        slots_prompt_free(p);
    }
    printf("prompt of 100,000 tokens against 64 histories, verified: %8.1f us (longest %u)\n", best, longest);
    printf("the same prompt asked again:                             %8.2f us\n", again);
}

static void bench_decision(struct slots *s, const int32_t *prompt, struct policy_loaded *policy)
{
    struct policy_host *h = NULL;
    struct snapshot *b = NULL;
    struct slots_prompt *p = NULL;
    struct prompt_rate rate;
    struct policy_request r = { .prompt_tokens = LONG };
    struct policy_host_place a;
    struct policy_seat *seat = NULL;
    must(policy_seat_new(policy, &seat), "seat");
    struct policy_host_options o = { .seat = seat, .now_ns = clock_now_ns };
    must(policy_host_new(&o, SLOTS, &h), "host");
    policy_host_pin(h);
    struct snapshot_sizes sizes = policy_host_sizes(h);
    must(snapshot_new(s, &sizes, &b), "snapshot");
    must(slots_prompt_new(s, prompt, LONG, 0, &p), "prompt");
    prompt_rate_init(&rate);
    /* The best of many short runs: other processes are not what is measured. */
    double built = 1e9, placed = 1e9;
    for (int k = 0; k < 400; k++) {
        const struct policy_snapshot *v = NULL;
        struct snapshot_input in = { .now_ns = k, .padding_safe = true, .rate = &rate };
        double begin = now_us(), us;
        for (int i = 0; i < 50; i++) {
            in.shared_prompt = slots_prompt_shared(s, p);
            v = snapshot_build(b, s, &in);
        }
        us = (now_us() - begin) / 50;
        built = us < built ? us : built;
        begin = now_us();
        for (int i = 0; i < 50; i++)
            policy_host_place(h, v, &r, &a);
        us = (now_us() - begin) / 50;
        placed = us < placed ? us : placed;
    }
    printf("shared lengths and snapshot of 64 slots:                 %8.2f us\n", built);
    printf("place by %-10s, checked and timed:                  %8.2f us (%s in %u), both %.2f us\n",
           policy_loaded_name(policy), placed, a.reason, a.slot, built + placed);
    slots_prompt_free(p);
    snapshot_free(b);
    policy_host_unpin(h);
    policy_host_free(h);
    policy_seat_free(seat);
}

static void bench_policy(struct slots *s, const int32_t *prompt, const char *path)
{
    char err[1024];
    struct policy_loaded *p = NULL;
    struct policy_load_options o = { .path = path };
    if (policy_load(&o, &p, err, sizeof err) < 0) {
        fprintf(stderr, "%s: %s\n", path, err);
        exit(1);
    }
    bench_decision(s, prompt, p);
    policy_loaded_unref(p);
}

static void bench_moves(struct slots *s, const int32_t *prompt)
{
    enum { ROUNDS = 200 };
    struct slots_request r = { .prompt_tokens = PARKED };
    fill(s, SLOTS, prompt, PARKED, PARKED);
    double begin = now_us();
    for (int i = 0; i < ROUNDS; i++)
        must(slots_park(s, 1), "park");
    printf("park of 36,000 tokens:                                   %8.2f us\n",
           (now_us() - begin) / ROUNDS);
    begin = now_us();
    for (int i = 0; i < ROUNDS; i++) {
        must(slots_begin(s, 2, SLOTS, PARKED, &r), "fork");
        must(slots_end(s, 2, SLOTS_END_STOP, i), "end");
    }
    printf("fork of 36,000 tokens:                                   %8.2f us\n",
           (now_us() - begin) / ROUNDS);
    begin = now_us();
    for (int i = 0; i < ROUNDS; i++)
        must(slots_move(s, i % 2 ? 2 : 1, i % 2 ? 1 : 2), "move");
    printf("move of 36,000 tokens:                                   %8.2f us\n",
           (now_us() - begin) / ROUNDS);
    must(slots_begin(s, 3, SLOTS, PARKED, &r), "begin");
    begin = now_us();
    for (int i = 0; i < 10000; i++) {
        int32_t t = i;
        must(slots_append(s, 3, &t, 1), "append");
    }
    printf("one decoded token noted:                                 %8.3f us\n", (now_us() - begin) / 10000);
    must(slots_end(s, 3, SLOTS_END_STOP, 1), "end");
}

static void bench_drafts(const int32_t *prompt)
{
    struct drafts *d = NULL;
    int32_t draft[DRAFTS_MAX];
    must(drafts_new(&d), "drafts");
    double begin = now_us();
    must(drafts_update(d, prompt, 0, PARKED), "update");
    printf("drafts: a history of 36,000 tokens filed:                %8.1f us\n", now_us() - begin);
    begin = now_us();
    for (uint32_t n = PARKED; n < PARKED + 10000; n++) {
        must(drafts_update(d, prompt, n, n + 1), "update");
        drafts_propose(d, prompt, 8, draft);
    }
    printf("drafts: one more token and a guess:                      %8.3f us\n", (now_us() - begin) / 10000);
    drafts_free(d);
}

int main(int argc, char **argv)
{
    struct slots_options o = { .n_slots = SLOTS, .group_slots = SLOTS, .turn_token = 1, .key = { 1, 2 } };
    struct slots *s = NULL;
    int32_t *prompt = malloc(LONG * sizeof *prompt);
    if (!prompt)
        return 1;
    uint64_t x = 1;
    for (uint32_t i = 0; i < LONG; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        prompt[i] = (int32_t)(x >> 33) % 49152;
    }
    must(slots_new(&o, &s), "slots");
    for (uint32_t i = 0; i < SLOTS; i++)
        fill(s, i, prompt, i * (LONG / SLOTS), LONG);
    bench_prompt(s, prompt);
    bench_decision(s, prompt, policy_loaded_builtin());
    for (int i = 1; i < argc; i++)
        bench_policy(s, prompt, argv[i]);
    bench_moves(s, prompt);
    bench_drafts(prompt);
    slots_free(s);
    free(prompt);
    return 0;
}
