/* Tests of core/abi/policy_words.h: each word by hand, and against decisions recorded from an independent
 * implementation of the value policy, as far as the words alone decide them. */
#include "policy_case.h"

static void set(struct case_table *t, uint32_t i, uint32_t tokens, uint32_t turn_tokens, double last_use_s)
{
    struct policy_history *h = i < t->v.n_slots ? &t->slots[i].h : &t->main.h;
    h->tokens = tokens;
    h->turn_tokens = turn_tokens;
    h->last_use_ns = SEC(last_use_s);
}

/* ---- by hand ---- */

Test(words, continuing_needs_all_finished_turns)
{
    struct policy_history h = { .tokens = 100, .turn_tokens = 80, .shared_prompt = 79 };
    cr_expect(!policy_continues(&h));
    h.shared_prompt = 80;
    cr_expect(policy_continues(&h));
    h.turn_tokens = 0;
    cr_expect(!policy_continues(&h), "an empty history is continued by nothing");
}

Test(words, free_is_idle_and_neither_excluded_nor_held)
{
    struct policy_history h = { .flags = POLICY_RELIABLE };
    cr_expect(policy_is_free(&h) && !policy_is_row(&h));
    h.flags = POLICY_BUSY;
    cr_expect(!policy_is_free(&h) && policy_is_row(&h));
    h.flags = POLICY_EXCLUDED;
    cr_expect(!policy_is_free(&h) && policy_is_row(&h));
    h.flags = POLICY_HELD;
    cr_expect(!policy_is_free(&h) && !policy_is_row(&h), "held is no row");
}

Test(words, a_later_and_longer_history_supersedes)
{
    struct case_table *t = case_new(2, 2, true);
    set(t, 0, 100, 80, 10);
    set(t, 1, 120, 110, 20);
    case_shared(t, 0, 1, 80);
    cr_expect(policy_superseded_by(&t->v, 0, 1), "its turns are all there");
    cr_expect(!policy_superseded_by(&t->v, 1, 0));
    cr_expect(policy_superseded(&t->v, 0) && policy_blank(&t->v, 0) && !policy_blank(&t->v, 1));
    case_shared(t, 0, 1, 79);
    cr_expect(!policy_superseded(&t->v, 0), "a finished turn is missing");
    case_shared(t, 0, 1, 80);
    t->slots[1].h.last_use_ns = SEC(9);
    cr_expect(!policy_superseded(&t->v, 0), "longer, but used before");
    t->slots[1].h.last_use_ns = SEC(10);
    cr_expect(policy_superseded(&t->v, 0), "longer and used at the same time");
    t->slots[1].h.tokens = 99;
    cr_expect(!policy_superseded(&t->v, 0), "shorter");
    free(t);
}

Test(words, what_takes_part_in_superseding)
{
    struct case_table *t = case_new(2, 2, true);
    set(t, 0, 100, 80, 10);
    set(t, 1, 120, 110, 20);
    set(t, 2, 130, 110, 20);
    case_shared(t, 0, 1, 80);
    t->slots[1].h.flags |= POLICY_BUSY;
    cr_expect(policy_superseded(&t->v, 0), "a busy slot may supersede");
    t->slots[1].h.flags = POLICY_RELIABLE | POLICY_EXCLUDED;
    cr_expect(policy_superseded(&t->v, 0), "an excluded one too");
    t->slots[1].h.flags = 0;
    cr_expect(!policy_superseded(&t->v, 0), "one that is not reliable may not");
    case_shared(t, 0, 2, 90);
    cr_expect(policy_superseded(&t->v, 0), "main may");
    cr_expect(!policy_superseded(&t->v, 2), "and is never superseded");
    t->slots[0].h.flags |= POLICY_BUSY;
    cr_expect(!policy_superseded(&t->v, 0), "a busy slot never is");
    free(t);
}

Test(words, of_identical_copies_the_lowest_id_stays)
{
    struct case_table *t = case_new(3, 3, true);
    for (uint32_t i = 0; i < 4; i++)
        set(t, i, 100, 80, 10);
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < 4; b++)
            case_shared(t, a, b, 100);
    cr_expect(!policy_superseded(&t->v, 0), "main is no reason among copies");
    cr_expect(policy_superseded(&t->v, 1) && policy_superseded(&t->v, 2));
    t->slots[0].h.flags |= POLICY_BUSY;
    cr_expect(policy_superseded(&t->v, 1) && policy_superseded(&t->v, 2), "running or not");
    t->slots[0].h.flags = 0;
    t->slots[1].h.id = 7;
    cr_expect(policy_superseded(&t->v, 1) && !policy_superseded(&t->v, 2), "ids count, not places");
    free(t);
}

Test(words, the_order_spreads_over_groups_lowest_first)
{
    struct case_table *t = case_new(6, 3, false);
    static const uint32_t expected[] = { 0, 3, 1, 4, 2, 5 };
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t k = 0; k < 6; k++)
            cr_expect_eq(policy_before(&t->v, expected[i], expected[k]), i < k);
    t->slots[0].h.id = 9; /* now the last of its group */
    cr_expect(policy_before(&t->v, 1, 3) && policy_before(&t->v, 5, 0) == 0 && policy_before(&t->v, 2, 0));
    cr_expect_eq(policy_rank(&t->v, 0), 2);
    free(t);
}

static double count(const void *arg, const struct policy_snapshot *s, uint32_t i)
{
    (void)s;
    *(uint32_t *)(uintptr_t)arg |= 1u << i;
    return i + 1;
}

Test(words, collateral_is_what_a_new_row_would_run_over)
{
    struct case_table *t = case_new(5, 5, false);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 4; i++)
        set(t, i, 100, 80, 10);
    cr_expect_eq(policy_collateral(&t->v, 4, count, &seen), 0, "padding safe");
    t->v.flags = 0;
    cr_expect_eq(policy_collateral(&t->v, 4, count, &seen), 1 + 2 + 3 + 4);
    cr_expect_eq(policy_collateral(&t->v, 2, count, &seen), 1 + 2);
    cr_expect_eq(policy_collateral(&t->v, 0, count, &seen), 0);
    t->slots[1].h.tokens = 0;
    cr_expect_eq(policy_collateral(&t->v, 4, count, &seen), 1 + 3 + 4, "nothing lies in slot 1");
    t->slots[3].h.flags |= POLICY_EXCLUDED;
    seen = 0;
    cr_expect_eq(policy_collateral(&t->v, 4, count, &seen), 0, "slot 3's window runs over them already");
    cr_expect_eq(seen, 0);
    t->slots[3].h.flags = POLICY_RELIABLE | POLICY_HELD;
    cr_expect_eq(policy_collateral(&t->v, 4, count, &seen), 1 + 3 + 4, "held is idle");
    t->slots[0].h.group = 1;
    cr_expect_eq(policy_collateral(&t->v, 4, count, &seen), 3 + 4, "another group's window");
    free(t);
}

Test(words, a_prefix_comes_from_where_most_of_it_lies)
{
    struct case_table *t = case_new(4, 4, true);
    struct policy_place a = { .slot = 2 };
    policy_choose_source(&t->v, &a);
    cr_expect_eq(a.source_kind, POLICY_SOURCE_NONE);
    t->slots[1].h.shared_prompt = 50;
    t->slots[3].h.shared_prompt = 60;
    t->slots[3].h.flags |= POLICY_BUSY;
    policy_choose_source(&t->v, &a);
    cr_expect(a.source_kind == POLICY_SOURCE_SLOT && a.source == 3, "busy or not");
    t->slots[1].h.shared_prompt = t->slots[2].h.shared_prompt = 60;
    policy_choose_source(&t->v, &a);
    cr_expect_eq(a.source, 2, "of equals the chosen slot");
    t->main.h.shared_prompt = 60;
    policy_choose_source(&t->v, &a);
    cr_expect_eq(a.source, 2);
    a.slot = 0;
    policy_choose_source(&t->v, &a);
    cr_expect_eq(a.source_kind, POLICY_SOURCE_MAIN, "then main");
    t->main.h.flags = 0;
    policy_choose_source(&t->v, &a);
    cr_expect(a.source_kind == POLICY_SOURCE_SLOT && a.source == 1, "then the lowest id");
    free(t);
}

Test(words, nothing_known_is_nothing_shared)
{
    struct case_table *t = case_new(2, 2, false);
    t->v.shared = NULL;
    cr_expect_eq(policy_shared(&t->v, 0, 1), 0);
    cr_expect_null(policy_returns_after(&t->v, POLICY_STOP_TOOL_USE));
    cr_expect(policy_blank(&t->v, 2), "there is no main");
    t->v.n_groups = 0;
    t->slots[1].h.flags |= POLICY_BUSY;
    cr_expect_eq(policy_busy_rows(&t->v, 0), 1, "counted where the groups are not listed");
    t->slots[0].h.last_use_ns = SEC(2000);
    cr_expect_eq(policy_age_s(&t->v, &t->slots[0].h), 0, "a use after now is a use now");
    free(t);
}

/* ---- recorded decisions ---- */

static void check_superseded(const json_t *one, struct case_table *t, const json_t *expect)
{
    const json_t *listed = json_object_get(expect, "slots");
    size_t k = 0;
    for (uint32_t i = 0; i < t->v.n_slots; i++) {
        bool is = json_integer_value(json_array_get(listed, k)) == (json_int_t)t->slots[i].h.id &&
                  k < json_array_size(listed);
        k += is;
        cr_assert_eq(policy_superseded(&t->v, i), is, "slot %u of %s", i, json_dumps(one, 0));
    }
    cr_assert_eq(k, json_array_size(listed));
}

Test(words, superseded_as_recorded)
{
    cr_expect_gt(case_each("superseded_slots", check_superseded), 500);
}

static void check_state(const json_t *one, struct case_table *t, const json_t *expect)
{
    for (uint32_t i = 0; i <= t->v.n_slots; i++) {
        const json_t *w = i < t->v.n_slots ? json_array_get(json_object_get(expect, "slots"), i)
                                           : json_object_get(expect, "main");
        if (!policy_at(&t->v, i)) {
            cr_assert(json_is_null(w));
            continue;
        }
        bool blank = !strcmp(json_string_value(json_object_get(w, "state")), "blank");
        double age_s = json_number_value(json_object_get(w, "age_s"));
        cr_assert_eq(policy_blank(&t->v, i), blank, "history %u of %s", i, json_dumps(one, 0));
        cr_assert(fabs(policy_age_s(&t->v, policy_at(&t->v, i)) - age_s) <= 1e-12 * age_s);
    }
}

Test(words, blank_and_age_as_recorded)
{
    cr_expect_gt(case_each("cache_state", check_state), 500);
}

/* The worth that recorded collateral is measured in: retention of protected histories, by its formula. */
static double retention(const void *arg, const struct policy_snapshot *s, uint32_t i)
{
    static const double at[][2] = { { 0, 0 },      { 500, 0.1 },  { 2000, 2 },    { 8000, 10 },
                                    { 32000, 45 }, { 50000, 65 }, { 100000, 90 }, { 262144, 120 } };
    const struct policy_history *h = policy_at(s, i);
    double n = h->tokens, ttl = 120, age = policy_age_s(s, h), u = n / (n + 2000);
    for (int k = 7; k > 0; k--)
        if (n <= at[k][0])
            ttl = at[k - 1][1] + (at[k][1] - at[k - 1][1]) * (n - at[k - 1][0]) / (at[k][0] - at[k - 1][0]);
    ttl *= *(const double *)arg / 120;
    return age < ttl ? pow(n / 50000, 0.7) * u * u * (0.25 + 0.75 * (1 - age / ttl)) : 0;
}

static uint32_t collaterals;

static void check_place(const json_t *root, struct case_table *t, const json_t *expect)
{
    const json_t *slot = json_object_get(expect, "slot"), *source = json_object_get(expect, "source");
    const json_t *ttl_max = json_object_get(json_object_get(root, "settings"), "ttl_max_s");
    struct policy_place a = { .slot = (uint32_t)json_integer_value(slot) };
    double loss = json_number_value(json_object_get(expect, "loss"));
    double ttl = json_is_string(ttl_max) ? atof(json_string_value(ttl_max)) : json_number_value(ttl_max);
    bool any = false;
    if (!ttl_max)
        ttl = 120;
    for (uint32_t i = 0; i < t->v.n_slots; i++)
        any = any || policy_is_free(&t->slots[i].h);
    cr_assert_eq(json_is_null(slot), !any);
    if (!any)
        return;

    policy_choose_source(&t->v, &a);
    if (json_is_null(source))
        cr_assert_eq(a.source_kind, POLICY_SOURCE_NONE);
    else if (json_is_string(source))
        cr_assert_eq(a.source_kind, POLICY_SOURCE_MAIN);
    else
        cr_assert(a.source_kind == POLICY_SOURCE_SLOT && a.source == (uint32_t)json_integer_value(source));
    cr_assert_eq(policy_tokens_lost(&t->v, &a), (uint64_t)case_int(expect, "tokens_lost"));
    if (!strcmp(json_string_value(json_object_get(expect, "reason")), "continue")) {
        double collateral = policy_collateral(&t->v, a.slot, retention, &ttl);
        cr_assert(fabs(collateral - loss) <= 1e-12 * loss, "%.17g, not %.17g", collateral, loss);
        collaterals += loss > 0;
    }
}

Test(words, source_loss_and_collateral_as_recorded)
{
    cr_expect_gt(case_each("place", check_place), 1000);
    cr_expect_gt(collaterals, 0);
}
