/* Feed: see feed.h. The thread and whoever started it both hold the feed; the last one frees it, so that a
 * thread that is held up in a call can be left behind. */
#include "policy/feed.h"
#include "util/clock.h"
#include "util/queue.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct policy_feed {
    struct policy_feed_options o;
    struct queue *queue; /* decisions, and `wake` when it is to stop */
    char wake;
    pthread_t thread;
    atomic_bool stopping, finish;
    atomic_size_t bytes; /* of what is queued or being taken */
    atomic_uint_least64_t dropped;
    atomic_uint refs;
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t changed;
    bool ended; /* lock */
};

static void release(struct policy_feed *f)
{
    if (atomic_fetch_sub(&f->refs, 1) != 1)
        return;
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    queue_free(f->queue);
    free(f);
}

static void take_all(struct policy_feed *f)
{
    for (void *item; (item = queue_pop(f->queue));) {
        if (item == &f->wake)
            continue;
        struct policy_decision *d = item;
        size_t size = d->size;
        if (!atomic_load(&f->stopping) || atomic_load(&f->finish))
            f->o.take(f->o.arg, d);
        policy_decision_unref(d);
        atomic_fetch_sub(&f->bytes, size);
    }
}

static void *thread_main(void *arg)
{
    struct policy_feed *f = arg;
    do {
        queue_wait(f->queue, -1);
        take_all(f);
    } while (!atomic_load(&f->stopping));
    take_all(f); /* what came between the last look and the end */
    f->o.end(f->o.arg);
    pthread_mutex_lock(&f->lock);
    f->ended = true;
    pthread_cond_signal(&f->changed);
    pthread_mutex_unlock(&f->lock);
    release(f);
    return NULL;
}

int policy_feed_start(const struct policy_feed_options *o, struct policy_feed **ret_feed)
{
    pthread_condattr_t monotonic;
    struct policy_feed *f = calloc(1, sizeof *f);
    if (!f)
        return -ENOMEM;
    f->o = *o;
    int r = queue_new(POLICY_FEED_ITEMS + 1, &f->queue);
    if (r < 0) {
        free(f);
        return r;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&f->lock, NULL);
    atomic_init(&f->refs, 2);
    r = -pthread_create(&f->thread, NULL, thread_main, f);
    if (r < 0) {
        atomic_store(&f->refs, 1);
        release(f);
        return r;
    }
    pthread_setname_np(f->thread, o->thread_name);
    *ret_feed = f;
    return 0;
}

void policy_feed_offer(void *feed, struct policy_decision *d)
{
    struct policy_feed *f = feed;
    if (atomic_fetch_add(&f->bytes, d->size) + d->size <= POLICY_FEED_BYTES) {
        policy_decision_ref(d);
        if (queue_push(f->queue, d) == 0)
            return;
        policy_decision_unref(d);
    }
    atomic_fetch_sub(&f->bytes, d->size);
    atomic_fetch_add(&f->dropped, 1);
}

uint64_t policy_feed_dropped(const struct policy_feed *f)
{
    return atomic_load(&f->dropped);
}

static bool wait_for_end(struct policy_feed *f, unsigned wait_ms)
{
    uint64_t until_ns = clock_now_ns() + wait_ms * NS_PER_MS;
    struct timespec until = { .tv_sec = (time_t)(until_ns / NS_PER_S),
                              .tv_nsec = (long)(until_ns % NS_PER_S) };
    int r = 0;
    pthread_mutex_lock(&f->lock);
    while (!f->ended && r == 0)
        r = pthread_cond_timedwait(&f->changed, &f->lock, &until);
    bool ended = f->ended;
    pthread_mutex_unlock(&f->lock);
    return ended;
}

bool policy_feed_stop(struct policy_feed *f, bool finish, unsigned wait_ms)
{
    if (!f)
        return true;
    atomic_store(&f->finish, finish);
    atomic_store(&f->stopping, true);
    (void)queue_push(f->queue, &f->wake); /* a full queue wakes as well */
    bool ended = wait_for_end(f, wait_ms);
    if (ended)
        pthread_join(f->thread, NULL);
    else
        pthread_detach(f->thread);
    release(f);
    return ended;
}
