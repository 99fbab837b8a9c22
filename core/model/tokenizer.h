/* Tokenizer: text to token ids and back, from what a GGUF file says: byte-level BPE, whose pre-tokenizers are
 * rows of a table (tokenizer_pre.c), and SentencePiece-style (tokenizer_spm.c). Pure and immutable after
 * opening: any number of threads. It copies what it needs; the file may be closed. Must not know: files,
 * threads, time, chats. Tests: tests/unit/test_tokenizer.c, tests/e2e/test_tokenizers.py */
#pragma once
#include "model/gguf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* -EINVAL for broken vocabularies, -ENOTSUP for a tokenizer or pre-tokenizer this build does not have
 * (named), -ENOMEM; err says what was wrong with which key. */
int tokenizer_open(const struct gguf *f, struct tokenizer **ret_tokenizer, char *err, size_t errlen);
void tokenizer_free(struct tokenizer *t);

/* "<|im_end|>" in the text becomes that token; otherwise it is plain text. */
#define TOKENIZER_PARSE_SPECIAL 1u
/* Add what the model wants at the start (bos), if it wants it. */
#define TOKENIZER_ADD_SPECIAL 2u
/* Likewise at the end (eos): for a text that is whole, not for one that is to be gone on with. */
#define TOKENIZER_ADD_END 4u

/* Any bytes are accepted, invalid UTF-8 included: they are encoded as they are, and the tokens' bytes give
 * them back. Only a byte that the vocabulary has no token for is left out (SmolLM2 lacks 21, U+0004 for one),
 * and SentencePiece-style U+2581 comes back as a space, with one more at the start and after special tokens
 * where the model wants that; what it has no token for is its unknown token. Of special tokens the leftmost
 * is found, and of those that start there the longest; user-defined ones are found with any flags. *ret_ids
 * is malloc'ed (never NULL on success, even for 0 ids); time linear in len whatever the text (times its
 * logarithm where the file's merges are in no order that a trainer writes). -ENOMEM; -E2BIG when len is above
 * 256 MiB. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     int32_t **ret_ids, size_t *ret_n);

uint32_t tokenizer_n_vocab(const struct tokenizer *t);
/* The bytes a token stands for (control tokens: their text when `special`, nothing otherwise); 0 <= id <
 * n_vocab. The bytes live as long as the tokenizer; no zero byte follows. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, size_t *ret_len);
/* Whether a text that begins with this token had a space put before it when it was encoded. */
bool tokenizer_added_space(const struct tokenizer *t, int32_t id);
/* The id that stands for exactly these bytes (a special one goes before an ordinary one), or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* End of generation: eos, eot and their kin, by the file's keys and by the texts usual for them. */
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t);
const char *tokenizer_kind(const struct tokenizer *t); /* "gpt2/smollm" */
/* The token that starts a turn ("<|im_start|>", "<start_of_turn>", ...): of those in the vocabulary the one
 * that the chat template (NULL: unknown) contains, else the first; -1: none. */
int32_t tokenizer_turn(const struct tokenizer *t, const char *chat_template, size_t len);
