/* Listeners under stress, for ThreadSanitizer, where Criterion does not start: one thread makes decisions as
 * the scheduler does, one exchanges shadows and trace files as the loader does, one reads all records. Every
 * decision that a listener was offered must have been taken or counted as dropped, and what shadows are asked
 * they must agree with, for they are all the policy that decided. Usage: policy_stress [DECISIONS] */
#include "abi/policy_words.h"
#include "policy/feed.h"
#include "policy/loaded.h"
#include "policy/shadow.h"
#include "policy/trace.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 24u

static struct policy_listeners *listeners;
static struct policy_shadows *shadows;
static struct policy_trace *trace;
static unsigned long n_decisions = 40000;
static atomic_ulong decided, taken;
static atomic_uint wrong;
static char path[64];

static void fail(const char *what, unsigned long a, unsigned long b)
{
    fprintf(stderr, "policy_stress: %s: %lu, %lu\n", what, a, b);
    atomic_fetch_add(&wrong, 1);
}

static void must(int r, const char *what)
{
    if (r < 0)
        fail(what, (unsigned long)-r, 0);
}

/* ---- the scheduler ---- */

static void *decide(void *arg)
{
    struct policy_history slots[SLOTS] = { 0 }, main_history = { .flags = POLICY_RELIABLE, .tokens = 9 };
    uint32_t shared[SLOTS + 1][SLOTS + 1] = { 0 };
    uint64_t none[1] = { 0 };
    (void)arg;
    for (unsigned long i = 0; i < n_decisions; i++) {
        for (uint32_t k = 0; k < SLOTS; k++)
            slots[k] = (struct policy_history){
                .id = k, .flags = POLICY_RELIABLE, .tokens = (uint32_t)(i + k), .last_use_ns = (int64_t)k
            };
        const struct policy_snapshot s = { .size = sizeof s,
                                           .flags = POLICY_PADDING_SAFE,
                                           .now_ns = (int64_t)i,
                                           .slots = slots,
                                           .n_slots = SLOTS,
                                           .slot_stride = sizeof slots[0],
                                           .main_history = &main_history,
                                           .shared = &shared[0][0],
                                           .shared_stride = sizeof shared[0] };
        struct policy_decision d = { .call = POLICY_CALL_SUPERSEDED,
                                     .policy = "builtin",
                                     .snapshot = &s,
                                     .answer = { .superseded = none } };
        must(policy_listeners_offer(listeners, &d), "offer");
        memset(slots, 0xff, sizeof slots); /* nobody may still be looking at these */
        atomic_fetch_add(&decided, 1);
        if (i % 64 == 63) /* as a server's decisions: not without pause */
            usleep(500);
    }
    return NULL;
}

/* ---- the loader ---- */

static void use_trace(const char *to)
{
    char err[256];
    int fd = -1;
    must(policy_trace_open(to, &fd, err, sizeof err), "trace file");
    must(policy_trace_use(trace, fd), "trace");
}

static void *exchange(void *arg)
{
    struct policy_loaded *all[POLICY_SHADOWS_MAX];
    char err[256];
    (void)arg;
    for (unsigned i = 0; i < POLICY_SHADOWS_MAX; i++)
        all[i] = policy_loaded_builtin();
    for (unsigned i = 0; atomic_load(&decided) < n_decisions; i++) {
        must(policy_shadows_replace(shadows, all, i % 4, err, sizeof err), "shadows");
        use_trace(i % 3 ? path : "/dev/null");
        use_trace(path);
        unlink(path);
        usleep(2000);
        policy_trace_use(trace, -1);
    }
    return NULL;
}

/* ---- a reader, and a listener that stays ---- */

static void *look(void *arg)
{
    (void)arg;
    while (atomic_load(&decided) < n_decisions) {
        struct policy_shadow_status st[POLICY_SHADOWS_MAX];
        size_t n = policy_shadows_status(shadows, st);
        for (size_t i = 0; i < n; i++)
            for (unsigned c = 0; c < POLICY_CALLS; c++)
                if (st[i].disagreed[c] || st[i].breaches[c])
                    fail("a policy disagrees with itself", st[i].disagreed[c], st[i].breaches[c]);
        if (policy_trace_status(trace).failed)
            fail("a line was not written", policy_trace_status(trace).failed, 0);
        usleep(300);
    }
    return NULL;
}

static void take(void *arg, const struct policy_decision *d)
{
    (void)arg;
    if (policy_at(d->snapshot, 3)->last_use_ns != 3)
        fail("a copy has changed", d->id, 0);
    atomic_fetch_add(&taken, 1);
}

static void end(void *arg)
{
    (void)arg;
}

static void run(void)
{
    void *(*const mains[])(void *) = { decide, exchange, look };
    pthread_t threads[3];
    struct policy_feed *feed;
    const struct policy_feed_options o = { .thread_name = "stays", .take = take, .end = end };
    must(policy_feed_start(&o, &feed), "feed");
    must(policy_listeners_add(listeners, (struct policy_listener){ policy_feed_offer, feed }), "listener");
    for (int i = 0; i < 3; i++)
        must(-pthread_create(&threads[i], NULL, mains[i], NULL), "thread");
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    policy_listeners_remove(listeners, (struct policy_listener){ policy_feed_offer, feed });
    unsigned long dropped = policy_feed_dropped(feed);
    if (!policy_feed_stop(feed, true, 60000))
        fail("the feed did not end", 0, 0);
    if (atomic_load(&taken) + dropped != n_decisions)
        fail("decisions are unaccounted for", atomic_load(&taken), dropped);
    printf("%lu decisions, %lu taken, %lu dropped, %lu lines\n", n_decisions, atomic_load(&taken), dropped,
           policy_trace_status(trace).lines);
}

static void on_trace_failure(void *arg, int error)
{
    (void)arg;
    fail("the trace cannot be written", (unsigned long)error, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        n_decisions = strtoul(argv[1], NULL, 10);
    snprintf(path, sizeof path, "/tmp/berth-stress-%d", (int)getpid());
    if (policy_listeners_new(&listeners) < 0 || policy_shadows_new(listeners, &shadows) < 0 ||
        policy_trace_new(listeners, on_trace_failure, NULL, &trace) < 0)
        return 1;
    run();
    policy_shadows_free(shadows);
    policy_trace_free(trace);
    if (policy_listeners_any(listeners))
        fail("somebody still listens", 0, 0);
    policy_listeners_free(listeners);
    unlink(path);
    return atomic_load(&wrong) ? 1 : 0;
}
