/* SentencePiece-style encoding: see tokenizer_spm.h. Whether two symbols can be joined is asked of the
 * vocabulary by their text, which stands there side by side. */
#include "model/tokenizer_spm.h"
#include "model/tokenizer_heap.h"
#include "util/utf8.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAIR_BITS                                                                                            \
    22 /* half a megabyte: of 300,000 pairs few share a bit, and one that does only costs time */
/* Up to this many bytes looking for the best pair again and again is the fastest. */
#define SHORT_PIECE 48

size_t spm_spaces(const char *text, size_t len, char *out)
{
    static const char mark[] = "\xe2\x96\x81";
    size_t n = 0;
    while (len > 0) {
        const char *found = memmem(text, len, mark, 3);
        size_t plain = found ? (size_t)(found - text) : len;
        memcpy(out + n, text, plain);
        n += plain;
        if (!found)
            break;
        out[n++] = ' ';
        text += plain + 3;
        len -= plain + 3;
    }
    return n;
}

struct scored {
    float score;
    uint32_t token;
};

static int order_scores(const void *a, const void *b)
{
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return (x < y) - (x > y);
}

static int rank_tokens(struct spm *s, const float *scores, size_t n)
{
    struct scored *order = malloc(n * sizeof *order);
    s->ranks = malloc(n * sizeof *s->ranks);
    if (!order || !s->ranks) {
        free(order);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        order[i] = (struct scored){ scores[i], (uint32_t)i };
    qsort(order, n, sizeof *order, order_scores);
    for (size_t i = 0; i < n; i++) {
        bool same = i > 0 && order_scores(&order[i - 1], &order[i]) == 0;
        s->ranks[order[i].token] = same ? s->ranks[order[i - 1].token] : (uint32_t)i;
    }
    free(order);
    return 0;
}

/* The character at text; a byte that is not UTF-8 is one by itself, unlike any other. */
static unsigned character(const char *text, size_t len, uint32_t *ret_cp)
{
    unsigned n = utf8_decode(text, len, ret_cp);
    if (n)
        return n;
    *ret_cp = 0x110000u + (unsigned char)text[0];
    return 1;
}

static uint32_t pair_bit(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> (64 - PAIR_BITS));
}

static void note_pairs(struct spm *s, struct gguf_str text)
{
    uint32_t before = 0, cp;
    for (size_t at = 0; at < text.len;) {
        unsigned n = character(text.data + at, text.len - at, &cp);
        if (at > 0) {
            uint32_t bit = pair_bit(before, cp);
            s->pairs[bit >> 6] |= (uint64_t)1 << (bit & 63);
        }
        before = cp;
        at += n;
    }
}

int spm_init(struct spm *s, const struct gguf_str *pieces, const bool *ordinary, const float *scores,
             size_t n)
{
    int r = strmap_init(&s->by_text, pieces, n);
    if (r == 0)
        r = rank_tokens(s, scores, n);
    if (r < 0)
        return r;
    s->pairs = calloc((size_t)1 << (PAIR_BITS - 6), sizeof *s->pairs);
    if (!s->pairs)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!ordinary[i] || pieces[i].len == 0)
            continue;
        if (pieces[i].len > SPM_MAX_TOKEN)
            return -E2BIG;
        if (strmap_put(&s->by_text, (uint32_t)i) == -ELOOP)
            return -ELOOP;
        if (pieces[i].len > s->longest)
            s->longest = pieces[i].len;
        note_pairs(s, pieces[i]);
    }
    return 0;
}

void spm_free(struct spm *s)
{
    strmap_free(&s->by_text);
    free(s->ranks);
    free(s->pairs);
}

size_t spm_piece(const struct spm *s, const char *text, size_t len)
{
    uint32_t before, cp;
    size_t at = character(text, len, &before);
    while (at < len) {
        unsigned n = character(text + at, len - at, &cp);
        uint32_t bit = pair_bit(before, cp);
        if (!(s->pairs[bit >> 6] >> (bit & 63) & 1))
            break;
        before = cp;
        at += n;
    }
    return at;
}

static uint32_t find(const struct spm *s, const char *text, size_t len)
{
    return len <= s->longest ? strmap_get(&s->by_text, text, len) : VOCAB_MAP_NONE;
}

/* Writes what a symbol became. */
static size_t write_symbol(const struct spm *s, uint32_t token, const char *text, size_t len, int32_t *ids)
{
    if (token == VOCAB_MAP_NONE) {
        bool bytes = true;
        for (size_t i = 0; i < len; i++) {
            uint32_t id = s->byte_ids[(unsigned char)text[i]];
            bytes = bytes && id != BPE_NONE;
            ids[i] = (int32_t)id;
        }
        if (bytes)
            return len;
        token = s->unknown;
    }
    if (token == BPE_NONE)
        return 0;
    ids[0] = (int32_t)token;
    return 1;
}

static int64_t encode_short(const struct spm *s, const char *text, size_t len, int32_t *ids)
{
    /* Symbol i is text[start[i]..start[i + 1]). */
    uint32_t start[SHORT_PIECE + 1], token[SHORT_PIECE], pair[SHORT_PIECE], cp;
    size_t n = 0;
    for (size_t at = 0; at < len; n++) {
        unsigned size = character(text + at, len - at, &cp);
        start[n] = (uint32_t)at;
        token[n] = find(s, text + at, size);
        at += size;
    }
    start[n] = (uint32_t)len;
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = find(s, text + start[i], start[i + 2] - start[i]);

    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (pair[i] != VOCAB_MAP_NONE && (best == n || s->ranks[pair[i]] < s->ranks[pair[best]]))
                best = i;
        if (best == n)
            break;
        token[best] = pair[best];
        n--;
        memmove(&token[best + 1], &token[best + 2], (n - best - 1) * sizeof token[0]);
        memmove(&start[best + 1], &start[best + 2], (n - best) * sizeof start[0]);
        if (best + 1 < n) {
            memmove(&pair[best + 1], &pair[best + 2], (n - best - 2) * sizeof pair[0]);
            pair[best] = find(s, text + start[best], start[best + 2] - start[best]);
        }
        if (best > 0)
            pair[best - 1] = find(s, text + start[best - 1], start[best + 1] - start[best - 1]);
    }

    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (int64_t)write_symbol(s, token[i], text + start[i], start[i + 1] - start[i], ids + count);
    return count;
}

#define END UINT32_MAX

/* A symbol of a long piece, in the order of the text; the first is never joined to one before it. */
struct symbol {
    uint32_t start, len;
    uint32_t prev, next;
    uint32_t token; /* VOCAB_MAP_NONE: a character that is none */
    uint32_t pair;  /* what this and the next make, VOCAB_MAP_NONE: nothing, or this one is no more */
};

static void update_pair(const struct spm *s, struct symbol *syms, const char *text, struct heap *h,
                        uint32_t at)
{
    struct symbol *left = &syms[at];
    left->pair = VOCAB_MAP_NONE;
    if (left->next == END)
        return;
    left->pair = find(s, text + left->start, left->len + syms[left->next].len);
    if (left->pair != VOCAB_MAP_NONE)
        heap_push(h, (uint64_t)s->ranks[left->pair] << 32 | at);
}

static void join(struct symbol *syms, uint32_t at)
{
    struct symbol *left = &syms[at], *right = &syms[left->next];
    left->token = left->pair;
    left->len += right->len;
    left->next = right->next;
    right->pair = VOCAB_MAP_NONE;
    if (left->next != END)
        syms[left->next].prev = at;
}

static int64_t encode_long(const struct spm *s, struct bpe_work *w, const char *text, size_t len,
                           int32_t *ids)
{
    /* One push for each pair at the start, at most two for each of at most len - 1 joins. */
    char *memory = bpe_work_memory(w, len * (sizeof(struct symbol) + 3 * sizeof(uint64_t)));
    if (!memory)
        return -ENOMEM;
    struct heap h = { .keys = (uint64_t *)(void *)memory };
    struct symbol *syms = (struct symbol *)(void *)(memory + 3 * len * sizeof(uint64_t));
    uint32_t n = 0, cp;
    for (size_t at = 0; at < len; n++) {
        unsigned size = character(text + at, len - at, &cp);
        syms[n] = (struct symbol){ (uint32_t)at, size, n ? n - 1 : END, n + 1, find(s, text + at, size), 0 };
        at += size;
    }
    syms[n - 1].next = END;
    for (uint32_t i = 0; i < n; i++)
        update_pair(s, syms, text, &h, i);

    while (h.n > 0) {
        uint64_t key = heap_pop(&h);
        uint32_t at = (uint32_t)key;
        /* Pairs only grow, and of two with the same score the one that is there is joined either way. */
        if (syms[at].pair == VOCAB_MAP_NONE || s->ranks[syms[at].pair] != key >> 32)
            continue;
        join(syms, at);
        if (syms[at].prev != END)
            update_pair(s, syms, text, &h, syms[at].prev);
        update_pair(s, syms, text, &h, at);
    }

    int64_t count = 0;
    for (uint32_t at = 0; at != END; at = syms[at].next)
        count += (int64_t)write_symbol(s, syms[at].token, text + syms[at].start, syms[at].len, ids + count);
    return count;
}

int64_t spm_encode(const struct spm *s, struct bpe_work *w, const char *text, size_t len, int32_t *ids)
{
    if (len <= SHORT_PIECE)
        return encode_short(s, text, len, ids);
    return encode_long(s, w, text, len, ids);
}
