/* Post: calls that other threads want made on the event thread, in the order they were posted.
 * The posts since the last wake-up are one array, exchanged whole under the lock: sixteen streams of 200
 * tokens a second cost one lock, one eventfd write and one wake-up per batch, not per token. Threads:
 * http_post and posts_wake from any, the rest on the event thread. Lock: posts.lock, a leaf. Tests:
 * tests/e2e/test_http_raw.py */
#include "http/internal.h"
#include "util/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_POSTS = 1 << 16, FIRST_POSTS = 256, RUN_NS = 2000000, POSTS_PER_LOOK = 16 };

static int grow(struct http_posts *p)
{
    size_t cap = p->cap_in ? p->cap_in * 2 : FIRST_POSTS;
    struct http_post_item *items;

    if (p->n_in >= MAX_POSTS)
        return -ENOSPC;
    items = realloc(p->in, cap * sizeof *items);
    if (!items)
        return -ENOMEM;
    p->in = items;
    p->cap_in = cap;
    return 0;
}

int http_post(struct http *h, void (*fn)(void *arg), void *arg)
{
    struct http_posts *p = &h->posts;
    bool first;
    int r = 0;

    pthread_mutex_lock(&p->lock);
    if (p->n_in == p->cap_in)
        r = grow(p);
    first = p->n_in == 0;
    if (r == 0)
        p->in[p->n_in++] = (struct http_post_item){ fn, arg };
    pthread_mutex_unlock(&p->lock);
    if (r == 0 && first)
        posts_wake(h);
    return r;
}

void posts_wake(struct http *h)
{
    /* Fails only when the counter is full, and then the descriptor is readable already. */
    eventfd_write(h->posts.fd, 1);
}

/* Makes what was posted the batch to run. False when there is none. */
static bool take_batch(struct http_posts *p)
{
    struct http_post_item *items;
    size_t cap;

    pthread_mutex_lock(&p->lock);
    items = p->run;
    cap = p->cap_run;
    p->run = p->in;
    p->cap_run = p->cap_in;
    p->n_run = p->n_in;
    p->in = items;
    p->cap_in = cap;
    p->n_in = 0;
    pthread_mutex_unlock(&p->lock);
    p->at = 0;
    return p->n_run > 0;
}

/* Runs what is left of the batch, or as much as fits before `until_ns`. */
static void run_batch(struct http_posts *p, uint64_t until_ns)
{
    while (p->at < p->n_run) {
        struct http_post_item item = p->run[p->at++];

        item.fn(item.arg);
        if (p->at % POSTS_PER_LOOK == 0 && clock_now_ns() > until_ns)
            break;
    }
}

void posts_run_all(struct http *h)
{
    do {
        run_batch(&h->posts, UINT64_MAX);
    } while (take_batch(&h->posts));
}

static void on_posts(evutil_socket_t fd, short what, void *arg)
{
    static const struct timeval now = { 0, 0 };
    struct http *h = arg;
    struct http_posts *p = &h->posts;
    uint64_t until_ns = clock_now_ns() + RUN_NS;
    eventfd_t count;

    (void)fd;
    if (what & EV_READ)
        (void)eventfd_read(p->fd, &count);
    if (atomic_load(&h->stop_wanted))
        server_stop(h);
    while (p->at < p->n_run || take_batch(p)) {
        run_batch(p, until_ns);
        if (clock_now_ns() > until_ns) {
            /* A timer of no length, not an activation: sockets must have their turn in between. */
            event_add(h->post_more, &now);
            return;
        }
    }
}

int posts_new(struct http *h)
{
    struct http_posts *p = &h->posts;

    p->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->fd < 0)
        return -errno;
    h->post_event = event_new(h->base, p->fd, EV_READ | EV_PERSIST, on_posts, h);
    h->post_more = event_new(h->base, -1, 0, on_posts, h);
    if (!h->post_event || !h->post_more || event_add(h->post_event, NULL) < 0)
        return -ENOMEM;
    return 0;
}

void posts_free(struct http *h)
{
    struct http_posts *p = &h->posts;

    if (h->post_event)
        event_free(h->post_event);
    if (h->post_more)
        event_free(h->post_more);
    if (p->fd >= 0)
        close(p->fd);
    free(p->in);
    free(p->run);
    pthread_mutex_destroy(&p->lock);
}
