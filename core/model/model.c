/* Model: reads hyperparameters, bounds them, and finds every tensor the architecture's row asks for, with its
 * shape and type checked. What passes here the engine can run without further questions. Pure; one thread
 * reads, the result is immutable. Must not know: how anything is computed. Tests: tests/unit/test_model.c */
#include "model/model.h"
#include "model/gguf_file.h"
#include "model/model_arch.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The types of matrices this build multiplies: a short list of our own, because a model may not know the
 * kernels. */
static const char *const readable_types[] = { "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0" };
#define READABLE_TEXT "F32 F16 BF16 Q4_0 Q4_1 Q8_0"

struct reader {
    const struct gguf *f;
    const struct model_arch *arch;
    struct model *m;
    uint64_t used; /* tensors found so far */
    char *err;
    size_t errlen;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct reader *r, int error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->err, r->errlen, fmt, ap);
    va_end(ap);
    return error;
}

/* "llama.block_count" from "block_count". */
static const char *key_name(const struct reader *r, const char *suffix, char name[96])
{
    snprintf(name, 96, "%s.%s", r->arch->name, suffix);
    return name;
}

enum { REQUIRED = 1 };

/* A count in min..max; absent and not required: *ret stays. */
static int take_count(struct reader *r, const char *suffix, unsigned flags, uint32_t min, uint32_t max,
                      uint32_t *ret)
{
    char key[96];
    int found = gguf_get_u32(r->f, key_name(r, suffix, key), ret, r->err, r->errlen);
    if (found < 0)
        return found;
    if (!found && (flags & REQUIRED))
        return refuse(r, -EINVAL, "key %s is missing", key);
    if (found && (*ret < min || *ret > max))
        return refuse(r, -EINVAL, "key %s: %" PRIu32 " is outside %" PRIu32 "..%" PRIu32, key, *ret, min,
                      max);
    return 0;
}

static int take_real(struct reader *r, const char *suffix, unsigned flags, double min, double max, float *ret)
{
    char key[96];
    int found = gguf_get_f32(r->f, key_name(r, suffix, key), ret, r->err, r->errlen);
    if (found < 0)
        return found;
    if (!found && (flags & REQUIRED))
        return refuse(r, -EINVAL, "key %s is missing", key);
    /* Written so that a NaN is refused too. */
    if (found && !((double)*ret >= min && (double)*ret <= max))
        return refuse(r, -EINVAL, "key %s: %g is outside %g..%g", key, (double)*ret, min, max);
    return 0;
}

static int take_heads(struct reader *r)
{
    struct model *m = r->m;
    uint32_t v_dim;
    int e = take_count(r, "attention.head_count", REQUIRED, 1, 4096, &m->n_head);
    m->n_head_kv = m->n_head;
    if (e == 0)
        e = take_count(r, "attention.head_count_kv", 0, 1, 4096, &m->n_head_kv);
    if (e < 0)
        return e;
    if (m->n_head % m->n_head_kv)
        return refuse(r, -EINVAL,
                      "%" PRIu32 " query heads cannot be shared out to %" PRIu32 " key-value heads",
                      m->n_head, m->n_head_kv);

    m->head_dim = m->n_embd / m->n_head;
    e = take_count(r, "attention.key_length", 0, 2, 1024, &m->head_dim);
    v_dim = m->head_dim;
    if (e == 0)
        e = take_count(r, "attention.value_length", 0, 2, 1024, &v_dim);
    if (e < 0)
        return e;
    if (v_dim != m->head_dim)
        return refuse(r, -ENOTSUP,
                      "keys of %" PRIu32 " and values of %" PRIu32
                      " numbers a head: this build wants them equal",
                      m->head_dim, v_dim);
    if (m->head_dim < 2 || m->head_dim > 1024 || m->head_dim % 2)
        return refuse(r, -EINVAL, "heads of %" PRIu32 " numbers: an even count in 2..1024 is wanted",
                      m->head_dim);
    return 0;
}

static int take_rope(struct reader *r)
{
    struct model *m = r->m;
    struct gguf_str scaling;
    char key[96], shown[GGUF_PRINTABLE_LEN];
    int e;

    m->rope = r->arch->rope;
    m->rope_dims = m->head_dim;
    m->rope_base = 10000;
    e = take_count(r, "rope.dimension_count", 0, 2, m->head_dim, &m->rope_dims);
    if (e == 0)
        e = take_real(r, "rope.freq_base", 0, 1, 1e12, &m->rope_base);
    if (e < 0)
        return e;
    if (m->rope_dims % 2)
        return refuse(r, -EINVAL, "%" PRIu32 " rotated dimensions: an even count is wanted", m->rope_dims);

    e = gguf_get_str(r->f, key_name(r, "rope.scaling.type", key), &scaling, r->err, r->errlen);
    if (e == 1 && !(scaling.len == 4 && memcmp(scaling.data, "none", 4) == 0))
        return refuse(r, -ENOTSUP, "rope scaling \"%s\" is not something this build computes (none is)",
                      gguf_printable(shown, sizeof shown, scaling));
    return e < 0 ? e : 0;
}

static int take_hyperparameters(struct reader *r)
{
    struct model *m = r->m;
    uint32_t experts = 0;
    int e = take_count(r, "block_count", REQUIRED, 1, 1024, &m->n_layers);
    if (e == 0)
        e = take_count(r, "embedding_length", REQUIRED, 1, 1u << 17, &m->n_embd);
    if (e == 0)
        e = take_count(r, "feed_forward_length", REQUIRED, 1, 1u << 20, &m->n_ff);
    if (e == 0)
        e = take_count(r, "context_length", REQUIRED, 1, 1u << 27, &m->context_train);
    if (e == 0)
        e = take_count(r, "expert_count", 0, 0, UINT32_MAX, &experts);
    if (e == 0 && experts)
        e = refuse(r, -ENOTSUP, "a mixture of %" PRIu32 " experts is not something this build runs", experts);
    if (e == 0)
        e = take_real(r, "attention.layer_norm_rms_epsilon", REQUIRED, 0, 1, &m->rms_eps);
    if (e == 0)
        e = take_heads(r);
    return e < 0 ? e : take_rope(r);
}

static bool is_readable(uint32_t type)
{
    const char *name = gguf_type_name(type);
    for (size_t i = 0; i < sizeof readable_types / sizeof *readable_types; i++)
        if (strcmp(name, readable_types[i]) == 0)
            return true;
    return false;
}

/* Finds a tensor of cols x rows (0: any) and a type that fits. Absent: *ret is NULL. */
static int find_tensor(struct reader *r, const char *name, uint64_t cols, uint64_t rows,
                       const struct gguf_tensor **ret)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->f, name);
    bool vector = rows == 1;

    *ret = NULL;
    if (!t)
        return 0;
    if (vector && t->type != 0)
        return refuse(r, -ENOTSUP, "tensor %s has type %s, this build reads F32 there", name,
                      gguf_type_name(t->type));
    if (!is_readable(t->type))
        return refuse(r, -ENOTSUP, "tensor %s has type %s, this build reads " READABLE_TEXT, name,
                      gguf_type_name(t->type));
    if (t->dims[0] != cols || (rows && t->dims[1] != rows) || t->dims[2] != 1 || t->dims[3] != 1) {
        char wanted[24] = "any number";
        if (rows)
            snprintf(wanted, sizeof wanted, "%" PRIu64, rows);
        return refuse(r, -EINVAL,
                      "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", %" PRIu64
                      " x %s is wanted by the hyperparameters",
                      name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], cols, wanted);
    }
    r->used++;
    *ret = t;
    return 0;
}

static int need_tensor(struct reader *r, const char *name, uint64_t cols, uint64_t rows,
                       const struct gguf_tensor **ret)
{
    int e = find_tensor(r, name, cols, rows, ret);
    if (e == 0 && !*ret)
        e = refuse(r, -EINVAL, "tensor %s is missing", name);
    return e;
}

static uint64_t dim(const struct model *m, enum model_dim d)
{
    switch (d) {
    case MODEL_DIM_EMBD:
        return m->n_embd;
    case MODEL_DIM_HEADS:
        return (uint64_t)m->n_head * m->head_dim;
    case MODEL_DIM_KV_HEADS:
        return (uint64_t)m->n_head_kv * m->head_dim;
    case MODEL_DIM_FF:
        return m->n_ff;
    case MODEL_DIM_ONE:
        break;
    }
    return 1;
}

static int take_layer(struct reader *r, uint32_t i)
{
    char name[96];

    for (size_t t = 0; t < r->arch->n_tensors; t++) {
        const struct model_tensor_row *row = &r->arch->tensors[t];
        const struct gguf_tensor **field =
            (const struct gguf_tensor **)(void *)((char *)&r->m->layers[i] + row->offset);
        int e;
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", i, row->name);
        e = need_tensor(r, name, dim(r->m, row->cols), dim(r->m, row->rows), field);
        if (e < 0)
            return e;
    }
    return 0;
}

static bool is_ours(const struct model *m, const struct gguf_tensor *t)
{
    const struct gguf_tensor *const *of_layers = (const struct gguf_tensor *const *)(const void *)m->layers;
    size_t n = (size_t)m->n_layers * (sizeof *m->layers / sizeof *of_layers);

    if (t == m->token_embd || t == m->output || t == m->output_norm)
        return true;
    for (size_t i = 0; i < n; i++)
        if (of_layers[i] == t)
            return true;
    return false;
}

/* A tensor nobody asked for (a bias, rope factors) would be part of the computation: leaving it out silently
 * would give a model that talks nonsense. */
static int check_leftover(struct reader *r)
{
    char shown[GGUF_PRINTABLE_LEN];

    for (uint64_t i = 0; r->used < gguf_n_tensors(r->f) && i < gguf_n_tensors(r->f); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(r->f, i);
        if (!is_ours(r->m, t))
            return refuse(r, -ENOTSUP, "tensor %s is not part of architecture %s as this build computes it",
                          gguf_printable(shown, sizeof shown, t->name), r->arch->name);
    }
    return 0;
}

static int take_vocabulary(struct reader *r)
{
    struct model *m = r->m;
    const struct gguf_array *tokens = NULL;
    int e = need_tensor(r, "token_embd.weight", m->n_embd, 0, &m->token_embd);
    if (e < 0)
        return e;
    if (m->token_embd->dims[1] > 1u << 24)
        return refuse(r, -EINVAL, "tensor token_embd.weight: %" PRIu64 " rows are above %u",
                      m->token_embd->dims[1], 1u << 24);
    m->n_vocab = (uint32_t)m->token_embd->dims[1];
    e = gguf_get_array(r->f, "tokenizer.ggml.tokens", GGUF_STR, &tokens, r->err, r->errlen);
    if (e < 0)
        return e;
    if (e == 1 && gguf_array_len(tokens) != m->n_vocab)
        return refuse(r, -EINVAL,
                      "tensor token_embd.weight has %" PRIu32 " rows, the vocabulary %" PRIu64 " tokens",
                      m->n_vocab, gguf_array_len(tokens));
    return 0;
}

static int take_tensors(struct reader *r)
{
    struct model *m = r->m;
    int e = take_vocabulary(r);
    if (e == 0)
        e = need_tensor(r, "output_norm.weight", m->n_embd, 1, &m->output_norm);
    if (e == 0)
        e = find_tensor(r, "output.weight", m->n_embd, m->n_vocab, &m->output);
    if (e < 0)
        return e;
    if (!m->output)
        m->output = m->token_embd;

    /* More layers than the file has tensors cannot be: said here, before memory is taken for them. */
    if (m->n_layers > gguf_n_tensors(r->f))
        return refuse(r, -EINVAL, "%" PRIu32 " layers, but only %" PRIu64 " tensors", m->n_layers,
                      gguf_n_tensors(r->f));
    m->layers = calloc(m->n_layers, sizeof *m->layers);
    if (!m->layers)
        return refuse(r, -ENOMEM, "out of memory");
    for (uint32_t i = 0; i < m->n_layers; i++) {
        e = take_layer(r, i);
        if (e < 0)
            return e;
    }
    return check_leftover(r);
}

static int take_names(struct reader *r)
{
    struct gguf_str arch, name = { "", 0 };
    char shown[GGUF_PRINTABLE_LEN];
    int e = gguf_get_str(r->f, "general.architecture", &arch, r->err, r->errlen);
    if (e < 0)
        return e;
    if (e == 0)
        return refuse(r, -EINVAL, "key general.architecture is missing");
    r->arch = model_arch_find(arch);
    if (!r->arch)
        return refuse(r, -ENOTSUP, "architecture \"%s\" is not one this build runs (%s)",
                      gguf_printable(shown, sizeof shown, arch), model_arch_names());
    snprintf(r->m->arch, sizeof r->m->arch, "%s", r->arch->name);
    e = gguf_get_str(r->f, "general.name", &name, r->err, r->errlen);
    if (e < 0)
        return e;
    snprintf(r->m->name, sizeof r->m->name, "%.*s", (int)(name.len < 127 ? name.len : 127),
             name.len ? name.data : "");
    return 0;
}

static uint64_t count_params(const struct gguf *f)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_n_tensors(f); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(f, i);
        sum += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }
    return sum;
}

int model_read(const struct gguf *f, struct model **ret_model, char *err, size_t errlen)
{
    struct model *m = calloc(1, sizeof *m);
    struct reader r = { .f = f, .m = m, .err = err, .errlen = errlen };
    int e;
    if (!m) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }

    e = take_names(&r);
    if (e == 0)
        e = take_hyperparameters(&r);
    if (e == 0)
        e = take_tensors(&r);
    if (e < 0) {
        model_free(m);
        return e;
    }
    m->n_params = count_params(f);
    *ret_model = m;
    return 0;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    free(m->layers);
    free(m);
}
