/* lru: a request runs where its conversation lies, otherwise in a blank slot, otherwise in the slot that was
 * used longest ago. What the solo session held is parked in the same order, unless it was used before all
 * of them.
 *
 * The plain answer, and the example to begin one's own policy from: README.md in this folder. It looks at no
 * length, no load and no key; value.c is the one that does. Tests: tests/unit/test_lru.c */
#include "policy.h"
#include "policy_words.h"

enum reason {
    NONE,
    CONTINUE,
    BLANK,
    LEAST_RECENT,
    PARKED,
    NO_MAIN,
    SAME,
    KEPT,
    MAIN_IS_OLDEST,
    FULL,
    REASONS
};

static const struct policy_reason reasons[REASONS] = {
    [NONE] = { "none", "No slot is free." },
    [CONTINUE] = { "continue", "The request continues the conversation in this slot." },
    [BLANK] = { "new_blank", "The slot held nothing that would be missed." },
    [LEAST_RECENT] = { "least_recent", "No slot was blank; this one was used longest ago." },
    [PARKED] = { "parked", "The solo session's conversation is kept in this slot." },
    [NO_MAIN] = { "no_main", "The solo session held nothing to keep." },
    [SAME] = { "same_conversation", "The request continues the solo session's conversation." },
    [KEPT] = { "already_kept", "A slot holds all of the solo session's conversation." },
    [MAIN_IS_OLDEST] = { "main_is_oldest", "Every free slot was used after the solo session." },
    [FULL] = { "no_destination", "No slot is free." },
};

/* The free slot to take: a blank one, else the least recently used; POLICY_NO_SLOT: none is free. */
static uint32_t least_recent(const struct policy_snapshot *s)
{
    uint32_t best = POLICY_NO_SLOT;
    int best_blank = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i), *b = policy_at(s, best);
        if (!policy_is_free(h))
            continue;
        int blank = policy_blank(s, i), first;
        if (best == POLICY_NO_SLOT)
            first = 1;
        else if (blank != best_blank)
            first = blank;
        else if (!blank && h->last_use_ns != b->last_use_ns)
            first = h->last_use_ns < b->last_use_ns;
        else
            first = policy_before(s, i, best);
        if (first) {
            best = i;
            best_blank = blank;
        }
    }
    return best;
}

/* The free slot whose conversation the prompt continues furthest. */
static uint32_t own_slot(const struct policy_snapshot *s)
{
    uint32_t best = POLICY_NO_SLOT;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        if (!policy_is_free(h) || !policy_is_reliable(h) || !policy_continues(h))
            continue;
        if (best == POLICY_NO_SLOT || h->shared_prompt > policy_at(s, best)->shared_prompt ||
            (h->shared_prompt == policy_at(s, best)->shared_prompt && policy_before(s, i, best)))
            best = i;
    }
    return best;
}

static int place(const void *self, const struct policy_snapshot *s, const struct policy_request *request,
                 struct policy_place *answer)
{
    (void)self;
    (void)request;
    answer->slot = own_slot(s);
    answer->reason = CONTINUE;
    if (answer->slot == POLICY_NO_SLOT) {
        answer->slot = least_recent(s);
        if (answer->slot == POLICY_NO_SLOT) {
            answer->reason = NONE;
            return POLICY_NONE;
        }
        answer->reason = policy_blank(s, answer->slot) ? BLANK : LEAST_RECENT;
    }
    policy_choose_source(s, answer);
    answer->tokens_lost = policy_tokens_lost(s, answer);
    answer->loss = (double)answer->tokens_lost;
    if (answer->candidate_loss)
        answer->candidate_loss[answer->slot] = answer->loss;
    return POLICY_DECIDED;
}

static int already_kept(const struct policy_snapshot *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (policy_is_reliable(policy_at(s, i)) && policy_shared(s, i, s->n_slots) >= s->main_history->tokens)
            return 1;
    return 0;
}

static int park_destination(const void *self, const struct policy_snapshot *s,
                            const struct policy_request *request, struct policy_park *answer)
{
    (void)self;
    (void)request;
    uint32_t slot = least_recent(s);
    if (policy_blank(s, s->n_slots))
        answer->reason = NO_MAIN;
    else if (policy_continues(s->main_history))
        answer->reason = SAME;
    else if (already_kept(s))
        answer->reason = KEPT;
    else if (slot == POLICY_NO_SLOT)
        answer->reason = FULL;
    else if (!policy_blank(s, slot) && policy_at(s, slot)->last_use_ns > s->main_history->last_use_ns)
        answer->reason = MAIN_IS_OLDEST;
    else {
        answer->reason = PARKED;
        answer->slot = slot;
        return POLICY_DECIDED;
    }
    answer->slot = POLICY_NO_SLOT;
    return POLICY_NONE;
}

static void fill_worth(const struct policy_snapshot *s, uint32_t i, struct policy_worth *worth)
{
    worth->age_s = policy_age_s(s, policy_at(s, i));
    worth->state = POLICY_STATE_BLANK;
    if (policy_blank(s, i))
        return;
    worth->state = POLICY_STATE_EXPIRED; /* nothing is protected */
    worth->retention = worth->value = 1 / (1 + worth->age_s);
    worth->give_up = -worth->age_s; /* the oldest first */
}

static int cache_state(const void *self, const struct policy_snapshot *s, struct policy_state *answer)
{
    (void)self;
    for (uint32_t i = 0; i < s->n_slots; i++)
        fill_worth(s, i, policy_worth_at(answer, i));
    if (answer->of_main)
        fill_worth(s, s->n_slots, answer->of_main);
    return POLICY_DECIDED;
}

static int superseded_slots(const void *self, const struct policy_snapshot *s, struct policy_set *answer)
{
    (void)self;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (policy_superseded(s, i))
            policy_set_add(answer, i);
    return POLICY_DECIDED;
}

static void *create(const struct policy_create_args *args)
{
    (void)args;
    return (void *)&slot_policy_entry; /* it keeps nothing: any address will do */
}

static void destroy(void *self)
{
    (void)self;
}

const struct slot_policy slot_policy_entry = {
    .head = POLICY_HEAD(0),
    .name = "lru",
    .version = "1",
    .summary = "Its own slot, else a blank one, else the least recently used one.",
    .reasons = reasons,
    .n_reasons = REASONS,
    .create = create,
    .destroy = destroy,
    .place = place,
    .park_destination = park_destination,
    .cache_state = cache_state,
    .superseded_slots = superseded_slots,
};
