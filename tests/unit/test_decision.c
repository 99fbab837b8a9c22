/* Tests of core/policy/decision.c: copies say what the original said, and nothing of it is shared. */
#include "policy_case.h"

#include "policy/decision.h"

#include <errno.h>

/* A table with something in every corner, its elements further apart than ours. */
static struct case_table *full_table(void)
{
    struct case_table *t = case_new(5, 2, true);
    for (uint32_t i = 0; i < 5; i++) {
        t->slots[i].h.tokens = 100 + i;
        t->slots[i].h.line_key = 1000 + i;
        case_shared(t, i, 5, 10 + i);
    }
    t->main.h.tokens = 77;
    memset(t->main.beyond, 0xee, sizeof t->main.beyond);
    case_ready(t);
    return t;
}

static const uint64_t edges[] = { 0, 5, 9 }, at_risk[] = { 30, 20, 10 }, returned[] = { 1, 2, 3 };
static const struct policy_returns returns[] = {
    { 0 },
    { .edges_ns = edges, .at_risk = at_risk, .returned = returned, .bins = 3 },
};

static void expect_same_table(const struct policy_snapshot *v)
{
    cr_assert_eq(v->n_slots, 5);
    for (uint32_t i = 0; i < 5; i++) {
        cr_expect_eq(policy_at(v, i)->tokens, 100 + i);
        cr_expect_eq(policy_at(v, i)->line_key, 1000 + i);
        cr_expect_eq(policy_shared(v, i, 5), 10 + i);
        cr_expect_eq(policy_shared(v, 5, i), 10 + i);
    }
    cr_expect_eq(policy_at(v, 5)->tokens, 77);
    cr_expect_eq(v->n_groups, 3);
    cr_expect_eq(((const struct policy_group *)policy_element(v->groups, 2, v->group_stride))->id, 2);
    const struct policy_returns *r = policy_returns_after(v, 1);
    cr_assert_not_null(r);
    cr_expect_arr_eq(r->edges_ns, edges, sizeof edges);
    cr_expect_arr_eq(r->at_risk, at_risk, sizeof at_risk);
    cr_expect_arr_eq(r->returned, returned, sizeof returned);
    cr_expect_eq(policy_returns_after(v, 0)->bins, 0);
}

Test(decision, a_copy_outlives_what_it_was_made_from)
{
    struct case_table *t = full_table();
    char reason[] = "parked", policy[] = "value";
    double losses[5] = { 1, NAN, 3, 4, 5 };
    uint64_t words[1] = { 9 };
    struct policy_worth worth[6] = { [5] = { .state = POLICY_STATE_BLANK, .age_s = 2.5 } };
    t->v.returns = returns;
    t->v.n_returns = 2;
    t->v.returns_stride = sizeof returns[0];
    struct policy_decision d = {
        .call = POLICY_CALL_PLACE,
        .id = 3,
        .policy = policy,
        .snapshot = &t->v,
        .request = &t->request,
        .answer = { .slot = 2,
                    .reason = reason,
                    .candidate_loss = losses,
                    .superseded = words,
                    .worth = worth },
    };
    struct policy_decision *copy;
    cr_assert_eq(policy_decision_new(&d, &copy), 0);
    memset(t, 0xaa, sizeof *t);
    memset(reason, 'x', 6);
    memset(policy, 'x', 5);
    memset(losses, 0, sizeof losses);
    memset(worth, 0, sizeof worth);
    words[0] = 0;

    expect_same_table(copy->snapshot);
    cr_expect_eq(copy->id, 3);
    cr_expect_str_eq(copy->policy, "value");
    cr_expect_str_eq(copy->answer.reason, "parked");
    cr_expect_null(copy->answer.sentence);
    cr_expect_eq(copy->answer.slot, 2);
    cr_expect_eq(copy->answer.candidate_loss[4], 5);
    cr_expect(isnan(copy->answer.candidate_loss[1]));
    cr_expect_eq(copy->answer.superseded[0], 9);
    cr_expect_eq(copy->answer.worth[5].age_s, 2.5);
    cr_expect_eq(copy->request->prompt_tokens, 100000);
    cr_expect_geq(copy->size, 6 * sizeof(struct policy_history) + 36 * sizeof(uint32_t));
    cr_expect_eq(policy_decision_ref(copy), copy);
    policy_decision_unref(copy);
    expect_same_table(copy->snapshot);
    policy_decision_unref(copy);
    policy_decision_unref(NULL);
    free(t);
}

Test(decision, a_copy_for_a_newer_policy_is_larger_and_zero_beyond)
{
    struct case_table *t = full_table();
    struct policy_table_sizes sizes = { .snapshot = 200, .history = 157, .group = 24, .returns = 50 };
    struct policy_snapshot *v;
    t->v.returns = returns;
    t->v.n_returns = 2;
    t->v.returns_stride = sizeof returns[0];
    cr_assert_eq(policy_table_copy(&t->v, &sizes, &v), 0);
    free(t);
    expect_same_table(v);
    cr_expect_eq(v->size, 200);
    cr_expect_eq(v->slot_stride, 160);
    cr_expect_eq(v->group_stride, 24);
    cr_expect_eq(v->returns_stride, 56);
    for (size_t k = sizeof *v; k < v->size; k++)
        cr_expect_eq(((const char *)v)[k], 0);
    for (uint32_t i = 0; i <= 5; i++)
        for (size_t k = sizeof(struct policy_history); k < v->slot_stride; k++)
            cr_expect_eq(((const char *)policy_at(v, i))[k], 0);
    free(v);
}

Test(decision, a_table_without_main_matrix_or_returns_stays_without)
{
    struct case_table *t = case_new(1, 1, false);
    struct policy_snapshot *v;
    t->v.shared = NULL;
    case_ready(t);
    cr_assert_eq(policy_table_copy(&t->v, NULL, &v), 0);
    free(t);
    cr_expect_null(v->main_history);
    cr_expect_null(v->shared);
    cr_expect_null(v->returns);
    cr_expect_null(policy_returns_after(v, 1));
    free(v);
}

Test(decision, a_table_beyond_all_bounds_is_refused)
{
    struct case_table *t = full_table();
    struct policy_snapshot *v;
    struct policy_decision *d;
    cr_expect_eq(policy_table_copy(&t->v, &(struct policy_table_sizes){ .history = 4097 }, &v), -EINVAL);
    t->v.n_slots = 1025;
    cr_expect_eq(policy_table_copy(&t->v, NULL, &v), -EINVAL);
    cr_expect_eq(policy_decision_new(&(struct policy_decision){ .snapshot = &t->v }, &d), -EINVAL);
    t->v.n_slots = 0;
    cr_expect_eq(policy_table_copy(&t->v, NULL, &v), -EINVAL);
    free(t);
}

/* ---- listeners ---- */

struct counter {
    unsigned n;
    uint64_t last_id;
};

static void count(void *arg, struct policy_decision *d)
{
    struct counter *c = arg;
    c->n++;
    c->last_id = d->id;
}

Test(decision, listeners_hear_from_when_they_are_added_until_they_are_removed)
{
    struct case_table *t = full_table();
    struct policy_listeners *l;
    struct counter a = { 0 }, b = { 0 };
    struct policy_decision d = { .snapshot = &t->v };
    cr_assert_eq(policy_listeners_new(&l), 0);
    cr_expect_not(policy_listeners_any(NULL));
    cr_expect_eq(policy_listeners_offer(l, &d), 0);
    cr_expect_eq(policy_listeners_add(l, (struct policy_listener){ count, &a }), 0);
    cr_expect(policy_listeners_any(l));
    policy_listeners_offer(l, &d);
    policy_listeners_add(l, (struct policy_listener){ count, &b });
    policy_listeners_offer(l, &d);
    policy_listeners_remove(l, (struct policy_listener){ count, &a });
    policy_listeners_offer(l, &d);
    cr_expect_eq(a.n, 2);
    cr_expect_eq(b.n, 2);
    cr_expect_eq(a.last_id, 2, "numbered from 1 on, those that nobody heard not");
    cr_expect_eq(b.last_id, 3);
    for (unsigned i = 1; i < POLICY_LISTENERS_MAX; i++)
        cr_expect_eq(policy_listeners_add(l, (struct policy_listener){ count, &a }), 0);
    cr_expect_eq(policy_listeners_add(l, (struct policy_listener){ count, &a }), -ENOSPC);
    policy_listeners_free(l);
    free(t);
}
