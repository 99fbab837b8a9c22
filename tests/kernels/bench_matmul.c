/* Bench matmul: how fast products are, per shape and instruction set: least and middle time of some rounds,
 * the operations (two per weight and row) and the weight bytes that go by in a second. bench_matmul
 * [isa[,isa]] [threads] [rounds] Weights are cycled through copies that together are larger than the
 * second-level cache, as a model's layers are. */
#include "matmul_case.h"

#include <time.h>

#define COPY_BYTES (24u << 20)
#define COPIES_MOST 64

struct shape {
    const char *name;
    enum ops_prepare prepare;
    bool add;
    uint32_t cols, count, rows[OPS_MAX_OUT], type;
};

/* SmolLM2-135M's products, and one of a larger model. */
static const struct shape shapes[] = {
    { "qkv   norm q4_1", OPS_RMS_NORM, false, 576, 3, { 576, 192, 192 }, QUANT_Q4_1 },
    { "out        q4_1", OPS_PLAIN, true, 576, 1, { 576 }, QUANT_Q4_1 },
    { "gate+up nm q4_1", OPS_RMS_NORM, false, 576, 2, { 1536, 1536 }, QUANT_Q4_1 },
    { "down  gate q4_1", OPS_SWIGLU, true, 1536, 1, { 576 }, QUANT_Q4_1 },
    { "logits nrm q8_0", OPS_RMS_NORM, false, 576, 1, { 49152 }, QUANT_Q8_0 },
    { "4096 sq    q4_0", OPS_PLAIN, false, 4096, 1, { 4096 }, QUANT_Q4_0 },
    { "2048 sq    q5_0", OPS_PLAIN, false, 2048, 1, { 2048 }, QUANT_Q5_0 },
    { "2048 sq    q5_1", OPS_PLAIN, false, 2048, 1, { 2048 }, QUANT_Q5_1 },
    { "2048 sq    q4_k", OPS_PLAIN, false, 2048, 1, { 2048 }, QUANT_Q4_K },
    { "2048 sq    q5_k", OPS_PLAIN, false, 2048, 1, { 2048 }, QUANT_Q5_K },
    { "2048 sq    q6_k", OPS_PLAIN, false, 2048, 1, { 2048 }, QUANT_Q6_K },
    { "2048 sq    f16 ", OPS_PLAIN, false, 2048, 1, { 2048 }, QUANT_F16 },
};

/* One thread is measured by its own processor time, which others on the machine disturb less. */
static double now(uint32_t threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct bench {
    struct dut d;
    struct ops_weight *w[COPIES_MOST][OPS_MAX_OUT];
    uint32_t threads;
    int copies, at;
    size_t weight_bytes;
    double work; /* weights */
    struct ops_matmul m;
};

static void setup(struct bench *b, const struct shape *s, uint32_t most)
{
    struct rng r = { 1 };
    char err[200] = "";
    struct product_case c = { .n = most, .cols = s->cols, .count = s->count };
    b->m = (struct ops_matmul){ .prepare = s->prepare, .eps = 1e-5f, .count = s->count, .add = s->add };
    b->weight_bytes = 0;
    b->work = 0;
    for (uint32_t j = 0; j < s->count; j++) {
        c.type[j] = s->type;
        c.rows[j] = s->rows[j];
        b->work += (double)s->rows[j] * s->cols;
    }
    case_fill(&r, &c, SCALES_USUAL);
    for (b->copies = 0; b->copies < COPIES_MOST && b->weight_bytes * (size_t)b->copies < COPY_BYTES;
         b->copies++) {
        b->weight_bytes = 0;
        for (uint32_t j = 0; j < s->count; j++) {
            struct ops_tensor t = { c.type[j], c.rows[j], c.cols, c.weight[j] };
            if (b->d.ops->weight_new(b->d.dev, &t, &b->w[b->copies][j], err, sizeof err) < 0) {
                fprintf(stderr, "%s\n", err);
                exit(1);
            }
            b->weight_bytes += b->d.ops->weight_bytes(b->w[b->copies][j]);
        }
    }
    b->m.x = dut_upload(&b->d, c.x, (size_t)most * s->cols);
    b->m.x2 = dut_upload(&b->d, c.x2, (size_t)most * s->cols);
    b->m.norm = dut_upload(&b->d, c.norm, s->cols);
    for (uint32_t j = 0; j < s->count; j++)
        b->m.out[j] = dut_upload(&b->d, c.start[j], (size_t)most * s->rows[j]);
    case_free(&c);
}

static void teardown(struct bench *b)
{
    for (int i = 0; i < b->copies; i++)
        for (uint32_t j = 0; j < b->m.count; j++)
            b->d.ops->weight_free(b->w[i][j]);
    for (uint32_t j = 0; j < b->m.count; j++)
        b->d.ops->release(b->d.dev, b->m.out[j]);
    b->d.ops->release(b->d.dev, (void *)(uintptr_t)b->m.x);
    b->d.ops->release(b->d.dev, (void *)(uintptr_t)b->m.x2);
    b->d.ops->release(b->d.dev, (void *)(uintptr_t)b->m.norm);
}

/* Seconds of one product with n rows: as many as take about 10 ms, per round. */
static void measure(struct bench *b, uint32_t n, double *times, int rounds)
{
    int each = 1;
    b->m.n = n;
    for (int round = -2; round < rounds; round++) {
        double start = now(b->threads);
        for (int i = 0; i < each; i++) {
            b->at = (b->at + 1) % b->copies;
            for (uint32_t j = 0; j < b->m.count; j++)
                b->m.weight[j] = b->w[b->at][j];
            b->d.ops->matmul(b->d.dev, &b->m);
        }
        double took = (now(b->threads) - start) / each;
        if (round < 0)
            each = took > 0.01 ? 1 : 1 + (int)(0.01 / took);
        else
            times[round] = took;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_size);
}

static void bench_isa(const char *isa, uint32_t threads, int rounds)
{
    static const uint32_t n[] = { 1, 2, 4, 8, 16, 64, 512 };
    double *times = malloc((size_t)rounds * sizeof *times);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct bench b = { .threads = threads };
        if (!dut_open(&b.d, isa, threads, OPS_INT8)) {
            printf("%s: not on this machine\n", isa);
            break;
        }
        setup(&b, &shapes[s], 512);
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            if (b.work * n[i] > 4e9)
                continue;
            measure(&b, n[i], times, rounds);
            double least = times[0], middle = times[rounds / 2];
            printf("%-8s %s  n %3u  least %9.1f us  middle %9.1f us  %7.1f GOPS  %6.1f GB/s\n", isa,
                   shapes[s].name, n[i], 1e6 * least, 1e6 * middle, 2e-9 * b.work * n[i] / middle,
                   1e-9 * (double)b.weight_bytes / middle);
        }
        teardown(&b);
        dut_close(&b.d);
    }
    free(times);
}

int main(int argc, char **argv)
{
    char all[] = "amx,avx512,avx2,portable", *list = argc > 1 ? argv[1] : all;
    uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 2;
    int rounds = argc > 3 ? atoi(argv[3]) : 9;
    if (threads < 1 || rounds < 1) {
        fprintf(stderr, "usage: bench_matmul [isa[,isa]] [threads] [rounds]\n");
        return 2;
    }
    for (char *isa = strtok(list, ","); isa; isa = strtok(NULL, ","))
        bench_isa(isa, threads, rounds);
    return 0;
}
