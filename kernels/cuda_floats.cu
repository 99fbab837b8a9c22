/* Cuda floats: weights of any type by rows of floats: F32, F16 and BF16 weights, and quantized ones where the
 * activations are asked to stay floats.
 *
 *   column c is added to sum c % 4 by fma, then (f0 + f1) + (f2 + f3)
 *
 * The one decision: four threads an output, one for each of its four chains. 16 rows of weights by 16 of
 * activations a block of threads, 128 columns at a time through shared memory, where weights become floats.
 * Thread: the stage thread launches. Tests: tests/kernels/test_matmul.c */
#include "cuda_quant.cuh"

#define THREADS 256u
#define TILE 16u
#define STEP 128u
#define STRIDE (STEP + 4) /* 8 rows by 4 columns of a warp lie in 32 banks */
#define EACH 4u           /* outputs of a thread: rows of activations 4 apart */

template <uint32_t TYPE> static __global__ void __launch_bounds__(THREADS) floats(struct cuda_product p)
{
    GPU_SHARED(float, weights, [TILE][STRIDE]);
    GPU_SHARED(float, rows, [TILE][STRIDE]);
    uint32_t group = blockIdx.x, j = 0;
    while (group >= (p.w[j].rows + TILE - 1) / TILE)
        group -= (p.w[j++].rows + TILE - 1) / TILE;
    const struct cuda_matrix &w = p.w[j];
    const uint32_t first_row = group * TILE, first_token = blockIdx.y * TILE;
    const uint32_t chain = threadIdx.x % 4, r = threadIdx.x / 4 % TILE, t = threadIdx.x / (4 * TILE);
    float f[EACH] = {};

    for (uint32_t first = 0; first < p.cols; first += STEP) {
        const uint32_t n = min(STEP, p.cols - first);
        for (uint32_t i = threadIdx.x; i < TILE * STEP; i += THREADS) {
            const uint32_t row = i / STEP, c = i % STEP;
            if (c >= n)
                continue;
            /* Rows beyond the end are the last one again: what they give is not written. */
            weights[row][c] =
                weight_at<TYPE>(w.at, (size_t)min(first_row + row, w.rows - 1) * p.cols + first + c);
            rows[row][c] = p.x.f[(size_t)min(first_token + row, p.n - 1) * p.cols + first + c];
        }
        __syncthreads(); /* chains read what others loaded */
        for (uint32_t c = chain; c < n; c += 4)
            for (uint32_t k = 0; k < EACH; k++)
                f[k] = fmaf(weights[r][c], rows[t + 4 * k][c], f[k]);
        __syncthreads(); /* the next step overwrites this one */
    }
    for (uint32_t k = 0; k < EACH; k++) {
        f[k] += __shfl_xor_sync(CUDA_ALL, f[k], 1);
        f[k] += __shfl_xor_sync(CUDA_ALL, f[k], 2);
        const uint32_t row = first_row + r, token = first_token + t + 4 * k;
        if (!chain && row < w.rows && token < p.n)
            write_sum(w, token, row, p.add, f[k]);
    }
}

template <uint32_t TYPE> static void launch(const struct cuda_product *p, cudaStream_t stream)
{
    uint32_t groups = 0;
    for (uint32_t j = 0; j < p->count; j++)
        groups += (p->w[j].rows + TILE - 1) / TILE;
    GPU_LAUNCH((floats<TYPE>), dim3(groups, (p->n + TILE - 1) / TILE), THREADS, 0, stream, *p);
}

void cuda_floats(uint32_t type, const struct cuda_product *p, cudaStream_t stream)
{
    if (type == QUANT_F32)
        return launch<QUANT_F32>(p, stream);
    if (type == QUANT_F16)
        return launch<QUANT_F16>(p, stream);
    if (type == QUANT_BF16)
        return launch<QUANT_BF16>(p, stream);
    CUDA_WITH_TYPE(type, launch, p, stream)
}
