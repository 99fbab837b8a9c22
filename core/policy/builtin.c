/* The built-in policy: plain and predictable. It answers when no policy is configured, and for one that gave
 * an answer that is not legal.
 *
 * place: a request runs where the longest history it continues lies, if that is a free slot; otherwise in a
 * blank slot, otherwise in the least recently used one. Among equals the group with the fewest rows goes
 * first, then slot order. Its prefix comes from whatever history shares most.
 * park_destination: main's history goes to a blank slot (an older copy of itself before others), otherwise to
 * the least recently used one, unless main itself was used before it.
 * cache_state: nothing is protected; memory is given up by last use.
 *
 * A decision is a pure function of its arguments (abi/policy.h); any thread. It is a policy like any other
 * and may include what they may include. Tests: tests/unit/test_builtin.c */
#include "abi/policy.h"
#include "abi/policy_words.h"
#include "policy/host.h"

enum reason {
    REASON_NONE,
    REASON_CONTINUE,
    REASON_NEW_BLANK,
    REASON_LEAST_RECENT,
    REASON_PARKED,
    REASON_NO_MAIN,
    REASON_SAME_CONVERSATION,
    REASON_ALREADY_KEPT,
    REASON_MAIN_IS_OLDEST,
    REASON_NO_DESTINATION,
};

static const struct policy_reason reasons[] = {
    [REASON_NONE] = { "none", "No slot is free." },
    [REASON_CONTINUE] = { "continue", "The request continues the history in this slot." },
    [REASON_NEW_BLANK] = { "new_blank", "The slot holds nothing that would be missed." },
    [REASON_LEAST_RECENT] = { "least_recent", "No slot is blank; this one was used longest ago." },
    [REASON_PARKED] = { "parked", "The solo session's history is kept here." },
    [REASON_NO_MAIN] = { "no_main", "The solo session holds nothing to keep." },
    [REASON_SAME_CONVERSATION] = { "same_conversation", "The request continues the solo session's history." },
    [REASON_ALREADY_KEPT] = { "already_kept", "A slot holds all of the solo session's history." },
    [REASON_MAIN_IS_OLDEST] = { "main_is_oldest", "Every free slot was used after the solo session." },
    [REASON_NO_DESTINATION] = { "no_destination", "No slot is free to keep it." },
};

/* A slot that could be taken, and what that costs. */
struct seat {
    uint32_t slot; /* POLICY_NO_SLOT: none yet */
    double collateral;
    int own_copy, blank;
    uint32_t rows;
    int64_t last_use_ns;
};

static int better(const struct policy_snapshot *s, const struct seat *a, const struct seat *b)
{
    if (b->slot == POLICY_NO_SLOT)
        return 1;
    if (a->collateral < b->collateral || a->collateral > b->collateral)
        return a->collateral < b->collateral;
    if (a->own_copy != b->own_copy)
        return a->own_copy;
    if (a->blank != b->blank)
        return a->blank;
    if (a->rows != b->rows)
        return a->rows < b->rows;
    if (!a->blank && a->last_use_ns != b->last_use_ns)
        return a->last_use_ns < b->last_use_ns;
    return policy_before(s, a->slot, b->slot);
}

static struct seat seat_of(const struct policy_snapshot *s, uint32_t slot)
{
    const struct policy_history *h = policy_at(s, slot);
    return (struct seat){
        .slot = slot,
        .blank = policy_blank(s, slot),
        .rows = policy_busy_rows(s, h->group),
        .last_use_ns = h->last_use_ns,
    };
}

static double tokens_of(const void *arg, const struct policy_snapshot *s, uint32_t i)
{
    (void)arg;
    return policy_at(s, i)->tokens;
}

/* Length of the longest history that the prompt continues, wherever it lies. */
static uint32_t longest_continued(const struct policy_snapshot *s)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i <= s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        if (h && policy_is_reliable(h) && policy_continues(h) && h->shared_prompt > best)
            best = h->shared_prompt;
    }
    return best;
}

static int place(const void *self, const struct policy_snapshot *s, const struct policy_request *request,
                 struct policy_place *answer)
{
    (void)self;
    (void)request;
    struct seat own = { .slot = POLICY_NO_SLOT }, other = { .slot = POLICY_NO_SLOT };
    uint32_t best = longest_continued(s);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        if (!policy_is_free(h))
            continue;
        struct seat seat = seat_of(s, i);
        double lost = seat.blank ? 0 : h->tokens;
        seat.collateral = policy_collateral(s, i, tokens_of, NULL);
        if (answer->candidate_loss)
            answer->candidate_loss[i] = lost + seat.collateral;
        if (best && policy_is_reliable(h) && policy_continues(h) && h->shared_prompt == best) {
            if (better(s, &seat, &own))
                own = seat;
        } else if (better(s, &seat, &other)) {
            other = seat;
        }
    }

    const struct seat *chosen = own.slot != POLICY_NO_SLOT ? &own : &other;
    answer->slot = chosen->slot;
    answer->reason = REASON_NONE;
    if (chosen->slot == POLICY_NO_SLOT)
        return POLICY_NONE;
    answer->reason = chosen == &own  ? REASON_CONTINUE
                     : chosen->blank ? REASON_NEW_BLANK
                                     : REASON_LEAST_RECENT;
    policy_choose_source(s, answer);
    answer->tokens_lost = policy_tokens_lost(s, answer);
    answer->loss = (double)answer->tokens_lost + chosen->collateral;
    return POLICY_DECIDED;
}

/* A reliable slot, running or not, holds all of main. */
static int already_kept(const struct policy_snapshot *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct policy_history *h = policy_at(s, i);
        if (policy_is_reliable(h) && !(h->flags & POLICY_EXCLUDED) &&
            policy_shared(s, i, s->n_slots) >= s->main_history->tokens)
            return 1;
    }
    return 0;
}

static int park_destination(const void *self, const struct policy_snapshot *s,
                            const struct policy_request *request, struct policy_park *answer)
{
    (void)self;
    (void)request;
    const struct policy_history *from = s->main_history;
    struct seat best = { .slot = POLICY_NO_SLOT };
    answer->slot = POLICY_NO_SLOT;
    answer->reason = REASON_NO_MAIN;
    if (!from || !from->tokens || !policy_is_reliable(from))
        return POLICY_NONE;
    answer->reason = REASON_SAME_CONVERSATION;
    if (policy_continues(from))
        return POLICY_NONE;
    answer->reason = REASON_ALREADY_KEPT;
    if (already_kept(s))
        return POLICY_NONE;

    for (uint32_t i = 0; i < s->n_slots; i++) {
        /* A row above would soon run over what is parked below it. */
        if (!policy_is_free(policy_at(s, i)) || (!(s->flags & POLICY_PADDING_SAFE) && policy_row_above(s, i)))
            continue;
        struct seat seat = seat_of(s, i);
        seat.own_copy = policy_superseded_by(s, i, s->n_slots);
        if (better(s, &seat, &best))
            best = seat;
    }
    answer->reason = REASON_NO_DESTINATION;
    if (best.slot == POLICY_NO_SLOT)
        return POLICY_NONE;
    answer->reason = REASON_MAIN_IS_OLDEST;
    if (!best.blank && best.last_use_ns > from->last_use_ns)
        return POLICY_NONE;
    answer->slot = best.slot;
    answer->reason = REASON_PARKED;
    return POLICY_DECIDED;
}

static void fill_worth(const struct policy_snapshot *s, uint32_t i, struct policy_worth *worth)
{
    double age_s = policy_age_s(s, policy_at(s, i));
    int blank = policy_blank(s, i);
    worth->state = blank ? POLICY_STATE_BLANK : POLICY_STATE_EXPIRED;
    worth->value = blank ? 0 : 1 / (1 + age_s);
    worth->retention = worth->value;
    worth->age_s = age_s;
    worth->ttl_s = 0;
    worth->give_up = blank ? 0 : -age_s;
}

static int cache_state(const void *self, const struct policy_snapshot *s, struct policy_state *answer)
{
    (void)self;
    for (uint32_t i = 0; i < s->n_slots; i++)
        fill_worth(s, i, policy_worth_at(answer, i));
    if (answer->of_main && s->main_history)
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
    return (void *)&policy_builtin; /* it keeps nothing: any address will do */
}

static void destroy(void *self)
{
    (void)self;
}

const struct slot_policy policy_builtin = {
    .head = POLICY_HEAD(0),
    .name = "builtin",
    .version = "1",
    .summary = "The longest continuing history, else a blank slot, else the least recently used one.",
    .reasons = reasons,
    .n_reasons = sizeof reasons / sizeof *reasons,
    .create = create,
    .destroy = destroy,
    .place = place,
    .park_destination = park_destination,
    .cache_state = cache_state,
    .superseded_slots = superseded_slots,
};
