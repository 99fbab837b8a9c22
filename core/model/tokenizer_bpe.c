/* Byte pair encoding: see tokenizer_bpe.h. Three ways to the same result: short pieces by looking for the
 * best pair again and again, which nothing beats there; long ones rank by rank; long ones under merges in no
 * sensible order with a heap. */
#include "model/tokenizer_bpe.h"
#include "model/tokenizer_heap.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Up to this many bytes the quadratic way is the fastest. */
#define SHORT_PIECE 48

int bpe_init(struct bpe *b, size_t n_merges)
{
    memset(b, 0, sizeof *b);
    for (unsigned i = 0; i < 256; i++)
        b->byte_ids[i] = BPE_NONE;
    int r = pairmap_init(&b->ranks, n_merges);
    if (r < 0)
        return r;
    b->results = malloc((n_merges + 1) * sizeof *b->results);
    return b->results ? 0 : -ENOMEM;
}

void bpe_free(struct bpe *b)
{
    pairmap_free(&b->ranks);
    free(b->results);
    b->results = NULL;
}

int bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t result)
{
    uint32_t rank = b->n_merges++;
    b->results[rank] = result;
    return pairmap_put(&b->ranks, left, right, rank);
}

int bpe_finish(struct bpe *b, size_t n_tokens)
{
    uint32_t *last_made = malloc((n_tokens + 1) * sizeof *last_made);
    if (!last_made)
        return -ENOMEM;
    memset(last_made, 0, (n_tokens + 1) * sizeof *last_made);
    for (uint32_t rank = 0; rank < b->n_merges; rank++)
        last_made[b->results[rank]] = rank + 1;

    /* last_made holds rank + 1: a merge must come after every merge that makes one of its sides. */
    b->ordered = true;
    for (size_t i = 0; i <= b->ranks.mask; i++) {
        const struct pairmap_slot *s = &b->ranks.slots[i];
        if (s->value != VOCAB_MAP_NONE && (last_made[s->a] > s->value || last_made[s->b] > s->value))
            b->ordered = false;
    }
    free(last_made);
    return 0;
}

void bpe_work_free(struct bpe_work *w)
{
    free(w->memory);
    w->memory = NULL;
    w->size = 0;
}

void *bpe_work_memory(struct bpe_work *w, size_t size)
{
    if (size > w->size) {
        free(w->memory);
        w->memory = malloc(size);
        w->size = w->memory ? size : 0;
    }
    return w->memory;
}

static int64_t encode_short(const struct bpe *b, const char *text, size_t len, int32_t *ids)
{
    uint32_t sym[SHORT_PIECE], rank[SHORT_PIECE];
    size_t n = len;
    for (size_t i = 0; i < n; i++)
        sym[i] = b->byte_ids[(unsigned char)text[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = pairmap_get(&b->ranks, sym[i], sym[i + 1]);

    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == BPE_NONE)
            break;
        sym[best] = b->results[rank[best]];
        n--;
        memmove(&sym[best + 1], &sym[best + 2], (n - best - 1) * sizeof sym[0]);
        if (best + 1 < n) {
            memmove(&rank[best], &rank[best + 1], (n - best - 1) * sizeof rank[0]);
            rank[best] = pairmap_get(&b->ranks, sym[best], sym[best + 1]);
        }
        if (best > 0)
            rank[best - 1] = pairmap_get(&b->ranks, sym[best - 1], sym[best]);
    }

    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (sym[i] != BPE_NONE)
            ids[count++] = (int32_t)sym[i];
    return count;
}

/* A symbol of a long piece, in the order of the text; the first is never joined to one before it, so number 0
 * always starts the chain. */
struct symbol {
    uint32_t id;
    uint32_t prev, next;
    uint32_t rank;          /* of the pair (this, next) */
    uint32_t before, after; /* in the list of pairs of that rank; the heap does without */
};

static void chain_bytes(const struct bpe *b, struct symbol *syms, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        syms[i].id = b->byte_ids[(unsigned char)text[i]];
        syms[i].prev = i ? (uint32_t)i - 1 : BPE_NONE;
        syms[i].next = i + 1 < len ? (uint32_t)i + 1 : BPE_NONE;
        syms[i].rank = BPE_NONE;
    }
}

static uint32_t rank_at(const struct bpe *b, const struct symbol *syms, uint32_t at)
{
    uint32_t next = syms[at].next;
    return next == BPE_NONE ? BPE_NONE : pairmap_get(&b->ranks, syms[at].id, syms[next].id);
}

/* Joins `at` with the symbol after it, whose pair is no more. */
static void join(const struct bpe *b, struct symbol *syms, uint32_t at)
{
    struct symbol *left = &syms[at], *right = &syms[left->next];
    left->id = b->results[left->rank];
    left->next = right->next;
    right->rank = BPE_NONE;
    if (left->next != BPE_NONE)
        syms[left->next].prev = at;
}

static int64_t collect(const struct symbol *syms, int32_t *ids)
{
    int64_t count = 0;
    for (uint32_t at = 0; at != BPE_NONE; at = syms[at].next)
        if (syms[at].id != BPE_NONE)
            ids[count++] = (int32_t)syms[at].id;
    return count;
}

/* The pairs of a piece by rank: a list for each rank, and a bit for each rank whose list was begun, so that
 * neither the lists need clearing nor the ranks walking one by one. */
struct rank_lists {
    const struct bpe *bpe;
    struct symbol *syms;
    uint32_t *heads;
    uint64_t *begun;
};

static void list_remove(struct rank_lists *l, uint32_t at)
{
    struct symbol *s = &l->syms[at];
    if (s->rank == BPE_NONE)
        return;
    if (s->before == BPE_NONE)
        l->heads[s->rank] = s->after;
    else
        l->syms[s->before].after = s->after;
    if (s->after != BPE_NONE)
        l->syms[s->after].before = s->before;
    s->rank = BPE_NONE;
}

/* Puts `at` into the list of the rank that its pair has now. */
static void list_update(struct rank_lists *l, uint32_t at)
{
    list_remove(l, at);
    uint32_t rank = rank_at(l->bpe, l->syms, at);
    if (rank == BPE_NONE)
        return;
    uint64_t bit = (uint64_t)1 << (rank & 63);
    uint32_t head = l->begun[rank >> 6] & bit ? l->heads[rank] : BPE_NONE;
    l->begun[rank >> 6] |= bit;
    l->heads[rank] = at;
    struct symbol *s = &l->syms[at];
    s->rank = rank;
    s->before = BPE_NONE;
    s->after = head;
    if (head != BPE_NONE)
        l->syms[head].before = at;
}

/* Joins all pairs of one rank. Which of them comes first matters only where they overlap, in a run of one
 * symbol (a a a): there it must be the run's start, and the walk to it is paid for by the run's joins. New
 * pairs have higher ranks. */
static void join_rank(struct rank_lists *l, uint32_t rank)
{
    struct symbol *syms = l->syms;
    while (l->heads[rank] != BPE_NONE) {
        uint32_t at = l->heads[rank];
        while (syms[at].prev != BPE_NONE && syms[syms[at].prev].rank == rank)
            at = syms[at].prev;
        while (at != BPE_NONE && syms[at].rank == rank) {
            uint32_t right = syms[at].next;
            list_remove(l, right);
            list_remove(l, at);
            syms[at].rank = rank;
            join(l->bpe, syms, at);
            syms[at].rank = BPE_NONE;
            if (syms[at].prev != BPE_NONE)
                list_update(l, syms[at].prev);
            list_update(l, at);
            at = syms[at].next;
        }
    }
}

static int64_t encode_by_rank(const struct bpe *b, struct bpe_work *w, const char *text, size_t len,
                              int32_t *ids)
{
    size_t n_words = (b->n_merges + 63) / 64;
    size_t syms_size = len * sizeof(struct symbol), heads_size = (b->n_merges + 1) / 2 * 2 * sizeof(uint32_t);
    char *memory = bpe_work_memory(w, syms_size + heads_size + n_words * sizeof(uint64_t));
    if (!memory)
        return -ENOMEM;
    struct rank_lists l = { .bpe = b,
                            .syms = (struct symbol *)(void *)memory,
                            .heads = (uint32_t *)(void *)(memory + syms_size),
                            .begun = (uint64_t *)(void *)(memory + syms_size + heads_size) };
    memset(l.begun, 0, n_words * sizeof(uint64_t));
    chain_bytes(b, l.syms, text, len);
    for (size_t i = 0; i < len; i++)
        list_update(&l, (uint32_t)i);

    for (size_t word = 0; word < n_words; word++) {
        /* Bits come up while their own word is walked, but only higher ones. */
        for (uint64_t done = 0, bits; (bits = l.begun[word] & ~done);) {
            unsigned bit = (unsigned)__builtin_ctzll(bits);
            done |= ((uint64_t)2 << bit) - 1;
            join_rank(&l, (uint32_t)(word * 64 + bit));
        }
    }
    return collect(l.syms, ids);
}

static void heap_update(const struct bpe *b, struct symbol *syms, struct heap *h, uint32_t at)
{
    syms[at].rank = rank_at(b, syms, at);
    if (syms[at].rank != BPE_NONE)
        heap_push(h, (uint64_t)syms[at].rank << 32 | at);
}

static int64_t encode_by_heap(const struct bpe *b, struct bpe_work *w, const char *text, size_t len,
                              int32_t *ids)
{
    /* One push for each pair at the start, at most two for each of at most len - 1 joins. */
    size_t syms_size = len * sizeof(struct symbol);
    char *memory = bpe_work_memory(w, syms_size + 3 * len * sizeof(uint64_t));
    if (!memory)
        return -ENOMEM;
    struct symbol *syms = (struct symbol *)(void *)memory;
    struct heap h = { .keys = (uint64_t *)(void *)(memory + syms_size) };
    chain_bytes(b, syms, text, len);
    for (size_t i = 0; i < len; i++)
        heap_update(b, syms, &h, (uint32_t)i);

    while (h.n > 0) {
        uint64_t key = heap_pop(&h);
        uint32_t at = (uint32_t)key;
        if (syms[at].rank != key >> 32)
            continue;
        join(b, syms, at);
        if (syms[at].prev != BPE_NONE)
            heap_update(b, syms, &h, syms[at].prev);
        heap_update(b, syms, &h, at);
    }
    return collect(syms, ids);
}

int64_t bpe_encode(const struct bpe *b, struct bpe_work *w, const char *text, size_t len, int32_t *ids)
{
    if (len <= SHORT_PIECE)
        return encode_short(b, text, len, ids);
    if (b->ordered)
        return encode_by_rank(b, w, text, len, ids);
    return encode_by_heap(b, w, text, len, ids);
}
