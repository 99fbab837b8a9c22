/* Cuda KV: pools of blocks. The device has no memory that is taken as it is touched, so a pool is had whole
 * or not at all, and the error says how much was wanted and how much is free.
 *
 * Thread: the stage thread; what goes to and from host memory, in the form of ops.h, goes by any thread on a
 * stream of the pool's own, one at a time. Must not know: who holds a block and why.
 * Tests: tests/kernels/test_attention.c */
#include "cuda_common.cuh"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (shape->type != OPS_KV_F16 && shape->type != OPS_KV_F32) {
        snprintf(err, errlen, "KV type number %d: the CUDA device keeps f16 or f32", (int)shape->type);
        return -ENOTSUP;
    }
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

/* One block of threads a layer and head. */
template <typename T>
static __global__ void copy_kernel(unsigned char *to, const unsigned char *from, size_t head_bytes,
                                   uint32_t dim, uint32_t padded, uint32_t tokens)
{
    const size_t head = ((size_t)blockIdx.x * gridDim.y + blockIdx.y) * head_bytes;
    T *k = (T *)(to + head), *v = k + dim * OPS_BLOCK_TOKENS;
    const T *from_k = (const T *)(from + head), *from_v = from_k + dim * OPS_BLOCK_TOKENS;
    for (uint32_t i = threadIdx.x; i < dim * OPS_BLOCK_TOKENS; i += COPY_THREADS)
        if (i % OPS_BLOCK_TOKENS < tokens)
            k[i] = from_k[i];
    for (uint32_t i = threadIdx.x; i < tokens * padded; i += COPY_THREADS)
        v[i] = from_v[i];
}

void cuda_kv_copy(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens)
{
    struct ops_dev *d = kv->dev;
    const struct ops_kv_shape *s = &kv->shape;
    unsigned char *t = kv->base + to * kv->is.block_bytes;
    const unsigned char *f = kv->base + from * kv->is.block_bytes;
    if (to == from)
        return;
    cuda_use(d);
    if (s->type == OPS_KV_F16)
        GPU_LAUNCH(copy_kernel<uint16_t>, dim3(s->layers, s->heads), COPY_THREADS, 0, d->stream, t, f,
                   kv->is.head_bytes, s->head_dim, kv->is.padded, tokens);
    else
        GPU_LAUNCH(copy_kernel<uint32_t>, dim3(s->layers, s->heads), COPY_THREADS, 0, d->stream, t, f,
                   kv->is.head_bytes, s->head_dim, kv->is.padded, tokens);
    cuda_launched(d, "kv copy");
}

/* ---- to and from host memory ---- */

/* Between a block as it lies on the device and the form of ops.h: `get` from the block, else into it. */
static void convert(const struct ops_kv *kv, unsigned char *block, uint32_t tokens, unsigned char *host,
                    bool get)
{
    const size_t element = kv->is.element, dim = kv->shape.head_dim, line = OPS_BLOCK_TOKENS * element;
    unsigned char *at = host;
    for (size_t head = 0; head < (size_t)kv->shape.layers * kv->shape.heads; head++) {
        unsigned char *k = block + head * kv->is.head_bytes, *v = k + kv->is.k_bytes;
        for (uint32_t t = 0; t < tokens; t++)
            for (size_t i = 0; i < dim; i++, at += element) {
                unsigned char *cell = k + i * line + t * element;
                memcpy(get ? at : cell, get ? cell : at, element);
            }
        for (uint32_t t = 0; t < tokens; t++, at += dim * element) {
            unsigned char *row = v + t * kv->is.padded * element;
            memcpy(get ? at : row, get ? row : at, dim * element);
        }
    }
}

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
        convert(kv, kv->io->block, tokens, (unsigned char *)to, true);
    pthread_mutex_unlock(&kv->io->lock);
}

void cuda_kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from)
{
    pthread_mutex_lock(&kv->io->lock);
    cuda_use(kv->dev);
    /* What other positions hold stays: the block comes first. */
    if (move_block(kv, block, cudaMemcpyDeviceToHost)) {
        convert(kv, kv->io->block, tokens, (unsigned char *)(uintptr_t)from, false);
        move_block(kv, block, cudaMemcpyHostToDevice);
    }
    pthread_mutex_unlock(&kv->io->lock);
}
