/* Cuda weights: from the file's layout to the device's, rows out of them, and rows out of an array.
 *
 * The one decision: quants and scales are torn apart (cuda_common.cuh says how they lie), because 16 bytes
 * that start at a multiple of 16 are one load and 18 or 20 are several. It is done on the way, in the pinned
 * memory that the bytes pass through anyway.
 * Thread: the stage thread. Must not know: which matrix of which layer this is.
 * Tests: tests/kernels/test_matmul.c */
#include "cuda_common.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BLOCKS                                                                                         \
    65536u /* torn apart at a time; 36 bytes each at most, and CUDA_HALF has room for them                   \
            */
#define ROW_THREADS 128

/* ---- embedding and gathering ---- */

/* The same arithmetic as quant_dequantize: what is looked up is exactly what the file says. */
static __device__ float weight_at(const unsigned char *data, const __half *scale, uint32_t type, size_t i)
{
    const size_t block = i / CUDA_BLOCK, c = i % CUDA_BLOCK;
    switch (type) {
    case QUANT_F32:
        return ((const float *)data)[i];
    case QUANT_F16:
        return __half2float(((const __half *)data)[i]);
    case QUANT_BF16:
        return __uint_as_float((uint32_t)((const uint16_t *)data)[i] << 16);
    case QUANT_Q8_0:
        return __half2float(scale[block]) * (float)(int8_t)data[i];
    default:
        break;
    }
    const int both = data[block * 16 + c % 16], q = c < 16 ? both & 15 : both >> 4;
    if (type == QUANT_Q4_0)
        return __half2float(scale[block]) * (float)(q - 8);
    return __half2float(scale[2 * block]) * (float)q + __half2float(scale[2 * block + 1]);
}

/* One block of threads a row. */
static __global__ void embed_kernel(float *out, const unsigned char *data, const __half *scale, uint32_t type,
                                    const int32_t *ids, uint32_t cols, float by)
{
    const size_t row = (size_t)ids[blockIdx.x] * cols, to = (size_t)blockIdx.x * cols;
    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
        out[to + c] = by * weight_at(data, scale, type, row + c);
}

static __global__ void halves_kernel(__half *out, const unsigned char *data, const __half *scale,
                                     uint32_t type, size_t first, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __float2half_rn(weight_at(data, scale, type, first + i));
}

void cuda_weight_halves(const struct ops_weight *w, uint32_t first, uint32_t n, __half *out)
{
    const size_t all = (size_t)n * w->cols;
    GPU_LAUNCH(halves_kernel, (uint32_t)((all + ROW_THREADS - 1) / ROW_THREADS), ROW_THREADS, 0,
               w->dev->stream, out, w->data, w->scale, w->type, (size_t)first * w->cols, all);
    cuda_launched(w->dev, "halves of weights");
}

static __global__ void gather_kernel(float *out, const float *x, const uint32_t *idx, uint32_t cols)
{
    const size_t row = (size_t)idx[blockIdx.x] * cols, to = (size_t)blockIdx.x * cols;
    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
        out[to + c] = x[row + c];
}

/* n numbers to the device; NULL (recorded) when that failed. */
static void *send_index(struct ops_dev *d, const void *numbers, uint32_t n)
{
    void *at = cuda_room(d, &d->index, (size_t)n * sizeof(uint32_t), "a list of rows");
    if (at)
        cuda_upload(d, at, numbers, (size_t)n * sizeof(uint32_t));
    return at;
}

void cuda_embed(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float scale,
                float *out)
{
    cuda_use(d);
    const int32_t *at = n ? (const int32_t *)send_index(d, ids, n) : NULL;
    if (!at)
        return;
    GPU_LAUNCH(embed_kernel, n, ROW_THREADS, 0, d->stream, out, w->data, w->scale, w->type, at, w->cols,
               scale);
    cuda_launched(d, "embed");
}

void cuda_gather(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols,
                 float *out)
{
    cuda_use(d);
    const uint32_t *at = n ? (const uint32_t *)send_index(d, idx, n) : NULL;
    if (!at)
        return;
    GPU_LAUNCH(gather_kernel, n, ROW_THREADS, 0, d->stream, out, x, at, cols);
    cuda_launched(d, "gather");
}

/* ---- weights ---- */

/* Whether the kernels of cuda_matvec.cu, cuda_tile.cu and cuda_floats.cu multiply it. */
static bool has_kernels(uint32_t type)
{
    switch (type) {
    case QUANT_F32:
    case QUANT_F16:
    case QUANT_BF16:
    case QUANT_Q8_0:
    case QUANT_Q4_0:
    case QUANT_Q4_1:
        return true;
    default:
        return false;
    }
}

/* Blocks first .. first + n - 1 of all rows. */
static void send_blocks(struct ops_dev *d, const struct ops_weight *w, const struct quant_info *info,
                        const unsigned char *from, size_t first, size_t n)
{
    const size_t scale = w->type == QUANT_Q4_1 ? 4 : 2, quants = info->bytes - scale;
    unsigned char *staged = (unsigned char *)cuda_stage(d, n * info->bytes);
    if (!staged)
        return;
    for (size_t b = 0; b < n; b++) {
        const unsigned char *at = from + (first + b) * info->bytes;
        memcpy(staged + b * quants, at + scale, quants);
        memcpy(staged + n * quants + b * scale, at, scale);
    }
    cuda_ok(d,
            cudaMemcpyAsync(w->data + first * quants, staged, n * quants, cudaMemcpyHostToDevice, d->stream),
            "copying weights");
    cuda_ok(d,
            cudaMemcpyAsync((unsigned char *)(uintptr_t)w->scale + first * scale, staged + n * quants,
                            n * scale, cudaMemcpyHostToDevice, d->stream),
            "copying scales");
}

static void send_weight(struct ops_dev *d, const struct ops_weight *w, const struct quant_info *info,
                        const unsigned char *from)
{
    const size_t all = (size_t)w->rows * w->blocks;
    if (!w->blocks)
        cuda_upload(d, w->data, from, w->bytes);
    for (size_t first = 0; first < all; first += PIECE_BLOCKS)
        send_blocks(d, w, info, from, first, all - first < PIECE_BLOCKS ? all - first : PIECE_BLOCKS);
}

int cuda_weight_new(struct ops_dev *d, const struct ops_tensor *t, struct ops_weight **ret_weight, char *err,
                    size_t errlen)
{
    const struct quant_info *info = NULL;
    void *at = NULL;
    int r = shape_check_weight(t, &info, err, errlen);
    if (r < 0)
        return r;
    if (!has_kernels(t->type)) {
        snprintf(err, errlen, "type %s: the CUDA device does not multiply it yet, the CPU does", info->name);
        return -ENOTSUP;
    }
    cuda_use(d);
    struct ops_weight *w = (struct ops_weight *)calloc(1, sizeof *w);
    if (!w) {
        snprintf(err, errlen, "no memory for a weight");
        return -ENOMEM;
    }
    w->dev = d;
    w->type = t->type;
    w->rows = (uint32_t)t->rows;
    w->cols = (uint32_t)t->cols;
    w->blocks = info->block == CUDA_BLOCK ? w->cols / CUDA_BLOCK : 0;
    w->bytes = (size_t)w->rows * (w->cols / info->block) * info->bytes;
    if (cudaMalloc(&at, w->bytes) != cudaSuccess) {
        free(w);
        return cuda_no_memory(d, "a matrix", (size_t)t->rows * (t->cols / info->block) * info->bytes, err,
                              errlen);
    }
    w->data = (unsigned char *)at;
    if (w->blocks) /* behind all quants, which are a multiple of 16 bytes */
        w->scale = (const __half *)(w->data + (size_t)w->rows * w->cols / (t->type == QUANT_Q8_0 ? 1 : 2));
    send_weight(d, w, info, (const unsigned char *)t->data);
    *ret_weight = w;
    return 0;
}

void cuda_weight_free(struct ops_weight *w)
{
    if (!w)
        return;
    cuda_use(w->dev);
    cudaStreamSynchronize(w->dev->stream);
    cudaFree(w->data);
    free(w);
}

size_t cuda_weight_bytes(const struct ops_weight *w)
{
    return sizeof *w + w->bytes;
}
