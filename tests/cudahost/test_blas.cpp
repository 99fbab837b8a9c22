/* kernels/cuda_blas.cu with a library that answers as cuBLAS does: the product, its order in the stream,
 * failures. */
#include "kernels/cuda_blas.cuh"
#include "testing.h"

#include <errno.h>
#include <stdlib.h>

enum { ROWS = 24, COLS = 40, N = 5 };

static std::vector<__half> halves(int n, int step)
{
    std::vector<__half> v((size_t)n);
    for (int i = 0; i < n; i++)
        v[(size_t)i] = __float2half((float)(i * step % 17 - 8) / 4);
    return v;
}

Test(blas, a_product_is_rows_by_rows)
{
    std::vector<__half> w = halves(ROWS * COLS, 5), x = halves(N * COLS, 3);
    std::vector<float> before(N * ROWS, 100);
    __half *dw = device(w), *dx = device(x);
    float *out = device<float>(N * ROWS), *sum = device(before);
    char err[400] = "";
    struct cuda_blas *b;
    cr_assert_eq(cuda_blas_open(nullptr, &b, err, sizeof err), 0, "%s", err);
    cr_assert_eq(cuda_blas_product(b, dw, dx, out, ROWS, COLS, N, ROWS, false, err, sizeof err), 0, "%s",
                 err);
    cr_assert_eq(cuda_blas_product(b, dw, dx, sum, ROWS, COLS, N, ROWS, true, err, sizeof err), 0, "%s", err);
    std::vector<float> got = host(out, N * ROWS), added = host(sum, N * ROWS);
    for (int i = 0; i < N; i++)
        for (int r = 0; r < ROWS; r++) {
            float want = 0; /* sixteenths below 2^24: exact in any order */
            for (int c = 0; c < COLS; c++)
                want += __half2float(x[(size_t)(i * COLS + c)]) * __half2float(w[(size_t)(r * COLS + c)]);
            cr_expect_eq(got[(size_t)(i * ROWS + r)], want);
            cr_expect_eq(added[(size_t)(i * ROWS + r)], 100 + want);
        }
    cuda_blas_close(b);
}

Test(blas, what_it_refuses_is_said)
{
    char err[400] = "";
    struct cuda_blas *b;
    cr_assert_eq(cuda_blas_open(nullptr, &b, err, sizeof err), 0, "%s", err);
    float *out = device<float>(N * ROWS);
    __half *w = device<__half>(ROWS * COLS), *x = device<__half>(N * COLS);
    cr_expect_eq(cuda_blas_product(b, w, x, out, ROWS, COLS, N + 1, ROWS, false, err, sizeof err), -EIO);
    cr_expect_str_eq(err, "cuBLAS: a product of 6 by 40 by 24: CUBLAS_STATUS_EXECUTION_FAILED");
    cr_expect_eq(cuda_blas_product(b, w + 1, x, out, ROWS, COLS - 1, N, ROWS, false, err, sizeof err), -EIO);
    cuda_blas_close(b);

    cudahost_lose_device(0);
    cr_expect_eq(cuda_blas_open(nullptr, &b, err, sizeof err), -EIO);
    cr_expect_str_eq(err, "cuBLAS does not start: CUBLAS_STATUS_NOT_INITIALIZED");
}
