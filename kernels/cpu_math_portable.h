/* Cpu math, portable: a vector is the compiler's own kind of vector, of which it makes what the processor
 * can. No fused multiply-add. Included by cpu_math.h alone, which says what holds for all forms;
 * cpu_math_avx512.h says what each function does. */
#pragma once
#include "quant.h"

typedef float v16_lanes __attribute__((vector_size(64), aligned(16)));
typedef struct {
    v16_lanes v;
} v16f;

#define V16_FN static inline __attribute__((always_inline))
#define V16_EACH for (int i = 0; i < 16; i++)

V16_FN v16f v16_set1(float x)
{
    v16f r = { { x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x } };
    return r;
}

V16_FN v16f v16_zero(void)
{
    return v16_set1(0);
}

V16_FN v16f v16_load(const float *p)
{
    v16f r;
    memcpy(&r.v, p, sizeof r.v);
    return r;
}

V16_FN void v16_store(float *p, v16f a)
{
    memcpy(p, &a.v, sizeof a.v);
}

V16_FN v16f v16_load_n(const float *p, uint32_t n)
{
    v16f r = v16_zero();
    for (uint32_t i = 0; i < n; i++)
        r.v[i] = p[i];
    return r;
}

V16_FN void v16_store_n(float *p, v16f a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = a.v[i];
}

V16_FN v16f v16_load_f16(const uint16_t *p)
{
    v16f r;
    V16_EACH
    r.v[i] = quant_f16_to_f32(p[i]);
    return r;
}

V16_FN v16f v16_load_bf16(const uint16_t *p)
{
    v16f r;
    V16_EACH
    r.v[i] = quant_bf16_to_f32(p[i]);
    return r;
}

V16_FN v16f v16_load_bits(const uint8_t *p, uint32_t from, uint32_t mask)
{
    v16f r;
    for (uint32_t lane = 0; lane < 16; lane++)
        r.v[lane] = (float)(p[4 * lane + from / 8] >> from % 8 & mask);
    return r;
}

V16_FN v16f v16_add(v16f a, v16f b)
{
    a.v = a.v + b.v;
    return a;
}

V16_FN v16f v16_sub(v16f a, v16f b)
{
    a.v = a.v - b.v;
    return a;
}

V16_FN v16f v16_mul(v16f a, v16f b)
{
    a.v = a.v * b.v;
    return a;
}

V16_FN v16f v16_div(v16f a, v16f b)
{
    a.v = a.v / b.v;
    return a;
}

V16_FN v16f v16_max(v16f a, v16f b)
{
    V16_EACH
    a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}

V16_FN v16f v16_min(v16f a, v16f b)
{
    V16_EACH
    a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}

V16_FN v16f v16_fma(v16f a, v16f b, v16f c)
{
    a.v = a.v * b.v + c.v;
    return a;
}

/* Adding 1.5 * 2^23 leaves no place for a fraction, and the addition rounds to nearest even. Good for |a| <
 * 2^22. */
V16_FN v16f v16_round(v16f a)
{
    a.v = (a.v + 0x1.8p23f) - 0x1.8p23f;
    return a;
}

V16_FN float v16_power_of_2(int32_t n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

V16_FN v16f v16_scale(v16f a, v16f n)
{
    V16_EACH
    {
        /* A NaN has no whole part to convert; it is in a as well. */
        int32_t whole = n.v[i] >= -160 && n.v[i] <= 160 ? (int32_t)n.v[i] : 0, first = whole / 2;
        a.v[i] = a.v[i] * v16_power_of_2(first) * v16_power_of_2(whole - first);
    }
    return a;
}

V16_FN float v16_sum(v16f a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] += a.v[i + half];
    return a.v[0];
}

V16_FN float v16_max_lane(v16f a)
{
    for (int i = 1; i < 16; i++)
        a.v[0] = a.v[0] > a.v[i] ? a.v[0] : a.v[i];
    return a.v[0];
}

V16_FN uint32_t v16_amax_bits(v16f a, v16f b)
{
    uint32_t most = 0, u[32];
    memcpy(u, &a.v, sizeof a.v);
    memcpy(u + 16, &b.v, sizeof b.v);
    for (int i = 0; i < 32; i++) {
        u[i] &= 0x7fffffffu;
        most = u[i] > most ? u[i] : most;
    }
    return most;
}

V16_FN void v16_to_bytes(v16f a, v16f b, float by, int8_t *to, int32_t sum[2])
{
    sum[0] = sum[1] = 0;
    a = v16_round(v16_mul(a, v16_set1(by)));
    b = v16_round(v16_mul(b, v16_set1(by)));
    V16_EACH
    {
        to[i] = (int8_t)a.v[i];
        to[i + 16] = (int8_t)b.v[i];
        sum[0] += to[i];
        sum[1] += to[i + 16];
    }
}

V16_FN v16f v16_load_bytes(const int8_t *p)
{
    v16f r;
    V16_EACH
    r.v[i] = (float)p[i];
    return r;
}

V16_FN v16f v16_dot_32(const uint8_t *k, size_t stride, const int8_t *q, int32_t sum_q)
{
    int32_t sum[16];
    v16f r;
    for (int lane = 0; lane < 16; lane++)
        sum[lane] = -128 * sum_q;
    for (int j = 0; j < 8; j++, k += stride, q += 4)
        for (int lane = 0; lane < 16; lane++)
            for (int i = 0; i < 4; i++)
                sum[lane] += k[4 * lane + i] * q[i];
    V16_EACH
    r.v[i] = (float)sum[i];
    return r;
}
