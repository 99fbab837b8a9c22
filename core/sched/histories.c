/* Histories: see histories.h. The session is changed first, because that can fail for want of memory; when
 * the table then fails too, what lay at `to` is forgotten on both sides. */
#include "sched/histories.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int histories_init(struct histories *h, struct engine *e, const struct slots_options *o)
{
    memset(h, 0, sizeof *h);
    h->engine = e;
    int r = slots_new(o, &h->table);
    if (r < 0)
        return r;
    h->n = o->n_slots;
    h->sessions = calloc((size_t)h->n + 1, sizeof *h->sessions);
    if (!h->sessions)
        return -ENOMEM;
    for (uint32_t i = 0; i <= h->n; i++) {
        r = session_new(e, &h->sessions[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

void histories_clear(struct histories *h)
{
    session_free(h->incoming);
    for (uint32_t i = 0; h->sessions && i <= h->n; i++)
        session_free(h->sessions[i]);
    free(h->sessions);
    slots_free(h->table);
    memset(h, 0, sizeof *h);
}

static int forget(struct histories *h, uint32_t at, int error)
{
    session_cut(h->sessions[at], 0);
    (void)slots_clear(h->table, at);
    return error;
}

int histories_begin(struct histories *h, uint32_t at, uint32_t source, uint32_t n,
                    const struct slots_request *r)
{
    int error;
    if (at > h->n || slots_at(h->table, at)->busy)
        return -EINVAL;
    if (n && source != at) {
        error = session_fork(h->sessions[at], h->sessions[source], n);
        if (error < 0)
            return error;
    } else {
        session_cut(h->sessions[at], n);
    }
    error = slots_begin(h->table, at, source, n, r);
    return error < 0 ? forget(h, at, error) : 0;
}

void histories_took(struct histories *h, uint32_t at, const int32_t *tokens, uint32_t n)
{
    (void)slots_append(h->table, at, tokens, n);
    session_cut(h->sessions[at], slots_at(h->table, at)->n);
}

int histories_hand_over(struct histories *h, uint32_t from, uint32_t to, int64_t now_ns)
{
    if (to > h->n || slots_at(h->table, to)->busy)
        return -EBUSY;
    int error = session_fork(h->sessions[to], h->sessions[from], slots_at(h->table, from)->n);
    if (error < 0)
        return error;
    error = slots_hand_over(h->table, from, to, now_ns);
    return error < 0 ? forget(h, to, error) : 0;
}

int histories_park(struct histories *h, uint32_t to)
{
    if (to >= h->n || slots_at(h->table, to)->busy)
        return -EBUSY;
    int error = session_fork(h->sessions[to], h->sessions[h->n], slots_at(h->table, h->n)->n);
    if (error < 0)
        return error;
    error = slots_park(h->table, to);
    return error < 0 ? forget(h, to, error) : 0;
}

void histories_swap(struct histories *h, uint32_t a, uint32_t b)
{
    session_swap(h->sessions[a], h->sessions[b]);
    (void)slots_swap(h->table, a, b);
}

int histories_move(struct histories *h, uint32_t from, uint32_t to)
{
    int error = slots_move(h->table, from, to);
    if (error < 0)
        return error;
    session_swap(h->sessions[from], h->sessions[to]);
    session_cut(h->sessions[from], 0);
    return 0;
}

int histories_put(struct histories *h, uint32_t at, const struct slots_given *g)
{
    int error = slots_put(h->table, at, g);
    if (error < 0)
        return error;
    session_swap(h->sessions[at], h->incoming);
    session_cut(h->incoming, 0);
    return 0;
}

void histories_cut(struct histories *h, uint32_t at, uint32_t n)
{
    if (slots_cut(h->table, at, n) == 0)
        session_cut(h->sessions[at], n);
}

void histories_lose(struct histories *h, uint32_t at)
{
    slots_set_reliable(h->table, at, false);
    session_cut(h->sessions[at], 0);
}

uint32_t histories_free_blocks(const struct histories *h)
{
    struct engine_info info;
    engine_info_get(h->engine, &info);
    return info.blocks - info.blocks_used;
}

static uint32_t mark_blocks(const struct session *s, bool *seen)
{
    uint32_t n_blocks, n_new = 0;
    const uint32_t *blocks = session_blocks(s, &n_blocks);
    for (uint32_t b = 0; seen && b < n_blocks; b++) {
        n_new += !seen[blocks[b]];
        seen[blocks[b]] = true;
    }
    return n_new;
}

bool histories_check(const struct histories *h, char *err, size_t errlen)
{
    struct engine_info info;
    engine_info_get(h->engine, &info);
    bool *seen = calloc((size_t)info.blocks + 1, sizeof *seen);
    uint32_t distinct = 0;
    for (uint32_t i = 0; i <= h->n; i++) {
        const struct slots_history *record = slots_at(h->table, i);
        uint32_t len = session_len(h->sessions[i]), tokens = record->reliable ? record->n : 0;
        if (len != tokens) {
            snprintf(err, errlen, "history %u: %u tokens in the table, %u in the session", i, tokens, len);
            free(seen);
            return false;
        }
        distinct += mark_blocks(h->sessions[i], seen);
    }
    if (h->incoming)
        distinct += mark_blocks(h->incoming, seen);
    bool ok = !seen || distinct + info.blocks_flying == info.blocks_used;
    if (!ok)
        snprintf(err, errlen, "%u blocks in use, the histories hold %u, windows took %u", info.blocks_used,
                 distinct, info.blocks_flying);
    free(seen);
    return ok;
}
