/* Engine: runs a model over windows of rows, and keeps the keys and values of sessions in counted blocks.
 *
 * A session is one sequence timeline: a list of KV blocks and a length. Sessions share blocks (counted
 * references, copy on write), so a fork or a move copies no KV. A window is one step over rows; a row is one
 * session's next tokens. A sequence's logits are bit-identical whatever else is in its windows and however
 * its tokens are split into them.
 *
 * Thread: the scheduler's alone, all of it. Must not know: why a session exists, policies, HTTP.
 * Tests: tests/unit/test_engine.c, tests/property/kv_model.c, tests/unit/test_logits.c (reference logits) */
#pragma once
#include "model/model.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct session;

#define ENGINE_MAX_THREADS 256u

struct engine_options {
    const char *isa;  /* "auto", "amx", "avx512", "avx2", "portable", "ref" */
    uint32_t threads; /* 1..ENGINE_MAX_THREADS */
    bool f32_activations;
    bool kv_f32;         /* KV in f32 instead of f16 */
    uint32_t kv_tokens;  /* size of the pool in tokens; rounded up to whole blocks */
    uint32_t max_rows;   /* rows of a window, 1..256 */
    uint32_t max_tokens; /* tokens of a window over all rows, 1..4096 */
};

/* Loads and repacks all weights, releasing each tensor's pages of the file as it goes (the file is not needed
 * after). progress(arg, done, total) is called between tensors; may be NULL. Errors: -ENOTSUP, -EINVAL,
 * -ENOMEM with what was wanted and how much is available. */
int engine_open(const struct gguf *f, const struct model *m, const struct engine_options *o,
                void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                struct engine **ret_engine, char *err, size_t errlen);
void engine_close(struct engine *e); /* every session must have been freed */

/* Bytes of KV for one token with these settings. */
size_t engine_kv_token_bytes(const struct model *m, bool kv_f32);

struct engine_info {
    const char *device; /* "cpu avx512 vnni, 2 threads" */
    uint32_t n_vocab, blocks, blocks_used;
    size_t weight_bytes, kv_bytes;
};
void engine_info_get(const struct engine *e, struct engine_info *ret_info);

int session_new(struct engine *e, struct session **ret_session); /* empty */
void session_free(struct session *s);                            /* gives its blocks back */
uint32_t session_len(const struct session *s);
/* Forgets everything after the first n tokens (n <= len). */
void session_cut(struct session *s, uint32_t n);
/* dst becomes the first n tokens of src (n <= len of src): block references only, no KV is copied now. */
int session_fork(struct session *dst, const struct session *src, uint32_t n);
/* Blocks a session would newly need to grow by n tokens, a block to be copied on write included. */
uint32_t session_blocks_needed(const struct session *s, uint32_t n);
/* Exchanges what two sessions hold. */
void session_swap(struct session *a, struct session *b);
/* The numbers of its blocks by position, each below engine_info's `blocks`; valid until the session changes.
 */
const uint32_t *session_blocks(const struct session *s, uint32_t *ret_n);
/* How many of them no other session holds. */
uint32_t session_blocks_alone(const struct session *s);

struct engine_row {
    struct session *session; /* each session at most once in a window */
    const int32_t *tokens;   /* 0 <= id < n_vocab, checked */
    uint32_t n;              /* >= 1 */
    uint32_t n_logits;       /* logits wanted for the last so many of them, 0..n */
    const float *logits; /* out: [n_logits][n_vocab], valid until the next window; NULL when n_logits is 0 */
};

/* Runs one window: appends each row's tokens to its session and computes the logits asked for. 0; -ENOSPC
 * when the pool has fewer free blocks than the sum of session_blocks_needed over the rows (nothing changed);
 * -EINVAL for a bad row (nothing changed); another negative errno when the device failed, and then the
 * sessions are as before the call. */
int engine_window(struct engine *e, struct engine_row *rows, uint32_t n_rows, char *err, size_t errlen);
