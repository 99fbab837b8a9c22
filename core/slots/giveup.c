/* Giving up memory: see giveup.h. Histories are sorted by rank; each block then learns the place of its
 * highest holder in that order, and the order is walked once, each history from its end. */
#include "slots/giveup.h"
#include "abi/policy.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum giveup_class { /* in the order in which they go */
                    GIVEUP_AT_ONCE,
                    GIVEUP_WORTHLESS,
                    GIVEUP_EXPIRED,
                    GIVEUP_PROTECTED,
                    GIVEUP_WANTED,
                    GIVEUP_NEVER,
};

struct ranked {
    enum giveup_class class;
    uint32_t state;
    double give_up;
    uint32_t index;
};

struct giveup {
    uint32_t pool_blocks, block_tokens, max_histories;
    uint32_t *rank; /* of each block: place of its highest holder in `order`, + 1; 0: nobody's */
    bool *gone;     /* blocks of the plan */
    struct ranked *order;
};

int giveup_new(uint32_t pool_blocks, uint32_t block_tokens, uint32_t max_histories,
               struct giveup **ret_giveup)
{
    if (!block_tokens || !max_histories)
        return -EINVAL;
    struct giveup *g = calloc(1, sizeof *g);
    if (!g)
        return -ENOMEM;
    *g = (struct giveup){ .pool_blocks = pool_blocks,
                          .block_tokens = block_tokens,
                          .max_histories = max_histories };
    g->rank = calloc((size_t)pool_blocks + 1, sizeof *g->rank);
    g->gone = calloc((size_t)pool_blocks + 1, sizeof *g->gone);
    g->order = calloc(max_histories, sizeof *g->order);
    if (!g->rank || !g->gone || !g->order) {
        giveup_free(g);
        return -ENOMEM;
    }
    *ret_giveup = g;
    return 0;
}

void giveup_free(struct giveup *g)
{
    if (!g)
        return;
    free(g->rank);
    free(g->gone);
    free(g->order);
    free(g);
}

static struct ranked ranked(const struct giveup_history *h, uint32_t index, bool take_wanted)
{
    struct ranked r = { .index = index, .give_up = isnan(h->give_up) ? -INFINITY : h->give_up };
    if (h->busy)
        r.class = GIVEUP_NEVER;
    else if (!h->reliable)
        r.class = GIVEUP_AT_ONCE;
    else if (h->wanted)
        r.class = take_wanted ? GIVEUP_WANTED : GIVEUP_NEVER;
    else if (h->worthless)
        r.class = GIVEUP_WORTHLESS;
    else if (h->state == POLICY_STATE_PROTECTED)
        r.class = GIVEUP_PROTECTED;
    else
        r.class = h->state == POLICY_STATE_EXPIRED ? GIVEUP_EXPIRED : GIVEUP_WORTHLESS;
    /* Among the wanted the states count as among the others. */
    if (r.class == GIVEUP_WANTED && !h->worthless)
        r.state = h->state == POLICY_STATE_PROTECTED ? 2 : h->state == POLICY_STATE_EXPIRED ? 1 : 0;
    return r;
}

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    if (x->give_up < y->give_up || x->give_up > y->give_up)
        return x->give_up < y->give_up ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int rank_blocks(struct giveup *g, const struct giveup_history *h, uint32_t n)
{
    for (uint32_t b = 0; b < g->pool_blocks; b++) {
        g->rank[b] = 0;
        g->gone[b] = false;
    }
    for (uint32_t k = 0; k < n; k++) { /* ascending, so the last to write is the highest */
        const struct giveup_history *x = &h[g->order[k].index];
        for (uint32_t b = 0; b < x->n_blocks; b++) {
            if (x->blocks[b] >= g->pool_blocks)
                return -EINVAL;
            g->rank[x->blocks[b]] = k + 1;
        }
    }
    return 0;
}

/* Every holder of a freed block is cut where the first such block began. */
static void cut_holders(const struct giveup *g, const struct giveup_history *h, uint32_t n,
                        uint32_t *ret_tokens)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = 0;
        while (b < h[i].n_blocks && !g->gone[h[i].blocks[b]])
            b++;
        ret_tokens[i] = b < h[i].n_blocks ? b * g->block_tokens : h[i].tokens;
        if (!h[i].busy && !h[i].reliable)
            ret_tokens[i] = 0;
    }
}

int64_t giveup_plan(struct giveup *g, const struct giveup_history *h, uint32_t n, uint32_t needed,
                    bool take_wanted, uint32_t *ret_tokens)
{
    uint32_t freed = 0;
    if (n > g->max_histories)
        return -EINVAL;
    for (uint32_t i = 0; i < n; i++)
        g->order[i] = ranked(&h[i], i, take_wanted);
    qsort(g->order, n, sizeof *g->order, by_rank);
    if (rank_blocks(g, h, n) < 0)
        return -EINVAL;

    for (uint32_t k = 0; k < n && g->order[k].class != GIVEUP_NEVER; k++) {
        const struct giveup_history *x = &h[g->order[k].index];
        bool at_once = g->order[k].class == GIVEUP_AT_ONCE;
        for (uint32_t b = x->n_blocks; b-- > 0 && (freed < needed || at_once);) {
            uint32_t block = x->blocks[b];
            if (g->rank[block] != k + 1 || g->gone[block])
                continue;
            g->gone[block] = true;
            freed++;
        }
    }
    cut_holders(g, h, n, ret_tokens);
    return freed;
}
