/* Model: reads hyperparameters, bounds them, and finds every tensor the architecture's row asks for, with its
 * shape and type checked. What passes here the engine can run without further questions. Pure; one thread
 * reads, the result is immutable. Must not know: how anything is computed. Tests: tests/unit/test_model.c */
#include "model/model.h"
#include "model/gguf_file.h"
#include "model/model_read.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The types of matrices this build multiplies: a short list of our own, because a model may not know the
 * kernels. */
static const char *const readable_types[] = { "F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",
                                              "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K" };
#define READABLE_TEXT "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K"

static int take_heads(struct model_reader *r)
{
    struct model *m = r->m;
    uint32_t v_dim;
    int e = model_take_count(r, "attention.head_count", MODEL_REQUIRED, 1, 4096, &m->n_head);
    m->n_head_kv = m->n_head;
    if (e == 0)
        e = model_take_count(r, "attention.head_count_kv", 0, 1, 4096, &m->n_head_kv);
    if (e < 0)
        return e;
    if (m->n_head % m->n_head_kv)
        return model_refuse(r, -EINVAL,
                            "%" PRIu32 " query heads cannot be shared out to %" PRIu32 " key-value heads",
                            m->n_head, m->n_head_kv);

    m->head_dim = m->n_embd / m->n_head;
    e = model_take_count(r, "attention.key_length", 0, 2, 1024, &m->head_dim);
    v_dim = m->head_dim;
    if (e == 0)
        e = model_take_count(r, "attention.value_length", 0, 2, 1024, &v_dim);
    if (e < 0)
        return e;
    if (v_dim != m->head_dim)
        return model_refuse(r, -ENOTSUP,
                            "keys of %" PRIu32 " and values of %" PRIu32
                            " numbers a head: this build wants them equal",
                            m->head_dim, v_dim);
    if (m->head_dim < 2 || m->head_dim > 1024 || m->head_dim % 2)
        return model_refuse(r, -EINVAL, "heads of %" PRIu32 " numbers: an even count in 2..1024 is wanted",
                            m->head_dim);
    return 0;
}

/* Keys that change what is computed, in ways this build does not know. */
static int check_unknown(struct model_reader *r)
{
    static const struct {
        const char *suffix, *what;
        float neutral;
    } known[] = {
        { "attn_logit_softcapping", "soft caps of attention", 0 },
        { "final_logit_softcapping", "soft caps of logits", 0 },
        { "attention.clamp_kqv", "clamped queries and keys", 0 },
        { "attention.scale", "scale of attention of a file's own", 0 },
        { "attention.temperature_scale", "temperature of attention", 0 },
        { "logit_scale", "scale of logits", 1 },
        { "residual_scale", "scale of residuals", 1 },
        { "embedding_scale", "scale of embeddings", 1 },
    };
    char key[96];
    bool causal = true;
    int e = 0;
    for (size_t i = 0; e == 0 && i < sizeof known / sizeof *known; i++) {
        float value = known[i].neutral;
        e = model_take_real(r, known[i].suffix, 0, -1e30, 1e30, &value);
        if (e == 0 && value != known[i].neutral)
            e = model_refuse(r, -ENOTSUP, "key %s: this build computes no %s",
                             model_key_name(r, known[i].suffix, key), known[i].what);
    }
    if (e == 0)
        e = gguf_get_bool(r->f, model_key_name(r, "attention.causal", key), &causal, r->err, r->errlen);
    if (e >= 0 && !causal)
        return model_refuse(r, -ENOTSUP, "key %s: a model that looks ahead is not one that goes on writing",
                            key);
    return e < 0 ? e : 0;
}

/* Layers of these architectures see everything, in llama.cpp too. A file may name a window all the same,
 * which its model was trained with (the first Mistral) or never used (Qwen2): it cannot be told from the
 * file. */
static void take_unused_window(struct model_reader *r)
{
    char key[96], unused[256];
    (void)gguf_get_u32(r->f, model_key_name(r, "attention.sliding_window", key), &r->m->window_unused, unused,
                       sizeof unused);
}

/* What the architecture's row says of the numbers. */
static int take_arch(struct model_reader *r)
{
    struct model *m = r->m;
    const struct model_arch *arch = r->arch;
    bool by_embd = arch->scaled_by_embd_layers && m->n_layers == arch->scaled_by_embd_layers;
    int e;

    m->gate = arch->gate;
    m->int16 = arch->int16;
    m->embd_scale = arch->embd_scaled ? sqrtf((float)m->n_embd) : 1;
    m->attn_scale = (float)(1 / sqrt(by_embd ? (double)(m->n_embd / m->n_head) : (double)m->head_dim));
    m->window_period = arch->window_period;
    if (!arch->window_period) {
        take_unused_window(r);
        return 0;
    }
    e = model_take_count(r, "attention.sliding_window", 0, 0, UINT32_MAX, &m->window);
    if (e == 0)
        e = model_take_count(r, "attention.sliding_window_pattern", 0, 1, 1024, &m->window_period);
    return e;
}

static int take_hyperparameters(struct model_reader *r)
{
    struct model *m = r->m;
    uint32_t experts = 0;
    int e = model_take_count(r, "block_count", MODEL_REQUIRED, 1, 1024, &m->n_layers);
    if (e == 0)
        e = model_take_count(r, "embedding_length", MODEL_REQUIRED, 1, 1u << 17, &m->n_embd);
    if (e == 0)
        e = model_take_count(r, "feed_forward_length", MODEL_REQUIRED, 1, 1u << 20, &m->n_ff);
    if (e == 0)
        e = model_take_count(r, "context_length", MODEL_REQUIRED, 1, 1u << 27, &m->context_train);
    if (e == 0)
        e = model_take_count(r, "expert_count", 0, 0, UINT32_MAX, &experts);
    if (e == 0 && experts)
        e = model_refuse(r, -ENOTSUP, "a mixture of %" PRIu32 " experts is not something this build runs",
                         experts);
    if (e == 0)
        e = model_take_real(r, "attention.layer_norm_rms_epsilon", MODEL_REQUIRED, 0, 1, &m->rms_eps);
    if (e == 0)
        e = take_heads(r);
    if (e == 0)
        e = take_arch(r);
    if (e == 0)
        e = check_unknown(r);
    return e < 0 ? e : model_read_rope(r);
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
static int find_tensor(struct model_reader *r, const char *name, uint64_t cols, uint64_t rows,
                       const struct gguf_tensor **ret)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->f, name);
    bool vector = rows == 1;

    *ret = NULL;
    if (!t)
        return 0;
    if (vector && t->type != 0)
        return model_refuse(r, -ENOTSUP, "tensor %s has type %s, this build reads F32 there", name,
                            gguf_type_name(t->type));
    if (!is_readable(t->type))
        return model_refuse(r, -ENOTSUP, "tensor %s has type %s, this build reads " READABLE_TEXT, name,
                            gguf_type_name(t->type));
    if (t->dims[0] != cols || (rows && t->dims[1] != rows) || t->dims[2] != 1 || t->dims[3] != 1) {
        char wanted[24] = "any number";
        if (rows)
            snprintf(wanted, sizeof wanted, "%" PRIu64, rows);
        return model_refuse(r, -EINVAL,
                            "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", %" PRIu64
                            " x %s is wanted by the hyperparameters",
                            name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], cols, wanted);
    }
    r->used++;
    *ret = t;
    return 0;
}

static int need_tensor(struct model_reader *r, const char *name, uint64_t cols, uint64_t rows,
                       const struct gguf_tensor **ret)
{
    int e = find_tensor(r, name, cols, rows, ret);
    if (e == 0 && !*ret)
        e = model_refuse(r, -EINVAL, "tensor %s is missing", name);
    return e;
}

static uint64_t dim(const struct model *m, enum model_dim d)
{
    switch (d) {
    case MODEL_DIM_EMBD:
        return m->n_embd;
    case MODEL_DIM_HEAD:
        return m->head_dim;
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

static int take_row(struct model_reader *r, const struct model_tensor_row *row, uint32_t layer)
{
    const struct gguf_tensor **field =
        (const struct gguf_tensor **)(void *)((char *)&r->m->layers[layer] + row->offset);
    uint64_t cols = dim(r->m, row->cols), rows = dim(r->m, row->rows);
    char name[96];

    snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer, row->name);
    return row->optional ? find_tensor(r, name, cols, rows, field) : need_tensor(r, name, cols, rows, field);
}

static int take_layer(struct model_reader *r, uint32_t i)
{
    int e = 0;

    for (size_t t = 0; e == 0 && t < model_arch_n_common; t++)
        e = take_row(r, &model_arch_common[t], i);
    for (size_t t = 0; e == 0 && t < r->arch->n_own; t++)
        e = take_row(r, &r->arch->own[t], i);
    return e;
}

static bool is_ours(const struct model *m, const struct gguf_tensor *t)
{
    const struct gguf_tensor *const *of_layers = (const struct gguf_tensor *const *)(const void *)m->layers;
    size_t n = (size_t)m->n_layers * (sizeof *m->layers / sizeof *of_layers);

    if (t == m->token_embd || t == m->output || t == m->output_norm || t == m->rope_factors)
        return true;
    for (size_t i = 0; i < n; i++)
        if (of_layers[i] == t)
            return true;
    return false;
}

/* A tensor nobody asked for (a bias, a norm) would be part of the computation: leaving it out silently
 * would give a model that talks nonsense. */
static int check_leftover(struct model_reader *r)
{
    char shown[GGUF_PRINTABLE_LEN];

    for (uint64_t i = 0; r->used < gguf_n_tensors(r->f) && i < gguf_n_tensors(r->f); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(r->f, i);
        if (is_ours(r->m, t))
            continue;
        gguf_printable(shown, sizeof shown, t->name);
        if (strncmp(shown, "v.", 2) == 0 || strncmp(shown, "mm.", 3) == 0)
            return model_refuse(
                r, -ENOTSUP, "tensor %s is of a part that sees images; this build reads text alone", shown);
        return model_refuse(r, -ENOTSUP, "tensor %s is not part of architecture %s as this build computes it",
                            shown, r->arch->name);
    }
    return 0;
}

static int take_vocabulary(struct model_reader *r)
{
    struct model *m = r->m;
    const struct gguf_array *tokens = NULL;
    int e = need_tensor(r, "token_embd.weight", m->n_embd, 0, &m->token_embd);
    if (e < 0)
        return e;
    if (m->token_embd->dims[1] > 1u << 24)
        return model_refuse(r, -EINVAL, "tensor token_embd.weight: %" PRIu64 " rows are above %u",
                            m->token_embd->dims[1], 1u << 24);
    m->n_vocab = (uint32_t)m->token_embd->dims[1];
    e = gguf_get_array(r->f, "tokenizer.ggml.tokens", GGUF_STR, &tokens, r->err, r->errlen);
    if (e < 0)
        return e;
    if (e == 1 && gguf_array_len(tokens) != m->n_vocab)
        return model_refuse(
            r, -EINVAL, "tensor token_embd.weight has %" PRIu32 " rows, the vocabulary %" PRIu64 " tokens",
            m->n_vocab, gguf_array_len(tokens));
    return 0;
}

static int take_tensors(struct model_reader *r)
{
    struct model *m = r->m;
    int e = take_vocabulary(r);
    if (e == 0)
        e = need_tensor(r, "output_norm.weight", m->n_embd, 1, &m->output_norm);
    if (e == 0)
        e = find_tensor(r, "output.weight", m->n_embd, m->n_vocab, &m->output);
    if (e == 0 && r->arch->rope_factors)
        e = find_tensor(r, "rope_freqs.weight", m->rope_dims / 2, 1, &m->rope_factors);
    if (e == 0)
        e = model_check_rope_factors(r);
    if (e < 0)
        return e;
    if (!m->output)
        m->output = m->token_embd;

    /* More layers than the file has tensors cannot be: said here, before memory is taken for them. */
    if (m->n_layers > gguf_n_tensors(r->f))
        return model_refuse(r, -EINVAL, "%" PRIu32 " layers, but only %" PRIu64 " tensors", m->n_layers,
                            gguf_n_tensors(r->f));
    m->layers = calloc(m->n_layers, sizeof *m->layers);
    if (!m->layers)
        return model_refuse(r, -ENOMEM, "out of memory");
    for (uint32_t i = 0; i < m->n_layers; i++) {
        e = take_layer(r, i);
        if (e < 0)
            return e;
    }
    return check_leftover(r);
}

/* Large models are handed out in parts, each a file that looks like a whole one. */
static int check_whole(struct model_reader *r)
{
    uint32_t parts = 1, part = 0;
    int e = gguf_get_u32(r->f, "split.count", &parts, r->err, r->errlen);
    if (e >= 0)
        e = gguf_get_u32(r->f, "split.no", &part, r->err, r->errlen);
    if (e >= 0 && parts > 1)
        e = model_refuse(r, -ENOTSUP,
                         "key split.count: the file is part %" PRIu64 " of %" PRIu32
                         ", this build reads models of one file (llama-gguf-split --merge joins them)",
                         (uint64_t)part + 1, parts);
    return e < 0 ? e : 0;
}

static int take_names(struct model_reader *r)
{
    struct gguf_str arch, name = { "", 0 };
    char shown[GGUF_PRINTABLE_LEN];
    int e = gguf_get_str(r->f, "general.architecture", &arch, r->err, r->errlen);
    if (e < 0)
        return e;
    if (e == 0)
        return model_refuse(r, -EINVAL, "key general.architecture is missing");
    r->arch = model_arch_find(arch);
    if (!r->arch)
        return model_refuse(r, -ENOTSUP, "architecture \"%s\" is not one this build runs (%s)",
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
    struct model_reader r = { .f = f, .m = m, .err = err, .errlen = errlen };
    int e;
    if (!m) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }

    e = check_whole(&r);
    if (e == 0)
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

bool model_layer_has_window(const struct model *m, uint32_t layer)
{
    return m->window && (layer + 1) % m->window_period;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    free(m->layers);
    free(m);
}
