/* Session io: a session's keys and values as bytes, block by block, in a form that depends on neither device,
 * layout nor stages: what one engine gave another one takes, when both are of one kind and model.
 *
 * Thread: the scheduler's. Copies only, by the calling thread, while flights are under way: of idle sessions.
 * Must not know: files, checksums, why. Tests: tests/unit/test_session_io.c */
#pragma once
#include "engine/engine.h"

#define SESSION_IO_TOKENS 64u /* of a piece: a block's, fewer in the last one */

/* Keys and values of engines of one kind and one model are the same bits. */
struct session_io_kind {
    const char *kv_type;    /* "f16", "f32", "q8_0" */
    const char *arithmetic; /* how it computes, in words; lives as long as the engine */
    size_t token_bytes;     /* of one token, all layers */
};
void session_io_kind(const struct engine *e, struct session_io_kind *ret_kind);

/* Copies keys and values of the tokens from piece * SESSION_IO_TOKENS on to `to`, which has room for as many
 * as there are in the piece. Returns how many; 0 behind the last. */
uint32_t session_io_get(const struct session *s, uint32_t piece, void *to);
/* Appends n tokens (1..SESSION_IO_TOKENS) with these keys and values to a session of whole pieces. -ENOSPC
 * when the pool has no free block, -ENOMEM, -EBUSY in flight, -EINVAL after a piece that was not whole; and
 * then nothing changed. */
int session_io_put(struct session *s, uint32_t n, const void *from);
