/* Model architectures: a row each. What differs between families is data here; model.c reads them all the
 * same way. Another dense model is a row, its norms and biases, and a line in tests/reference/forward.py,
 * which computes it a second time. Pure tables; any thread. Tests: tests/unit/test_model.c,
 * tests/e2e/test_architectures.py */
#include "model/model_arch.h"
#include <string.h>

#define LAYER(field) offsetof(struct model_layer, field)
#define ROWS(table) .own = table, .n_own = sizeof table / sizeof *table

const struct model_tensor_row model_arch_common[] = {
    { "attn_norm.weight", LAYER(attn_norm), MODEL_DIM_EMBD, MODEL_DIM_ONE, false },
    { "attn_q.weight", LAYER(attn_q), MODEL_DIM_EMBD, MODEL_DIM_HEADS, false },
    { "attn_k.weight", LAYER(attn_k), MODEL_DIM_EMBD, MODEL_DIM_KV_HEADS, false },
    { "attn_v.weight", LAYER(attn_v), MODEL_DIM_EMBD, MODEL_DIM_KV_HEADS, false },
    { "attn_output.weight", LAYER(attn_output), MODEL_DIM_HEADS, MODEL_DIM_EMBD, false },
    { "ffn_norm.weight", LAYER(ffn_norm), MODEL_DIM_EMBD, MODEL_DIM_ONE, false },
    { "ffn_gate.weight", LAYER(ffn_gate), MODEL_DIM_EMBD, MODEL_DIM_FF, false },
    { "ffn_up.weight", LAYER(ffn_up), MODEL_DIM_EMBD, MODEL_DIM_FF, false },
    { "ffn_down.weight", LAYER(ffn_down), MODEL_DIM_FF, MODEL_DIM_EMBD, false },
};
const size_t model_arch_n_common = sizeof model_arch_common / sizeof *model_arch_common;

static const struct model_tensor_row biases[] = {
    { "attn_q.bias", LAYER(attn_q_bias), MODEL_DIM_HEADS, MODEL_DIM_ONE, true },
    { "attn_k.bias", LAYER(attn_k_bias), MODEL_DIM_KV_HEADS, MODEL_DIM_ONE, true },
    { "attn_v.bias", LAYER(attn_v_bias), MODEL_DIM_KV_HEADS, MODEL_DIM_ONE, true },
};

static const struct model_tensor_row qwen2_rows[] = {
    { "attn_q.bias", LAYER(attn_q_bias), MODEL_DIM_HEADS, MODEL_DIM_ONE, false },
    { "attn_k.bias", LAYER(attn_k_bias), MODEL_DIM_KV_HEADS, MODEL_DIM_ONE, false },
    { "attn_v.bias", LAYER(attn_v_bias), MODEL_DIM_KV_HEADS, MODEL_DIM_ONE, false },
};

static const struct model_tensor_row qwen3_rows[] = {
    { "attn_q_norm.weight", LAYER(attn_q_norm), MODEL_DIM_HEAD, MODEL_DIM_ONE, false },
    { "attn_k_norm.weight", LAYER(attn_k_norm), MODEL_DIM_HEAD, MODEL_DIM_ONE, false },
};

static const struct model_tensor_row gemma3_rows[] = {
    { "attn_q_norm.weight", LAYER(attn_q_norm), MODEL_DIM_HEAD, MODEL_DIM_ONE, false },
    { "attn_k_norm.weight", LAYER(attn_k_norm), MODEL_DIM_HEAD, MODEL_DIM_ONE, false },
    { "post_attention_norm.weight", LAYER(attn_post_norm), MODEL_DIM_EMBD, MODEL_DIM_ONE, false },
    { "post_ffw_norm.weight", LAYER(ffn_post_norm), MODEL_DIM_EMBD, MODEL_DIM_ONE, false },
};

static const struct model_arch archs[] = {
    /* Files of this family hold q and k permuted so that neighbours are rotated together. */
    { .name = "llama", .rope = MODEL_ROPE_PAIRS, .rope_factors = true, ROWS(biases) },
    { .name = "qwen2", .rope = MODEL_ROPE_HALVES, ROWS(qwen2_rows) },
    { .name = "qwen3", .rope = MODEL_ROPE_HALVES, ROWS(qwen3_rows) },
    /* Its norms come as they are multiplied: the 1 that the family adds to them is in the file. Only the
     * largest, of 62 layers, was trained with another scale of its queries, and its files do not say so. */
    { .name = "gemma3",
      .rope = MODEL_ROPE_HALVES,
      .gate = MODEL_GATE_GELU,
      .embd_scaled = true,
      .int16 = true,
      .window_period = 6,
      .scaled_by_embd_layers = 62,
      ROWS(gemma3_rows) },
};

const struct model_arch *model_arch_find(struct gguf_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (gguf_str_is(name, archs[i].name))
            return &archs[i];
    return NULL;
}

const char *model_arch_names(void)
{
    return "llama qwen2 qwen3 gemma3";
}
