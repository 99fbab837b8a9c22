/* Policy words: what the host and every policy mean by continues, superseded, blank, free, order, busy rows
 * and collateral, as functions over a snapshot; and access to arrays whose elements may be larger than this
 * header knows. Part of the SDK; a policy may include it beside policy.h. Pure; C11 and C++11.
 *
 * Histories are named by index: slots 0..n_slots-1, main n_slots. An index is not checked.
 * Tests: tests/unit/test_policy_words.c */
#ifndef BERTH_ABI_POLICY_WORDS_H
#define BERTH_ABI_POLICY_WORDS_H

#include "policy.h"

/* ---- access ---- */

static inline const void *policy_element(const void *array, uint32_t i, uint32_t stride)
{
    return (const char *)array + (size_t)i * stride;
}

/* History i: a slot's, or main's, which is NULL when there is none. */
static inline const struct policy_history *policy_at(const struct policy_snapshot *s, uint32_t i)
{
    if (i >= s->n_slots)
        return s->main_history;
    return (const struct policy_history *)policy_element(s->slots, i, s->slot_stride);
}

/* Common prefix of histories a and b; 0 when nothing is known. */
static inline uint32_t policy_shared(const struct policy_snapshot *s, uint32_t a, uint32_t b)
{
    if (!s->shared)
        return 0;
    return ((const uint32_t *)policy_element(s->shared, a, s->shared_stride))[b];
}

/* The worth of slot i in an answer being filled. */
static inline struct policy_worth *policy_worth_at(const struct policy_state *answer, uint32_t i)
{
    return (struct policy_worth *)((char *)answer->worth + (size_t)i * answer->stride);
}

static inline void policy_set_add(struct policy_set *set, uint32_t i)
{
    set->words[i / 64] |= (uint64_t)1 << (i % 64);
}

/* NULL when nothing is known of waits after this stop reason. */
static inline const struct policy_returns *policy_returns_after(const struct policy_snapshot *s,
                                                                uint32_t stop_reason)
{
    if (!s->returns || stop_reason >= s->n_returns)
        return NULL;
    return (const struct policy_returns *)policy_element(s->returns, stop_reason, s->returns_stride);
}

/* ---- one history ---- */

/* Busy or excluded: a row of its group's window. */
static inline int policy_is_row(const struct policy_history *h)
{
    return (h->flags & (POLICY_BUSY | POLICY_EXCLUDED)) != 0;
}

static inline int policy_is_free(const struct policy_history *h)
{
    return (h->flags & (POLICY_BUSY | POLICY_EXCLUDED | POLICY_HELD)) == 0;
}

static inline int policy_is_reliable(const struct policy_history *h)
{
    return (h->flags & POLICY_RELIABLE) != 0;
}

/* The request's prompt continues h: it shares all its finished turns. Says nothing about reliability. */
static inline int policy_continues(const struct policy_history *h)
{
    return h->turn_tokens > 0 && h->shared_prompt >= h->turn_tokens;
}

/* End of the last use, seconds ago; a use after now counts as now. */
static inline double policy_age_s(const struct policy_snapshot *s, const struct policy_history *h)
{
    return h->last_use_ns < s->now_ns ? (double)(s->now_ns - h->last_use_ns) / 1e9 : 0.0;
}

/* ---- several ---- */

/* Slot a is an older copy of b (another slot, or main). */
static inline int policy_superseded_by(const struct policy_snapshot *s, uint32_t a, uint32_t b)
{
    const struct policy_history *x = policy_at(s, a), *y = policy_at(s, b);
    uint32_t shared = policy_shared(s, a, b);

    if (a == b || a >= s->n_slots || !y || shared < x->turn_tokens || !x->turn_tokens)
        return 0;
    if (!policy_is_reliable(x) || !policy_is_reliable(y) || (x->flags & POLICY_BUSY))
        return 0;
    if (y->tokens < x->tokens || y->last_use_ns < x->last_use_ns)
        return 0;
    if (y->tokens > x->tokens || y->last_use_ns > x->last_use_ns)
        return 1;
    /* Identical copies: the slot with the lowest id stays, running or not. */
    return shared == x->tokens && b < s->n_slots && x->id > y->id;
}

static inline int policy_superseded(const struct policy_snapshot *s, uint32_t a)
{
    uint32_t b, least, near = 0;
    const uint32_t *row;

    if (a >= s->n_slots || !s->shared)
        return 0;
    least = policy_at(s, a)->turn_tokens;
    row = (const uint32_t *)policy_element(s->shared, a, s->shared_stride);
    /* Nearly always nobody shares that much, which is soon found out: the loop has no branch. */
    for (b = 0; b <= s->n_slots; b++)
        near += row[b] >= least;
    if (near == (row[a] >= least))
        return 0;
    for (b = 0; b <= s->n_slots; b++)
        if (row[b] >= least && policy_superseded_by(s, a, b))
            return 1;
    return 0;
}

/* Empty, not reliable, or superseded: nothing is lost with it. */
static inline int policy_blank(const struct policy_snapshot *s, uint32_t i)
{
    const struct policy_history *h = policy_at(s, i);
    return !h || !h->tokens || !policy_is_reliable(h) || policy_superseded(s, i);
}

/* How many slots of its group have a lower id. */
static inline uint32_t policy_rank(const struct policy_snapshot *s, uint32_t i)
{
    const struct policy_history *h = policy_at(s, i);
    uint32_t k, rank = 0;

    for (k = 0; k < s->n_slots; k++) {
        const struct policy_history *other = policy_at(s, k);
        rank += other->group == h->group && other->id < h->id;
    }
    return rank;
}

/* Slot order, for ties: by rank within the group, then by group, which spreads over the groups from the
 * lowest slots up. True when a comes before b. */
static inline int policy_before(const struct policy_snapshot *s, uint32_t a, uint32_t b)
{
    const struct policy_history *x = policy_at(s, a), *y = policy_at(s, b);
    uint32_t rank_a, rank_b;

    if (x->group == y->group)
        return x->id < y->id;
    rank_a = policy_rank(s, a);
    rank_b = policy_rank(s, b);
    return rank_a != rank_b ? rank_a < rank_b : x->group < y->group;
}

/* Rows in the window of a group. */
static inline uint32_t policy_busy_rows(const struct policy_snapshot *s, uint32_t group)
{
    uint32_t i, rows = 0;

    for (i = 0; i < s->n_groups; i++) {
        const struct policy_group *g =
            (const struct policy_group *)policy_element(s->groups, i, s->group_stride);
        if (g->id == group)
            return g->busy_rows;
    }
    for (i = 0; i < s->n_slots; i++)
        rows += policy_at(s, i)->group == group && policy_is_row(policy_at(s, i));
    return rows;
}

/* There is a row of its group above slot i. */
static inline int policy_row_above(const struct policy_snapshot *s, uint32_t i)
{
    const struct policy_history *h = policy_at(s, i);
    uint32_t k;

    for (k = 0; k < s->n_slots; k++) {
        const struct policy_history *other = policy_at(s, k);
        if (other->group == h->group && other->id > h->id && policy_is_row(other))
            return 1;
    }
    return 0;
}

/* Collateral of starting a row in `slot` when the engine is not padding safe: every idle history below it in
 * its group that is not blank and that no row above it covers already is destroyed; the sum of their worth by
 * the policy's own measure. 0 when padding safe. */
static inline double policy_collateral(const struct policy_snapshot *s, uint32_t slot,
                                       double (*worth)(const void *arg, const struct policy_snapshot *s,
                                                       uint32_t i),
                                       const void *arg)
{
    const struct policy_history *h = policy_at(s, slot);
    double sum = 0;
    uint32_t i;

    if (s->flags & POLICY_PADDING_SAFE)
        return 0;
    for (i = 0; i < s->n_slots; i++) {
        const struct policy_history *other = policy_at(s, i);
        if (other->group != h->group || other->id >= h->id || policy_is_row(other))
            continue;
        if (!policy_blank(s, i) && !policy_row_above(s, i))
            sum += worth(arg, s, i);
    }
    return sum;
}

/* Fills in the source of a prefix: the reliable history that shares most with the prompt; of equals the
 * chosen slot, then main, then the lowest id. */
static inline void policy_choose_source(const struct policy_snapshot *s, struct policy_place *answer)
{
    uint32_t i, best = POLICY_NO_SLOT, most = 0;

    for (i = 0; i <= s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        int first; /* of equals */
        if (!h || !policy_is_reliable(h) || !h->shared_prompt || h->shared_prompt < most)
            continue;
        first = i == answer->slot || (best != answer->slot && (i == s->n_slots || best == POLICY_NO_SLOT ||
                                                               h->id < policy_at(s, best)->id));
        if (h->shared_prompt > most || first)
            best = i;
        most = h->shared_prompt;
    }
    answer->source_kind = best == POLICY_NO_SLOT ? POLICY_SOURCE_NONE
                          : best == s->n_slots   ? POLICY_SOURCE_MAIN
                                                 : POLICY_SOURCE_SLOT;
    answer->source = best < s->n_slots ? best : 0;
}

/* Tokens that an answer, its slot and source filled in, costs the history in the slot. */
static inline uint64_t policy_tokens_lost(const struct policy_snapshot *s, const struct policy_place *answer)
{
    const struct policy_history *h = policy_at(s, answer->slot);
    uint32_t kept = 0;

    if (policy_blank(s, answer->slot) || policy_continues(h))
        return 0;
    if (answer->source_kind == POLICY_SOURCE_MAIN)
        kept = policy_shared(s, answer->slot, s->n_slots);
    else if (answer->source_kind == POLICY_SOURCE_SLOT)
        kept = answer->source == answer->slot ? h->shared_prompt
                                              : policy_shared(s, answer->slot, answer->source);
    return h->tokens > kept ? h->tokens - kept : 0;
}

#endif
