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
#include "ops_args.h"
#include "ops_best.h"

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

    /* out[i] = scale * row ids[i] of the embedding; ids in host memory, 0 <= id < rows. */
    void (*embed)(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float scale,
                  float *out);
    void (*matmul)(struct ops_dev *d, const struct ops_matmul *m);
    /* Norms and rotates q and k, stores k and v at their positions, then out = softmax(scale q.k over the
     * positions it sees) v. */
    void (*attention)(struct ops_dev *d, const struct ops_attention *a);
    /* out[i] = row idx[i] of x, rows of `cols` floats; idx in host memory. */
    void (*gather)(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols,
                   float *out);
    /* out += the norm of OPS_RMS_NORM of x: n rows of `cols` floats, x and out apart. Each element gets one
     * float addition. */
    void (*norm_add)(struct ops_dev *d, const float *x, const float *norm, float eps, uint32_t n,
                     uint32_t cols, float *out);
    /* The best of each of n rows of `cols` logits; scale[n], 0 < scale < infinity, and ret[n] in host memory,
     * filled when it returns. The sums are those of core/model/ranking.c bit by bit. NULL where plain_memory
     * says that the logits can be read where they are. */
    void (*best)(struct ops_dev *d, const float *logits, uint32_t n, uint32_t cols, const float *scale,
                 struct ops_best *ret);
};

extern const struct ops ops_cpu;
/* At NULL in a build without CUDA; open() fails with -ENODEV where there is no device. */
extern const struct ops ops_cuda __attribute__((weak));
/* The reference, for tests: plain loops, sums in double, weights dequantized; ignores isa and threads. */
extern const struct ops ops_ref;
