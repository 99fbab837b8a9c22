/* Tokenizer: see tokenizer.h. Here: which tokenizer a file wants, and the way of a text: special tokens are
 * cut out, what lies between is cut into pieces, and each piece is merged by itself. Pieces repeat, so a call
 * remembers where it has seen one. Pure. Must not know: files beyond their keys, threads, time. Tests:
 * tests/unit/test_tokenizer.c */
#include "model/tokenizer.h"
#include "model/tokenizer_vocab.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT ((size_t)256 << 20)

static int no_such_tokenizer(struct gguf_str name, char *err, size_t errlen)
{
    char shown[GGUF_PRINTABLE_LEN];
    snprintf(err, errlen, "tokenizer '%s' is not one this build has: gpt2, llama",
             gguf_printable(shown, sizeof shown, name));
    return -ENOTSUP;
}

static int no_such_pre(struct gguf_str name, char *err, size_t errlen)
{
    char names[256], shown[GGUF_PRINTABLE_LEN];
    tokenizer_pre_names(names, sizeof names);
    snprintf(err, errlen, "pre-tokenizer '%s' of tokenizer 'gpt2' is not one this build has: %s",
             gguf_printable(shown, sizeof shown, name), names);
    return -ENOTSUP;
}

static int choose_kind(struct tokenizer *t, const struct gguf *f, char *err, size_t errlen)
{
    struct gguf_str model, pre = { "default", 7 };
    int r = gguf_get_str(f, "tokenizer.ggml.model", &model, err, errlen);
    if (r < 0)
        return r;
    if (r == 0) {
        snprintf(err, errlen, "tokenizer.ggml.model: missing, the file brings no tokenizer");
        return -EINVAL;
    }
    if (gguf_str_is(model, "llama")) { /* which has no pre-tokenizer, whatever the file names */
        snprintf(t->kind, sizeof t->kind, "llama");
        return 0;
    }
    if (!gguf_str_is(model, "gpt2"))
        return no_such_tokenizer(model, err, errlen);
    r = gguf_get_str(f, "tokenizer.ggml.pre", &pre, err, errlen);
    if (r < 0)
        return r;
    t->pre = tokenizer_pre_find(pre.data, pre.len);
    if (!t->pre)
        return no_such_pre(pre, err, errlen);
    snprintf(t->kind, sizeof t->kind, "gpt2/%s", t->pre->name);
    return 0;
}

int tokenizer_open(const struct gguf *f, struct tokenizer **ret_tokenizer, char *err, size_t errlen)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        snprintf(err, errlen, "no memory for the tokenizer");
        return -ENOMEM;
    }
    int r = choose_kind(t, f, err, errlen);
    if (r == 0)
        r = tokenizer_read_vocab(t, f, err, errlen);
    if (r == -ENOMEM)
        snprintf(err, errlen, "no memory for the vocabulary");
    if (r < 0) {
        tokenizer_free(t);
        return r;
    }
    *ret_tokenizer = t;
    return 0;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    special_set_free(t->user_defined);
    special_set_free(t->special);
    bpe_free(&t->bpe);
    spm_free(&t->spm);
    strmap_free(&t->by_piece);
    free(t->eog);
    free(t->types);
    free(t->pieces);
    free(t->bytes);
    free(t);
}

/* A piece that this call has encoded before: where it stands in the text, and where its ids stand in the
 * result. */
struct seen {
    uint32_t at, len; /* len 0: empty */
    uint32_t first_id, n_ids;
};

#define SEEN_MAX_PIECE 64 /* longer pieces hardly ever come again */

/* One call of tokenizer_encode. */
struct encoding {
    const struct tokenizer *t;
    const char *text; /* the whole of it, as the encoder wants it */
    char *prefixed;   /* where that is put together when spaces are to be added, owned */
    size_t n_prefixed;
    int32_t *ids;
    size_t n, cap;
    struct bpe_work work;
    struct seen *seen; /* NULL: the text is too short to be worth it */
    uint32_t seen_mask;
};

static int make_room(struct encoding *e, size_t more)
{
    if (e->cap - e->n >= more)
        return 0;
    size_t cap = e->cap + e->cap / 2 + more;
    int32_t *ids = realloc(e->ids, cap * sizeof *ids);
    if (!ids)
        return -ENOMEM;
    e->ids = ids;
    e->cap = cap;
    return 0;
}

static uint32_t hash_piece(const char *text, size_t len)
{
    uint64_t h = len * 0x9e3779b97f4a7c15u, word;
    for (; len >= 8; text += 8, len -= 8) {
        memcpy(&word, text, 8);
        h = (h ^ word) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 32;
    }
    word = 0;
    for (size_t i = 0; i < len; i++)
        word = word << 8 | (unsigned char)text[i];
    h = (h ^ word) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

/* A piece's ids, however they are found. */
static int64_t encode_new(const struct tokenizer *t, struct bpe_work *w, const char *text, size_t len,
                          int32_t *ids)
{
    if (!t->pre)
        return spm_encode(&t->spm, w, text, len, ids);
    if (t->pre->ignore_merges) {
        uint32_t whole = strmap_get(&t->by_piece, text, len);
        if (whole != VOCAB_MAP_NONE && t->types[whole] == TOKEN_NORMAL) {
            ids[0] = (int32_t)whole;
            return 1;
        }
    }
    return bpe_encode(&t->bpe, w, text, len, ids);
}

/* Appends the ids of one piece; there is room for them. */
static int encode_piece(struct encoding *e, size_t at, size_t len)
{
    struct seen *seen = NULL;
    if (e->seen && len > 1 && len <= SEEN_MAX_PIECE) {
        seen = &e->seen[hash_piece(e->text + at, len) & e->seen_mask];
        if (seen->len == len && memcmp(e->text + seen->at, e->text + at, len) == 0) {
            memcpy(e->ids + e->n, e->ids + seen->first_id, seen->n_ids * sizeof *e->ids);
            e->n += seen->n_ids;
            return 0;
        }
    }
    int64_t n = encode_new(e->t, &e->work, e->text + at, len, e->ids + e->n);
    if (n < 0)
        return (int)n;
    if (seen)
        *seen = (struct seen){ (uint32_t)at, (uint32_t)len, (uint32_t)e->n, (uint32_t)n };
    e->n += (size_t)n;
    return 0;
}

/* Appends the ids of e->text[at..end), which holds no special token. */
static int encode_plain(struct encoding *e, size_t at, size_t end)
{
    const struct tokenizer *t = e->t;
    while (at < end) {
        size_t len =
            t->pre ? t->pre->piece(e->text + at, end - at) : spm_piece(&t->spm, e->text + at, end - at);
        int r = make_room(e, len);
        if (r == 0)
            r = encode_piece(e, at, len);
        if (r < 0)
            return r;
        at += len;
    }
    return 0;
}

/* The same for text[at..end), with a space before it where the model wants one. Behind a special token one
 * that is there is the one: templates write "[/INST] answer" where the model was trained to, and itself does,
 * go on with a single space, and a reply must be found again in the next prompt. */
static int encode_between(struct encoding *e, const char *text, size_t at, size_t end)
{
    size_t start = e->n_prefixed;
    if (!e->prefixed || at == end)
        return encode_plain(e, at, end);
    if (at == 0 || text[at] != ' ')
        e->prefixed[e->n_prefixed++] = ' ';
    memcpy(e->prefixed + e->n_prefixed, text + at, end - at);
    e->n_prefixed += end - at;
    return encode_plain(e, start, e->n_prefixed);
}

static int encode_all(struct encoding *e, const char *text, size_t len, const struct special_match *matches,
                      size_t n_matches)
{
    size_t at = 0;
    e->text = text;
    if (e->t->add_space_prefix) {
        e->prefixed = malloc(len + n_matches + 1);
        if (!e->prefixed)
            return -ENOMEM;
        e->text = e->prefixed;
    }
    for (size_t i = 0; i < n_matches; i++) {
        int r = encode_between(e, text, at, matches[i].at);
        if (r == 0)
            r = make_room(e, 1);
        if (r < 0)
            return r;
        e->ids[e->n++] = matches[i].token;
        at = matches[i].at + matches[i].len;
    }
    return encode_between(e, text, at, len);
}

/* Memory for a text of len bytes: results are about a third of that in practice, and the memory of pieces is
 * kept small beside the text. */
static int prepare(struct encoding *e, size_t len)
{
    int r = make_room(e, len / 3 + 16);
    if (r < 0 || len < 256)
        return r;
    uint32_t slots = 64;
    while (slots < len / 16 && slots < 16384)
        slots *= 2;
    e->seen = calloc(slots, sizeof *e->seen);
    e->seen_mask = slots - 1;
    return e->seen ? 0 : -ENOMEM;
}

/* SentencePiece-style tokenizers take U+2581 for a space from the start: *text becomes such a copy,
 * *ret_copy. */
static int take_spaces(const struct tokenizer *t, const char **text, size_t *len, char **ret_copy)
{
    if (t->pre)
        return 0;
    char *copy = malloc(*len + 1);
    if (!copy)
        return -ENOMEM;
    *len = spm_spaces(*text, *len, copy);
    *text = *ret_copy = copy;
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     int32_t **ret_ids, size_t *ret_n)
{
    if (len > MAX_TEXT)
        return -E2BIG;
    struct encoding e = { .t = t };
    struct special_match *matches = NULL;
    size_t n_matches;
    char *copy = NULL;
    int r = take_spaces(t, &text, &len, &copy);
    if (r == 0)
        r = prepare(&e, len);
    if (r < 0)
        goto done;
    const struct special_set *special = flags & TOKENIZER_PARSE_SPECIAL ? t->special : t->user_defined;
    r = special_set_find(special, text, len, &matches, &n_matches);
    if (r < 0)
        goto done;
    if (flags & TOKENIZER_ADD_SPECIAL && t->add_bos)
        e.ids[e.n++] = t->bos;
    r = encode_all(&e, text, len, matches, n_matches);
    if (r == 0)
        r = make_room(&e, 1);
    if (r < 0)
        goto done;
    if (flags & TOKENIZER_ADD_END && t->add_eos)
        e.ids[e.n++] = t->eos;

    int32_t *fitted = realloc(e.ids, (e.n + 1) * sizeof *fitted);
    *ret_ids = fitted ? fitted : e.ids;
    *ret_n = e.n;
    e.ids = NULL;
done:
    free(e.ids);
    free(e.prefixed);
    free(e.seen);
    free(matches);
    free(copy);
    bpe_work_free(&e.work);
    return r;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n;
}

static bool is_silent(const struct tokenizer *t, int32_t id)
{
    return tokenizer_is_control(t, id) || t->types[id] == TOKEN_UNUSED;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, size_t *ret_len)
{
    *ret_len = is_silent(t, id) && !special ? 0 : t->pieces[id].len;
    return t->pieces[id].data;
}

bool tokenizer_added_space(const struct tokenizer *t, int32_t id)
{
    return t->add_space_prefix && t->types[id] == TOKEN_NORMAL && t->pieces[id].len &&
           t->pieces[id].data[0] == ' ';
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    uint32_t id = strmap_get(&t->by_piece, text, len);
    return id == VOCAB_MAP_NONE ? -1 : (int32_t)id;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return t->types[id] == TOKEN_CONTROL || t->types[id] == TOKEN_UNKNOWN;
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id)
{
    return t->eog[id];
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
    return t->kind;
}
