/* Vocabularies for tests: GGUF files of a few keys, and numbers that are the same in every run. */
#pragma once
#include "model/tokenizer.h"
#include "util/buf.h"
#include "util/rng.h"
#include "util/utf8.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dice {
    uint64_t seed, n;
};

static inline uint32_t roll(struct dice *d, uint32_t sides)
{
    uint32_t words[4];
    rng_philox(d->seed, d->n++, words);
    return words[0] % sides;
}

struct vocab {
    const char *model, *pre; /* NULL: no such key */
    const char **tokens;
    int32_t *types; /* NULL: no such key */
    size_t n_tokens, n_types;
    const char **merges; /* NULL: no such key */
    size_t n_merges;
    const float *scores; /* NULL: no such key */
    size_t n_scores;
    int64_t bos, eos; /* -1: no such key */
    int add_bos;      /* -1: no such key */
};

/* A SentencePiece-style vocabulary of n tokens, of which the file says nothing else. */
static inline struct vocab vocab_of_scores(const char **tokens, int32_t *types, const float *scores, size_t n)
{
    return (struct vocab){ .model = "llama",
                           .tokens = tokens,
                           .n_tokens = n,
                           .types = types,
                           .n_types = n,
                           .scores = scores,
                           .n_scores = n,
                           .bos = -1,
                           .eos = -1,
                           .add_bos = -1 };
}

static inline void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, 4);
}

static inline void put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, 8);
}

static inline void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static inline void put_strings(struct buf *b, const char *key, const char **strings, size_t n)
{
    put_str(b, key);
    put_u32(b, GGUF_ARR);
    put_u32(b, GGUF_STR);
    put_u64(b, n);
    for (size_t i = 0; i < n; i++)
        put_str(b, strings[i]);
}

static inline void put_u32_key(struct buf *b, const char *key, uint32_t v)
{
    put_str(b, key);
    put_u32(b, GGUF_U32);
    put_u32(b, v);
}

static inline uint64_t put_keys(struct buf *b, const struct vocab *v)
{
    uint64_t n = 1;
    put_strings(b, "tokenizer.ggml.tokens", v->tokens, v->n_tokens);
    if (v->model) {
        put_str(b, "tokenizer.ggml.model");
        put_u32(b, GGUF_STR);
        put_str(b, v->model);
        n++;
    }
    if (v->pre) {
        put_str(b, "tokenizer.ggml.pre");
        put_u32(b, GGUF_STR);
        put_str(b, v->pre);
        n++;
    }
    if (v->merges) {
        put_strings(b, "tokenizer.ggml.merges", v->merges, v->n_merges);
        n++;
    }
    if (v->types) {
        put_str(b, "tokenizer.ggml.token_type");
        put_u32(b, GGUF_ARR);
        put_u32(b, GGUF_I32);
        put_u64(b, v->n_types);
        buf_append(b, v->types, v->n_types * sizeof *v->types);
        n++;
    }
    if (v->scores) {
        put_str(b, "tokenizer.ggml.scores");
        put_u32(b, GGUF_ARR);
        put_u32(b, GGUF_F32);
        put_u64(b, v->n_scores);
        buf_append(b, v->scores, v->n_scores * sizeof *v->scores);
        n++;
    }
    if (v->bos >= 0) {
        put_u32_key(b, "tokenizer.ggml.bos_token_id", (uint32_t)v->bos);
        n++;
    }
    if (v->eos >= 0) {
        put_u32_key(b, "tokenizer.ggml.eos_token_id", (uint32_t)v->eos);
        n++;
    }
    if (v->add_bos >= 0) {
        put_str(b, "tokenizer.ggml.add_bos_token");
        put_u32(b, GGUF_BOOL);
        buf_putc(b, (char)v->add_bos);
        n++;
    }
    return n;
}

static inline int open_vocab(const struct vocab *v, struct tokenizer **ret, char *err, size_t errlen)
{
    struct buf keys = { 0 }, file = { 0 };
    char path[] = "/tmp/test_vocab_XXXXXX";
    struct gguf *f;
    uint64_t n = put_keys(&keys, v);
    buf_append(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, n);
    buf_append(&file, keys.data, keys.len);
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, file.data, file.len) == (ssize_t)file.len);
    close(fd);
    int r = gguf_open(path, &f, err, errlen);
    unlink(path);
    cr_assert_eq(r, 0, "%s", err);
    r = tokenizer_open(f, ret, err, errlen);
    gguf_close(f);
    buf_free(&keys);
    buf_free(&file);
    return r;
}

static inline struct tokenizer *must_open(const struct vocab *v)
{
    char err[512] = "";
    struct tokenizer *t = NULL;
    cr_assert_eq(open_vocab(v, &t, err, sizeof err), 0, "%s", err);
    return t;
}

/* The 256 single bytes as byte-level vocabularies write them; fills texts[256]. */
static inline void byte_texts(char texts[256][4], const char **tokens)
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        unsigned n = utf8_encode(printable ? b : next++, texts[b]);
        texts[b][n] = 0;
        tokens[b] = texts[b];
    }
}
