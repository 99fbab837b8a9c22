/* Model architectures: a row each. What differs between families is data here; model.c reads them all the
 * same way. Pure tables; any thread. Tests: tests/unit/test_model.c */
#include "model/model_arch.h"
#include <string.h>

#define LAYER(field) offsetof(struct model_layer, field)

static const struct model_tensor_row llama_tensors[] = {
    { "attn_norm", LAYER(attn_norm), MODEL_DIM_EMBD, MODEL_DIM_ONE },
    { "attn_q", LAYER(attn_q), MODEL_DIM_EMBD, MODEL_DIM_HEADS },
    { "attn_k", LAYER(attn_k), MODEL_DIM_EMBD, MODEL_DIM_KV_HEADS },
    { "attn_v", LAYER(attn_v), MODEL_DIM_EMBD, MODEL_DIM_KV_HEADS },
    { "attn_output", LAYER(attn_output), MODEL_DIM_HEADS, MODEL_DIM_EMBD },
    { "ffn_norm", LAYER(ffn_norm), MODEL_DIM_EMBD, MODEL_DIM_ONE },
    { "ffn_gate", LAYER(ffn_gate), MODEL_DIM_EMBD, MODEL_DIM_FF },
    { "ffn_up", LAYER(ffn_up), MODEL_DIM_EMBD, MODEL_DIM_FF },
    { "ffn_down", LAYER(ffn_down), MODEL_DIM_FF, MODEL_DIM_EMBD },
};

static const struct model_arch archs[] = {
    /* Files of this family hold q and k permuted so that neighbours are rotated together. */
    { "llama", MODEL_ROPE_PAIRS, llama_tensors, sizeof llama_tensors / sizeof *llama_tensors },
};

const struct model_arch *model_arch_find(struct gguf_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (name.len == strlen(archs[i].name) && memcmp(name.data, archs[i].name, name.len) == 0)
            return &archs[i];
    return NULL;
}

const char *model_arch_names(void)
{
    return "llama";
}
