/* Policies exchanged while they are asked, for ThreadSanitizer, where Criterion does not start: two threads
 * with a host each ask whatever policy is in use, one of them through a snapshot laid out for it; a third
 * publishes policies in turn, among them ones loaded from a file and one that gives no legal answer, and
 * buries those nobody asks any more; a fourth reads the markers. A policy that is asked after its end finds
 * its own state spoilt and says so. Usage: policy_swap_stress BUILD [SWAPS] */
#include "abi/policy_words.h"
#include "policy/host.h"
#include "policy/load.h"
#include "util/clock.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 8u
#define ASKERS 2u
#define KINDS 5u
#define ALIVE 0x600df00du

static struct policy_seat *seat;
static struct policy_graveyard *graveyard;
static const struct policy_marker *markers[ASKERS];
static pthread_barrier_t begun;
static atomic_bool over;
static atomic_uint wrong, made, ended, woken, seen_inside;

static void fail(const char *what, unsigned a, unsigned b)
{
    fprintf(stderr, "policy_swap_stress: %s: %u, %u\n", what, a, b);
    atomic_fetch_add(&wrong, 1);
}

/* ---- policies of this program: larger and smaller structs, a right answer and a wrong one ---- */

struct state {
    atomic_uint alive; /* ALIVE until destroy */
    uint32_t slot;
};

static int place(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                 struct policy_place *a)
{
    const struct state *state = self;
    (void)r;
    for (uint32_t i = 0; i <= s->n_slots; i++)
        if (atomic_load(&state->alive) != ALIVE || policy_at(s, i)->tokens > 1000)
            fail("a policy was asked after its end, or about another table", i, 0);
    a->slot = state->slot;
    return POLICY_DECIDED;
}

static void destroy(void *self)
{
    struct state *state = self;
    if (atomic_exchange(&state->alive, 0) != ALIVE)
        fail("a policy was destroyed twice", 0, 0);
    atomic_fetch_add(&ended, 1);
    free(state);
}

static const struct policy_reason reasons[] = { { "said", "It said so." } };
static const struct slot_policy small = { .head = POLICY_HEAD(0),
                                          .name = "small",
                                          .version = "1",
                                          .summary = "Takes one slot.",
                                          .reasons = reasons,
                                          .n_reasons = 1,
                                          .place = place,
                                          .destroy = destroy };

static struct policy_loaded *make(uint32_t slot, uint32_t beyond)
{
    struct slot_policy entry = small;
    struct policy_loaded *p = NULL;
    struct state *state = malloc(sizeof *state);
    if (!state)
        exit(1);
    atomic_init(&state->alive, ALIVE);
    state->slot = slot;
    entry.head.size_history += beyond;
    entry.head.size_place += beyond;
    entry.head.size_worth += beyond;
    struct policy_loaded_parts parts = { .entry = &entry, .self = state, .graveyard = graveyard };
    if (policy_loaded_new(&parts, &p) < 0)
        exit(1);
    atomic_fetch_add(&made, 1);
    return p;
}

static struct policy_loaded *load(const char *build, const char *name)
{
    char path[4096], err[1024];
    struct policy_loaded *p = NULL;
    snprintf(path, sizeof path, "%s/plugins/%s.so", build, name);
    struct policy_load_options o = { .path = path, .graveyard = graveyard };
    if (policy_load(&o, &p, err, sizeof err) < 0) {
        fprintf(stderr, "policy_swap_stress: %s: %s\n", path, err);
        exit(1);
    }
    return p;
}

/* ---- threads ---- */

static void *ask(void *arg)
{
    struct policy_host *h = arg;
    struct slots_options o = { .n_slots = SLOTS, .group_slots = 4, .turn_token = -1, .key = { 1, 2 } };
    struct policy_request r = { .size = sizeof r, .prompt_tokens = 50 };
    struct slots *table = NULL;
    struct snapshot *b = NULL;
    struct snapshot_sizes sizes = policy_host_sizes(h);
    uint64_t last = 0;
    if (slots_new(&o, &table) < 0 || snapshot_new(table, &sizes, &b) < 0)
        exit(1);
    pthread_barrier_wait(&begun);
    for (unsigned i = 0; !atomic_load(&over); i++) {
        struct policy_host_place a;
        struct policy_host_park k;
        if (policy_host_pin(h)) {
            sizes = policy_host_sizes(h);
            snapshot_lay_out(b, &sizes);
        }
        const struct policy_snapshot *v =
            snapshot_build(b, table, &(struct snapshot_input){ .now_ns = i, .padding_safe = true });
        if (policy_host_place(h, v, &r, &a) != POLICY_DECIDED || a.slot >= SLOTS || !*a.reason)
            fail("no legal place", a.slot, SLOTS);
        policy_host_park(h, v, &r, a.slot, &k);
        policy_host_state(h, v);
        policy_host_superseded(h, v);
        if (policy_host_generation(h) < last)
            fail("an older generation", (unsigned)policy_host_generation(h), (unsigned)last);
        last = policy_host_generation(h);
        policy_host_unpin(h);
    }
    snapshot_free(b);
    slots_free(table);
    return NULL;
}

static void *watch(void *arg)
{
    (void)arg;
    pthread_barrier_wait(&begun);
    while (!atomic_load(&over)) {
        for (unsigned i = 0; i < ASKERS; i++) {
            struct policy_inside in;
            if (!policy_marker_read(markers[i], &in))
                continue;
            atomic_fetch_add(&seen_inside, 1);
            if (strcmp(in.policy, "small") && strcmp(in.policy, "value") && strcmp(in.policy, "lru") &&
                strcmp(in.policy, "builtin"))
                fail("the marker names nobody", i, 0);
        }
    }
    return NULL;
}

static void wake(void *arg)
{
    (void)arg;
    atomic_fetch_add(&woken, 1);
}

static void swap(const char *build, unsigned i)
{
    struct policy_loaded *p = i % KINDS == 0   ? make(i % SLOTS, 0)
                              : i % KINDS == 1 ? make(i % SLOTS, 200)
                              : i % KINDS == 2 ? make(SLOTS + i, 72) /* no slot there is */
                              : i % KINDS == 3 ? load(build, "value")
                                               : load(build, "lru");
    uint64_t generation = policy_seat_publish(seat, p);
    if (generation != i + 2u)
        fail("the generation", (unsigned)generation, i + 2);
    policy_loaded_unref(p);
    policy_graveyard_bury(graveyard);
}

int main(int argc, char **argv)
{
    pthread_t threads[ASKERS + 1];
    struct policy_host *hosts[ASKERS];
    unsigned swaps = argc > 2 ? (unsigned)atoi(argv[2]) : 100;
    if (argc < 2 || policy_graveyard_new(wake, NULL, &graveyard) < 0 ||
        policy_seat_new(policy_loaded_builtin(), &seat) < 0)
        return 2;
    pthread_barrier_init(&begun, NULL, ASKERS + 2);
    for (unsigned i = 0; i < ASKERS; i++) {
        struct policy_host_options o = { .seat = seat, .now_ns = clock_now_ns };
        if (policy_host_new(&o, SLOTS, &hosts[i]) < 0)
            return 1;
        markers[i] = policy_host_marker(hosts[i]);
        if (pthread_create(&threads[i], NULL, ask, hosts[i]))
            return 1;
    }
    if (pthread_create(&threads[ASKERS], NULL, watch, NULL))
        return 1;
    pthread_barrier_wait(&begun);
    for (unsigned i = 0; i < swaps; i++)
        swap(argv[1], i);
    atomic_store(&over, true);
    for (unsigned i = 0; i <= ASKERS; i++)
        pthread_join(threads[i], NULL);
    policy_seat_free(seat);
    policy_graveyard_free(graveyard);
    if (atomic_load(&made) != atomic_load(&ended) || atomic_load(&woken) != swaps)
        fail("not every policy ended once", atomic_load(&made), atomic_load(&ended));
    uint64_t breaches = 0, calls = 0;
    for (unsigned i = 0; i < ASKERS; i++) {
        struct policy_host_status status;
        policy_host_status(hosts[i], &status);
        calls += status.call[POLICY_CALL_PLACE].calls;
        breaches += status.call[POLICY_CALL_PLACE].breaches;
        policy_host_free(hosts[i]);
    }
    printf("%u swaps, %llu places, %llu breaches, %u times seen inside\n", swaps, (unsigned long long)calls,
           (unsigned long long)breaches, atomic_load(&seen_inside));
    return atomic_load(&wrong) || !calls ? 1 : 0;
}
