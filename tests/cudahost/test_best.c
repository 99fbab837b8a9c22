/* The best of logits on the emulated device: what core/model/ranking.c says of the same logits on the host,
 * the sums bit by bit. */
#include "cudahost.h"
#include "kernels/matmul_case.h"
#include "model/ranking.h"

#include <criterion/criterion.h>

static struct ops_dev *open_device(void)
{
    const struct ops_open how = { .threads = 1 };
    struct ops_dev *d;
    char err[256] = "";
    cr_assert_eq(ops_cuda.open(&how, &d, err, sizeof err), 0, "%s", err);
    return d;
}

/* One row: ties, signed zeros, what is no number. */
static void fill(struct rng *r, float *x, uint32_t n, int kind)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = kind == 1 ? roundf(rng_normal(r) * 2) : kind == 2 ? 0.0f * rng_normal(r) : 9 * rng_normal(r);
    for (uint32_t i = 0; kind == 3 && i < n; i++)
        x[i] = rng_range(r, 0, 2) ? rng_range(r, 0, 1) ? -INFINITY : NAN : x[i];
}

static void check_row(const float *x, uint32_t n, float scale, const struct ops_best *got)
{
    struct ranking r;
    uint32_t sorted;
    cr_assert_eq(ranking_init(&r, n), 0);
    ranking_begin(&r, x);
    cr_assert_eq(got->n, n < OPS_BEST ? n : OPS_BEST);
    cr_assert_eq(got->max, r.max, "%g, %g is wanted", (double)got->max, (double)r.max);
    ranking_sort(&r, got->n, &sorted);
    for (uint32_t i = 0; i < got->n; i++) {
        cr_assert_eq(got->id[i], ranking_id(&r, i), "place %u of %u", i, n);
        cr_assert_eq(memcmp(&got->logit[i], &x[got->id[i]], sizeof *x), 0);
    }
    for (int j = 0; j < 2; j++) {
        double want = ranking_sum(&r, j ? scale : 1);
        cr_assert_eq(memcmp(&got->sum[j], &want, sizeof want), 0, "sum %d of %u: %a, %a is wanted", j, n,
                     got->sum[j], want);
    }
    ranking_free(&r);
}

Test(best, is_what_the_host_ranks)
{
    static const uint32_t lengths[] = { 1, 7, 16, 255, 257, 1023, 1040, 2500, 70001 };
    enum { ROWS = 4 };
    struct rng r = { 11 };
    char err[256] = "";
    cudahost_reset(1, (size_t)64 << 20);
    struct ops_dev *d = open_device();
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const uint32_t n = lengths[k], rows = n > 5000 ? 2 : ROWS;
        const float scales[ROWS] = { 1, 1.4285715f, 0.5f, 1e30f };
        float *x = malloc((size_t)rows * n * sizeof *x),
              *there = ops_cuda.alloc(d, (size_t)rows * n * sizeof *x);
        struct ops_best *best = malloc(rows * sizeof *best);
        cr_assert(x && there && best);
        for (uint32_t i = 0; i < rows; i++)
            fill(&r, x + (size_t)i * n, n, (int)((i + k) % 4));
        ops_cuda.upload(d, there, x, (size_t)rows * n * sizeof *x);
        ops_cuda.best(d, there, rows, n, scales, best);
        cr_assert_eq(ops_cuda.sync(d, err, sizeof err), 0, "%s", err);
        for (uint32_t i = 0; i < rows; i++)
            check_row(x + (size_t)i * n, n, scales[i], &best[i]);
        ops_cuda.release(d, there);
        free(best);
        free(x);
    }
    ops_cuda.close(d);
}

Test(best, of_an_infinite_logit_is_said)
{
    enum { N = 40 };
    float x[N] = { [7] = INFINITY, [9] = INFINITY, [11] = NAN };
    const float scale = 1;
    struct ops_best best;
    char err[256] = "";
    cudahost_reset(1, (size_t)64 << 20);
    struct ops_dev *d = open_device();
    float *there = ops_cuda.alloc(d, sizeof x);
    ops_cuda.upload(d, there, x, sizeof x);
    ops_cuda.best(d, there, 1, N, &scale, &best);
    cr_assert_eq(ops_cuda.sync(d, err, sizeof err), 0, "%s", err);
    cr_expect_eq(best.max, INFINITY);
    cr_expect(best.id[0] == 7 && best.id[1] == 9 && best.id[2] == 0 && best.id[N - 1] == 11);
    ops_cuda.release(d, there);
    ops_cuda.close(d);
}
