/* Cuda large: products of large chunks by cuBLAS, halves in and sums in float, where the order of sums is
 * free (ops_open.any_order). Smaller ones stay with our kernels: their weights are read once as they lie, and
 * halves of them would be more to read.
 *
 * The one decision: weights become halves a tile of rows at a time, in memory that all products share, so
 * that a device holds its weights once. Thread: the stage thread. Must not know: which matrix of which layer
 * this is. Tests: tests/cudahost/test_engine_cuda.c */
#include "cuda_blas.cuh"
#include "cuda_common.cuh"

#define THREADS 256u
#define LARGE 64u /* rows from which halves of all weights are worth making: a guess, unmeasured */
#define TILE_HALVES (32u << 20) /* at most, but always one row */

static __global__ void to_halves(__half *out, const float *x, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        out[i] = __float2half_rn(x[i]);
}

/* A block of threads for each row of out. */
static __global__ void add_bias(float *out, const float *bias, uint32_t rows)
{
    for (uint32_t r = threadIdx.x; r < rows; r += THREADS)
        out[(size_t)blockIdx.x * rows + r] += bias[r];
}

bool cuda_is_large(const struct ops_dev *d, const struct ops_matmul *m, uint32_t cols)
{
    return d->blas && d->activations != OPS_F32 && m->n >= LARGE && cols % 8 == 0;
}

static uint32_t tile_rows(const struct ops_weight *w)
{
    const uint32_t most = TILE_HALVES / w->cols > 0 ? TILE_HALVES / w->cols : 1;
    return w->rows < most ? w->rows : most;
}

static void multiply(struct ops_dev *d, const struct ops_weight *w, const __half *x, __half *tile, uint32_t n,
                     bool add, float *out)
{
    char text[200];
    for (uint32_t first = 0, rows; first < w->rows; first += rows) {
        rows = w->rows - first < tile_rows(w) ? w->rows - first : tile_rows(w);
        cuda_weight_halves(w, first, rows, tile);
        const int r = cuda_blas_product(d->blas, tile, x, out + first, rows, w->cols, n, w->rows, add, text,
                                        sizeof text);
        if (r < 0) {
            cuda_fail(d, r, text);
            return;
        }
    }
}

void cuda_large(struct ops_dev *d, const struct ops_matmul *m, uint32_t cols, const float *x)
{
    const size_t values = (size_t)m->n * cols, rows_bytes = (values * sizeof(__half) + 255) / 256 * 256;
    size_t tile = 0;
    for (uint32_t j = 0; j < m->count; j++) {
        const size_t here = (size_t)tile_rows(m->weight[j]) * cols * sizeof(__half);
        tile = here > tile ? here : tile;
    }
    unsigned char *at = (unsigned char *)cuda_room(d, &d->halves, rows_bytes + tile, "halves of a product");
    if (!at)
        return;
    GPU_LAUNCH(to_halves, (uint32_t)((values + THREADS - 1) / THREADS), THREADS, 0, d->stream, (__half *)at,
               x, values);
    for (uint32_t j = 0; j < m->count; j++) {
        const struct ops_weight *w = m->weight[j];
        multiply(d, w, (const __half *)at, (__half *)(at + rows_bytes), m->n, m->add, m->out[j]);
        if (m->bias[j])
            GPU_LAUNCH(add_bias, m->n, THREADS, 0, d->stream, m->out[j], m->bias[j], w->rows);
    }
    cuda_launched(d, "large");
}
