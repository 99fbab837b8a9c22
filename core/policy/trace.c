/* Trace: see trace.h. Each file in use has a feed of its own: replacing one starts another and lets the old
 * one write what it still has. */
#include "policy/trace.h"
#include "policy/case.h"
#include "policy/feed.h"
#include "util/buf.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAST_WORDS_MS 1000u

struct sink {
    atomic_uint refs; /* the trace's and the feed's */
    int fd;
    struct buf line;
    bool torn; /* the last line is not whole */
    bool told; /* that lines cannot be written */
    void (*on_failure)(void *arg, int error);
    void *arg;
    atomic_uint_least64_t lines, failed;
};

struct policy_trace {
    struct policy_listeners *listeners;
    void (*on_failure)(void *arg, int error);
    void *arg;
    pthread_mutex_t lock;     /* a leaf: of what follows */
    struct policy_feed *feed; /* NULL: off */
    struct sink *sink;
    struct policy_trace_status before; /* what those that were replaced had done */
};

static void release(struct sink *k)
{
    if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
        return;
    if (k->fd != STDERR_FILENO)
        close(k->fd);
    buf_free(&k->line);
    free(k);
}

/* One write(2) where the system lets it be one, so that lines of others do not come between. */
static int write_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

static void take(void *arg, const struct policy_decision *d)
{
    struct sink *k = arg;
    if (d->for_display)
        return;
    buf_clear(&k->line);
    if (k->torn)
        buf_putc(&k->line, '\n');
    policy_case_write_decided(&k->line, d);
    buf_putc(&k->line, '\n');
    if (k->line.failed) {
        atomic_fetch_add(&k->failed, 1);
        return;
    }
    int r = write_all(k->fd, k->line.data, k->line.len);
    k->torn = r < 0;
    atomic_fetch_add(k->torn ? &k->failed : &k->lines, 1);
    if (k->torn && !k->told) {
        k->told = true;
        k->on_failure(k->arg, -r);
    }
}

static void end(void *arg)
{
    release(arg);
}

static int fail_open(const char *path, int error, char *err, size_t errlen)
{
    snprintf(err, errlen, "%s: %s", path, error == ENXIO ? "a pipe that nobody reads" : strerror(error));
    return -error;
}

/* Without waiting: a pipe that nobody reads would hold the caller up for ever. */
static int open_to_append(const char *path, int how)
{
    return open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | how, 0600);
}

int policy_trace_check(const char *path, char *err, size_t errlen)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    int fd = path ? open_to_append(path, 0) : -1, error = errno;
    if (fd >= 0)
        close(fd);
    if (!path || fd >= 0)
        return 0;
    if (error != ENOENT)
        return fail_open(path, error, err, errlen);
    /* It would be made. */
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    error = !folder ? ENOMEM : access(folder, W_OK | X_OK) < 0 ? errno : 0;
    free(folder);
    return error ? fail_open(path, error, err, errlen) : 0;
}

int policy_trace_open(const char *path, int *ret_fd, char *err, size_t errlen)
{
    if (!path) {
        *ret_fd = STDERR_FILENO;
        return 0;
    }
    int fd = open_to_append(path, O_CREAT);
    if (fd < 0)
        return fail_open(path, errno, err, errlen);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    *ret_fd = fd;
    return 0;
}

/* A feed of its own for fd, not offered anything yet. */
static int start(const struct policy_trace *t, int fd, struct sink **ret_sink, struct policy_feed **ret_feed)
{
    struct sink *k = calloc(1, sizeof *k);
    if (!k) {
        if (fd != STDERR_FILENO)
            close(fd);
        return -ENOMEM;
    }
    k->fd = fd;
    k->on_failure = t->on_failure;
    k->arg = t->arg;
    atomic_init(&k->refs, 2);
    struct policy_feed_options o = { .thread_name = "berth-trace", .take = take, .end = end, .arg = k };
    int r = policy_feed_start(&o, ret_feed);
    if (r < 0) {
        atomic_store(&k->refs, 1);
        release(k);
        return r;
    }
    *ret_sink = k;
    return 0;
}

static void finish(struct policy_trace *t, struct policy_feed *feed, struct sink *k)
{
    if (!feed)
        return;
    policy_feed_stop(feed, true, LAST_WORDS_MS);
    pthread_mutex_lock(&t->lock);
    t->before.lines += atomic_load(&k->lines);
    t->before.failed += atomic_load(&k->failed);
    pthread_mutex_unlock(&t->lock);
    release(k);
}

int policy_trace_use(struct policy_trace *t, int fd)
{
    struct policy_feed *feed = NULL, *old_feed = t->feed;
    struct sink *sink = NULL, *old_sink = t->sink;
    int r = fd < 0 ? 0 : start(t, fd, &sink, &feed);
    if (r < 0)
        return r;
    if (old_feed)
        policy_listeners_remove(t->listeners, (struct policy_listener){ policy_feed_offer, old_feed });
    if (feed)
        r = policy_listeners_add(t->listeners, (struct policy_listener){ policy_feed_offer, feed });
    if (r < 0) {
        policy_feed_stop(feed, false, LAST_WORDS_MS);
        release(sink);
        feed = NULL;
        sink = NULL;
    }
    pthread_mutex_lock(&t->lock);
    t->before.dropped += old_feed ? policy_feed_dropped(old_feed) : 0;
    t->feed = feed;
    t->sink = sink;
    pthread_mutex_unlock(&t->lock);
    finish(t, old_feed, old_sink);
    return r;
}

struct policy_trace_status policy_trace_status(struct policy_trace *t)
{
    pthread_mutex_lock(&t->lock);
    struct policy_trace_status s = t->before;
    s.on = t->feed != NULL;
    if (t->feed) {
        s.lines += atomic_load(&t->sink->lines);
        s.failed += atomic_load(&t->sink->failed);
        s.dropped += policy_feed_dropped(t->feed);
    }
    pthread_mutex_unlock(&t->lock);
    return s;
}

int policy_trace_new(struct policy_listeners *l, void (*on_failure)(void *arg, int error), void *arg,
                     struct policy_trace **ret_trace)
{
    struct policy_trace *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->listeners = l;
    t->on_failure = on_failure;
    t->arg = arg;
    pthread_mutex_init(&t->lock, NULL);
    *ret_trace = t;
    return 0;
}

void policy_trace_free(struct policy_trace *t)
{
    if (!t)
        return;
    policy_trace_use(t, -1);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
