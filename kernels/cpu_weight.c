/* Cpu weight: a matrix from the file's rows to the panels cpu_matmul.h describes.
 * Owner: whoever made it; read by all threads of the device. Must not know: names of tensors, what they are
 * for. Tests: tests/kernels/test_matmul.c */
#include "cpu_matmul.h"
#include "shape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void layout(struct ops_weight *w, const struct quant_info *info)
{
    const struct cpu_form form = cpu_form_of(w->type);
    w->panels = (w->rows + CPU_LANES - 1) / CPU_LANES;
    if (!form.bits) {
        w->panel_bytes = round_up((size_t)w->cols * CPU_LANES * info->bytes, 64);
        return;
    }
    w->blocks = w->cols / CPU_BLOCK;
    w->scales = (size_t)w->blocks * form.quants;
    w->supers = w->scales + (size_t)w->blocks * form.scales;
    w->panel_bytes = round_up(w->supers + (size_t)w->blocks / CPU_SUPER * form.supers, 64);
}

/* 32 quants of one row into its lane. */
static void pack_quants(const uint8_t *q, uint32_t bits, unsigned char *to)
{
    for (uint32_t c = 0; c < (bits == 8 ? 32u : 16u); c++)
        to[64 * (c / 4) + c % 4] = bits == 8 ? q[c] : (uint8_t)((q[c] & 15) | (q[c + 16] & 15) << 4);
    for (uint32_t c = 0; c < CPU_BLOCK && bits == 5; c++)
        to[256 + c % 4] = (uint8_t)(to[256 + c % 4] | q[c] >> 4 << c / 4);
    for (uint32_t c = 0; c < CPU_BLOCK && bits == 6; c++) {
        unsigned char *high = to + 256 + 64 * (c / 16) + c % 4;
        *high = (uint8_t)(*high | q[c] >> 4 << c / 4 % 4 * 2);
    }
}

/* 32 columns of one row into its lane; the memory is zero before. */
static void pack_block(const struct ops_weight *w, const struct quant_part *from, uint32_t lane, uint32_t b,
                       unsigned char *panel)
{
    const struct cpu_form form = cpu_form_of(w->type);
    unsigned char *scale = panel + w->scales + (size_t)b * form.scales, *half = scale;
    if (form.supers) {
        half = panel + w->supers + (size_t)(b / CPU_SUPER) * form.supers;
        scale[lane] = (unsigned char)from->scale[0];
        scale[CPU_LANES + lane] = (unsigned char)(form.minima ? -from->min : from->scale[1]);
    }
    memcpy(half + 2 * lane, &from->d, 2);
    if (form.minima)
        memcpy(half + 2 * (CPU_LANES + lane), &from->m, 2);
    pack_quants(from->q, form.bits, panel + (size_t)b * form.quants + 4 * lane);
}

static void pack_row(const struct ops_weight *w, const struct quant_info *info, const unsigned char *from,
                     uint32_t lane, unsigned char *panel)
{
    if (cpu_weight_is_quantized(w)) {
        const uint32_t parts = info->block / CPU_BLOCK;
        for (uint32_t b = 0; b < w->blocks; b++) {
            struct quant_part part;
            quant_take_apart(w->type, from + (size_t)(b / parts) * info->bytes, b % parts, &part);
            pack_block(w, &part, lane, b, panel);
        }
        return;
    }
    for (uint32_t c = 0; c < w->cols; c++)
        memcpy(panel + ((size_t)c * CPU_LANES + lane) * info->bytes, from + (size_t)c * info->bytes,
               info->bytes);
}

struct packing {
    const struct ops_weight *w;
    const struct quant_info *info;
    const unsigned char *from;
    struct cpu_work work;
    uint32_t panels_each;
};

static void pack_panels(void *arg, uint32_t thread)
{
    struct packing *p = arg;
    const struct ops_weight *w = p->w;
    size_t row_bytes = (size_t)(w->cols / p->info->block) * p->info->bytes;
    uint32_t piece;
    (void)thread;
    while (cpu_work_take(&p->work, &piece)) {
        uint64_t first = (uint64_t)piece * p->panels_each * CPU_LANES,
                 end = first + p->panels_each * CPU_LANES;
        for (uint64_t r = first; r < end && r < w->rows; r++)
            pack_row(w, p->info, p->from + r * row_bytes, r % CPU_LANES,
                     w->data + r / CPU_LANES * w->panel_bytes);
    }
}

int cpu_weight_new(struct ops_dev *d, const struct ops_tensor *t, struct ops_weight **ret_weight, char *err,
                   size_t errlen)
{
    const struct quant_info *info = NULL;
    int r = shape_check_weight(t, &info, err, errlen);
    if (r < 0)
        return r;

    struct ops_weight *w = calloc(1, sizeof *w);
    if (w) {
        w->type = t->type;
        w->rows = (uint32_t)t->rows;
        w->cols = (uint32_t)t->cols;
        layout(w, info);
        if (w->panel_bytes <= SIZE_MAX / w->panels)
            w->data = cpu_arena_take(d, w->panels * w->panel_bytes, &w->chunk);
    }
    if (!w || !w->data) {
        snprintf(err, errlen, "no memory for %llu x %llu weights of type %s", (unsigned long long)t->rows,
                 (unsigned long long)t->cols, info->name);
        cpu_weight_free(w);
        return -ENOMEM;
    }

    struct packing p = { .w = w, .info = info, .from = t->data };
    p.panels_each = 8;
    cpu_work_init(&p.work, (w->panels + p.panels_each - 1) / p.panels_each);
    cpu_parallel(d, p.work.total, pack_panels, &p);
    *ret_weight = w;
    return 0;
}

void cpu_weight_free(struct ops_weight *w)
{
    if (w)
        cpu_chunk_drop(w->chunk);
    free(w);
}

size_t cpu_weight_bytes(const struct ops_weight *w)
{
    return sizeof *w + w->panels * w->panel_bytes;
}
