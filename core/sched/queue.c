/* Queue: the waiting list, and the way into and out of slots: first come, first served.
 * Thread: the scheduler's. Tests: tests/unit/test_sched.c */
#include "sched/private.h"
#include <errno.h>
#include <stddef.h>

#define BLOCK 64u
#define LOOK_AHEAD 512u /* tokens of an answer that are reckoned with when a request is let in */

void queue_add(struct sched *s, struct job *j)
{
    /* Ids grow with age, so a requeued job comes back before all that came after it. */
    struct job **at = &s->waiting;
    while (*at && (*at)->id < j->id)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    s->n_waiting++;
}

static void leave_waiting(struct sched *s, struct job *j)
{
    struct job **at = &s->waiting;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->next = NULL;
    s->n_waiting--;
}

static void leave_slot(struct sched *s, struct job *j)
{
    uint32_t i = 0;
    while (s->running[i] != j)
        i++;
    for (s->n_running--; i < s->n_running; i++)
        s->running[i] = s->running[i + 1];
    j->running = false;
    slots_release(&s->slots, j->slot);
}

void queue_end(struct sched *s, struct job *j, enum sched_stop stop, const char *error)
{
    if (j->running)
        leave_slot(s, j);
    else
        leave_waiting(s, j);
    if (stop == SCHED_STOP_CANCELLED)
        s->count.cancelled++;
    else if (stop == SCHED_STOP_FAILED)
        s->count.failed++;
    else
        s->count.completed++;
    /* It leaves before the last event: whoever hears DONE finds its place in the queue free. */
    admission_leave(&s->admission, j);
    job_done(j, stop, error);
    job_free(j);
}

void queue_sweep(struct sched *s)
{
    for (struct job *j = s->waiting, *next; j; j = next) {
        next = j->next;
        if (atomic_load(&j->cancel))
            queue_end(s, j, SCHED_STOP_CANCELLED, NULL);
    }
    for (uint32_t i = s->n_running; i-- > 0;)
        if (atomic_load(&s->running[i]->cancel))
            queue_end(s, s->running[i], SCHED_STOP_CANCELLED, NULL);
}

static uint32_t blocks_for(uint64_t tokens)
{
    return (uint32_t)((tokens + BLOCK - 1) / BLOCK);
}

/* Does it fit beside what runs, with every idle history given up? One that is alone always does: the pool is
 * never smaller than the context. */
static bool fits(const struct sched *s, const struct job *j)
{
    if (!s->n_running)
        return true;
    uint64_t held = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        held += blocks_for(s->running[i]->n_seq);
    uint32_t left = j->max_new - j->generated;
    uint64_t want = blocks_for((uint64_t)j->n_seq + (left < LOOK_AHEAD ? left : LOOK_AHEAD));
    return held + want <= s->blocks;
}

static uint32_t active(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += !atomic_load(&s->running[i]->paused);
    return n;
}

static bool start(struct sched *s, struct job *j)
{
    uint32_t shared = 0;
    int r = slots_take(&s->slots, j->seq, j->n_seq, j->id_slot, j->cache_prompt, &j->slot, &shared);
    if (r < 0) {
        /* Out of memory for a list of tokens: with others running there is hope, alone there is none. */
        if (r != -EBUSY && !s->n_running)
            queue_end(s, j, SCHED_STOP_FAILED, "out of memory");
        return false;
    }
    leave_waiting(s, j);
    j->running = true;
    s->running[s->n_running++] = j;
    admission_set_waiting(&s->admission, j, false);
    if (!j->was_started) {
        j->cached = shared;
        s->count.prompt_tokens += j->n_prompt;
        s->count.cached_tokens += shared;
        job_started(j);
    }
    return true;
}

void queue_admit(struct sched *s)
{
    while (s->waiting && s->slots.idle && active(s) < s->o.rows && fits(s, s->waiting))
        if (!start(s, s->waiting))
            return;
}

bool queue_requeue_youngest(struct sched *s)
{
    if (s->n_running < 2)
        return false;
    struct job *victim = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct job *j = s->running[i];
        bool j_paused = atomic_load(&j->paused), v_paused = victim && atomic_load(&victim->paused);
        if (!victim || (j_paused && !v_paused) || (j_paused == v_paused && j->id > victim->id))
            victim = j;
    }
    leave_slot(s, victim);
    admission_set_waiting(&s->admission, victim, true);
    queue_add(s, victim);
    return true;
}
