/* Cpu matmul: what its files share: a weight's layout, the prepared rows, and the table of kernels of an
 * instruction set. Private to kernels/cpu_weight.c, cpu_embed.c and cpu_matmul*.c.
 *
 * Layout. A weight is cut into panels of 16 rows, one row per vector lane; the last panel is padded with zero
 * rows. Quantized types lie in blocks of 32 columns, 16 rows of a block together, in groups of 4 columns:
 *     Q4_0, Q4_1: byte 64 j + 4 lane + i holds column 4 j + i in its low and 16 + 4 j + i in its high nibble
 * (j < 4) Q8_0:       byte 64 j + 4 lane + i holds column 4 j + i (j < 8), plus 128: the integer dot product
 * multiplies unsigned by signed bytes and after all blocks of the panel come their scales as f16: 16 for each
 * block, for Q4_1 followed by its 16 minima. So a panel takes as many bytes as the file does. F32, F16 and
 * BF16 lie column after column, 16 rows together.
 *
 * Order of every sum, the same in every kernel. Quantized weights and activations: block after block,
 *     f = fma(d * s, (float)(sum over 32 of q * x), f), and for Q4_1 then f = fma(m, s * sum(x), f)
 * with d, m of the weight and s of the activations; the sum inside a block is of integers and exact. Float
 * activations: column c is added to sum c % 4 by fma, then (f0 + f1) + (f2 + f3). */
#pragma once
#include "cpu.h"

#define CPU_LANES 16u
#define CPU_BLOCK 32u
#define CPU_TILE 16u /* rows of activations */

struct ops_weight {
    uint32_t type; /* enum quant_type */
    uint32_t rows, cols;
    uint32_t panels;
    uint32_t blocks;     /* of a row; quantized types */
    size_t block_bytes;  /* of 16 rows, without scales; quantized types */
    size_t scales;       /* where they start in a panel */
    size_t scale_bytes;  /* of a block */
    size_t panel_bytes;  /* a multiple of 64 */
    unsigned char *data; /* 64-byte aligned, in chunk */
    struct cpu_chunk *chunk;
};

static inline bool cpu_weight_is_quantized(const struct ops_weight *w)
{
    return w->blocks != 0;
}

/* Of 32 activations x = s * q. */
struct cpu_block {
    float s;
    float s_sum;       /* s * sum(q) */
    int32_t minus_8;   /* -8 * sum(q): where Q4_0's sum starts */
    int32_t minus_128; /* -128 * sum(q): where Q8_0's sum starts */
};

/* Prepared rows; what no weight of the product needs is NULL. Quantized rows lie in tiles of `height` rows,
 * block after block, the tile's rows of a block together: a kernel that takes a block of several rows finds
 * them side by side. */
struct cpu_rows {
    uint32_t cols;
    uint32_t height; /* CPU_TILE, or all rows where they are 8 or fewer; whole tiles have their memory */
    float *f;        /* [row][cols] */
    int8_t *q;       /* [tile][block][row in tile][32] */
    struct cpu_block *block; /* [tile][block][row in tile] */
};

/* Block 0 of a row; the next block is 32 * height bytes, or height blocks, further. */
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

/* Part of a product: one panel by rows first .. first + n - 1; first is a multiple of CPU_TILE, n too or it
 * is the end. */
struct cpu_part {
    const struct ops_weight *w;
    uint32_t panel;
    const struct cpu_rows *x;
    uint32_t first, n;
    const float *bias; /* [w->rows], or NULL */
    float *out;        /* the whole product's: row r at out + r * w->rows */
    bool add;
    void *scratch; /* of the kernel's own scratch size */
};

struct cpu_matmul_kernels {
    /* Row `row` of the product's input, prepared, becomes row `at` of `to`; work holds cols floats. */
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
