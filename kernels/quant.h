/* Quant: the weight types this build reads, as they lie in GGUF files, and their dequantization.
 * A leaf: includes nothing of ours. Pure; any thread. Tests: tests/kernels/test_quant.c */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Numbers as in the file. */
enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q8_0 = 8,
    QUANT_BF16 = 30,
};

/* Block layouts (little endian, no padding). w = weight. */
struct quant_q4_0 { /* w[i] = d * (q[i] - 8); q[i] = low nibble of qs[i] for i < 16, high nibble of qs[i-16]
                       after */
    uint16_t d;     /* f16 */
    uint8_t qs[16];
};
struct quant_q4_1 { /* w[i] = d * q[i] + m */
    uint16_t d, m;
    uint8_t qs[16];
};
struct quant_q8_0 { /* w[i] = d * qs[i] */
    uint16_t d;
    int8_t qs[32];
};

struct quant_info {
    uint32_t type;
    const char *name;
    uint32_t block; /* weights per block */
    uint32_t bytes; /* bytes per block */
};

/* NULL for a type this build does not read. */
const struct quant_info *quant_info_find(uint32_t type);
/* "F32 F16 BF16 Q4_0 Q4_1 Q8_0", for error texts. */
const char *quant_names(void);

float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f); /* round to nearest even; overflow to infinity */
float quant_bf16_to_f32(uint16_t h);

/* n weights (a multiple of the block) from src, which need not be aligned, to dst. */
void quant_dequantize(uint32_t type, const void *src, size_t n, float *dst);
