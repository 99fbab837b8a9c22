/* Cpu embed: rows out of a weight's panels, and rows out of an array.
 * Thread: the stage thread and the device's pool. Must not know: what a token is.
 * Tests: tests/kernels/test_matmul.c */
#include "cpu_matmul.h"
#include "quant.h"

#include <string.h>

static float half_at(const unsigned char *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return quant_f16_to_f32(h);
}

/* Column c of a block's lane: q is where the lane's bytes begin. */
static int quant_at(const unsigned char *q, uint32_t c, uint32_t bits)
{
    const uint32_t j = c / 4, i = c % 4;
    if (bits == 8)
        return q[64 * j + i];
    int low = q[64 * (j % 4) + i] >> (j < 4 ? 0 : 4) & 15;
    if (bits == 5)
        return low | (q[256 + i] >> j & 1) << 4;
    if (bits == 6)
        return low | (q[256 + 64 * (j / 4) + i] >> 2 * (j % 4) & 3) << 4;
    return low;
}

/* The same arithmetic as quant_dequantize: what is looked up is exactly what the file says. */
static void block_out(const struct ops_weight *w, uint32_t row, uint32_t b, float *out)
{
    const struct cpu_form form = cpu_form_of(w->type);
    const uint32_t lane = row % CPU_LANES;
    const struct cpu_place at = cpu_place(w, row / CPU_LANES, b, form);
    const unsigned char *half = (form.supers ? at.supers : at.scales) + 2 * lane;
    float d[2], m = form.minima ? half_at(half + 2 * CPU_LANES) : 0;
    d[0] = d[1] = half_at(half);
    if (form.supers) {
        const unsigned char first = at.scales[lane], second = at.scales[CPU_LANES + lane];
        d[0] *= (float)(int8_t)first;
        d[1] *= (float)(int8_t)(form.minima ? first : second);
        m *= -(float)second;
    }
    const int zero = quant_zero(w->type);
    for (uint32_t c = 0; c < CPU_BLOCK; c++)
        out[c] = d[c / 16] * (float)(quant_at(at.quants + 4 * lane, c, form.bits) - zero) + m;
}

static void row_out(const struct ops_weight *w, uint32_t row, float *out)
{
    if (cpu_weight_is_quantized(w)) {
        for (uint32_t b = 0; b < w->blocks; b++)
            block_out(w, row, b, out + (size_t)b * CPU_BLOCK);
        return;
    }
    const unsigned char *panel = w->data + row / CPU_LANES * w->panel_bytes;
    const uint32_t lane = row % CPU_LANES;
    const struct quant_info *info = quant_info_find(w->type);
    for (uint32_t c = 0; c < w->cols; c++)
        quant_dequantize(w->type, panel + ((size_t)c * CPU_LANES + lane) * info->bytes, 1, out + c);
}

struct lookup {
    const struct ops_weight *w;
    const int32_t *ids;
    float scale;
    float *out;
    struct cpu_work work;
};

static void look_up(void *arg, uint32_t thread)
{
    struct lookup *l = arg;
    uint32_t i;
    (void)thread;
    while (cpu_work_take(&l->work, &i)) {
        float *out = l->out + (size_t)i * l->w->cols;
        row_out(l->w, (uint32_t)l->ids[i], out);
        for (uint32_t c = 0; c < l->w->cols; c++)
            out[c] *= l->scale;
    }
}

void cpu_embed(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float scale,
               float *out)
{
    struct lookup l = { .w = w, .ids = ids, .scale = scale, .out = out };
    cpu_work_init(&l.work, n);
    /* A row takes about as long as waking a thread: only long windows are worth sharing. */
    cpu_parallel(d, n < 16 ? 1 : n, look_up, &l);
}

void cpu_gather(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols, float *out)
{
    (void)d;
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * cols, x + (size_t)idx[i] * cols, cols * sizeof *out);
}
