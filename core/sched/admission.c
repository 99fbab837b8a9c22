/* Admission: who is in. Bounds the queue (whole, and per client), numbers the jobs and finds them by number.
 * Thread: any, under admission.lock, which is a leaf. The scheduler alone frees jobs, and only after they
 * left here, so a job found under the lock is alive. Tests: tests/unit/test_sched.c */
#include "sched/parts.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int admission_init(struct admission *a, uint32_t rows, uint32_t slots, uint32_t queue_max)
{
    a->rows = rows;
    a->queue_max = queue_max;
    a->cap = slots + queue_max; /* paused jobs keep a slot without using a row */
    a->next_id = 1;
    a->jobs = calloc(a->cap, sizeof(struct job *));
    if (!a->jobs)
        return -ENOMEM;
    pthread_mutex_init(&a->lock, NULL);
    return 0;
}

void admission_clear(struct admission *a)
{
    if (!a->jobs)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a->jobs);
    a->jobs = NULL;
}

static uint32_t waiting_of(const struct admission *a, uint64_t client_key)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        n += a->jobs[i]->waiting && a->jobs[i]->client_key == client_key;
    return n;
}

int admission_enter(struct admission *a, struct job *j, char *err, size_t errlen)
{
    int r = 0;
    uint32_t share = a->queue_max > 1 ? a->queue_max / 2 : 1;
    pthread_mutex_lock(&a->lock);
    /* Those for whom a row is free do not really wait: they start as soon as the scheduler looks. */
    uint32_t running = a->n - a->waiting, starting = running < a->rows ? a->rows - running : 0;
    if (a->n >= a->cap || a->waiting >= a->queue_max + starting)
        r = -EAGAIN;
    else if (j->client_key && waiting_of(a, j->client_key) >= share + starting)
        r = -EBUSY;
    if (r == 0) {
        j->id = a->next_id++;
        j->waiting = true;
        a->waiting++;
        a->jobs[a->n++] = j;
    }
    pthread_mutex_unlock(&a->lock);
    if (r == -EAGAIN)
        snprintf(err, errlen, "the queue is full (%u waiting)", a->queue_max);
    else if (r == -EBUSY)
        snprintf(err, errlen, "this client already holds its share of the queue (%u waiting)", share);
    return r;
}

uint64_t admission_oldest_ns(struct admission *a)
{
    uint64_t oldest = UINT64_MAX;
    pthread_mutex_lock(&a->lock);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->jobs[i]->waiting && a->jobs[i]->submit_ns < oldest)
            oldest = a->jobs[i]->submit_ns;
    pthread_mutex_unlock(&a->lock);
    return oldest;
}

void admission_set_waiting(struct admission *a, struct job *j, bool waiting)
{
    pthread_mutex_lock(&a->lock);
    if (j->waiting != waiting) {
        j->waiting = waiting;
        a->waiting = waiting ? a->waiting + 1 : a->waiting - 1;
    }
    pthread_mutex_unlock(&a->lock);
}

void admission_leave(struct admission *a, struct job *j)
{
    pthread_mutex_lock(&a->lock);
    if (j->waiting)
        a->waiting--;
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->jobs[i] == j) {
            a->jobs[i] = a->jobs[--a->n];
            break;
        }
    }
    pthread_mutex_unlock(&a->lock);
}

bool admission_flag(struct admission *a, uint64_t id, enum admission_flag flag)
{
    bool found = false;
    pthread_mutex_lock(&a->lock);
    for (uint32_t i = 0; i < a->n && !found; i++) {
        struct job *j = a->jobs[i];
        if (j->id != id)
            continue;
        found = true;
        if (flag == ADMISSION_CANCEL)
            atomic_store(&j->cancel, true);
        else
            atomic_store(&j->paused, flag == ADMISSION_PAUSE);
    }
    pthread_mutex_unlock(&a->lock);
    return found;
}
