/* Status: the record of the last step for anyone who asks. The scheduler fills a spare record and exchanges
 * two pointers, so a reader waits at most for a copy of a few kilobytes and the scheduler for nobody's work.
 * Tests: tests/unit/test_sched.c, test_sched_counts.c */
#include "sched/parts.h"
#include "util/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WORTH_NS (250 * NS_PER_MS) /* how old what is told of a history's worth may be while others run */

static size_t record_size(const struct sched *s)
{
    return sizeof(struct sched_status) + (s->o.slots + (size_t)1) * sizeof(struct sched_slot_status);
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

static const char *stop_name(uint32_t reason)
{
    static const char *const names[POLICY_STOPS] = { "none", "end_turn", "tool_use", "length", "cancelled" };
    return names[reason < POLICY_STOPS ? reason : POLICY_STOP_NONE];
}

const char *status_state_name(uint32_t state)
{
    return state == POLICY_STATE_PROTECTED ? "protected"
           : state == POLICY_STATE_EXPIRED ? "expired"
                                           : "blank";
}

static struct sched_slot_status slot_status(const struct sched *s, uint32_t i)
{
    const struct slots_history *h = slots_at(s->h.table, i);
    const struct policy_worth *w = &s->worth[i];
    return (struct sched_slot_status){
        .busy = h->busy,
        .superseded = i < s->h.n && s->superseded[i / 64] >> (i % 64) & 1,
        .tokens = h->n,
        .turn_tokens = h->turn_tokens,
        .turns = h->label.turns,
        .stop_reason = stop_name(h->label.stop_reason),
        .state = status_state_name(w->state),
        .last_use_ns = h->label.last_use_ns > 0 ? (uint64_t)h->label.last_use_ns : 0,
        .client_key = h->label.client_key,
        .request = h->label.request_key,
        .cached = h->label.cached,
        .ttl_s = w->ttl_s,
        .retention = w->retention,
        .value = w->value,
    };
}

void status_publish(struct sched *s, const char *doing)
{
    struct engine_info info;
    engine_info_get(s->engine, &info);
    if (s->now_ns >= s->worth_ns + WORTH_NS)
        room_ask_worth(s, true);
    s->doing = doing;
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
        .drafted_tokens = s->count.drafted_tokens,
        .accepted_tokens = s->count.accepted_tokens,
        .kv_blocks = info.blocks,
        .kv_blocks_used = info.blocks_used,
        .kv_block_tokens = BLOCK_TOKENS,
        .kv_bytes = info.kv_bytes,
        .prompt_tokens_per_s = prompt_rate_measured(&s->rate),
        .tally = s->tally,
        .doing = doing,
        .device_lost = s->device_lost,
    };
    policy_host_status(s->host, &st->policy);
    for (uint32_t i = 0; i <= s->o.slots; i++)
        st->slot[i] = slot_status(s, i);
    for (uint32_t i = 0; i < s->n_running; i++)
        st->slot[s->running[i]->at].job = s->running[i]->id;
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
