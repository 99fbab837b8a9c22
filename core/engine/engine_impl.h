/* Engine, inside: what engine.c (opening, the book of blocks), load.c (weights, timing), stage.c (a stage's
 * thread and layers), flight.c (windows), balance.c (who gets which layers), session.c (blocks) and
 * session_io.c (their bytes) share. Tests may include it to run the engine on a device of their own; nobody
 * else does.
 *
 * Lock: `engine.lock` guards the stages' orders and queues, the list of finished flights and the watcher; a
 * flight and a device belong to one thread at a time and change hands under it. Whatever finished() locks
 * comes after it. The book of blocks and the sessions are the scheduler's alone. */
#pragma once
#include "engine/engine.h"
#include "engine/memory.h"
#include <pthread.h>

/* The KV pool's book: who holds which block is only counted; the numbers are the same in every stage's pool.
 */
struct pool {
    uint32_t n_blocks, n_free, n_flying;
    uint32_t *refs; /* holders of each block */
    uint32_t *free; /* a stack: the block freed last is used next, its memory being touched already */
};

/* A row of a flight. The blocks it will hold are in the flight's own list, so that the session's stays as it
 * is: those before `kept` are the session's, the others were taken for the flight. */
struct flight_row {
    struct session *session;
    uint32_t len, n_blocks; /* after the window */
    uint32_t at;            /* of its first block in flight.blocks */
    uint32_t kept;
    uint32_t copy_from, copy_tokens; /* into the first one taken: the last block was shared; 0: it was not */
    uint32_t n_logits;
    bool best;
};

enum flight_state { FLIGHT_IDLE, FLIGHT_UNDER_WAY, FLIGHT_FINISHED, FLIGHT_ENDED };

struct flight {
    struct engine *engine;
    struct flight *next;     /* in a stage's queue, in the list of finished ones, or among the idle */
    enum flight_state state; /* under the lock */
    bool taken;              /* out of the list of finished ones */
    int result;
    uint64_t ns;
    char err[256];

    int32_t *ids;     /* [max_tokens] */
    uint32_t *wanted; /* [max_tokens]: tokens whose logits are wanted */
    /* [max_tokens][rope_dims / 2], before they are sent to a device */
    float *cos[ENGINE_MAX_ROPES], *sin[ENGINE_MAX_ROPES];
    struct ops_row *ops;     /* [max_rows] */
    struct flight_row *rows; /* [max_rows] */
    float *x;                /* [max_tokens][n_embd]: the residual stream between stages; NULL with one */
    uint32_t *blocks;        /* of all rows */
    uint32_t blocks_cap;
    uint32_t n_rows, n_tokens, n_wanted, logits_rows;
    float *logits;         /* [logits_rows][n_vocab], the last stage's device memory, grown by it */
    float *host_logits;    /* the same where the host cannot read that; else NULL */
    struct ops_best *best; /* [logits_rows] beside it, filled when has_best */
    float *scale;          /* [max_tokens]: of the best of those wanted */
    bool has_best;
};

struct flight_list {
    struct flight *first, *last;
};

struct stage;
typedef int stage_fn(struct stage *st, void *arg, char *err, size_t errlen);

struct order { /* to be done on a stage's thread while somebody waits for it */
    stage_fn *fn;
    void *arg;
    char *err;
    size_t errlen;
    int result;
    bool done;
};

struct stage {
    struct engine *engine;
    uint32_t index, threads;
    uint32_t first, n_layers;
    struct ops_dev *dev;
    struct ops_kv *kv;
    char device[160];
    struct scratch scratch;
    struct ops_weight *token_embd, *output; /* of the first and of the last; one and the same in one tied */
    float *output_norm;
    size_t weight_bytes;

    bool has_thread; /* false: the caller's thread drives it */
    pthread_t thread;
    pthread_cond_t changed;
    struct order *order;
    struct flight_list queue;
    bool quit;
};

struct engine {
    const struct ops *ops;
    uint32_t n_layers, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, rope_dims;
    bool rope_halves;
    float rms_eps, embd_scale, attn_scale;
    enum ops_prepare gate;
    uint32_t window; /* of layers that have one */
    bool *windowed;  /* [n_layers] */
    bool post_norms;
    uint32_t n_ropes;
    struct {
        double *frequency; /* [rope_dims / 2]: radians per position */
        double magnitude;  /* of cosines and sines */
    } ropes[ENGINE_MAX_ROPES];
    uint32_t max_rows, max_tokens;
    struct layer_weights *layers; /* each in the memory of its stage's device */
    size_t kv_bytes;
    enum ops_kv_type kv_type;
    enum ops_activations activations;
    struct pool pool;
    struct flight *idle; /* released, to be used again */
    uint32_t n_open;     /* flights begun and not released */

    uint32_t n_stages;
    struct stage *stages;
    struct engine_stage_info *infos;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* an order was done, a flight finished */
    struct flight_list finished;
    uint32_t under_way;
    void (*on_finished)(void *arg);
    void *on_finished_arg;
};

struct session {
    struct engine *engine;
    uint32_t *blocks;
    uint32_t n_blocks, cap;
    uint32_t len;
    bool in_flight;
};

/* engine_open on a given table of operations; o->isa is passed on to it. */
int engine_open_on(const struct ops *ops, const struct gguf *f, const struct model *m,
                   const struct engine_options *o, void (*progress)(void *arg, uint64_t done, uint64_t total),
                   void *arg, struct engine **ret_engine, char *err, size_t errlen);
int engine_no_memory(const char *what, size_t wanted, char *err, size_t errlen); /* -ENOMEM */
/* The same of the stage's device. */
int stage_no_memory(const struct stage *st, const char *what, size_t wanted, char *err, size_t errlen);
/* A KV type's name, and the bytes of one head's vector of a token, 0 where it cannot be kept so. */
const char *engine_kv_name(enum ops_kv_type type);
size_t engine_kv_head_bytes(enum ops_kv_type type, uint32_t head_dim);
