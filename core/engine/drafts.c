/* Drafts: see drafts.h. The index is a table of chains: the head of each key's chain is its latest position,
 * and every position knows the one before it under the same key. A cut takes positions off in the opposite
 * order, so it restores exactly what was. */
#include "engine/drafts.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE UINT32_MAX
#define WALK_MAX 1024u  /* entries visited, those of other keys in the same chain included */
#define FIRST_LENGTH 4u /* of a draft */
#define MATCH_STEP 4u   /* by how much a failed draft raises the match that is asked for */
#define FORGIVE 8u      /* silences after which that falls by one */
#define LEAST_HEADS 1024u

struct drafts {
    uint32_t *heads;   /* [n_heads], a power of two: latest position + 1 of each hash, 0: none */
    uint32_t *earlier; /* [cap]: for each position, the one before it in its chain + 1 */
    uint32_t n_heads, cap, n;
    uint32_t length; /* of the next draft */
    uint32_t least;  /* match that is asked for, DRAFTS_KEY..DRAFTS_MATCH_MAX */
    uint32_t silent; /* lookups since the last failure whose match was too short */
};

int drafts_new(struct drafts **ret_drafts)
{
    struct drafts *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->heads = calloc(LEAST_HEADS, sizeof *d->heads);
    if (!d->heads) {
        free(d);
        return -ENOMEM;
    }
    d->n_heads = LEAST_HEADS;
    drafts_reset(d);
    *ret_drafts = d;
    return 0;
}

void drafts_free(struct drafts *d)
{
    if (!d)
        return;
    free(d->heads);
    free(d->earlier);
    free(d);
}

void drafts_reset(struct drafts *d)
{
    memset(d->heads, 0, d->n_heads * sizeof *d->heads);
    d->n = 0;
    d->length = FIRST_LENGTH;
    d->least = DRAFTS_KEY;
    d->silent = 0;
}

/* Of the key that ends at `last` (its last token's position, at least DRAFTS_KEY - 1). */
static uint32_t head_of(const struct drafts *d, const int32_t *tokens, uint32_t last)
{
    uint64_t x = 0;
    for (uint32_t i = 0; i < DRAFTS_KEY; i++)
        x = (x ^ (uint32_t)tokens[last - i]) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 32) & (d->n_heads - 1);
}

static void add(struct drafts *d, const int32_t *tokens, uint32_t position)
{
    uint32_t *head = &d->heads[head_of(d, tokens, position)];
    d->earlier[position] = *head;
    *head = position + 1;
}

/* Room for n positions, with about one head for each; all is filed again when the heads become more. */
static int make_room(struct drafts *d, const int32_t *tokens, uint32_t n)
{
    uint64_t cap = (uint64_t)n + n / 2, n_heads = d->n_heads;
    if (n <= d->cap)
        return 0;
    if (cap > UINT32_MAX)
        return -ENOMEM;
    while (n_heads < cap)
        n_heads *= 2;
    uint32_t *heads = calloc(n_heads, sizeof *heads);
    uint32_t *earlier = realloc(d->earlier, cap * sizeof *earlier);
    if (earlier)
        d->earlier = earlier;
    if (!heads || !earlier) {
        free(heads);
        return -ENOMEM;
    }
    free(d->heads);
    d->heads = heads;
    d->n_heads = (uint32_t)n_heads;
    d->cap = (uint32_t)cap;
    for (uint32_t i = DRAFTS_KEY - 1; i < d->n; i++)
        add(d, tokens, i);
    return 0;
}

/* Takes the positions from `kept` on out of the index. Their tokens may be gone already, so the chains are
 * searched by what they hold: a head that points behind the cut moves back until it does not. */
static void cut(struct drafts *d, uint32_t kept)
{
    for (uint32_t h = 0; h < d->n_heads; h++)
        while (d->heads[h] > kept)
            d->heads[h] = d->earlier[d->heads[h] - 1];
    d->n = kept;
}

int drafts_update(struct drafts *d, const int32_t *tokens, uint32_t kept, uint32_t n)
{
    if (kept > n)
        kept = n;
    if (kept < d->n)
        cut(d, kept);
    int r = make_room(d, tokens, n);
    if (r < 0)
        return r;
    for (uint32_t i = d->n > DRAFTS_KEY - 1 ? d->n : DRAFTS_KEY - 1; i < n; i++)
        add(d, tokens, i);
    d->n = n;
    return 0;
}

/* How many tokens before and including `a` equal those before and including `b` (a < b). */
static uint32_t common_past(const int32_t *tokens, uint32_t a, uint32_t b)
{
    uint32_t n = 0;
    while (n < DRAFTS_MATCH_MAX && n <= a && tokens[a - n] == tokens[b - n])
        n++;
    return n;
}

/* The earlier position whose past agrees best with the end of the history. */
static uint32_t find(const struct drafts *d, const int32_t *tokens, uint32_t *ret_match)
{
    uint32_t last = d->n - 1, best = NOWHERE, best_match = DRAFTS_KEY - 1, candidates = 0;
    uint32_t at = d->earlier[last]; /* the head is the end itself */
    for (uint32_t walked = 0; at && walked < WALK_MAX && candidates < DRAFTS_CANDIDATES; walked++) {
        uint32_t match = common_past(tokens, at - 1, last);
        candidates += match >= DRAFTS_KEY;
        if (match > best_match) {
            best = at - 1;
            best_match = match;
        }
        at = d->earlier[at - 1];
    }
    *ret_match = best_match;
    return best;
}

uint32_t drafts_propose(struct drafts *d, const int32_t *tokens, uint32_t max, int32_t *ret_draft)
{
    uint32_t match, n = d->length < max ? d->length : max;
    if (d->n < DRAFTS_KEY + 1)
        return 0;
    uint32_t at = find(d, tokens, &match);
    if (at == NOWHERE || match < d->least) {
        /* What failed may be over: in time shorter matches are tried again. */
        if (d->least > DRAFTS_KEY && ++d->silent % FORGIVE == 0)
            d->least--;
        return 0;
    }
    /* Past the end of the history the draft itself goes on, as a repetition does. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = at + 1 + i;
        ret_draft[i] = from < d->n ? tokens[from] : ret_draft[from - d->n];
    }
    return n;
}

void drafts_result(struct drafts *d, uint32_t drafted, uint32_t accepted)
{
    if (!drafted)
        return;
    if (accepted >= drafted) {
        d->length = drafted * 2 < DRAFTS_MAX ? drafted * 2 : DRAFTS_MAX;
        d->least = DRAFTS_KEY;
        return;
    }
    d->length = accepted + 1 < DRAFTS_MAX ? accepted + 1 : DRAFTS_MAX;
    if (accepted) {
        d->least = DRAFTS_KEY;
        return;
    }
    d->silent = 0;
    d->least += MATCH_STEP;
    if (d->least > DRAFTS_MATCH_MAX)
        d->least = DRAFTS_MATCH_MAX;
}
