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
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_BF16 = 30,
};

/* CASE(type, arguments..) for each quantized type, for switches that make a constant of it. */
#define QUANT_CASES(CASE, ...)                                                                               \
    CASE(QUANT_Q4_0, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q4_1, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q5_0, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q5_1, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q8_0, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q4_K, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q5_K, __VA_ARGS__)                                                                            \
    CASE(QUANT_Q6_K, __VA_ARGS__)

/* Block layouts (little endian, no padding). w = weight. Of qs, q[i] of a block of 32 is the low nibble of
 * qs[i] for i < 16 and the high nibble of qs[i-16] after. */
struct quant_q4_0 { /* w[i] = d * (q[i] - 8) */
    uint16_t d;     /* f16 */
    uint8_t qs[16];
};
struct quant_q4_1 { /* w[i] = d * q[i] + m */
    uint16_t d, m;
    uint8_t qs[16];
};
struct quant_q5_0 { /* w[i] = d * (q[i] - 16); bit i of qh is q[i]'s fifth */
    uint16_t d;
    uint8_t qh[4], qs[16];
};
struct quant_q5_1 { /* w[i] = d * q[i] + m */
    uint16_t d, m;
    uint8_t qh[4], qs[16];
};
struct quant_q8_0 { /* w[i] = d * qs[i] */
    uint16_t d;
    int8_t qs[32];
};

/* 256 weights, 8 times 32: w[i] = (d * scale[i / 32]) * q[i] - m * min[i / 32]. Scales and minima are of 6
 * bits: of the first four scale j is the low bits of scales[j] and min j those of scales[j + 4]; of the last
 * four their low nibbles are scales[j + 4]'s, their high bits the top ones of scales[j - 4] and scales[j].
 * The 32 bytes of qs from 32 j hold 64 weights: low nibbles, then high. */
struct quant_q4_k {
    uint16_t d, m;
    uint8_t scales[12], qs[128];
};
struct quant_q5_k { /* bit j of qh[i] is the fifth of q[32 j + i] */
    uint16_t d, m;
    uint8_t scales[12], qh[32], qs[128];
};
/* 256 weights, 16 times 16: w[i] = (d * scales[i / 16]) * (q[i] - 32). In each half of 128 the weights
 * 32 j + i have their low nibbles in ql[i + 32 (j % 2)], high nibbles for j >= 2, and two bits from 2 j of
 * qh[i] above. */
struct quant_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
};

struct quant_info {
    uint32_t type;
    const char *name;
    uint32_t block; /* weights per block */
    uint32_t bytes; /* bytes per block */
};

/* NULL for a type this build does not read. */
const struct quant_info *quant_info_find(uint32_t type);
/* "F32 F16 BF16 Q4_0 ...", for error texts. */
const char *quant_names(void);

/* 32 weights of a quantized type, taken apart, for whoever lays them out in another way. Types whose blocks
 * are 256 have scale and min of 32 weights (Q6_K: a scale of 16); the others have scales of 1, and min of 1
 * where they have minima:
 *     w[i] = (d * scale[i / 16]) * (q[i] - quant_zero) + m * min */
struct quant_part {
    uint16_t d, m;    /* f16 */
    uint8_t q[32];    /* the first bits of zero: 0..15, 0..31, 0..63 or 0..255 */
    int16_t scale[2]; /* 0..63; Q6_K -128..127 */
    int16_t min;      /* 0..1, Q4_K and Q5_K -63..0 */
};

/* What all quants of the type stand above their value; 0 where the type has minima. */
static inline int quant_zero(uint32_t type)
{
    return type == QUANT_Q4_0   ? 8
           : type == QUANT_Q5_0 ? 16
           : type == QUANT_Q6_K ? 32
           : type == QUANT_Q8_0 ? 128
                                : 0;
}

/* Part `part` (0 .. block / 32 - 1) of the block at src, which need not be aligned. */
void quant_take_apart(uint32_t type, const void *src, uint32_t part, struct quant_part *to);

float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f); /* round to nearest even; overflow to infinity */
float quant_bf16_to_f32(uint16_t h);

/* 32 floats as a block of Q8_0: the scale is that of the largest, quants go to the nearest. NaN or infinity
 * make the scale a NaN. */
void quant_to_q8_0(const float *x, struct quant_q8_0 *to);

/* n weights (a multiple of the block) from src, which need not be aligned, to dst. */
void quant_dequantize(uint32_t type, const void *src, size_t n, float *dst);
