/* Prompts against the table: see prompt.h. */
#include "slots/prompt.h"
#include "slots/slots_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An append of this many tokens is compared token by token, not looked up. */
#define FEW_TOKENS 256u

/* Turns of a chat alternate, so an even number of turn tokens says that there is no system message, and the
 * first answer begins at the second turn, otherwise at the third. (The head of the answer to come counts.) */
static void find_opening(const struct slots *s, struct slots_prompt *p)
{
    uint32_t turns = 0, marks[2] = { 0 };
    for (uint32_t i = 0; i < p->n && s->o.turn_token >= 0; i++) {
        if (p->tokens[i] != s->o.turn_token)
            continue;
        if (turns == 1 || turns == 2)
            marks[turns - 1] = i;
        turns++;
    }
    p->has_answers = turns > 3;
    p->opening = turns % 2 ? marks[1] : marks[0];
    if (!p->opening)
        p->opening = p->turn_tokens < p->n ? p->turn_tokens : slots_opening_default(p->n - 1);
}

int slots_prompt_new(const struct slots *s, const int32_t *tokens, uint32_t n, uint64_t salt,
                     struct slots_prompt **ret_prompt)
{
    uint32_t blocks = n / s->o.block_tokens;
    struct slots_prompt *p;
    if (!n)
        return -EINVAL;
    p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct slots_prompt){ .tokens = tokens, .n = n, .salt = salt };
    p->hashes = malloc(((size_t)blocks + 1) * sizeof *p->hashes);
    p->shared = calloc(s->n, sizeof *p->shared);
    p->seen = calloc(s->n, sizeof *p->seen); /* version 0: of no history */
    if (!p->hashes || !p->shared || !p->seen) {
        slots_prompt_free(p);
        return -ENOMEM;
    }
    p->turn_tokens = slots_turn_tokens(s, tokens, n);
    find_opening(s, p);
    hasher_extend(&s->hasher, salt, tokens, n, 0, p->hashes);
    *ret_prompt = p;
    return 0;
}

void slots_prompt_free(struct slots_prompt *p)
{
    if (!p)
        return;
    free(p->hashes);
    free(p->shared);
    free(p->seen);
    free(p);
}

static uint32_t most(const struct slots_prompt *p, const struct slots_history *h)
{
    return h->n < p->n - 1 ? h->n : p->n - 1;
}

/* Common prefix by hashes; the tokens are compared only in the block where the chains part. */
static uint32_t look_up(const struct slots *s, const struct slots_prompt *p, const struct slots_history *h)
{
    if (h->salt != p->salt)
        return 0;
    uint32_t max = most(p, h), low = 0, high = max / s->o.block_tokens;
    while (low < high) { /* the first `low` blocks agree, block `high` and what follows does not or is not */
        uint32_t middle = low + (high - low + 1) / 2;
        if (!memcmp(h->hashes[middle - 1], p->hashes[middle - 1], sizeof *p->hashes))
            low = middle;
        else
            high = middle - 1;
    }
    uint32_t from = low * s->o.block_tokens, left = max - from;
    if (left > s->o.block_tokens)
        left = s->o.block_tokens;
    return left ? from + tokens_common(h->tokens + from, p->tokens + from, left) : from;
}

static void refresh(const struct slots *s, struct slots_prompt *p, uint32_t i)
{
    const struct slots_history *h = &s->h[i];
    struct slots_seen *seen = &p->seen[i];
    if (seen->version == h->version) {
        uint32_t shared = p->shared[i], max = most(p, h);
        if (seen->n == h->n)
            return;
        uint32_t was = seen->n;
        seen->n = h->n;
        if (shared < was || shared == max || h->salt != p->salt) /* they part before what was added */
            return;
        if (max - shared <= FEW_TOKENS) {
            p->shared[i] = shared + tokens_common(h->tokens + shared, p->tokens + shared, max - shared);
            return;
        }
    }
    p->shared[i] = look_up(s, p, h);
    *seen = (struct slots_seen){ h->version, h->n };
}

const uint32_t *slots_prompt_shared(const struct slots *s, struct slots_prompt *p)
{
    for (uint32_t i = 0; i < s->n; i++)
        refresh(s, p, i);
    return p->shared;
}

uint32_t slots_prompt_longest(const struct slots *s, struct slots_prompt *p, uint32_t *ret_shared)
{
    uint32_t best = SLOTS_NONE, best_shared = 0;
    slots_prompt_shared(s, p);
    for (uint32_t k = 0; k < s->n; k++) {
        uint32_t i = k ? k - 1 : s->o.n_slots; /* main first */
        if (s->h[i].reliable && p->shared[i] > best_shared) {
            best = i;
            best_shared = p->shared[i];
        }
    }
    *ret_shared = best_shared;
    return best;
}

bool slots_prompt_continues(const struct slots *s, struct slots_prompt *p, uint32_t i)
{
    const struct slots_history *h = &s->h[i];
    refresh(s, p, i);
    return h->reliable && h->turn_tokens && p->shared[i] >= h->turn_tokens;
}

bool slots_prompt_resumes(const struct slots *s, struct slots_prompt *p, uint32_t i)
{
    return slots_prompt_continues(s, p, i) && p->shared[i] >= p->opening;
}

uint32_t slots_prompt_verify(const struct slots *s, struct slots_prompt *p, uint32_t i)
{
    const struct slots_history *h = &s->h[i];
    uint32_t max = h->salt == p->salt ? most(p, h) : 0;
    p->shared[i] = max ? tokens_common(h->tokens, p->tokens, max) : 0;
    p->seen[i] = (struct slots_seen){ h->version, h->n };
    return p->shared[i];
}
