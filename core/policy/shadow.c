/* Shadows: see shadow.h. A shadow and its feed both hold its tally, so that one that hangs in a call can be
 * left behind. */
#include "policy/shadow.h"
#include "policy/asker.h"
#include "policy/feed.h"
#include "policy/loaded.h"
#include "util/clock.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOP_MS 1000u
#define STUCK_NS NS_PER_S

struct tally {
    atomic_uint refs;           /* the shadow's and the feed's */
    struct policy_asker *asker; /* the feed's */
    char name[32], version[64], digest[65];
    atomic_uint_least64_t asked[POLICY_CALLS], agreed[POLICY_CALLS], disagreed[POLICY_CALLS],
        breaches[POLICY_CALLS];
    atomic_uint_least64_t call_ns; /* since when it is in a call; 0: it is not */
};

struct shadow {
    struct tally *tally;
    struct policy_feed *feed;
};

struct policy_shadows {
    struct policy_listeners *listeners;
    pthread_mutex_t lock; /* a leaf: of what follows */
    struct shadow at[POLICY_SHADOWS_MAX];
    size_t n;
};

/* ---- agreement ---- */

static int order(double a, double b)
{
    return (a > b) - (a < b);
}

/* Same states, and of any two histories in one state the same one is given up first. */
static bool same_worth(const struct policy_worth *a, const struct policy_worth *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].state != b[i].state)
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (a[k].state == a[i].state && a[i].state != POLICY_STATE_BLANK &&
                order(a[k].give_up, a[i].give_up) != order(b[k].give_up, b[i].give_up))
                return false;
    }
    return true;
}

static bool same_place(const struct policy_answer *a, const struct policy_answer *b)
{
    if (a->result != b->result || a->slot != b->slot || a->source_kind != b->source_kind)
        return false;
    return a->source_kind != POLICY_SOURCE_SLOT || a->source == b->source;
}

static bool agree(const struct policy_decision *d, const struct policy_answer *other)
{
    const struct policy_answer *one = &d->answer;
    uint32_t n = d->snapshot->n_slots;
    switch (d->call) {
    case POLICY_CALL_PLACE:
        return same_place(one, other);
    case POLICY_CALL_PARK:
        return one->result == other->result && one->slot == other->slot;
    case POLICY_CALL_STATE:
        return same_worth(one->worth, other->worth, n + (d->snapshot->main_history != NULL));
    default:
        return memcmp(one->superseded, other->superseded, (n / 64 + 1) * sizeof *one->superseded) == 0;
    }
}

/* ---- one ---- */

static void release(struct tally *t)
{
    if (atomic_fetch_sub(&t->refs, 1) == 1)
        free(t);
}

static void take(void *arg, const struct policy_decision *d)
{
    struct tally *t = arg;
    struct policy_answer answer;
    char what[160];
    atomic_store(&t->call_ns, clock_now_ns());
    int r = policy_asker_ask(t->asker, d, &answer, what, sizeof what);
    atomic_store(&t->call_ns, 0);
    if (r < 0 && r != -EPROTO)
        return; /* no memory for its table: it was not asked */
    atomic_fetch_add(&t->asked[d->call], 1);
    atomic_fetch_add(r < 0               ? &t->breaches[d->call]
                     : agree(d, &answer) ? &t->agreed[d->call]
                                         : &t->disagreed[d->call],
                     1);
}

static void end(void *arg)
{
    struct tally *t = arg;
    policy_asker_free(t->asker);
    release(t);
}

static int start(struct policy_loaded *p, struct shadow *ret)
{
    struct tally *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    snprintf(t->name, sizeof t->name, "%s", policy_loaded_name(p));
    snprintf(t->version, sizeof t->version, "%s", policy_loaded_version(p));
    snprintf(t->digest, sizeof t->digest, "%s", policy_loaded_digest(p));
    int r = policy_asker_new(p, &t->asker);
    struct policy_feed_options o = { .thread_name = "berth-shadow", .take = take, .end = end, .arg = t };
    atomic_init(&t->refs, 2);
    if (r == 0)
        r = policy_feed_start(&o, &ret->feed);
    if (r < 0) {
        policy_asker_free(t->asker);
        free(t);
        return r;
    }
    ret->tally = t;
    return 0;
}

/* False when it is left behind. */
static bool stop(struct shadow *one)
{
    bool ended = policy_feed_stop(one->feed, false, STOP_MS);
    release(one->tally);
    return ended;
}

/* ---- all ---- */

int policy_shadows_new(struct policy_listeners *l, struct policy_shadows **ret_shadows)
{
    struct policy_shadows *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->listeners = l;
    pthread_mutex_init(&s->lock, NULL);
    *ret_shadows = s;
    return 0;
}

void policy_shadows_free(struct policy_shadows *s)
{
    char err[64];
    if (!s)
        return;
    (void)policy_shadows_replace(s, NULL, 0, err, sizeof err); /* nothing to start: cannot fail */
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static struct policy_listener listener_of(const struct shadow *one)
{
    return (struct policy_listener){ policy_feed_offer, one->feed };
}

static int start_all(struct policy_shadows *s, struct policy_loaded *const *policies, size_t n,
                     struct shadow *fresh, char *err, size_t errlen)
{
    size_t i = 0;
    int r = n > POLICY_SHADOWS_MAX ? -E2BIG : 0;
    if (r < 0)
        snprintf(err, errlen, "%zu shadow policies where at most %u are allowed", n, POLICY_SHADOWS_MAX);
    for (; r == 0 && i < n; i++) {
        r = start(policies[i], &fresh[i]);
        if (r < 0)
            break;
        r = policy_listeners_add(s->listeners, listener_of(&fresh[i]));
        if (r < 0)
            stop(&fresh[i]);
        if (r < 0)
            break;
    }
    if (r == 0)
        return 0;
    if (r != -E2BIG)
        snprintf(err, errlen, "shadow policy %zu: %s", i + 1, strerror(-r));
    while (i--) {
        policy_listeners_remove(s->listeners, listener_of(&fresh[i]));
        stop(&fresh[i]);
    }
    return r;
}

int policy_shadows_replace(struct policy_shadows *s, struct policy_loaded *const *policies, size_t n,
                           char *err, size_t errlen)
{
    struct shadow fresh[POLICY_SHADOWS_MAX], old[POLICY_SHADOWS_MAX];
    int r = start_all(s, policies, n, fresh, err, errlen);
    if (r < 0)
        return r;
    pthread_mutex_lock(&s->lock);
    size_t n_old = s->n;
    memcpy(old, s->at, sizeof old);
    memcpy(s->at, fresh, n * sizeof *fresh);
    s->n = n;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n_old; i++)
        policy_listeners_remove(s->listeners, listener_of(&old[i]));
    for (size_t i = 0; i < n_old; i++)
        r += !stop(&old[i]);
    return r;
}

static struct policy_shadow_status status_of(const struct shadow *one, uint64_t now_ns)
{
    struct tally *t = one->tally;
    struct policy_shadow_status s = { .dropped = policy_feed_dropped(one->feed) };
    uint64_t since = atomic_load(&t->call_ns);
    memcpy(s.name, t->name, sizeof s.name);
    memcpy(s.version, t->version, sizeof s.version);
    memcpy(s.digest, t->digest, sizeof s.digest);
    for (unsigned c = 0; c < POLICY_CALLS; c++) {
        s.asked[c] = atomic_load(&t->asked[c]);
        s.agreed[c] = atomic_load(&t->agreed[c]);
        s.disagreed[c] = atomic_load(&t->disagreed[c]);
        s.breaches[c] = atomic_load(&t->breaches[c]);
    }
    s.stuck = since && now_ns > since + STUCK_NS;
    return s;
}

size_t policy_shadows_status(struct policy_shadows *s, struct policy_shadow_status ret[POLICY_SHADOWS_MAX])
{
    uint64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&s->lock);
    size_t n = s->n;
    for (size_t i = 0; i < n; i++)
        ret[i] = status_of(&s->at[i], now_ns);
    pthread_mutex_unlock(&s->lock);
    return n;
}
