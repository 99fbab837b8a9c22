/* Attention case: sequences whose queries, keys and values follow from (seed, sequence, position) alone, so
 * that any way of cutting them into windows must give the same numbers; for test_attention.c and
 * bench_attention.c. */
#pragma once
#include "kernels/cpu_attention.h"
#include "kernels/ops.h"

struct shape {
    uint32_t kv_heads, ratio, head_dim;
    enum ops_kv_type type;
    uint32_t rope_dims;
    bool halves;
    float loud;      /* factor on the queries: large ones make one key win */
    uint32_t window; /* 0: none */
    bool normed;     /* queries and keys */
};

/* A device with one pool of blocks. */
struct world {
    const struct ops *ops;
    struct ops_dev *dev;
    struct ops_kv *kv;
    struct shape shape;
    uint32_t layers, blocks;
};

/* One sequence: its blocks, and what attention gave for each position so far. */
struct sequence {
    uint32_t seed;
    uint32_t n;        /* positions fed */
    uint32_t nan_from; /* keys and values from this position on are NaN; 0: none */
    uint32_t nan_to;   /* those before this position are */
    uint32_t blocks[1024];
    float *out, *q, *k; /* [position][heads or kv heads][head_dim] */
};

/* isa NULL: the reference; "cuda": a CUDA device. False when this machine has no such thing. All of the pool
 * is filled with NaN first. */
bool world_open(struct world *w, const struct shape *shape, const char *isa, uint32_t threads,
                uint32_t layers, uint32_t blocks);
void world_close(struct world *w);
/* The whole pool is NaN again. */
void world_spoil(struct world *w);
uint32_t world_heads(const struct world *w);

void sequence_init(struct sequence *s, const struct world *w, uint32_t seed, uint32_t positions);
void sequence_free(struct sequence *s);

/* One window: the next n[i] tokens of each sequence, in every layer. */
void feed(struct world *w, struct sequence *const *sequences, const uint32_t *n, uint32_t count);
/* Feeds a sequence alone, `chunk` tokens a window, until it has `positions`. */
void feed_alone(struct world *w, struct sequence *s, uint32_t positions, uint32_t chunk);
