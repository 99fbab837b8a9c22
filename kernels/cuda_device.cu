/* Cuda device: opening, memory, copies through pinned memory, errors, and the table ops_cuda.
 *
 * The one decision: host memory handed to an operation may change as soon as the call returns, so everything
 * small passes through pinned memory taken piece by piece from one half, then the other; a half is taken
 * again when the event behind its last copy has passed. A window takes less than a half, so nothing waits.
 *
 * Errors: operations return nothing, so the first failure is kept with what failed and reported by sync().
 * But for memory that is not there and impossible launches they last: -ENODEV, the device is lost to this
 * process. Thread: as cuda_common.cuh says. Must not know: requests, sessions, model names, config keys.
 * Tests: tests/kernels/test_cuda.c */
#include "cuda_blas.cuh"
#include "cuda_common.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cuda_use(const struct ops_dev *d)
{
    cudaSetDevice(d->ordinal);
}

/* ---- errors ---- */

void cuda_fail(struct ops_dev *d, int error, const char *text)
{
    if (d->error)
        return;
    d->error = error;
    snprintf(d->error_text, sizeof d->error_text, "%s", text);
}

bool cuda_ok(struct ops_dev *d, cudaError_t e, const char *what)
{
    char text[200];
    if (e == cudaSuccess)
        return true;
    snprintf(text, sizeof text, "CUDA device %d: %s: %s", d->ordinal, what, cudaGetErrorString(e));
    cuda_fail(d,
              e == cudaErrorMemoryAllocation       ? -ENOMEM
              : e == cudaErrorInvalidConfiguration ? -EIO
                                                   : -ENODEV,
              text);
    return false;
}

void cuda_launched(struct ops_dev *d, const char *kernel)
{
    cuda_ok(d, cudaGetLastError(), kernel);
}

static size_t memory_free(struct ops_dev *d)
{
    size_t unused = 0, all = 0;
    cuda_use(d);
    return cudaMemGetInfo(&unused, &all) == cudaSuccess ? unused : 0;
}

int cuda_no_memory(const struct ops_dev *d, const char *what, size_t wanted, char *err, size_t errlen)
{
    size_t unused = 0, all = 0;
    cudaMemGetInfo(&unused, &all);
    snprintf(err, errlen, "out of memory on CUDA device %d: %s wants %zu bytes, %zu of %zu are free",
             d->ordinal, what, wanted, unused, all);
    cudaGetLastError(); /* not a failure of what comes next */
    return -ENOMEM;
}

/* ---- memory ---- */

void *cuda_room(struct ops_dev *d, struct cuda_buffer *b, size_t bytes, const char *what)
{
    char text[200];
    void *at = NULL;
    size_t more = bytes + bytes / 4; /* so that a growing context does not ask at every token */
    if (bytes <= b->size)
        return b->at;
    /* What is queued may still use the old one. */
    if (!cuda_ok(d, cudaStreamSynchronize(d->stream), what))
        return NULL;
    cudaFree(b->at);
    *b = (struct cuda_buffer){ NULL, 0 };
    if (cudaMalloc(&at, more) != cudaSuccess) {
        cuda_fail(d, cuda_no_memory(d, what, more, text, sizeof text), text);
        return NULL;
    }
    *b = (struct cuda_buffer){ at, more };
    return at;
}

void *cuda_stage(struct ops_dev *d, size_t bytes)
{
    const size_t rounded = (bytes + 15) / 16 * 16;
    if (d->used + rounded > CUDA_HALF) {
        bool ok = cuda_ok(d, cudaEventRecord(d->copied[d->half], d->stream), "recording an event");
        d->half ^= 1;
        d->used = 0;
        if (!ok || !cuda_ok(d, cudaEventSynchronize(d->copied[d->half]), "waiting for a copy"))
            return NULL;
    }
    unsigned char *at = d->pinned + (size_t)d->half * CUDA_HALF + d->used;
    d->used += rounded;
    return at;
}

void cuda_upload(struct ops_dev *d, void *to, const void *from, size_t bytes)
{
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < CUDA_HALF ? bytes - done : CUDA_HALF;
        void *staged = cuda_stage(d, n);
        if (!staged)
            return;
        memcpy(staged, (const unsigned char *)from + done, n);
        if (!cuda_ok(
                d, cudaMemcpyAsync((unsigned char *)to + done, staged, n, cudaMemcpyHostToDevice, d->stream),
                "copying to the device"))
            return;
    }
}

static void upload(struct ops_dev *d, void *to, const void *from, size_t bytes)
{
    cuda_use(d);
    cuda_upload(d, to, from, bytes);
}

void cuda_download(struct ops_dev *d, void *to, const void *from, size_t bytes)
{
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < CUDA_HALF ? bytes - done : CUDA_HALF;
        void *staged = cuda_stage(d, n);
        if (!staged ||
            !cuda_ok(d,
                     cudaMemcpyAsync(staged, (const unsigned char *)from + done, n, cudaMemcpyDeviceToHost,
                                     d->stream),
                     "copying from the device") ||
            !cuda_ok(d, cudaStreamSynchronize(d->stream), "running"))
            return;
        memcpy((unsigned char *)to + done, staged, n);
    }
}

static void download(struct ops_dev *d, void *to, const void *from, size_t bytes)
{
    cuda_use(d);
    cuda_download(d, to, from, bytes);
}

static void *mem_alloc(struct ops_dev *d, size_t bytes)
{
    void *at = NULL;
    cuda_use(d);
    cudaError_t e = cudaMalloc(&at, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* the caller says it: it knows what for */
    else
        cuda_ok(d, e, "taking memory");
    if (e != cudaSuccess)
        return NULL;
    if (!cuda_ok(d, cudaMemsetAsync(at, 0, bytes, d->stream), "clearing memory")) {
        cudaFree(at);
        return NULL;
    }
    return at;
}

static void mem_release(struct ops_dev *d, void *memory)
{
    if (!memory)
        return;
    cuda_use(d);
    cudaStreamSynchronize(d->stream); /* a failure is reported by whoever asks next */
    cudaFree(memory);
}

static int dev_sync(struct ops_dev *d, char *err, size_t errlen)
{
    cuda_use(d);
    cuda_ok(d, cudaStreamSynchronize(d->stream), "running");
    int r = d->error;
    if (r < 0)
        snprintf(err, errlen, "%s", d->error_text);
    d->error = 0;
    return r;
}

/* ---- opening and closing ---- */

static void dev_close(struct ops_dev *d)
{
    if (!d)
        return;
    cuda_use(d);
    if (d->stream)
        cudaStreamSynchronize(d->stream);
    cuda_blas_close(d->blas);
    struct cuda_buffer *buffers[] = { &d->prepared, &d->halves, &d->partials, &d->index, &d->best, &d->plan };
    for (struct cuda_buffer *b : buffers)
        cudaFree(b->at);
    for (cudaEvent_t e : d->copied)
        if (e)
            cudaEventDestroy(e);
    cudaFreeHost(d->pinned);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    free(d->plan_host);
    free(d->plan_new);
    free(d);
}

static int find_device(uint32_t part, int *ret_ordinal, char *err, size_t errlen)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1) {
        cudaGetLastError();
        snprintf(err, errlen, "no CUDA device: %s",
                 e == cudaSuccess                   ? "none is there"
                 : e == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one too old for this build"
                                                    : cudaGetErrorString(e));
        return -ENODEV;
    }
    *ret_ordinal = (int)(part % (uint32_t)n);
    return 0;
}

static cudaError_t make(struct ops_dev *d)
{
    cudaDeviceProp about;
    void *pinned = NULL;
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&about, d->ordinal);
    if (e == cudaSuccess) {
        d->processors = (uint32_t)about.multiProcessorCount;
        snprintf(d->describe, sizeof d->describe, "device %d: %.100s, compute %d.%d", d->ordinal, about.name,
                 about.major, about.minor);
        e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    }
    for (int i = 0; e == cudaSuccess && i < 2; i++)
        e = cudaEventCreateWithFlags(&d->copied[i], cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaMallocHost(&pinned, 2 * CUDA_HALF);
    d->pinned = (unsigned char *)pinned;
    return e;
}

static int dev_open(const struct ops_open *how, struct ops_dev **ret_dev, char *err, size_t errlen)
{
    int ordinal, r = find_device(how->part, &ordinal, err, errlen);
    if (r < 0)
        return r;
    struct ops_dev *d = (struct ops_dev *)calloc(1, sizeof *d);
    if (!d) {
        snprintf(err, errlen, "no memory for the CUDA device");
        return -ENOMEM;
    }
    d->ordinal = ordinal;
    d->activations = how->activations;
    cudaError_t e = make(d);
    if (e != cudaSuccess) {
        snprintf(err, errlen, "CUDA device %d cannot be used: %s", ordinal, cudaGetErrorString(e));
        cudaGetLastError();
        dev_close(d);
        return e == cudaErrorMemoryAllocation ? -ENOMEM : -ENODEV;
    }
    r = how->any_order ? cuda_blas_open(d->stream, &d->blas, err, errlen) : 0;
    if (r < 0) {
        dev_close(d);
        return r;
    }
    *ret_dev = d;
    return 0;
}

static const char *dev_describe(const struct ops_dev *d)
{
    return d->describe;
}

/* The CPU's words for it, as long as the order of sums is the same. */
static const char *dev_arithmetic(const struct ops_dev *d)
{
    if (d->blas)
        return "vector and cuBLAS";
    static const char *const texts[] = { "vector, int8 activations", "vector, int16 activations",
                                         "vector, f32 activations" };
    return texts[d->activations];
}

extern "C" const struct ops ops_cuda = {
    .name = "cuda",
    .plain_memory = false,
    .open = dev_open,
    .close = dev_close,
    .describe = dev_describe,
    .arithmetic = dev_arithmetic,
    .alloc = mem_alloc,
    .release = mem_release,
    .memory_free = memory_free,
    .upload = upload,
    .download = download,
    .sync = dev_sync,
    .weight_new = cuda_weight_new,
    .weight_free = cuda_weight_free,
    .weight_bytes = cuda_weight_bytes,
    .kv_new = cuda_kv_new,
    .kv_free = cuda_kv_free,
    .kv_block_bytes = cuda_kv_block_bytes,
    .kv_copy = cuda_kv_copy,
    .kv_get = cuda_kv_get,
    .kv_put = cuda_kv_put,
    .embed = cuda_embed,
    .matmul = cuda_matmul,
    .attention = cuda_attention,
    .gather = cuda_gather,
    .norm_add = cuda_norm_add,
    .best = cuda_best,
};
