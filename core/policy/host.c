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

/* A policy ready to be asked: what one load makes and the next replaces. */
struct bound {
    struct slot_policy entry; /* functions it lacks are NULL */
    const void *self;
    bool builtin;
};

struct policy_host {
    struct bound loaded, builtin;
    void (*on_breach)(void *arg, const struct policy_breach *breach);
    void *arg;
    uint32_t n_slots;
    struct policy_host_counts counts;
    char what[160]; /* the breach being told */
    /* Laid out at the larger of our size and the policy's. */
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

static uint32_t larger(size_t ours, uint32_t theirs)
{
    uint32_t n = theirs > ours ? theirs : (uint32_t)ours;
    return (n + 7) & ~7u; /* every element aligned */
}

static int lay_out(struct policy_host *h)
{
    const struct policy_head *head = &h->loaded.entry.head;
    const uint32_t sizes[] = { head->size_snapshot, head->size_history, head->size_group,
                               head->size_request,  head->size_place,   head->size_park,
                               head->size_state,    head->size_worth,   head->size_set };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > SIZE_LIMIT)
            return -EINVAL;
    h->size_request = larger(sizeof *h->request, head->size_request);
    h->size_place = larger(sizeof *h->place, head->size_place);
    h->size_park = larger(sizeof *h->park, head->size_park);
    h->size_state = larger(sizeof *h->state, head->size_state);
    h->size_worth = larger(sizeof *h->worths, head->size_worth);
    h->size_set = larger(sizeof *h->set, head->size_set);
    h->request = calloc(1, h->size_request);
    h->place = calloc(1, h->size_place);
    h->park = calloc(1, h->size_park);
    h->state = calloc(1, h->size_state);
    h->set = calloc(1, h->size_set);
    h->worth = calloc((size_t)h->n_slots + 1, h->size_worth);
    h->candidates = calloc(h->n_slots, sizeof *h->candidates);
    h->worths = calloc((size_t)h->n_slots + 1, sizeof *h->worths);
    h->words = calloc((size_t)h->n_slots / 64 + 1, sizeof *h->words);
    bool all = h->request && h->place && h->park && h->state && h->set && h->worth && h->candidates &&
               h->worths && h->words;
    return all ? 0 : -ENOMEM;
}

int policy_host_new(const struct policy_host_options *o, uint32_t n_slots, struct policy_host **ret_host)
{
    const struct slot_policy *entry = o->entry ? o->entry : &policy_builtin;
    size_t size = entry->head.size < sizeof *entry ? entry->head.size : sizeof *entry;
    if (size < sizeof entry->head || !n_slots || n_slots > SLOTS_MAX)
        return -EINVAL;
    struct policy_host *h = calloc(1, sizeof *h);
    if (!h)
        return -ENOMEM;
    memcpy(&h->loaded.entry, entry, size);
    h->loaded.self = o->self;
    h->loaded.builtin = entry == &policy_builtin;
    h->builtin = (struct bound){ .entry = policy_builtin, .self = &policy_builtin, .builtin = true };
    h->on_breach = o->on_breach;
    h->arg = o->arg;
    h->n_slots = n_slots;
    int r = lay_out(h);
    if (r < 0) {
        policy_host_free(h);
        return r;
    }
    *ret_host = h;
    return 0;
}

void policy_host_free(struct policy_host *h)
{
    if (!h)
        return;
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

struct snapshot_sizes policy_host_sizes(const struct policy_host *h)
{
    const struct policy_head *head = &h->loaded.entry.head;
    return (struct snapshot_sizes){
        .snapshot = head->size_snapshot,
        .history = head->size_history,
        .group = head->size_group,
        .returns = head->size_returns,
    };
}

const char *policy_host_name(const struct policy_host *h)
{
    return h->loaded.entry.name;
}

struct policy_host_counts policy_host_counts(const struct policy_host *h)
{
    return h->counts;
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

static void tell(struct policy_host *h, enum policy_call call, const struct policy_snapshot *s,
                 const struct policy_request *r)
{
    h->counts.breaches[call]++;
    if (h->on_breach)
        h->on_breach(h->arg, &(struct policy_breach){ call, h->what, s, r });
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
    if (reason >= p->entry.n_reasons)
        return breach(h, "%s: reason %u of %u", call, reason, p->entry.n_reasons);
    return 0;
}

static const char *reason_name(const struct bound *p, uint32_t reason)
{
    const void *row = policy_element(p->entry.reasons, reason, p->entry.head.size_reason);
    return ((const struct policy_reason *)row)->name;
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
    int result = check_place(h, p, s, p->entry.place(p->self, s, laid_out(h, r), h->place));
    if (result < 0)
        return result;
    *ret = (struct policy_host_place){
        .slot = result == POLICY_DECIDED ? h->place->slot : POLICY_NO_SLOT,
        .source_kind = h->place->source_kind,
        .source = h->place->source,
        .loss = h->place->loss,
        .tokens_lost = h->place->tokens_lost,
        .reason = reason_name(p, h->place->reason),
        .candidate_loss = h->candidates,
        .by_builtin = p->builtin && !h->loaded.builtin,
    };
    return result;
}

int policy_host_place(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                      struct policy_host_place *ret_answer)
{
    int result = BREACH;
    h->counts.calls[POLICY_CALL_PLACE]++;
    if (h->loaded.entry.place) {
        result = ask_place(h, &h->loaded, s, r, ret_answer);
        if (result < 0)
            tell(h, POLICY_CALL_PLACE, s, r);
    }
    if (result < 0)
        result = ask_place(h, &h->builtin, s, r, ret_answer);
    if (result < 0) { /* cannot be: then the request waits */
        *ret_answer = (struct policy_host_place){ .slot = POLICY_NO_SLOT,
                                                  .reason = "none",
                                                  .candidate_loss = h->candidates };
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
    int result = p->entry.park_destination(p->self, s, laid_out(h, r), h->park);
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
    *ret = (struct policy_host_park){
        .slot = result == POLICY_DECIDED ? h->park->slot : POLICY_NO_SLOT,
        .reason = reason_name(p, h->park->reason),
        .by_builtin = p->builtin && !h->loaded.builtin,
    };
    return result;
}

int policy_host_park(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                     uint32_t placing, struct policy_host_park *ret_answer)
{
    int result = BREACH;
    h->counts.calls[POLICY_CALL_PARK]++;
    if (h->loaded.entry.park_destination) {
        result = ask_park(h, &h->loaded, s, r, placing, ret_answer);
        if (result < 0)
            tell(h, POLICY_CALL_PARK, s, r);
    }
    if (result < 0)
        result = ask_park(h, &h->builtin, s, r, placing, ret_answer);
    if (result < 0) { /* the built-in's choice is where the request goes, which it cannot know */
        *ret_answer = (struct policy_host_park){ POLICY_NO_SLOT, "no_destination", !h->loaded.builtin };
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
    int result = p->entry.cache_state(p->self, s, h->state);
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
    h->counts.calls[POLICY_CALL_STATE]++;
    if (h->loaded.entry.cache_state) {
        result = ask_state(h, &h->loaded, s);
        if (result < 0)
            tell(h, POLICY_CALL_STATE, s, NULL);
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
    int result = p->entry.superseded_slots(p->self, s, h->set);
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
    h->counts.calls[POLICY_CALL_SUPERSEDED]++;
    if (h->loaded.entry.superseded_slots) {
        result = ask_superseded(h, &h->loaded, s);
        if (result < 0)
            tell(h, POLICY_CALL_SUPERSEDED, s, NULL);
    }
    if (result < 0)
        ask_superseded(h, &h->builtin, s);
    return h->words;
}
