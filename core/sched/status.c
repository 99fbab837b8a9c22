/* Status: the record of the last step for anyone who asks. The scheduler fills a spare record and exchanges
 * two pointers, so a reader waits at most for a copy of a few kilobytes and the scheduler for nobody's work.
 * Tests: tests/unit/test_sched.c */
#include "sched/private.h"
#include "util/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t record_size(const struct sched *s)
{
    return sizeof(struct sched_status) + s->o.slots * sizeof(struct sched_slot_status);
}

int status_init(struct sched *s)
{
    s->status = calloc(1, record_size(s));
    s->spare = calloc(1, record_size(s));
    if (!s->status || !s->spare)
        return -ENOMEM;
    pthread_mutex_init(&s->status_lock, NULL);
    return 0;
}

void status_clear(struct sched *s)
{
    if (s->status && s->spare)
        pthread_mutex_destroy(&s->status_lock);
    free(s->status);
    free(s->spare);
    s->status = s->spare = NULL;
}

void status_publish(struct sched *s, const char *doing)
{
    struct engine_info info;
    engine_info_get(s->engine, &info);
    struct sched_status *st = s->spare;
    *st = (struct sched_status){
        .step = s->count.step,
        .last_step_ns = clock_now_ns(),
        .running = s->n_running,
        .waiting = s->n_waiting,
        .slots = s->o.slots,
        .started = s->count.started,
        .completed = s->count.completed,
        .cancelled = s->count.cancelled,
        .failed = s->count.failed,
        .prompt_tokens = s->count.prompt_tokens,
        .cached_tokens = s->count.cached_tokens,
        .generated_tokens = s->count.generated_tokens,
        .kv_blocks = info.blocks,
        .kv_blocks_used = info.blocks_used,
        .doing = doing,
    };
    for (uint32_t i = 0; i < s->o.slots; i++)
        st->slot[i] = (struct sched_slot_status){ .tokens = s->slots.at[i].n };
    for (uint32_t i = 0; i < s->n_running; i++) {
        st->slot[s->running[i]->slot].busy = true;
        st->slot[s->running[i]->slot].job = s->running[i]->id;
    }
    pthread_mutex_lock(&s->status_lock);
    s->spare = s->status;
    s->status = st;
    pthread_mutex_unlock(&s->status_lock);
}

struct sched_status *sched_status_get(struct sched *s)
{
    struct sched_status *copy = malloc(record_size(s));
    if (!copy)
        return NULL;
    pthread_mutex_lock(&s->status_lock);
    memcpy(copy, s->status, record_size(s));
    pthread_mutex_unlock(&s->status_lock);
    return copy;
}
