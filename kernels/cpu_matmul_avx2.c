/* Cpu matmul, AVX2: a panel as two halves of 8 rows, up to 4 activation rows at a time; the same roundings in
 * the same order as the AVX-512 kernels, so the same bits. cpu_matmul.h has layouts and orders.
 *
 * The byte product adds pairs of products in 16 bits with saturation, which must never happen: 4-bit weights
 * stay below 8 * 2 * 15 * 127 = 30,480 even over all 8 groups of a block, and 8-bit weights are multiplied as
 * |w| * (sign of w) x, at most 2 * 128 * 127 = 32,512, and widened group by group. Thread: any of the
 * device's. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 1
#include "cpu_matmul_lanes.h"

#define TILE 4
#define PREFETCH 4096

/* 8 rows by 32 columns: j = 0..7 groups of 4 columns; 4-bit ones are unpacked once for all activation rows.
 */
struct block_256 {
    __m256i w[8];
    __m256 d, m;
};

CPU_INLINE void load_block(const unsigned char *q, const unsigned char *scale, const uint32_t type,
                           struct block_256 *b)
{
    const __m256i low = _mm256_set1_epi8(15), bias = _mm256_set1_epi8(-128);
    for (int j = 0; j < (type == QUANT_Q8_0 ? 8 : 4); j++) {
        __m256i v = _mm256_load_si256((const __m256i *)(const void *)(q + 64 * j));
        if (type == QUANT_Q8_0) {
            b->w[j] = _mm256_xor_si256(v, bias);
        } else {
            b->w[j] = _mm256_and_si256(v, low);
            b->w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        }
    }
    b->d = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)scale));
    if (type == QUANT_Q4_1)
        b->m = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(scale + 32)));
}

CPU_INLINE __m256i four_bytes(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}

CPU_INLINE __m256i dot_block(const struct block_256 *b, const int8_t *q, const struct cpu_block *a,
                             const uint32_t type)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i c = _mm256_setzero_si256();
    if (type == QUANT_Q8_0) {
        for (int j = 0; j < 8; j++) {
            __m256i x = _mm256_sign_epi8(four_bytes(q + 4 * j), b->w[j]);
            __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(b->w[j]), x);
            c = _mm256_add_epi32(c, _mm256_madd_epi16(pairs, one));
        }
        return c;
    }
    for (int j = 0; j < 8; j++)
        c = _mm256_add_epi16(c, _mm256_maddubs_epi16(b->w[j], four_bytes(q + 4 * j)));
    c = _mm256_madd_epi16(c, one);
    return type == QUANT_Q4_0 ? _mm256_add_epi32(c, _mm256_set1_epi32(a->minus_8)) : c;
}

CPU_INLINE void half_tile(const struct cpu_part *p, uint32_t row, uint32_t half, const uint32_t type,
                          const uint32_t rows, __m256 *f)
{
    const struct ops_weight *w = p->w;
    const size_t q_bytes = type == QUANT_Q8_0 ? 512 : 256, scale_bytes = type == QUANT_Q4_1 ? 64 : 32;
    const unsigned char *at = w->data + (size_t)p->panel * w->panel_bytes + 32 * half;
    const unsigned char *scale = w->data + (size_t)p->panel * w->panel_bytes + w->scales + 16 * half;
    const int8_t *q = cpu_rows_q(p->x, row);
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    const uint32_t height = p->x->height;
    for (uint32_t t = 0; t < rows; t++)
        f[t] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < w->blocks;
         i++, at += q_bytes, scale += scale_bytes, q += height * CPU_BLOCK, a += height) {
        struct block_256 b;
        for (size_t line = 0; half == 0 && line < q_bytes + scale_bytes; line += 64)
            _mm_prefetch((const char *)at + PREFETCH + line, _MM_HINT_T0);
        load_block(at, scale, type, &b);
        for (uint32_t t = 0; t < rows; t++) {
            const struct cpu_block *o = a + t;
            __m256i c = dot_block(&b, q + t * CPU_BLOCK, o, type);
            f[t] = _mm256_fmadd_ps(_mm256_mul_ps(b.d, _mm256_set1_ps(o->s)), _mm256_cvtepi32_ps(c), f[t]);
            if (type == QUANT_Q4_1)
                f[t] = _mm256_fmadd_ps(b.m, _mm256_set1_ps(o->s_sum), f[t]);
        }
    }
}

CPU_INLINE void tile(const struct cpu_part *p, uint32_t row, const uint32_t type, const uint32_t rows)
{
    __m256 lo[TILE], hi[TILE];
    half_tile(p, row, 0, type, rows, lo);
    half_tile(p, row, 1, type, rows, hi);
    for (uint32_t t = 0; t < rows; t++)
        lanes_write(p, row + t, v16_pair(lo[t], hi[t]));
}

CPU_INLINE void tiles(const struct cpu_part *p, const uint32_t type)
{
    uint32_t row = p->first, end = p->first + p->n;
    for (; row + TILE <= end; row += TILE)
        tile(p, row, type, TILE);
    if (end - row == 3)
        tile(p, row, type, 3);
    else if (end - row == 2)
        tile(p, row, type, 2);
    else if (end - row == 1)
        tile(p, row, type, 1);
}

static void quantized(const struct cpu_part *p)
{
    if (p->w->type == QUANT_Q4_0)
        tiles(p, QUANT_Q4_0);
    else if (p->w->type == QUANT_Q4_1)
        tiles(p, QUANT_Q4_1);
    else
        tiles(p, QUANT_Q8_0);
}

const struct cpu_matmul_kernels cpu_matmul_avx2 = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
};
