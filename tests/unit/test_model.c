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
    cr_expect(m->rope_base == 100000 && m->rope == MODEL_ROPE_PAIRS);
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
    expect_refused(&file, -ENOTSUP, "architecture \"mamba\" is not one this build runs (llama)");
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
                   "tensor blk.0.attn_q.weight has type IQ3_S, this build reads F32 F16 BF16 Q4_0 Q4_1 Q8_0");
    file = tiny_model(&s, NULL);
    set_type(&file, "blk.0.attn_q.weight", 77);
    expect_refused(&file, -ENOTSUP, "tensor blk.0.attn_q.weight has type type 77");
}

Test(model, what_would_be_left_out_of_the_computation_is_refused)
{
    struct gguf_write w = { 0 };
    struct bytes file;
    uint64_t seed = 1;

    tiny_keys(&w, &small);
    tiny_matrix(&w, "token_embd.weight", 0, 24, 50, 1, &seed);
    tiny_layer(&w, &small, 0, &seed);
    tiny_layer(&w, &small, 1, &seed);
    tiny_norm(&w, "output_norm.weight", 24, &seed);
    tiny_norm(&w, "blk.0.attn_q.bias", 32, &seed);
    file = write_finish(&w, NULL);
    expect_refused(&file, -ENOTSUP, "tensor blk.0.attn_q.bias is not part of architecture llama");

    tiny_keys(&w, &small);
    write_text(&w, "llama.rope.scaling.type", "yarn");
    file = write_finish(&w, NULL);
    expect_refused(&file, -ENOTSUP, "rope scaling \"yarn\"");

    tiny_keys(&w, &small);
    write_u32(&w, "llama.expert_count", 8);
    file = write_finish(&w, NULL);
    expect_refused(&file, -ENOTSUP, "a mixture of 8 experts");
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
