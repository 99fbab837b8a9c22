/* Cuda blas: the one product that NVIDIA's cuBLAS does for us, halves in and sums in float, for large chunks
 * when results need not be the same bits for every chunk size.
 *
 * The library is opened when the first handle is made: a program that never asks runs where there is none.
 * Its sums are in an order of its own. Private to kernels/. Tests: tests/cudahost/test_blas.cpp */
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_blas;

/* For the current device; work goes to the stream. -ENOENT when there is no library, -EIO when it does not
 * start; the text says which were tried or what it answered. */
int cuda_blas_open(cudaStream_t stream, struct cuda_blas **ret_blas, char *err, size_t errlen);
void cuda_blas_close(struct cuda_blas *b);
/* out[i * stride + r] (= or +=) sum over c of x[i][c] * w[r][c]: n rows of x, `cols` halves each; w has
 * `rows` rows, at most stride. All three are aligned to 16 bytes and cols is a multiple of 8, so that the
 * tensor cores can be used. 0 or -EIO. */
int cuda_blas_product(struct cuda_blas *b, const __half *w, const __half *x, float *out, uint32_t rows,
                      uint32_t cols, uint32_t n, uint32_t stride, bool add, char *err, size_t errlen);
