/* Vocabulary: reads a tokenizer from a GGUF file. Nothing in it is believed: counts, ids and texts are
 * checked, and what is wrong is named. One thread, once. Must not know: what is encoded later. Tests:
 * tests/unit/test_tokenizer.c */
#include "model/tokenizer_vocab.h"
#include "util/utf8.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sixteen times what the largest vocabularies have: beyond that memory would be asked for that no model is
 * worth. */
#define MAX_TOKENS ((uint64_t)1 << 22)
#define MAX_MERGES ((uint64_t)1 << 23)

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define MERGES_KEY "tokenizer.ggml.merges"

/* Texts by which the tokens that end a generation are known when no key names them. */
static const char *const eog_texts[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
};

/* Texts that start a turn. */
static const char *const turn_texts[] = {
    "<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "[INST]", "<|turn>",
    "<|start|>",    "<|user|>",        "<｜User｜>",
};

__attribute__((format(printf, 3, 4))) static int broken(char *err, size_t errlen, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, errlen, fmt, args);
    va_end(args);
    return -EINVAL;
}

/* Byte-level vocabularies write each byte as one printable character: those that are printable in Latin-1 as
 * themselves, the others, in order, from U+0100 on. Fills the code points of all bytes. */
static void byte_characters(uint16_t cps[256])
{
    uint16_t next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        cps[b] = printable ? (uint16_t)b : next++;
    }
}

#define BYTE_CHARACTERS 0x144 /* code points below this are bytes, or nothing */

struct alphabet {
    uint16_t cps[256];              /* byte -> code point */
    int16_t bytes[BYTE_CHARACTERS]; /* code point -> byte, -1: none */
};

static void alphabet_init(struct alphabet *a)
{
    byte_characters(a->cps);
    memset(a->bytes, 0xff, sizeof a->bytes);
    for (int b = 0; b < 256; b++)
        a->bytes[a->cps[b]] = (int16_t)b;
}

/* Writes the bytes that a token's text stands for; a text that is not in the alphabet stands for itself.
 * Returns how many, at most text.len. */
static size_t decode_text(const struct alphabet *a, struct gguf_str text, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < text.len;) {
        uint32_t cp;
        unsigned len = utf8_decode(text.data + at, text.len - at, &cp);
        if (len == 0 || cp >= BYTE_CHARACTERS || a->bytes[cp] < 0) {
            memcpy(out, text.data, text.len);
            return text.len;
        }
        out[n++] = (char)a->bytes[cp];
        at += len;
    }
    return n;
}

static bool is_special_type(uint8_t type)
{
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED || type == TOKEN_UNKNOWN;
}

/* tokenizer.ggml.tokens, as the file has them; *ret_texts is the caller's. */
static int read_texts(struct tokenizer *t, const struct gguf *f, struct gguf_str **ret_texts, char *err,
                      size_t errlen)
{
    const struct gguf_array *a;
    int r = gguf_get_array(f, TOKENS_KEY, GGUF_STR, &a, err, errlen);
    if (r < 0)
        return r;
    if (r == 0)
        return broken(err, errlen, TOKENS_KEY ": missing");
    uint64_t n = gguf_array_len(a);
    if (n == 0 || n > MAX_TOKENS)
        return broken(err, errlen, TOKENS_KEY ": %llu tokens; 1..%llu are allowed", (unsigned long long)n,
                      (unsigned long long)MAX_TOKENS);
    struct gguf_str *texts = malloc(n * sizeof *texts);
    if (!texts)
        return -ENOMEM;
    uint64_t total = 0;
    for (uint64_t i = 0; i < n; i++) {
        texts[i] = gguf_array_str(a, i);
        total += texts[i].len;
    }
    if (total > INT32_MAX) {
        free(texts);
        return broken(err, errlen, TOKENS_KEY ": %llu bytes of text; at most %d are allowed",
                      (unsigned long long)total, INT32_MAX);
    }
    t->n = (uint32_t)n;
    t->bytes = malloc(total + 1);
    *ret_texts = texts;
    return t->bytes ? 0 : -ENOMEM;
}

static int read_types(struct tokenizer *t, const struct gguf *f, char *err, size_t errlen)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const struct gguf_array *a;
    t->types = malloc(t->n);
    t->eog = calloc(t->n, sizeof *t->eog);
    if (!t->types || !t->eog)
        return -ENOMEM;
    memset(t->types, TOKEN_NORMAL, t->n);
    int r = gguf_get_array(f, key, GGUF_I32, &a, err, errlen);
    if (r <= 0)
        return r;
    if (gguf_array_len(a) != t->n)
        return broken(err, errlen, "%s: %llu types for %u tokens", key, (unsigned long long)gguf_array_len(a),
                      t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        int32_t type = gguf_array_i32(a, i);
        if (type < 0 || type > TOKEN_BYTE)
            return broken(err, errlen, "%s: token %u has type %d; 0..%d are known", key, i, type, TOKEN_BYTE);
        t->types[i] = type ? (uint8_t)type : TOKEN_NORMAL;
    }
    return 0;
}

/* The byte that "<0x0A>" stands for, or -1. */
static int byte_of_text(struct gguf_str text)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    const char *high = memchr(digits, text.data[3], 32), *low = memchr(digits, text.data[4], 32);
    return high && low ? (int)((high - digits) % 16 * 16 + (low - digits) % 16) : -1;
}

/* Writes the bytes that a token of a SentencePiece-style vocabulary stands for. */
static size_t decode_spm_text(uint8_t type, struct gguf_str text, char *out)
{
    int byte = type == TOKEN_BYTE ? byte_of_text(text) : -1;
    if (byte < 0)
        return spm_spaces(text.data, text.len, out);
    out[0] = (char)byte;
    return 1;
}

/* What the tokens stand for. Special ones stand for their text as it is. */
static int fill_pieces(struct tokenizer *t, const struct gguf_str *texts, const struct alphabet *a)
{
    t->pieces = malloc(t->n * sizeof *t->pieces);
    if (!t->pieces)
        return -ENOMEM;
    char *at = t->bytes;
    for (uint32_t i = 0; i < t->n; i++) {
        size_t len = texts[i].len;
        if (is_special_type(t->types[i]) || t->types[i] == TOKEN_UNUSED)
            memcpy(at, texts[i].data, len);
        else if (t->pre)
            len = decode_text(a, texts[i], at);
        else
            len = decode_spm_text(t->types[i], texts[i], at);
        t->pieces[i] = (struct gguf_str){ at, len };
        at += len;
    }
    *at = '\0'; /* no piece ends with one, but strndup and its like may look */
    return 0;
}

static int crafted(char *err, size_t errlen, const char *key)
{
    return broken(err, errlen, "%s: too many entries collide; no tokenizer was trained to this", key);
}

/* Of tokens that stand for the same bytes the one with the lowest number is found. */
static unsigned found_after(uint8_t type)
{
    if (is_special_type(type))
        return 0;
    return type == TOKEN_BYTE ? 2 : 1;
}

static int fill_by_piece(struct tokenizer *t, char *err, size_t errlen)
{
    int r = strmap_init(&t->by_piece, t->pieces, t->n);
    if (r < 0)
        return r;
    for (unsigned turn = 0; turn < 3; turn++)
        for (uint32_t i = 0; i < t->n; i++) {
            if (found_after(t->types[i]) != turn)
                continue;
            if (strmap_put(&t->by_piece, i) == -ELOOP)
                return crafted(err, errlen, TOKENS_KEY);
        }
    return 0;
}

static int fill_by_text(struct strmap *m, const struct gguf_str *texts, uint32_t n, char *err, size_t errlen)
{
    int r = strmap_init(m, texts, n);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < n; i++)
        if (strmap_put(m, i) == -ELOOP)
            return crafted(err, errlen, TOKENS_KEY);
    return 0;
}

/* "left right", both tokens, and so is what they make together. `joined` has room for the whole text. */
static int add_merge(struct bpe *b, const struct strmap *by_text, uint64_t i, struct gguf_str text,
                     char *joined, char *err, size_t errlen)
{
    char show[GGUF_PRINTABLE_LEN];
    const char *space = text.len > 1 ? memchr(text.data + 1, ' ', text.len - 1) : NULL;
    size_t left = space ? (size_t)(space - text.data) : 0;
    if (!space || left + 1 == text.len)
        return broken(err, errlen,
                      MERGES_KEY ": number %llu, \"%s\", is not two tokens with a space between them",
                      (unsigned long long)i, gguf_printable(show, sizeof show, text));
    memcpy(joined, text.data, left);
    memcpy(joined + left, space + 1, text.len - left - 1);
    uint32_t ids[3] = { strmap_get(by_text, text.data, left),
                        strmap_get(by_text, space + 1, text.len - left - 1),
                        strmap_get(by_text, joined, text.len - 1) };
    for (int k = 0; k < 3; k++)
        if (ids[k] == VOCAB_MAP_NONE)
            return broken(err, errlen, MERGES_KEY ": number %llu, \"%s\", %s that is not in the vocabulary",
                          (unsigned long long)i, gguf_printable(show, sizeof show, text),
                          k < 2 ? "joins a token" : "makes a token");
    return bpe_add_merge(b, ids[0], ids[1], ids[2]);
}

static int read_merges(struct tokenizer *t, const struct gguf *f, const struct strmap *by_text, char *err,
                       size_t errlen)
{
    const struct gguf_array *a;
    int r = gguf_get_array(f, MERGES_KEY, GGUF_STR, &a, err, errlen);
    if (r < 0)
        return r;
    if (r == 0)
        return broken(err, errlen, MERGES_KEY ": missing");
    uint64_t n = gguf_array_len(a);
    if (n > MAX_MERGES)
        return broken(err, errlen, MERGES_KEY ": %llu merges; at most %llu are allowed",
                      (unsigned long long)n, (unsigned long long)MAX_MERGES);
    r = bpe_init(&t->bpe, n);
    if (r < 0)
        return r;
    size_t longest = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t len = gguf_array_str(a, i).len;
        longest = len > longest ? len : longest;
    }
    char *joined = malloc(longest + 1);
    if (!joined)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        r = add_merge(&t->bpe, by_text, i, gguf_array_str(a, i), joined, err, errlen);
        if (r < 0 && r != -EEXIST)
            break;
        r = 0;
    }
    free(joined);
    if (r == -ELOOP)
        return crafted(err, errlen, MERGES_KEY);
    return r < 0 ? r : bpe_finish(&t->bpe, t->n);
}

static int read_bpe(struct tokenizer *t, const struct gguf *f, const struct alphabet *a,
                    const struct gguf_str *texts, char *err, size_t errlen)
{
    struct strmap by_text = { 0 };
    int r = fill_by_text(&by_text, texts, t->n, err, errlen);
    if (r == 0)
        r = read_merges(t, f, &by_text, err, errlen);
    for (unsigned b = 0; r == 0 && b < 256; b++) {
        char text[4];
        unsigned len = utf8_encode(a->cps[b], text);
        uint32_t id = strmap_get(&by_text, text, len);
        t->bpe.byte_ids[b] = id == VOCAB_MAP_NONE ? BPE_NONE : id;
    }
    strmap_free(&by_text);
    return r;
}

static int read_scores(const struct tokenizer *t, const struct gguf *f, float **ret_scores, char *err,
                       size_t errlen)
{
    static const char key[] = "tokenizer.ggml.scores";
    const struct gguf_array *a;
    int r = gguf_get_array(f, key, GGUF_F32, &a, err, errlen);
    if (r < 0)
        return r;
    if (r == 0)
        return broken(err, errlen, "%s: missing", key);
    if (gguf_array_len(a) != t->n)
        return broken(err, errlen, "%s: %llu scores for %u tokens", key,
                      (unsigned long long)gguf_array_len(a), t->n);
    float *scores = malloc(t->n * sizeof *scores);
    if (!scores)
        return -ENOMEM;
    *ret_scores = scores;
    for (uint32_t i = 0; i < t->n; i++) {
        scores[i] = gguf_array_f32(a, i);
        if (isnan(scores[i]))
            return broken(err, errlen, "%s: that of token %u is no number", key, i);
    }
    return 0;
}

static int read_byte_tokens(struct tokenizer *t, const struct gguf_str *texts, char *err, size_t errlen)
{
    for (unsigned b = 0; b < 256; b++)
        t->spm.byte_ids[b] = BPE_NONE;
    for (uint32_t i = 0; i < t->n; i++) {
        char show[GGUF_PRINTABLE_LEN];
        int byte = byte_of_text(texts[i]);
        if (t->types[i] != TOKEN_BYTE)
            continue;
        if (byte < 0)
            return broken(err, errlen,
                          TOKENS_KEY ": token %u, \"%s\", is of the type for bytes; <0x00>..<0xFF> are", i,
                          gguf_printable(show, sizeof show, texts[i]));
        if (t->spm.byte_ids[byte] == BPE_NONE)
            t->spm.byte_ids[byte] = i;
    }
    return 0;
}

static int read_spm(struct tokenizer *t, const struct gguf *f, const struct gguf_str *texts, char *err,
                    size_t errlen)
{
    float *scores = NULL;
    bool *ordinary = malloc(t->n * sizeof *ordinary);
    int r = ordinary ? 0 : -ENOMEM;
    t->spm.unknown = BPE_NONE;
    for (uint32_t i = 0; r == 0 && i < t->n; i++)
        ordinary[i] = t->types[i] == TOKEN_NORMAL;
    if (r == 0)
        r = read_byte_tokens(t, texts, err, errlen);
    if (r == 0)
        r = read_scores(t, f, &scores, err, errlen);
    if (r == 0) {
        r = spm_init(&t->spm, t->pieces, ordinary, scores, t->n);
        if (r == -ELOOP)
            r = crafted(err, errlen, TOKENS_KEY);
        else if (r == -E2BIG)
            r = broken(err, errlen, TOKENS_KEY ": a token of more than %u bytes that is not a special one",
                       SPM_MAX_TOKEN);
    }
    free(ordinary);
    free(scores);
    return r;
}

/* One of the keys that name a token; absent: *ret_id stays. -1 when it holds the number that writers use for
 * "none". */
static int read_id(const struct tokenizer *t, const struct gguf *f, const char *key, int32_t *ret_id,
                   char *err, size_t errlen)
{
    uint32_t id;
    int r = gguf_get_u32(f, key, &id, err, errlen);
    if (r <= 0)
        return r;
    if (id != UINT32_MAX && id >= t->n)
        return broken(err, errlen, "%s: token %u; the vocabulary has %u", key, id, t->n);
    *ret_id = id == UINT32_MAX ? -1 : (int32_t)id;
    return 0;
}

/* What SentencePiece numbers first, where a file does not say; -1 when it has another use there. */
static int32_t usual_id(const struct tokenizer *t, uint32_t id, uint8_t type)
{
    return !t->pre && id < t->n && t->types[id] == type ? (int32_t)id : -1;
}

static int read_ids(struct tokenizer *t, const struct gguf *f, char *err, size_t errlen)
{
    int32_t ids[] = { usual_id(t, 1, TOKEN_CONTROL), usual_id(t, 2, TOKEN_CONTROL), -1, -1,
                      usual_id(t, 0, TOKEN_UNKNOWN) };
    static const char *const keys[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                                        "tokenizer.ggml.unknown_token_id" };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        int r = read_id(t, f, keys[i], &ids[i], err, errlen);
        if (r < 0)
            return r;
    }
    t->bos = ids[0];
    t->eos = ids[1];
    for (size_t i = 1; i < 4; i++)
        if (ids[i] >= 0)
            t->eog[ids[i]] = true;
    t->spm.unknown = ids[4] < 0 ? BPE_NONE : (uint32_t)ids[4];
    return 0;
}

/* A token that is to be added to texts; `add` holds what goes where the file does not say. */
static int read_added(const struct gguf *f, const char *key, const char *id_key, int32_t id, bool *add,
                      char *err, size_t errlen)
{
    int r = gguf_get_bool(f, key, add, err, errlen);
    if (r < 0)
        return r;
    if (r == 1 && *add && id < 0)
        return broken(err, errlen, "%s: true, but %s names none", key, id_key);
    *add = *add && id >= 0;
    return 0;
}

static int read_additions(struct tokenizer *t, const struct gguf *f, char *err, size_t errlen)
{
    t->add_bos = t->pre ? t->pre->add_bos : true;
    t->add_space_prefix = true;
    int r = read_added(f, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", t->bos, &t->add_bos,
                       err, errlen);
    if (r == 0)
        r = read_added(f, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", t->eos, &t->add_eos,
                       err, errlen);
    if (r == 0)
        r = gguf_get_bool(f, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err, errlen);
    t->add_space_prefix = t->add_space_prefix && !t->pre;
    return r < 0 ? r : 0;
}

/* Tokens known by their texts. Some files have them as ordinary tokens by mistake: they are made control
 * tokens, except </s>, which is also a piece of HTML. */
static void mark_known_texts(struct tokenizer *t)
{
    for (size_t i = 0; i < sizeof eog_texts / sizeof eog_texts[0]; i++) {
        const char *text = eog_texts[i];
        int32_t id = tokenizer_find(t, text, strlen(text));
        if (id < 0 || (!tokenizer_is_control(t, id) && strcmp(text, "</s>") == 0))
            continue;
        t->eog[id] = true;
        t->types[id] = TOKEN_CONTROL;
    }
}

int32_t tokenizer_turn(const struct tokenizer *t, const char *chat_template, size_t len)
{
    int32_t first = -1;
    for (size_t i = 0; i < sizeof turn_texts / sizeof turn_texts[0]; i++) {
        size_t n = strlen(turn_texts[i]);
        int32_t id = tokenizer_find(t, turn_texts[i], n);
        /* A vocabulary can have those of several families: what the template writes is what prompts have. */
        if (id >= 0 && chat_template && memmem(chat_template, len, turn_texts[i], n))
            return id;
        if (first < 0)
            first = id;
    }
    return first;
}

/* A special token's text as it is looked for: with spaces where the text that it is looked for in has them.
 * *at has room for it. */
static struct gguf_str special_text(const struct tokenizer *t, uint32_t id, char **at)
{
    struct gguf_str text = t->pieces[id];
    if (t->pre)
        return text;
    text = (struct gguf_str){ *at, spm_spaces(text.data, text.len, *at) };
    *at += text.len;
    return text;
}

static int fill_special(struct tokenizer *t, bool only_user_defined, struct special_set **ret_set, char *err,
                        size_t errlen)
{
    size_t n = 0;
    const struct gguf_str *last = &t->pieces[t->n - 1];
    struct gguf_str *texts = malloc(t->n * sizeof *texts);
    int32_t *ids = malloc(t->n * sizeof *ids);
    char *bytes = malloc((size_t)(last->data + last->len - t->bytes) + 1), *at = bytes;
    int r = -ENOMEM;
    if (!texts || !ids || !bytes)
        goto done;
    for (uint32_t i = 0; i < t->n; i++) {
        if (only_user_defined ? t->types[i] != TOKEN_USER_DEFINED : !is_special_type(t->types[i]))
            continue;
        texts[n] = special_text(t, i, &at);
        ids[n++] = (int32_t)i;
    }
    r = special_set_new(texts, ids, n, ret_set);
    if (r == -E2BIG)
        r = broken(err, errlen, TOKENS_KEY ": special tokens with more than 4 MiB of text");
    else if (r == -ELOOP)
        r = crafted(err, errlen, TOKENS_KEY);
done:
    free(texts);
    free(ids);
    free(bytes);
    return r;
}

int tokenizer_read_vocab(struct tokenizer *t, const struct gguf *f, char *err, size_t errlen)
{
    struct alphabet a;
    struct gguf_str *texts = NULL;
    alphabet_init(&a);
    int r = read_texts(t, f, &texts, err, errlen);
    if (r == 0)
        r = read_types(t, f, err, errlen);
    if (r == 0)
        r = fill_pieces(t, texts, &a);
    if (r == 0)
        r = t->pre ? read_bpe(t, f, &a, texts, err, errlen) : read_spm(t, f, texts, err, errlen);
    free(texts);
    if (r == 0)
        r = fill_by_piece(t, err, errlen);
    if (r == 0)
        r = read_ids(t, f, err, errlen);
    if (r == 0)
        r = read_additions(t, f, err, errlen);
    if (r < 0)
        return r;
    mark_known_texts(t);
    r = fill_special(t, true, &t->user_defined, err, errlen);
    if (r == 0)
        r = fill_special(t, false, &t->special, err, errlen);
    return r;
}
