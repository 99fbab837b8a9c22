/* Shape: see shape.h. */
#include "shape.h"

#include <errno.h>
#include <stdio.h>

int shape_check_weight(const struct ops_tensor *t, const struct quant_info **ret_info, char *err,
                       size_t errlen)
{
    const struct quant_info *info = quant_info_find(t->type);
    if (!info) {
        snprintf(err, errlen, "type %u is not one of %s", t->type, quant_names());
        return -ENOTSUP;
    }
    if (t->rows == 0 || t->cols == 0 || t->rows > 1u << 30 || t->cols > 1u << 30) {
        snprintf(err, errlen, "%llu rows of %llu columns: allowed are 1 to 2^30 of each",
                 (unsigned long long)t->rows, (unsigned long long)t->cols);
        return -EINVAL;
    }
    if (t->cols % info->block) {
        snprintf(err, errlen, "%llu columns: %s needs a multiple of %u", (unsigned long long)t->cols,
                 info->name, info->block);
        return -EINVAL;
    }
    *ret_info = info;
    return 0;
}

int shape_check_kv(const struct ops_kv_shape *s, char *err, size_t errlen)
{
    if (s->head_dim < 2 || s->head_dim > SHAPE_HEAD_DIM_MAX || s->head_dim % 2) {
        snprintf(err, errlen, "head dimension %u: this build reads even ones of 2 to %u", s->head_dim,
                 SHAPE_HEAD_DIM_MAX);
        return -EINVAL;
    }
    if (s->type != OPS_KV_F16 && s->type != OPS_KV_F32 && s->type != OPS_KV_Q8_0) {
        snprintf(err, errlen, "KV type number %d: this build keeps f16, f32 or q8_0", (int)s->type);
        return -ENOTSUP;
    }
    if (s->type == OPS_KV_Q8_0 && s->head_dim % SHAPE_KV_BLOCK) {
        snprintf(err, errlen, "head dimension %u: KV in q8_0 needs a multiple of %u, f16 and f32 do not",
                 s->head_dim, SHAPE_KV_BLOCK);
        return -EINVAL;
    }
    /* CUDA has a block of threads for each head, and 65,535 is what a grid has in its second direction. */
    if (!s->layers || !s->heads || !s->blocks || s->layers > 65536 || s->heads > 65535) {
        snprintf(err, errlen, "a KV pool of %u layers, %u heads and %u blocks cannot be", s->layers, s->heads,
                 s->blocks);
        return -EINVAL;
    }
    return 0;
}

struct shape_kv shape_of_kv(const struct ops_kv_shape *s)
{
    struct shape_kv k = { .padded = (s->head_dim + 15) / 16 * 16,
                          .element = s->type == OPS_KV_F16   ? sizeof(uint16_t)
                                     : s->type == OPS_KV_F32 ? sizeof(float)
                                                             : sizeof(int8_t) };
    const size_t scales = s->type == OPS_KV_Q8_0 ? s->head_dim / SHAPE_KV_BLOCK * sizeof(uint16_t) : 0;
    k.row_bytes = s->head_dim * k.element + scales;
    k.k_bytes = k.row_bytes * OPS_BLOCK_TOKENS;
    k.head_bytes = k.k_bytes + (k.padded * k.element + scales) * OPS_BLOCK_TOKENS;
    k.layer_bytes = k.head_bytes * s->heads;
    k.block_bytes = k.layer_bytes * s->layers;
    return k;
}
