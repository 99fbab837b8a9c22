/* Quant: tables and dequantization of the weight types. See quant.h for the block layouts.
 * Thread: any; nothing here has state. Must not know: devices, panels, files.
 * Tests: tests/kernels/test_quant.c */
#include "quant.h"
#include "quant_apart.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const struct quant_info infos[] = {
    { QUANT_F32, "F32", 1, 4 },       { QUANT_F16, "F16", 1, 2 },       { QUANT_BF16, "BF16", 1, 2 },
    { QUANT_Q4_0, "Q4_0", 32, 18 },   { QUANT_Q4_1, "Q4_1", 32, 20 },   { QUANT_Q5_0, "Q5_0", 32, 22 },
    { QUANT_Q5_1, "Q5_1", 32, 24 },   { QUANT_Q8_0, "Q8_0", 32, 34 },   { QUANT_Q4_K, "Q4_K", 256, 144 },
    { QUANT_Q5_K, "Q5_K", 256, 176 }, { QUANT_Q6_K, "Q6_K", 256, 210 },
};

_Static_assert(sizeof(struct quant_q4_0) == 18 && sizeof(struct quant_q4_1) == 20 &&
                   sizeof(struct quant_q5_0) == 22 && sizeof(struct quant_q5_1) == 24 &&
                   sizeof(struct quant_q8_0) == 34 && sizeof(struct quant_q4_k) == 144 &&
                   sizeof(struct quant_q5_k) == 176 && sizeof(struct quant_q6_k) == 210,
               "blocks lie in files without padding");

const struct quant_info *quant_info_find(uint32_t type)
{
    for (size_t i = 0; i < sizeof infos / sizeof infos[0]; i++)
        if (infos[i].type == type)
            return &infos[i];
    return NULL;
}

const char *quant_names(void)
{
    return "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K";
}

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float quant_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 0) {
        /* Subnormal or zero: the mantissa counts in steps of 2^-24, exact in float. */
        float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31) /* NaNs come out quiet, as the processor's own conversion makes them */
        return float_of_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u));
    return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t quant_f32_to_f16(float f)
{
    uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu, h;
    if (a > 0x7f800000u)
        h = 0x7e00u | (a >> 13 & 0x3ffu);
    else if (a >= 0x477ff000u) /* 65520 and above round to infinity */
        h = 0x7c00u;
    else if (a < 0x38800000u) {
        /* Below 2^-14: adding 0.5 puts the value's units of 2^-24 in the last places of the sum, rounded to
         * nearest even by the addition itself. */
        h = bits_of_float(float_of_bits(a) + 0.5f) - bits_of_float(0.5f);
    } else {
        uint32_t odd = a >> 13 & 1u;
        h = (a - (112u << 23) + 0xfffu + odd) >> 13;
    }
    return (uint16_t)(sign | h);
}

float quant_bf16_to_f32(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

static void from_f16(const unsigned char *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = quant_f16_to_f32(h);
    }
}

static void from_bf16(const unsigned char *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof h);
        dst[i] = quant_bf16_to_f32(h);
    }
}

/* ---- quantized types ---- */

void quant_take_apart(uint32_t type, const void *src, uint32_t part, struct quant_part *to)
{
    union {
        struct quant_q8_0 q8_0; /* the largest in blocks of 32, and of 256 */
        struct quant_q6_k q6_k;
    } aligned;
    if ((uintptr_t)src % _Alignof(struct quant_q8_0)) {
        memcpy(&aligned, src, quant_info_find(type)->bytes);
        src = &aligned;
    }
    quant_apart(type, src, part, to);
}

/* Scales times small whole numbers are exact in float, so each weight is rounded once, where its minimum is
 * added. */
static void from_parts(const struct quant_info *info, const unsigned char *src, size_t n, float *dst)
{
    const int zero = quant_zero(info->type);
    const uint32_t parts = info->block / 32;
    for (size_t b = 0; b < n / 32; b++, dst += 32) {
        struct quant_part p;
        quant_take_apart(info->type, src + b / parts * info->bytes, (uint32_t)(b % parts), &p);
        const float d = quant_f16_to_f32(p.d), m = quant_f16_to_f32(p.m) * (float)p.min;
        for (int i = 0; i < 32; i++)
            dst[i] = d * (float)p.scale[i / 16] * (float)(p.q[i] - zero) + m;
    }
}

void quant_to_q8_0(const float *x, struct quant_q8_0 *to)
{
    float most = 0;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        finite = finite && isfinite(x[i]);
    }
    to->d = quant_f32_to_f16(finite ? most / 127.0f : NAN);
    for (int i = 0; i < 32; i++)
        to->qs[i] = finite && most >= 0x1p-120f ? (int8_t)nearbyintf(x[i] * (127.0f / most)) : 0;
}

void quant_dequantize(uint32_t type, const void *src, size_t n, float *dst)
{
    switch (type) {
    case QUANT_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case QUANT_F16:
        from_f16(src, n, dst);
        break;
    case QUANT_BF16:
        from_bf16(src, n, dst);
        break;
    default: {
        const struct quant_info *info = quant_info_find(type);
        if (info)
            from_parts(info, src, n, dst);
        break;
    }
    }
}
