/* Ops: the table of operations an engine runs on a device, CPU or CUDA: shapes in, numbers out.
 *
 * What it owns: device memory, weights in the device's own layout, KV blocks, the compute pool (CPU) or
 * stream (CUDA). Thread: one device is driven by one thread at a time, its stage thread; the pool's threads
 * are inside. Must not know: requests, sessions, model names, files.
 *
 * Exactness, which the whole engine relies on: every output element is summed in one fixed order that depends
 * on neither the number of rows, nor how rows are split into calls, nor the number of threads. AVX-512, AVX2
 * and CUDA give the same bits; the portable path agrees within tolerance. Positions a row must not see are
 * never multiplied (stale memory may be NaN).
 *
 * Pointers to float below are device memory from alloc(). Operations return at once and run in order; sync()
 * waits and reports the first failure. Shapes are the caller's duty: the engine checks them at load. Tests:
 * tests/kernels/ (against ref.c: the formulas here by plain loops and double sums) */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPS_BLOCK_TOKENS 64u /* tokens per KV block */
#define OPS_MAX_OUT 3u       /* matrices that may share one input (q, k, v) */

struct ops_dev;    /* a device */
struct ops_weight; /* a matrix in the device's layout */
struct ops_kv;     /* a pool of KV blocks for a range of layers */

struct ops_open {
    const char *isa;  /* CPU: "auto", "avx512", ...; an unknown or unavailable one is an error */
    uint32_t threads; /* CPU: 1..256, the calling thread included */
    /* CUDA: device `part`, modulo their number. CPU: which of `parts` equal parts of the processors the
     * calling thread and the device's own keep to; 0 or 1 part, or more than processors: to none in
     * particular. */
    uint32_t part, parts;
    bool f32_activations; /* quantized weights times float activations: slow, for tests and doubts */
};

struct ops_tensor {
    uint32_t type;    /* a GGUF type number this build reads (quant.h) */
    uint64_t rows;    /* outputs */
    uint64_t cols;    /* inputs; a multiple of the type's block */
    const void *data; /* row after row in the file's layout, aligned or not; may be released after the call */
};

enum ops_kv_type { OPS_KV_F16, OPS_KV_F32 };

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
};

/* out[j] (= or +=) weight[j] * prepare(x): n rows of x, each `cols` floats, rows one after another; out[j]
 * has n rows of weight[j]'s rows. All weights have the same cols and share the prepared (and, for quantized
 * types, once quantized) rows. */
struct ops_matmul {
    enum ops_prepare prepare;
    const float *x, *x2, *norm;
    float eps;
    uint32_t n, count; /* count: 1..OPS_MAX_OUT */
    const struct ops_weight *weight[OPS_MAX_OUT];
    float *out[OPS_MAX_OUT];
    bool add; /* out += : the residual. Each element gets one float addition, after its whole sum */
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
    float *q;       /* [token][heads][head_dim]: rotated in place */
    float *k;       /* [token][kv heads][head_dim]: rotated in place, then stored */
    const float *v; /* stored */
    float *out;     /* [token][heads][head_dim] */
    float scale;    /* of q.k, usually 1/sqrt(head_dim) */
    const float *rope_cos, *rope_sin; /* [token][rope_dims/2] */
    uint32_t rope_dims;               /* rotated dimensions of each head; 0: none */
    bool rope_halves;                 /* pairs (i, i + rope_dims/2) instead of (2i, 2i+1) */
};

struct ops {
    const char *name;  /* "cpu", "cuda" */
    bool plain_memory; /* what alloc() gives is anybody's to read and write: no upload or download needed */
    int (*open)(const struct ops_open *how, struct ops_dev **ret_dev, char *err, size_t errlen);
    void (*close)(struct ops_dev *d);
    /* What runs, "avx512 vnni, 2 threads", as long as the device lives. */
    const char *(*describe)(const struct ops_dev *d);
    const char *(*arithmetic)(const struct ops_dev *d); /* who answers the same computes the same bits */

    /* Zeroed, 64-byte aligned; NULL when there is none. */
    void *(*alloc)(struct ops_dev *d, size_t bytes);
    void (*release)(struct ops_dev *d, void *memory);
    size_t (*memory_free)(struct ops_dev *d); /* bytes that could still be had, about */
    /* Between host and device memory; on the CPU a copy. download waits for what was queued before it. */
    void (*upload)(struct ops_dev *d, void *to, const void *from, size_t bytes);
    void (*download)(struct ops_dev *d, void *to, const void *from, size_t bytes);
    /* Waits for everything queued. 0, or a negative errno with the first failure's text. */
    int (*sync)(struct ops_dev *d, char *err, size_t errlen);

    /* Repacks. -ENOTSUP for a type it does not read, -EINVAL for impossible shapes, -ENOMEM. */
    int (*weight_new)(struct ops_dev *d, const struct ops_tensor *t, struct ops_weight **ret_weight,
                      char *err, size_t errlen);
    void (*weight_free)(struct ops_weight *w);
    size_t (*weight_bytes)(const struct ops_weight *w);

    /* On the CPU address space, counted by the system as it is written; on CUDA had whole or not at all. */
    int (*kv_new)(struct ops_dev *d, const struct ops_kv_shape *shape, struct ops_kv **ret_kv, char *err,
                  size_t errlen);
    void (*kv_free)(struct ops_kv *kv);
    size_t (*kv_block_bytes)(const struct ops_kv_shape *shape); /* all layers, K and V */
    /* Copies the first `tokens` (1..64) positions of a block, all layers. */
    void (*kv_copy)(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens);
    /* Between the first `tokens` positions of a block and host memory, in one form on every device:
     * [layer][head][K, V][token][head_dim] in the pool's number type. [any thread, while operations run] as
     * long as none of them writes the positions that get reads, or touches those that put writes. */
    void (*kv_get)(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to);
    void (*kv_put)(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from);

    /* out[i] = row ids[i] of the embedding; ids in host memory, 0 <= id < rows. */
    void (*embed)(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float *out);
    void (*matmul)(struct ops_dev *d, const struct ops_matmul *m);
    /* Rotates q and k, stores k and v at their positions, then out = softmax(scale q.k over positions <= own)
     * v. */
    void (*attention)(struct ops_dev *d, const struct ops_attention *a);
    /* out[i] = row idx[i] of x, rows of `cols` floats; idx in host memory. */
    void (*gather)(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols,
                   float *out);
};

extern const struct ops ops_cpu;
/* At NULL in a build without CUDA; open() fails with -ENODEV where there is no device. */
extern const struct ops ops_cuda __attribute__((weak));
/* The reference, for tests: plain loops, sums in double, weights dequantized; ignores isa and threads. */
extern const struct ops ops_ref;
