/* Cpu embed: rows out of a weight's panels, and rows out of an array.
 * Thread: the stage thread and the device's pool. Must not know: what a token is.
 * Tests: tests/kernels/test_matmul.c */
#include "cpu_matmul.h"
#include "quant.h"

#include <string.h>

static uint16_t half_at(const unsigned char *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* The same arithmetic as quant_dequantize: what is looked up is exactly what the file says. */
static void block_out(const struct ops_weight *w, const unsigned char *panel, uint32_t lane, uint32_t b,
                      float *out)
{
    const unsigned char *scale = panel + w->scales + b * w->scale_bytes + 2 * lane;
    const unsigned char *q = panel + b * w->block_bytes + 4 * lane;
    float d = quant_f16_to_f32(half_at(scale));
    if (w->type == QUANT_Q8_0) {
        for (uint32_t c = 0; c < CPU_BLOCK; c++)
            out[c] = d * (float)(q[64 * (c / 4) + c % 4] - 128);
        return;
    }
    float m = w->type == QUANT_Q4_1 ? quant_f16_to_f32(half_at(scale + 32)) : 0;
    int zero = w->type == QUANT_Q4_0 ? 8 : 0;
    for (uint32_t c = 0; c < CPU_BLOCK / 2; c++) {
        int both = q[64 * (c / 4) + c % 4];
        out[c] = d * (float)((both & 15) - zero) + m;
        out[c + CPU_BLOCK / 2] = d * (float)((both >> 4) - zero) + m;
    }
}

static void row_out(const struct ops_weight *w, uint32_t row, float *out)
{
    const unsigned char *panel = w->data + row / CPU_LANES * w->panel_bytes;
    uint32_t lane = row % CPU_LANES;
    if (cpu_weight_is_quantized(w)) {
        for (uint32_t b = 0; b < w->blocks; b++)
            block_out(w, panel, lane, b, out + (size_t)b * CPU_BLOCK);
        return;
    }
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
