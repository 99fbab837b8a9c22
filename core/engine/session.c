/* Sessions: block lists over one counted pool. Sharing costs a count; a block is copied when a session grows
 * inside one that somebody else holds too. Only positions below a session's length mean anything: what lies
 * after them in its last block may be anything. Thread: the scheduler's. Must not know: how blocks are laid
 * out, what tokens they hold. Tests: tests/property/kv_model.c, tests/unit/test_engine.c */
#include "engine/flight.h"
#include <assert.h>
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

bool session_in_flight(const struct session *s)
{
    return s->in_flight;
}

void session_cut(struct session *s, uint32_t n)
{
    assert(!s->in_flight);
    if (n >= s->len)
        return;
    while (s->n_blocks > blocks_for(n))
        pool_release(&s->engine->pool, s->blocks[--s->n_blocks]);
    s->len = n;
}

/* Room for so many numbers in a list of blocks. */
static int reserve_list(uint32_t **blocks, uint32_t *cap, uint64_t wanted)
{
    uint64_t more = *cap ? *cap : 16;
    uint32_t *list;

    if (wanted <= *cap && *blocks)
        return 0;
    while (more < wanted)
        more *= 2;
    if (more > UINT32_MAX)
        return -ENOMEM;
    list = realloc(*blocks, more * sizeof *list);
    if (!list)
        return -ENOMEM;
    *blocks = list;
    *cap = (uint32_t)more;
    return 0;
}

int session_fork(struct session *dst, const struct session *src, uint32_t n)
{
    uint32_t n_blocks = blocks_for(n);
    int r;

    if (dst->engine != src->engine || n > src->len)
        return -EINVAL;
    if (dst->in_flight)
        return -EBUSY;
    if (dst == src) {
        session_cut(dst, n);
        return 0;
    }
    r = reserve_list(&dst->blocks, &dst->cap, n_blocks);
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
    assert(!a->in_flight && !b->in_flight);
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

int session_grow(struct flight *f, struct flight_row *row, uint32_t n)
{
    struct session *s = row->session;
    struct pool *p = &s->engine->pool;
    uint32_t n_blocks;
    int r;

    if (n > UINT32_MAX - OPS_BLOCK_TOKENS - s->len || session_blocks_needed(s, n) > p->n_free)
        return -ENOSPC;
    n_blocks = blocks_for((uint64_t)s->len + n);
    r = reserve_list(&s->blocks, &s->cap, n_blocks); /* when it has grown nothing may fail any more */
    if (r == 0)
        r = reserve_list(&f->blocks, &f->blocks_cap, (uint64_t)row->at + n_blocks);
    if (r < 0)
        return r;
    row->kept = s->n_blocks;
    row->copy_tokens = 0;
    if (last_is_shared(s)) {
        row->kept--;
        row->copy_from = s->blocks[row->kept];
        row->copy_tokens = s->len % OPS_BLOCK_TOKENS;
    }
    memcpy(f->blocks + row->at, s->blocks, row->kept * sizeof *f->blocks);
    for (uint32_t i = row->kept; i < n_blocks; i++)
        f->blocks[row->at + i] = pool_take(p);
    p->n_flying += n_blocks - row->kept;
    row->n_blocks = n_blocks;
    row->len = s->len + n;
    s->in_flight = true;
    return 0;
}

int session_add_block(struct session *s, uint32_t n, uint32_t *ret_block)
{
    int r;

    if (s->in_flight)
        return -EBUSY;
    if (!s->engine->pool.n_free || n > UINT32_MAX - OPS_BLOCK_TOKENS - s->len)
        return -ENOSPC;
    r = reserve_list(&s->blocks, &s->cap, (uint64_t)s->n_blocks + 1);
    if (r < 0)
        return r;
    *ret_block = s->blocks[s->n_blocks++] = pool_take(&s->engine->pool);
    s->len += n;
    return 0;
}

/* The shared block that was copied is let go only now: its other holder would take it for its own alone and
 * write into it while it is being read, and a window that fails could not be taken back. */
void session_grown(struct flight *f, const struct flight_row *row)
{
    struct session *s = row->session;
    struct pool *p = &s->engine->pool;

    if (row->copy_tokens)
        pool_release(p, row->copy_from);
    p->n_flying -= row->n_blocks - row->kept;
    memcpy(s->blocks + row->kept, f->blocks + row->at + row->kept,
           (row->n_blocks - row->kept) * sizeof *s->blocks);
    s->n_blocks = row->n_blocks;
    s->len = row->len;
    s->in_flight = false;
}

void session_shrink_back(struct flight *f, const struct flight_row *row)
{
    struct pool *p = &row->session->engine->pool;

    p->n_flying -= row->n_blocks - row->kept;
    for (uint32_t i = row->n_blocks; i > row->kept; i--)
        pool_release(p, f->blocks[row->at + i - 1]);
    row->session->in_flight = false;
}
