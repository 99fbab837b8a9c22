/* Cuda weights: from the file's layout to the device's, rows out of them, and rows out of an array.
 *
 * The one decision: quants and scales are torn apart (cuda_common.cuh says how they lie), because 16 bytes
 * that start at a multiple of 16 are one load and 18 or 20 are several. It is done on the way, into the
 * pinned memory that the bytes pass through anyway.
 * Thread: the stage thread. Must not know: which matrix of which layer this is.
 * Tests: tests/kernels/test_matmul.c */
#include "cuda_quant.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BLOCKS 65536u /* torn apart at a time; 36 bytes each at most, for which CUDA_HALF has room */
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

static void pack_quants(const uint8_t *q, uint32_t bits, const struct cuda_layout &to)
{
    if (bits == 8) { /* quant_part has no signs */
        for (uint32_t c = 0; c < CUDA_BLOCK; c++)
            to.low[c] = q[c] ^ 0x80;
        return;
    }
    for (uint32_t c = 0; c < 16; c++)
        to.low[c] = (uint8_t)((q[c] & 15) | (q[c + 16] & 15) << 4);
    memset(to.high, 0, bits == 5 ? 4 : bits == 6 ? 8 : 0);
    for (uint32_t c = 0; c < CUDA_BLOCK && bits == 5; c++)
        to.high[c % 4] = (uint8_t)(to.high[c % 4] | q[c] >> 4 << c / 4);
    for (uint32_t c = 0; c < CUDA_BLOCK && bits == 6; c++) {
        unsigned char *high = to.high + c / 16 * 4 + c % 4;
        *high = (uint8_t)(*high | q[c] >> 4 << c / 4 % 4 * 2);
    }
}

static void pack_block(const struct cuda_form &f, const struct quant_part &from, const struct cuda_layout &to)
{
    unsigned char *halves = f.supers ? to.super : to.scale;
    pack_quants(from.q, f.bits, to);
    memcpy(halves, &from.d, 2);
    if (f.minima)
        memcpy(halves + 2, &from.m, 2);
    if (f.supers) {
        to.scale[0] = (unsigned char)from.scale[0];
        to.scale[1] = (unsigned char)(f.minima ? -from.min : from.scale[1]);
    }
}

/* Blocks first .. first + n - 1 of all rows; both multiples of 8 where blocks of 256 are cut in 8. */
static void send_blocks(struct ops_dev *d, const struct ops_weight *w, const struct quant_info *info,
                        const unsigned char *from, size_t first, size_t n)
{
    const struct cuda_form form = cuda_form_of(w->type);
    const struct sizes z = sizes_of(form);
    const uint32_t parts = info->block / CUDA_BLOCK;
    unsigned char *start = (unsigned char *)cuda_stage(d, bytes_of(z, n));
    if (!start)
        return;
    const struct cuda_layout staged = place(z, n, start);
    for (size_t b = 0; b < n; b++) {
        struct quant_part part;
        quant_take_apart(w->type, from + (first + b) / parts * info->bytes, (uint32_t)((first + b) % parts),
                         &part);
        pack_block(form, part, block_at(staged, z, b));
    }
    const struct cuda_layout to = block_at(w->at, z, first);
    const struct {
        unsigned char *to, *from;
        size_t bytes;
    } copies[] = { { to.low, staged.low, n * z.low },
                   { to.high, staged.high, n * z.high },
                   { to.scale, staged.scale, n * z.scale },
                   { to.super, staged.super, n / CUDA_SUPER * z.super } };
    for (auto &c : copies)
        if (c.bytes)
            cuda_ok(d, cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyHostToDevice, d->stream),
                    "copying weights");
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
