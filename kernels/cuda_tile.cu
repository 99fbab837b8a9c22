/* Cuda tile: quantized weights by many rows of activations, which is what reading a prompt needs.
 *
 *   f = fma(d s, sum over 32 of q x, f) block after block, and with minima then f = fma(m, s sum(x), f)
 *
 * The one decision: one tensor-core instruction multiplies exactly one block of 32 columns and its integers
 * are exact, so the float sums of an output stay in one thread, in the order of the matrix-vector kernel:
 * same bits. 64 by 64 outputs a block of threads, 32 by 32 a warp; 4 blocks of columns at a time pass through
 * shared memory. Thread: the stage thread launches. Tests: tests/kernels/test_matmul.c */
#include "cuda_quant.cuh"

#define THREADS 128u
#define TILE 64u /* rows of weights, and of activations */
#define STEP 4u  /* blocks of columns at a time */

/* Words of a row's step and 4 more: the 8 rows by 4 words that a warp reads at once lie in 32 banks. */
#define X_WORDS (STEP * 8 + 4)

template <uint32_t TYPE> struct tile_shared {
    using form = cuda_quant<TYPE>;
    static constexpr uint32_t w_words = STEP * form::low_words + 4, high_words = STEP * form::high_words + 1;
    __align__(16) int w[TILE][w_words];
    __align__(16) int x[TILE][X_WORDS];
    uint32_t high[form::high_words ? TILE : 1][high_words];
    float scale[TILE][STEP + 1], least[form::minima ? TILE : 1][STEP + 1];
    int halves[form::halves ? TILE : 1]
              [STEP + 1]; /* scales of the first 16 columns, and in the upper 16 bits of the others */
    struct cuda_scale x_scale[TILE][STEP + 1];
};

/* Rows beyond the end are the last one again: what they give is not written. */
template <uint32_t TYPE>
static __device__ void load_weights(struct tile_shared<TYPE> &s, const struct cuda_matrix &w,
                                    uint32_t first_row, uint32_t blocks, uint32_t first, uint32_t n)
{
    using form = cuda_quant<TYPE>;
    constexpr uint32_t parts = form::low_words / 4; /* of 16 bytes */
    for (uint32_t i = threadIdx.x; i < TILE * STEP * parts; i += THREADS) {
        const uint32_t row = i / (STEP * parts), part = i % (STEP * parts), b = part / parts;
        const size_t at = (size_t)min(first_row + row, w.rows - 1) * blocks + first + b;
        if (b < n)
            *(int4 *)&s.w[row][part * 4] = ((const int4 *)w.at.low)[at * parts + part % parts];
    }
    for (uint32_t i = threadIdx.x; i < TILE * STEP; i += THREADS) {
        const uint32_t row = i / STEP, b = i % STEP;
        const size_t at = (size_t)min(first_row + row, w.rows - 1) * blocks + first + b;
        if (b >= n)
            continue;
        const struct cuda_scales scales = load_scales<TYPE>(w.at, at);
        s.scale[row][b] = scales.d;
        if (form::minima)
            s.least[row][b] = scales.m;
        if (form::halves)
            s.halves[row][b] = (scales.a[0] & 0xffff) | (int)((unsigned)scales.a[1] << 16);
        const uint32_t *high = (const uint32_t *)w.at.high + at * form::high_words;
        if (form::high_words > 0)
            s.high[row][b * form::high_words] = high[0];
        if (form::high_words > 1)
            s.high[row][b * form::high_words + 1] = high[1];
    }
}

template <uint32_t TYPE>
static __device__ void load_rows(struct tile_shared<TYPE> &s, const struct cuda_product &p,
                                 uint32_t first_token, uint32_t blocks, uint32_t first, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < TILE * STEP * 2; i += THREADS) {
        const uint32_t row = i / (STEP * 2), part = i % (STEP * 2);
        const size_t at = (size_t)min(first_token + row, p.n - 1) * blocks + first;
        if (part / 2 < n)
            *(int4 *)&s.x[row][part * 4] = ((const int4 *)p.x.q)[at * 2 + part];
    }
    for (uint32_t i = threadIdx.x; i < TILE * STEP; i += THREADS) {
        const uint32_t row = i / STEP, b = i % STEP;
        const size_t at = (size_t)min(first_token + row, p.n - 1) * blocks + first + b;
        if (b < n)
            s.x_scale[row][b] = p.x.scale[at];
    }
}

/* Rows `row` and row + 8 of weights, the lane's part of what mma_16x8x32 wants. */
template <uint32_t TYPE>
static __device__ __forceinline__ void load_a(const struct tile_shared<TYPE> &s, uint32_t row, uint32_t b,
                                              uint32_t t, int a[4])
{
    using form = cuda_quant<TYPE>;
    for (uint32_t i = 0; i < 2; i++) {
        const int *w = s.w[row + 8 * i] + b * form::low_words + t;
        const uint32_t *high = form::high_words ? s.high[row + 8 * i] + b * form::high_words : nullptr;
        const uint32_t first = form::high_words ? high[0] : 0;
        const uint32_t second = form::high_words ? high[form::high_words - 1] : 0;
        a[i] = form::bits == 8 ? w[0] : signed_bytes<TYPE>(low_nibbles((uint32_t)w[0]), first, t);
        a[i + 2] = form::bits == 8 ? w[4] : signed_bytes<TYPE>(high_nibbles((uint32_t)w[0]), second, t + 4);
    }
}

/* 16 by 8 sums of a block; Q6_K's first and last 16 columns apart, with zeros for the others, and each times
 * its scale. */
template <uint32_t TYPE>
static __device__ __forceinline__ void block_sums(const struct tile_shared<TYPE> &s, uint32_t row, uint32_t b,
                                                  const int a[4], const int x[2], int c[4])
{
    if (!cuda_quant<TYPE>::halves) {
        mma_16x8x32(c, a, x);
        return;
    }
    const int low[4] = { a[0], a[1], 0, 0 }, high[4] = { 0, 0, a[2], a[3] };
    int second[4];
    mma_16x8x32(c, low, x);
    mma_16x8x32(second, high, x);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        const int both = s.halves[row + 8 * (e / 2)][b];
        c[e] = (int16_t)both * c[e] + (both >> 16) * second[e];
    }
}

/* One block of columns: the warp's 2 by 4 products of 16 by 8. */
template <uint32_t TYPE>
static __device__ __forceinline__ void add_block(const struct tile_shared<TYPE> &s, uint32_t b,
                                                 uint32_t warp_row, uint32_t warp_token, float f[2][4][4])
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int a[2][4];
    for (uint32_t i = 0; i < 2; i++)
        load_a<TYPE>(s, warp_row + 16 * i + g, b, t, a[i]);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const int *x = s.x[warp_token + 8 * k + g] + b * 8 + t, words[2] = { x[0], x[4] };
        const uint32_t token = warp_token + 8 * k + 2 * t;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            int c[4];
            block_sums<TYPE>(s, warp_row + 16 * i + g, b, a[i], words, c);
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                const uint32_t row = warp_row + 16 * i + g + 8 * (e / 2), at = token + e % 2;
                f[i][k][e] = fmaf(s.scale[row][b] * s.x_scale[at][b].s, (float)c[e], f[i][k][e]);
                if (cuda_quant<TYPE>::minima)
                    f[i][k][e] = fmaf(s.least[row][b], s.x_scale[at][b].s_sum, f[i][k][e]);
            }
        }
    }
}

/* Where sum i of a thread's 32, f[i / 16][i / 4 % 4][i % 4], lies in its warp's 32 by 32. */
static __device__ __forceinline__ uint32_t sum_row(uint32_t i)
{
    return 16 * (i / 16) + threadIdx.x % 32 / 4 + 8 * (i % 4 / 2);
}

static __device__ __forceinline__ uint32_t sum_token(uint32_t i)
{
    return 8 * (i / 4 % 4) + 2 * (threadIdx.x % 4) + i % 2;
}

template <uint32_t TYPE> static __global__ void __launch_bounds__(THREADS) tile(struct cuda_product p)
{
    GPU_SHARED(struct tile_shared<TYPE>, stage, [1]);
    struct tile_shared<TYPE> &s = stage[0];
    uint32_t group = blockIdx.x, j = 0;
    while (group >= (p.w[j].rows + TILE - 1) / TILE)
        group -= (p.w[j++].rows + TILE - 1) / TILE;
    const struct cuda_matrix &w = p.w[j];
    const uint32_t blocks = p.cols / CUDA_BLOCK, first_row = group * TILE, first_token = blockIdx.y * TILE;
    const uint32_t warp = threadIdx.x / 32, warp_row = warp / 2 * 32, warp_token = warp % 2 * 32;
    float f[2][4][4] = {};

    for (uint32_t first = 0; first < blocks; first += STEP) {
        const uint32_t n = min(STEP, blocks - first);
        load_weights<TYPE>(s, w, first_row, blocks, first, n);
        load_rows<TYPE>(s, p, first_token, blocks, first, n);
        __syncthreads(); /* warps read what others loaded */
        for (uint32_t b = 0; b < n; b++)
            add_block<TYPE>(s, b, warp_row, warp_token, f);
        __syncthreads(); /* the next step overwrites this one */
    }
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t row = first_row + warp_row + sum_row(i),
                       token = first_token + warp_token + sum_token(i);
        if (row < w.rows && token < p.n)
            write_sum(w, token, row, p.add, f[i / 16][i / 4 % 4][i % 4]);
    }
}

template <uint32_t TYPE> static void launch(const struct cuda_product *p, cudaStream_t stream)
{
    uint32_t groups = 0;
    for (uint32_t j = 0; j < p->count; j++)
        groups += (p->w[j].rows + TILE - 1) / TILE;
    GPU_LAUNCH((tile<TYPE>), dim3(groups, (p->n + TILE - 1) / TILE), THREADS, 0, stream, *p);
}

void cuda_tile(uint32_t type, const struct cuda_product *p, cudaStream_t stream)
{
    CUDA_WITH_TYPE(type, launch, p, stream)
}
