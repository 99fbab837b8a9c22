/* Emulated: the instructions that kernels/cpu_*_avx512.c and cpu_matmul_amx.c use and this machine may lack,
 * in plain C, so that these files are run by the kernels' tests wherever there is AVX2. Included before
 * everything else by the compiler (-include) when the kernels are compiled once more for test_emulated_*; the
 * device then finds all it asks the processor for. What each does is in the processor's manual; an
 * instruction that is missing here does not compile. Not covered: the inline assembly of dot_four, whose
 * other spelling is an intrinsic, and alignment. */
#pragma once
#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the processor's and the system's answers ---- */

#define __AVX512F__ 1
#define __builtin_cpu_init() ((void)0)
#define __builtin_cpu_supports(name) 1
#define __get_cpuid_count(leaf, sub, a, b, c, d) (*(a) = *(b) = *(c) = 0, *(d) = ~0u, 1)
#define syscall(number, a, b) ((void)(a), (void)(b), 0)

/* ---- vectors ---- */

#define EMULATED static __attribute__((noinline, unused))
#define LANES for (int i = 0; i < 16; i++)

typedef int32_t e_i32 __attribute__((vector_size(64), may_alias));
typedef uint32_t e_u32 __attribute__((vector_size(64), may_alias));
typedef uint16_t e_u16 __attribute__((vector_size(64), may_alias));
typedef int8_t e_i8 __attribute__((vector_size(64), may_alias));

#undef _mm512_setzero_ps
#define _mm512_setzero_ps() ((__m512){ 0 })
#undef _mm512_setzero_si512
#define _mm512_setzero_si512() ((__m512i){ 0 })
#undef _mm512_add_ps
#define _mm512_add_ps(a, b) ((__m512)((a) + (b)))
#undef _mm512_sub_ps
#define _mm512_sub_ps(a, b) ((__m512)((a) - (b)))
#undef _mm512_mul_ps
#define _mm512_mul_ps(a, b) ((__m512)((a) * (b)))
#undef _mm512_div_ps
#define _mm512_div_ps(a, b) ((__m512)((a) / (b)))
#undef _mm512_and_si512
#define _mm512_and_si512(a, b) ((__m512i)((a) & (b)))
#undef _mm512_or_si512
#define _mm512_or_si512(a, b) ((__m512i)((a) | (b)))
#undef _mm512_add_epi32
#define _mm512_add_epi32(a, b) ((__m512i)((e_i32)(a) + (e_i32)(b)))
#undef _mm512_mullo_epi32
#define _mm512_mullo_epi32(a, b) ((__m512i)((e_i32)(a) * (e_i32)(b)))
#undef _mm512_sub_epi8
#define _mm512_sub_epi8(a, b) ((__m512i)((e_i8)(a) - (e_i8)(b)))
#undef _mm512_slli_epi32
#define _mm512_slli_epi32(a, n) ((__m512i)((e_u32)(a) << (uint32_t)(n)))
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, n) ((__m512i)((e_i32)(a) >> (int32_t)(n)))
#undef _mm512_srli_epi16
#define _mm512_srli_epi16(a, n) ((__m512i)((e_u16)(a) >> (uint16_t)(n)))
#undef _mm512_srl_epi32
#define _mm512_srl_epi32(a, n) ((__m512i)((e_u32)(a) >> (uint32_t)_mm_cvtsi128_si32(n)))
#undef _mm512_castps_si512
#define _mm512_castps_si512(a) ((__m512i)(a))
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps(a) ((__m512)(a))
#undef _mm512_castps_pd
#define _mm512_castps_pd(a) ((__m512d)(a))

/* name(p) or name(x) as functions where one expression will not do. */
EMULATED __m512 e_set1_ps(float x)
{
    __m512 r = { 0 };
    return r + x;
}
#undef _mm512_set1_ps
#define _mm512_set1_ps e_set1_ps

EMULATED __m512i e_set1_epi32(int x)
{
    e_i32 r = { 0 };
    return (__m512i)(r + x);
}
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 e_set1_epi32

EMULATED __m512i e_set1_epi8(char x)
{
    __m512i r;
    memset(&r, x, sizeof r);
    return r;
}
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 e_set1_epi8

EMULATED __m512 e_loadu_ps(const void *p)
{
    __m512 r;
    memcpy(&r, p, sizeof r);
    return r;
}
#undef _mm512_loadu_ps
#define _mm512_loadu_ps e_loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512(p) ((__m512i)e_loadu_ps(p))
#undef _mm512_load_si512
#define _mm512_load_si512(p) ((__m512i)e_loadu_ps(p))

EMULATED void e_storeu_ps(void *p, __m512 a)
{
    memcpy(p, &a, sizeof a);
}
#undef _mm512_storeu_ps
#define _mm512_storeu_ps e_storeu_ps
#undef _mm512_store_si512
#define _mm512_store_si512(p, a) e_storeu_ps(p, (__m512)(a))

EMULATED __m512 e_maskz_loadu_ps(uint16_t mask, const float *p)
{
    __m512 r = { 0 };
    LANES
    if (mask >> i & 1)
        r[i] = p[i];
    return r;
}
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps e_maskz_loadu_ps

EMULATED void e_mask_storeu_ps(float *p, uint16_t mask, __m512 a)
{
    LANES
    if (mask >> i & 1)
        p[i] = a[i];
}
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps e_mask_storeu_ps

EMULATED __m512 e_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    LANES
    c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps e_fmadd_ps

EMULATED __m512 e_max_ps(__m512 a, __m512 b)
{
    LANES
    b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}
#undef _mm512_max_ps
#define _mm512_max_ps e_max_ps

EMULATED __m512 e_min_ps(__m512 a, __m512 b)
{
    LANES
    b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}
#undef _mm512_min_ps
#define _mm512_min_ps e_min_ps

EMULATED __m512i e_max_epu32(__m512i a, __m512i b)
{
    e_u32 x = (e_u32)a, y = (e_u32)b;
    LANES
    y[i] = x[i] > y[i] ? x[i] : y[i];
    return (__m512i)y;
}
#undef _mm512_max_epu32
#define _mm512_max_epu32 e_max_epu32

/* To nearest, the only way it is asked for. */
EMULATED __m512 e_roundscale_ps(__m512 a)
{
    LANES
    a[i] = nearbyintf(a[i]);
    return a;
}
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) e_roundscale_ps(a)

EMULATED __m512 e_scalef_ps(__m512 a, __m512 n)
{
    LANES
    a[i] = isnan(n[i]) ? n[i] : scalbnf(a[i], (int)fmaxf(-1000, fminf(1000, floorf(n[i]))));
    return a;
}
#undef _mm512_scalef_ps
#define _mm512_scalef_ps e_scalef_ps

EMULATED __m512i e_rolv_epi32(__m512i a, __m512i n)
{
    e_u32 x = (e_u32)a, by = (e_u32)n & 31;
    return (__m512i)(x << by | x >> (-by & 31));
}
#undef _mm512_rolv_epi32
#define _mm512_rolv_epi32 e_rolv_epi32

/* ---- conversions ---- */

EMULATED __m512 e_cvtepi32_ps(__m512i a)
{
    __m512 r;
    LANES
    r[i] = (float)((e_i32)a)[i];
    return r;
}
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps e_cvtepi32_ps

EMULATED __m512i e_cvtps_epi32(__m512 a)
{
    e_i32 r;
    LANES
    r[i] = fabsf(a[i]) < 0x1p31f ? (int32_t)nearbyintf(a[i]) : INT32_MIN;
    return (__m512i)r;
}
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 e_cvtps_epi32

EMULATED __m128i e_cvtepi32_epi8(__m512i a)
{
    int8_t r[16];
    LANES
    r[i] = (int8_t)((e_i32)a)[i];
    return _mm_loadu_si128((const __m128i *)(const void *)r);
}
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 e_cvtepi32_epi8

EMULATED __m512i e_cvtepi8_epi32(__m128i a)
{
    int8_t from[16];
    e_i32 r;
    memcpy(from, &a, sizeof from);
    LANES
    r[i] = from[i];
    return (__m512i)r;
}
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 e_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(a) _mm512_and_si512(e_cvtepi8_epi32(a), e_set1_epi32(255))

EMULATED __m512i e_cvtepu16_epi32(__m256i a)
{
    uint16_t from[16];
    e_i32 r;
    memcpy(from, &a, sizeof from);
    LANES
    r[i] = from[i];
    return (__m512i)r;
}
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 e_cvtepu16_epi32

EMULATED __m512 e_cvtph_ps(__m256i a)
{
    __m256 both[2] = { _mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                       _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)) };
    return e_loadu_ps(both);
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps e_cvtph_ps

/* ---- halves ---- */

EMULATED __m256 e_half(__m512 a, int i)
{
    __m256 both[2];
    memcpy(both, &a, sizeof both);
    return both[i];
}
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256(a) e_half(a, 0)
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256(a) _mm256_castps_si256(e_half((__m512)(a), 0))
#undef _mm512_extractf64x4_pd
#define _mm512_extractf64x4_pd(a, i) _mm256_castps_pd(e_half((__m512)(a), i))
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64(a, i) _mm256_castps_si256(e_half((__m512)(a), i))

/* ---- byte products ---- */

EMULATED void e_dpbusd(int32_t *c, const uint8_t *a, const int8_t *b, int lanes)
{
    for (int i = 0; i < 4 * lanes; i++)
        c[i / 4] += a[i] * b[i];
}

EMULATED __m512i e_dpbusd_512(__m512i c, __m512i a, __m512i b)
{
    e_dpbusd((int32_t *)&c, (const uint8_t *)&a, (const int8_t *)&b, 16);
    return c;
}
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 e_dpbusd_512

EMULATED __m256i e_dpbusd_256(__m256i c, __m256i a, __m256i b)
{
    int32_t sum[8];
    memcpy(sum, &c, sizeof sum);
    e_dpbusd(sum, (const uint8_t *)&a, (const int8_t *)&b, 8);
    return _mm256_loadu_si256((const __m256i *)(const void *)sum);
}
#undef _mm256_dpbusd_epi32
#define _mm256_dpbusd_epi32 e_dpbusd_256

/* ---- tiles ---- */

struct e_tile {
    uint32_t rows, bytes;
    union {
        int8_t byte[16][64];
        int32_t sum[16][16];
    };
};
static __thread struct e_tile e_tiles[8] __attribute__((unused));

EMULATED void e_tile_loadconfig(const void *config)
{
    const unsigned char *c = (const unsigned char *)config;
    for (int i = 0; i < 8; i++) {
        uint16_t bytes;
        memcpy(&bytes, c + 16 + 2 * i, sizeof bytes);
        e_tiles[i] = (struct e_tile){ .rows = c[48 + i], .bytes = bytes };
    }
}
#undef _tile_loadconfig
#define _tile_loadconfig e_tile_loadconfig
#undef _tile_release
#define _tile_release() memset(e_tiles, 0, sizeof e_tiles)
#undef _tile_zero
#define _tile_zero(t) memset(e_tiles[t].byte, 0, sizeof e_tiles[t].byte)

EMULATED void e_tile_loadd(struct e_tile *t, const void *from, size_t stride)
{
    memset(t->byte, 0, sizeof t->byte);
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy(t->byte[r], (const char *)from + r * stride, t->bytes);
}
#undef _tile_loadd
#define _tile_loadd(t, from, stride) e_tile_loadd(&e_tiles[t], from, stride)

EMULATED void e_tile_stored(const struct e_tile *t, void *to, size_t stride)
{
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy((char *)to + r * stride, t->byte[r], t->bytes);
}
#undef _tile_stored
#define _tile_stored(t, to, stride) e_tile_stored(&e_tiles[t], to, stride)

/* Shapes that do not fit each other are an error of the processor's, and end the program here too. */
EMULATED void e_tile_dpbssd(struct e_tile *c, const struct e_tile *a, const struct e_tile *b)
{
    if (!c->rows || a->rows != c->rows || b->rows * 4 != a->bytes || b->bytes != c->bytes)
        __builtin_trap();
    for (uint32_t m = 0; m < a->rows; m++)
        for (uint32_t k = 0; k < b->rows; k++)
            for (uint32_t n = 0; n < c->bytes / 4; n++)
                for (uint32_t i = 0; i < 4; i++)
                    c->sum[m][n] += a->byte[m][4 * k + i] * b->byte[k][4 * n + i];
}
#undef _tile_dpbssd
#define _tile_dpbssd(c, a, b) e_tile_dpbssd(&e_tiles[c], &e_tiles[a], &e_tiles[b])
