/* How fast attention is on this machine: bench_attention [threads] [isa ...]
 * The shape is SmolLM2-135M's: 9 heads over 3 KV heads of 64, f16. One layer is run again and again over 30
 * layers of memory, as a model would. CPU time, of all threads together, means something on a busy machine
 * too. Not a test. */
#include "attention_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAYERS 30u

static double now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A window of n tokens at `depth`, all layers, several times. */
static void measure(struct world *w, const char *isa, const uint32_t *blocks, uint32_t depth, uint32_t n)
{
    enum { ROUNDS = 9 };
    const uint32_t kv = w->shape.kv_heads * w->shape.head_dim, all = kv * w->shape.ratio;
    float *q = malloc(n * all * sizeof *q), *out = malloc(n * all * sizeof *out),
          *k = malloc(n * kv * sizeof *k);
    float *rope = malloc(n * 32 * sizeof *rope);
    if (!q || !out || !k || !rope)
        abort();
    for (uint32_t i = 0; i < n * all; i++)
        q[i] = (float)(i % 17) * 0.01f - 0.08f;
    for (uint32_t i = 0; i < n * kv; i++)
        k[i] = (float)(i % 13) * 0.01f - 0.06f;
    for (uint32_t i = 0; i < n * 32; i++)
        rope[i] = 0.7071f;
    struct ops_row row = { .first = 0, .n = n, .pos = depth, .blocks = blocks };
    struct ops_attention a = { .kv = w->kv,
                               .rows = &row,
                               .n_rows = 1,
                               .n_tokens = n,
                               .heads = 9,
                               .q = q,
                               .k = k,
                               .v = k,
                               .out = out,
                               .scale = 0.125f };
    a.rope_cos = a.rope_sin = rope;
    a.rope_dims = 64;

    double us[ROUNDS], cpu[ROUNDS], flop = 4.0 * 64 * 9 * n * (depth + (n + 1) / 2.0);
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_us(CLOCK_MONOTONIC), cpu_start = now_us(CLOCK_PROCESS_CPUTIME_ID);
        for (a.layer = 0; a.layer < LAYERS; a.layer++)
            w->ops->attention(w->dev, &a);
        us[round] = now_us(CLOCK_MONOTONIC) - start;
        cpu[round] = now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
    }
    qsort(us, ROUNDS, sizeof *us, by_value);
    qsort(cpu, ROUNDS, sizeof *cpu, by_value);
    double read = (double)(depth + n) * kv * 2 * 2;
    printf("%-9s %4u tokens at %5u: best %9.1f us, median %9.1f us a layer, %6.1f GFLOPS, %5.1f GB/s of KV; "
           "CPU time %9.1f us, %6.1f GFLOPS\n",
           isa, n, depth, us[0] / LAYERS, us[ROUNDS / 2] / LAYERS, flop / (us[0] / LAYERS) / 1e3,
           read / (us[0] / LAYERS) / 1e3, cpu[0] / LAYERS, flop / (cpu[0] / LAYERS) / 1e3);
    free(q);
    free(out);
    free(k);
    free(rope);
}

int main(int argc, char **argv)
{
    static const uint32_t cases[][2] = { { 32, 1 },   { 500, 1 }, { 5000, 1 },   { 36000, 1 },
                                         { 5000, 8 }, { 0, 512 }, { 4600, 512 }, { 4600, 64 } };
    static const char *const all[] = { "avx512", "avx2", "portable" };
    const uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    const struct shape shape = {
        .kv_heads = 3, .ratio = 3, .head_dim = 64, .type = OPS_KV_F16, .rope_dims = 64, .loud = 1
    };
    static uint32_t blocks[1024];
    for (uint32_t i = 0; i < 1024; i++)
        blocks[i] = i;
    for (int i = 0; i < (argc > 2 ? argc - 2 : 3); i++) {
        const char *isa = argc > 2 ? argv[i + 2] : all[i];
        struct ops_open how = { .isa = isa, .threads = threads };
        struct ops_kv_shape kv = {
            .layers = LAYERS, .heads = 3, .head_dim = 64, .blocks = 600, .type = OPS_KV_F16
        };
        struct world w = { .ops = &ops_cpu, .shape = shape, .layers = LAYERS };
        char err[200];
        if (ops_cpu.open(&how, &w.dev, err, sizeof err) < 0 ||
            ops_cpu.kv_new(w.dev, &kv, &w.kv, err, sizeof err) < 0) {
            printf("%s: %s\n", isa, err);
            continue;
        }
        memset(w.kv->base, 0x11, w.kv->mapped); /* small finite numbers */
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            measure(&w, isa, blocks, cases[c][0], cases[c][1]);
        world_close(&w);
    }
    return 0;
}
