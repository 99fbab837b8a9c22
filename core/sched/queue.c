/* Queue: the waiting list, the order in which it is served, and the way out.
 *
 * Next is the job with the fewest tokens to read now (its prompt less what some history shares), so that a
 * short question never waits behind a long one; but one that has waited AGED_S plus AGED_READS times the time
 * its own reading takes goes before all others, the oldest first. A job claims its slot only when its turn
 * has come (claim.c): while it waits it holds nothing, and is compared with the histories as they change.
 * A paused job keeps its slot until somebody else needs it; then it waits too, for its resumption first:
 * those who do not read what they asked for keep nobody out. Thread: the scheduler's. Tests:
 * tests/unit/test_sched.c */
#include "sched/parts.h"
#include "util/clock.h"
#include <stdlib.h>

#define AGED_S 60u
#define AGED_READS 4u

void queue_add(struct sched *s, struct job *j)
{
    /* Ids grow with age, so a requeued job comes back before all that came after it. */
    struct job **at = &s->waiting;
    while (*at && (*at)->id < j->id)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    s->n_waiting++;
    s->blocked_until_ns = 0;
}

void queue_remove(struct sched *s, struct job *j)
{
    struct job **at = &s->waiting;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->next = NULL;
    s->n_waiting--;
    s->blocked_until_ns = 0;
}

static enum slots_end end_of(const struct job *j, enum sched_stop stop)
{
    bool ended = stop == SCHED_STOP_EOG || stop == SCHED_STOP_STRING;
    if (ended && j->asks_tool && j->asks_tool(j->arg))
        return SLOTS_END_TOOL_USE;
    switch (stop) {
    case SCHED_STOP_EOG:
        return SLOTS_END_STOP;
    case SCHED_STOP_STRING:
        return SLOTS_END_STRING;
    case SCHED_STOP_LENGTH:
        return SLOTS_END_LENGTH;
    case SCHED_STOP_CANCELLED:
        return SLOTS_END_CANCEL;
    case SCHED_STOP_NONE:
    case SCHED_STOP_FAILED:
        break;
    }
    return SLOTS_END_FAIL;
}

static void leave_slot(struct sched *s, struct job *j, enum slots_end how)
{
    uint32_t i = 0;
    while (s->running[i] != j)
        i++;
    for (s->n_running--; i < s->n_running; i++)
        s->running[i] = s->running[i + 1];
    j->running = false;
    (void)slots_end(s->h.table, j->at, how, (int64_t)s->now_ns);
    s->blocked_until_ns = 0;
}

void queue_end(struct sched *s, struct job *j, enum sched_stop stop, const char *error)
{
    bool ran = j->running;
    if (stop != SCHED_STOP_STRING)
        job_finish_text(j);
    if (ran)
        leave_slot(s, j, end_of(j, stop));
    else
        queue_remove(s, j);
    count_end(s, j, stop);
    if (ran) {
        count_left(s, j);
        room_ask_superseded(s);
        room_ask_worth(s, true);
    }
    /* It leaves before the last event: whoever hears DONE finds its place in the queue free, and the counts
     * and what the slots hold right. */
    admission_leave(&s->admission, j);
    status_publish(s, s->doing);
    job_done(j, stop, error, s->now_ns);
    job_free(j);
}

void queue_requeue(struct sched *s, struct job *j, const char *reason)
{
    events_add(s,
               (struct sched_placement){ .kind = SCHED_REQUEUE,
                                         .slot = events_slot(s, j->at),
                                         .source = SCHED_NONE,
                                         .tokens = slots_at(s->h.table, j->at)->n },
               j, reason);
    leave_slot(s, j, SLOTS_END_REQUEUE);
    j->requeued = true;
    j->aged = false;
    j->wait_ns = s->now_ns;
    job_wait_again(s, j);
    admission_set_waiting(&s->admission, j, true);
    queue_add(s, j);
}

void queue_sweep(struct sched *s)
{
    for (struct job *j = s->waiting, *next; j; j = next) {
        next = j->next;
        if (atomic_load(&j->cancel))
            queue_end(s, j, SCHED_STOP_CANCELLED, NULL);
    }
    for (uint32_t i = s->n_running; i-- > 0;)
        if (!s->running[i]->flying && atomic_load(&s->running[i]->cancel))
            queue_end(s, s->running[i], SCHED_STOP_CANCELLED, NULL);
}

bool queue_requeue_paused(struct sched *s)
{
    struct job *youngest = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct job *j = s->running[i];
        if (!j->flying && atomic_load(&j->paused) && (!youngest || j->id > youngest->id))
            youngest = j;
    }
    if (youngest)
        queue_requeue(s, youngest, "not_read");
    return youngest != NULL;
}

uint32_t queue_ready(const struct sched *s)
{
    uint32_t n = 0;
    for (const struct job *j = s->waiting; j; j = j->next)
        n += !atomic_load(&j->paused);
    return n;
}

uint32_t queue_active(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += !atomic_load(&s->running[i]->paused);
    return n;
}

uint32_t queue_unread(const struct sched *s, const struct job *j)
{
    return j->n_seq - slots_at(s->h.table, j->at)->n;
}

/* ---- order ---- */

static void note_wants(struct sched *s, const struct job *j, const uint32_t *shared)
{
    for (uint32_t i = 0; i <= s->h.n; i++) {
        const struct slots_history *h = slots_at(s->h.table, i);
        struct want *w = &s->wants[i];
        if (!h->reliable || !h->turn_tokens || shared[i] < h->turn_tokens)
            continue;
        w->n++;
        w->n_requeued += j->requeued;
        if (!w->best || shared[i] > w->shared) {
            w->best = j;
            w->shared = shared[i];
        }
    }
}

static struct candidate candidate_of(struct sched *s, struct job *j)
{
    struct candidate c = { .job = j, .source = SLOTS_NONE };
    if (claim_reuses(j)) {
        c.source = slots_prompt_longest(s->h.table, j->prompt, &c.shared);
        note_wants(s, j, slots_prompt_shared(s->h.table, j->prompt));
    }
    c.to_read = j->n_seq - c.shared;
    uint64_t waited = s->now_ns > j->wait_ns ? s->now_ns - j->wait_ns : 0;
    c.aged = waited > AGED_S * NS_PER_S + AGED_READS * prompt_rate_ns(&s->rate, c.shared, j->n_seq);
    return c;
}

static int by_turn(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->aged != y->aged)
        return x->aged ? -1 : 1;
    if (!x->aged && x->to_read != y->to_read)
        return x->to_read < y->to_read ? -1 : 1;
    return x->job->id < y->job->id ? -1 : x->job->id > y->job->id;
}

static int by_arrival(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->job->id < y->job->id ? -1 : x->job->id > y->job->id;
}

uint32_t queue_order(struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i <= s->h.n; i++)
        s->wants[i] = (struct want){ 0 };
    for (struct job *j = s->waiting; j; j = j->next)
        if (!atomic_load(&j->paused))
            s->candidates[n++] = candidate_of(s, j);
    qsort(s->candidates, n, sizeof *s->candidates, s->o.by_arrival ? by_arrival : by_turn);
    return n;
}
