/* Case, written: see case.h. What has its default is left out, but for what every reader wants to see. */
#include "abi/policy_words.h"
#include "policy/case.h"
#include "policy/case_words.h"
#include "util/buf.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Doubles hold seconds to the nanosecond up to 2^50 ns and some; what lies beyond is told less a multiple of
 * half of that. */
#define TIME_STEP_BITS 49

static int64_t told_from(const struct policy_snapshot *s)
{
    int64_t steps = s->now_ns >> TIME_STEP_BITS;
    return steps < 2 ? 0 : (steps - 1) * ((int64_t)1 << TIME_STEP_BITS);
}

static void put_seconds(struct buf *b, int64_t ns)
{
    char digits[32];
    uint64_t n = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    int len = snprintf(digits, sizeof digits, "%s%" PRIu64 ".%09" PRIu64, ns < 0 ? "-" : "", n / 1000000000u,
                       n % 1000000000u);
    while (digits[len - 1] == '0' && digits[len - 2] != '.')
        len--;
    buf_append(b, digits, (size_t)len);
}

static void put_number(struct buf *b, double x)
{
    if (isfinite(x))
        buf_printf(b, "%.17g", x);
    else
        buf_puts(b, "null");
}

/* Names are [a-z0-9_-]; whatever else is in one must not break the line. */
static void put_name(struct buf *b, const char *name)
{
    buf_putc(b, '"');
    for (; name && *name; name++)
        buf_putc(b, (*name >= ' ' && *name <= '~' && *name != '"' && *name != '\\') ? *name : '?');
    buf_putc(b, '"');
}

static void put_count(struct buf *b, const char *name, uint64_t n)
{
    if (n)
        buf_printf(b, ",\"%s\":%" PRIu64, name, n);
}

static void put_flag(struct buf *b, const char *name, uint32_t flags, uint32_t flag)
{
    if (flags & flag)
        buf_printf(b, ",\"%s\":true", name);
}

static void put_keys(struct buf *b, const uint64_t keys[4], uint32_t request_flags)
{
    static const char *const names[4] = { "client_key", "session_key", "parent_key", "line_key" };
    for (int i = 0; i < 4; i++)
        put_count(b, names[i], keys[i]);
    put_flag(b, "side", request_flags, POLICY_REQUEST_SIDE);
    put_flag(b, "tools", request_flags, POLICY_REQUEST_TOOLS);
    put_flag(b, "subagent", request_flags, POLICY_REQUEST_SUBAGENT);
}

/* The fields that slots and main both have. */
static void put_history(struct buf *b, const struct policy_history *h, int64_t from_ns)
{
    const uint64_t keys[4] = { h->client_key, h->session_key, h->parent_key, h->line_key };
    buf_printf(b,
               ",\"reliable\":%s,\"tokens\":%" PRIu32 ",\"turn_tokens\":%" PRIu32
               ",\"shared_prompt\":%" PRIu32 ",\"last_use_s\":",
               policy_is_reliable(h) ? "true" : "false", h->tokens, h->turn_tokens, h->shared_prompt);
    put_seconds(b, h->last_use_ns - from_ns);
    put_count(b, "turns", h->turns);
    if (h->stop_reason && h->stop_reason < POLICY_STOPS)
        buf_printf(b, ",\"stop_reason\":\"%s\"", policy_stop_names[h->stop_reason]);
    put_count(b, "prompt_tokens", h->prompt_tokens);
    put_keys(b, keys, h->request_flags);
    if (h->recompute_ns) {
        buf_puts(b, ",\"recompute_s\":");
        put_seconds(b, (int64_t)h->recompute_ns);
    }
    put_count(b, "bytes", h->bytes);
}

static void put_slots(struct buf *b, const struct policy_snapshot *s, int64_t from_ns)
{
    buf_puts(b, ",\"slots\":[");
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        buf_printf(b, "%s{\"id\":%" PRIu32 ",\"group\":%" PRIu32 ",\"state\":\"%s\"", i ? "," : "", h->id,
                   h->group, h->flags & POLICY_BUSY ? "busy" : "idle");
        put_flag(b, "excluded", h->flags, POLICY_EXCLUDED);
        put_flag(b, "held", h->flags, POLICY_HELD);
        put_history(b, h, from_ns);
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
    if (s->main_history) {
        buf_puts(b, ",\"main\":{\"valid\":true");
        put_flag(b, "busy", s->main_history->flags, POLICY_BUSY);
        put_history(b, s->main_history, from_ns);
        buf_putc(b, '}');
    }
}

static void put_list(struct buf *b, const char *name, const uint64_t *list, uint32_t n, bool seconds)
{
    buf_printf(b, "\"%s\":[", name);
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            buf_putc(b, ',');
        if (seconds)
            put_seconds(b, (int64_t)list[i]);
        else
            buf_printf(b, "%" PRIu64, list[i]);
    }
    buf_putc(b, ']');
}

static void put_returns(struct buf *b, const struct policy_snapshot *s)
{
    const char *before = ",\"returns\":{";
    for (uint32_t i = 0; i < POLICY_STOPS; i++) {
        const struct policy_returns *r = policy_returns_after(s, i);
        if (!r || !r->bins)
            continue;
        buf_printf(b, "%s\"%s\":{", before, policy_stop_names[i]);
        put_list(b, "edges_s", r->edges_ns, r->bins, true);
        buf_putc(b, ',');
        put_list(b, "at_risk", r->at_risk, r->bins, false);
        buf_putc(b, ',');
        put_list(b, "returned", r->returned, r->bins, false);
        buf_putc(b, '}');
        before = ",";
    }
    if (before[1] == 0)
        buf_putc(b, '}');
}

static bool any_shared(const struct policy_snapshot *s)
{
    for (uint32_t i = 0; i <= s->n_slots; i++)
        for (uint32_t k = 0; k < i; k++)
            if (policy_shared(s, i, k))
                return true;
    return false;
}

static void put_shared(struct buf *b, const struct policy_snapshot *s)
{
    if (!any_shared(s))
        return;
    buf_puts(b, ",\"shared\":[");
    for (uint32_t i = 0; i <= s->n_slots; i++) {
        for (uint32_t k = 0; k <= s->n_slots; k++)
            buf_printf(b, "%s%" PRIu32, k ? "," : i ? ",[" : "[", policy_shared(s, i, k));
        buf_putc(b, ']');
    }
    buf_putc(b, ']');
}

static void put_request(struct buf *b, const struct policy_request *r)
{
    const uint64_t keys[4] = { r->client_key, r->session_key, r->parent_key, r->line_key };
    buf_printf(b,
               ",\"request\":{\"prompt_tokens\":%" PRIu32 ",\"turn_tokens\":%" PRIu32
               ",\"max_new_tokens\":%" PRIu32,
               r->prompt_tokens, r->turn_tokens, r->max_new_tokens);
    put_keys(b, keys, r->flags);
    buf_putc(b, '}');
}

/* All of a case but the closing brace. */
static void put_case(struct buf *b, const struct policy_decision *d)
{
    const struct policy_snapshot *s = d->snapshot;
    int64_t from_ns = told_from(s);
    buf_printf(b, "{\"id\":%" PRIu64 ",\"call\":\"%s\",\"snapshot\":{\"now_s\":", d->id,
               policy_call_name(d->call));
    put_seconds(b, s->now_ns - from_ns);
    buf_printf(b, ",\"padding_safe\":%s,\"prompt_tokens_per_s\":",
               s->flags & POLICY_PADDING_SAFE ? "true" : "false");
    put_number(b, isfinite(s->prompt_tokens_per_s) ? s->prompt_tokens_per_s : 0);
    if (s->seed)
        buf_printf(b, ",\"seed\":%" PRId64, (int64_t)s->seed);
    put_slots(b, s, from_ns);
    put_returns(b, s);
    put_shared(b, s);
    buf_putc(b, '}');
    if (d->request)
        put_request(b, d->request);
}

void policy_case_write(struct buf *b, const struct policy_decision *d)
{
    put_case(b, d);
    buf_putc(b, '}');
}

void policy_case_write_decided(struct buf *b, const struct policy_decision *d)
{
    put_case(b, d);
    buf_puts(b, ",\"decision\":{\"time_s\":");
    put_seconds(b, (int64_t)d->time_ns);
    buf_printf(b, ",\"job\":%" PRIu64 ",\"policy\":", d->job);
    put_name(b, d->policy);
    buf_printf(b, ",\"generation\":%" PRIu64 ",\"by_builtin\":%s,\"took_us\":%" PRIu32 ".%03" PRIu32 ",",
               d->generation, d->answer.by_builtin ? "true" : "false", d->took_ns / 1000, d->took_ns % 1000);
    policy_answer_write(b, d);
    if (d->call == POLICY_CALL_PLACE && d->answer.candidate_loss) {
        buf_puts(b, ",\"candidate_loss\":");
        for (uint32_t i = 0; i < d->snapshot->n_slots; i++) {
            buf_putc(b, i ? ',' : '[');
            put_number(b, d->answer.candidate_loss[i]);
        }
        buf_putc(b, ']');
    }
    buf_puts(b, "}}");
}

/* ---- answers ---- */

static void put_slot_id(struct buf *b, const struct policy_snapshot *s, uint32_t slot)
{
    buf_printf(b, "%" PRIu32, policy_at(s, slot)->id);
}

static void put_slot(struct buf *b, const struct policy_decision *d)
{
    buf_puts(b, "\"slot\":");
    if (d->answer.result == POLICY_DECIDED)
        put_slot_id(b, d->snapshot, d->answer.slot);
    else
        buf_puts(b, "null");
}

static void put_place(struct buf *b, const struct policy_decision *d)
{
    const struct policy_answer *a = &d->answer;
    put_slot(b, d);
    buf_puts(b, ",\"source\":");
    if (a->source_kind == POLICY_SOURCE_SLOT)
        put_slot_id(b, d->snapshot, a->source);
    else
        buf_puts(b, a->source_kind == POLICY_SOURCE_MAIN ? "\"main\"" : "null");
    buf_puts(b, ",\"reason\":");
    put_name(b, a->reason);
    buf_puts(b, ",\"loss\":");
    put_number(b, a->loss);
    buf_printf(b, ",\"tokens_lost\":%" PRIu64, a->tokens_lost);
}

static void put_worth(struct buf *b, const struct policy_worth *w)
{
    buf_printf(b, "{\"state\":\"%s\",\"retention\":", policy_state_name(w->state));
    put_number(b, w->retention);
    buf_puts(b, ",\"value\":");
    put_number(b, w->value);
    buf_puts(b, ",\"age_s\":");
    put_number(b, w->age_s);
    buf_puts(b, ",\"ttl_s\":");
    put_number(b, w->ttl_s);
    buf_puts(b, ",\"give_up\":");
    put_number(b, w->give_up);
    buf_putc(b, '}');
}

static void put_worths(struct buf *b, const struct policy_decision *d)
{
    uint32_t n = d->snapshot->n_slots;
    buf_puts(b, "\"slots\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            buf_putc(b, ',');
        put_worth(b, &d->answer.worth[i]);
    }
    buf_puts(b, "],\"main\":");
    if (d->snapshot->main_history)
        put_worth(b, &d->answer.worth[n]);
    else
        buf_puts(b, "null");
}

static void put_superseded(struct buf *b, const struct policy_decision *d)
{
    const char *before = "";
    buf_puts(b, "\"slots\":[");
    for (uint32_t i = 0; i < d->snapshot->n_slots; i++) {
        if (!(d->answer.superseded[i / 64] >> (i % 64) & 1))
            continue;
        buf_puts(b, before);
        put_slot_id(b, d->snapshot, i);
        before = ",";
    }
    buf_putc(b, ']');
}

void policy_answer_write(struct buf *b, const struct policy_decision *d)
{
    switch (d->call) {
    case POLICY_CALL_PLACE:
        put_place(b, d);
        break;
    case POLICY_CALL_PARK:
        put_slot(b, d);
        buf_puts(b, ",\"reason\":");
        put_name(b, d->answer.reason);
        break;
    case POLICY_CALL_STATE:
        put_worths(b, d);
        break;
    default:
        put_superseded(b, d);
    }
}
