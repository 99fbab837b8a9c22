/* Cuda KV: pools of blocks. The device has no memory that is taken as it is touched, so a pool is had whole
 * or not at all, and the error says how much was wanted and how much is free.
 *
 * Thread: the stage thread; what goes to and from host memory, in the form of ops.h, goes by any thread on a
 * stream of the pool's own, one at a time. Must not know: who holds a block and why.
 * Tests: tests/kernels/test_attention.c */
#include "cuda_common.cuh"

extern "C" {
#include "kv_form.h"
}

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define COPY_THREADS 128u

/* The way to host memory: a whole block passes through pinned memory and is torn apart there. */
struct cuda_kv_io {
    pthread_mutex_t lock;
    cudaStream_t stream;
    unsigned char *block;
};

size_t cuda_kv_block_bytes(const struct ops_kv_shape *shape)
{
    return shape_of_kv(shape).block_bytes;
}

static cudaError_t open_io(struct ops_kv *kv)
{
    void *block = NULL;
    kv->io = (struct cuda_kv_io *)calloc(1, sizeof *kv->io);
    if (!kv->io)
        return cudaErrorMemoryAllocation;
    pthread_mutex_init(&kv->io->lock, NULL);
    cudaError_t e = cudaStreamCreateWithFlags(&kv->io->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaMallocHost(&block, kv->is.block_bytes);
    kv->io->block = (unsigned char *)block;
    return e;
}

int cuda_kv_new(struct ops_dev *d, const struct ops_kv_shape *shape, struct ops_kv **ret_kv, char *err,
                size_t errlen)
{
    void *base = NULL;
    size_t bytes;
    int r = shape_check_kv(shape, err, errlen);
    if (r < 0)
        return r;
    cuda_use(d);
    struct ops_kv *kv = (struct ops_kv *)calloc(1, sizeof *kv);
    if (!kv) {
        snprintf(err, errlen, "no memory for a KV pool");
        return -ENOMEM;
    }
    kv->dev = d;
    kv->shape = *shape;
    kv->is = shape_of_kv(shape);
    if (__builtin_mul_overflow(kv->is.block_bytes, (size_t)shape->blocks, &bytes))
        bytes = SIZE_MAX;
    if (bytes == SIZE_MAX || cudaMalloc(&base, bytes) != cudaSuccess) {
        cuda_kv_free(kv);
        return cuda_no_memory(d, "the KV pool", bytes, err, errlen);
    }
    kv->base = (unsigned char *)base;
    cudaError_t e = open_io(kv);
    if (e != cudaSuccess) {
        snprintf(err, errlen, "CUDA device %d: %zu bytes of pinned memory: %s", d->ordinal,
                 kv->is.block_bytes, cudaGetErrorString(e));
        cudaGetLastError();
        cuda_kv_free(kv);
        return -ENOMEM;
    }
    *ret_kv = kv;
    return 0;
}

void cuda_kv_free(struct ops_kv *kv)
{
    if (!kv)
        return;
    cuda_use(kv->dev);
    cudaStreamSynchronize(kv->dev->stream);
    if (kv->io) {
        cudaFreeHost(kv->io->block);
        if (kv->io->stream)
            cudaStreamDestroy(kv->io->stream);
        pthread_mutex_destroy(&kv->io->lock);
        free(kv->io);
    }
    cudaFree(kv->base);
    free(kv);
}

/* ---- copying ---- */

/* The first `tokens` of each line of 64. */
template <typename T>
static __device__ void copy_lines(unsigned char *to, const unsigned char *from, uint32_t lines,
                                  uint32_t tokens)
{
    for (uint32_t i = threadIdx.x; i < lines * OPS_BLOCK_TOKENS; i += COPY_THREADS)
        if (i % OPS_BLOCK_TOKENS < tokens)
            ((T *)to)[i] = ((const T *)from)[i];
}

template <typename T>
static __device__ void copy_all(unsigned char *to, const unsigned char *from, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += COPY_THREADS)
        ((T *)to)[i] = ((const T *)from)[i];
}

/* One block of threads a layer and head; how a head lies is in shape.h. */
template <typename T>
static __global__ void copy_kernel(unsigned char *to, const unsigned char *from, struct shape_kv is,
                                   uint32_t dim, uint32_t tokens)
{
    const size_t head = ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * is.head_bytes;
    unsigned char *t = to + head, *t_v = t + is.k_bytes;
    const unsigned char *f = from + head, *f_v = f + is.k_bytes;
    copy_lines<T>(t, f, dim, tokens);
    copy_all<T>(t_v, f_v, tokens * is.padded);
}

static __global__ void copy_q8_kernel(unsigned char *to, const unsigned char *from, struct shape_kv is,
                                      uint32_t dim, uint32_t tokens)
{
    const size_t head = ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * is.head_bytes;
    const uint32_t quants = OPS_BLOCK_TOKENS * dim, blocks = dim / SHAPE_KV_BLOCK;
    unsigned char *t = to + head, *t_v = t + is.k_bytes;
    const unsigned char *f = from + head, *f_v = f + is.k_bytes;
    copy_lines<uint32_t>(t, f, dim / 4, tokens);
    copy_lines<uint16_t>(t + quants, f + quants, blocks, tokens);
    copy_all<uint32_t>(t_v, f_v, tokens * dim / 4);
    copy_all<uint16_t>(t_v + quants, f_v + quants, tokens * blocks);
}

void cuda_kv_copy(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens)
{
    struct ops_dev *d = kv->dev;
    const struct ops_kv_shape *s = &kv->shape;
    unsigned char *t = kv->base + to * kv->is.block_bytes;
    const unsigned char *f = kv->base + from * kv->is.block_bytes;
    const dim3 grid(s->layers, s->heads);
    if (to == from)
        return;
    cuda_use(d);
    if (s->type == OPS_KV_F16)
        GPU_LAUNCH(copy_kernel<uint16_t>, grid, COPY_THREADS, 0, d->stream, t, f, kv->is, s->head_dim,
                   tokens);
    else if (s->type == OPS_KV_F32)
        GPU_LAUNCH(copy_kernel<uint32_t>, grid, COPY_THREADS, 0, d->stream, t, f, kv->is, s->head_dim,
                   tokens);
    else
        GPU_LAUNCH(copy_q8_kernel, grid, COPY_THREADS, 0, d->stream, t, f, kv->is, s->head_dim, tokens);
    cuda_launched(d, "kv copy");
}

/* ---- to and from host memory ---- */

/* The block to pinned memory, or back; false when the device failed, which the next sync() says too. */
static bool move_block(const struct ops_kv *kv, uint32_t block, cudaMemcpyKind kind)
{
    unsigned char *at = kv->base + block * kv->is.block_bytes, *host = kv->io->block;
    const bool up = kind == cudaMemcpyHostToDevice;
    return cudaMemcpyAsync(up ? at : host, up ? host : at, kv->is.block_bytes, kind, kv->io->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(kv->io->stream) == cudaSuccess;
}

void cuda_kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to)
{
    pthread_mutex_lock(&kv->io->lock);
    cuda_use(kv->dev);
    if (move_block(kv, block, cudaMemcpyDeviceToHost))
        kv_form_get(&kv->shape, kv->io->block, tokens, to);
    pthread_mutex_unlock(&kv->io->lock);
}

void cuda_kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from)
{
    pthread_mutex_lock(&kv->io->lock);
    cuda_use(kv->dev);
    /* What other positions hold stays: the block comes first. */
    if (move_block(kv, block, cudaMemcpyDeviceToHost)) {
        kv_form_put(&kv->shape, kv->io->block, tokens, from);
        move_block(kv, block, cudaMemcpyHostToDevice);
    }
    pthread_mutex_unlock(&kv->io->lock);
}
