/* Misses: see misses.h.
 *
 * A history is continued by a prompt that shares everything before its last turn boundary, so the hash of
 * exactly that much decides, and one compared word (the last whole block before it) rules nearly all others
 * out: a look at 10,000 of them takes some tens of microseconds. Blocks after the boundary tell how much of
 * the reply was shared as well. */
#include "slots/misses.h"
#include "slots/slots_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TAIL_MAX 256u /* blocks of a lost reply that are remembered */

struct lost {
    uint64_t block; /* hash of the last whole block that ends at or before turn_tokens; 0: there is none */
    uint64_t turn, end; /* of exactly turn_tokens and tokens tokens */
    uint64_t line[2];   /* of what may be its opening */
    uint32_t line_tokens[2];
    uint32_t turn_tokens, tokens;
    enum miss_reason reason;
    uint32_t n_tail;
    uint64_t *tail; /* hashes of the blocks after `block` */
};

struct misses {
    uint32_t cap, n, next; /* next: where the next one goes */
    struct lost *lost;
};

const char *miss_reason_name(enum miss_reason reason)
{
    static const char *const names[MISS_REASONS] = {
        [MISS_NONE] = "none",
        [MISS_FIRST_TURN] = "first_turn",
        [MISS_SLOT_TAKEN] = "slot_taken",
        [MISS_REPLACED_ON_MAIN] = "replaced_on_main",
        [MISS_EVICTED_MEMORY] = "evicted_memory",
        [MISS_CLIENT_CHANGED_HISTORY] = "client_changed_history",
        [MISS_RESTART] = "restart",
    };
    return names[reason];
}

int misses_new(uint32_t n_lost, struct misses **ret_misses)
{
    struct misses *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->cap = n_lost;
    m->lost = calloc(n_lost ? n_lost : 1, sizeof *m->lost);
    if (!m->lost) {
        free(m);
        return -ENOMEM;
    }
    *ret_misses = m;
    return 0;
}

void misses_free(struct misses *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n; i++)
        free(m->lost[i].tail);
    free(m->lost);
    free(m);
}

/* Hash of exactly the first n tokens of a sequence whose whole blocks have been hashed. */
static uint64_t exact_hash(const struct slots *s, uint64_t salt, const int32_t *tokens,
                           uint64_t (*const hashes)[2], uint32_t n)
{
    uint32_t size = s->o.block_tokens, full = n / size, rest = n % size;
    int32_t block[2 * HASH_BLOCK_MAX];
    uint64_t chain[2][2] = { { 0 } };
    if (!rest)
        return full ? hashes[full - 1][0] : 0;
    uint32_t have = full > 0;
    if (have)
        memcpy(chain[0], hashes[full - 1], sizeof chain[0]);
    memcpy(block + have * size, tokens + (size_t)full * size, rest * sizeof *block);
    for (uint32_t i = rest; i < size; i++)
        block[have * size + i] = -1; /* no token: no whole block looks like this */
    hasher_extend(&s->hasher, salt, block, (have + 1) * size, have, chain);
    return chain[have][0];
}

static uint64_t history_hash(const struct slots *s, const struct slots_history *h, uint32_t n)
{
    return exact_hash(s, h->salt, h->tokens, h->hashes, n);
}

static uint64_t prompt_hash(const struct slots *s, const struct slots_prompt *p, uint32_t n)
{
    return exact_hash(s, p->salt, p->tokens, p->hashes, n);
}

/* ---- noting ---- */

/* Where the second and the third turn begin: one of them is where the first answer does. */
static void note_lines(const struct slots *s, const struct slots_history *h, struct lost *l)
{
    uint32_t turns = 0;
    for (uint32_t i = 0; i < h->n && turns < 3 && s->o.turn_token >= 0; i++)
        if (h->tokens[i] == s->o.turn_token && turns++)
            l->line_tokens[turns - 2] = i;
    if (turns < 2)
        l->line_tokens[0] = slots_opening_default(h->n);
    for (int k = 0; k < 2; k++)
        l->line[k] = l->line_tokens[k] ? history_hash(s, h, l->line_tokens[k]) : 0;
}

static void note_tail(const struct slots *s, const struct slots_history *h, struct lost *l)
{
    uint32_t first = l->turn_tokens / s->o.block_tokens, n = h->n / s->o.block_tokens - first;
    if (n > TAIL_MAX)
        n = TAIL_MAX;
    l->tail = n ? malloc(n * sizeof *l->tail) : NULL;
    if (!l->tail)
        return; /* without it a little less of the reply is told */
    for (uint32_t i = 0; i < n; i++)
        l->tail[i] = h->hashes[first + i][0];
    l->n_tail = n;
}

void misses_note_lost(struct misses *m, const struct slots *s, uint32_t i, enum miss_reason reason)
{
    const struct slots_history *h = slots_at(s, i);
    if (!m->cap || !h->n || h->cut || !h->reliable)
        return;
    struct lost *l = &m->lost[m->next];
    free(l->tail);
    *l = (struct lost){ .turn_tokens = h->turn_tokens, .tokens = h->n, .reason = reason };
    uint32_t full = h->turn_tokens / s->o.block_tokens;
    l->block = full ? h->hashes[full - 1][0] : 0;
    l->turn = history_hash(s, h, h->turn_tokens);
    l->end = history_hash(s, h, h->n);
    note_lines(s, h, l);
    note_tail(s, h, l);
    m->next = (m->next + 1) % m->cap;
    if (m->n < m->cap)
        m->n++;
}

/* ---- judging ---- */

struct look { /* a prompt, and the hashes of its short prefixes as far as they were asked for */
    const struct slots *s;
    const struct slots_prompt *p;
    uint64_t known, hash[HASH_BLOCK_MAX];
};

static uint64_t look_hash(struct look *k, uint32_t n)
{
    if (n >= k->s->o.block_tokens)
        return prompt_hash(k->s, k->p, n);
    if (!(k->known >> n & 1)) {
        k->hash[n] = prompt_hash(k->s, k->p, n);
        k->known |= (uint64_t)1 << n;
    }
    return k->hash[n];
}

/* How much of the prompt a lost history that it resumes had: 0 when it does not. */
static uint32_t had(struct look *k, const struct lost *l)
{
    uint32_t size = k->s->o.block_tokens, most = k->p->n - 1, full = l->turn_tokens / size;
    if (l->turn_tokens > most || (full && k->p->hashes[full - 1][0] != l->block))
        return 0;
    if (look_hash(k, l->turn_tokens) != l->turn)
        return 0;
    uint32_t shared = l->turn_tokens, n = 0;
    while (n < l->n_tail && (full + n + 1) * size <= most && k->p->hashes[full + n][0] == l->tail[n])
        n++;
    if (n)
        shared = (full + n) * size;
    if (n == l->n_tail && l->tokens <= most && look_hash(k, l->tokens) == l->end)
        shared = l->tokens;
    return shared >= k->p->opening ? shared : 0;
}

static bool known_line(const struct misses *m, const struct slots *s, struct slots_prompt *p)
{
    const uint32_t *shared = slots_prompt_shared(s, p);
    for (uint32_t i = 0; i < s->n; i++)
        if (shared[i] && shared[i] >= p->opening)
            return true;
    uint64_t line = prompt_hash(s, p, p->opening);
    for (uint32_t i = 0; i < m->n; i++)
        for (int k = 0; k < 2; k++)
            if (m->lost[i].line_tokens[k] == p->opening && p->opening && m->lost[i].line[k] == line)
                return true;
    return false;
}

/* The most that any reliable history has of a prompt that resumes it. */
static uint32_t resumed(const struct slots *s, struct slots_prompt *p)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (slots_prompt_resumes(s, p, i) && p->shared[i] > best)
            best = p->shared[i];
    return best;
}

struct miss misses_judge(struct misses *m, const struct slots *s, struct slots_prompt *p, uint32_t cached,
                         bool has_answers)
{
    uint32_t here = resumed(s, p), lost = here > cached ? here : cached;
    struct look look = { .s = s, .p = p };
    struct miss miss = { 0 };
    for (uint32_t k = 0; k < m->n; k++) { /* the newest first: of equals it is the cause */
        const struct lost *l = &m->lost[(m->next + m->cap - 1 - k) % m->cap];
        uint32_t n = had(&look, l);
        if (n > lost) {
            lost = n;
            miss = (struct miss){ l->reason, n - cached };
        }
    }
    if (miss.reason || here)
        return miss;
    miss.tokens = p->n - cached;
    miss.reason = !has_answers          ? MISS_FIRST_TURN
                  : known_line(m, s, p) ? MISS_CLIENT_CHANGED_HISTORY
                                        : MISS_RESTART;
    return miss;
}
