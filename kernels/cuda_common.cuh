/* Cuda: what the files of the CUDA device share: the device, its memory, weights and KV pool as they lie
 * there, and the arithmetic that has to give the CPU's bits. Private to kernels/: nobody else includes this.
 *
 * The one decision behind all kernels: every sum is taken in the order that the CPU's vector kernels take it
 * (cpu_matmul.h and cpu_attention.h say which), with fused multiply-adds exactly where those have them. So a
 * sequence's logits are the same bits on the CPU and here, for any batch, chunk or stage, and a test compares
 * for equality. What makes it affordable: products of whole blocks are integers, exact in any order, so only
 * one chain of fma per 32 columns is serial, and chains are as many as outputs. It needs -fmad=false (g++:
 * -ffp-contract=off), IEEE division and roots, and no flushing to zero.
 *
 * Thread: the stage thread drives the device, all work goes to its stream; kv_get and kv_put have a stream of
 * their own. Must not know: sessions, model names, files. Tests: tests/kernels/ on the emulator of
 * tests/cudahost and, where there is one, on a GPU */
#pragma once
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "ops.h"
#include "quant.h"
#include "shape.h"
}

#include "cuda_spelling.cuh"
#include <cuda_fp16.h>

#define CUDA_BLOCK 32u       /* columns of a quantized block */
#define CUDA_HALF (4u << 20) /* bytes of one of the two halves of the pinned memory */
#define CUDA_SPLIT 256u      /* positions; a multiple of OPS_BLOCK_TOKENS, and the CPU's */

/* ---- the device (cuda_device.cu) ---- */

struct cuda_buffer {
    void *at;
    size_t size;
};

struct ops_dev {
    int ordinal;
    uint32_t processors;
    enum ops_activations activations;
    struct cuda_blas *blas; /* NULL: every product is ours */
    cudaStream_t stream;
    /* Pinned memory that copies pass through, two halves used in turn. What was taken from a half may be
     * overwritten when the event recorded behind its last copy has passed. */
    unsigned char *pinned;
    size_t used;
    int half;
    cudaEvent_t copied[2];
    struct cuda_buffer prepared; /* rows of a product: floats, bytes, scales; or weights on their way */
    struct cuda_buffer halves;   /* of a product by cuBLAS: rows, weights */
    struct cuda_buffer partials; /* sums of attention's splits */
    struct cuda_buffer index;    /* ids, row numbers */
    struct cuda_buffer best;     /* of logits, and what they are found with */
    struct cuda_buffer plan;     /* of attention, and the host's copy of what it holds */
    uint32_t *plan_host, *plan_new;
    size_t plan_words, plan_cap;
    int error; /* the first failure since the last sync */
    char error_text[200];
    char describe[160];
};

/* Every function of the table calls it first: which thread calls is the engine's business. */
void cuda_use(const struct ops_dev *d);
/* False, and recorded for sync(), when it is an error. */
bool cuda_ok(struct ops_dev *d, cudaError_t e, const char *what);
/* After a launch. */
void cuda_launched(struct ops_dev *d, const char *kernel);
void cuda_fail(struct ops_dev *d, int error, const char *text);
/* "out of memory on CUDA device 0: WHAT wants N bytes, M are free"; -ENOMEM. */
int cuda_no_memory(const struct ops_dev *d, const char *what, size_t wanted, char *err, size_t errlen);
/* Device memory of at least `bytes`, contents not kept when it grows; NULL (recorded) when there is none. */
void *cuda_room(struct ops_dev *d, struct cuda_buffer *b, size_t bytes, const char *what);
/* Pinned memory to fill and to copy from on the stream, at most CUDA_HALF bytes; NULL (recorded). */
void *cuda_stage(struct ops_dev *d, size_t bytes);
/* From host memory, which may change after the call. */
void cuda_upload(struct ops_dev *d, void *to, const void *from, size_t bytes);
/* To host memory; waits for it. */
void cuda_download(struct ops_dev *d, void *to, const void *from, size_t bytes);

/* ---- weights (cuda_weight.cu, cuda_quant.cuh) ----
 *
 * Rows in order. Types that are not quantized as in the file. Quantized ones in blocks of 32 columns, torn
 * apart so that neighbouring threads read neighbouring 16 bytes:
 *   low    16 bytes a block: column c in the low and 16 + c in the high nibble; Q8_0 32 signed bytes
 *   high   fifth bits, 4 bytes: byte i holds that of column 4 j + i as bit j (j < 8); fifth and sixth, 8
 *          bytes: byte 4 (j / 4) + i those of column 4 j + i as bits 2 (j % 4) and up
 *   scale  a half, and one more where there are minima; where blocks of 256 have scales of 32 columns: 2
 *          bytes, scale and minimum, or Q6_K's scales of the first 16 columns and of the others
 *   super  for those, every 8 blocks: the halves d, and m where there are minima */
struct cuda_layout {
    unsigned char *low, *high, *scale, *super;
};

struct ops_weight {
    struct ops_dev *dev;
    uint32_t type; /* enum quant_type */
    uint32_t rows, cols;
    uint32_t blocks; /* of a row; 0 for types that are not quantized */
    size_t bytes;
    struct cuda_layout at; /* low: the start of all */
};

int cuda_weight_new(struct ops_dev *d, const struct ops_tensor *t, struct ops_weight **ret_weight, char *err,
                    size_t errlen);
void cuda_weight_free(struct ops_weight *w);
size_t cuda_weight_bytes(const struct ops_weight *w);
void cuda_embed(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float scale,
                float *out);
/* Rows first .. first + n - 1 as halves. */
void cuda_weight_halves(const struct ops_weight *w, uint32_t first, uint32_t n, __half *out);
void cuda_gather(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols,
                 float *out);

/* ---- products ---- */

/* Of 32 activations x = s * q. */
struct cuda_scale {
    float s;
    float s_sum; /* s * sum(q) */
};

/* Prepared rows; what no weight of the product needs is NULL. Of OPS_INT16 the first terms of all rows come
 * before the second ones. A kernel that multiplies sees one term. */
struct cuda_rows {
    float *f;                 /* [row][cols] */
    int8_t *q;                /* [term][row][cols] */
    struct cuda_scale *scale; /* [term][row][blocks] */
    uint32_t terms;           /* 1 or 2 */
};

struct cuda_matrix {
    struct cuda_layout at;
    const float *bias; /* [rows], or NULL */
    float *out;        /* [n][rows] */
    uint32_t rows;
};

/* Weights of one type that are multiplied in one launch. */
struct cuda_product {
    struct cuda_matrix w[OPS_MAX_OUT];
    uint32_t count, n, cols;
    bool add;
    struct cuda_rows x;
};

/* cuda_prepare.cu */
void cuda_prepare(const struct ops_matmul *m, uint32_t cols, const struct cuda_rows *to, cudaStream_t stream);
void cuda_norm_add(struct ops_dev *d, const float *x, const float *norm, float eps, uint32_t n, uint32_t cols,
                   float *out);
/* cuda_matvec.cu: quantized weights by at most CUDA_MATVEC_ROWS rows */
#define CUDA_MATVEC_ROWS 8u
void cuda_matvec(uint32_t type, const struct cuda_product *p, cudaStream_t stream);
/* cuda_tile.cu: quantized weights by any number of rows */
void cuda_tile(uint32_t type, const struct cuda_product *p, cudaStream_t stream);
/* cuda_floats.cu: weights of any type by rows of floats */
void cuda_floats(uint32_t type, const struct cuda_product *p, cudaStream_t stream);
/* cuda_large.cu: whether cuBLAS is to do it; and all of it, from rows that are prepared as floats */
bool cuda_is_large(const struct ops_dev *d, const struct ops_matmul *m, uint32_t cols);
void cuda_large(struct ops_dev *d, const struct ops_matmul *m, uint32_t cols, const float *x);
/* cuda_matmul.cu */
void cuda_matmul(struct ops_dev *d, const struct ops_matmul *m);

/* ---- KV and attention (cuda_kv.cu, cuda_attention.cu) ----
 *
 * The CPU's layout (shape.h): K lies transposed, so that a thread is a key and scores need no sums over
 * threads, V does not, so that a thread is a dimension. */
struct ops_kv {
    struct ops_dev *dev;
    struct ops_kv_shape shape;
    struct shape_kv is; /* as on the CPU */
    unsigned char *base;
    struct cuda_kv_io *io;
};

int cuda_kv_new(struct ops_dev *d, const struct ops_kv_shape *shape, struct ops_kv **ret_kv, char *err,
                size_t errlen);
void cuda_kv_free(struct ops_kv *kv);
size_t cuda_kv_block_bytes(const struct ops_kv_shape *shape);
void cuda_kv_copy(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens);
void cuda_kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to);
void cuda_kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from);
void cuda_attention(struct ops_dev *d, const struct ops_attention *a);

/* cuda_best.cu */
void cuda_best(struct ops_dev *d, const float *logits, uint32_t n, uint32_t cols, const float *scale,
               struct ops_best *ret);

/* ---- arithmetic, as in cpu_math.h and cpu_attention_kernel.h ---- */

#define CUDA_ALL 0xffffffffu /* lanes of a warp */

/* 2^n, -126 <= n <= 127. */
static __device__ __forceinline__ float power_of_2(int n)
{
    return __int_as_float((n + 127) << 23);
}

/* To the nearest whole number, ties to even, as float and as int; |x| < 2^22. */
static __device__ __forceinline__ float round_whole(float x, int *ret_n)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23 leaves no place for a fraction */
    float t = x + shift;
    *ret_n = (int)(__float_as_uint(t) - __float_as_uint(shift));
    return t - shift;
}

/* e^x within about 1 ulp; 0 below -104, infinity above 89, NaN for NaN. */
static __device__ __forceinline__ float exp_f(float x)
{
    int whole;
    x = 89.0f < x ? 89.0f : x;
    x = -104.0f > x ? -104.0f : x;
    float n = round_whole(x * 0x1.715476p+0f, &whole);
    float r = fmaf(n, -0x1.62e400p-1f, x);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6a23d2p-10f;
    p = fmaf(p, r, 0x1.123a20p-7f);
    p = fmaf(p, r, 0x1.5558f2p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(r * r, p, r);
    /* In two factors: neither leaves the range of exponents, and only the second product rounds. */
    return (p + 1.0f) * power_of_2(whole >> 1) * power_of_2(whole - (whole >> 1));
}

static __device__ __forceinline__ float silu_f(float x)
{
    return x / (1.0f + exp_f(0.0f - x));
}

static __device__ __forceinline__ float gelu_f(float x)
{
    return x / (1.0f + exp_f(x * fmaf(x * x, -0x1.2444f2p-4f, -0x1.988454p+0f)));
}

/* The whole sum f of a token's product with a row of weights. */
static __device__ __forceinline__ void write_sum(const struct cuda_matrix &w, uint32_t token, uint32_t row,
                                                 bool add, float f)
{
    float *out = w.out + (size_t)token * w.rows + row;
    if (w.bias)
        f += w.bias[row];
    *out = add ? *out + f : f;
}

/* 2^x for x <= 0 within about 2 ulp; 2^-125 below -125, NaN for NaN. */
static __device__ __forceinline__ float exp2_f(float x)
{
    int whole;
    x = -125.0f > x ? -125.0f : x;
    float r = x - round_whole(x, &whole);
    float p = 0x1.5bba14p-10f;
    p = fmaf(p, r, 0x1.3cea88p-7f);
    p = fmaf(p, r, 0x1.c6b752p-5f);
    p = fmaf(p, r, 0x1.ebf9bcp-3f);
    p = fmaf(p, r, 0x1.62e42ap-1f);
    p = fmaf(p, r, 1.0f);
    return p * power_of_2(whole);
}

/* A warp's 32 numbers, one a lane, as s * q: scale amax / 127, and q to the nearest. Below 2^-120 they count
 * as zero (127 / amax would overflow); with a NaN or an infinity the scale is NaN, so that what is computed
 * says so. */
static __device__ __forceinline__ int quantize_32(float y, float *ret_s)
{
    uint32_t most = __float_as_uint(y) & 0x7fffffffu;
    for (int other = 16; other > 0; other /= 2)
        most = max(most, __shfl_xor_sync(CUDA_ALL, most, other));
    const float amax = __uint_as_float(most);
    float by = 0, s = 0;
    if (most >= 0x7f800000u)
        s = __uint_as_float(0x7fc00000u);
    else if (most >= 0x03800000u) {
        by = 127.0f / amax;
        s = amax / 127.0f;
    }
    *ret_s = s;
    return by > 0 ? __float2int_rn(y * by) : 0;
}

/* Lanes 0..15 of a warp hold 16 sums: lane 0 gets lane i + lane i + 8, and so on. */
static __device__ __forceinline__ float sum_16(float v)
{
    for (int half = 8; half > 0; half /= 2)
        v += __shfl_down_sync(CUDA_ALL, v, (unsigned)half);
    return v;
}
