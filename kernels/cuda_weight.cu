/* Cuda weights: from the file's layout to the device's, rows out of them, and rows out of an array.
 *
 * The one decision: quants and scales are torn apart (cuda_common.cuh says how they lie), because 16 bytes
 * that start at a multiple of 16 are one load and 18 or 20 are several. The device does it, at the speed of
 * its memory: a model's load waits for the file's bytes and not for arithmetic.
 * Thread: the stage thread. Must not know: which matrix of which layer this is.
 * Tests: tests/kernels/test_matmul.c */
#include "cuda_quant.cuh"
#include "quant_apart.h"

#include <stdio.h>
#include <stdlib.h>

#define PIECE_BLOCKS 65536u /* packed at a time */
#define ROW_THREADS 128

/* ---- embedding and gathering ---- */

/* What is looked up is exactly what the file says. */
static __device__ float any_weight_at(const struct cuda_layout &w, uint32_t type, size_t i)
{
    if (type == QUANT_F32)
        return weight_at<QUANT_F32>(w, i);
    if (type == QUANT_F16)
        return weight_at<QUANT_F16>(w, i);
    if (type == QUANT_BF16)
        return weight_at<QUANT_BF16>(w, i);
    CUDA_WITH_TYPE(type, weight_at, w, i)
    return 0;
}

/* One block of threads a row. */
static __global__ void embed_kernel(float *out, struct cuda_layout w, uint32_t type, const int32_t *ids,
                                    uint32_t cols, float by)
{
    const size_t row = (size_t)ids[blockIdx.x] * cols, to = (size_t)blockIdx.x * cols;
    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
        out[to + c] = by * any_weight_at(w, type, row + c);
}

static __global__ void halves_kernel(__half *out, struct cuda_layout w, uint32_t type, size_t first, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __float2half_rn(any_weight_at(w, type, first + i));
}

void cuda_weight_halves(const struct ops_weight *w, uint32_t first, uint32_t n, __half *out)
{
    const size_t all = (size_t)n * w->cols;
    GPU_LAUNCH(halves_kernel, (uint32_t)((all + ROW_THREADS - 1) / ROW_THREADS), ROW_THREADS, 0,
               w->dev->stream, out, w->at, w->type, (size_t)first * w->cols, all);
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
    GPU_LAUNCH(embed_kernel, n, ROW_THREADS, 0, d->stream, out, w->at, w->type, at, w->cols, scale);
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

/* Bytes of a block, but of super: of 8 blocks. */
struct sizes {
    size_t low, high, scale, super;
};

static struct sizes sizes_of(const struct cuda_form &f)
{
    const size_t halves = f.minima ? 4 : 2;
    return { f.bits == 8 ? 32u : 16u,
             f.bits == 5   ? 4u
             : f.bits == 6 ? 8u
                           : 0u,
             f.supers ? 2 : halves, f.supers ? halves : 0 };
}

static size_t bytes_of(const struct sizes &z, size_t n)
{
    return n * (z.low + z.high + z.scale) + n / CUDA_SUPER * z.super;
}

/* n blocks from `start` on, one kind of bytes after another. */
static struct cuda_layout place(const struct sizes &z, size_t n, unsigned char *start)
{
    return { start, start + n * z.low, start + n * (z.low + z.high), start + n * (z.low + z.high + z.scale) };
}

static struct cuda_layout block_at(const struct cuda_layout &w, const struct sizes &z, size_t b)
{
    return { w.low + b * z.low, w.high + b * z.high, w.scale + b * z.scale,
             w.super + b / CUDA_SUPER * z.super };
}

/* Quants as a block's low and high words. */
template <uint32_t TYPE>
static __device__ __forceinline__ void pack_quants(const uint8_t q[CUDA_BLOCK], uint32_t *low, uint32_t *high)
{
    using form = cuda_quant<TYPE>;
    uint32_t words[8] = {}, bits[2] = {};
#pragma unroll
    for (uint32_t c = 0; c < CUDA_BLOCK; c++) {
        if (form::bits == 8) /* quant_part has no signs */
            words[c / 4] |= (uint32_t)(q[c] ^ 0x80) << 8 * (c % 4);
        else
            words[c % 16 / 4] |= (uint32_t)(q[c] & 15) << (8 * (c % 4) + c / 16 * 4);
        if (form::bits == 5)
            bits[0] |= (uint32_t)(q[c] >> 4) << (8 * (c % 4) + c / 4);
        if (form::bits == 6)
            bits[c / 16] |= (uint32_t)(q[c] >> 4) << (8 * (c % 4) + 2 * (c / 4 % 4));
    }
#pragma unroll
    for (uint32_t i = 0; i < form::low_words; i++)
        low[i] = words[i];
    if (form::high_words > 0)
        high[0] = bits[0];
    if (form::high_words > 1)
        high[1] = bits[1];
}

/* A thread takes 32 weights of the file's n. */
template <uint32_t TYPE>
static __global__ void pack_kernel(struct cuda_layout to, const unsigned char *from, uint32_t bytes, size_t n)
{
    using form = cuda_quant<TYPE>;
    constexpr uint32_t parts = form::supers ? CUDA_SUPER : 1, halves = form::minima ? 2 : 1;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    struct quant_part part;
    quant_apart(TYPE, from + i / parts * bytes, (uint32_t)(i % parts), &part);
    pack_quants<TYPE>(part.q, (uint32_t *)to.low + i * form::low_words,
                      (uint32_t *)to.high + i * form::high_words);
    if (form::supers) {
        to.scale[2 * i] = (unsigned char)part.scale[0];
        to.scale[2 * i + 1] = (unsigned char)(form::minima ? -part.min : part.scale[1]);
    }
    if (i % parts)
        return;
    uint16_t *half = (uint16_t *)(form::supers ? to.super : to.scale) + i / parts * halves;
    half[0] = part.d;
    if (form::minima)
        half[1] = part.m;
}

template <uint32_t TYPE>
static void pack(struct ops_dev *d, const struct cuda_layout &to, const unsigned char *from, uint32_t bytes,
                 size_t n)
{
    GPU_LAUNCH(pack_kernel<TYPE>, (uint32_t)((n + ROW_THREADS - 1) / ROW_THREADS), ROW_THREADS, 0, d->stream,
               to, from, bytes, n);
    cuda_launched(d, "packing weights");
}

/* Blocks first .. first + n - 1 of all rows; both multiples of 8 where blocks of 256 are cut in 8. */
static void send_blocks(struct ops_dev *d, const struct ops_weight *w, const struct quant_info *info,
                        const unsigned char *from, size_t first, size_t n)
{
    const size_t parts = info->block / CUDA_BLOCK, bytes = n / parts * info->bytes;
    unsigned char *raw = (unsigned char *)cuda_room(d, &d->prepared, bytes, "weights on their way");
    if (!raw)
        return;
    cuda_upload(d, raw, from + first / parts * info->bytes, bytes);
    const struct cuda_layout to = block_at(w->at, sizes_of(cuda_form_of(w->type)), first);
    CUDA_WITH_TYPE(w->type, pack, d, to, raw, info->bytes, n)
}

static void send_weight(struct ops_dev *d, const struct ops_weight *w, const struct quant_info *info,
                        const unsigned char *from)
{
    const size_t all = (size_t)w->rows * w->blocks;
    if (!w->blocks)
        cuda_upload(d, w->at.low, from, w->bytes);
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
    w->blocks = cuda_form_of(t->type).bits ? w->cols / CUDA_BLOCK : 0;
    const struct sizes z = sizes_of(cuda_form_of(t->type));
    const size_t blocks = (size_t)w->rows * w->blocks;
    w->bytes = w->blocks ? bytes_of(z, blocks) : (size_t)w->rows * w->cols * info->bytes;
    if (cudaMalloc(&at, w->bytes) != cudaSuccess) {
        const size_t wanted = w->bytes;
        free(w);
        return cuda_no_memory(d, "a matrix", wanted, err, errlen);
    }
    w->at = place(z, blocks, (unsigned char *)at);
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
    cudaFree(w->at.low);
    free(w);
}

size_t cuda_weight_bytes(const struct ops_weight *w)
{
    return sizeof *w + w->bytes;
}
