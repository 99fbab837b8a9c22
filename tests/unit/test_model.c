/* Model: what is read is what was written; what this build cannot run is refused by name; hostile headers
 * never crash it. */
#include "model/model.h"
#include "tiny_model.h"
#include <criterion/criterion.h>
#include <errno.h>

static const struct tiny_shape small = {
    .layers = 2, .embd = 24, .heads = 4, .kv_heads = 2, .head_dim = 8, .ff = 40, .vocab = 50, .seed = 1
};

static int read_bytes(const struct bytes *file, struct model **ret_model, struct gguf **ret_gguf, char *err,
                      size_t errlen)
{
    int r = open_bytes(file->data, file->len, ret_gguf, err, errlen);
    cr_assert_eq(r, 0, "%s", err);
    return model_read(*ret_gguf, ret_model, err, errlen);
}

Test(model, hyperparameters_and_tensors_are_read)
{
    char err[512] = "";
    struct bytes file = tiny_model(&small, NULL);
    struct gguf *f;
    struct model *m;

    cr_assert_eq(read_bytes(&file, &m, &f, err, sizeof err), 0, "%s", err);
    cr_expect_str_eq(m->arch, "llama");
    cr_expect_str_eq(m->name, "tiny");
    cr_expect(m->n_layers == 2 && m->n_embd == 24 && m->n_ff == 40 && m->n_head == 4 && m->n_head_kv == 2);
    cr_expect(m->head_dim == 8 && m->rope_dims == 8 && m->n_vocab == 50 && m->context_train == 4096);
    cr_expect(m->rope_base == 100000 && m->rope == MODEL_ROPE_PAIRS && m->scaling == MODEL_SCALING_NONE);
    cr_expect(!m->window && m->gate == MODEL_GATE_SILU && m->embd_scale == 1 && !m->int16 &&
              !m->layers[1].attn_q_bias);
    cr_expect_eq(m->output, m->token_embd, "no output matrix: tied");
    cr_expect_eq(m->layers[1].ffn_down, gguf_tensor_find(f, "blk.1.ffn_down.weight"));
    cr_expect_eq(m->n_params, 50 * 24 + 24 + 2 * (2 * 24 + 2 * 24 * 32 + 2 * 24 * 16 + 3 * 24 * 40));
    model_free(m);
    gguf_close(f);
    free(file.data);
}

Test(model, an_output_matrix_of_its_own_is_used)
{
    char err[512] = "";
    struct tiny_shape s = small;
    struct bytes file;
    struct gguf *f;
    struct model *m;

    s.untied = true;
    file = tiny_model(&s, NULL);
    cr_assert_eq(read_bytes(&file, &m, &f, err, sizeof err), 0, "%s", err);
    cr_expect_eq(m->output, gguf_tensor_find(f, "output.weight"));
    model_free(m);
    gguf_close(f);
    free(file.data);
}

/* Where `text` first lies in the file. */
static uint8_t *find_text(struct bytes *file, const char *text)
{
    uint8_t *at = memmem(file->data, file->len, text, strlen(text));
    cr_assert_not_null(at, "%s", text);
    return at;
}

static void expect_refused(struct bytes *file, int error, const char *message)
{
    char err[512] = "";
    struct gguf *f;
    struct model *m;
    int r = read_bytes(file, &m, &f, err, sizeof err);
    cr_expect_eq(r, error, "%d for: %s", r, message);
    cr_expect(strstr(err, message) != NULL, "wanted \"%s\", got \"%s\"", message, err);
    gguf_close(f);
    free(file->data);
}

Test(model, a_missing_tensor_is_named)
{
    const char *names[] = { "token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight",
                            "blk.1.ffn_gate.weight", "blk.1.attn_norm.weight" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char message[96];
        struct bytes file = tiny_model(&small, NULL);
        find_text(&file, names[i])[0] = 'X';
        snprintf(message, sizeof message, "tensor %s is missing", names[i]);
        expect_refused(&file, -EINVAL, message);
    }
}

Test(model, a_missing_key_is_named)
{
    const char *keys[] = { "llama.block_count",          "llama.context_length",
                           "llama.embedding_length",     "llama.feed_forward_length",
                           "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
                           "general.architecture" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char message[96];
        struct bytes file = tiny_model(&small, NULL);
        find_text(&file, keys[i])[1] = 'X';
        snprintf(message, sizeof message, "key %s is missing", keys[i]);
        expect_refused(&file, -EINVAL, message);
    }
}

/* The model with one count replaced. */
static struct bytes with_count(const char *key, uint32_t value)
{
    struct bytes file = tiny_model(&small, NULL);
    memcpy(find_text(&file, key) + strlen(key) + 4, &value, sizeof value);
    return file;
}

Test(model, absurd_counts_are_refused_with_their_bounds)
{
    const struct {
        const char *key;
        uint32_t value;
        const char *message;
    } cases[] = {
        { "llama.block_count", 0, "key llama.block_count: 0 is outside 1..1024" },
        { "llama.block_count", 4000000000u, "key llama.block_count: 4000000000 is outside 1..1024" },
        { "llama.block_count", 900, "900 layers, but only 20 tensors" },
        { "llama.block_count", 3, "tensor blk.2.attn_norm.weight is missing" },
        { "llama.context_length", 0, "key llama.context_length: 0 is outside" },
        { "llama.embedding_length", 1u << 30, "key llama.embedding_length: 1073741824 is outside" },
        { "llama.embedding_length", 32,
          "tensor token_embd.weight is 24 x 50 x 1 x 1, 32 x any number is wanted" },
        { "llama.feed_forward_length", 41,
          "tensor blk.0.ffn_gate.weight is 24 x 40 x 1 x 1, 24 x 41 is wanted" },
        { "llama.attention.head_count_kv", 3, "4 query heads cannot be shared out to 3 key-value heads" },
        { "llama.attention.head_count_kv", 0, "key llama.attention.head_count_kv: 0 is outside" },
        { "llama.attention.key_length", 16, "keys of 16 and values of 8 numbers a head" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes file = with_count(cases[i].key, cases[i].value);
        expect_refused(&file, strstr(cases[i].message, "values of") ? -ENOTSUP : -EINVAL, cases[i].message);
    }
}

Test(model, odd_heads_are_refused)
{
    struct tiny_shape s = small;
    struct bytes file;
    s.head_dim = 7;
    file = tiny_model(&s, NULL);
    expect_refused(&file, -EINVAL, "heads of 7 numbers: an even count in 2..1024 is wanted");
}

Test(model, a_not_a_number_epsilon_is_refused)
{
    const char *key = "llama.attention.layer_norm_rms_epsilon";
    struct bytes file = tiny_model(&small, NULL);
    float nan = NAN;
    memcpy(find_text(&file, key) + strlen(key) + 4, &nan, sizeof nan);
    expect_refused(&file, -EINVAL, "is outside 0..1");
}

Test(model, an_architecture_this_build_does_not_run_is_named)
{
    struct bytes file = tiny_model(&small, NULL);
    memcpy(find_text(&file, "general.architecture") + strlen("general.architecture") + 12, "mamba", 5);
    expect_refused(&file, -ENOTSUP,
                   "architecture \"mamba\" is not one this build runs (llama qwen2 qwen3 gemma3)");
}

/* Sets the type in a tensor's entry: name, dimension count, two dimensions, type. */
static void set_type(struct bytes *file, const char *name, uint32_t type)
{
    memcpy(find_text(file, name) + strlen(name) + 4 + 16, &type, sizeof type);
}

Test(model, a_type_this_build_does_not_read_is_named)
{
    /* Shaped so that rows are whole blocks of the other type and the larger of the two fits. */
    struct tiny_shape s = {
        .layers = 1, .embd = 256, .heads = 2, .kv_heads = 1, .head_dim = 8, .ff = 32, .vocab = 8, .seed = 1
    };
    struct bytes file = tiny_model(&s, NULL);
    set_type(&file, "blk.0.attn_q.weight", 21);
    expect_refused(&file, -ENOTSUP,
                   "tensor blk.0.attn_q.weight has type IQ3_S, this build reads F32 F16 BF16 Q4_0 Q4_1 Q5_0 "
                   "Q5_1 Q8_0 Q4_K Q5_K Q6_K");
    file = tiny_model(&s, NULL);
    set_type(&file, "blk.0.attn_q.weight", 77);
    expect_refused(&file, -ENOTSUP, "tensor blk.0.attn_q.weight has type type 77");
}

/* ---- architectures ---- */

static struct model *read_good(const struct tiny_shape *s, struct gguf **ret_gguf)
{
    char err[512] = "";
    struct bytes file = tiny_model(s, NULL);
    struct model *m;
    cr_assert_eq(read_bytes(&file, &m, ret_gguf, err, sizeof err), 0, "%s", err);
    free(file.data);
    return m;
}

static struct tiny_shape of_arch(const char *arch)
{
    struct tiny_shape s = small;
    s.arch = arch;
    return s;
}

Test(model, each_architecture_has_its_own_tensors)
{
    struct tiny_shape biased = small, gemma = of_arch("gemma3"), two = of_arch("qwen2"),
                      three = of_arch("qwen3");
    struct gguf *f;
    biased.biased = biased.factors = true;
    struct model *m = read_good(&biased, &f);
    cr_expect_eq(m->layers[1].attn_v_bias, gguf_tensor_find(f, "blk.1.attn_v.bias"));
    cr_expect_eq(m->rope_factors, gguf_tensor_find(f, "rope_freqs.weight"));
    model_free(m);
    gguf_close(f);

    m = read_good(&two, &f);
    cr_expect(m->rope == MODEL_ROPE_HALVES && m->layers[0].attn_q_bias && !m->layers[0].attn_q_norm);
    model_free(m);
    gguf_close(f);

    m = read_good(&three, &f);
    cr_expect_eq(m->layers[0].attn_k_norm, gguf_tensor_find(f, "blk.0.attn_k_norm.weight"));
    cr_expect(m->rope == MODEL_ROPE_HALVES && !m->layers[0].attn_q_bias && !m->layers[0].attn_post_norm);
    model_free(m);
    gguf_close(f);

    gemma.window = 100;
    m = read_good(&gemma, &f);
    cr_expect_eq(m->layers[1].ffn_post_norm, gguf_tensor_find(f, "blk.1.post_ffw_norm.weight"));
    cr_expect(m->gate == MODEL_GATE_GELU && m->embd_scale == sqrtf(24) && m->window == 100 && m->int16);
    cr_expect(m->rope_base == 100000 && m->rope_base_window == 10000);
    cr_expect_float_eq(m->attn_scale, 1 / sqrt(8), 1e-7);
    model_free(m);
    gguf_close(f);
}

Test(model, of_six_layers_with_a_window_the_last_sees_everything)
{
    struct tiny_shape s = of_arch("gemma3");
    struct gguf *f;
    s.layers = 13;
    s.window = 4;
    struct model *m = read_good(&s, &f);
    for (uint32_t i = 0; i < 13; i++)
        cr_expect_eq(model_layer_has_window(m, i), i != 5 && i != 11, "layer %u", i);
    model_free(m);
    gguf_close(f);

    s.window = 0; /* a file without the key */
    m = read_good(&s, &f);
    cr_expect(!model_layer_has_window(m, 0));
    model_free(m);
    gguf_close(f);
}

/* 62 layers: the only size trained with queries scaled by embd / heads. */
Test(model, the_largest_gemma_scales_its_queries_differently)
{
    struct tiny_shape s = of_arch("gemma3");
    struct gguf *f;
    s.layers = 62;
    s.heads = 3;
    s.kv_heads = 1;
    s.head_dim = 10; /* not 24 / 3 */
    struct model *m = read_good(&s, &f);
    cr_expect_float_eq(m->attn_scale, 1 / sqrt(8), 1e-7);
    model_free(m);
    gguf_close(f);
}

/* ---- rotations, against their formulas ---- */

static void expect_frequencies(const struct model *m, bool with_window, const double *wanted, uint32_t n)
{
    double frequencies[16], magnitude;
    model_rope_frequencies(m, with_window, frequencies, &magnitude);
    for (uint32_t i = 0; i < n; i++)
        cr_expect_float_eq(frequencies[i], wanted[i], 1e-12 + 1e-9 * wanted[i], "pair %u: %.12g, not %.12g",
                           i, frequencies[i], wanted[i]);
}

Test(model, rotations_are_stretched_as_the_file_says)
{
    struct tiny_shape s = small;
    struct gguf *f;
    double wanted[16], magnitude, got[16];
    s.scaling = "linear";
    struct model *m = read_good(&s, &f);
    for (uint32_t i = 0; i < 4; i++)
        wanted[i] = pow(100000, -(double)i / 4) / 4;
    expect_frequencies(m, false, wanted, 4);
    model_free(m);
    gguf_close(f);

    s.scaling = NULL;
    s.factors = true;
    m = read_good(&s, &f);
    for (uint32_t i = 0; i < 4; i++)
        wanted[i] = pow(100000, -(double)i / 4) / ((const float *)m->rope_factors->data)[i];
    expect_frequencies(m, false, wanted, 4);
    model_free(m);
    gguf_close(f);

    /* 4096 tokens, base 100000, 32 dimensions: 32 turns at pair 4.19, 1 turn at pair 9.005. */
    s = (struct tiny_shape){ .layers = 1,
                             .embd = 32,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_dim = 32,
                             .ff = 8,
                             .vocab = 5,
                             .seed = 1,
                             .scaling = "yarn" };
    m = read_good(&s, &f);
    for (uint32_t i = 0; i < 16; i++) {
        double kept = i <= 4 ? 1 : i >= 10 ? 0 : (10.0 - i) / 6;
        wanted[i] = pow(100000, -(double)i / 16) * (kept + (1 - kept) / 4);
    }
    expect_frequencies(m, false, wanted, 16);
    model_rope_frequencies(m, false, got, &magnitude);
    cr_expect_float_eq(magnitude, 1 + 0.1 * log(4), 1e-12);
    model_free(m);
    gguf_close(f);
}

Test(model, layers_with_a_window_are_not_stretched)
{
    struct tiny_shape s = of_arch("gemma3");
    struct gguf *f;
    double wanted[4];
    s.window = 8;
    s.scaling = "linear";
    struct model *m = read_good(&s, &f);
    for (uint32_t i = 0; i < 4; i++)
        wanted[i] = pow(10000, -(double)i / 4);
    expect_frequencies(m, true, wanted, 4);
    for (uint32_t i = 0; i < 4; i++)
        wanted[i] = pow(100000, -(double)i / 4) / 4;
    expect_frequencies(m, false, wanted, 4);
    model_free(m);
    gguf_close(f);
}

/* ---- what is not computed is refused in a line ---- */

static void expect_key_refused(const struct tiny_shape *s, const char *suffix, double value, int error,
                               const char *message)
{
    struct gguf_write w = { 0 };
    struct bytes file;
    tiny_keys(&w, s);
    if (value == floor(value))
        write_u32(&w, tiny_key(s, suffix), (uint32_t)value);
    else
        write_f32(&w, tiny_key(s, suffix), (float)value);
    file = write_finish(&w, NULL);
    expect_refused(&file, error, message);
}

Test(model, keys_that_would_change_the_computation_are_refused)
{
    struct tiny_shape gemma = of_arch("gemma3"), yarn = small;
    yarn.scaling = "yarn";
    expect_key_refused(&small, "expert_count", 8, -ENOTSUP, "a mixture of 8 experts");
    expect_key_refused(&gemma, "attn_logit_softcapping", 50.5, -ENOTSUP,
                       "key gemma3.attn_logit_softcapping: this build computes no soft caps of attention");
    expect_key_refused(&gemma, "final_logit_softcapping", 30.5, -ENOTSUP,
                       "key gemma3.final_logit_softcapping: this build computes no soft caps of logits");
    expect_key_refused(&gemma, "attention.sliding_window_pattern", 0, -EINVAL,
                       "key gemma3.attention.sliding_window_pattern: 0 is outside 1..1024");
    expect_key_refused(&small, "logit_scale", 0.5, -ENOTSUP, "this build computes no scale of logits");
    expect_key_refused(&yarn, "rope.scaling.yarn_ext_factor", 0.5, -ENOTSUP,
                       "key llama.rope.scaling.yarn_ext_factor: 0.5 is not something this build computes");
    expect_key_refused(&yarn, "rope.scaling.yarn_beta_fast", 0.0001, -EINVAL,
                       "yarn_beta_fast: 0.0001 is outside");
}

static void expect_part_refused(uint32_t parts, int error, const char *message)
{
    struct gguf_write w = { 0 };
    struct bytes file;
    tiny_keys(&w, &small);
    write_u32(&w, "split.count", parts);
    write_u32(&w, "split.no", parts - 1);
    file = write_finish(&w, NULL); /* a part has few of the tensors, here none */
    expect_refused(&file, error, message);
}

Test(model, a_part_of_a_model_is_told_from_a_broken_one)
{
    expect_part_refused(3, -ENOTSUP, "key split.count: the file is part 3 of 3, this build");
    expect_part_refused(1, -EINVAL, "tensor token_embd.weight is missing");
}

Test(model, a_rope_scaling_this_build_does_not_compute_is_named)
{
    struct tiny_shape s = small;
    s.scaling = "longrope";
    struct bytes file = tiny_model(&s, NULL);
    expect_refused(&file, -ENOTSUP, "rope scaling \"longrope\" is not something this build computes");
}

Test(model, a_rope_factor_that_cannot_be_is_refused)
{
    struct tiny_shape s = small;
    struct gguf *f;
    s.factors = true;
    struct bytes file = tiny_model(&s, NULL);
    struct model *m;
    char err[512] = "";
    cr_assert_eq(read_bytes(&file, &m, &f, err, sizeof err), 0, "%s", err);
    float zero = 0, was;
    memcpy(&was, m->rope_factors->data, sizeof was);
    memcpy(memmem(file.data, file.len, &was, sizeof was), &zero, sizeof zero);
    model_free(m);
    gguf_close(f);
    expect_refused(&file, -EINVAL, "tensor rope_freqs.weight: number 0 is 0");
}

/* A whole model and one tensor more. */
static void expect_tensor_refused(const struct tiny_shape *s, const char *name, const char *message)
{
    struct gguf_write w = { 0 };
    struct bytes file;
    uint64_t seed = 1;
    tiny_keys(&w, s);
    tiny_matrix(&w, "token_embd.weight", 0, 24, 50, 1, &seed);
    tiny_layer(&w, s, 0, &seed);
    tiny_layer(&w, s, 1, &seed);
    tiny_norm(&w, "output_norm.weight", 24, &seed);
    tiny_norm(&w, name, 32, &seed);
    file = write_finish(&w, NULL);
    expect_refused(&file, -ENOTSUP, message);
}

Test(model, what_would_be_left_out_of_the_computation_is_refused)
{
    struct tiny_shape gemma = of_arch("gemma3"), three = of_arch("qwen3");
    expect_tensor_refused(&small, "blk.0.attn_output.bias",
                          "tensor blk.0.attn_output.bias is not part of architecture llama");
    expect_tensor_refused(&three, "blk.0.attn_q.bias", "blk.0.attn_q.bias is not part of architecture qwen3");
    expect_tensor_refused(&three, "rope_freqs.weight", "rope_freqs.weight is not part of architecture qwen3");
    expect_tensor_refused(
        &gemma, "v.blk.0.attn_q.bias",
        "tensor v.blk.0.attn_q.bias is of a part that sees images; this build reads text alone");
}

Test(model, a_missing_norm_or_bias_is_named)
{
    const struct {
        const char *arch, *tensor;
    } cases[] = { { "qwen2", "blk.1.attn_k.bias" },
                  { "qwen3", "blk.0.attn_q_norm.weight" },
                  { "gemma3", "blk.1.post_attention_norm.weight" },
                  { "gemma3", "blk.0.post_ffw_norm.weight" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char message[96];
        struct tiny_shape s = of_arch(cases[i].arch);
        struct bytes file = tiny_model(&s, NULL);
        find_text(&file, cases[i].tensor)[0] = 'X';
        snprintf(message, sizeof message, "tensor %s is missing", cases[i].tensor);
        expect_refused(&file, -EINVAL, message);
    }
}

Test(model, a_vocabulary_of_another_size_is_refused)
{
    const char *words[] = { "a", "b" };
    struct gguf_write w = { 0 };
    struct bytes file;
    uint64_t seed = 1;

    tiny_keys(&w, &small);
    write_texts(&w, "tokenizer.ggml.tokens", words, 2);
    tiny_matrix(&w, "token_embd.weight", 0, 24, 50, 1, &seed);
    file = write_finish(&w, NULL);
    expect_refused(&file, -EINVAL, "tensor token_embd.weight has 50 rows, the vocabulary 2 tokens");
}

Test(model, flipped_bits_in_the_header_are_refused_or_readable)
{
    uint64_t seed = 7;
    size_t header;
    struct bytes file = tiny_model(&small, &header);
    uint8_t *copy = malloc(file.len);
    int refused = 0;

    for (int round = 0; round < 500; round++) {
        char err[512] = "";
        struct gguf *f;
        struct model *m;
        size_t len = round % 5 == 0 ? 1 + random_below(&seed, (uint32_t)file.len) : file.len;
        memcpy(copy, file.data, file.len);
        copy[random_below(&seed, (uint32_t)header)] ^= (uint8_t)(1u << random_below(&seed, 8));
        if (open_bytes(copy, len, &f, err, sizeof err) == 0) {
            if (model_read(f, &m, err, sizeof err) == 0)
                model_free(m);
            else
                refused++;
            gguf_close(f);
        } else {
            refused++;
        }
        cr_assert(err[0] == 0 || strlen(err) < sizeof err - 1, "%s", err);
    }
    cr_expect_gt(refused, 100);
    free(copy);
    free(file.data);
}
