/* Gpu speed: how fast the kernels that matter are on a CUDA device, each by itself, for tests/gpu/run: a JSON
 * object a line, with seconds of one operation and what it reads and computes. "small" as the only argument:
 * sizes for the emulator, to see that it counts right. */
#include "kernels/matmul_case.h"

#include <time.h>

#define ROUNDS 7

static uint32_t by = 1; /* sizes are divided by it */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void stop(const char *why)
{
    printf("{\"what\": \"speed\", \"why\": \"%s\"}\n", why);
    exit(1);
}

struct device {
    const struct ops *ops;
    struct ops_dev *dev;
};

static bool device_open(struct device *d, bool any_order, const char *what)
{
    const struct ops_open how = { .any_order = any_order };
    char err[300] = "this build has no CUDA";
    d->ops = &ops_cuda;
    if (d->ops && d->ops->open(&how, &d->dev, err, sizeof err) == 0)
        return true;
    printf("{\"what\": \"%s\", \"why\": \"%s\"}\n", what, err);
    return false;
}

static void finish(const struct device *d)
{
    char err[300];
    if (d->ops->sync(d->dev, err, sizeof err) < 0)
        stop(err);
}

/* One operation of the device, queued again and again: about 10 ms a round, and then waited for. */
static void measure(const struct device *d, const char *what, void (*queue)(const struct device *d, void *),
                    void *arg, double bytes, double operations)
{
    double times[ROUNDS];
    int each = 1;
    for (int round = -2; round < ROUNDS; round++) {
        double start = now();
        for (int i = 0; i < each; i++)
            queue(d, arg);
        finish(d);
        const double took = (now() - start) / each;
        if (round < 0)
            each = took > 0.01 || by > 1 ? 1 : 1 + (int)(0.01 / took);
        else
            times[round] = took;
    }
    qsort(times, ROUNDS, sizeof *times, by_size);
    printf("{\"what\": \"%s\", \"least\": %.9f, \"median\": %.9f, \"most\": %.9f, \"bytes\": %.0f, "
           "\"operations\": %.0f}\n",
           what, times[0], times[ROUNDS / 2], times[ROUNDS - 1], bytes, operations);
}

static void *device_memory(const struct device *d, size_t bytes)
{
    void *at = d->ops->alloc(d->dev, bytes);
    if (!at)
        stop("out of memory");
    return at;
}

static void queue_product(const struct device *d, void *arg)
{
    d->ops->matmul(d->dev, arg);
}

/* n rows by a matrix. */
static void product(const struct device *d, const char *kind, uint32_t type, uint32_t rows, uint32_t cols,
                    uint32_t n)
{
    struct rng r = { type };
    struct ops_weight *w = NULL;
    char what[80], err[300];
    unsigned char *raw = case_weights(&r, type, rows, cols, SCALES_USUAL);
    float *x = case_floats(&r, (size_t)n * cols, 1), *out = device_memory(d, (size_t)n * rows * sizeof *out);
    float *from = device_memory(d, (size_t)n * cols * sizeof *x);
    const struct ops_tensor t = { type, rows, cols, raw };
    if (d->ops->weight_new(d->dev, &t, &w, err, sizeof err) < 0)
        stop(err);
    d->ops->upload(d->dev, from, x, (size_t)n * cols * sizeof *x);
    struct ops_matmul m = { .x = from, .n = n, .count = 1, .weight = { w }, .out = { out } };
    snprintf(what, sizeof what, "%s %s %ux%u, %u rows", kind, quant_info_find(type)->name, rows, cols, n);
    measure(d, what, queue_product, &m, (double)d->ops->weight_bytes(w), 2.0 * rows * cols * n);
    d->ops->weight_free(w);
    d->ops->release(d->dev, out);
    d->ops->release(d->dev, from);
    free(x);
    free(raw);
}

static struct ops_kv *pool(const struct device *d, const struct ops_kv_shape *shape)
{
    struct ops_kv *kv = NULL;
    char err[300];
    const size_t bytes = d->ops->kv_block_bytes(shape);
    void *cells = malloc(bytes);
    if (!cells || d->ops->kv_new(d->dev, shape, &kv, err, sizeof err) < 0)
        stop(cells ? err : "out of memory");
    memset(cells, 0x11, bytes); /* small numbers in every type */
    for (uint32_t b = 0; b < shape->blocks; b++)
        d->ops->kv_put(kv, b, OPS_BLOCK_TOKENS, cells);
    free(cells);
    return kv;
}

static void queue_attention(const struct device *d, void *arg)
{
    d->ops->attention(d->dev, arg);
}

/* A token after 32K others, 32 query heads on 8, in one layer. */
static void attention(const struct device *d, enum ops_kv_type type, const char *name)
{
    const uint32_t tokens = 32768 / by, heads = 32, kv_heads = 8, dim = 128;
    const struct ops_kv_shape shape = { 1, kv_heads, dim, tokens / OPS_BLOCK_TOKENS, type };
    uint32_t *blocks = calloc(shape.blocks, sizeof *blocks);
    struct ops_kv *kv = pool(d, &shape);
    float *memory = device_memory(d, 4 * (size_t)heads * dim * sizeof *memory);
    char what[80];
    if (!blocks)
        stop("out of memory");
    for (uint32_t b = 0; b < shape.blocks; b++)
        blocks[b] = b;
    struct ops_row row = { 0, 1, tokens - 1, blocks };
    struct ops_attention a = { .kv = kv,
                               .rows = &row,
                               .n_rows = 1,
                               .n_tokens = 1,
                               .heads = heads,
                               .q = memory,
                               .k = memory + heads * dim,
                               .v = memory + 2 * heads * dim,
                               .out = memory + 3 * heads * dim,
                               .scale = 0.09f };
    snprintf(what, sizeof what, "attention %s, %u tokens", name, tokens);
    measure(d, what, queue_attention, &a, (double)shape.blocks * (double)d->ops->kv_block_bytes(&shape),
            4.0 * heads * dim * tokens);
    d->ops->kv_free(kv);
    d->ops->release(d->dev, memory);
    free(blocks);
}

static void queue_copy(const struct device *d, void *arg)
{
    d->ops->kv_copy(arg, 1, 0, OPS_BLOCK_TOKENS - 1);
}

/* What a fork copies at most: the block that is shared in part, in 32 layers. */
static void fork_copy(const struct device *d)
{
    const struct ops_kv_shape shape = { 32 / by ? 32 / by : 1, 8, 128, 2, OPS_KV_F16 };
    struct ops_kv *kv = pool(d, &shape);
    measure(d, "fork", queue_copy, kv, 2 * (double)d->ops->kv_block_bytes(&shape), 0);
    d->ops->kv_free(kv);
}

int main(int argc, char **argv)
{
    static const uint32_t types[] = { QUANT_Q8_0, QUANT_Q4_0, QUANT_Q4_K, QUANT_Q6_K };
    struct device ours, blas;
    by = argc > 1 && strcmp(argv[1], "small") == 0 ? 64 : 1;
    if (!device_open(&ours, false, "speed"))
        return 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        product(&ours, "decode", types[i], 20480 / by, by > 1 ? 256 : 8192, 1);
        product(&ours, "decode", types[i], 20480 / by, by > 1 ? 256 : 8192, 8);
        product(&ours, "prompt", types[i], 4096 / by, by > 1 ? 256 : 4096, 512 / by);
    }
    attention(&ours, OPS_KV_F16, "f16");
    attention(&ours, OPS_KV_Q8_0, "q8_0");
    fork_copy(&ours);
    ours.ops->close(ours.dev);
    if (device_open(&blas, true, "cublas")) {
        product(&blas, "cublas", QUANT_Q8_0, 4096 / by, by > 1 ? 256 : 4096, by > 1 ? 64 : 512);
        blas.ops->close(blas.dev);
    }
    return 0;
}
