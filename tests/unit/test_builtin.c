/* Tests of core/policy/builtin.c: what the built-in policy chooses, asked directly. */
#include "policy_case.h"

#include "policy/host.h"

static void set(struct case_table *t, uint32_t i, uint32_t tokens, uint32_t shared_prompt, double last_use_s)
{
    struct policy_history *h = i < t->v.n_slots ? &t->slots[i].h : &t->main.h;
    h->tokens = tokens;
    h->turn_tokens = tokens - tokens / 10;
    h->shared_prompt = shared_prompt;
    h->last_use_ns = SEC(last_use_s);
}

static const char *reason(uint32_t i)
{
    return policy_builtin.reasons[i].name;
}

static int place(struct case_table *t, struct policy_place *a)
{
    *a = (struct policy_place){ .size = sizeof *a, .slot = POLICY_NO_SLOT };
    return policy_builtin.place(&policy_builtin, case_ready(t), &t->request, a);
}

static int park(struct case_table *t, struct policy_park *a)
{
    *a = (struct policy_park){ .size = sizeof *a, .slot = POLICY_NO_SLOT };
    return policy_builtin.park_destination(&policy_builtin, case_ready(t), &t->request, a);
}

/* ---- place ---- */

Test(builtin, a_request_runs_where_its_longest_history_lies)
{
    struct case_table *t = case_new(4, 4, true);
    struct policy_place a;
    set(t, 0, 1000, 950, 10);
    set(t, 1, 2000, 1990, 20);
    set(t, 2, 500, 100, 30);
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 1);
    cr_expect_str_eq(reason(a.reason), "continue");
    cr_expect(a.source_kind == POLICY_SOURCE_SLOT && a.source == 1);
    cr_expect(a.loss == 0 && a.tokens_lost == 0);
    free(t);
}

Test(builtin, a_shared_system_prompt_never_displaces_a_conversation_while_a_slot_is_blank)
{
    struct case_table *t = case_new(3, 3, true);
    struct policy_place a;
    set(t, 0, 5000, 3000, 10);
    set(t, 1, 6000, 3000, 20);
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 2);
    cr_expect_str_eq(reason(a.reason), "new_blank");
    cr_expect(a.source_kind == POLICY_SOURCE_SLOT && a.source == 0, "its prefix is shared all the same");
    free(t);
}

Test(builtin, without_a_blank_slot_the_least_recently_used_one_goes)
{
    struct case_table *t = case_new(3, 3, true);
    struct policy_place a;
    set(t, 0, 5000, 0, 30);
    set(t, 1, 6000, 0, 20);
    set(t, 2, 7000, 0, 40);
    t->main.h.tokens = 900;
    t->main.h.shared_prompt = 400;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 1);
    cr_expect_str_eq(reason(a.reason), "least_recent");
    cr_expect_eq(a.source_kind, POLICY_SOURCE_MAIN);
    cr_expect(a.tokens_lost == 6000 && a.loss == 6000);
    t->slots[1].h.flags |= POLICY_HELD;
    place(t, &a);
    cr_expect_eq(a.slot, 0, "a held slot is not taken");
    free(t);
}

Test(builtin, what_a_busy_slot_holds_is_shared_and_not_waited_for)
{
    struct case_table *t = case_new(3, 3, true);
    struct policy_place a;
    set(t, 0, 5000, 4999, 10);
    t->slots[0].h.flags |= POLICY_BUSY;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 1);
    cr_expect(a.source_kind == POLICY_SOURCE_SLOT && a.source == 0);
    free(t);
}

Test(builtin, a_superseded_slot_counts_as_blank)
{
    struct case_table *t = case_new(2, 2, true);
    struct policy_place a;
    set(t, 0, 5000, 0, 50);
    set(t, 1, 4000, 0, 60);
    set(t, 2, 5500, 0, 70);
    case_shared(t, 0, 2, 5000);
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 0, "main has all of it and more");
    cr_expect_str_eq(reason(a.reason), "new_blank");
    free(t);
}

Test(builtin, the_group_with_fewer_rows_goes_first_among_equals)
{
    struct case_table *t = case_new(6, 3, true);
    struct policy_place a;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 0);
    t->slots[1].h.flags |= POLICY_BUSY;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 3);
    t->slots[4].h.flags |= POLICY_EXCLUDED;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 0, "an excluded slot is a row too");
    for (uint32_t i = 0; i < 6; i++)
        set(t, i, 1000 + i, 0, 10 + i);
    t->slots[5].h.flags |= POLICY_BUSY;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 0);
    t->slots[5].h.flags = t->slots[4].h.flags = POLICY_RELIABLE;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 3, "used later than slot 0, but in the idle group");
    free(t);
}

Test(builtin, without_padding_safety_it_runs_over_as_little_as_it_can)
{
    struct case_table *t = case_new(4, 4, true);
    struct policy_place a;
    t->v.flags = 0;
    set(t, 1, 3000, 0, 10);
    set(t, 2, 4000, 0, 20);
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 0, "slot 3 is blank too, but lies above two conversations");
    t->slots[0].h.flags |= POLICY_BUSY;
    cr_assert_eq(place(t, &a), POLICY_DECIDED);
    cr_expect_eq(a.slot, 1);
    cr_expect_eq(a.loss, 3000);
    free(t);
}

Test(builtin, no_free_slot_is_no_answer)
{
    struct case_table *t = case_new(3, 3, true);
    struct policy_place a;
    t->slots[0].h.flags |= POLICY_BUSY;
    t->slots[1].h.flags |= POLICY_EXCLUDED;
    t->slots[2].h.flags |= POLICY_HELD;
    cr_expect_eq(place(t, &a), POLICY_NONE);
    cr_expect_str_eq(reason(a.reason), "none");
    free(t);
}

/* ---- park ---- */

static void expect_park(struct case_table *t, int result, uint32_t slot, const char *why)
{
    struct policy_park a;
    cr_expect_eq(park(t, &a), result, "%s", why);
    cr_expect_eq(a.slot, slot, "%s: slot %u", why, a.slot);
    cr_expect_str_eq(reason(a.reason), why);
}

Test(builtin, main_is_parked_into_a_blank_slot_and_otherwise_the_least_recent)
{
    struct case_table *t = case_new(3, 3, true);
    set(t, 3, 6000, 10, 500);
    set(t, 0, 1000, 0, 400);
    set(t, 1, 1000, 0, 300);
    expect_park(t, POLICY_DECIDED, 2, "parked");
    set(t, 2, 1000, 0, 350);
    expect_park(t, POLICY_DECIDED, 1, "parked");
    t->slots[1].h.flags |= POLICY_BUSY;
    expect_park(t, POLICY_DECIDED, 2, "parked");
    free(t);
}

Test(builtin, an_older_copy_of_main_is_overwritten_first)
{
    struct case_table *t = case_new(3, 3, true);
    set(t, 3, 6000, 10, 500);
    set(t, 2, 5000, 0, 400);
    case_shared(t, 2, 3, 4900);
    expect_park(t, POLICY_DECIDED, 2, "parked");
    free(t);
}

Test(builtin, there_are_reasons_not_to_park)
{
    struct case_table *t = case_new(2, 2, false);
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "no_main");
    t->v.main_history = &t->main.h;
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "no_main");
    set(t, 2, 6000, 5400, 500);
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "same_conversation");
    t->main.h.shared_prompt = 5399;
    t->main.h.flags = 0;
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "no_main");
    t->main.h.flags = POLICY_RELIABLE;
    set(t, 1, 7000, 0, 400);
    t->slots[1].h.flags |= POLICY_BUSY;
    case_shared(t, 1, 2, 6000);
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "already_kept");
    case_shared(t, 1, 2, 5999);
    t->slots[0].h.flags |= POLICY_EXCLUDED;
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "no_destination");
    t->slots[0].h.flags = POLICY_RELIABLE;
    set(t, 0, 900, 0, 501);
    expect_park(t, POLICY_NONE, POLICY_NO_SLOT, "main_is_oldest");
    set(t, 0, 900, 0, 500);
    expect_park(t, POLICY_DECIDED, 0, "parked");
    free(t);
}

Test(builtin, a_park_keeps_away_from_rows_above_where_padding_is_not_safe)
{
    struct case_table *t = case_new(3, 3, true);
    set(t, 3, 6000, 10, 500);
    t->v.flags = 0;
    t->slots[1].h.flags |= POLICY_BUSY;
    expect_park(t, POLICY_DECIDED, 2, "parked");
    t->v.flags = POLICY_PADDING_SAFE;
    expect_park(t, POLICY_DECIDED, 0, "parked");
    free(t);
}

/* ---- worth and copies ---- */

Test(builtin, memory_is_given_up_by_last_use)
{
    struct case_table *t = case_new(4, 4, true);
    struct policy_worth worth[4] = { { 0 } }, of_main = { 0 };
    struct policy_state a = {
        .size = sizeof a, .stride = sizeof worth[0], .worth = worth, .of_main = &of_main
    };
    set(t, 0, 100, 0, 999.999999);
    set(t, 1, 100, 0, 5);
    set(t, 3, 9000, 0, 999.999998);
    set(t, 4, 100, 0, 1001);
    cr_assert_eq(policy_builtin.cache_state(NULL, case_ready(t), &a), POLICY_DECIDED);
    cr_expect_eq(worth[2].state, POLICY_STATE_BLANK);
    cr_expect(worth[0].state == POLICY_STATE_EXPIRED && worth[1].state == POLICY_STATE_EXPIRED);
    cr_expect(worth[1].give_up < worth[3].give_up && worth[3].give_up < worth[0].give_up);
    cr_expect_leq(worth[0].give_up, of_main.give_up);
    cr_expect_eq(worth[1].age_s, 995);
    cr_expect_eq(of_main.age_s, 0);
    free(t);
}

Test(builtin, lists_superseded_slots_in_any_word)
{
    struct slots_options o = { .n_slots = 130, .group_slots = 130, .turn_token = -1 };
    struct slots *s = NULL;
    struct snapshot *b = NULL;
    struct slots_request r = { 0 };
    uint64_t words[3] = { 0 };
    struct policy_set set_of = { .size = sizeof set_of, .n_words = 3, .words = words };
    cr_assert_eq(slots_new(&o, &s), 0);
    cr_assert_eq(snapshot_new(s, NULL, &b), 0);
    for (uint32_t i = 0; i < 130; i += 43) { /* 0, 43, 86, 129: each continues the one before */
        cr_assert_eq(slots_begin(s, i, i ? i - 43 : SLOTS_NONE, i / 43, &r), 0);
        cr_assert_eq(slots_append(s, i, (const int32_t[]){ 5 }, 1), 0);
        cr_assert_eq(slots_end(s, i, SLOTS_END_STOP, i), 0);
    }
    const struct policy_snapshot *v = snapshot_build(b, s, &(struct snapshot_input){ .now_ns = 1000 });
    cr_assert_eq(policy_builtin.superseded_slots(NULL, v, &set_of), POLICY_DECIDED);
    cr_expect_eq(words[0], UINT64_C(1) << 43 | 1);
    cr_expect_eq(words[1], UINT64_C(1) << (86 - 64));
    cr_expect_eq(words[2], 0);
    snapshot_free(b);
    slots_free(s);
}

/* ---- properties ---- */

static uint64_t seed = 7;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static void randomize(struct case_table *t)
{
    t->v.flags = below(3) ? POLICY_PADDING_SAFE : 0;
    for (uint32_t i = 0; i <= t->v.n_slots; i++) {
        struct policy_history *h = i < t->v.n_slots ? &t->slots[i].h : &t->main.h;
        set(t, i, below(4) ? below(50) : 0, 0, 900 + below(8));
        h->turn_tokens = h->tokens ? 1 + below(h->tokens) : 0;
        h->shared_prompt = below(2) ? h->tokens : below(h->tokens + 1);
        h->flags = (below(5) ? POLICY_RELIABLE : 0) | (below(4) ? 0 : 1u << below(3));
        h->group = i < t->v.n_slots ? below(3) : 0;
    }
    for (uint32_t a = 0; a <= t->v.n_slots; a++)
        for (uint32_t b = 0; b < a; b++)
            case_shared(t, a, b, below(2) ? below(50) : 0);
}

static void count_breach(void *arg, const struct policy_breach *breach)
{
    ++*(uint32_t *)arg;
    cr_log_error("%s", breach->what);
}

Test(builtin, every_answer_is_legal_whatever_the_table)
{
    uint32_t breaches = 0, decided = 0, parked = 0;
    for (uint32_t n = 1; n <= 8; n++) {
        struct case_table *t = case_new(n, n, true);
        struct policy_host *h = NULL;
        struct policy_host_options o = { .on_breach = count_breach, .arg = &breaches };
        cr_assert_eq(policy_host_new(&o, n, &h), 0);
        policy_host_pin(h);
        for (uint32_t round = 0; round < 4000; round++) {
            struct policy_host_place a;
            struct policy_host_park p;
            randomize(t);
            t->v.main_history = below(4) ? &t->main.h : NULL;
            case_ready(t);
            decided += policy_host_place(h, &t->v, &t->request, &a) == POLICY_DECIDED;
            parked += policy_host_park(h, &t->v, &t->request, POLICY_NO_SLOT, &p) == POLICY_DECIDED;
            policy_host_state(h, &t->v);
            policy_host_superseded(h, &t->v);
        }
        policy_host_unpin(h);
        policy_host_free(h);
        free(t);
    }
    cr_expect_eq(breaches, 0);
    cr_expect(decided > 10000 && parked > 1000);
}

/* Slots in another order in memory, with the ids they had: the same decision. */
Test(builtin, the_place_of_a_slot_in_memory_means_nothing)
{
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t n = 2 + below(7), to[CASE_SLOTS + 1];
        struct case_table *t = case_new(n, n, true), *u = case_new(n, n, true);
        struct policy_place a, b;
        struct policy_park p, q;
        randomize(t);
        for (uint32_t i = 0; i <= n; i++)
            to[i] = i;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = i + below(n - i), held = to[i];
            to[i] = to[k];
            to[k] = held;
        }
        for (uint32_t i = 0; i < n; i++)
            u->slots[to[i]] = t->slots[i];
        for (uint32_t i = 0; i <= n; i++)
            for (uint32_t k = 0; k <= n; k++)
                u->shared[to[i]][to[k]] = t->shared[i][k];
        u->main = t->main;
        u->v.flags = t->v.flags;
        cr_assert_eq(place(t, &a), place(u, &b));
        cr_assert(a.slot == POLICY_NO_SLOT ? b.slot == POLICY_NO_SLOT : to[a.slot] == b.slot);
        cr_assert(a.reason == b.reason && a.tokens_lost == b.tokens_lost && a.source_kind == b.source_kind);
        cr_assert(a.source_kind != POLICY_SOURCE_SLOT || to[a.source] == b.source);
        cr_assert_eq(park(t, &p), park(u, &q));
        cr_assert(p.slot == POLICY_NO_SLOT ? q.slot == POLICY_NO_SLOT : to[p.slot] == q.slot);
        free(t);
        free(u);
    }
}
