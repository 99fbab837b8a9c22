/* Tests of core/policy/seat.c, loaded.c, marker.c, and of what the host makes of generations and of time. */
#include "policy_case.h"

#include "policy/host.h"

#include <errno.h>
#include <pthread.h>

/* ---- policies that count their ends, and a clock that is set ---- */

#define S(n) ((uint64_t)(n)*1000000000)

static uint32_t destroyed;
static uint64_t clock_ns, call_takes_ns;
static bool breaks;
static struct policy_inside seen;
static bool seen_here;

static void destroy(void *self)
{
    destroyed++;
    cr_expect_not_null(self);
    cr_expect(policy_marker_here(&seen) && !strcmp(seen.function, "destroy"));
}

static int place(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                 struct policy_place *a)
{
    (void)self;
    (void)s;
    (void)r;
    seen_here = policy_marker_here(&seen);
    clock_ns += call_takes_ns;
    a->slot = breaks ? 99 : 1;
    return POLICY_DECIDED;
}

static const struct policy_reason reasons[] = { { "said", "It said so." } };
static const struct slot_policy plain = { .head = POLICY_HEAD(0),
                                          .name = "plain",
                                          .version = "7",
                                          .summary = "Takes the second slot.",
                                          .reasons = reasons,
                                          .n_reasons = 1,
                                          .destroy = destroy,
                                          .place = place };

static uint64_t now_ns(void)
{
    return clock_ns;
}

static struct policy_loaded *make(const struct slot_policy *entry, struct policy_graveyard *g)
{
    struct policy_loaded *p = NULL;
    struct policy_loaded_parts parts = {
        .entry = entry, .self = (void *)(uintptr_t)entry, .path = "a.so", .digest = "abc", .graveyard = g
    };
    cr_assert_eq(policy_loaded_new(&parts, &p), 0);
    return p;
}

static void count_wake(void *arg)
{
    ++*(uint32_t *)arg;
}

/* ---- counting ---- */

Test(seat, the_last_reference_puts_it_on_the_graveyard)
{
    uint32_t woken = 0;
    struct policy_graveyard *g = NULL;
    struct policy_seat *s = NULL;
    uint64_t generation = 0;
    cr_assert_eq(policy_graveyard_new(count_wake, &woken, &g), 0);
    struct policy_loaded *a = make(&plain, g), *b = make(&plain, g);
    cr_assert_eq(policy_seat_new(a, &s), 0);
    policy_loaded_unref(a);
    struct policy_loaded *taken = policy_seat_take(s, &generation);
    cr_expect(taken == a && generation == 1);
    cr_expect_eq(policy_seat_publish(s, b), 2);
    policy_loaded_unref(b);
    cr_expect(woken == 0 && policy_graveyard_bury(g) == 0, "it is still asked");
    cr_expect_str_eq(policy_loaded_name(taken), "plain");
    policy_loaded_unref(taken);
    cr_expect(woken == 1 && destroyed == 0, "not by whoever was last");
    cr_expect(policy_graveyard_bury(g) == 1 && destroyed == 1);
    cr_expect_eq(policy_graveyard_bury(g), 0);
    policy_seat_free(s);
    cr_expect_eq(woken, 2);
    policy_graveyard_free(g);
    cr_expect_eq(destroyed, 2);
}

Test(seat, the_builtin_is_always_there)
{
    struct policy_loaded *p = policy_loaded_builtin();
    for (int i = 0; i < 3; i++)
        policy_loaded_unref(p);
    cr_expect_eq(policy_loaded_entry(policy_loaded_ref(p)), &policy_builtin);
    cr_expect_str_eq(policy_loaded_path(p), "builtin");
    cr_expect_str_eq(policy_loaded_digest(p), "");
    policy_loaded_unref(NULL);
    cr_expect_eq(destroyed, 0);
}

Test(seat, without_a_graveyard_it_ends_at_once)
{
    policy_loaded_unref(make(&plain, NULL));
    cr_expect_eq(destroyed, 1);
}

/* ---- what the host makes of it ---- */

struct rig {
    struct case_table *t;
    struct policy_seat *seat;
    struct policy_host *h;
    uint32_t told, quarantined;
};

static void listen(void *arg, const struct policy_breach *b)
{
    struct rig *g = arg;
    g->told++;
    g->quarantined += b->quarantined;
}

static void rig_init(struct rig *g, const struct slot_policy *entry)
{
    *g = (struct rig){ .t = case_new(4, 4, true) };
    struct policy_loaded *p = make(entry, NULL);
    case_ready(g->t);
    cr_assert_eq(policy_seat_new(p, &g->seat), 0);
    policy_loaded_unref(p);
    struct policy_host_options o = { .seat = g->seat, .now_ns = now_ns, .on_breach = listen, .arg = g };
    cr_assert_eq(policy_host_new(&o, 4, &g->h), 0);
}

static void rig_free(struct rig *g)
{
    policy_host_free(g->h);
    policy_seat_free(g->seat);
    free(g->t);
}

static void publish(struct rig *g, const struct slot_policy *entry)
{
    struct policy_loaded *p = make(entry, NULL);
    policy_seat_publish(g->seat, p);
    policy_loaded_unref(p);
}

static struct policy_host_place ask(struct rig *g)
{
    struct policy_host_place a;
    policy_host_pin(g->h);
    cr_expect_eq(policy_host_place(g->h, &g->t->v, &g->t->request, &a), POLICY_DECIDED);
    policy_host_unpin(g->h);
    return a;
}

static struct policy_host_status status(const struct rig *g)
{
    struct policy_host_status s;
    policy_host_status(g->h, &s);
    return s;
}

Test(seat, a_group_is_answered_by_one_generation)
{
    struct rig g;
    struct policy_host_place a;
    struct slot_policy grown = plain;
    grown.head.size_history = 400;
    grown.name = "grown";
    rig_init(&g, &plain);
    cr_expect_not(policy_host_pin(g.h), "as when it was made");
    publish(&g, &grown);
    cr_expect_eq(destroyed, 0, "it is pinned");
    policy_host_place(g.h, &g.t->v, &g.t->request, &a);
    cr_expect(status(&g).generation == 1 && policy_host_sizes(g.h).history < 400);
    policy_host_unpin(g.h);
    cr_expect_eq(destroyed, 1);
    cr_expect(policy_host_pin(g.h), "another layout");
    cr_expect(policy_host_generation(g.h) == 2 && policy_host_sizes(g.h).history == 400);
    cr_expect_str_eq(policy_host_name(g.h), "grown");
    policy_host_unpin(g.h);
    cr_expect_str_eq(status(&g).version, "7");
    cr_expect_str_eq(status(&g).digest, "abc");
    rig_free(&g);
}

Test(seat, three_breaches_within_a_minute_are_too_many)
{
    struct rig g;
    rig_init(&g, &plain);
    breaks = true;
    clock_ns = S(1000);
    cr_expect(ask(&g).by_builtin);
    clock_ns += S(31);
    ask(&g);
    clock_ns += S(30); /* the first is 61 s old */
    ask(&g);
    cr_expect(g.told == 3 && g.quarantined == 0 && !status(&g).quarantined);
    clock_ns += S(29); /* the second is 59 s old */
    ask(&g);
    cr_expect(g.told == 4 && g.quarantined == 1 && status(&g).quarantined && status(&g).quarantines == 1);

    breaks = false;
    cr_expect(ask(&g).by_builtin, "it is not asked any more");
    clock_ns += S(100000);
    cr_expect(ask(&g).by_builtin);
    cr_expect_eq(status(&g).call[POLICY_CALL_PLACE].breaches, 4);

    struct policy_loaded *same = policy_seat_take(g.seat, NULL);
    policy_seat_publish(g.seat, same);
    policy_loaded_unref(same);
    struct policy_host_place a = ask(&g);
    cr_expect(!a.by_builtin && a.slot == 1, "another generation is asked again");
    cr_expect_not(status(&g).quarantined);
    breaks = true;
    ask(&g);
    ask(&g);
    cr_expect_not(status(&g).quarantined, "and begins at no breaches");
    rig_free(&g);
}

Test(seat, calls_are_timed)
{
    struct rig g;
    rig_init(&g, &plain);
    const uint64_t takes_ns[] = { 0, 1000, 1001, 999999, 1000000, 1000001, 100000000, 2000000000 };
    for (size_t i = 0; i < sizeof takes_ns / sizeof *takes_ns; i++) {
        call_takes_ns = takes_ns[i];
        ask(&g);
    }
    struct policy_call_counts c = status(&g).call[POLICY_CALL_PLACE];
    uint64_t sum = 0, in_bins = 0;
    for (size_t i = 0; i < sizeof takes_ns / sizeof *takes_ns; i++)
        sum += takes_ns[i];
    for (uint32_t i = 0; i < POLICY_TIME_BINS; i++)
        in_bins += c.times[i];
    cr_expect(c.calls == 8 && in_bins == 8 && c.time_ns == sum);
    cr_expect_eq(c.slow, 3, "over a millisecond");
    cr_expect(c.times[0] == 2 && c.times[1] == 1 && c.times[POLICY_TIME_BINS - 1] == 1);
    cr_expect_eq(g.told, 0, "slow is no breach");
    rig_free(&g);
}

Test(seat, a_policy_that_lacks_functions_is_not_timed_for_them)
{
    struct rig g;
    rig_init(&g, &plain);
    policy_host_pin(g.h);
    policy_host_state(g.h, &g.t->v);
    policy_host_unpin(g.h);
    struct policy_call_counts c = status(&g).call[POLICY_CALL_STATE];
    cr_expect(c.calls == 1 && c.by_builtin == 1 && c.breaches == 0 && c.times[0] == 0);
    rig_free(&g);
}

/* ---- the marker ---- */

static void *read_from_another_thread(void *arg)
{
    const struct policy_marker *m = arg;
    struct policy_inside in;
    cr_expect(policy_marker_read(m, &in) && !strcmp(in.policy, "abcdefghijklmnopqrstuvwxyz01234") &&
              !strcmp(in.function, "place") && in.since_ns == 5);
    cr_expect_not(policy_marker_here(&in), "that is somebody else's");
    return NULL;
}

Test(seat, the_marker_tells_where_a_thread_is)
{
    struct rig g;
    rig_init(&g, &plain);
    clock_ns = 42;
    ask(&g);
    cr_expect(seen_here && !strcmp(seen.policy, "plain") && !strcmp(seen.function, "place") &&
              seen.since_ns == 42);
    cr_expect_not(policy_marker_here(&seen));
    cr_expect_not(policy_marker_read(policy_host_marker(g.h), &seen));
    rig_free(&g);

    struct policy_marker m = { 0 };
    pthread_t other;
    cr_expect_not(policy_marker_read(&m, &seen));
    policy_marker_enter(&m, "abcdefghijklmnopqrstuvwxyz0123456789", "place", 5);
    cr_assert_eq(pthread_create(&other, NULL, read_from_another_thread, &m), 0);
    pthread_join(other, NULL);
    policy_marker_leave(&m);
    cr_expect_not(policy_marker_read(&m, &seen));
}
