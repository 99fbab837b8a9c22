/* Places: what each slot holds (llama.cpp's shape and more), and the last placement events. Lengths only,
 * never text. Thread: the event thread's. Tests: tests/e2e/test_admin.py, test_histories.py */
#include "api/calls.h"
#include "api/private.h"
#include "sched/placement.h"
#include "util/clock.h"
#include <stdlib.h>
#include <string.h>

double api_slot_age_s(const struct sched_slot_status *slot, uint64_t now_ns)
{
    return slot->last_use_ns && now_ns > slot->last_use_ns ? (double)(now_ns - slot->last_use_ns) / 1e9 : 0;
}

/* The record may be older than the protection it tells of lasts. */
const char *api_slot_state(const struct sched_slot_status *slot, uint64_t now_ns)
{
    if (slot->busy)
        return "busy";
    if (strcmp(slot->state, "protected") == 0 && api_slot_age_s(slot, now_ns) >= slot->ttl_s)
        return "expired";
    return slot->state;
}

static json_t *slot_json(const struct api *a, const struct sched_slot_status *slot, uint32_t id, uint64_t now)
{
    json_t *age = slot->busy || !slot->last_use_ns ? json_null() : json_real(api_slot_age_s(slot, now));
    return json_pack("{s:i, s:i, s:b, s:b, s:I, s:I, s:I, s:I, s:i, s:s, s:o, s:s, s:b, s:f, s:f, s:f}", "id",
                     (int)id, "n_ctx", (int)a->o.context, "speculative", 0, "is_processing", slot->busy,
                     "id_task", slot->busy ? (json_int_t)slot->job : (json_int_t)-1, "n_prompt_tokens",
                     (json_int_t)slot->tokens, "tokens", (json_int_t)slot->tokens, "turn_tokens",
                     (json_int_t)slot->turn_tokens, "turns", (int)slot->turns, "stop_reason",
                     slot->stop_reason, "age_s", age, "state", api_slot_state(slot, now), "superseded",
                     slot->superseded, "ttl_s", slot->ttl_s, "retention", slot->retention, "value",
                     slot->value);
}

void api_on_slots(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    struct sched_status *st = sched_status_get(a->o.sched);
    json_t *list = st ? json_array() : NULL;
    uint64_t now = clock_now_ns();
    for (uint32_t i = 0; st && i < st->slots; i++)
        json_array_append_new(list, slot_json(a, &st->slot[i], i, now));
    free(st);
    api_reply_json(r, 200, list);
}

static json_t *place_json(int32_t slot)
{
    return slot == SCHED_MAIN ? json_string("main") : slot == SCHED_NONE ? json_null() : json_integer(slot);
}

static json_t *event_json(const struct sched_placement *e)
{
    return json_pack("{s:I, s:f, s:s, s:o, s:o, s:I, s:s, s:I, s:I}", "id", (json_int_t)e->id, "time",
                     (double)(e->time_ns / NS_PER_MS) / 1e3, "kind", sched_placement_name(e->kind), "slot",
                     place_json(e->slot), "source", place_json(e->source), "tokens", (json_int_t)e->tokens,
                     "reason", e->reason, "job", (json_int_t)e->job, "us", (json_int_t)e->took_us);
}

void api_on_events(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(a->o.sched, 0, events);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, event_json(&events[i]));
    api_reply_json(r, 200, json_pack("{s:o}", "events", list));
}
