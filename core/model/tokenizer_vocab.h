/* The tokenizer's own insides, shared by what reads them from a file (tokenizer_vocab.c) and what uses them
 * (tokenizer.c). Immutable after tokenizer_open. */
#pragma once
#include "model/tokenizer.h"
#include "model/tokenizer_bpe.h"
#include "model/tokenizer_pre.h"
#include "model/tokenizer_special.h"
#include "model/tokenizer_spm.h"
#include "model/vocab_map.h"

/* As numbered in tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

struct tokenizer {
    char kind[64];
    uint32_t n;              /* tokens */
    char *bytes;             /* of all tokens, one after the other */
    struct gguf_str *pieces; /* into bytes: what each token stands for */
    uint8_t *types;          /* enum token_type */
    bool *eog;
    struct strmap by_piece;
    const struct tokenizer_pre *pre;  /* NULL: SentencePiece-style */
    struct bpe bpe;                   /* when there is a pre-tokenizer */
    struct spm spm;                   /* when there is none */
    struct special_set *user_defined; /* found in any text */
    struct special_set *special;      /* these, and control tokens: found when special tokens are asked for */
    int32_t bos, eos;                 /* -1: none */
    bool add_bos, add_eos;
    /* SentencePiece-style alone: a space before text, and after special tokens where there is none. */
    bool add_space_prefix;
};

/* Reads the vocabulary into t, all zero but `pre` and `kind`. Fails as tokenizer_open does; the caller frees
 * t either way. */
int tokenizer_read_vocab(struct tokenizer *t, const struct gguf *f, char *err, size_t errlen);
