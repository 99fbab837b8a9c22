/* Cpu matmul, AVX2: a panel as two halves of 8 rows, unpacked once for up to 16 activation rows, of which 4
 * at a time are summed in registers; the same roundings in the same order as the AVX-512 kernels, so the same
 * bits. cpu_matmul.h has layouts and orders.
 *
 * The byte product adds pairs of products in 16 bits with saturation, which must never happen. Unsigned
 * weights of 4 bits stay below 8 * 2 * 15 * 127 = 30,480 over all 8 groups of a block, of 5 bits below 4 * 2
 * * 31 * 127 = 31,496 over 4 groups, of 6 bits below 2 * 2 * 63 * 127 = 32,004 over 2; 8-bit weights are
 * multiplied as |w| * (sign of w) x, at most 2 * 128 * 127 = 32,512, and widened group by group. Thread: any
 * of the device's. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 1
#include "cpu_matmul_lanes.h"

#define TILE 16
#define GROUP 4 /* rows whose sums with both halves fit the registers */
/* Few rows wait for memory, asked early for what comes; half of the first-level cache is left to the rest. */
#define PREFETCH 12288

/* Instrumented, what is unrolled keeps the compiler busy for minutes. */
#ifdef __SANITIZE_ADDRESS__
#define UNROLL(n)
#else
#define UNROLL(n) UNROLL_PRAGMA(GCC unroll n)
#define UNROLL_PRAGMA(text) _Pragma(#text)
#endif

/* Otherwise the compiler adds a block's products up in a tree, which keeps more than the registers hold. */
#define KEEP(v) __asm__("" : "+x"(v))

/* 8 rows by 32 columns, unpacked once for all activation rows: groups j of 4 columns. */
struct block_256 {
    __m256i w[8];
    __m256 d, m;
    __m256i a[2], both; /* Q6_K: scales of 16 columns as pairs of 16 bits, one twice, and one and the other */
};

CPU_INLINE __m256i load_256(const unsigned char *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

CPU_INLINE __m256 load_halves(const unsigned char *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

CPU_INLINE __m256 load_numbers(const unsigned char *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* 8 signed bytes, each as a pair of 16 bits. */
CPU_INLINE __m256i load_pairs(const unsigned char *p)
{
    const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)(const void *)p), twice));
}

/* The bits of v from `from` on moved to bit 4, where it is alone by `mask`. */
CPU_INLINE __m256i high_bits(__m256i v, const int from, const int mask)
{
    __m256i moved = from < 4 ? _mm256_slli_epi16(v, 4 - from) : _mm256_srli_epi16(v, from - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

CPU_INLINE void load_quants(const unsigned char *q, const uint32_t bits, __m256i *w)
{
    const __m256i low = _mm256_set1_epi8(15);
    if (bits == 8) {
        UNROLL(8)
        for (int j = 0; j < 8; j++)
            w[j] = _mm256_xor_si256(load_256(q + 64 * j), _mm256_set1_epi8(-128));
        return;
    }
    UNROLL(4)
    for (int j = 0; j < 4; j++) {
        __m256i v = load_256(q + 64 * j);
        w[j] = _mm256_and_si256(v, low);
        w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    }
    if (bits == 5) {
        __m256i v = load_256(q + 256);
        UNROLL(8)
        for (int j = 0; j < 8; j++)
            w[j] = _mm256_or_si256(w[j], high_bits(v, j, 0x10));
    } else if (bits == 6) {
        __m256i v[2] = { load_256(q + 256), load_256(q + 320) };
        UNROLL(8)
        for (int j = 0; j < 8; j++)
            w[j] = _mm256_or_si256(w[j], high_bits(v[j / 4], 2 * (j % 4), 0x30));
    }
}

/* Rows 8 half .. 8 half + 7 of the block. */
CPU_INLINE void load_block(struct cpu_place at, uint32_t half, const uint32_t type, struct block_256 *b)
{
    const struct cpu_form form = cpu_form_of(type);
    const unsigned char *scale = at.scales + 8 * half, *d = (form.supers ? at.supers : at.scales) + 16 * half;
    load_quants(at.quants + 32 * half, form.bits, b->w);
    b->d = load_halves(d);
    if (form.minima)
        b->m = load_halves(d + 32);
    if (form.supers && form.minima) {
        b->d = _mm256_mul_ps(b->d, load_numbers(scale));
        b->m = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(b->m, load_numbers(scale + 16)));
    } else if (form.supers) {
        b->a[0] = load_pairs(scale);
        b->a[1] = load_pairs(scale + 16);
        b->both = _mm256_blend_epi16(b->a[0], b->a[1], 0xaa);
    }
}

CPU_INLINE __m256i four_bytes(const void *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Adds to c, or begins it: group j of 8 rows by one row's four activations. */
CPU_INLINE __m256i add_group(__m256i c, __m256i w, __m256i x, const uint32_t bits, const bool begins)
{
    __m256i pairs = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                              : _mm256_maddubs_epi16(w, x);
    return begins ? pairs : _mm256_add_epi16(c, pairs);
}

/* As many groups of a block as their sum in 16 bits holds. */
CPU_INLINE uint32_t groups_at_once(const uint32_t bits)
{
    return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

/* sum[half][t]: what the first groups of a block, as many as 16 bits hold, are for rows t; then the next
 * ones, in 32 bits. */
CPU_INLINE void dot_groups(const struct block_256 b[2], const int8_t *q, const uint32_t bits,
                           const uint32_t rows, const uint32_t first, __m256i sum[2][GROUP])
{
    const uint32_t n = groups_at_once(bits);
    __m256i c[2][GROUP];
    UNROLL(8)
    for (uint32_t j = first; j < first + n; j++) {
        __m256i w[2] = { b[0].w[j], b[1].w[j] };
        KEEP(w[0]);
        KEEP(w[1]);
        UNROLL(4)
        for (uint32_t t = 0; t < rows; t++) {
            const __m256i x = four_bytes(q + t * CPU_BLOCK + 4 * j);
            UNROLL(2)
            for (uint32_t half = 0; half < 2; half++) {
                c[half][t] = add_group(c[half][t], w[half], x, bits, j == first);
                KEEP(c[half][t]);
            }
        }
    }
    UNROLL(4)
    for (uint32_t t = 0; t < rows; t++)
        UNROLL(2)
    for (uint32_t half = 0; half < 2; half++) {
        __m256i by = bits == 6 ? b[half].a[first / 4] : _mm256_set1_epi16(1);
        __m256i wide = _mm256_madd_epi16(c[half][t], by);
        sum[half][t] = first ? _mm256_add_epi32(sum[half][t], wide) : wide;
    }
}

/* What takes the zeros of the quants out of a sum. */
CPU_INLINE __m256i zeros(const struct block_256 *b, const struct cpu_block *a, const uint32_t type)
{
    if (type == QUANT_Q6_K)
        return _mm256_slli_epi32(_mm256_madd_epi16(b->both, four_bytes(a->minus_16)), 1);
    return _mm256_slli_epi32(_mm256_set1_epi32(a->minus_8), CPU_EIGHTS(type));
}

/* One block of both halves by `rows` rows. */
CPU_INLINE void add_block(const struct block_256 b[2], const int8_t *q, const struct cpu_block *a,
                          const uint32_t type, const uint32_t rows, __m256 f[][2])
{
    const struct cpu_form form = cpu_form_of(type);
    __m256i sum[2][GROUP];
    UNROLL(8)
    for (uint32_t first = 0; first < 8; first += groups_at_once(form.bits))
        dot_groups(b, q, form.bits, rows, first, sum);
    UNROLL(4)
    for (uint32_t t = 0; t < rows; t++)
        UNROLL(2)
    for (uint32_t half = 0; half < 2; half++) {
        __m256i c = sum[half][t];
        if (form.bits != 8 && quant_zero(type))
            c = _mm256_add_epi32(c, zeros(&b[half], &a[t], type));
        __m256 d = _mm256_mul_ps(b[half].d, _mm256_set1_ps(a[t].s));
        __m256 to = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(c), f[t][half]);
        if (form.minima)
            to = _mm256_fmadd_ps(b[half].m, _mm256_set1_ps(a[t].s_sum), to);
        f[t][half] = to;
    }
}

CPU_INLINE void tile(const struct cpu_part *p, uint32_t row, const uint32_t type, const uint32_t rows)
{
    const struct ops_weight *w = p->w;
    const struct cpu_form form = cpu_form_of(type);
    const int8_t *q = cpu_rows_q(p->x, row);
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    const uint32_t height = p->x->height;
    __m256 f[TILE][2];
    for (uint32_t t = 0; t < rows; t++)
        f[t][0] = f[t][1] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < w->blocks; i++, q += height * CPU_BLOCK, a += height) {
        const struct cpu_place at = cpu_place(w, p->panel, i, form);
        struct block_256 b[2];
        for (size_t line = 0; line < form.quants + form.scales; line += 64)
            _mm_prefetch((const char *)at.quants + PREFETCH + line, _MM_HINT_T0);
        load_block(at, 0, type, &b[0]);
        load_block(at, 1, type, &b[1]);
        if (rows <= GROUP) {
            add_block(b, q, a, type, rows, f);
            continue;
        }
#pragma GCC unroll 1
        for (uint32_t t = 0; t < rows; t += GROUP)
            add_block(b, q + t * CPU_BLOCK, a + t, type, GROUP, f + t);
    }
    for (uint32_t t = 0; t < rows; t++)
        lanes_write(p, row + t, v16_pair(f[t][0], f[t][1]));
}

CPU_INLINE void tiles(const struct cpu_part *p, const uint32_t type)
{
    uint32_t row = p->first, end = p->first + p->n;
    for (; row + TILE <= end; row += TILE)
        tile(p, row, type, TILE);
    for (; row + GROUP <= end; row += GROUP)
        tile(p, row, type, GROUP);
    if (end - row == 3)
        tile(p, row, type, 3);
    else if (end - row == 2)
        tile(p, row, type, 2);
    else if (end - row == 1)
        tile(p, row, type, 1);
}

static void quantized(const struct cpu_part *p)
{
    CPU_WITH_TYPE(p->w->type, tiles, p)
}

const struct cpu_matmul_kernels cpu_matmul_avx2 = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
};
