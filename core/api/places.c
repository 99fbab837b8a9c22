/* Places: what each slot holds (llama.cpp's shape and more), and why the last requests ran where they did.
 * Lengths only, never text. Thread: the event thread's. Tests: tests/e2e/test_native.py,
 * tests/e2e/test_metrics.py, tests/e2e/test_placements.py */
#include "api/jsonout.h"
#include "api/metrics.h"
#include "sched/placed.h"
#include "util/clock.h"
#include <inttypes.h>
#include <math.h>
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

static void put_int(struct buf *b, const char *key, uint64_t n)
{
    buf_puts(b, key);
    jsonout_int(b, (int64_t)n);
}

static void put_real(struct buf *b, const char *key, double x)
{
    buf_puts(b, key);
    jsonout_short(b, x);
}

static void put_bool(struct buf *b, const char *key, bool yes)
{
    buf_puts(b, key);
    buf_puts(b, yes ? "true" : "false");
}

/* For words of ours, which need no escapes. */
static void put_word(struct buf *b, const char *key, const char *word)
{
    buf_puts(b, key);
    buf_putc(b, '"');
    buf_puts(b, word);
    buf_putc(b, '"');
}

/* What both /slots and /metrics tell of slot i. */
static void put_slot(struct buf *b, const struct api *a, uint32_t i, const struct sched_slot_status *slot,
                     uint64_t now)
{
    put_int(b, ",\"group\":", i / (a->o.slots / a->o.groups));
    put_int(b, ",\"tokens\":", slot->tokens);
    put_int(b, ",\"turn_tokens\":", slot->turn_tokens);
    put_int(b, ",\"turns\":", slot->turns);
    put_word(b, ",\"stop_reason\":", slot->stop_reason);
    if (slot->busy || !slot->last_use_ns)
        buf_puts(b, ",\"age_s\":null");
    else
        put_real(b, ",\"age_s\":", api_slot_age_s(slot, now));
    put_word(b, ",\"state\":", api_slot_state(slot, now));
    put_bool(b, ",\"superseded\":", slot->superseded);
    put_real(b, ",\"ttl_s\":", slot->ttl_s);
    put_real(b, ",\"retention\":", slot->retention);
    put_real(b, ",\"value\":", slot->value);
}

void places_write_slots(const struct metrics_view *v, struct buf *b)
{
    buf_putc(b, '[');
    for (uint32_t i = 0; i < v->st->slots; i++) {
        const struct sched_slot_status *slot = &v->st->slot[i];
        put_int(b, i ? ",{\"id\":" : "{\"id\":", i);
        put_int(b, ",\"request\":", slot->request);
        places_put_client(b, slot->client_key);
        put_int(b, ",\"shared_prompt\":", slot->cached);
        put_slot(b, v->api, i, slot, v->now_ns);
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
}

void places_write_solo(const struct metrics_view *v, struct buf *b)
{
    const struct sched_slot_status *solo = &v->st->slot[v->st->slots];
    put_int(b, ",\"solo_tokens\":", solo->tokens);
    put_real(b, ",\"solo_age_s\":", solo->busy ? 0 : api_slot_age_s(solo, v->now_ns));
    put_real(b, ",\"solo_value\":", solo->value);
    put_word(b, ",\"solo_state\":", api_slot_state(solo, v->now_ns));
}

void api_on_slots(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    struct sched_status *st = sched_status_get(a->o.sched);
    uint64_t now = clock_now_ns();
    struct buf b = { .failed = !st };
    buf_putc(&b, '[');
    for (uint32_t i = 0; st && i < st->slots; i++) {
        const struct sched_slot_status *slot = &st->slot[i];
        put_int(&b, i ? ",{\"id\":" : "{\"id\":", i);
        put_int(&b, ",\"n_ctx\":", a->o.context);
        put_bool(&b, ",\"speculative\":", false);
        put_bool(&b, ",\"is_processing\":", slot->busy);
        buf_puts(&b, ",\"id_task\":");
        jsonout_int(&b, slot->busy ? (int64_t)slot->job : -1);
        put_int(&b, ",\"n_prompt_tokens\":", slot->tokens);
        put_slot(&b, a, i, slot, now);
        buf_putc(&b, '}');
    }
    buf_putc(&b, ']');
    free(st);
    api_reply_text(r, API_JSON, &b);
}

/* ---- why ---- */

static void put_text(struct buf *b, const char *key, const char *text)
{
    buf_puts(b, key);
    if (*text)
        jsonout_bytes_str(b, text, strlen(text));
    else
        buf_puts(b, "null");
}

static void put_row(struct buf *b, const struct sched_row *row, int32_t slot)
{
    places_put_place(b, "{\"slot\":", slot);
    put_int(b, ",\"tokens\":", row->tokens);
    put_int(b, ",\"turn_tokens\":", row->turn_tokens);
    put_int(b, ",\"shared_prompt\":", row->shared);
    put_word(b, ",\"state\":", row->busy ? "busy" : row->state);
    put_bool(b, ",\"superseded\":", row->superseded);
    put_bool(b, ",\"excluded\":", row->excluded);
    put_bool(b, ",\"held\":", row->held);
    put_bool(b, ",\"reliable\":", row->reliable);
    put_real(b, ",\"age_s\":", row->age_s);
    put_real(b, ",\"value\":", row->value);
    put_real(b, ",\"loss\":", row->loss);
    buf_putc(b, '}');
}

static void put_choice(struct buf *b, const struct sched_choice *c)
{
    buf_printf(b, "{\"time\":%.3f", (double)(c->time_ns / NS_PER_MS) / 1e3);
    put_word(b, ",\"kind\":", sched_placement_name(c->kind));
    places_put_place(b, ",\"slot\":", c->slot);
    places_put_place(b, ",\"source\":", c->source);
    put_int(b, ",\"tokens\":", c->tokens);
    put_text(b, ",\"reason\":", c->reason);
    put_text(b, ",\"sentence\":", c->sentence);
    put_text(b, ",\"policy\":", c->policy);
    put_int(b, ",\"generation\":", c->generation);
    put_bool(b, ",\"by_builtin\":", c->by_builtin);
    put_real(b, ",\"loss\":", c->loss);
    put_int(b, ",\"tokens_lost\":", c->tokens_lost);
    buf_puts(b, ",\"table\":[");
    for (uint32_t i = 0; i < c->n_rows; i++) {
        if (i)
            buf_putc(b, ',');
        put_row(b, &c->row[i], i + 1 == c->n_rows ? SCHED_MAIN : (int32_t)i);
    }
    buf_puts(b, "]}");
}

static void put_placed(struct buf *b, const struct sched_placed *p)
{
    put_int(b, "{\"job\":", p->job);
    put_text(b, ",\"request\":", p->request_id);
    places_put_client(b, p->client_key);
    put_int(b, ",\"prompt_tokens\":", p->prompt_tokens);
    put_int(b, ",\"cached_tokens\":", p->cached);
    put_real(b, ",\"queue_s\":", (double)p->queue_ns / 1e9);
    put_text(b, ",\"miss\":", p->judged && p->miss ? sched_miss_name(p->miss) : "");
    put_int(b, ",\"miss_tokens\":", p->miss_tokens);
    buf_puts(b, ",\"decisions\":[");
    for (uint32_t i = 0; i < p->n_choices; i++) {
        if (i)
            buf_putc(b, ',');
        put_choice(b, p->choices[i]);
    }
    buf_puts(b, "]}");
}

void api_on_placements(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    const char *id = http_path_rest(r);
    struct sched_placed *found[SCHED_PLACED_FOUND];
    size_t n = *id ? sched_placed_get(a->o.sched, id, found) : 0;
    struct buf b = { 0 };
    if (!n) {
        buf_printf(&b, "id: none of the last %u requests has the X-Request-Id or the job number \"%.128s\"",
                   SCHED_PLACED, id);
        http_reply_error(r, 404, "invalid_request_error", b.failed ? "out of memory" : b.data, "id", NULL);
        http_done(r);
        buf_free(&b);
        return;
    }
    put_text(&b, "{\"id\":", id);
    buf_puts(&b, ",\"requests\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_putc(&b, ',');
        put_placed(&b, found[i]);
        sched_placed_free(found[i]);
    }
    buf_puts(&b, "]}");
    api_reply_text(r, API_JSON, &b);
}
