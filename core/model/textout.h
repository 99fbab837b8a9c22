/* Textout: generated tokens to text for a reader: UTF-8 is never split, a stop string never shows even its
 * first letter, and each token's place in the text is known. One per generation; owned by whoever generates
 * (the scheduler thread). Pure: no threads, no time. Tests: tests/unit/test_textout.c */
#pragma once
#include "model/tokenizer.h"

struct textout;

/* Copies the stop strings (lengths in bytes). -EINVAL when one is empty or not valid UTF-8; -E2BIG above 4
 * MiB of them; -ENOMEM. */
int textout_new(const struct tokenizer *t, const char *const *stops, const size_t *stop_lens, size_t n_stops,
                struct textout **ret_out);
void textout_free(struct textout *o);
/* The text of these control tokens is to be seen; that of others is not. At most 8; before the first token.
 */
#define TEXTOUT_SHOWN 8
void textout_show(struct textout *o, const int32_t *tokens, size_t n);

/* Adds one token's bytes. *ret_text/len: text that became certain with it (it may be empty: held back while
 * it could be the start of a stop string or of a character), valid until the next call. *ret_tokens: how many
 * tokens, oldest first, are wholly out by now and were not before. Returns 0; 1 when a stop string is
 * complete: the text before it has been handed out, what follows is dropped, *ret_stop is its index (of
 * several completed by this token the one that starts first, then the shortest); nothing comes out any more
 * after that. -ENOMEM. Invalid bytes come out as U+FFFD. */
int textout_add(struct textout *o, int32_t token, const char **ret_text, size_t *ret_len, size_t *ret_tokens,
                size_t *ret_stop);
/* The generation ended without a stop string: hands out what was held. */
int textout_finish(struct textout *o, const char **ret_text, size_t *ret_len, size_t *ret_tokens);
