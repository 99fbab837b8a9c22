/* Ref: the table of operations with plain loops, sums in double and weights dequantized, for tests to compare
 * with.
 *
 * What it owns: nothing but plain memory. Ignores isa, threads and activations: those are always
 * floats. Thread: as ops.h says; it has no threads of its own. Must not know: how any other device does it:
 * what is shared with them is the formulas of ops.h alone. Tests: it is the test's own measure;
 * tests/kernels/test_matmul.c and test_attention.c lean on it */
#include "ops.h"
#include "quant.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ops_dev {
    int failure; /* of an operation since the last sync: there is nothing but memory that can fail */
};

struct ops_weight {
    uint64_t rows, cols;
    float w[];
};

struct ops_kv {
    struct ops_kv_shape shape;
    float cells[]; /* [block][layer][k, v][token][head][dim]; for f16 the rounded values */
};

static int dev_open(const struct ops_open *how, struct ops_dev **ret_dev, char *err, size_t errlen)
{
    (void)how;
    struct ops_dev *d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(err, errlen, "no memory for the reference device");
        return -ENOMEM;
    }
    *ret_dev = d;
    return 0;
}

static void dev_close(struct ops_dev *d)
{
    free(d);
}

static const char *dev_describe(const struct ops_dev *d)
{
    (void)d;
    return "reference, sums in double";
}

static void *mem_alloc(struct ops_dev *d, size_t bytes)
{
    (void)d;
    if (bytes > SIZE_MAX - 63)
        return NULL;
    size_t whole = bytes ? (bytes + 63) / 64 * 64 : 64;
    void *p = aligned_alloc(64, whole);
    if (p)
        memset(p, 0, whole);
    return p;
}

static void mem_release(struct ops_dev *d, void *memory)
{
    (void)d;
    free(memory);
}

static size_t mem_free(struct ops_dev *d)
{
    (void)d;
    return (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static void mem_copy(struct ops_dev *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    if (bytes)
        memmove(to, from, bytes);
}

static int dev_sync(struct ops_dev *d, char *err, size_t errlen)
{
    int r = d->failure;
    if (r < 0)
        snprintf(err, errlen, "no memory for the reference device's scratch rows");
    d->failure = 0;
    return r;
}

static int weight_new(struct ops_dev *d, const struct ops_tensor *t, struct ops_weight **ret_weight,
                      char *err, size_t errlen)
{
    (void)d;
    const struct quant_info *info = quant_info_find(t->type);
    if (!info) {
        snprintf(err, errlen, "type %u is not one of %s", t->type, quant_names());
        return -ENOTSUP;
    }
    if (t->rows == 0 || t->cols == 0 || t->cols % info->block || t->rows > (SIZE_MAX / 8) / t->cols) {
        snprintf(err, errlen,
                 "%llu rows of %llu columns: %s needs at least one row and columns in blocks of %u",
                 (unsigned long long)t->rows, (unsigned long long)t->cols, info->name, info->block);
        return -EINVAL;
    }
    size_t n = (size_t)(t->rows * t->cols);
    struct ops_weight *w = malloc(sizeof *w + n * sizeof(float));
    if (!w) {
        snprintf(err, errlen, "no memory for %zu floats", n);
        return -ENOMEM;
    }
    w->rows = t->rows;
    w->cols = t->cols;
    quant_dequantize(t->type, t->data, n, w->w);
    *ret_weight = w;
    return 0;
}

static void weight_free(struct ops_weight *w)
{
    free(w);
}

static size_t weight_bytes(const struct ops_weight *w)
{
    return (size_t)(w->rows * w->cols) * sizeof(float);
}

static size_t kv_side_cells(const struct ops_kv_shape *s) /* K or V of one layer in one block */
{
    return (size_t)OPS_BLOCK_TOKENS * s->heads * s->head_dim;
}

/* A head's vector of a token in the pool's number type. */
static size_t kv_row_bytes(const struct ops_kv_shape *s)
{
    return s->type == OPS_KV_Q8_0 ? s->head_dim / 32 * sizeof(struct quant_q8_0)
                                  : s->head_dim * (s->type == OPS_KV_F16 ? sizeof(uint16_t) : sizeof(float));
}

static size_t kv_block_bytes(const struct ops_kv_shape *s)
{
    return 2 * (size_t)s->layers * OPS_BLOCK_TOKENS * s->heads * kv_row_bytes(s);
}

static int kv_new(struct ops_dev *d, const struct ops_kv_shape *s, struct ops_kv **ret_kv, char *err,
                  size_t errlen)
{
    (void)d;
    size_t cells = 2 * (size_t)s->layers * kv_side_cells(s);
    struct ops_kv *kv = NULL;
    if (cells && s->blocks <= (SIZE_MAX / 8) / cells)
        kv = calloc(1, sizeof *kv + s->blocks * cells * sizeof(float));
    if (!kv) {
        snprintf(err, errlen, "no memory for %u KV blocks of %zu cells", s->blocks, cells);
        return -ENOMEM;
    }
    kv->shape = *s;
    *ret_kv = kv;
    return 0;
}

static void kv_free(struct ops_kv *kv)
{
    free(kv);
}

/* side: 0 K, 1 V. The head's vector at a token of a block. */
static float *kv_cell(struct ops_kv *kv, uint32_t block, uint32_t layer, uint32_t side, uint32_t token,
                      uint32_t head)
{
    const struct ops_kv_shape *s = &kv->shape;
    size_t at = ((size_t)block * s->layers + layer) * 2 + side;
    at = (at * OPS_BLOCK_TOKENS + token) * s->heads + head;
    return kv->cells + at * s->head_dim;
}

static void kv_copy(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens)
{
    size_t bytes = (size_t)tokens * kv->shape.heads * kv->shape.head_dim * sizeof(float);
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++)
        for (uint32_t side = 0; side < 2; side++)
            memmove(kv_cell(kv, to, layer, side, 0, 0), kv_cell(kv, from, layer, side, 0, 0), bytes);
}

/* The vector of a head at a token of a block, in the pool's number type. */
static void kv_cell_get(const float *cell, const struct ops_kv_shape *s, unsigned char *to)
{
    if (s->type == OPS_KV_F32)
        memcpy(to, cell, s->head_dim * sizeof *cell);
    for (uint32_t i = 0; s->type == OPS_KV_Q8_0 && i < s->head_dim;
         i += 32, to += sizeof(struct quant_q8_0)) {
        struct quant_q8_0 block; /* the cells are whole multiples of its scale: nothing is rounded again */
        quant_to_q8_0(cell + i, &block);
        memcpy(to, &block, sizeof block);
    }
    for (uint32_t i = 0; s->type == OPS_KV_F16 && i < s->head_dim; i++) {
        uint16_t half = quant_f32_to_f16(cell[i]);
        memcpy(to + i * sizeof half, &half, sizeof half);
    }
}

static void kv_cell_put(float *cell, const struct ops_kv_shape *s, const unsigned char *from)
{
    if (s->type == OPS_KV_F32)
        memcpy(cell, from, s->head_dim * sizeof *cell);
    if (s->type == OPS_KV_Q8_0)
        quant_dequantize(QUANT_Q8_0, from, s->head_dim, cell);
    for (uint32_t i = 0; s->type == OPS_KV_F16 && i < s->head_dim; i++) {
        uint16_t half;
        memcpy(&half, from + i * sizeof half, sizeof half);
        cell[i] = quant_f16_to_f32(half);
    }
}

static void kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to)
{
    const struct ops_kv_shape *s = &kv->shape;
    const size_t bytes = kv_row_bytes(s);
    unsigned char *at = to;
    for (uint32_t layer = 0; layer < s->layers; layer++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t side = 0; side < 2; side++)
                for (uint32_t t = 0; t < tokens; t++, at += bytes)
                    kv_cell_get(kv_cell(kv, block, layer, side, t, h), s, at);
}

static void kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from)
{
    const struct ops_kv_shape *s = &kv->shape;
    const size_t bytes = kv_row_bytes(s);
    const unsigned char *at = from;
    for (uint32_t layer = 0; layer < s->layers; layer++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t side = 0; side < 2; side++)
                for (uint32_t t = 0; t < tokens; t++, at += bytes)
                    kv_cell_put(kv_cell(kv, block, layer, side, t, h), s, at);
}

static void embed(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float scale,
                  float *out)
{
    (void)d;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t c = 0; c < w->cols; c++)
            out[i * w->cols + c] = scale * w->w[(uint64_t)ids[i] * w->cols + c];
}

/* What every element of a row is multiplied by before its own weight. */
static double norm_factor(const float *x, uint64_t cols, float eps)
{
    double sum = 0;
    for (uint64_t i = 0; i < cols; i++)
        sum += (double)x[i] * x[i];
    return 1 / sqrt(sum / (double)cols + eps);
}

static double gelu(double g)
{
    return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g)));
}

static void prepare_row(const struct ops_matmul *m, uint64_t cols, uint32_t row, double *y)
{
    const float *x = m->x + row * cols;
    double factor = m->prepare == OPS_RMS_NORM ? norm_factor(x, cols, m->eps) : 1;
    for (uint64_t i = 0; i < cols; i++) {
        y[i] = x[i];
        if (m->prepare == OPS_RMS_NORM)
            y[i] *= m->norm[i] * factor;
        else if (m->prepare == OPS_SWIGLU)
            y[i] = y[i] / (1 + exp(-y[i])) * m->x2[row * cols + i];
        else if (m->prepare == OPS_GEGLU)
            y[i] = gelu(y[i]) * m->x2[row * cols + i];
    }
}

static void matmul_row(const struct ops_matmul *m, const double *y, uint32_t row)
{
    for (uint32_t j = 0; j < m->count; j++) {
        const struct ops_weight *w = m->weight[j];
        float *out = m->out[j] + row * w->rows;
        for (uint64_t r = 0; r < w->rows; r++) {
            double sum = 0;
            for (uint64_t i = 0; i < w->cols; i++)
                sum += w->w[r * w->cols + i] * y[i];
            if (m->bias[j])
                sum += m->bias[j][r];
            out[r] = m->add ? out[r] + (float)sum : (float)sum;
        }
    }
}

static void matmul(struct ops_dev *d, const struct ops_matmul *m)
{
    uint64_t cols = m->weight[0]->cols;
    double *y = malloc(cols * sizeof *y);
    if (!y) {
        d->failure = -ENOMEM;
        return;
    }
    for (uint32_t row = 0; row < m->n; row++) {
        prepare_row(m, cols, row, y);
        matmul_row(m, y, row);
    }
    free(y);
}

static void norm_add(struct ops_dev *d, const float *x, const float *norm, float eps, uint32_t n,
                     uint32_t cols, float *out)
{
    (void)d;
    for (uint32_t row = 0; row < n; row++, x += cols, out += cols) {
        double factor = norm_factor(x, cols, eps);
        for (uint32_t i = 0; i < cols; i++)
            out[i] += (float)(x[i] * factor * norm[i]);
    }
}

/* One head, normed and rotated in place. */
static void rotate(const struct ops_attention *a, const float *norm, float *x, uint32_t token)
{
    uint32_t half = a->rope_dims / 2, dim = a->kv->shape.head_dim;
    double factor = norm ? norm_factor(x, dim, a->norm_eps) : 1;
    for (uint32_t i = 0; norm && i < dim; i++)
        x[i] = (float)(x[i] * factor * norm[i]);
    for (uint32_t i = 0; i < half; i++) {
        float *p = a->rope_halves ? x + i : x + 2 * i, *q = a->rope_halves ? x + i + half : x + 2 * i + 1;
        double c = a->rope_cos[(size_t)token * half + i], s = a->rope_sin[(size_t)token * half + i];
        double first = *p, second = *q;
        *p = (float)(first * c - second * s);
        *q = (float)(first * s + second * c);
    }
}

static void store(struct ops_kv *kv, float *cell, const float *x)
{
    const struct ops_kv_shape *s = &kv->shape;
    for (uint32_t i = 0; i < s->head_dim; i++)
        cell[i] = s->type == OPS_KV_F16 ? quant_f16_to_f32(quant_f32_to_f16(x[i])) : x[i];
    for (uint32_t i = 0; s->type == OPS_KV_Q8_0 && i < s->head_dim; i += 32) {
        struct quant_q8_0 block;
        quant_to_q8_0(x + i, &block);
        quant_dequantize(QUANT_Q8_0, &block, 32, cell + i);
    }
}

/* Everything of a window is stored before anything of it is read: the tokens of a row see each other. */
static void rotate_and_store(const struct ops_attention *a)
{
    uint32_t dim = a->kv->shape.head_dim, kv_heads = a->kv->shape.heads;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const struct ops_row *row = &a->rows[r];
        for (uint32_t i = 0; i < row->n; i++) {
            uint32_t token = row->first + i, pos = row->pos + i;
            uint32_t block = row->blocks[pos / OPS_BLOCK_TOKENS], at = pos % OPS_BLOCK_TOKENS;
            for (uint32_t h = 0; h < a->heads; h++)
                rotate(a, a->q_norm, a->q + ((size_t)token * a->heads + h) * dim, token);
            for (uint32_t h = 0; h < kv_heads; h++) {
                size_t of = ((size_t)token * kv_heads + h) * dim;
                rotate(a, a->k_norm, a->k + of, token);
                store(a->kv, kv_cell(a->kv, block, a->layer, 0, at, h), a->k + of);
                store(a->kv, kv_cell(a->kv, block, a->layer, 1, at, h), a->v + of);
            }
        }
    }
}

static const float *seen(const struct ops_attention *a, const struct ops_row *row, uint32_t side,
                         uint32_t pos, uint32_t head)
{
    return kv_cell(a->kv, row->blocks[pos / OPS_BLOCK_TOKENS], a->layer, side, pos % OPS_BLOCK_TOKENS, head);
}

/* Queries for keys in q8_0: each 32 numbers as whole multiples of the largest / 127. */
static void quantize_query(const float *q, uint32_t dim, double *to)
{
    for (uint32_t b = 0; b < dim; b += 32) {
        double most = 0;
        for (uint32_t c = b; c < b + 32; c++)
            most = fmax(most, fabs((double)q[c]));
        for (uint32_t c = b; c < b + 32; c++)
            to[c] = most > 0 ? nearbyint(q[c] * (127 / most)) * (most / 127) : 0;
    }
}

/* scores: room for own + 1; sum: room for head_dim, the query's numbers first. */
static void attend(const struct ops_attention *a, const struct ops_row *row, uint32_t i, uint32_t head,
                   double *scores, double *sum)
{
    uint32_t dim = a->kv->shape.head_dim, own = row->pos + i,
             kv_head = head / (a->heads / a->kv->shape.heads);
    uint32_t first = a->window && own >= a->window ? own - a->window + 1 : 0;
    size_t of = ((size_t)(row->first + i) * a->heads + head) * dim;
    double max = -INFINITY, total = 0;
    for (uint32_t c = 0; c < dim; c++)
        sum[c] = a->q[of + c];
    if (a->kv->shape.type == OPS_KV_Q8_0)
        quantize_query(a->q + of, dim, sum);
    for (uint32_t p = first; p <= own; p++) {
        const float *k = seen(a, row, 0, p, kv_head);
        double s = 0;
        for (uint32_t c = 0; c < dim; c++)
            s += sum[c] * k[c];
        scores[p] = s * a->scale;
        max = fmax(max, scores[p]);
    }
    memset(sum, 0, dim * sizeof *sum);
    for (uint32_t p = first; p <= own; p++) {
        const float *v = seen(a, row, 1, p, kv_head);
        double e = exp(scores[p] - max);
        total += e;
        for (uint32_t c = 0; c < dim; c++)
            sum[c] += e * v[c];
    }
    for (uint32_t c = 0; c < dim; c++)
        a->out[of + c] = (float)(sum[c] / total);
}

static void attention(struct ops_dev *d, const struct ops_attention *a)
{
    uint32_t longest = 0;
    for (uint32_t r = 0; r < a->n_rows; r++)
        if (a->rows[r].pos + a->rows[r].n > longest)
            longest = a->rows[r].pos + a->rows[r].n;
    double *scratch = malloc(((size_t)longest + a->kv->shape.head_dim) * sizeof *scratch);
    if (!scratch) {
        d->failure = -ENOMEM;
        return;
    }
    rotate_and_store(a);
    for (uint32_t r = 0; r < a->n_rows; r++)
        for (uint32_t i = 0; i < a->rows[r].n; i++)
            for (uint32_t h = 0; h < a->heads; h++)
                attend(a, &a->rows[r], i, h, scratch, scratch + longest);
    free(scratch);
}

static void gather(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols,
                   float *out)
{
    (void)d;
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * cols, x + (size_t)idx[i] * cols, cols * sizeof(float));
}

const struct ops ops_ref = {
    .name = "ref",
    .plain_memory = true,
    .open = dev_open,
    .close = dev_close,
    .describe = dev_describe,
    .arithmetic = dev_describe,
    .alloc = mem_alloc,
    .release = mem_release,
    .memory_free = mem_free,
    .upload = mem_copy,
    .download = mem_copy,
    .sync = dev_sync,
    .weight_new = weight_new,
    .weight_free = weight_free,
    .weight_bytes = weight_bytes,
    .kv_new = kv_new,
    .kv_free = kv_free,
    .kv_block_bytes = kv_block_bytes,
    .kv_copy = kv_copy,
    .kv_get = kv_get,
    .kv_put = kv_put,
    .embed = embed,
    .matmul = matmul,
    .attention = attention,
    .gather = gather,
    .norm_add = norm_add,
};
