/* Tests of core/sched/ask.c: what listeners are told of the scheduler's decisions is what it then did. */
#include "sched_rig.h"

#include "abi/policy_words.h"
#include "policy/decision.h"

#define MOST 64

/* A listener that keeps what it hears, but for what is only shown. */
struct ear {
    pthread_mutex_t lock;
    struct policy_decision *at[MOST];
    unsigned n, shown;
};

static void hear(void *arg, struct policy_decision *d)
{
    struct ear *e = arg;
    pthread_mutex_lock(&e->lock);
    e->shown += d->for_display;
    if (!d->for_display && e->n < MOST)
        e->at[e->n++] = policy_decision_ref(d);
    pthread_mutex_unlock(&e->lock);
}

static void ear_clear(struct ear *e)
{
    for (unsigned i = 0; i < e->n; i++)
        policy_decision_unref(e->at[i]);
    e->n = e->shown = 0;
}

static const struct policy_decision *first_of(const struct ear *e, enum policy_call call)
{
    for (unsigned i = 0; i < e->n; i++)
        if (e->at[i]->call == call)
            return e->at[i];
    return NULL;
}

static const struct sched_placement *first_event(struct rig *r, enum sched_placement_kind kind)
{
    static struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(r->s, 0, events);
    for (size_t i = 0; i < n; i++)
        if (events[i].kind == kind)
            return &events[i];
    return NULL;
}

static void listen(struct ear *e, struct sched_options *o)
{
    *e = (struct ear){ .lock = PTHREAD_MUTEX_INITIALIZER };
    cr_assert_eq(policy_listeners_new(&o->listeners), 0);
    cr_assert_eq(policy_listeners_add(o->listeners, (struct policy_listener){ hear, e }), 0);
}

/* A scheduler whose decisions the ear hears. */
static struct rig open_heard(struct ear *e, const struct sched_options *from)
{
    struct sched_options o = *from;
    listen(e, &o);
    return rig_open(&o, 4096);
}

static void close_heard(struct rig *r, struct ear *e)
{
    ear_clear(e);
    policy_listeners_free(r->o.listeners);
}

/* A conversation on main, then another one that parks it. */
static void park_one(struct rig *r, struct heard *a, struct heard *b)
{
    int32_t *p = prompt_of(1, 100), *q = prompt_of(2, 50);
    heard_init(a);
    heard_init(b);
    struct sched_job job = job_of(p, 100, 20, a);
    run_job(r, &job);
    job = job_of(q, 50, 20, b);
    run_job(r, &job);
    free(p);
    free(q);
}

Test(sched_decisions, a_park_is_told_with_the_table_it_was_decided_by)
{
    struct ear ear;
    struct heard a, b;
    struct rig r = open_heard(&ear, &rig_options);
    park_one(&r, &a, &b);
    const struct sched_placement *done = first_event(&r, SCHED_PARK);
    cr_assert_not_null(done);
    rig_close(&r);

    const struct policy_decision *d = first_of(&ear, POLICY_CALL_PARK);
    cr_assert_not_null(d);
    cr_expect_eq(d->answer.result, POLICY_DECIDED);
    cr_expect_eq((int32_t)d->answer.slot, done->slot);
    cr_expect_str_eq(d->answer.reason, done->reason);
    cr_expect_eq(d->job, b.job);
    cr_expect_str_eq(d->policy, "builtin");
    cr_expect_gt(d->took_ns, 0);
    cr_expect_gt(d->time_ns, 1000000000ull * 1500000000ull, "wall clock");
    cr_expect_eq(d->request->prompt_tokens, 50);
    cr_expect_eq(d->snapshot->n_slots, r.o.slots);
    cr_expect_eq(d->snapshot->main_history->tokens, 119, "the table of that moment, not of now");
    cr_expect_eq(policy_at(d->snapshot, 0)->tokens, 0);
    cr_expect_gt(ear.shown, 0);
    const struct policy_decision *s = first_of(&ear, POLICY_CALL_SUPERSEDED);
    cr_assert_not_null(s);
    cr_expect_null(s->request);
    cr_expect_not_null(s->answer.superseded);
    for (unsigned i = 1; i < ear.n; i++)
        cr_expect_gt(ear.at[i]->id, ear.at[i - 1]->id);
    close_heard(&r, &ear);
    heard_clear(&a);
    heard_clear(&b);
}

Test(sched_decisions, a_placement_is_told_with_what_every_candidate_would_cost)
{
    struct ear ear;
    struct heard a, b;
    struct rig r = open_heard(&ear, &rig_options);
    int32_t *p = prompt_of(1, 40), *q = prompt_of(2, 40);
    heard_init(&a);
    heard_init(&b);
    rig_shut();
    struct sched_job job = job_of(p, 40, 100, &a);
    cr_assert_eq(submit(&r, &job), 0);
    rig_await_window();
    job = job_of(q, 40, 10, &b);
    cr_assert_eq(submit(&r, &job), 0);
    rig_open_gate();
    heard_wait(&a, HEARD_DONE);
    heard_wait(&b, HEARD_DONE);
    rig_close(&r);

    const struct policy_decision *d = NULL;
    for (unsigned i = 0; i < ear.n && !d; i++)
        if (ear.at[i]->call == POLICY_CALL_PLACE && ear.at[i]->job == b.job)
            d = ear.at[i];
    cr_assert_not_null(d);
    cr_expect_eq(d->answer.result, POLICY_DECIDED);
    cr_expect_eq((int32_t)d->answer.slot, b.slot);
    cr_expect_str_eq(d->answer.reason, "new_blank");
    cr_assert_not_null(d->answer.candidate_loss);
    cr_expect_eq(d->answer.candidate_loss[b.slot], 0);
    unsigned busy = 0, considered = 0;
    for (uint32_t i = 0; i < d->snapshot->n_slots; i++) {
        busy += (policy_at(d->snapshot, i)->flags & POLICY_BUSY) != 0;
        considered += d->answer.candidate_loss[i] == d->answer.candidate_loss[i];
    }
    cr_expect_eq(busy, 1, "the other one had gone on in a slot");
    cr_expect_eq(considered, r.o.slots - 1, "all but the busy one");
    close_heard(&r, &ear);
    heard_clear(&a);
    heard_clear(&b);
    free(p);
    free(q);
}

Test(sched_decisions, one_that_was_removed_hears_nothing)
{
    struct ear ear;
    struct heard a, b;
    struct sched_options o = rig_options;
    listen(&ear, &o);
    policy_listeners_remove(o.listeners, (struct policy_listener){ hear, &ear });
    cr_expect_not(policy_listeners_any(o.listeners));
    struct rig r = rig_open(&o, 4096);
    park_one(&r, &a, &b);
    rig_close(&r);
    cr_expect_eq(ear.n + ear.shown, 0);
    close_heard(&r, &ear);
    heard_clear(&a);
    heard_clear(&b);
}

/* How many waits after a stop by length came back within the bin that `age_ns` falls into. */
static uint64_t came_back(const struct policy_decision *d, uint64_t age_ns)
{
    const struct policy_returns *w = policy_returns_after(d->snapshot, POLICY_STOP_LENGTH);
    cr_assert_not_null(w);
    for (uint32_t i = w->bins; i-- > 0;)
        if (w->edges_ns[i] <= age_ns)
            return w->returned[i];
    return 0;
}

Test(sched_decisions, policies_are_told_how_soon_conversations_came_back)
{
    struct ear ear;
    struct heard h[3];
    size_t n;
    struct rig r = open_heard(&ear, &rig_options);
    for (int i = 0; i < 3; i++)
        heard_init(&h[i]);
    int32_t *first = prompt_of(1, 100), *other = prompt_of(2, 50);
    struct sched_job job = job_of(first, 100, 20, &h[0]);
    run_job(&r, &job);
    atomic_fetch_add(&rig_ahead_ns, 10000000000u); /* 10 s until the next turn */
    int32_t *turn = next_turn(first, 100, &h[0], 3, 10, &n);
    job = job_of(turn, n, 20, &h[1]);
    run_job(&r, &job);
    atomic_fetch_add(&rig_ahead_ns, 60000000000u);
    job = job_of(other, 50, 20, &h[2]);
    run_job(&r, &job); /* main is parked: the policy is asked */
    rig_close(&r);

    const struct policy_decision *d = first_of(&ear, POLICY_CALL_PARK);
    cr_assert_not_null(d);
    cr_expect_eq(came_back(d, 10000000000u), 1);
    cr_expect_eq(came_back(d, 60000000000u), 0, "that one still waits");
    const struct policy_returns *w = policy_returns_after(d->snapshot, POLICY_STOP_LENGTH);
    cr_expect_eq(w->at_risk[0], 2);
    uint64_t late = 0;
    for (uint32_t i = 0; i < w->bins; i++)
        if (w->edges_ns[i] > 15000000000u && w->edges_ns[i] < 60000000000u)
            late = w->at_risk[i];
    cr_expect_eq(late, 1, "only the second waited so long");
    close_heard(&r, &ear);
    free(first);
    free(turn);
    free(other);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
}

Test(sched_decisions, a_policy_is_told_of_groups_their_rows_and_of_padding)
{
    struct ear ear;
    struct heard h[3];
    int32_t *p[3];
    struct sched_options o = rig_options;
    o.groups = 4;
    o.padded = true;
    o.rows = 8;
    struct rig r = open_heard(&ear, &o);
    for (uint32_t i = 0; i < 3; i++) {
        heard_init(&h[i]);
        p[i] = prompt_of(80 + i, 30);
        struct sched_job job = job_of(p[i], 30, 20, &h[i]);
        if (i < 2)
            job.id_slot = (int32_t)(2 + 3 * i); /* in groups 1 and 2 */
        if (i < 2)
            rig_hold(&r, &job);
        else
            run_job(&r, &job);
    }
    rig_close(&r);
    const struct policy_decision *d = first_of(&ear, POLICY_CALL_PLACE);
    cr_assert_not_null(d);
    cr_expect_eq(d->snapshot->flags & POLICY_PADDING_SAFE, 0);
    cr_assert_eq(d->snapshot->n_groups, 4);
    for (uint32_t g = 0; g < 4; g++) {
        cr_expect_eq(policy_busy_rows(d->snapshot, g), g == 1 || g == 2, "group %u", g);
    }
    for (uint32_t i = 0; i < 8; i++)
        cr_expect_eq(policy_at(d->snapshot, i)->group, i / 2);
    close_heard(&r, &ear);
    for (uint32_t i = 0; i < 3; i++) {
        heard_clear(&h[i]);
        free(p[i]);
    }
}
