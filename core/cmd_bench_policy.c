/* Bench policy: `berth bench policy` asks the built-in policy and another one the same questions, round by
 * round in turns, and tells how many decisions a second each makes. The tables are made up: every slot holds
 * a history, some are busy, families of them share beginnings. A decision is what the scheduler has of one:
 * the question laid out, the call, the answer checked. One thread. Must not know: what a policy decides.
 * Tests: tests/e2e/test_policy_eval.py */
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_bench.h"
#include "cmd_policy.h"
#include "policy/asker.h"
#include "policy/loaded.h"
#include "util/clock.h"
#include "util/rng.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLES 16u
#define MAX_SLOTS 1024u
#define GROUP_SLOTS 8u
#define FAMILIES 12u
#define MOST_POLICIES 2u

struct table {
    struct policy_history *slots, main_history;
    struct policy_group *groups;
    uint32_t *shared;
    struct policy_request request;
    struct policy_snapshot view;
};

struct settings {
    uint32_t rounds, slots, ms;
    bool json;
};

struct measured {
    double per_s[POLICY_CALLS][MOST_POLICIES][BENCH_MAX_ROUNDS];
};

/* ---- tables ---- */

static uint32_t random_below(uint64_t *counter, uint32_t n)
{
    return (uint32_t)(rng_uniform(64, (*counter)++) * n);
}

/* Slot i belongs to family i % FAMILIES; of a family the first 2,000 to 12,000 tokens are common. */
static uint32_t common(const struct table *t, uint32_t a, uint32_t b)
{
    const struct policy_history *x = &t->slots[a], *y = &t->slots[b];
    uint32_t n = a % FAMILIES == b % FAMILIES ? 2000 + 900 * (a % FAMILIES) : 300;
    n = x->tokens < n ? x->tokens : n;
    return y->tokens < n ? y->tokens : n;
}

static void fill_slot(struct table *t, uint32_t i, uint64_t *counter)
{
    struct policy_history *h = &t->slots[i];
    *h = (struct policy_history){
        .id = i,
        .group = i / GROUP_SLOTS,
        .flags = POLICY_RELIABLE | (random_below(counter, 8) ? 0 : POLICY_BUSY),
        .tokens = 500 + random_below(counter, 120000),
        .last_use_ns = (int64_t)random_below(counter, 1800) * (int64_t)NS_PER_S,
        .turns = 1 + random_below(counter, 20),
        .stop_reason = 1 + random_below(counter, 3),
        .client_key = 1 + i % FAMILIES,
        .recompute_ns = (uint64_t)random_below(counter, 60) * NS_PER_S,
    };
    h->turn_tokens = h->tokens - random_below(counter, 400);
    h->prompt_tokens = h->turn_tokens;
    t->groups[h->group].id = h->group;
    t->groups[h->group].slots++;
    t->groups[h->group].busy_rows += (h->flags & POLICY_BUSY) != 0;
}

static void fill_table(struct table *t, uint32_t n, uint64_t *counter)
{
    uint32_t family = random_below(counter, FAMILIES), row = n + 1;
    t->request = (struct policy_request){ .size = sizeof t->request, .prompt_tokens = 150000 };
    for (uint32_t i = 0; i < n; i++)
        fill_slot(t, i, counter);
    t->main_history = t->slots[random_below(counter, n)];
    t->main_history.flags = POLICY_RELIABLE;
    for (uint32_t i = 0; i < n; i++) {
        t->slots[i].shared_prompt = i % FAMILIES == family ? common(t, i, i) : common(t, i, (i + 1) % n);
        for (uint32_t k = 0; k < n; k++)
            t->shared[i * row + k] = common(t, i, k);
        t->shared[i * row + n] = t->shared[n * row + i] = t->shared[i];
    }
    t->view = (struct policy_snapshot){
        .size = sizeof t->view,
        .flags = POLICY_PADDING_SAFE,
        .now_ns = 1800 * (int64_t)NS_PER_S,
        .slots = t->slots,
        .n_slots = n,
        .slot_stride = sizeof *t->slots,
        .main_history = &t->main_history,
        .groups = t->groups,
        .n_groups = (n + GROUP_SLOTS - 1) / GROUP_SLOTS,
        .group_stride = sizeof *t->groups,
        .shared = t->shared,
        .shared_stride = row * (uint32_t)sizeof *t->shared,
        .prompt_tokens_per_s = 900,
    };
}

static void free_tables(struct table *tables)
{
    for (uint32_t i = 0; tables && i < TABLES; i++) {
        free(tables[i].slots);
        free(tables[i].groups);
        free(tables[i].shared);
    }
    free(tables);
}

static struct table *make_tables(uint32_t n)
{
    struct table *tables = calloc(TABLES, sizeof *tables);
    uint64_t counter = 0;
    for (uint32_t i = 0; tables && i < TABLES; i++) {
        struct table *t = &tables[i];
        t->slots = calloc(n, sizeof *t->slots);
        t->groups = calloc(n, sizeof *t->groups);
        t->shared = calloc((n + (size_t)1) * (n + 1), sizeof *t->shared);
        if (!t->slots || !t->groups || !t->shared) {
            free_tables(tables);
            return NULL;
        }
        fill_table(t, n, &counter);
    }
    return tables;
}

/* ---- measuring ---- */

/* Decisions a second over about `ms`; negative after an error was printed. */
static double measure(struct policy_asker *a, const struct table *tables, enum policy_call call, uint32_t ms)
{
    char err[160];
    struct policy_answer answer;
    bool asks = call == POLICY_CALL_PLACE || call == POLICY_CALL_PARK;
    uint64_t begin = clock_now_ns(), now, n = 0;
    do {
        for (uint32_t i = 0; i < TABLES; i++, n++) {
            const struct policy_decision d = { .call = call,
                                               .snapshot = &tables[i].view,
                                               .request = asks ? &tables[i].request : NULL,
                                               .placing = POLICY_NO_SLOT };
            if (policy_asker_ask(a, &d, &answer, err, sizeof err) < 0) {
                cmd_error("table %u: %s", i, err);
                return -1;
            }
        }
        now = clock_now_ns();
    } while (now - begin < ms * NS_PER_MS);
    return (double)n * 1e9 / (double)(now - begin);
}

/* Each call of each policy, a different policy first each time. The first round warms up. */
static int measure_all(struct policy_asker *const *askers, uint32_t n, const struct table *tables,
                       const struct settings *s, struct measured *m)
{
    for (uint32_t round = 0; round <= s->rounds; round++)
        for (unsigned call = 0; call < POLICY_CALLS; call++)
            for (uint32_t k = 0; k < n; k++) {
                uint32_t which = (k + round) % n;
                double per_s = measure(askers[which], tables, call, round ? s->ms : 1);
                if (per_s < 0)
                    return -1;
                if (round)
                    m->per_s[call][which][round - 1] = per_s;
            }
    return 0;
}

/* ---- telling ---- */

static void print_text(struct policy_loaded *const *policies, uint32_t n, const struct settings *s,
                       const struct measured *m)
{
    printf("measured         %u slots, %u rounds after one to warm up: decisions a second, median (least .. "
           "most)\n",
           s->slots, s->rounds);
    for (unsigned call = 0; call < POLICY_CALLS; call++) {
        for (uint32_t k = 0; k < n; k++) {
            struct bench_spread d = bench_spread_of(m->per_s[call][k], s->rounds);
            printf("%-16s %-16s %10.0f  (%.0f .. %.0f)  %.2f us\n", policy_call_name(call),
                   policy_loaded_name(policies[k]), d.median, d.min, d.max, 1e6 / d.median);
        }
        double ratios[BENCH_MAX_ROUNDS];
        for (uint32_t r = 0; r < s->rounds; r++)
            ratios[r] = m->per_s[call][n - 1][r] / m->per_s[call][0][r];
        struct bench_spread d = bench_spread_of(ratios, s->rounds);
        if (n > 1)
            printf("%-16s %-16s %10.2f  (%.2f .. %.2f, pair by pair)\n", "", "ratio", d.median, d.min, d.max);
    }
}

static int print_json(struct policy_loaded *const *policies, uint32_t n, const struct settings *s,
                      const struct measured *m)
{
    json_t *root = json_pack("{s:i, s:i}", "slots", (int)s->slots, "rounds", (int)s->rounds);
    json_t *list = json_array();
    for (uint32_t k = 0; k < n; k++) {
        json_t *calls = json_object();
        for (unsigned call = 0; call < POLICY_CALLS; call++)
            json_object_set_new(calls, policy_call_name(call),
                                bench_series_json(m->per_s[call][k], s->rounds));
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "policy", policy_loaded_name(policies[k]),
                                              "version", policy_loaded_version(policies[k]),
                                              "decisions_per_s", calls));
    }
    json_object_set_new(root, "policies", list);
    int failed = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0;
    putchar('\n');
    json_decref(root);
    return failed;
}

static int run(struct policy_loaded *const *policies, uint32_t n, const struct settings *s)
{
    struct policy_asker *askers[MOST_POLICIES] = { NULL };
    struct measured *m = calloc(1, sizeof *m);
    struct table *tables = make_tables(s->slots);
    int r = m && tables ? 0 : -1, code = 1;
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = policy_asker_new(policies[i], &askers[i]);
    if (r < 0)
        cmd_error("out of memory");
    else if (measure_all(askers, n, tables, s, m) == 0)
        code = s->json ? print_json(policies, n, s, m) : (print_text(policies, n, s, m), 0);
    for (uint32_t i = 0; i < n; i++)
        policy_asker_free(askers[i]);
    free_tables(tables);
    free(m);
    return code;
}

int cmd_bench_policy(int argc, char **argv)
{
    struct cmd_strings words = { 0 }, sets = { 0 };
    const char *rounds = NULL, *slots = NULL, *ms = NULL;
    struct settings s = { 0 };
    struct policy_loaded *policies[MOST_POLICIES] = { policy_loaded_builtin(), NULL };
    const struct cmd_option options[] = {
        { .name = "--slots", .value = "N", .help = "Slots of the tables (64).", .text = &slots },
        { .name = "--rounds", .value = "N", .help = "Rounds, after one to warm up (9).", .text = &rounds },
        { .name = "--ms", .value = "N", .help = "Time for each question in a round (50).", .text = &ms },
        { .name = "--set",
          .value = "NAME=VALUE",
          .help = "Set one of the policy's settings; may be given several times.",
          .list = &sets },
        { .name = "--json", .help = "Print JSON.", .flag = &s.json },
    };
    const struct cmd_spec spec = {
        .usage = "berth bench policy [FILE] [OPTION]...",
        .about =
            "Measures how many decisions a second the built-in policy makes in this process, and the one in "
            "FILE\n"
            "in turns with it: tables of made-up histories, each answer checked as the server does.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);

    if (code < 0)
        code = bench_number("--slots", slots, 1, MAX_SLOTS, 64, &s.slots);
    if (code < 0)
        code = bench_number("--rounds", rounds, 1, BENCH_MAX_ROUNDS, 9, &s.rounds);
    if (code < 0)
        code = bench_number("--ms", ms, 1, 10000, 50, &s.ms);
    if (code < 0 && words.n)
        code = cmd_policy_open(words.items[0], &sets, false, &policies[1]);
    if (code < 0 && !words.n && sets.n) {
        cmd_error("--set %s: the built-in policy has no settings", sets.items[0]);
        code = EXIT_USAGE;
    }
    if (code < 0)
        code = run(policies, words.n ? 2 : 1, &s);
    policy_loaded_unref(policies[1]);
    cmd_strings_free(&words);
    cmd_strings_free(&sets);
    return code;
}
