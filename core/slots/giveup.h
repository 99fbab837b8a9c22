/* Giving up memory: which idle histories lose how much of their ends when a step needs blocks.
 *
 * Blocks are shared, so a block is worth what its best holder is: its rank is that of its highest-ranked
 * holder. Blocks go by ascending rank, within a history from the end, only as many as are needed, and every
 * holder of a freed block is cut where the block began. Histories rank: blank and superseded ones, expired,
 * protected, and last those a waiting request continues, where these may go at all; within a rank the lowest
 * give_up first, then in the order given. What an unreliable history holds is worth nothing and goes at once,
 * needed or not. A busy history loses nothing.
 *
 * Pure; the scheduler's thread. Must not know: the pool, the table, who asks. Tests: tests/unit/test_giveup.c
 * and tests/property/slots_model.c, against a brute force */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct giveup_history {     /* in slot order (policy_words.h), main last */
    const uint32_t *blocks; /* numbers of its blocks by position, each < n_blocks of the pool */
    uint32_t n_blocks;
    uint32_t tokens; /* its length now: in the last block */
    bool busy, reliable;
    bool wanted;    /* a waiting request continues it */
    bool worthless; /* blank or superseded */
    uint32_t state; /* POLICY_STATE_*; anything else counts as blank */
    double give_up; /* NaN counts as lowest */
};

struct giveup; /* workspace, so that planning allocates nothing */

int giveup_new(uint32_t pool_blocks, uint32_t block_tokens, uint32_t max_histories,
               struct giveup **ret_giveup);
void giveup_free(struct giveup *g);

/* Plans until `needed` blocks would become free or nothing more may go; take_wanted: wanted histories may go
 * too. ret_tokens[i]: the length to cut history i to, its own where nothing changes. Returns the blocks that
 * become free: fewer than needed when that is all. UINT32_MAX asks how many there are. -EINVAL for a block
 * number beyond the pool or more histories than the workspace is for. */
int64_t giveup_plan(struct giveup *g, const struct giveup_history *h, uint32_t n, uint32_t needed,
                    bool take_wanted, uint32_t *ret_tokens);
