/* cudahost: what is used of cuBLAS, as a library of its name that is opened as the real one is.
 *
 * Only the product that kernels/cuda_blas.cu asks for: halves, transposed A, float sums and results; anything
 * else is refused, as are operands that are not device memory, do not fit or are not aligned for tensor
 * cores. Sums are in double, an order of its own. Runs in its stream's turn. Tests: test_blas.cpp */
#include "host.h"

#include <cuda_fp16.h>
#include <new>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

struct cublasContext {
    cudaStream_t stream;
};

struct product {
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const __half *a, *b;
    float *c;
};

static bool fits(const char *what, const void *p, size_t count, size_t size)
{
    host_where w = host_find(p);
    if (w.place == PLACE_DEVICE && w.left >= count * size && (uintptr_t)p % 16 == 0)
        return true;
    host_say("cublasGemmEx: %s is %p (%s), %zu bytes are wanted there, aligned to 16", what, p,
             host_describe(p).c_str(), count * size);
    return false;
}

static void compute(const product &p)
{
    for (int j = 0; j < p.n; j++)
        for (int i = 0; i < p.m; i++) {
            double sum = 0;
            for (int l = 0; l < p.k; l++)
                sum += (double)__half2float(p.a[(size_t)i * p.lda + l]) *
                       __half2float(p.b[(size_t)j * p.ldb + l]);
            float *c = &p.c[(size_t)j * p.ldc + i];
            *c = (float)(p.alpha * sum) + (p.beta != 0 ? p.beta * *c : 0);
        }
}

extern "C" int cublasCreate_v2(cublasContext **ret)
{
    HOST_LOCKED;
    if (host_alive())
        return NOT_INITIALIZED;
    *ret = new cublasContext{ nullptr };
    return SUCCESS;
}

extern "C" int cublasDestroy_v2(cublasContext *h)
{
    delete h;
    return SUCCESS;
}

extern "C" int cublasSetStream_v2(cublasContext *h, cudaStream_t s)
{
    h->stream = s;
    return SUCCESS;
}

extern "C" const char *cublasGetStatusString(int status)
{
    return status == SUCCESS            ? "CUBLAS_STATUS_SUCCESS"
           : status == NOT_INITIALIZED  ? "CUBLAS_STATUS_NOT_INITIALIZED"
           : status == INVALID_VALUE    ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                        : "CUBLAS_STATUS_NOT_SUPPORTED";
}

extern "C" int cublasGemmEx(cublasContext *h, int op_a, int op_b, int m, int n, int k, const void *alpha,
                            const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
                            const void *beta, void *c, int type_c, int ldc, int compute_type, int algorithm)
{
    HOST_LOCKED;
    if (op_a != 1 || op_b != 0 || type_a != 2 || type_b != 2 || type_c != 0 || compute_type != 68 ||
        algorithm != -1)
        return NOT_SUPPORTED;
    if (m < 1 || n < 1 || k < 1 || lda < k || ldb < k || ldc < m)
        return INVALID_VALUE;
    if (!fits("A", a, (size_t)(m - 1) * lda + k, 2) || !fits("B", b, (size_t)(n - 1) * ldb + k, 2) ||
        !fits("C", c, (size_t)(n - 1) * ldc + m, 4))
        return EXECUTION_FAILED;
    product p = { m,
                  n,
                  k,
                  lda,
                  ldb,
                  ldc,
                  *(const float *)alpha,
                  *(const float *)beta,
                  (const __half *)a,
                  (const __half *)b,
                  (float *)c };
    return host_give(h->stream, [p] { compute(p); }) ? EXECUTION_FAILED : SUCCESS;
}
