/* Slots: see slots.h. Everything that decides where a request runs and what is given up lies in this file. */
#include "sched/slots.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A history that would lose at most this much is continued in place; one that would lose more is forked
 * (which copies no KV), so that two conversations with the same system prompt do not overwrite each other. */
#define IN_PLACE_LOSS 64u
#define BLOCK 64u

int slots_init(struct slots *s, struct engine *e, uint32_t n)
{
    memset(s, 0, sizeof *s);
    s->engine = e;
    s->at = calloc(n, sizeof *s->at);
    if (!s->at)
        return -ENOMEM;
    for (; s->n < n; s->n++) {
        int r = session_new(e, &s->at[s->n].session);
        if (r < 0)
            return r;
    }
    s->idle = n;
    return 0;
}

void slots_clear(struct slots *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        session_free(s->at[i].session);
        free(s->at[i].tokens);
    }
    free(s->at);
    memset(s, 0, sizeof *s);
}

static uint32_t shared_length(const struct slot *slot, const int32_t *tokens, uint32_t n)
{
    uint32_t max = slot->n < n ? slot->n : n;
    uint32_t i = 0;
    while (i < max && slot->tokens[i] == tokens[i])
        i++;
    return i;
}

/* The history that shares most with the prompt; among equals the idle and the later used one. -1: none shares
 * anything. */
static int64_t best_source(const struct slots *s, const int32_t *tokens, uint32_t max, uint32_t *ret_shared)
{
    int64_t best = -1;
    uint32_t best_shared = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t shared = shared_length(&s->at[i], tokens, max);
        if (!shared || shared < best_shared)
            continue;
        const struct slot *b = best < 0 ? NULL : &s->at[best], *c = &s->at[i];
        bool better = !b || shared > best_shared || (b->busy && !c->busy) ||
                      (b->busy == c->busy && c->last_use > b->last_use);
        if (better) {
            best = i;
            best_shared = shared;
        }
    }
    *ret_shared = best_shared;
    return best;
}

/* An empty idle slot, or the least recently used idle one. */
static int64_t cheapest_slot(const struct slots *s)
{
    int64_t best = -1;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct slot *c = &s->at[i];
        if (c->busy)
            continue;
        if (!c->n)
            return i;
        if (best < 0 || c->last_use < s->at[best].last_use)
            best = i;
    }
    return best;
}

static void cut(struct slot *slot, uint32_t n)
{
    session_cut(slot->session, n);
    slot->n = n;
}

static int fork_into(struct slots *s, uint32_t to, uint32_t from, uint32_t n)
{
    cut(&s->at[to], 0);
    int r = slots_reserve(s, to, n);
    if (r < 0)
        return r;
    r = session_fork(s->at[to].session, s->at[from].session, n);
    if (r < 0)
        return r;
    memcpy(s->at[to].tokens, s->at[from].tokens, n * sizeof *s->at[to].tokens);
    s->at[to].n = n;
    return 0;
}

int slots_take(struct slots *s, const int32_t *tokens, uint32_t n, int32_t wanted, bool reuse,
               uint32_t *ret_slot, uint32_t *ret_shared)
{
    if (!s->idle)
        return -EBUSY;
    uint32_t shared = 0;
    int64_t from = reuse && n > 1 ? best_source(s, tokens, n - 1, &shared) : -1;
    int64_t to;
    if (wanted >= 0 && (uint32_t)wanted < s->n && !s->at[wanted].busy)
        to = wanted;
    else if (from >= 0 && !s->at[from].busy && s->at[from].n - shared <= IN_PLACE_LOSS)
        to = from;
    else
        to = cheapest_slot(s);

    if (from == to) {
        cut(&s->at[to], shared);
    } else if (from >= 0) {
        int r = fork_into(s, (uint32_t)to, (uint32_t)from, shared);
        if (r < 0)
            return r;
    } else {
        cut(&s->at[to], 0);
    }
    s->at[to].busy = true;
    s->at[to].last_use = ++s->uses;
    s->idle--;
    *ret_slot = (uint32_t)to;
    *ret_shared = shared;
    return 0;
}

void slots_release(struct slots *s, uint32_t slot)
{
    s->at[slot].busy = false;
    s->at[slot].last_use = ++s->uses;
    s->idle++;
}

int slots_reserve(struct slots *s, uint32_t slot, uint32_t n)
{
    struct slot *at = &s->at[slot];
    uint64_t need = (uint64_t)at->n + n;
    if (need <= at->cap)
        return 0;
    uint64_t cap = need + need / 2 + 64;
    if (cap > UINT32_MAX)
        return -ENOMEM;
    int32_t *tokens = realloc(at->tokens, cap * sizeof *tokens);
    if (!tokens)
        return -ENOMEM;
    at->tokens = tokens;
    at->cap = (uint32_t)cap;
    return 0;
}

void slots_append(struct slots *s, uint32_t slot, const int32_t *tokens, uint32_t n)
{
    struct slot *at = &s->at[slot];
    memcpy(at->tokens + at->n, tokens, n * sizeof *tokens);
    at->n += n;
}

static uint32_t free_blocks(const struct slots *s)
{
    struct engine_info info;
    engine_info_get(s->engine, &info);
    return info.blocks - info.blocks_used;
}

bool slots_give_up(struct slots *s, uint32_t wanted)
{
    while (free_blocks(s) < wanted) {
        int64_t oldest = -1;
        for (uint32_t i = 0; i < s->n; i++)
            if (!s->at[i].busy && s->at[i].n && (oldest < 0 || s->at[i].last_use < s->at[oldest].last_use))
                oldest = i;
        if (oldest < 0)
            return false;
        struct slot *slot = &s->at[oldest];
        cut(slot, (slot->n - 1) / BLOCK * BLOCK);
    }
    return true;
}
