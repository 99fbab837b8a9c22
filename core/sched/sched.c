/* Sched: the thread and its doors; see sched.h.
 *
 * Files: sched.c (doors, the loop), admission.c (who is in), queue.c (waiting list, in and out of slots),
 * slots.c (which slot, what is given up), step.c (one window), job.c (one generation), status.c (the
 * published record). */
#include "sched/private.h"
#include "util/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64u
#define HEARTBEAT_MS 1000 /* while work is pending but nothing can run (all readers are slow) */

static void wake(struct sched *s)
{
    /* At most one wake is in the queue. If there is no room for it the queue is not empty, which wakes as
     * well. */
    if (!atomic_exchange(&s->wake_queued, true))
        (void)queue_push(s->inbox, &s->wake);
}

static void take_messages(struct sched *s)
{
    /* Before the flags are read: whoever sets one after that queues a new wake. */
    atomic_store(&s->wake_queued, false);
    for (void *item; (item = queue_pop(s->inbox));) {
        if (item == &s->wake)
            continue;
        s->count.started++;
        queue_add(s, item);
    }
}

static void end_all(struct sched *s)
{
    while (s->n_running)
        queue_end(s, s->running[s->n_running - 1], SCHED_STOP_CANCELLED, NULL);
    while (s->waiting)
        queue_end(s, s->waiting, SCHED_STOP_CANCELLED, NULL);
}

static void *thread_main(void *arg)
{
    struct sched *s = arg;
    while (!atomic_load(&s->stopping)) {
        take_messages(s);
        queue_sweep(s);
        queue_admit(s);
        if (step_run(s))
            continue;
        bool pending = s->n_running || s->waiting;
        status_publish(s, pending ? "waiting for readers" : "idle");
        queue_wait(s->inbox, pending ? HEARTBEAT_MS : -1);
    }
    take_messages(s);
    end_all(s);
    status_publish(s, "stopped");
    return NULL;
}

static int check_options(const struct sched *s, char *err, size_t errlen)
{
    const struct sched_options *o = &s->o;
    if (o->context < 2 || !o->slots || !o->rows || o->rows > o->slots || !o->queue_max || !o->chunk_tokens ||
        !o->max_pause_ms) {
        snprintf(err, errlen,
                 "scheduler options: context %u (at least 2), slots %u, rows %u (1..slots), queue %u, chunk "
                 "%u, pause %u "
                 "(at least 1 each)",
                 o->context, o->slots, o->rows, o->queue_max, o->chunk_tokens, o->max_pause_ms);
        return -EINVAL;
    }
    if ((uint64_t)s->blocks * BLOCK < o->context) {
        snprintf(err, errlen, "the key-value pool holds %u tokens, fewer than the context of %u",
                 s->blocks * BLOCK, o->context);
        return -EINVAL;
    }
    return 0;
}

static void sched_free(struct sched *s)
{
    slots_clear(&s->slots);
    status_clear(s);
    admission_clear(&s->admission);
    queue_free(s->inbox);
    free(s->running);
    free(s->rows);
    free(s->row_jobs);
    free(s);
}

static int allocate(struct sched *s)
{
    const struct sched_options *o = &s->o;
    s->running = calloc(o->slots, sizeof(struct job *));
    s->rows = calloc(o->rows, sizeof *s->rows);
    s->row_jobs = calloc(o->rows, sizeof(struct job *));
    if (!s->running || !s->rows || !s->row_jobs)
        return -ENOMEM;
    int r = admission_init(&s->admission, o->rows, o->slots, o->queue_max);
    if (r < 0)
        return r;
    /* Every admitted job and one wake: a push of a job never fails. */
    r = queue_new((size_t)o->slots + o->queue_max + 1, &s->inbox);
    if (r < 0)
        return r;
    r = status_init(s);
    if (r < 0)
        return r;
    return slots_init(&s->slots, s->engine, o->slots);
}

int sched_start(struct engine *e, const struct tokenizer *t, const struct sched_options *o,
                struct sched **ret_sched, char *err, size_t errlen)
{
    struct sched *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    struct engine_info info;
    engine_info_get(e, &info);
    s->engine = e;
    s->tokenizer = t;
    s->o = *o;
    s->n_vocab = info.n_vocab;
    s->blocks = info.blocks;
    int r = check_options(s, err, errlen);
    if (r < 0)
        goto fail;
    r = allocate(s);
    if (r == 0) {
        status_publish(s, "idle");
        r = -pthread_create(&s->thread, NULL, thread_main, s);
    }
    if (r < 0) {
        snprintf(err, errlen, "scheduler: %s", strerror(-r));
        goto fail;
    }
    pthread_setname_np(s->thread, "berth-sched");
    *ret_sched = s;
    return 0;

fail:
    sched_free(s);
    return r;
}

void sched_stop(struct sched *s)
{
    if (!s)
        return;
    atomic_store(&s->stopping, true);
    wake(s);
    pthread_join(s->thread, NULL);
    sched_free(s);
}

int sched_submit(struct sched *s, const struct sched_job *job, uint64_t *ret_job, char *err, size_t errlen)
{
    struct job *j;
    int r = job_new(s, job, &j, err, errlen);
    if (r < 0)
        return r;
    r = admission_enter(&s->admission, j, err, errlen);
    if (r < 0) {
        job_free(j);
        return r;
    }
    /* From the push on the job is the scheduler's and may be gone at any moment. */
    *ret_job = j->id;
    (void)queue_push(s->inbox, j);
    return 0;
}

void sched_cancel(struct sched *s, uint64_t job)
{
    if (admission_flag(&s->admission, job, ADMISSION_CANCEL))
        wake(s);
}

void sched_pause(struct sched *s, uint64_t job, bool paused)
{
    if (admission_flag(&s->admission, job, paused ? ADMISSION_PAUSE : ADMISSION_RESUME))
        wake(s);
}
