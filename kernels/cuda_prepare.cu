/* Cuda prepare: an input row normed, gated or as it is, then as floats, as bytes, or both.
 *
 *   norm    y[i] = x[i] * f * norm[i],  f = 1 / sqrt(mean(x^2) + eps)
 *   gate    y[i] = silu(x[i]) * x2[i], or gelu(x[i]) * x2[i]
 *   bytes   q = round(y * 127 / amax) and s = amax / 127 for each 32; of OPS_INT16 then those of y - s q
 *
 * The one decision: squares are summed as the CPU's 16 lanes do, lane i taking columns i, i + 16, ..., so 16
 * threads work while the others wait. The row passes through shared memory so that they wait for arithmetic
 * alone: a microsecond for 4,096 columns, whatever the number of rows, for the same bits as the CPU.
 * Thread: the stage thread launches. Tests: tests/kernels/test_matmul.c */
#include "cuda_common.cuh"

#define THREADS 256u
#define PIECE 2048u /* floats of shared memory */
#define LANES 16u

struct prepare_args {
    enum ops_prepare prepare;
    const float *x, *x2, *norm;
    float eps;
    uint32_t cols;
    struct cuda_rows to;
};

/* 1 / sqrt(mean of squares + eps), for every thread. */
static __device__ float norm_factor(const float *x, uint32_t cols, float eps)
{
    GPU_SHARED(float, piece, [PIECE]);
    GPU_SHARED(float, factor, [1]);
    float sum = 0;
    for (uint32_t first = 0; first < cols; first += PIECE) {
        const uint32_t n = min(PIECE, cols - first);
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            piece[i] = x[first + i];
        __syncthreads(); /* the lanes read what others loaded */
        if (threadIdx.x < LANES)
            for (uint32_t i = threadIdx.x; i < n; i += LANES)
                sum = fmaf(piece[i], piece[i], sum);
        __syncthreads(); /* the next piece overwrites this one */
    }
    if (threadIdx.x < 32) {
        sum = sum_16(sum);
        if (threadIdx.x == 0)
            factor[0] = 1.0f / sqrtf(sum / (float)cols + eps);
    }
    __syncthreads(); /* one thread has it, all need it */
    return factor[0];
}

static __device__ float value_at(const struct prepare_args &a, size_t row, uint32_t c, float factor)
{
    const float x = a.x[row + c];
    if (a.prepare == OPS_RMS_NORM)
        return x * factor * a.norm[c];
    if (a.prepare == OPS_SWIGLU)
        return silu_f(x) * a.x2[row + c];
    if (a.prepare == OPS_GEGLU)
        return gelu_f(x) * a.x2[row + c];
    return x;
}

/* A warp holds 32 columns. What is left of its number. */
static __device__ float quantize(const struct cuda_rows &to, size_t block, float y)
{
    float s;
    const int q = quantize_32(y, &s);
    int sum = q;
    for (int other = 16; other > 0; other /= 2)
        sum += __shfl_xor_sync(CUDA_ALL, sum, other);
    const uint32_t lane = threadIdx.x % 32;
    to.q[block * CUDA_BLOCK + lane] = (int8_t)q;
    if (lane == 0)
        to.scale[block] = cuda_scale{ s, s * (float)sum };
    return fmaf(-s, (float)q, y);
}

/* One block of threads a row; a warp a block of columns at a time. */
static __global__ void __launch_bounds__(THREADS) prepare_kernel(struct prepare_args a)
{
    const size_t row = (size_t)blockIdx.x * a.cols;
    const uint32_t lane = threadIdx.x % 32, blocks = (a.cols + 31) / 32;
    const float factor = a.prepare == OPS_RMS_NORM ? norm_factor(a.x + row, a.cols, a.eps) : 0;
    for (uint32_t b = threadIdx.x / 32; b < blocks; b += THREADS / 32) {
        const uint32_t c = b * 32 + lane;
        float y = c < a.cols ? value_at(a, row, c, factor) : 0;
        if (a.to.f && c < a.cols)
            a.to.f[row + c] = y;
        for (uint32_t term = 0; a.to.q && term < a.to.terms; term++)
            y = quantize(a.to, ((size_t)term * gridDim.x + blockIdx.x) * blocks + b, y);
    }
}

/* One block of threads a row. */
static __global__ void __launch_bounds__(THREADS)
    norm_add_kernel(const float *x, const float *norm, float eps, uint32_t cols, float *out)
{
    const size_t row = (size_t)blockIdx.x * cols;
    const float factor = norm_factor(x + row, cols, eps);
    for (uint32_t c = threadIdx.x; c < cols; c += THREADS)
        out[row + c] += x[row + c] * factor * norm[c];
}

void cuda_norm_add(struct ops_dev *d, const float *x, const float *norm, float eps, uint32_t n, uint32_t cols,
                   float *out)
{
    if (!n)
        return;
    cuda_use(d);
    GPU_LAUNCH(norm_add_kernel, n, THREADS, 0, d->stream, x, norm, eps, cols, out);
    cuda_launched(d, "norm add");
}

void cuda_prepare(const struct ops_matmul *m, uint32_t cols, const struct cuda_rows *to, cudaStream_t stream)
{
    const struct prepare_args a = { m->prepare, m->x, m->x2, m->norm, m->eps, cols, *to };
    GPU_LAUNCH(prepare_kernel, m->n, THREADS, 0, stream, a);
}
