/* Ops arguments: the shapes of ops.h: what a device is opened with, weights, KV pools, products, attention.
 * Types alone: nothing here runs. Pointers to float are device memory; all else is the host's. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPS_BLOCK_TOKENS 64u /* tokens per KV block */
#define OPS_MAX_OUT 3u       /* matrices that may share one input (q, k, v) */

struct ops_dev;    /* a device */
struct ops_weight; /* a matrix in the device's layout */
struct ops_kv;     /* a pool of KV blocks for a range of layers */

/* What activations are when quantized weights are multiplied with them; float weights take floats. */
enum ops_activations {
    OPS_INT8,  /* 32 numbers are whole multiples, -127..127, of a 127th of the largest */
    OPS_INT16, /* so is what that leaves of them, in products of its own that are added last */
    OPS_F32    /* as they are: slow, for tests and doubts */
};

struct ops_open {
    const char *isa;  /* CPU: "auto", "avx512", ...; an unknown or unavailable one is an error */
    uint32_t threads; /* CPU: 1..256, the calling thread included */
    /* CUDA: device `part`, modulo their number. CPU: which of `parts` equal parts of the processors the
     * calling thread and the device's own keep to; 0 or 1 part, or more than processors: to none in
     * particular. */
    uint32_t part, parts;
    bool any_order; /* CUDA: cuBLAS may sum large chunks, in an order of its own */
    enum ops_activations activations;
};

struct ops_tensor {
    uint32_t type;    /* a GGUF type number this build reads (quant.h) */
    uint64_t rows;    /* outputs */
    uint64_t cols;    /* inputs; a multiple of the type's block */
    const void *data; /* row after row in the file's layout, aligned or not; may be released after the call */
};

/* Q8_0: each head's vector of a token by itself, in blocks of 32 as quant.h has them. */
enum ops_kv_type { OPS_KV_F16, OPS_KV_F32, OPS_KV_Q8_0 };

struct ops_kv_shape {
    uint32_t layers, heads, head_dim; /* KV heads */
    uint32_t blocks;                  /* in the pool */
    enum ops_kv_type type;
};

/* What is done to an input row before it is multiplied. */
enum ops_prepare {
    OPS_PLAIN,    /* x */
    OPS_RMS_NORM, /* x[i] * norm[i] / sqrt(mean(x^2) + eps) */
    OPS_SWIGLU,   /* silu(x[i]) * x2[i],  silu(g) = g / (1 + exp(-g)) */
    OPS_GEGLU,    /* gelu(x[i]) * x2[i],  gelu(g) = g / (1 + exp(-2 sqrt(2/pi) (g + 0.044715 g^3))): the tanh
                     form */
};

/* out[j] (= or +=) weight[j] * prepare(x) + bias[j]: n rows of x, each `cols` floats, rows one after another;
 * out[j] has n rows of weight[j]'s rows. All weights have the same cols and share the prepared (and, for
 * quantized types, once quantized) rows. */
struct ops_matmul {
    enum ops_prepare prepare;
    const float *x, *x2, *norm;
    float eps;
    uint32_t n, count; /* count: 1..OPS_MAX_OUT */
    const struct ops_weight *weight[OPS_MAX_OUT];
    const float *bias[OPS_MAX_OUT]; /* one for each row of the weight, added to the whole sum; NULL: none */
    float *out[OPS_MAX_OUT];
    bool add; /* out += : the residual. Each element gets one float addition, after its sum and bias */
};

/* Consecutive tokens of one sequence in a window. */
struct ops_row {
    uint32_t first;         /* index of its first token in the window's token-major arrays */
    uint32_t n;             /* tokens, >= 1 */
    uint32_t pos;           /* absolute position of the first */
    const uint32_t *blocks; /* block blocks[p / 64] holds position p; covers pos + n positions. Host memory */
};

struct ops_attention {
    struct ops_kv *kv;
    uint32_t layer;
    const struct ops_row *rows; /* host memory */
    uint32_t n_rows, n_tokens;  /* n_tokens = sum of rows[].n */
    uint32_t heads; /* query heads, a multiple of the KV heads; query head h reads KV head h / (heads / kv
                       heads) */
    float *q;       /* [token][heads][head_dim]: normed and rotated in place */
    float *k;       /* [token][kv heads][head_dim]: normed and rotated in place, then stored */
    const float *v; /* stored */
    float *out;     /* [token][heads][head_dim] */
    float scale;    /* of q.k, usually 1/sqrt(head_dim) */
    const float *rope_cos, *rope_sin; /* [token][rope_dims/2] */
    uint32_t rope_dims;               /* rotated dimensions of each head; 0: none */
    bool rope_halves;                 /* pairs (i, i + rope_dims/2) instead of (2i, 2i+1) */
    /* [head_dim], the OPS_RMS_NORM of each head before it is rotated; NULL: none. */
    const float *q_norm, *k_norm;
    float norm_eps;
    uint32_t window; /* a position sees itself and the window - 1 before it; 0: all before it */
};
