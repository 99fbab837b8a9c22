/* cudahost: what a kernel may call: barriers, warp collectives, atomics, integer and float intrinsics.
 *
 * Barriers and collectives go to the fibers of block.cpp; the rest is arithmetic as the CUDA programming
 * guide defines it. A call that waits carries the place it stands at, for reports. See cuda_runtime.h. */
#pragma once
#include "cudahost_types.h"

#include <type_traits>

extern uint3 threadIdx, blockIdx, blockDim, gridDim;
enum { warpSize = 32 };

struct cudahost_site {
    const char *file;
    int line;
};
#define CUDAHOST_HERE cudahost_site at = { __builtin_FILE(), __builtin_LINE() }

void cudahost_block_barrier(cudahost_site at);
/* Waits for the lanes of `mask`; the last to come runs `op` once over what all brought. NULL: lane not in the
 * call. */
typedef void (*cudahost_op)(void *const brought[32], unsigned mask);
void cudahost_warp(unsigned mask, const char *name, cudahost_op op, void *brought, cudahost_site at);
int cudahost_lane(void);
void cudahost_atomic(void); /* in the random order another thread may go first */
void cudahost_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn)); /* ends the block */

static inline void __syncthreads(CUDAHOST_HERE)
{
    cudahost_block_barrier(at);
}
int __syncthreads_or(int p, CUDAHOST_HERE);
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDAHOST_HERE)
{
    cudahost_warp(
        mask, "__syncwarp", [](void *const *, unsigned) {}, nullptr, at);
}
static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}

struct cudahost_shuffle {
    uint64_t in, out;
    int from;
};
void cudahost_shuffle_op(void *const brought[32], unsigned mask);
template <class T>
static inline T cudahost_shuffle_from(unsigned mask, T v, int from, const char *name, cudahost_site at)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a shuffle moves 4 or 8 bytes");
    cudahost_shuffle s = { 0, 0, from };
    memcpy(&s.in, &v, sizeof v);
    cudahost_warp(mask, name, cudahost_shuffle_op, &s, at);
    memcpy(&v, &s.out, sizeof v);
    return v;
}
/* The first and last lane of this lane's segment of `width`. */
static inline int cudahost_first(int width)
{
    return cudahost_lane() & ~(width - 1);
}
static inline int cudahost_last(int width)
{
    return cudahost_lane() | (width - 1);
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, CUDAHOST_HERE)
{
    return cudahost_shuffle_from(mask, v, cudahost_first(width) | (from & (width - 1)), "__shfl_sync", at);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, CUDAHOST_HERE)
{
    int own = cudahost_lane(), from = own ^ bits;
    return cudahost_shuffle_from(mask, v, from <= cudahost_last(width) ? from : own, "__shfl_xor_sync", at);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, CUDAHOST_HERE)
{
    int own = cudahost_lane(), from = own + (int)by;
    return cudahost_shuffle_from(mask, v, from <= cudahost_last(width) ? from : own, "__shfl_down_sync", at);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, CUDAHOST_HERE)
{
    int own = cudahost_lane(), from = own - (int)by;
    return cudahost_shuffle_from(mask, v, from >= cudahost_first(width) ? from : own, "__shfl_up_sync", at);
}

struct cudahost_vote {
    int64_t in, out;
};
void cudahost_ballot_op(void *const brought[32], unsigned mask);
void cudahost_add_op(void *const brought[32], unsigned mask);
void cudahost_min_op(void *const brought[32], unsigned mask);
void cudahost_max_op(void *const brought[32], unsigned mask);
static inline int64_t cudahost_vote_of(unsigned mask, int64_t in, const char *name, cudahost_op op,
                                       cudahost_site at)
{
    cudahost_vote v = { in, 0 };
    cudahost_warp(mask, name, op, &v, at);
    return v.out;
}
static inline unsigned __ballot_sync(unsigned mask, int p, CUDAHOST_HERE)
{
    return (unsigned)cudahost_vote_of(mask, p != 0, "__ballot_sync", cudahost_ballot_op, at);
}
static inline int __any_sync(unsigned mask, int p, CUDAHOST_HERE)
{
    return __ballot_sync(mask, p, at) != 0;
}
static inline int __all_sync(unsigned mask, int p, CUDAHOST_HERE)
{
    return __ballot_sync(mask, !p, at) == 0;
}
template <class T> static inline T __reduce_add_sync(unsigned mask, T v, CUDAHOST_HERE)
{
    static_assert(std::is_integral<T>::value && sizeof(T) == 4, "a reduction is of 32-bit integers");
    return (T)cudahost_vote_of(mask, v, "__reduce_add_sync", cudahost_add_op, at);
}
template <class T> static inline T __reduce_max_sync(unsigned mask, T v, CUDAHOST_HERE)
{
    static_assert(std::is_integral<T>::value && sizeof(T) == 4, "a reduction is of 32-bit integers");
    return (T)cudahost_vote_of(mask, v, "__reduce_max_sync", cudahost_max_op, at);
}
template <class T> static inline T __reduce_min_sync(unsigned mask, T v, CUDAHOST_HERE)
{
    static_assert(std::is_integral<T>::value && sizeof(T) == 4, "a reduction is of 32-bit integers");
    return (T)cudahost_vote_of(mask, v, "__reduce_min_sync", cudahost_min_op, at);
}

/* A warp's share of mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 with c = 0, by its registers, which a
 * plain compiler has no instruction for. */
void cudahost_mma_16x8x32(int c[4], const int a[4], const int b[2], CUDAHOST_HERE);

#include "cudahost_math.h"
