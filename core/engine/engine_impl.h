/* Engine, inside: what engine.c (loading), session.c (blocks) and window.c (the step) share. Tests may
 * include it to run the engine on a device of their own; nobody else does. */
#pragma once
#include "engine/engine.h"
#include "kernels/ops.h"

#define ENGINE_NO_BLOCK UINT32_MAX

struct layer_weights {
    struct ops_weight *q, *k, *v, *o, *gate, *up, *down;
    float *attn_norm, *ffn_norm; /* device memory */
};

/* The KV pool's book: who holds which block is only counted; block numbers are indices into the device's
 * pool. */
struct pool {
    uint32_t n_blocks, n_free;
    uint32_t *refs; /* holders of each block */
    uint32_t *free; /* a stack: the block freed last is used next, its memory being touched already */
};

/* What a window did to one session, so that it can be undone. */
struct growth {
    uint32_t len, n_blocks; /* before */
    uint32_t copied_from;   /* the shared block it held at copied_at; ENGINE_NO_BLOCK: none was copied */
    uint32_t copied_at;     /* index in its block list */
};

/* Device memory of a window, token-major. */
struct scratch {
    float *x;         /* [max_tokens][n_embd]: the residual stream */
    float *picked;    /* [max_tokens][n_embd]: its rows that logits are wanted for */
    float *q, *att;   /* [max_tokens][n_head * head_dim] */
    float *k, *v;     /* [max_tokens][n_head_kv * head_dim] */
    float *gate, *up; /* [max_tokens][n_ff] */
    float *cos, *sin; /* [max_tokens][rope_dims / 2] */
    float *logits;    /* [logits_rows][n_vocab], grown when more are wanted than ever before */
    uint32_t logits_rows;
};

/* Host memory of a window. */
struct plan {
    int32_t *ids;          /* [max_tokens] */
    uint32_t *wanted;      /* [max_tokens]: tokens whose logits are wanted */
    float *cos, *sin;      /* [max_tokens][rope_dims / 2], before they are sent to the device */
    struct ops_row *rows;  /* [max_rows] */
    struct growth *growth; /* [max_rows] */
    uint32_t n_tokens, n_wanted;
};

struct engine {
    const struct ops *ops;
    struct ops_dev *dev;
    struct ops_kv *kv;
    char device[128];

    uint32_t n_layers, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, rope_dims;
    bool rope_halves;
    float rms_eps;
    double *rope_freq; /* [rope_dims / 2]: radians per position */
    uint32_t max_rows, max_tokens;

    struct ops_weight *token_embd, *output; /* the same one when tied */
    float *output_norm;
    struct layer_weights *layers;
    size_t weight_bytes, kv_bytes;

    struct pool pool;
    struct scratch scratch;
    struct plan plan;
};

struct session {
    struct engine *engine;
    uint32_t *blocks;
    uint32_t n_blocks, cap;
    uint32_t len;
};

/* engine_open on a given table of operations; o->isa is passed on to it. */
int engine_open_on(const struct ops *ops, const struct gguf *f, const struct model *m,
                   const struct engine_options *o, void (*progress)(void *arg, uint64_t done, uint64_t total),
                   void *arg, struct engine **ret_engine, char *err, size_t errlen);

/* Makes room for n more tokens at the end of s and moves its length there; what it did goes to *ret_growth.
 * -ENOSPC (pool) or -ENOMEM, and then nothing changed. A block copied on write stays counted until the end of
 * the window: its other holder, which may be shorter, would take it for its own alone and write into it, and
 * a window that then fails could not be taken back. */
int session_grow(struct session *s, uint32_t n, struct growth *ret_growth);
/* Queues the copy that a growth noted. */
void session_copy_shared(struct session *s, const struct growth *g);
/* One of these ends a growth: it stays, or is taken back (several in the opposite order). */
void session_grown(struct session *s, const struct growth *g);
void session_shrink_back(struct session *s, const struct growth *g);
