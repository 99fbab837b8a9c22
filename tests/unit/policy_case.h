/* Decision tables for tests: snapshots made by hand, and read from recorded cases. Elements lie further apart
 * than their own size, as for a policy built with a later header. */
#pragma once
#include "abi/policy_words.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASE_SLOTS 16
#define SEC(n) ((int64_t)((n)*1e9 + 0.5))

struct case_history {
    struct policy_history h;
    char beyond[24];
};

struct case_table {
    struct case_history slots[CASE_SLOTS], main;
    struct policy_group groups[CASE_SLOTS];
    uint32_t shared[CASE_SLOTS + 1][CASE_SLOTS + 3];
    struct policy_snapshot v;
    struct policy_request request;
};

/* n idle, reliable, empty slots in groups of group_slots; a main only when asked. now is 1,000 s. */
static inline struct case_table *case_new(uint32_t n, uint32_t group_slots, bool with_main)
{
    struct case_table *t = calloc(1, sizeof *t);
    cr_assert(t && n <= CASE_SLOTS);
    for (uint32_t i = 0; i < n; i++) {
        t->slots[i].h =
            (struct policy_history){ .id = i, .group = i / group_slots, .flags = POLICY_RELIABLE };
        memset(t->slots[i].beyond, 0xee, sizeof t->slots[i].beyond);
    }
    t->main.h.flags = POLICY_RELIABLE;
    t->request = (struct policy_request){ .size = sizeof t->request, .prompt_tokens = 100000 };
    t->v = (struct policy_snapshot){
        .size = sizeof t->v,
        .flags = POLICY_PADDING_SAFE,
        .now_ns = SEC(1000),
        .slots = &t->slots[0].h,
        .n_slots = n,
        .slot_stride = sizeof t->slots[0],
        .main_history = with_main ? &t->main.h : NULL,
        .groups = t->groups,
        .group_stride = sizeof t->groups[0],
        .shared = &t->shared[0][0],
        .shared_stride = sizeof t->shared[0],
    };
    return t;
}

/* Fills the groups in; call it when the slots are as they shall be. */
static inline const struct policy_snapshot *case_ready(struct case_table *t)
{
    t->v.n_groups = 0;
    for (uint32_t i = 0; i < t->v.n_slots; i++) {
        uint32_t g = 0;
        while (g < t->v.n_groups && t->groups[g].id != t->slots[i].h.group)
            g++;
        if (g == t->v.n_groups)
            t->groups[t->v.n_groups++] = (struct policy_group){ .id = t->slots[i].h.group };
        t->groups[g].slots++;
        t->groups[g].busy_rows += (t->slots[i].h.flags & (POLICY_BUSY | POLICY_EXCLUDED)) != 0;
    }
    return &t->v;
}

static inline void case_shared(struct case_table *t, uint32_t a, uint32_t b, uint32_t n)
{
    t->shared[a][b] = t->shared[b][a] = n;
}

/* ---- recorded cases, in the form `berth policy eval` reads ---- */

static inline int64_t case_int(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static inline uint32_t case_flag(const json_t *o, const char *key, uint32_t flag)
{
    return json_is_true(json_object_get(o, key)) ? flag : 0;
}

static inline void case_read_history(const json_t *o, struct policy_history *h)
{
    const json_t *reliable = json_object_get(o, "reliable"), *state = json_object_get(o, "state");
    *h = (struct policy_history){
        .id = (uint32_t)case_int(o, "id"),
        .group = (uint32_t)case_int(o, "group"),
        .flags = (state && !strcmp(json_string_value(state), "busy") ? POLICY_BUSY : 0) |
                 case_flag(o, "excluded", POLICY_EXCLUDED) | case_flag(o, "held", POLICY_HELD) |
                 (json_is_false(reliable) ? 0 : POLICY_RELIABLE),
        .tokens = (uint32_t)case_int(o, "tokens"),
        .turn_tokens = (uint32_t)case_int(o, "turn_tokens"),
        .shared_prompt = (uint32_t)case_int(o, "shared_prompt"),
        .last_use_ns = llround(json_number_value(json_object_get(o, "last_use_s")) * 1e9),
        .client_key = (uint64_t)case_int(o, "client_key"),
    };
}

static inline struct case_table *case_read(const json_t *snapshot)
{
    const json_t *slots = json_object_get(snapshot, "slots"), *main = json_object_get(snapshot, "main");
    const json_t *shared = json_object_get(snapshot, "shared");
    uint32_t n = (uint32_t)json_array_size(slots);
    struct case_table *t = case_new(n, n ? n : 1, json_is_true(json_object_get(main, "valid")));
    for (uint32_t i = 0; i < n; i++)
        case_read_history(json_array_get(slots, i), &t->slots[i].h);
    if (t->v.main_history)
        case_read_history(main, &t->main.h);
    for (uint32_t a = 0; shared && a <= n; a++)
        for (uint32_t b = 0; b <= n; b++)
            t->shared[a][b] = (uint32_t)json_integer_value(json_array_get(json_array_get(shared, a), b));
    t->v.now_ns = llround(json_number_value(json_object_get(snapshot, "now_s")) * 1e9);
    t->v.flags = json_is_false(json_object_get(snapshot, "padding_safe")) ? 0 : POLICY_PADDING_SAFE;
    t->v.prompt_tokens_per_s = json_number_value(json_object_get(snapshot, "prompt_tokens_per_s"));
    case_ready(t);
    return t;
}

/* Calls `check` for every recorded case of one call; returns how many there were. */
static inline uint32_t case_each(const char *call,
                                 void (*check)(const json_t *one, struct case_table *t, const json_t *expect))
{
    char command[1024], *line = NULL;
    size_t cap = 0;
    uint32_t n = 0;
    const char *data = getenv("BERTH_TEST_DATA");
    cr_assert_not_null(data, "BERTH_TEST_DATA is not set");
    snprintf(command, sizeof command, "gzip -dc '%s/policy-value-cases.jsonl.gz'", data);
    FILE *f = popen(command, "r");
    cr_assert_not_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *root = json_loads(line, 0, NULL), *one = json_object_get(root, "case");
        cr_assert_not_null(one);
        if (!strcmp(json_string_value(json_object_get(one, "call")), call)) {
            struct case_table *t = case_read(json_object_get(one, "snapshot"));
            check(root, t, json_object_get(root, "expect"));
            free(t);
            n++;
        }
        json_decref(root);
    }
    free(line);
    cr_assert_eq(pclose(f), 0);
    return n;
}
