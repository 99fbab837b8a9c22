/* Cpu matmul, AMX: the integer sums of a block, 16 rows of weights by up to 16 of activations, in one
 * instruction; then the same float steps in the same order as the AVX-512 kernels, so the same bits.
 * cpu_matmul.h has layouts and orders.
 *
 * A block is 32 columns (Q6_K: two times 16), so each block's sums leave the tile for memory and are picked
 * up again by the float steps; block b + 1 is asked for before block b is picked up, to hide the way. The
 * tile wants weights as signed bytes: a panel is unpacked once for all rows of a part, which only pays for
 * several rows; fewer go to the AVX-512 kernels. Thread: any of the device's; tiles are configured between
 * enter and leave. Tests: tests/kernels/test_matmul.c */
#define FLOAT_TILE 4
#include "cpu_matmul_512.h"

#define LEAST_ROWS 12u      /* of a tile; fewer are faster without */
#define UNPACKED_BYTES 512u /* a block of a panel as signed bytes */
#define SUMS 256u           /* 16 x 16 */

struct scratch_amx {
    _Alignas(64) int32_t sums[2][2][SUMS]; /* of every other block; of 16 columns and 16 more, or of 32 */
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

/* Tiles 0, 1, 2: sums, activations, weights; 3 and 4 activations and weights of half a block. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void enter(void)
{
    const struct tile_config c = {
        .palette = 1,
        .row_bytes = { 64, CPU_BLOCK, 64, CPU_BLOCK / 2, 64 },
        .rows = { CPU_TILE, CPU_TILE, CPU_BLOCK / 4, CPU_TILE, CPU_BLOCK / 8 },
    };
    written(&c);
    _tile_loadconfig(&c);
}

static void leave(void)
{
    _tile_release();
}

/* ---- weights ---- */

CPU_INLINE void unpack(const struct cpu_part *p, int8_t *to, const uint32_t type)
{
    const struct cpu_form form = cpu_form_of(type);
    const __m512i zero = _mm512_set1_epi8((char)quant_zero(type));
    for (uint32_t i = 0; i < p->w->blocks; i++, to += UNPACKED_BYTES) {
        __m512i w[8];
        load_quants(cpu_place(p->w, p->panel, i, form).quants, form.bits, w);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            _mm512_store_si512(to + 64 * j, quant_zero(type) ? _mm512_sub_epi8(w[j], zero) : w[j]);
    }
}

/* ---- products ---- */

/* The sums of one block for the rows of a tile. */
CPU_INLINE void dot_block(const int8_t *panel, const int8_t *q, int32_t (*sums)[SUMS], const uint32_t type)
{
    if (type == QUANT_Q6_K) {
        for (int half = 0; half < 2; half++) {
            _tile_loadd(4, panel + 256 * half, 64);
            _tile_zero(0);
            _tile_loadd(3, q + 16 * half, CPU_BLOCK);
            _tile_dpbssd(0, 3, 4);
            _tile_stored(0, sums[half], 64);
        }
        return;
    }
    _tile_loadd(2, panel, 64);
    _tile_zero(0);
    _tile_loadd(1, q, CPU_BLOCK);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums[0], 64);
}

CPU_INLINE void add_block(int32_t (*sums)[SUMS], struct cpu_place at, const struct cpu_block *a,
                          const uint32_t type, __m512 *f)
{
    struct scales_512 s;
    load_scales(at, type, &s);
#pragma GCC unroll 16
    for (uint32_t t = 0; t < CPU_TILE; t++) {
        __m512i sum[2] = { _mm512_load_si512(sums[0] + 16 * t), _mm512_setzero_si512() };
        if (type == QUANT_Q6_K)
            sum[1] = _mm512_load_si512(sums[1] + 16 * t);
        f[t] = add_sums(&s, sum, a + t, type, f[t]);
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
    const int8_t *q = cpu_rows_q(p->x, row), *panel = s->panel;
    const struct cpu_block *a = cpu_rows_block(p->x, row);
    __m512 f[CPU_TILE];
#pragma GCC unroll 16
    for (uint32_t t = 0; t < CPU_TILE; t++)
        f[t] = _mm512_setzero_ps();
    dot_block(panel, q, s->sums[0], type);
    for (uint32_t b = 0; b < w->blocks; b++, a += CPU_TILE) {
        panel += UNPACKED_BYTES;
        q += CPU_TILE * CPU_BLOCK;
        if (b + 1 < w->blocks)
            dot_block(panel, q, s->sums[(b + 1) % 2], type);
        prefetch_next(q, a, w->blocks);
        add_block(s->sums[b % 2], cpu_place(w, p->panel, b, cpu_form_of(type)), a, type, f);
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
    unpack(p, s->panel, type);
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
    if (p->n < LEAST_ROWS) {
        cpu_matmul_avx512.quantized(p);
        return;
    }
    CPU_WITH_TYPE(p->w->type, tiles, p)
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
