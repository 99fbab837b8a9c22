/* Sessions: block lists over one counted pool. Sharing costs a count; a block is copied when a session grows
 * inside one that somebody else holds too. Only positions below a session's length mean anything: what lies
 * after them in its last block may be anything. Thread: the scheduler's. Must not know: how blocks are laid
 * out, what tokens they hold. Tests: tests/property/kv_model.c, tests/unit/test_engine.c */
#include "engine/engine_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t blocks_for(uint64_t tokens)
{
    return (uint32_t)((tokens + OPS_BLOCK_TOKENS - 1) / OPS_BLOCK_TOKENS);
}

/* The caller has seen that one is free. */
static uint32_t pool_take(struct pool *p)
{
    uint32_t block = p->free[--p->n_free];
    p->refs[block] = 1;
    return block;
}

static void pool_release(struct pool *p, uint32_t block)
{
    if (--p->refs[block] == 0)
        p->free[p->n_free++] = block;
}

int session_new(struct engine *e, struct session **ret_session)
{
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->engine = e;
    *ret_session = s;
    return 0;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    session_cut(s, 0);
    free(s->blocks);
    free(s);
}

uint32_t session_len(const struct session *s)
{
    return s->len;
}

void session_cut(struct session *s, uint32_t n)
{
    if (n >= s->len)
        return;
    while (s->n_blocks > blocks_for(n))
        pool_release(&s->engine->pool, s->blocks[--s->n_blocks]);
    s->len = n;
}

static int reserve_list(struct session *s, uint32_t n_blocks)
{
    uint32_t *list;
    uint32_t cap = s->cap ? s->cap : 16;

    if (n_blocks <= s->cap)
        return 0;
    while (cap < n_blocks)
        cap *= 2;
    list = realloc(s->blocks, cap * sizeof *list);
    if (!list)
        return -ENOMEM;
    s->blocks = list;
    s->cap = cap;
    return 0;
}

int session_fork(struct session *dst, const struct session *src, uint32_t n)
{
    uint32_t n_blocks = blocks_for(n);
    int r;

    if (dst->engine != src->engine || n > src->len)
        return -EINVAL;
    if (dst == src) {
        session_cut(dst, n);
        return 0;
    }
    r = reserve_list(dst, n_blocks);
    if (r < 0)
        return r;
    /* The new references come before the old ones go: the two may hold the same blocks. */
    for (uint32_t i = 0; i < n_blocks; i++)
        src->engine->pool.refs[src->blocks[i]]++;
    session_cut(dst, 0);
    if (n_blocks)
        memcpy(dst->blocks, src->blocks, n_blocks * sizeof *dst->blocks);
    dst->n_blocks = n_blocks;
    dst->len = n;
    return 0;
}

void session_swap(struct session *a, struct session *b)
{
    struct session held = *a;
    *a = *b;
    *b = held;
}

const uint32_t *session_blocks(const struct session *s, uint32_t *ret_n)
{
    *ret_n = s->n_blocks;
    return s->blocks;
}

uint32_t session_blocks_alone(const struct session *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_blocks; i++)
        n += s->engine->pool.refs[s->blocks[i]] == 1;
    return n;
}

/* Growing writes into the last block, and somebody else holds it too. */
static bool last_is_shared(const struct session *s)
{
    return s->len % OPS_BLOCK_TOKENS && s->engine->pool.refs[s->blocks[s->n_blocks - 1]] > 1;
}

uint32_t session_blocks_needed(const struct session *s, uint32_t n)
{
    if (n == 0)
        return 0;
    return blocks_for((uint64_t)s->len + n) - s->n_blocks + last_is_shared(s);
}

int session_grow(struct session *s, uint32_t n, struct growth *ret_growth)
{
    struct pool *p = &s->engine->pool;
    struct growth g = { .len = s->len, .n_blocks = s->n_blocks, .copied_from = ENGINE_NO_BLOCK };
    int r;

    if (n > UINT32_MAX - OPS_BLOCK_TOKENS - s->len || session_blocks_needed(s, n) > p->n_free)
        return -ENOSPC;
    r = reserve_list(s, blocks_for((uint64_t)s->len + n));
    if (r < 0)
        return r;
    if (last_is_shared(s)) {
        g.copied_at = s->n_blocks - 1;
        g.copied_from = s->blocks[g.copied_at];
        s->blocks[g.copied_at] = pool_take(p);
    }
    s->len += n;
    while (s->n_blocks < blocks_for(s->len))
        s->blocks[s->n_blocks++] = pool_take(p);
    *ret_growth = g;
    return 0;
}

void session_copy_shared(struct session *s, const struct growth *g)
{
    if (g->copied_from != ENGINE_NO_BLOCK)
        s->engine->ops->kv_copy(s->engine->kv, s->blocks[g->copied_at], g->copied_from,
                                g->len % OPS_BLOCK_TOKENS);
}

void session_grown(struct session *s, const struct growth *g)
{
    if (g->copied_from != ENGINE_NO_BLOCK)
        pool_release(&s->engine->pool, g->copied_from);
}

void session_shrink_back(struct session *s, const struct growth *g)
{
    struct pool *p = &s->engine->pool;

    while (s->n_blocks > g->n_blocks)
        pool_release(p, s->blocks[--s->n_blocks]);
    if (g->copied_from != ENGINE_NO_BLOCK) {
        pool_release(p, s->blocks[g->copied_at]);
        s->blocks[g->copied_at] = g->copied_from;
    }
    s->len = g->len;
}
