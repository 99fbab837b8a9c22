/* Cuda best: of each row of logits the OPS_BEST largest, sorted, and two sums over all of them, so that a
 * vocabulary of logits need not leave the device for a choice among a few.
 *
 *   sum[j] = sum over i of exp((x[i] - max) * scale[j])
 *
 * The one decision: the sums are taken as core/model/ranking.c takes them, and a choice is then the same
 * token to the bit, wherever it is made: 16 lanes over runs of 1,024 logits, lane i taking logits i, i + 16,
 * ..., then the lanes of all runs one after the other into a double, then what is left over below 16.
 *
 * The largest are found by digits: a logit and its id are one number of 64 bits, the smaller the better and
 * no two alike, and eight bits at a time it is counted how many have which digit, until those up to a number
 * are as many as wanted. They come in whatever order threads have and are sorted. No order of threads shows.
 *
 * Thread: the stage thread launches. Must not know: what is sampled how. Tests: tests/cudahost/test_best.c */
#include "cuda_common.cuh"

#define THREADS 256u
#define RUN 1024u
#define LANES 16u
#define DIGITS 256u
#define WARP 32u

struct best_args {
    const float *x;     /* [row][cols] */
    const float *scale; /* [row] */
    float *most;        /* [row][run] */
    float *lanes;       /* [row][run][2][LANES] */
    struct ops_best *to;
    uint32_t cols, runs;
};

static __device__ __forceinline__ float larger(float a, float b)
{
    return b > a ? b : a; /* a when b is NaN */
}

/* The largest value of a block of threads, for all of them. */
static __device__ float largest(float v)
{
    GPU_SHARED(float, part, [THREADS / WARP]);
    for (int other = 16; other > 0; other /= 2)
        v = larger(v, __shfl_xor_sync(CUDA_ALL, v, other));
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = v;
    __syncthreads(); /* every thread reads all warps' parts */
    v = part[0];
    for (uint32_t i = 1; i < THREADS / WARP; i++)
        v = larger(v, part[i]);
    return v;
}

/* A block of threads for each run of each row. */
static __global__ void __launch_bounds__(THREADS) most_kernel(struct best_args a)
{
    const float *x = a.x + (size_t)blockIdx.y * a.cols;
    float v = -INFINITY;
    for (uint32_t i = blockIdx.x * RUN + threadIdx.x; i < a.cols && i < (blockIdx.x + 1) * RUN; i += THREADS)
        v = larger(v, x[i]);
    v = largest(v);
    if (threadIdx.x == 0)
        a.most[(size_t)blockIdx.y * a.runs + blockIdx.x] = v;
}

/* The largest of a row, for every thread. */
static __device__ float most_of_row(const struct best_args &a, uint32_t row)
{
    float v = -INFINITY;
    for (uint32_t i = threadIdx.x; i < a.runs; i += THREADS)
        v = larger(v, a.most[(size_t)row * a.runs + i]);
    return largest(v);
}

/* ranking_exp, step by step. */
static __device__ __forceinline__ float weight(float x)
{
    const float y = x > -87.0f ? x : -87.0f;
    const int n = (int)(y * 1.44269504f - 0.5f);
    const float whole = (float)n, t = (y - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * t + 1.0f / 120.0f;
    p = p * t + 1.0f / 24.0f;
    p = p * t + 1.0f / 6.0f;
    p = p * t + 0.5f;
    p = p * t + 1.0f;
    p = p * t + 1.0f;
    return x > -87.0f ? p * power_of_2(n) : 0.0f;
}

/* A block of threads for each run of each row: what its lanes sum, for both scales. */
static __global__ void __launch_bounds__(THREADS) lanes_kernel(struct best_args a)
{
    GPU_SHARED(float, weights, [2][RUN]);
    const uint32_t row = blockIdx.y, first = blockIdx.x * RUN, n = min(RUN, a.cols - first);
    const uint32_t scale = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const float *x = a.x + (size_t)row * a.cols + first, by = a.scale[row], most = most_of_row(a, row);
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        weights[0][i] = weight((x[i] - most) * 1.0f);
        weights[1][i] = weight((x[i] - most) * by);
    }
    __syncthreads(); /* a lane sums what many threads computed */
    if (scale >= 2)
        return;
    float sum = 0;
    for (uint32_t i = lane; i < n / LANES * LANES; i += LANES)
        sum += weights[scale][i];
    a.lanes[((size_t)(row * a.runs + blockIdx.x) * 2 + scale) * LANES + lane] = sum;
}

/* One thread for each row and scale. */
static __global__ void sum_kernel(struct best_args a)
{
    const uint32_t row = blockIdx.x, scale = threadIdx.x;
    const float *x = a.x + (size_t)row * a.cols, most = a.to[row].max, by = scale ? a.scale[row] : 1.0f;
    double total = 0;
    for (uint32_t run = 0; run < a.runs; run++) {
        const float *lanes = a.lanes + ((size_t)(row * a.runs + run) * 2 + scale) * LANES;
        for (uint32_t i = 0; i < LANES; i++)
            total += (double)lanes[i];
    }
    for (uint32_t i = a.cols / LANES * LANES; i < a.cols; i++)
        total += (double)weight((x[i] - most) * by);
    a.to[row].sum[scale] = total;
}

/* ---- the largest ---- */

/* The smaller the better: the logit, NaN being minus infinity and -0 being 0, above the id. */
static __device__ __forceinline__ unsigned long long place(float x, uint32_t id)
{
    const uint32_t bits = __float_as_uint((x > -INFINITY ? x : -INFINITY) + 0.0f);
    const uint32_t key = bits & 0x80000000u ? bits : bits ^ 0x7fffffffu;
    return (unsigned long long)key << 32 | id;
}

/* What a block of threads shares while it looks for the `left` smallest of those that begin as `prefix`. */
struct search {
    uint32_t count[DIGITS]; /* those with each next digit */
    unsigned long long prefix;
    uint32_t left, found;
    bool whole; /* all that begin so are wanted */
};

/* A warp: the digit with which the wanted number goes on. */
static __device__ void choose_digit(struct search &s, uint32_t shift)
{
    constexpr uint32_t EACH = DIGITS / WARP;
    const uint32_t lane = threadIdx.x;
    uint32_t sum = 0, up_to;
    for (uint32_t i = 0; i < EACH; i++)
        sum += s.count[lane * EACH + i];
    up_to = sum;
    for (uint32_t other = 1; other < WARP; other *= 2) {
        const uint32_t theirs = __shfl_up_sync(CUDA_ALL, up_to, other);
        if (lane >= other)
            up_to += theirs;
    }
    const uint32_t left = s.left;
    __syncwarp(); /* one lane changes it now */
    if (up_to < left || up_to - sum >= left)
        return;
    uint32_t before = up_to - sum, digit = lane * EACH;
    while (before + s.count[digit] < left)
        before += s.count[digit++];
    s.prefix |= (unsigned long long)digit << shift;
    s.left = left - before;
    s.whole = s.count[digit] == s.left;
}

/* The largest number among the k best of the row, k <= cols. */
static __device__ unsigned long long bound(struct search &s, const float *x, uint32_t cols, uint32_t k)
{
    if (threadIdx.x == 0) {
        s.prefix = 0;
        s.left = k;
        s.found = 0;
        s.whole = false;
    }
    for (uint32_t shift = 56;; shift -= 8) {
        if (shift < 32 && (cols - 1) >> shift == 0) { /* a digit that is 0 in every id */
            if (shift == 0)
                return s.prefix;
            continue;
        }
        s.count[threadIdx.x] = 0; /* a thread a digit */
        __syncthreads();          /* what is counted starts at 0, and the search's state is everybody's */
        for (uint32_t i = threadIdx.x; i < cols; i += THREADS) {
            const unsigned long long at = place(x[i], i);
            if (shift == 56 || (at ^ s.prefix) >> (shift + 8) == 0)
                atomicAdd(&s.count[at >> shift & (DIGITS - 1)], 1u);
        }
        __syncthreads(); /* a digit is chosen when all are counted */
        if (threadIdx.x < WARP)
            choose_digit(s, shift);
        __syncthreads(); /* everybody goes on with the digit chosen */
        if (s.whole || shift == 0)
            return s.prefix | ((1ull << shift) - 1);
    }
}

/* Sorts OPS_BEST numbers, one a thread: Batcher's bitonic network. */
static __device__ void sort(unsigned long long *at)
{
    const uint32_t i = threadIdx.x;
    for (uint32_t size = 2; size <= OPS_BEST; size *= 2)
        for (uint32_t apart = size / 2; apart > 0; apart /= 2) {
            const uint32_t other = i ^ apart;
            if (other > i) {
                const unsigned long long a = at[i], b = at[other];
                if ((a > b) == ((i & size) == 0)) {
                    at[i] = b;
                    at[other] = a;
                }
            }
            __syncthreads(); /* the next step compares what this one placed */
        }
}

/* A block of threads for each row. */
static __global__ void __launch_bounds__(THREADS) pick_kernel(struct best_args a)
{
    static_assert(OPS_BEST == THREADS && DIGITS == THREADS, "a thread is a number, a digit, a place");
    GPU_SHARED(struct search, searches, [1]);
    GPU_SHARED(unsigned long long, best, [OPS_BEST]);
    struct search &s = searches[0];
    const float *x = a.x + (size_t)blockIdx.x * a.cols, most = most_of_row(a, blockIdx.x);
    struct ops_best *to = a.to + blockIdx.x;
    const uint32_t k = min(OPS_BEST, a.cols);
    const unsigned long long last = bound(s, x, a.cols, k);
    best[threadIdx.x] = ~0ull; /* behind all others, where the vocabulary is smaller */
    __syncthreads();           /* some are found before other threads get here */
    for (uint32_t i = threadIdx.x; i < a.cols; i += THREADS) {
        const unsigned long long at = place(x[i], i);
        if (at <= last)
            best[atomicAdd(&s.found, 1u)] = at;
    }
    __syncthreads(); /* sorting compares what others found */
    sort(best);
    if (threadIdx.x == 0) {
        to->max = most;
        to->n = k;
    }
    const uint32_t id = threadIdx.x < k ? (uint32_t)best[threadIdx.x] : 0;
    to->id[threadIdx.x] = id;
    to->logit[threadIdx.x] = threadIdx.x < k ? x[id] : 0;
}

/* ---- launching ---- */

static size_t round_up(size_t n)
{
    return (n + 255) / 256 * 256;
}

void cuda_best(struct ops_dev *d, const float *logits, uint32_t n, uint32_t cols, const float *scale,
               struct ops_best *ret)
{
    struct best_args a = {};
    a.x = logits;
    a.cols = cols;
    a.runs = (cols + RUN - 1) / RUN;
    const size_t most = round_up((size_t)n * a.runs * sizeof *a.most), lanes = most * 2 * LANES,
                 to = round_up(n * sizeof *a.to), scales = n * sizeof *a.scale;
    cuda_use(d);
    unsigned char *at = n ? (unsigned char *)cuda_room(d, &d->best, to + most + lanes + scales,
                                                       "the best of a window's logits")
                          : NULL;
    if (!at)
        return;
    a.to = (struct ops_best *)at;
    a.most = (float *)(at + to);
    a.lanes = (float *)(at + to + most);
    a.scale = (float *)(at + to + most + lanes);
    cuda_upload(d, at + to + most + lanes, scale, scales);
    GPU_LAUNCH(most_kernel, dim3(a.runs, n), THREADS, 0, d->stream, a);
    GPU_LAUNCH(lanes_kernel, dim3(a.runs, n), THREADS, 0, d->stream, a);
    GPU_LAUNCH(pick_kernel, n, THREADS, 0, d->stream, a);
    GPU_LAUNCH(sum_kernel, n, 2, 0, d->stream, a);
    cuda_launched(d, "best");
    cuda_download(d, ret, a.to, n * sizeof *ret);
}
