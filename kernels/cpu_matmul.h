/* Cpu matmul: what its files share: a weight's layout, the prepared rows, and the table of kernels of an
 * instruction set. Private to kernels/cpu_weight.c, cpu_embed.c and cpu_matmul*.c.
 *
 * Layout. A weight is cut into panels of 16 rows, one row per vector lane; the last panel is padded with zero
 * rows. Quantized types lie in blocks of 32 columns, 16 rows of a block together, in groups of 4 columns; a
 * quant is its value plus the type's zero (quant_zero), without a sign:
 *     byte 64 j + 4 lane + i holds column 4 j + i in its low and 16 + 4 j + i in its high nibble (j < 4);
 *     fifth bits:     byte 256 + 4 lane + i holds that of column 4 j + i as bit j (j < 8);
 *     fifth and sixth: byte 256 + 64 (j / 4) + 4 lane + i those of column 4 j + i as bits 2 (j % 4) and up;
 *     Q8_0:           byte 64 j + 4 lane + i holds column 4 j + i (j < 8).
 * After all blocks of the panel come their scales: 16 f16 a block, where there are minima followed by 16 of
 * those. Q4_K, Q5_K and Q6_K have 32 bytes a block instead: 16 scales and 16 minima, or 16 scales of the
 * first 16 columns and 16 of the others; and after those of all blocks, for every 8 blocks, f16 as above. So
 * a panel takes as many bytes as the file does, for Q4_K and Q5_K 1/36 or 1/44 more. F32, F16 and BF16 lie
 * column after column, 16 rows together.
 *
 * Order of every sum, the same in every kernel. Quantized weights and activations: block after block,
 *     f = fma(d * s, (float)(sum over 32 of q * x), f), and where there are minima f = fma(m, s * sum(x), f)
 * with d, m of the weight and s of the activations; the sum inside a block is of integers and exact. For the
 * types whose scales and minima are whole numbers a, b times d, m of 256 columns, d * a and -(m * b) take
 * their place, which are exact; the sum of a Q6_K block is a0 * (sum over 16) + a1 * (sum over 16), below
 * 2^24. OPS_INT16: to the output, bias and residual included, the sum of the second terms is added. Float
 * activations: column c is added to sum c % 4 by fma, then (f0 + f1) + (f2 + f3). */
#pragma once
#include "cpu.h"
#include "quant.h"

#define CPU_LANES 16u
#define CPU_BLOCK 32u
#define CPU_TILE 16u /* rows of activations */
#define CPU_SUPER 8u /* blocks that share the scale of their scales */

/* How a quantized type lies in a panel. */
struct cpu_form {
    uint32_t bits;   /* of a quant: 4, 5, 6 or 8 */
    bool minima;     /* otherwise quants stand above their values by quant_zero */
    uint32_t quants; /* bytes of a block of 16 rows */
    uint32_t scales; /* bytes of a block's scales and minima */
    uint32_t supers; /* bytes of what 8 blocks share; 0: nothing */
};

/* All fields 0 for types that are not quantized. A constant where `type` is one. */
__attribute__((always_inline)) static inline struct cpu_form cpu_form_of(uint32_t type)
{
    switch (type) {
    case QUANT_Q4_0:
        return (struct cpu_form){ 4, false, 256, 32, 0 };
    case QUANT_Q4_1:
        return (struct cpu_form){ 4, true, 256, 64, 0 };
    case QUANT_Q5_0:
        return (struct cpu_form){ 5, false, 320, 32, 0 };
    case QUANT_Q5_1:
        return (struct cpu_form){ 5, true, 320, 64, 0 };
    case QUANT_Q8_0:
        return (struct cpu_form){ 8, false, 512, 32, 0 };
    case QUANT_Q4_K:
        return (struct cpu_form){ 4, true, 256, 32, 64 };
    case QUANT_Q5_K:
        return (struct cpu_form){ 5, true, 320, 32, 64 };
    case QUANT_Q6_K:
        return (struct cpu_form){ 6, false, 384, 32, 32 };
    default:
        return (struct cpu_form){ 0 };
    }
}

/* Calls fn(arguments.., type) with the quantized type as a constant; for other types it does nothing. */
#define CPU_WITH_TYPE(type, fn, ...)                                                                         \
    switch (type) {                                                                                          \
        QUANT_CASES(CPU_TYPE_CASE, fn, __VA_ARGS__)                                                          \
    default:                                                                                                 \
        break;                                                                                               \
    }
#define CPU_TYPE_CASE(type, fn, ...)                                                                         \
    case type:                                                                                               \
        fn(__VA_ARGS__, type);                                                                               \
        break;

struct ops_weight {
    uint32_t type; /* enum quant_type */
    uint32_t rows, cols;
    uint32_t panels;
    uint32_t blocks;       /* of a row; 0: not quantized */
    size_t scales, supers; /* where they start in a panel */
    size_t panel_bytes;    /* a multiple of 64 */
    unsigned char *data;   /* 64-byte aligned, in chunk */
    struct cpu_chunk *chunk;
};

static inline bool cpu_weight_is_quantized(const struct ops_weight *w)
{
    return w->blocks != 0;
}

/* How often minus_8 is doubled to be the sum of minus a quantized type's zero. */
#define CPU_EIGHTS(type)                                                                                     \
    (quant_zero(type) == 8 ? 0 : quant_zero(type) == 16 ? 1 : quant_zero(type) == 32 ? 2 : 4)

/* Where block b of a panel lies. */
struct cpu_place {
    const unsigned char *quants, *scales, *supers;
};

__attribute__((always_inline)) static inline struct cpu_place cpu_place(const struct ops_weight *w,
                                                                        uint32_t panel, uint32_t b,
                                                                        struct cpu_form form)
{
    const unsigned char *at = w->data + (size_t)panel * w->panel_bytes;
    return (struct cpu_place){ at + (size_t)b * form.quants, at + w->scales + (size_t)b * form.scales,
                               at + w->supers + (size_t)(b / CPU_SUPER) * form.supers };
}

/* Of 32 activations x = s * q. */
struct cpu_block {
    float s;
    float s_sum;         /* s * sum(q) */
    int32_t minus_8;     /* -8 * sum(q): where Q4_0's sum starts, and multiples of it the others' */
    int16_t minus_16[2]; /* -16 * sum(q) of the first 16 and of the others, for Q6_K */
};

/* Prepared rows; what no weight of the product needs is NULL. Quantized, a row of input is one row, or two
 * that add up to it, one after the other. They lie in tiles of `height` rows, block after block, the tile's
 * rows of a block together: a kernel that takes a block of several rows finds them side by side. */
struct cpu_rows {
    uint32_t cols;
    uint32_t terms;  /* quantized rows of a row of input: 1, or 2 for OPS_INT16 */
    uint32_t height; /* CPU_TILE, or all rows where they are 8 or fewer; whole tiles have their memory */
    float *f;        /* [row of input][cols] */
    int8_t *q;       /* [tile][block][row in tile][32] */
    struct cpu_block *block; /* [tile][block][row in tile] */
};

/* Block 0 of a quantized row; the next block is 32 * height bytes, or height blocks, further. */
static inline int8_t *cpu_rows_q(const struct cpu_rows *x, uint32_t row)
{
    uint32_t in_tile = row % x->height;
    return x->q + (size_t)(row - in_tile) * x->cols + in_tile * CPU_BLOCK;
}

static inline struct cpu_block *cpu_rows_block(const struct cpu_rows *x, uint32_t row)
{
    uint32_t in_tile = row % x->height;
    return x->block + (size_t)(row - in_tile) * (x->cols / CPU_BLOCK) + in_tile;
}

/* Part of a product: one panel by rows first .. first + n - 1, quantized ones or of input as the kernel takes
 * them; first is a multiple of CPU_TILE, n too or it is the end. */
struct cpu_part {
    const struct ops_weight *w;
    uint32_t panel;
    const struct cpu_rows *x;
    uint32_t first, n;
    const float *bias; /* [w->rows], or NULL */
    float *out;        /* the whole product's: row of input r at out + r * w->rows */
    uint32_t terms;    /* rows of x that are a row of input, and added up in their order */
    bool add;
    void *scratch; /* of the kernel's own scratch size */
};

struct cpu_matmul_kernels {
    /* Row `row` of the product's input, prepared, becomes row `at` of input in `to`; work holds cols floats.
     */
    void (*prepare)(const struct ops_matmul *m, uint32_t row, const struct cpu_rows *to, uint32_t at,
                    float *work);
    void (*quantized)(const struct cpu_part *p);   /* quantized weights by x->q */
    void (*floats)(const struct cpu_part *p);      /* any weights by x->f */
    size_t (*scratch)(const struct ops_weight *w); /* NULL: none */
    /* A row of norm_add; work holds cols floats. */
    void (*norm_add)(const float *x, const float *norm, float eps, uint32_t cols, float *work, float *out);
    /* Around the parts a thread computes in one section; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
};

extern const struct cpu_matmul_kernels cpu_matmul_portable;
extern const struct cpu_matmul_kernels cpu_matmul_avx2;
extern const struct cpu_matmul_kernels cpu_matmul_avx512;
extern const struct cpu_matmul_kernels cpu_matmul_amx;
