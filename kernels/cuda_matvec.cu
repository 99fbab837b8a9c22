/* Cuda matvec: quantized weights by up to 8 rows of activations, which is what decoding needs.
 *
 *   f = fma(d s, sum over 32 of q x, f) block after block, and with minima then f = fma(m, s sum(x), f)
 *
 * The one decision: reading weights is what it costs, and that wants all threads on neighbouring blocks of
 * 32; adding wants the blocks in order. So both phases take turns over a piece of the columns: all threads
 * leave the integer sums of their blocks in shared memory, then a thread for each output walks along them. A
 * chain of fma takes 4 cycles a block, and while one block of threads adds, the others of the processor read.
 * Thread: the stage thread launches. Tests: tests/kernels/test_matmul.c */
#include "cuda_quant.cuh"

#define THREADS 256u
#define ROWS 8u /* of weights, a block of threads */

/* Blocks of a piece: shared memory is the limit. */
template <uint32_t N> constexpr uint32_t piece_blocks = N == 1 ? 128 : N == 2 ? 64 : 32;

/* The sums of one block of weights with each row's block; what is beyond n is not to be read. */
template <uint32_t TYPE, uint32_t N>
static __device__ __forceinline__ void block_sums(const struct cuda_layout &w, size_t block,
                                                  const struct cuda_scales &scales, const struct cuda_rows &x,
                                                  size_t x_block, uint32_t x_blocks, uint32_t n, int sum[N])
{
    int q[8];
    load_block<TYPE>(w, block, q);
#pragma unroll
    for (uint32_t t = 0; t < N; t++) {
        const size_t at = (size_t)min(t, n - 1) * x_blocks + x_block;
        const int4 *a = (const int4 *)(x.q + at * CUDA_BLOCK);
        const int first = dot_16(q, a[0]), second = dot_16(q + 4, a[1]);
        sum[t] = cuda_quant<TYPE>::halves ? scales.a[0] * first + scales.a[1] * second : first + second;
    }
}

template <uint32_t TYPE, uint32_t N>
static __global__ void __launch_bounds__(THREADS) matvec(struct cuda_product p)
{
    constexpr uint32_t PIECE = piece_blocks<N>;
    /* One more than a piece: the threads of the second phase walk in different banks. */
    GPU_SHARED(float, sums, [N][ROWS][PIECE + 1]);
    GPU_SHARED(float, scale, [ROWS][PIECE + 1]);
    GPU_SHARED(float, least, [ROWS][PIECE + 1]);
    uint32_t group = blockIdx.x, j = 0;
    while (group >= (p.w[j].rows + ROWS - 1) / ROWS)
        group -= (p.w[j++].rows + ROWS - 1) / ROWS;
    const struct cuda_matrix &w = p.w[j];
    const uint32_t blocks = p.cols / CUDA_BLOCK, first_row = group * ROWS;
    const uint32_t r = threadIdx.x % ROWS, t = threadIdx.x / ROWS;
    const bool adds = t < N && t < p.n && first_row + r < w.rows;
    float f = 0;

    for (uint32_t first = 0; first < blocks; first += PIECE) {
        const uint32_t n = min(PIECE, blocks - first);
        for (uint32_t i = threadIdx.x; i < ROWS * n; i += THREADS) {
            const uint32_t row = i / n, b = i % n;
            if (first_row + row >= w.rows)
                break; /* and so are all the thread's next */
            const size_t at = (size_t)(first_row + row) * blocks + first + b;
            const struct cuda_scales s = load_scales<TYPE>(w.at, at);
            int sum[N];
            block_sums<TYPE, N>(w.at, at, s, p.x, first + b, blocks, p.n, sum);
#pragma unroll
            for (uint32_t k = 0; k < N; k++)
                sums[k][row][b] = (float)sum[k];
            scale[row][b] = s.d;
            if (cuda_quant<TYPE>::minima)
                least[row][b] = s.m;
        }
        __syncthreads(); /* a chain reads what all threads wrote */
        if (adds) {
            const struct cuda_scale *s = p.x.scale + (size_t)t * blocks + first;
            for (uint32_t b = 0; b < n; b++) {
                f = fmaf(scale[r][b] * s[b].s, sums[t][r][b], f);
                if (cuda_quant<TYPE>::minima)
                    f = fmaf(least[r][b], s[b].s_sum, f);
            }
        }
        __syncthreads(); /* the next piece overwrites what the chains read */
    }
    if (adds)
        write_sum(w, t, first_row + r, p.add, f);
}

template <uint32_t TYPE> static void launch(const struct cuda_product *p, cudaStream_t stream)
{
    uint32_t groups = 0;
    for (uint32_t j = 0; j < p->count; j++)
        groups += (p->w[j].rows + ROWS - 1) / ROWS;
    if (p->n == 1)
        GPU_LAUNCH((matvec<TYPE, 1>), groups, THREADS, 0, stream, *p);
    else if (p->n == 2)
        GPU_LAUNCH((matvec<TYPE, 2>), groups, THREADS, 0, stream, *p);
    else if (p->n <= 4)
        GPU_LAUNCH((matvec<TYPE, 4>), groups, THREADS, 0, stream, *p);
    else
        GPU_LAUNCH((matvec<TYPE, 8>), groups, THREADS, 0, stream, *p);
}

void cuda_matvec(uint32_t type, const struct cuda_product *p, cudaStream_t stream)
{
    CUDA_WITH_TYPE(type, launch, p, stream)
}
