/* Tests of core/policy/shadow.c and asker.c: shadows are asked what was decided, counted by whether they
 * agree, and replaced without a trace of the old; one that hangs holds nobody up. */
#include "policy_case.h"

#include "policy/asker.h"
#include "policy/feed.h"
#include "policy/host.h"
#include "policy/loaded.h"
#include "policy/shadow.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

/* ---- a policy that answers as it is told ---- */

struct script {
    uint32_t slot, source_kind, source, park, reason;
    double give_up[3];
    uint64_t superseded;
    pthread_mutex_t *held; /* taken while it answers */
    sem_t *asked;          /* with it: posted before it is taken */
    uint32_t history_size; /* seen */
};

static int said_place(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                      struct policy_place *a)
{
    struct script *say = (struct script *)(uintptr_t)self;
    (void)r;
    if (say->held) {
        sem_post(say->asked);
        pthread_mutex_lock(say->held);
        pthread_mutex_unlock(say->held);
    }
    say->history_size = s->slot_stride;
    a->slot = say->slot;
    a->source_kind = say->source_kind;
    a->source = say->source;
    a->reason = say->reason;
    return POLICY_DECIDED;
}

static int said_park(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                     struct policy_park *a)
{
    const struct script *say = self;
    (void)s;
    (void)r;
    a->slot = say->park;
    return say->park == POLICY_NO_SLOT ? POLICY_NONE : POLICY_DECIDED;
}

static int said_state(const void *self, const struct policy_snapshot *s, struct policy_state *a)
{
    const struct script *say = self;
    for (uint32_t i = 0; i < s->n_slots; i++)
        *policy_worth_at(a, i) =
            (struct policy_worth){ .state = POLICY_STATE_EXPIRED, .give_up = say->give_up[i] };
    *a->of_main = (struct policy_worth){ .state = POLICY_STATE_PROTECTED };
    return POLICY_DECIDED;
}

static int said_superseded(const void *self, const struct policy_snapshot *s, struct policy_set *a)
{
    const struct script *say = self;
    (void)s;
    a->words[0] = say->superseded;
    return POLICY_DECIDED;
}

static const struct policy_reason reasons[] = { { "said", "It was told to." } };

static const struct slot_policy scripted = {
    .head = POLICY_HEAD(0),
    .name = "scripted",
    .version = "7",
    .summary = "Says what it is told to.",
    .reasons = reasons,
    .n_reasons = 1,
    .place = said_place,
    .park_destination = said_park,
    .cache_state = said_state,
    .superseded_slots = said_superseded,
};

static struct policy_loaded *load(const struct slot_policy *entry, struct script *say)
{
    struct policy_loaded *p;
    const struct policy_loaded_parts parts = { .entry = entry, .self = say, .digest = "abc" };
    cr_assert_eq(policy_loaded_new(&parts, &p), 0);
    return p;
}

/* Three slots, blank but for their lengths, and a main. */
static struct case_table *table(void)
{
    struct case_table *t = case_new(3, 3, true);
    for (uint32_t i = 0; i < 3; i++)
        t->slots[i].h.tokens = t->slots[i].h.turn_tokens = 10 + i;
    t->slots[1].h.shared_prompt = 1;
    t->main.h.tokens = 50;
    case_ready(t);
    return t;
}

/* ---- a server in small ---- */

struct rig {
    struct policy_listeners *l;
    struct policy_shadows *s;
    struct case_table *t;
};

static struct rig rig_open(void)
{
    struct rig r = { .t = table() };
    cr_assert_eq(policy_listeners_new(&r.l), 0);
    cr_assert_eq(policy_shadows_new(r.l, &r.s), 0);
    return r;
}

static void rig_close(struct rig *r)
{
    policy_shadows_free(r->s);
    policy_listeners_free(r->l);
    free(r->t);
}

static void use(struct rig *r, struct policy_loaded *const *p, size_t n)
{
    char err[256] = "";
    cr_assert_eq(policy_shadows_replace(r->s, p, n, err, sizeof err), 0, "%s", err);
}

static struct policy_decision decided(struct rig *r, enum policy_call call, struct policy_answer a)
{
    bool asks = call == POLICY_CALL_PLACE || call == POLICY_CALL_PARK;
    return (struct policy_decision){ .call = call,
                                     .snapshot = &r->t->v,
                                     .request = asks ? &r->t->request : NULL,
                                     .placing = POLICY_NO_SLOT,
                                     .answer = a };
}

static void offer(struct rig *r, enum policy_call call, struct policy_answer a)
{
    struct policy_decision d = decided(r, call, a);
    cr_assert_eq(policy_listeners_offer(r->l, &d), 0);
}

static uint64_t heard(const struct policy_shadow_status *st)
{
    uint64_t n = st->dropped;
    for (unsigned c = 0; c < POLICY_CALLS; c++)
        n += st->agreed[c] + st->disagreed[c] + st->breaches[c];
    return n;
}

/* The status of the first shadow once it has dealt with n decisions. */
static struct policy_shadow_status status_after(struct rig *r, uint64_t n)
{
    struct policy_shadow_status st[POLICY_SHADOWS_MAX];
    for (int i = 0; i < 20000; i++) {
        cr_assert_eq(policy_shadows_status(r->s, st), 1);
        if (heard(&st[0]) >= n)
            return st[0];
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    cr_assert_fail("%lu of %lu decisions in 20 s", heard(&st[0]), n);
    return st[0];
}

Test(shadow, agreements_and_disagreements_are_counted_by_call)
{
    struct rig r = rig_open();
    struct script say = {
        .slot = 1, .source_kind = POLICY_SOURCE_MAIN, .park = 2, .give_up = { 1, 2, 3 }, .superseded = 4
    };
    struct policy_loaded *p = load(&scripted, &say);
    const struct policy_worth same[4] = { { .state = POLICY_STATE_EXPIRED, .give_up = 10 },
                                          { .state = POLICY_STATE_EXPIRED, .give_up = 20 },
                                          { .state = POLICY_STATE_EXPIRED, .give_up = 21 },
                                          { .state = POLICY_STATE_PROTECTED, .give_up = -1 } };
    struct policy_worth order[4], state[4];
    const uint64_t four = 4, five = 5;
    memcpy(order, same, sizeof same);
    memcpy(state, same, sizeof same);
    order[1].give_up = 21;
    state[3].state = POLICY_STATE_EXPIRED;
    r.t->main.h.shared_prompt = 9;
    use(&r, &p, 1);
    policy_loaded_unref(p);

    offer(&r, POLICY_CALL_PLACE, (struct policy_answer){ .slot = 1, .source_kind = POLICY_SOURCE_MAIN });
    offer(&r, POLICY_CALL_PLACE, (struct policy_answer){ .slot = 0, .source_kind = POLICY_SOURCE_MAIN });
    offer(&r, POLICY_CALL_PLACE,
          (struct policy_answer){ .slot = 1, .source_kind = POLICY_SOURCE_SLOT, .source = 1 });
    offer(&r, POLICY_CALL_PLACE, (struct policy_answer){ .result = POLICY_NONE, .slot = POLICY_NO_SLOT });
    offer(&r, POLICY_CALL_PARK, (struct policy_answer){ .slot = 2 });
    offer(&r, POLICY_CALL_PARK, (struct policy_answer){ .result = POLICY_NONE, .slot = POLICY_NO_SLOT });
    offer(&r, POLICY_CALL_STATE, (struct policy_answer){ .worth = same });
    offer(&r, POLICY_CALL_STATE, (struct policy_answer){ .worth = order });
    offer(&r, POLICY_CALL_STATE, (struct policy_answer){ .worth = state });
    offer(&r, POLICY_CALL_SUPERSEDED, (struct policy_answer){ .superseded = &four });
    offer(&r, POLICY_CALL_SUPERSEDED, (struct policy_answer){ .superseded = &five });
    struct policy_shadow_status st = status_after(&r, 11);
    cr_expect_str_eq(st.name, "scripted");
    cr_expect_str_eq(st.version, "7");
    cr_expect_str_eq(st.digest, "abc");
    const uint64_t agreed[] = { 1, 1, 1, 1 }, disagreed[] = { 3, 1, 2, 1 }, none[4] = { 0 };
    cr_expect_arr_eq(st.agreed, agreed, sizeof agreed);
    cr_expect_arr_eq(st.disagreed, disagreed, sizeof disagreed);
    cr_expect_arr_eq(st.breaches, none, sizeof none);
    cr_expect_eq(st.asked[POLICY_CALL_PLACE], 4);
    cr_expect_eq(st.dropped, 0);
    rig_close(&r);
}

Test(shadow, another_source_is_a_disagreement)
{
    struct rig r = rig_open();
    struct script say = { .slot = 0, .source_kind = POLICY_SOURCE_SLOT, .source = 1 };
    struct policy_loaded *p = load(&scripted, &say);
    use(&r, &p, 1);
    policy_loaded_unref(p);
    for (uint32_t source = 0; source < 3; source++)
        offer(&r, POLICY_CALL_PLACE,
              (struct policy_answer){ .slot = 0, .source_kind = POLICY_SOURCE_SLOT, .source = source });
    struct policy_shadow_status st = status_after(&r, 3);
    cr_expect_eq(st.agreed[POLICY_CALL_PLACE], 1);
    cr_expect_eq(st.disagreed[POLICY_CALL_PLACE], 2);
    rig_close(&r);
}

Test(shadow, a_breach_is_a_breach_each_time)
{
    struct rig r = rig_open();
    struct script say = { .slot = 9, .park = 0 };
    struct policy_loaded *p = load(&scripted, &say);
    use(&r, &p, 1);
    policy_loaded_unref(p);
    for (int i = 0; i < 10; i++)
        offer(&r, POLICY_CALL_PLACE, (struct policy_answer){ .slot = 0 });
    offer(&r, POLICY_CALL_PARK, (struct policy_answer){ .slot = 0 });
    struct policy_shadow_status st = status_after(&r, 11);
    cr_expect_eq(st.breaches[POLICY_CALL_PLACE], 10, "no quarantine, and nobody answers instead");
    cr_expect_eq(st.agreed[POLICY_CALL_PARK], 1);
    rig_close(&r);
}

Test(shadow, new_ones_begin_at_nothing_and_old_ones_are_gone)
{
    struct rig r = rig_open();
    struct script say = { .slot = 0 };
    struct policy_loaded *p = load(&scripted, &say), *both[2] = { p, policy_loaded_builtin() };
    struct policy_shadow_status st[POLICY_SHADOWS_MAX];
    use(&r, both, 2);
    offer(&r, POLICY_CALL_PLACE, (struct policy_answer){ .slot = 0 });
    use(&r, both + 1, 1);
    cr_expect_eq(policy_shadows_status(r.s, st), 1);
    cr_expect_str_eq(st[0].name, "builtin");
    cr_expect_eq(heard(&st[0]), 0);
    offer(&r, POLICY_CALL_SUPERSEDED, (struct policy_answer){ .superseded = &(uint64_t){ 0 } });
    cr_expect_eq(status_after(&r, 1).agreed[POLICY_CALL_SUPERSEDED], 1);
    use(&r, NULL, 0);
    cr_expect_eq(policy_shadows_status(r.s, st), 0);
    cr_expect_not(policy_listeners_any(r.l), "nothing is copied for nobody");
    policy_loaded_unref(p);
    rig_close(&r);
}

static void hear_nothing(void *arg, struct policy_decision *d)
{
    (void)arg;
    (void)d;
}

Test(shadow, too_many_change_nothing)
{
    struct rig r = rig_open();
    struct policy_loaded *many[POLICY_SHADOWS_MAX + 1], *one = policy_loaded_builtin();
    struct policy_shadow_status st[POLICY_SHADOWS_MAX];
    char err[256] = "";
    for (unsigned i = 0; i <= POLICY_SHADOWS_MAX; i++)
        many[i] = one;
    use(&r, &one, 1);
    cr_expect_eq(policy_shadows_replace(r.s, many, POLICY_SHADOWS_MAX + 1, err, sizeof err), -E2BIG);
    cr_expect_str_eq(err, "9 shadow policies where at most 8 are allowed");
    cr_expect_eq(policy_shadows_status(r.s, st), 1);
    use(&r, many, POLICY_SHADOWS_MAX);
    cr_expect_eq(policy_shadows_status(r.s, st), POLICY_SHADOWS_MAX);
    /* As many again, beside a trace. */
    cr_assert_eq(policy_listeners_add(r.l, (struct policy_listener){ hear_nothing, NULL }), 0);
    use(&r, many, POLICY_SHADOWS_MAX);
    cr_expect_eq(policy_shadows_status(r.s, st), POLICY_SHADOWS_MAX);
    rig_close(&r);
}

Test(shadow, one_that_hangs_costs_drops_and_is_left_behind)
{
    static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    static sem_t asked;
    static struct script say = { .slot = 0, .held = &held, .asked = &asked };
    struct rig r = rig_open();
    struct policy_loaded *p = load(&scripted, &say);
    struct policy_shadow_status st[POLICY_SHADOWS_MAX];
    sem_init(&asked, 0, 0);
    use(&r, &p, 1);
    pthread_mutex_lock(&held);
    for (int i = 0; i < 1000; i++)
        offer(&r, POLICY_CALL_PLACE, (struct policy_answer){ .slot = 0 });
    cr_assert_eq(policy_shadows_status(r.s, st), 1);
    cr_expect_geq(st[0].dropped, 1000 - 258u);
    cr_expect_eq(heard(&st[0]), st[0].dropped);
    char err[256] = "";
    sem_wait(&asked); /* before that it could still be stopped */
    cr_expect_eq(policy_shadows_replace(r.s, NULL, 0, err, sizeof err), 1,
                 "a second, and no longer; it is told");
    cr_expect_eq(policy_shadows_status(r.s, st), 0);
    pthread_mutex_unlock(&held);
    policy_loaded_unref(p);
    rig_close(&r);
}

/* ---- feed ---- */

static void take_held(void *arg, const struct policy_decision *d)
{
    (void)d;
    pthread_mutex_lock(arg);
    pthread_mutex_unlock(arg);
}

static void end_nothing(void *arg)
{
    (void)arg;
}

Test(feed, a_queue_is_bounded_in_bytes_too)
{
    static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    static struct policy_history many[1024];
    const struct policy_feed_options o = {
        .thread_name = "feed", .take = take_held, .end = end_nothing, .arg = &held
    };
    uint32_t *shared = calloc(1025 * 1025, sizeof *shared);
    struct policy_snapshot v = { .slots = many,
                                 .n_slots = 1024,
                                 .slot_stride = sizeof many[0],
                                 .shared = shared,
                                 .shared_stride = 1025 * sizeof *shared };
    struct policy_decision d = { .call = POLICY_CALL_SUPERSEDED, .snapshot = &v }, *copy;
    struct policy_feed *f;
    cr_assert_eq(policy_decision_new(&d, &copy), 0);
    cr_assert_eq(policy_feed_start(&o, &f), 0);
    cr_assert_gt(copy->size, 4 << 20);
    pthread_mutex_lock(&held);
    for (int i = 0; i < 10; i++)
        policy_feed_offer(f, copy);
    cr_expect_eq(policy_feed_dropped(f), 10 - POLICY_FEED_BYTES / copy->size);
    cr_expect_not(policy_feed_stop(f, true, 1), "it is held up");
    pthread_mutex_unlock(&held);
    policy_decision_unref(copy);
    free(shared);
}

Test(feed, what_is_queued_is_taken_before_the_end_when_asked)
{
    struct case_table *t = table();
    static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    const struct policy_feed_options o = {
        .thread_name = "feed", .take = take_held, .end = end_nothing, .arg = &held
    };
    struct policy_decision d = { .call = POLICY_CALL_SUPERSEDED, .snapshot = &t->v }, *copy;
    struct policy_feed *f;
    cr_assert_eq(policy_decision_new(&d, &copy), 0);
    for (int finish = 0; finish < 2; finish++) {
        cr_assert_eq(policy_feed_start(&o, &f), 0);
        for (int i = 0; i < 50; i++)
            policy_feed_offer(f, copy);
        cr_expect(policy_feed_stop(f, finish, 20000));
    }
    policy_decision_unref(copy);
    free(t);
}

/* ---- asker ---- */

Test(asker, a_policy_of_larger_structs_sees_them)
{
    struct slot_policy entry = scripted;
    struct script say = { .slot = 1 };
    struct policy_asker *a;
    struct policy_answer answer;
    char err[160];
    struct rig r = rig_open();
    entry.head.size_history = 250;
    entry.head.size_returns = 64;
    struct policy_loaded *p = load(&entry, &say);
    struct policy_decision d = decided(&r, POLICY_CALL_PLACE, (struct policy_answer){ 0 });
    cr_assert_eq(policy_asker_new(p, &a), 0);
    policy_loaded_unref(p);
    cr_expect_eq(policy_asker_ask(a, &d, &answer, err, sizeof err), 0);
    cr_expect_eq(say.history_size, 256);
    cr_expect_eq(answer.slot, 1);
    cr_expect_str_eq(answer.reason, "said");
    cr_expect_str_eq(answer.sentence, "It was told to.");
    policy_asker_free(a);
    policy_asker_free(NULL);
    rig_close(&r);
}

Test(asker, an_illegal_answer_is_told_and_the_next_question_asked)
{
    struct script say = { .slot = 3 };
    struct policy_loaded *p = load(&scripted, &say);
    struct policy_asker *a;
    struct policy_answer answer;
    char err[160];
    struct rig r = rig_open();
    struct policy_decision d = decided(&r, POLICY_CALL_PLACE, (struct policy_answer){ 0 });
    cr_assert_eq(policy_asker_new(p, &a), 0);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(policy_asker_ask(a, &d, &answer, err, sizeof err), -EPROTO);
        cr_expect_str_eq(err, "place: slot 3 of 3");
    }
    say.slot = 2;
    cr_expect_eq(policy_asker_ask(a, &d, &answer, err, sizeof err), 0);
    cr_expect_eq(answer.slot, 2);
    /* Another number of slots. */
    struct case_table *t = case_new(7, 7, false);
    case_ready(t);
    d.snapshot = &t->v;
    say.slot = 6;
    cr_expect_eq(policy_asker_ask(a, &d, &answer, err, sizeof err), 0);
    cr_expect_eq(answer.slot, 6);
    free(t);
    policy_asker_free(a);
    policy_loaded_unref(p);
    rig_close(&r);
}
