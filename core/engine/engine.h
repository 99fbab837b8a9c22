/* Engine: runs a model over windows of rows, and keeps the keys and values of sessions in counted blocks.
 *
 * A session is one sequence timeline: a list of KV blocks and a length. Sessions share blocks (counted
 * references, copy on write), so a fork or a move copies no KV. A window is one step over rows; a row is one
 * session's next tokens. A sequence's logits are bit-identical whatever else is in its windows and however
 * its tokens are split into them.
 *
 * The layers are split into stages: contiguous ranges, each on a device of its own (on the CPU a part of this
 * process's processors with its own threads), with its own part of the KV pool under the same block numbers.
 * A flight is a window on its way through them. Flights of different sessions are under way at once, one in
 * each stage and others waiting; a stage takes the one that has waited longest. What a sequence's logits are
 * depends on neither stages nor flights.
 *
 * Until flight_end says 0, the sessions of a flight are as they were when it began: length, blocks, what a
 * fork takes from them. They may be read and forked from, and must not be changed: not grown by another
 * window (-EBUSY), forked into (-EBUSY), cut, swapped or freed (asserted: the caller's mistake). All other
 * sessions may be changed as ever: what a flight reads or writes is counted as held until it ended, so no
 * block of it is given to anybody else.
 *
 * Thread: the scheduler's alone, all of it. With several stages each has a thread, inside. Must not know: why
 * a session exists, policies, HTTP. Tests: tests/unit/test_engine.c, tests/unit/test_stages.c,
 * tests/property/kv_model.c, tests/unit/engine_stress.c, tests/unit/test_logits.c (reference logits) */
#pragma once
#include "model/model.h"
#include "model/sampler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct session;
struct flight;

#define ENGINE_MAX_THREADS 256u
#define ENGINE_MAX_STAGES 64u

struct engine_options {
    const char *device; /* "cpu", "cuda"; NULL: "cpu" */
    const char *isa;    /* of the CPU: "auto", "amx", "avx512", "avx2", "portable", "ref" */
    uint32_t threads;   /* 1..ENGINE_MAX_THREADS, divided among the stages, each of which has at least one */
    uint32_t stages;    /* 1..ENGINE_MAX_STAGES, at most the model's layers; 0: one */
    const char *activations; /* "int8", "int16", "f32"; "auto" or NULL: as the model wants */
    bool any_order;          /* CUDA: cuBLAS may sum large chunks, and bits then depend on chunks */
    const char *kv_type;     /* "f16", "f32", "q8_0"; NULL: "f16" */
    uint32_t kv_tokens;      /* size of the pool in tokens; rounded up to whole blocks */
    uint32_t max_rows;       /* rows of a window, 1..256 */
    uint32_t max_tokens;     /* tokens of a window over all rows, 1..4096 */
    bool sample;             /* a row of each matrix is all that is loaded: to see what a device refuses. For
                                engine_info_get and engine_close alone */
};

/* What `asked`, "auto", "cpu" or "cuda", means here: "cpu" or "cuda". For "cuda" also how many bytes are free
 * on the devices that so many stages would run on, together. Where "auto" is the CPU, err says why ("" when
 * this build has nothing else). -ENODEV, and why, for a "cuda" that cannot be had. */
int engine_device_find(const char *asked, uint32_t stages, const char **ret_device, uint64_t *ret_free,
                       char *err, size_t errlen);

/* Loads and repacks all weights, releasing each tensor's pages of the file as it goes (the file is not needed
 * after). With several stages some layers, the embedding and the output head are timed first, and the layers
 * are divided so that the slowest stage is as fast as can be. progress(arg, done, total) is called between
 * tensors, by whatever thread loads; may be NULL. Errors: -ENOTSUP, -EINVAL, -ENOMEM with what was wanted and
 * how much is available. */
int engine_open(const struct gguf *f, const struct model *m, const struct engine_options *o,
                void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
                struct engine **ret_engine, char *err, size_t errlen);
/* Every flight must have been released and every session freed. */
void engine_close(struct engine *e);

/* Bytes of KV for one token in "f16", "f32" or "q8_0"; 0 where the model's heads cannot be kept so: q8_0
 * wants a head dimension that is a multiple of 32. */
size_t engine_kv_token_bytes(const struct model *m, const char *kv_type);

struct engine_stage_info {
    const char *device; /* "cpu avx512 vnni, 1 thread on processor 0" */
    uint32_t first_layer, n_layers, threads;
    size_t weight_bytes;
};

struct engine_info {
    const char *device;                /* of the first stage: "cpu avx512 vnni, 2 threads" */
    const char *activations, *kv_type; /* what "auto" has become: "int8", "int16", "f32"; as engine_options */
    uint32_t n_vocab, blocks, blocks_used;
    uint32_t blocks_flying; /* of blocks_used: taken by flights, in no session's list yet */
    size_t weight_bytes, kv_bytes;
    uint32_t n_stages;
    const struct engine_stage_info *stages; /* [n_stages], as long as the engine lives */
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
/* The numbers of its blocks by position, below engine_info's `blocks`; valid until the session changes. */
const uint32_t *session_blocks(const struct session *s, uint32_t *ret_n);
/* How many of them no other session holds. */
uint32_t session_blocks_alone(const struct session *s);
/* Between engine_begin and flight_end. */
bool session_in_flight(const struct session *s);

struct engine_row {
    struct session *session; /* each session at most once in a window, and in one flight at a time */
    const int32_t *tokens;   /* 0 <= id < n_vocab, checked */
    uint32_t n;              /* >= 1 */
    uint32_t n_logits;       /* logits wanted for the last so many of them, 0..n */
    bool best;   /* the best of them will do: all may stay on a device, until flight_logits fetches them */
    float scale; /* with best: of flight_best's second sum, 0 < scale < infinity */
    const float *logits; /* out, of engine_window alone: as flight_logits, until the next window begins */
};

/* Starts a window that appends each row's tokens to its session and computes the logits asked for; rows and
 * tokens are copied. With one stage it is computed before this returns. -ENOSPC when the pool has fewer free
 * blocks than the sum of session_blocks_needed over the rows; -EBUSY for a session in flight; -EINVAL for a
 * bad row; -ENOMEM. After any of them nothing changed. Each open flight has memory of its own, kept for the
 * next ones. */
int engine_begin(struct engine *e, const struct engine_row *rows, uint32_t n_rows, struct flight **ret_flight,
                 char *err, size_t errlen);
/* Of the flights that finished, well or not, and have been neither returned here nor ended, the first to have
 * finished. NULL: there is none; with `wait`, none is under way either. */
struct flight *engine_next_finished(struct engine *e, bool wait);
/* From now on finished(arg) is called each time a flight finishes, by the thread that computed it: to wake
 * the scheduler, which also waits for other things. It must return at once and call nothing of the engine.
 * After the return of a call with NULL none is made any more. */
void engine_watch(struct engine *e, void (*finished)(void *arg), void *arg);

/* Waits until it finished. 0: the sessions have grown. A negative errno: a device failed, err names the stage
 * where there are several, and the sessions are as before; other flights and later windows are not touched by
 * it. Once for each flight, in any order. */
int flight_end(struct flight *f, char *err, size_t errlen);
/* After flight_end said 0: [n_logits][n_vocab] of a row in host memory, valid until the release; NULL when it
 * wanted none. Those of a row that asked for the best alone may have to be fetched, which waits for what the
 * device is doing; NULL when it failed. */
const float *flight_logits(struct flight *f, uint32_t row);
/* What is known here of the row's i-th logits, which stayed on a device; valid until the release. False where
 * they did not: flight_logits has them. */
bool flight_best(const struct flight *f, uint32_t row, uint32_t i, struct sampler_best *ret_best);
/* How long stages computed on it, all together; waiting does not count. */
uint64_t flight_ns(const struct flight *f);
/* Ends it if that was not done, and takes it back; NULL is fine. */
void flight_release(struct flight *f);

/* A window from begin to end, alone: as engine_begin and flight_end together. */
int engine_window(struct engine *e, struct engine_row *rows, uint32_t n_rows, char *err, size_t errlen);
