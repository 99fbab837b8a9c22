/* Cuda: the three spellings of CUDA that a plain C++ compiler cannot read, or where the emulator of
 * tests/cudahost has to know more than the language says. A kernel uses these and is then both nvcc's and
 * g++'s.
 *
 *   GPU_LAUNCH(kernel, grid, block, shared bytes, stream, arguments...)   a kernel with commas in its name in
 * parentheses GPU_SHARED(float, part, [32]);               shared memory of the block: float part[32]
 *   GPU_SHARED_DYNAMIC(float, rows);             float *rows: the launch's shared bytes, aligned to 16
 *
 * Under the emulator they come with tests/cudahost/include/cuda_runtime.h: shared memory ends at a guard page
 * there. */
#pragma once
#include <cuda_runtime.h>

#ifdef __CUDACC__
#define GPU_LAUNCH(kernel, grid, block, shared, stream, ...)                                                 \
    (kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define GPU_SHARED(type, name, dims) __shared__ type name dims
#define GPU_SHARED_DYNAMIC(type, name)                                                                       \
    extern __shared__ __align__(16) unsigned char gpu_shared_dynamic[];                                      \
    type *name = (type *)gpu_shared_dynamic
#endif
