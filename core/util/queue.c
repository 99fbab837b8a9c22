/* Queue: a ring of pointers under one mutex; the eventfd is readable exactly while the ring holds something.
 * Threads: many producers, one consumer. Lock: `lock`, a leaf; the eventfd is written and read under it,
 * which is what keeps it equal to "not empty" whoever comes between. Neither call can block (the eventfd is
 * non-blocking). Must not know: what the items are. Tests: tests/unit/test_util.c */
#include "util/queue.h"

#include "util/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct queue {
    pthread_mutex_t lock;
    size_t capacity, head, n;
    int fd;
    void *items[];
};

int queue_new(size_t capacity, struct queue **ret_queue)
{
    struct queue *q;
    int r;

    if (capacity == 0 || capacity > (SIZE_MAX - sizeof *q) / sizeof(void *))
        return -ENOMEM;
    q = calloc(1, sizeof *q + capacity * sizeof(void *));
    if (!q)
        return -ENOMEM;
    q->capacity = capacity;
    q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->fd < 0) {
        r = -errno;
        free(q);
        return r;
    }
    pthread_mutex_init(&q->lock, NULL);
    *ret_queue = q;
    return 0;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
    free(q);
}

int queue_push(struct queue *q, void *item)
{
    int r = -ENOSPC;

    pthread_mutex_lock(&q->lock);
    if (q->n < q->capacity) {
        q->items[(q->head + q->n) % q->capacity] = item;
        if (q->n++ == 0)
            eventfd_write(q->fd, 1);
        r = 0;
    }
    pthread_mutex_unlock(&q->lock);
    return r;
}

void *queue_pop(struct queue *q)
{
    void *item = NULL;

    pthread_mutex_lock(&q->lock);
    if (q->n > 0) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->capacity;
        if (--q->n == 0) {
            eventfd_t count;

            eventfd_read(q->fd, &count);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

int queue_wait(struct queue *q, int timeout_ms)
{
    struct pollfd p = { .fd = q->fd, .events = POLLIN };
    uint64_t deadline = clock_now_ns();
    int wait_ms = timeout_ms;

    if (timeout_ms > 0)
        deadline += (unsigned)timeout_ms * NS_PER_MS;
    for (;;) {
        uint64_t now;
        int r = poll(&p, 1, wait_ms);

        if (r > 0)
            return 1;
        if (r == 0 || errno != EINTR)
            return 0;
        if (timeout_ms < 0)
            continue;
        now = clock_now_ns();
        wait_ms = now >= deadline ? 0 : (int)((deadline - now + NS_PER_MS - 1) / NS_PER_MS);
    }
}

size_t queue_len(struct queue *q)
{
    size_t n;

    pthread_mutex_lock(&q->lock);
    n = q->n;
    pthread_mutex_unlock(&q->lock);
    return n;
}

int queue_fd(const struct queue *q)
{
    return q->fd;
}
