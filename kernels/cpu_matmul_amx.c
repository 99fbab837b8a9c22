/* Cpu matmul, AMX: the integer sums of a block, 16 rows of weights by up to 16 of activations, in one
 * instruction; then the same float steps in the same order as the AVX-512 kernels, so the same bits.
 * cpu_matmul.h has layouts and orders.
 *
 * A block is 32 columns, so each block's sums leave the tile for memory and are picked up again by the float
 * steps; block b + 1 is asked for before block b is picked up, to hide the way. The tile wants weights as
 * signed bytes: a panel is unpacked once for all rows of a part, which only pays for several rows; fewer go
 * to the AVX-512 kernels. Thread: any of the device's; tiles are configured between enter and leave. Tests:
 * tests/kernels/test_matmul.c */
#define FLOAT_TILE 4
#include "cpu_matmul_lanes.h"

#define LEAST_ROWS 12u      /* of a tile; fewer are faster without */
#define UNPACKED_BYTES 512u /* a block of a panel as signed bytes */
#define SUMS 256u           /* of a block: 16 x 16 */

struct scratch_amx {
    _Alignas(64) int32_t sums[2][SUMS];
    int8_t panel[];
};

static size_t scratch(const struct ops_weight *w)
{
    return sizeof(struct scratch_amx) + (size_t)w->blocks * UNPACKED_BYTES;
}

/* gcc's tile loads do not say which memory they read: what was written for them must be written by here. */
CPU_INLINE void written(const void *memory)
{
    __asm__ volatile("" : : "r"(memory) : "memory");
}

/* Tiles 0, 1, 2: sums, activations, weights. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void enter(void)
{
    const struct tile_config c = {
        .palette = 1,
        .row_bytes = { 64, CPU_BLOCK, 64 },
        .rows = { CPU_TILE, CPU_TILE, CPU_BLOCK / 4 },
    };
    written(&c);
    _tile_loadconfig(&c);
}

static void leave(void)
{
    _tile_release();
}

/* ---- weights ---- */

CPU_INLINE void unpack(const struct ops_weight *w, const unsigned char *from, int8_t *to, const uint32_t type)
{
    const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8), bias = _mm512_set1_epi8(-128);
    const uint32_t lines = type == QUANT_Q8_0 ? 8 : 4;
    for (uint32_t i = 0; i < w->blocks; i++, to += UNPACKED_BYTES)
        for (uint32_t j = 0; j < lines; j++, from += 64) {
            __m512i v = _mm512_load_si512(from);
            if (type == QUANT_Q8_0) {
                _mm512_store_si512(to + 64 * j, _mm512_xor_si512(v, bias));
                continue;
            }
            __m512i l = _mm512_and_si512(v, low), h = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
            _mm512_store_si512(to + 64 * j, type == QUANT_Q4_0 ? _mm512_sub_epi8(l, eight) : l);
            _mm512_store_si512(to + 64 * j + 256, type == QUANT_Q4_0 ? _mm512_sub_epi8(h, eight) : h);
        }
}

/* ---- products ---- */

/* The sums of one block for the rows of a tile. */
CPU_INLINE void dot_block(const int8_t *panel, const int8_t *q, int32_t *sums)
{
    _tile_loadd(2, panel, 64);
    _tile_zero(0);
    _tile_loadd(1, q, CPU_BLOCK);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, 64);
}

CPU_INLINE void add_block(const int32_t *sums, const unsigned char *scale, const struct cpu_block *a,
                          const uint32_t type, __m512 *f)
{
    __m512 d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)scale)), m = d;
    if (type == QUANT_Q4_1)
        m = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(scale + 32)));
#pragma GCC unroll 16
    for (uint32_t t = 0; t < CPU_TILE; t++) {
        __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * t));
        f[t] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(a[t].s)), sum, f[t]);
        if (type == QUANT_Q4_1)
            f[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(a[t].s_sum), f[t]);
    }
}

/* The next tile's part of this block: it lies in the second-level cache, and tile loads are not foreseen by
 * the processor. Past the last tile this asks for what nobody uses, which is harmless. */
CPU_INLINE void prefetch_next(const int8_t *q, const struct cpu_block *a, uint32_t blocks)
{
    const char *q_next = (const char *)q + (size_t)CPU_TILE * CPU_BLOCK * (blocks - 1);
    const char *a_next = (const char *)a + (size_t)CPU_TILE * blocks * sizeof *a;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < CPU_TILE * CPU_BLOCK; i += 64)
        _mm_prefetch(q_next + i, _MM_HINT_T0);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < CPU_TILE * sizeof *a; i += 64)
        _mm_prefetch(a_next + i, _MM_HINT_T0);
}

/* n of a tile's 16 rows; where they are fewer the others are computed all the same (their memory is there)
 * and dropped. */
CPU_INLINE void tile(const struct cpu_part *p, uint32_t row, uint32_t n, const uint32_t type)
{
    struct scratch_amx *s = p->scratch;
    const struct ops_weight *w = p->w;
    const size_t scale_bytes = type == QUANT_Q4_1 ? 64 : 32;
    const unsigned char *scale = w->data + (size_t)p->panel * w->panel_bytes + w->scales;
    const int8_t *q = cpu_rows_q(p->x, row), *panel = s->panel;
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    __m512 f[CPU_TILE];
#pragma GCC unroll 16
    for (uint32_t t = 0; t < CPU_TILE; t++)
        f[t] = _mm512_setzero_ps();
    dot_block(panel, q, s->sums[0]);
    for (uint32_t b = 0; b < w->blocks; b++, scale += scale_bytes, a += CPU_TILE) {
        panel += UNPACKED_BYTES;
        q += CPU_TILE * CPU_BLOCK;
        if (b + 1 < w->blocks)
            dot_block(panel, q, s->sums[(b + 1) % 2]);
        prefetch_next(q, a, w->blocks);
        add_block(s->sums[b % 2], scale, a, type, f);
    }
#pragma GCC unroll 16
    for (uint32_t t = 0; t < CPU_TILE; t++)
        if (t < n)
            lanes_write(p, row + t, f[t]);
}

CPU_INLINE void tiles(const struct cpu_part *p, const uint32_t type)
{
    struct scratch_amx *s = p->scratch;
    uint32_t row = p->first, end = p->first + p->n;
    unpack(p->w, p->w->data + (size_t)p->panel * p->w->panel_bytes, s->panel, type);
    written(s->panel);
    for (; row + LEAST_ROWS <= end; row += CPU_TILE)
        tile(p, row, end - row, type);
    if (row < end) {
        struct cpu_part rest = *p;
        rest.first = row;
        rest.n = end - row;
        cpu_matmul_avx512.quantized(&rest);
    }
}

static void quantized(const struct cpu_part *p)
{
    if (p->n < LEAST_ROWS)
        cpu_matmul_avx512.quantized(p);
    else if (p->w->type == QUANT_Q4_0)
        tiles(p, QUANT_Q4_0);
    else if (p->w->type == QUANT_Q4_1)
        tiles(p, QUANT_Q4_1);
    else
        tiles(p, QUANT_Q8_0);
}

const struct cpu_matmul_kernels cpu_matmul_amx = {
    .prepare = lanes_prepare,
    .quantized = quantized,
    .floats = lanes_floats,
    .norm_add = lanes_norm_add,
    .scratch = scratch,
    .enter = enter,
    .leave = leave,
};
