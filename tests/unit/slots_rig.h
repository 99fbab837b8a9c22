/* Small helpers for tests of the slot table: tables of a few slots, histories made of counted tokens. */
#pragma once
#include "abi/policy.h"
#include "slots/prompt.h"
#include "slots/slots.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEC(n) ((int64_t)(n)*1000000000)
#define TURN 1 /* the turn token */

static inline struct slots *rig_slots(uint32_t n_slots, uint32_t group_slots)
{
    struct slots_options o = {
        .n_slots = n_slots, .group_slots = group_slots, .turn_token = TURN, .key = { 11, 22 }
    };
    struct slots *s = NULL;
    cr_assert_eq(slots_new(&o, &s), 0);
    return s;
}

/* n tokens first, first + 1, ...: two such sequences share what their values share. */
static inline int32_t *rig_tokens(int32_t first, uint32_t n)
{
    int32_t *t = malloc((n + 1) * sizeof *t);
    cr_assert_not_null(t);
    for (uint32_t i = 0; i < n; i++)
        t[i] = first + (int32_t)i;
    return t;
}

static inline void rig_append(struct slots *s, uint32_t at, int32_t first, uint32_t n)
{
    int32_t *t = rig_tokens(first, n);
    cr_assert_eq(slots_append(s, at, t, n), 0);
    free(t);
}

/* A request that reads n tokens from nothing and ends. */
static inline void rig_fill(struct slots *s, uint32_t at, int32_t first, uint32_t n, int64_t now_ns)
{
    struct slots_request r = { .prompt_tokens = n };
    cr_assert_eq(slots_begin(s, at, SLOTS_NONE, 0, &r), 0);
    rig_append(s, at, first, n);
    cr_assert_eq(slots_end(s, at, SLOTS_END_STOP, now_ns), 0);
}
