/* Policy host: see host.h. Each question is put to one policy by an ask_ function, which lays the answer out,
 * calls, and checks; the public function puts it to the loaded policy first and to the built-in when that
 * gave no legal answer. */
#include "policy/host.h"
#include "abi/policy_words.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BREACH (-1)
#define SIZE_LIMIT 4096u
#define QUARANTINE_BREACHES 3u
#define QUARANTINE_NS (60 * UINT64_C(1000000000))

/* A policy ready to be asked. */
struct bound {
    const struct slot_policy *entry; /* functions it lacks are NULL */
    const void *self;
    bool builtin;
};

struct policy_host {
    struct policy_seat *seat, *own_seat; /* own_seat: made here, of the built-in */
    uint64_t (*now_ns)(void);
    void (*on_breach)(void *arg, const struct policy_breach *breach);
    void *arg;
    uint32_t n_slots;
    struct policy_loaded *pinned;
    struct bound loaded, builtin; /* loaded: what is pinned */
    struct snapshot_sizes snapshot_sizes;
    uint64_t breach_ns[QUARANTINE_BREACHES]; /* of this generation's last breaches, by n_breaches */
    uint32_t n_breaches;
    struct policy_host_status status;
    struct policy_marker marker;
    char what[160]; /* the breach being told */
    /* Laid out at the larger of our size and the policy's, in memory that is enough for any. */
    uint32_t size_request, size_place, size_park, size_state, size_worth, size_set;
    struct policy_request *request;
    struct policy_place *place;
    struct policy_park *park;
    struct policy_state *state;
    struct policy_set *set;
    char *worth; /* [n_slots + 1] of size_worth */
    /* What callers are given. */
    double *candidates;          /* [n_slots] */
    struct policy_worth *worths; /* [n_slots + 1] */
    uint64_t *words;
};

const uint64_t policy_time_edges_ns[POLICY_TIME_BINS - 1] = {
    1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 1000000, 5000000, 20000000, 100000000, 1000000000,
};

static uint32_t larger(size_t ours, uint32_t theirs)
{
    uint32_t n = theirs > ours ? theirs : (uint32_t)ours;
    return (n + 7) & ~7u; /* every element aligned */
}

/* Memory for any policy there can be, so that a swap cannot fail for want of it: what is not touched costs
 * nothing. */
static int allocate(struct policy_host *h)
{
    h->request = calloc(1, SIZE_LIMIT);
    h->place = calloc(1, SIZE_LIMIT);
    h->park = calloc(1, SIZE_LIMIT);
    h->state = calloc(1, SIZE_LIMIT);
    h->set = calloc(1, SIZE_LIMIT);
    h->worth = calloc((size_t)h->n_slots + 1, SIZE_LIMIT);
    h->candidates = calloc(h->n_slots, sizeof *h->candidates);
    h->worths = calloc((size_t)h->n_slots + 1, sizeof *h->worths);
    h->words = calloc((size_t)h->n_slots / 64 + 1, sizeof *h->words);
    bool all = h->request && h->place && h->park && h->state && h->set && h->worth && h->candidates &&
               h->worths && h->words;
    return all ? 0 : -ENOMEM;
}

int policy_host_new(const struct policy_host_options *o, uint32_t n_slots, struct policy_host **ret_host)
{
    if (!n_slots || n_slots > SLOTS_MAX)
        return -EINVAL;
    struct policy_host *h = calloc(1, sizeof *h);
    if (!h)
        return -ENOMEM;
    h->builtin = (struct bound){ .entry = &policy_builtin, .self = &policy_builtin, .builtin = true };
    h->seat = o->seat;
    h->now_ns = o->now_ns;
    h->on_breach = o->on_breach;
    h->arg = o->arg;
    h->n_slots = n_slots;
    int r = allocate(h);
    if (r == 0 && !h->seat) {
        r = policy_seat_new(policy_loaded_builtin(), &h->own_seat);
        h->seat = h->own_seat;
    }
    if (r < 0) {
        policy_host_free(h);
        return r;
    }
    policy_host_pin(h);
    policy_host_unpin(h);
    *ret_host = h;
    return 0;
}

void policy_host_free(struct policy_host *h)
{
    if (!h)
        return;
    policy_seat_free(h->own_seat);
    free(h->request);
    free(h->place);
    free(h->park);
    free(h->state);
    free(h->set);
    free(h->worth);
    free(h->candidates);
    free(h->worths);
    free(h->words);
    free(h);
}

/* ---- which policy ---- */

static void lay_out(struct policy_host *h, const struct policy_head *head)
{
    h->size_request = larger(sizeof *h->request, head->size_request);
    h->size_place = larger(sizeof *h->place, head->size_place);
    h->size_park = larger(sizeof *h->park, head->size_park);
    h->size_state = larger(sizeof *h->state, head->size_state);
    h->size_worth = larger(sizeof *h->worths, head->size_worth);
    h->size_set = larger(sizeof *h->set, head->size_set);
    memset(h->request, 0, h->size_request);
    h->snapshot_sizes = (struct snapshot_sizes){
        .snapshot = head->size_snapshot,
        .history = head->size_history,
        .group = head->size_group,
        .returns = head->size_returns,
    };
}

bool policy_host_pin(struct policy_host *h)
{
    uint64_t generation;
    h->pinned = policy_seat_take(h->seat, &generation);
    if (generation == h->status.generation)
        return false;
    h->loaded = (struct bound){
        .entry = policy_loaded_entry(h->pinned),
        .self = policy_loaded_self(h->pinned),
        .builtin = h->pinned == policy_loaded_builtin(),
    };
    lay_out(h, &h->loaded.entry->head);
    h->n_breaches = 0;
    h->status.generation = generation;
    h->status.quarantined = false;
    snprintf(h->status.name, sizeof h->status.name, "%s", policy_loaded_name(h->pinned));
    snprintf(h->status.version, sizeof h->status.version, "%s", policy_loaded_version(h->pinned));
    snprintf(h->status.digest, sizeof h->status.digest, "%s", policy_loaded_digest(h->pinned));
    return true;
}

void policy_host_unpin(struct policy_host *h)
{
    policy_loaded_unref(h->pinned);
    h->pinned = NULL;
}

struct snapshot_sizes policy_host_sizes(const struct policy_host *h)
{
    return h->snapshot_sizes;
}

const char *policy_host_name(const struct policy_host *h)
{
    return h->status.name;
}

uint64_t policy_host_generation(const struct policy_host *h)
{
    return h->status.generation;
}

void policy_host_status(const struct policy_host *h, struct policy_host_status *ret_status)
{
    *ret_status = h->status;
}

const struct policy_marker *policy_host_marker(const struct policy_host *h)
{
    return &h->marker;
}

/* ---- around each call ---- */

static uint64_t now(const struct policy_host *h)
{
    return h->now_ns ? h->now_ns() : 0;
}

/* Whether the loaded policy is asked at all; counts the question. */
static bool is_asked(struct policy_host *h, enum policy_call call, bool has_function)
{
    h->status.call[call].calls++;
    return has_function && !h->status.quarantined;
}

static uint64_t enter(struct policy_host *h, const struct bound *p, enum policy_call call)
{
    uint64_t begin = now(h);
    policy_marker_enter(&h->marker, p->entry->name, policy_call_name(call), begin);
    return begin;
}

static void leave(struct policy_host *h, const struct bound *p, enum policy_call call, uint64_t begin)
{
    policy_marker_leave(&h->marker);
    if (p != &h->loaded) {
        h->status.call[call].by_builtin++;
        return;
    }
    struct policy_call_counts *c = &h->status.call[call];
    uint64_t took = now(h) - begin;
    uint32_t bin = 0;
    while (bin < POLICY_TIME_BINS - 1 && took > policy_time_edges_ns[bin])
        bin++;
    c->times[bin]++;
    c->time_ns += took;
    c->slow += took > POLICY_CALL_BUDGET_NS;
}

/* ---- breaches ---- */

__attribute__((format(printf, 2, 3))) static int breach(struct policy_host *h, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(h->what, sizeof h->what, format, args);
    va_end(args);
    return BREACH;
}

/* Notes a breach; true when it is the third within a minute. */
static bool is_too_many(struct policy_host *h)
{
    uint64_t at = now(h), *oldest = &h->breach_ns[h->n_breaches % QUARANTINE_BREACHES];
    *oldest = at;
    h->n_breaches++;
    if (h->n_breaches < QUARANTINE_BREACHES || h->loaded.builtin)
        return false;
    return at - h->breach_ns[h->n_breaches % QUARANTINE_BREACHES] < QUARANTINE_NS;
}

static void tell(struct policy_host *h, enum policy_call call, const struct policy_snapshot *s,
                 const struct policy_request *r, uint32_t placing)
{
    h->status.call[call].breaches++;
    if (is_too_many(h)) {
        h->status.quarantined = true;
        h->status.quarantines++;
    }
    if (h->on_breach)
        h->on_breach(h->arg, &(struct policy_breach){ .call = call,
                                                      .what = h->what,
                                                      .snapshot = s,
                                                      .request = r,
                                                      .placing = placing,
                                                      .quarantined = h->status.quarantined });
}

/* A result that is neither of those a question may have. */
static int bad_result(struct policy_host *h, const char *call, int result)
{
    if (result < 0)
        return breach(h, "%s: failed with %d", call, result);
    return breach(h, "%s: returned %d", call, result);
}

static int check_reason(struct policy_host *h, const struct bound *p, const char *call, uint32_t reason)
{
    if (reason >= p->entry->n_reasons)
        return breach(h, "%s: reason %u of %u", call, reason, p->entry->n_reasons);
    return 0;
}

static const struct policy_reason *reason_of(const struct bound *p, uint32_t reason)
{
    return (const struct policy_reason *)policy_element(p->entry->reasons, reason,
                                                        p->entry->head.size_reason);
}

static bool any_free(const struct policy_snapshot *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (policy_is_free(policy_at(s, i)))
            return true;
    return false;
}

static int check_free(struct policy_host *h, const struct policy_snapshot *s, const char *call, uint32_t slot)
{
    if (slot >= s->n_slots)
        return breach(h, "%s: slot %u of %u", call, slot, s->n_slots);
    uint32_t flags = policy_at(s, slot)->flags;
    if (flags & POLICY_BUSY)
        return breach(h, "%s: slot %u is busy", call, slot);
    if (flags & POLICY_EXCLUDED)
        return breach(h, "%s: slot %u is excluded", call, slot);
    if (flags & POLICY_HELD)
        return breach(h, "%s: slot %u is held for another request", call, slot);
    return 0;
}

/* ---- place ---- */

static int check_source(struct policy_host *h, const struct policy_snapshot *s, const struct policy_place *a)
{
    uint32_t i = a->source;
    switch (a->source_kind) {
    case POLICY_SOURCE_NONE:
        return 0;
    case POLICY_SOURCE_SLOT:
        if (i >= s->n_slots)
            return breach(h, "place: source slot %u of %u", i, s->n_slots);
        break;
    case POLICY_SOURCE_MAIN:
        i = s->n_slots;
        if (!s->main_history)
            return breach(h, "place: main as the source where there is none");
        break;
    default:
        return breach(h, "place: source kind %u", a->source_kind);
    }
    if (!policy_is_reliable(policy_at(s, i)))
        return breach(h, "place: source %u is not reliable", i);
    if (!policy_at(s, i)->shared_prompt)
        return breach(h, "place: source %u shares nothing with the prompt", i);
    return 0;
}

static int check_place(struct policy_host *h, const struct bound *p, const struct policy_snapshot *s,
                       int result)
{
    const struct policy_place *a = h->place;
    if (result != POLICY_DECIDED && result != POLICY_NONE)
        return bad_result(h, "place", result);
    if (check_reason(h, p, "place", a->reason) < 0)
        return BREACH;
    if (result == POLICY_NONE)
        return any_free(s) ? breach(h, "place: no slot although one is free") : result;
    if (check_free(h, s, "place", a->slot) < 0 || check_source(h, s, a) < 0)
        return BREACH;
    if (isnan(a->loss))
        return breach(h, "place: loss is not a number");
    return result;
}

/* The request at the size the policy knows, the rest of it zero. */
static const struct policy_request *laid_out(struct policy_host *h, const struct policy_request *r)
{
    memcpy(h->request, r, sizeof *r);
    h->request->size = h->size_request;
    return h->request;
}

static int ask_place(struct policy_host *h, const struct bound *p, const struct policy_snapshot *s,
                     const struct policy_request *r, struct policy_host_place *ret)
{
    for (uint32_t i = 0; i < h->n_slots; i++)
        h->candidates[i] = NAN;
    memset(h->place, 0, h->size_place);
    h->place->size = h->size_place;
    h->place->slot = POLICY_NO_SLOT;
    h->place->n_candidates = h->n_slots;
    h->place->candidate_loss = h->candidates;
    const struct policy_request *laid = laid_out(h, r);
    uint64_t begin = enter(h, p, POLICY_CALL_PLACE);
    int result = p->entry->place(p->self, s, laid, h->place);
    leave(h, p, POLICY_CALL_PLACE, begin);
    result = check_place(h, p, s, result);
    if (result < 0)
        return result;
    const struct policy_reason *reason = reason_of(p, h->place->reason);
    *ret = (struct policy_host_place){
        .slot = result == POLICY_DECIDED ? h->place->slot : POLICY_NO_SLOT,
        .source_kind = h->place->source_kind,
        .source = h->place->source,
        .loss = h->place->loss,
        .tokens_lost = h->place->tokens_lost,
        .reason = reason->name,
        .sentence = reason->sentence,
        .candidate_loss = h->candidates,
        .by_builtin = p->builtin && !h->loaded.builtin,
    };
    return result;
}

int policy_host_place(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                      struct policy_host_place *ret_answer)
{
    int result = BREACH;
    if (is_asked(h, POLICY_CALL_PLACE, h->loaded.entry->place)) {
        result = ask_place(h, &h->loaded, s, r, ret_answer);
        if (result < 0)
            tell(h, POLICY_CALL_PLACE, s, r, POLICY_NO_SLOT);
    }
    if (result < 0)
        result = ask_place(h, &h->builtin, s, r, ret_answer);
    if (result < 0) { /* cannot be: then the request waits */
        *ret_answer = (struct policy_host_place){
            .slot = POLICY_NO_SLOT, .reason = "none", .sentence = "", .candidate_loss = h->candidates
        };
        return POLICY_NONE;
    }
    return result;
}

/* ---- park_destination ---- */

static int ask_park(struct policy_host *h, const struct bound *p, const struct policy_snapshot *s,
                    const struct policy_request *r, uint32_t placing, struct policy_host_park *ret)
{
    memset(h->park, 0, h->size_park);
    h->park->size = h->size_park;
    h->park->slot = POLICY_NO_SLOT;
    const struct policy_request *laid = laid_out(h, r);
    uint64_t begin = enter(h, p, POLICY_CALL_PARK);
    int result = p->entry->park_destination(p->self, s, laid, h->park);
    leave(h, p, POLICY_CALL_PARK, begin);
    if (result != POLICY_DECIDED && result != POLICY_NONE)
        return bad_result(h, "park_destination", result);
    if (check_reason(h, p, "park_destination", h->park->reason) < 0)
        return BREACH;
    if (result == POLICY_DECIDED) {
        if (!s->main_history || !s->main_history->tokens || !policy_is_reliable(s->main_history))
            return breach(h, "park_destination: slot %u where main holds nothing", h->park->slot);
        if (check_free(h, s, "park_destination", h->park->slot) < 0)
            return BREACH;
        if (h->park->slot == placing)
            return breach(h, "park_destination: slot %u is where the request is placed", placing);
    }
    const struct policy_reason *reason = reason_of(p, h->park->reason);
    *ret = (struct policy_host_park){
        .slot = result == POLICY_DECIDED ? h->park->slot : POLICY_NO_SLOT,
        .reason = reason->name,
        .sentence = reason->sentence,
        .by_builtin = p->builtin && !h->loaded.builtin,
    };
    return result;
}

int policy_host_park(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                     uint32_t placing, struct policy_host_park *ret_answer)
{
    int result = BREACH;
    if (is_asked(h, POLICY_CALL_PARK, h->loaded.entry->park_destination)) {
        result = ask_park(h, &h->loaded, s, r, placing, ret_answer);
        if (result < 0)
            tell(h, POLICY_CALL_PARK, s, r, placing);
    }
    if (result < 0)
        result = ask_park(h, &h->builtin, s, r, placing, ret_answer);
    if (result < 0) { /* the built-in's choice is where the request goes, which it cannot know */
        *ret_answer = (struct policy_host_park){ .slot = POLICY_NO_SLOT,
                                                 .reason = "no_destination",
                                                 .sentence = "",
                                                 .by_builtin = !h->loaded.builtin };
        return POLICY_NONE;
    }
    return result;
}

/* ---- cache_state ---- */

static int check_worth(struct policy_host *h, uint32_t i, const struct policy_worth *w)
{
    if (w->state < POLICY_STATE_BLANK || w->state > POLICY_STATE_PROTECTED)
        return breach(h, "cache_state: history %u has state %u", i, w->state);
    if (isnan(w->retention) || isnan(w->value) || isnan(w->age_s) || isnan(w->ttl_s))
        return breach(h, "cache_state: a number of history %u is not one", i);
    return 0;
}

static int ask_state(struct policy_host *h, const struct bound *p, const struct policy_snapshot *s)
{
    memset(h->state, 0, h->size_state);
    memset(h->worth, 0, ((size_t)h->n_slots + 1) * h->size_worth);
    h->state->size = h->size_state;
    h->state->stride = h->size_worth;
    h->state->worth = (struct policy_worth *)h->worth;
    h->state->of_main = s->main_history ? policy_worth_at(h->state, h->n_slots) : NULL;
    uint64_t begin = enter(h, p, POLICY_CALL_STATE);
    int result = p->entry->cache_state(p->self, s, h->state);
    leave(h, p, POLICY_CALL_STATE, begin);
    if (result != POLICY_DECIDED)
        return bad_result(h, "cache_state", result);
    for (uint32_t i = 0; i <= h->n_slots; i++) {
        const struct policy_history *x = policy_at(s, i);
        struct policy_worth w = *(const struct policy_worth *)(h->worth + (size_t)i * h->size_worth);
        if (!x)
            w = (struct policy_worth){ .state = POLICY_STATE_BLANK };
        else if (check_worth(h, i, &w) < 0)
            return BREACH;
        if (isnan(w.give_up))
            w.give_up =
                !x->tokens ? 0 : (w.state == POLICY_STATE_PROTECTED ? w.retention : w.value) / x->tokens;
        h->worths[i] = w;
    }
    return result;
}

const struct policy_worth *policy_host_state(struct policy_host *h, const struct policy_snapshot *s)
{
    int result = BREACH;
    if (is_asked(h, POLICY_CALL_STATE, h->loaded.entry->cache_state)) {
        result = ask_state(h, &h->loaded, s);
        if (result < 0)
            tell(h, POLICY_CALL_STATE, s, NULL, POLICY_NO_SLOT);
    }
    if (result < 0)
        ask_state(h, &h->builtin, s);
    return h->worths;
}

/* ---- superseded_slots ---- */

static int ask_superseded(struct policy_host *h, const struct bound *p, const struct policy_snapshot *s)
{
    uint32_t n_words = h->n_slots / 64 + 1;
    memset(h->words, 0, n_words * sizeof *h->words);
    memset(h->set, 0, h->size_set);
    h->set->size = h->size_set;
    h->set->n_words = n_words;
    h->set->words = h->words;
    uint64_t begin = enter(h, p, POLICY_CALL_SUPERSEDED);
    int result = p->entry->superseded_slots(p->self, s, h->set);
    leave(h, p, POLICY_CALL_SUPERSEDED, begin);
    if (result != POLICY_DECIDED)
        return bad_result(h, "superseded_slots", result);
    for (uint32_t i = 0; i < n_words * 64; i++) {
        if (!(h->words[i / 64] >> (i % 64) & 1))
            continue;
        if (i >= h->n_slots)
            return breach(h, "superseded_slots: slot %u of %u", i, h->n_slots);
        if (policy_at(s, i)->flags & POLICY_BUSY)
            return breach(h, "superseded_slots: slot %u is busy", i);
    }
    return result;
}

const uint64_t *policy_host_superseded(struct policy_host *h, const struct policy_snapshot *s)
{
    int result = BREACH;
    if (is_asked(h, POLICY_CALL_SUPERSEDED, h->loaded.entry->superseded_slots)) {
        result = ask_superseded(h, &h->loaded, s);
        if (result < 0)
            tell(h, POLICY_CALL_SUPERSEDED, s, NULL, POLICY_NO_SLOT);
    }
    if (result < 0)
        ask_superseded(h, &h->builtin, s);
    return h->words;
}
