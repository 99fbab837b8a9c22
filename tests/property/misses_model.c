/* Misses against a model that keeps the tokens of everything that was lost, and why. Conversations of random
 * turns run, are continued, changed, forgotten and given up in a small table; each prompt is judged by both.
 */
#include "../cases.h"
#include "../unit/slots_rig.h"

#include "slots/misses.h"

#define SLOTS 3
#define ALL (SLOTS + 1)
#define MAX_LEN 120
#define RING 12
#define SEQUENCES 20000
#define STEPS 40

struct gone {
    int32_t tokens[MAX_LEN];
    uint32_t n, turn_tokens;
    uint64_t salt;
    enum miss_reason reason;
};

struct world {
    struct slots *s;
    struct misses *m;
    uint32_t block;
    struct gone lost[4096];
    uint32_t n_lost;
    uint64_t seed;
    int64_t now;
    uint64_t judged[MISS_REASONS];
};

static uint32_t below(struct world *w, uint32_t n)
{
    w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->seed >> 33) % n;
}

/* ---- the model: sentences of the header, by looking at tokens ---- */

static uint32_t common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

/* Position of turn token number k, 0 where there is none. */
static uint32_t turn_at(const int32_t *tokens, uint32_t n, uint32_t k, uint32_t *ret_turns)
{
    uint32_t turns = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == TURN && turns++ == k)
            at = i;
    *ret_turns = turns;
    return at;
}

static uint32_t opening_of(const struct slots_prompt *p)
{
    uint32_t turns, second = turn_at(p->tokens, p->n, 1, &turns), third = turn_at(p->tokens, p->n, 2, &turns);
    uint32_t at = turns % 2 ? third : second;
    if (at)
        return at;
    for (uint32_t i = p->n - 1; i > 0; i--)
        if (p->tokens[i] == TURN)
            return i;
    return p->n - 1 < 64 ? p->n - 1 : 64;
}

static uint32_t slow_had(const struct world *w, const struct gone *g, const struct slots_prompt *p)
{
    uint32_t n = g->salt == p->salt ? common(g->tokens, g->n, p->tokens, p->n - 1) : 0;
    if (n < g->turn_tokens)
        return 0;
    if (n < g->n) { /* what of the reply was shared is known in whole blocks */
        uint32_t blocks = n / w->block * w->block;
        n = blocks > g->turn_tokens ? blocks : g->turn_tokens;
    }
    return n >= opening_of(p) ? n : 0;
}

static bool slow_known(const struct world *w, const struct slots_prompt *p)
{
    uint32_t opening = opening_of(p), first = w->n_lost > RING ? w->n_lost - RING : 0;
    for (uint32_t i = 0; i < ALL; i++) {
        const struct slots_history *h = slots_at(w->s, i);
        uint32_t n = h->salt == p->salt ? common(h->tokens, h->n, p->tokens, p->n - 1) : 0;
        if (n && n >= opening)
            return true;
    }
    for (uint32_t k = first; k < w->n_lost; k++) {
        const struct gone *g = &w->lost[k];
        uint32_t turns,
            lines[2] = { turn_at(g->tokens, g->n, 1, &turns), turn_at(g->tokens, g->n, 2, &turns) };
        if (turns < 2)
            lines[0] = g->n < 64 ? g->n : 64;
        for (int l = 0; l < 2; l++)
            if (opening && lines[l] == opening && g->salt == p->salt &&
                common(g->tokens, g->n, p->tokens, p->n) >= opening)
                return true;
    }
    return false;
}

static struct miss slow_judge(const struct world *w, const struct slots_prompt *p, uint32_t cached,
                              bool has_answers)
{
    uint32_t here = 0, first = w->n_lost > RING ? w->n_lost - RING : 0;
    for (uint32_t i = 0; i < ALL; i++) {
        const struct slots_history *h = slots_at(w->s, i);
        uint32_t n = h->salt == p->salt ? common(h->tokens, h->n, p->tokens, p->n - 1) : 0;
        if (h->reliable && h->turn_tokens && n >= h->turn_tokens && n >= opening_of(p) && n > here)
            here = n;
    }
    uint32_t best = here > cached ? here : cached;
    struct miss miss = { 0 };
    for (uint32_t k = w->n_lost; k-- > first;) {
        uint32_t n = slow_had(w, &w->lost[k], p);
        if (n > best) {
            best = n;
            miss = (struct miss){ w->lost[k].reason, n - cached };
        }
    }
    if (miss.reason || here)
        return miss;
    miss.tokens = p->n - cached;
    miss.reason = !has_answers       ? MISS_FIRST_TURN
                  : slow_known(w, p) ? MISS_CLIENT_CHANGED_HISTORY
                                     : MISS_RESTART;
    return miss;
}

static void lose(struct world *w, uint32_t at, enum miss_reason reason)
{
    const struct slots_history *h = slots_at(w->s, at);
    misses_note_lost(w->m, w->s, at, reason);
    if (!h->n || h->cut || !h->reliable)
        return;
    struct gone *g = &w->lost[w->n_lost++];
    *g = (struct gone){ .n = h->n, .turn_tokens = h->turn_tokens, .salt = h->salt, .reason = reason };
    memcpy(g->tokens, h->tokens, h->n * sizeof *g->tokens);
}

/* ---- conversations ---- */

/* A turn: the turn token and some words, out of very few so that much is shared by chance too. */
static uint32_t add_turn(struct world *w, int32_t *tokens, uint32_t n)
{
    tokens[n++] = TURN;
    for (uint32_t k = 1 + below(w, 7); k; k--)
        tokens[n++] = 2 + (int32_t)below(w, 2);
    return n;
}

/* What a request asks: a new talk, the next turn of one that is or was here, or something like it. */
static uint32_t make_prompt(struct world *w, int32_t *t, uint64_t *ret_salt)
{
    uint32_t n = 0, way = below(w, 8);
    const int32_t *from = NULL;
    *ret_salt = below(w, 12) == 0;
    if (way < 3 && slots_at(w->s, way)->n) {
        const struct slots_history *h = slots_at(w->s, below(w, 2) ? way : SLOTS);
        from = h->tokens;
        n = h->n;
        *ret_salt = below(w, 8) ? h->salt : *ret_salt;
    } else if (way < 7 && w->n_lost) {
        uint32_t back = below(w, RING + 3);
        const struct gone *g = &w->lost[back < w->n_lost ? w->n_lost - 1 - back : 0];
        from = g->tokens;
        n = g->n;
        *ret_salt = below(w, 8) ? g->salt : *ret_salt;
    }
    if (n > MAX_LEN - 40)
        n = MAX_LEN - 40;
    if (n)
        memcpy(t, from, n * sizeof *t);
    if (n && below(w, 3) == 0)
        n = 1 + below(w, n); /* its reply was shortened, or more */
    if (n && below(w, 5) == 0)
        t[below(w, n)] = 2 + (int32_t)below(w, 2);
    if (!n && below(w, 4) == 0)
        t[n++] = 2;
    for (uint32_t k = 1 + below(w, 3); k && n < MAX_LEN - 24; k--)
        n = add_turn(w, t, n);
    return n;
}

static void run_request(struct world *w)
{
    int32_t t[MAX_LEN + 16];
    uint64_t salt;
    uint32_t n = make_prompt(w, t, &salt), at = below(w, ALL), shared, took = 0;
    struct slots_prompt *p = NULL;
    cr_assert_eq(slots_prompt_new(w->s, t, n, salt, &p), 0);
    uint32_t source = slots_prompt_longest(w->s, p, &shared);
    if (source != SLOTS_NONE && below(w, 6))
        took = below(w, 4) ? shared : below(w, shared + 1);
    bool has_answers = below(w, 4) ? p->has_answers : below(w, 2);
    struct miss is = misses_judge(w->m, w->s, p, took, has_answers);
    struct miss must = slow_judge(w, p, took, has_answers);
    cr_assert_eq(is.reason, must.reason, "%s where it is %s", miss_reason_name(is.reason),
                 miss_reason_name(must.reason));
    cr_assert_eq(is.tokens, must.tokens, "%s: %u tokens where it is %u", miss_reason_name(is.reason),
                 is.tokens, must.tokens);
    w->judged[is.reason]++;

    if (source != at || !slots_prompt_continues(w->s, p, at))
        lose(w, at, at == SLOTS ? MISS_REPLACED_ON_MAIN : MISS_SLOT_TAKEN);
    struct slots_request r = { .salt = salt };
    cr_assert_eq(slots_begin(w->s, at, took ? source : SLOTS_NONE, took, &r), 0);
    uint32_t reply = below(w, 12);
    for (uint32_t k = 0; k < reply; k++)
        t[n + k] = 2 + (int32_t)below(w, 2);
    cr_assert_eq(slots_append(w->s, at, t + took, n - took + reply), 0);
    cr_assert_eq(slots_end(w->s, at, SLOTS_END_STOP, ++w->now), 0);
    slots_prompt_free(p);
}

static void operate(struct world *w)
{
    uint32_t at = below(w, ALL), n = slots_at(w->s, at)->n;
    switch (below(w, 6)) {
    case 0:
        if (n && below(w, 2)) {
            lose(w, at, MISS_EVICTED_MEMORY);
            cr_assert_eq(slots_cut(w->s, at, below(w, n)), 0);
        }
        break;
    case 1:
        if (at < SLOTS && slots_at(w->s, SLOTS)->n) {
            lose(w, at, MISS_SLOT_TAKEN);
            cr_assert_eq(slots_park(w->s, at), 0);
        }
        break;
    default:
        run_request(w);
        break;
    }
}

static void run(struct world *w, uint32_t block)
{
    struct slots_options o = {
        .n_slots = SLOTS, .group_slots = SLOTS, .turn_token = TURN, .key = { 5, 6 }, .block_tokens = block
    };
    w->block = block;
    w->n_lost = 0;
    cr_assert_eq(slots_new(&o, &w->s), 0);
    cr_assert_eq(misses_new(RING, &w->m), 0);
    for (int i = 0; i < STEPS; i++)
        operate(w);
    misses_free(w->m);
    slots_free(w->s);
}

Test(misses_model, reasons_and_tokens_are_those_of_one_that_forgets_nothing, .timeout = 240)
{
    static struct world w;
    const uint32_t sequences = cases_of(SEQUENCES, 5);
    for (uint64_t i = 0; i < sequences; i++) {
        w.seed = i;
        run(&w, i % 3 == 0 ? 4 : i % 3 == 1 ? 8 : 64);
    }
    for (int k = 0; k < MISS_REASONS; k++)
        cr_expect_gt(w.judged[k], sequences / 20, "%s came up %lu times",
                     miss_reason_name((enum miss_reason)k), w.judged[k]);
}
