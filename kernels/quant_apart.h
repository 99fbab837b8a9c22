/* Quant apart: quant_take_apart for a block that lies aligned, in a header because the CUDA device takes
 * weights apart too: C for the host, C++ for nvcc's kernels. quant.h says how blocks lie.
 * Pure; any thread. Included by quant.c and cuda_weight.cu alone. Tests: tests/kernels/test_quant.c */
#pragma once
#include "quant.h"

#ifdef __CUDACC__
#define QUANT_FN static __host__ __device__ __forceinline__
#else
#define QUANT_FN static inline
#endif

QUANT_FN void quant_low_bits(const uint8_t *qs, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

QUANT_FN void quant_fifth_bits(const uint8_t *qh, uint8_t *q)
{
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(q[i] | (qh[i / 8] >> i % 8 & 1) << 4);
}

/* Scale and minimum number j of Q4_K and Q5_K. */
QUANT_FN void quant_six_bits(const uint8_t *scales, uint32_t j, struct quant_part *to)
{
    to->scale[0] = scales[j] & 63;
    to->min = scales[j + 4] & 63;
    if (j >= 4) {
        to->scale[0] = (int16_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        to->min = (int16_t)(scales[j + 4] >> 4 | scales[j] >> 6 << 4);
    }
    to->scale[1] = to->scale[0];
    to->min = (int16_t)-to->min;
}

QUANT_FN void quant_q4_k_apart(const struct quant_q4_k *w, uint32_t part, struct quant_part *to)
{
    to->m = w->m;
    quant_six_bits(w->scales, part, to);
    for (uint32_t i = 0; i < 32; i++)
        to->q[i] = w->qs[part / 2 * 32 + i] >> part % 2 * 4 & 15;
}

QUANT_FN void quant_q5_k_apart(const struct quant_q5_k *w, uint32_t part, struct quant_part *to)
{
    to->m = w->m;
    quant_six_bits(w->scales, part, to);
    for (uint32_t i = 0; i < 32; i++)
        to->q[i] = (uint8_t)((w->qs[part / 2 * 32 + i] >> part % 2 * 4 & 15) | (w->qh[i] >> part & 1) << 4);
}

QUANT_FN void quant_q6_k_apart(const struct quant_q6_k *w, uint32_t part, struct quant_part *to)
{
    const uint32_t j = part % 4;
    const uint8_t *ql = w->ql + part / 4 * 64 + j % 2 * 32, *qh = w->qh + part / 4 * 32;
    to->d = w->d;
    to->scale[0] = w->scales[2 * part];
    to->scale[1] = w->scales[2 * part + 1];
    for (uint32_t i = 0; i < 32; i++)
        to->q[i] = (uint8_t)((ql[i] >> j / 2 * 4 & 15) | (qh[i] >> 2 * j & 3) << 4);
}

/* block: of a quantized type, aligned to 2. */
QUANT_FN void quant_apart(uint32_t type, const void *block, uint32_t part, struct quant_part *to)
{
    const uint16_t *halves = (const uint16_t *)block;
    to->d = halves[0];
    to->m = 0;
    to->scale[0] = to->scale[1] = 1;
    to->min = 0;
    if (type == QUANT_Q4_1 || type == QUANT_Q5_1) {
        to->m = halves[1];
        to->min = 1;
    }
    switch (type) {
    case QUANT_Q4_0:
        quant_low_bits(((const struct quant_q4_0 *)block)->qs, to->q);
        break;
    case QUANT_Q4_1:
        quant_low_bits(((const struct quant_q4_1 *)block)->qs, to->q);
        break;
    case QUANT_Q5_0:
        quant_low_bits(((const struct quant_q5_0 *)block)->qs, to->q);
        quant_fifth_bits(((const struct quant_q5_0 *)block)->qh, to->q);
        break;
    case QUANT_Q5_1:
        quant_low_bits(((const struct quant_q5_1 *)block)->qs, to->q);
        quant_fifth_bits(((const struct quant_q5_1 *)block)->qh, to->q);
        break;
    case QUANT_Q8_0:
        for (int i = 0; i < 32; i++)
            to->q[i] = (uint8_t)(((const struct quant_q8_0 *)block)->qs[i] + 128);
        break;
    case QUANT_Q4_K:
        quant_q4_k_apart((const struct quant_q4_k *)block, part, to);
        break;
    case QUANT_Q5_K:
        quant_q5_k_apart((const struct quant_q5_k *)block, part, to);
        break;
    default:
        quant_q6_k_apart((const struct quant_q6_k *)block, part, to);
        break;
    }
}
