/* The threads of a block: barriers, collectives, their orders, and what is said when a kernel is wrong. */
#include "testing.h"

#include <cuda_fp16.h>
#include <cuda_pipeline.h>

enum mistake { RIGHT, NO_BARRIER, NO_SECOND_BARRIER };

__device__ static float warp_sum(float v)
{
    for (int bits = 16; bits > 0; bits >>= 1)
        v += __shfl_xor_sync(ALL_LANES, v, bits);
    return v;
}

template <int broken> __device__ static float block_sum(float v)
{
    GPU_SHARED(float, part, [32]);
    const unsigned lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    if (lane == 0)
        part[threadIdx.x / 32] = v;
    if (broken != NO_BARRIER)
        __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : 0.0f);
    if (broken != NO_SECOND_BARRIER)
        __syncthreads();
    return v;
}

/* Per block the sum of its row, and that of its row negated. */
template <int broken> __global__ static void sums_kernel(float *out, const float *x, int cols)
{
    float v = 0;
    for (int i = (int)threadIdx.x; i < cols; i += (int)blockDim.x)
        v += x[(int)blockIdx.x * cols + i];
    float sum = block_sum<broken>(v), negated = block_sum<broken>(-v);
    if (threadIdx.x == 0) {
        out[2 * blockIdx.x] = sum;
        out[2 * blockIdx.x + 1] = negated;
    }
}

enum { ROWS = 5, COLS = 300 };

template <int broken> static bool sums_are_right(cudahost_order order, unsigned block)
{
    cudahost_set_order(order, 7);
    std::vector<float> x = ramp(ROWS * COLS);
    float *dx = device(x), *out = device<float>(2 * ROWS);
    GPU_LAUNCH(sums_kernel<broken>, ROWS, block, 0, nullptr, out, dx, (int)COLS);
    std::vector<float> got = host(out, 2 * ROWS);
    bool right = true;
    for (size_t r = 0; r < ROWS; r++) {
        float want = 0;
        for (size_t i = 0; i < COLS; i++)
            want += x[r * COLS + i];
        right = right && got[2 * r] == want && got[2 * r + 1] == -want;
    }
    return right;
}

Test(block, sums_are_right_in_every_order_and_shape)
{
    EACH_ORDER(order)
    for (unsigned block : { 32u, 96u, 256u, 1024u })
        cr_expect(sums_are_right<RIGHT>(order, block), "order %d, %u threads", order, block);
}

Test(block, a_missing_barrier_before_a_read_is_seen_in_every_order)
{
    EACH_ORDER(order)
    cr_expect(!sums_are_right<NO_BARRIER>(order, 256), "order %d", order);
}

Test(block, a_missing_barrier_before_the_next_write_is_seen)
{
    int seen = 0;
    EACH_ORDER(order)
    seen += !sums_are_right<NO_SECOND_BARRIER>(order, 256);
    cr_expect_gt(seen, 0);
}

__global__ static void shift_kernel(int *y, const int *x)
{
    GPU_SHARED_DYNAMIC(int, s);
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp(); /* not enough: warps exchange as well */
    y[threadIdx.x] = threadIdx.x ? s[threadIdx.x - 1] : 0;
}

static bool shift_is_right(cudahost_order order, uint64_t seed)
{
    cudahost_set_order(order, seed);
    std::vector<int> x(256);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (int)i + 1;
    int *dx = device(x), *y = device<int>(x.size());
    GPU_LAUNCH(shift_kernel, 1, 256, 256 * sizeof(int), nullptr, y, dx);
    std::vector<int> got = host(y, x.size());
    bool right = true;
    for (size_t i = 0; i < x.size(); i++)
        right = right && got[i] == (int)i;
    return right;
}

Test(block, what_one_order_hides_another_shows)
{
    cr_expect(shift_is_right(CUDAHOST_FORWARD, 1));
    cr_expect(!shift_is_right(CUDAHOST_REVERSE, 1));
    int seen = 0;
    for (uint64_t seed = 1; seed <= 8; seed++)
        seen += !shift_is_right(CUDAHOST_RANDOM, seed);
    cr_expect_geq(seen, 4);
}

__global__ static void order_kernel(int *next, int *log)
{
    log[atomicAdd(next, 1)] = (int)(blockIdx.x * blockDim.x + threadIdx.x);
}

static std::vector<int> order_of(cudahost_order order, uint64_t seed)
{
    cudahost_set_order(order, seed);
    int *next = device(std::vector<int>(1, 0)), *log = device<int>(192);
    GPU_LAUNCH(order_kernel, 3, 64, 0, nullptr, next, log);
    return host(log, 192);
}

Test(block, a_seed_gives_an_order_that_repeats)
{
    std::vector<int> forward = order_of(CUDAHOST_FORWARD, 1), reverse = order_of(CUDAHOST_REVERSE, 1);
    for (int i = 0; i < 192; i++) {
        cr_expect_eq(forward[(size_t)i], i);
        cr_expect_eq(reverse[(size_t)i], 191 - i);
    }
    cr_expect(order_of(CUDAHOST_RANDOM, 5) == order_of(CUDAHOST_RANDOM, 5));
    cr_expect(order_of(CUDAHOST_RANDOM, 5) != order_of(CUDAHOST_RANDOM, 6));
}

/* ---- deadlocks and wrong calls */

__global__ static void half_of_them_kernel(void)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else if (threadIdx.x == 40)
        __shfl_sync(ALL_LANES, 1, 0);
}

Test(block, a_deadlock_names_barrier_and_threads)
{
    EACH_ORDER(order)
    {
        cudahost_reset(1, 1 << 20);
        cudahost_set_order(order, 1);
        GPU_LAUNCH(half_of_them_kernel, 1, 64, 0, nullptr);
        cr_expect_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
        expect_said("deadlock: 40 threads wait in __syncthreads, first (0,0,0) at ");
        expect_said("test_block.cpp:");
        expect_said("thread (40,0,0) waits in __shfl_sync");
        expect_said("for lanes ffffffff, of which fffffeff are not there; 23 of 64 threads ended");
    }
}

__global__ static void two_barriers_kernel(int *y)
{
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ static void two_calls_kernel(void)
{
    if (threadIdx.x % 2)
        __shfl_sync(ALL_LANES, 1, 0);
    else
        __ballot_sync(ALL_LANES, 1);
}

__global__ static void wrong_mask_kernel(void)
{
    __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0x0000ffffu << 15);
}

__global__ static void absent_lane_kernel(void)
{
    if (threadIdx.x < 8)
        __shfl_xor_sync(0x000000ffu, 1, 8);
}

__global__ static void unwaited_copy_kernel(const int *x)
{
    GPU_SHARED(int, s, [32]);
    __pipeline_memcpy_async(&s[threadIdx.x], x + threadIdx.x, 4);
    __pipeline_commit();
}

__global__ static void deep_kernel(volatile int *y)
{
    volatile char big[100000];
    big[threadIdx.x] = 1;
    y[0] = big[threadIdx.x];
}

template <class... A>
static void expect_failure(const char *words, cudaError_t e, void (*kernel)(A...), A... args)
{
    GPU_LAUNCH(kernel, 1, 32, 0, nullptr, args...);
    cr_expect_eq(cudaDeviceSynchronize(), e, "%s", words);
    expect_said(words);
    cudahost_reset(1, 1 << 20);
}

Test(block, wrong_calls_are_named)
{
    expect_failure("threads wait at two barriers", cudaErrorLaunchFailure, two_barriers_kernel,
                   device<int>(32));
    expect_failure("lanes of a warp are in different calls", cudaErrorLaunchFailure, two_calls_kernel);
    expect_failure("which do not include it", cudaErrorLaunchFailure, wrong_mask_kernel);
    expect_failure("reads from lane 8, which is not in the call", cudaErrorLaunchFailure, absent_lane_kernel);
    expect_failure("asynchronous copy that nothing waited for", cudaErrorLaunchFailure, unwaited_copy_kernel,
                   (const int *)device<int>(32));
    expect_failure("bytes of stack", cudaErrorIllegalAddress, deep_kernel, (volatile int *)device<int>(1));
}

/* ---- arithmetic of collectives */

struct results {
    int up, down, from, segment, any, all, least, most, sum;
    unsigned ballot;
};

__global__ static void collectives_kernel(results *r)
{
    const int lane = (int)threadIdx.x % 32;
    results &mine = r[threadIdx.x];
    mine.up = __shfl_up_sync(ALL_LANES, lane, 3);
    mine.down = __shfl_down_sync(ALL_LANES, lane, 3);
    mine.from = __shfl_sync(ALL_LANES, lane, 5);
    mine.segment = __shfl_xor_sync(ALL_LANES, lane, 9, 16);
    mine.ballot = __ballot_sync(ALL_LANES, lane % 3 == 0);
    mine.any = __any_sync(ALL_LANES, lane == 31);
    mine.all = __all_sync(ALL_LANES, lane < 31);
    mine.least = __reduce_min_sync(ALL_LANES, -lane);
    mine.most = __reduce_max_sync(ALL_LANES, lane);
    mine.sum = __reduce_add_sync(ALL_LANES, lane);
}

Test(block, collectives_give_what_the_language_says)
{
    EACH_ORDER(order)
    {
        cudahost_set_order(order, 11);
        results *r = device<results>(64);
        GPU_LAUNCH(collectives_kernel, 1, 64, 0, nullptr, r);
        std::vector<results> got = host(r, 64);
        for (int i = 0; i < 64; i++) {
            const results &g = got[(size_t)i];
            int lane = i % 32;
            cr_expect_eq(g.up, lane < 3 ? lane : lane - 3);
            cr_expect_eq(g.down, lane > 28 ? lane : lane + 3);
            cr_expect_eq(g.from, 5);
            cr_expect_eq(g.segment, lane ^ 9);
            cr_expect_eq(g.ballot, 0x49249249u);
            cr_expect(g.any && !g.all && g.least == -31 && g.most == 31 && g.sum == 496);
        }
    }
}

__global__ static void or_kernel(int *y)
{
    int first = __syncthreads_or(threadIdx.x == 70), second = __syncthreads_or(0);
    y[threadIdx.x] = first * 2 + second;
}

Test(block, a_barrier_can_vote)
{
    int *y = device<int>(96);
    GPU_LAUNCH(or_kernel, 1, 96, 0, nullptr, y);
    for (int v : host(y, 96))
        cr_expect_eq(v, 2);
}

/* 16 by 32 times 32 by 8, each number -8..8: lane l brings words of a and b and takes four of c. */
__global__ static void mma_kernel(int *c, const int8_t *a, const int8_t *b)
{
    const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
    const int *wa = (const int *)a, *wb = (const int *)b;
    int words[4] = { wa[g * 8 + t], wa[(g + 8) * 8 + t], wa[g * 8 + t + 4], wa[(g + 8) * 8 + t + 4] };
    int other[2] = { wb[g * 8 + t], wb[g * 8 + t + 4] }, sums[4];
    cudahost_mma_16x8x32(sums, words, other);
    for (unsigned i = 0; i < 4; i++)
        c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sums[i];
}

Test(block, a_warp_multiplies_matrices)
{
    std::vector<int8_t> a(16 * 32), b(8 * 32);
    for (size_t i = 0; i < a.size(); i++)
        a[i] = (int8_t)((int)(i * 7 % 17) - 8);
    for (size_t i = 0; i < b.size(); i++)
        b[i] = (int8_t)((int)(i * 5 % 17) - 8);
    int *c = device<int>(16 * 8);
    GPU_LAUNCH(mma_kernel, 1, 32, 0, nullptr, c, device(a), device(b));
    std::vector<int> got = host(c, 16 * 8);
    for (size_t r = 0; r < 16; r++)
        for (size_t j = 0; j < 8; j++) {
            int want = 0;
            for (size_t k = 0; k < 32; k++)
                want += a[r * 32 + k] * b[j * 32 + k];
            cr_expect_eq(got[r * 8 + j], want, "row %zu, column %zu", r, j);
        }
}

/* ---- asynchronous copies */

template <bool waits> __global__ static void stage_kernel(float4 *y, const float4 *x)
{
    GPU_SHARED(float4, s, [2][32]);
    for (int i = 0; i < 2; i++) {
        __pipeline_memcpy_async(&s[i][threadIdx.x], &x[32 * i + threadIdx.x], 16);
        __pipeline_commit();
    }
    __pipeline_wait_prior(waits ? 0 : 1);
    __syncthreads();
    for (int i = 0; i < 2; i++)
        y[32 * i + threadIdx.x] = s[i][31 - threadIdx.x];
    __pipeline_wait_prior(0);
}

Test(block, an_asynchronous_copy_is_there_when_waited_for_and_not_before)
{
    std::vector<float4> x(64);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = { (float)i, 0, 0, 1 };
    float4 *dx = device(x), *y = device<float4>(64);
    GPU_LAUNCH(stage_kernel<true>, 1, 32, 0, nullptr, y, dx);
    cr_expect_eq(host(y, 64)[32].x, 63);
    GPU_LAUNCH(stage_kernel<false>, 1, 32, 0, nullptr, y, dx);
    std::vector<float4> early = host(y, 64);
    cr_expect_eq(early[0].x, 31);
    cr_expect(early[32].x != early[32].x, "not copied yet, so still NaN");
}

/* ---- numbers */

Test(numbers, every_half_goes_to_float_and_back)
{
    for (unsigned u = 0; u < 65536; u++) {
        __half h = __ushort_as_half((unsigned short)u);
        float f = __half2float(h);
        unsigned exponent = u >> 10 & 31, fraction = u & 1023;
        double want = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
        if (exponent == 31) {
            cr_assert(fraction ? f != f : f == (u >> 15 ? -INFINITY : INFINITY), "%04x", u);
            continue;
        }
        cr_assert_eq((double)f, u >> 15 ? -want : want, "%04x", u);
        cr_assert_eq(__half_as_ushort(__float2half(f)), u, "%04x", u);
    }
}

Test(numbers, a_float_goes_to_the_nearest_half_ties_to_even)
{
    for (unsigned u = 0; u < 0x7bff; u++) {
        float below = __half2float(__ushort_as_half((unsigned short)u)),
              above = __half2float(__ushort_as_half((unsigned short)(u + 1))), middle = (below + above) / 2;
        unsigned even = u & 1 ? u + 1 : u;
        cr_assert_eq(__half_as_ushort(__float2half(middle)), even, "%04x", u);
        cr_assert_eq(__half_as_ushort(__float2half(nextafterf(middle, INFINITY))), u + 1, "%04x", u);
        cr_assert_eq(__half_as_ushort(__float2half(-nextafterf(middle, 0))), u | 0x8000, "%04x", u);
    }
    cr_expect_eq(__half_as_ushort(__float2half(65519.996f)), 0x7bff);
    cr_expect_eq(__half_as_ushort(__float2half(65520.0f)), 0x7c00);
}

Test(numbers, byte_arithmetic)
{
    cr_expect_eq(__dp4a((int)0x80ff017f, (int)0x80ff02fe, 1000), 1000 + 128 * 128 + 1 + 2 - 254);
    cr_expect_eq(__dp4a(0x80ff017fu, 0x80ff02feu, 1u), 1u + 128 * 128 + 255 * 255 + 2 + 127 * 254);
    cr_expect_eq(__byte_perm(0x33221100, 0x77665584, 0xc741), 0xff770011 | 0x8400);
    cr_expect_eq(__vsubss4(0x807f0005, 0x017f0102), 0x8000ff03);
    cr_expect_eq(__vadd4(0xff010203, 0x01010101), 0x00020304);
    cr_expect_eq(__clz(0), 32);
    cr_expect_eq(__umulhi(0x80000000u, 6), 3);
}
