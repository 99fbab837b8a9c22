/* Model: what a model file says about its network: hyperparameters and the tensors of each layer, checked for
 * presence, shape and a type this build reads. The architectures are rows of one table (model_arch.c). Pure
 * data; borrowed from the gguf file, which must stay open while tensors are read. Must not know: how anything
 * is computed, threads, files. Tests: tests/unit/test_model.c */
#pragma once
#include "model/gguf.h"

enum model_rope { MODEL_ROPE_PAIRS /* (0,1) (2,3) .. */, MODEL_ROPE_HALVES /* (0,n/2) (1,n/2+1) .. */ };

struct model_layer {
    const struct gguf_tensor *attn_norm; /* F32 [n_embd] */
    const struct gguf_tensor *attn_q;    /* [n_embd -> n_head * head_dim] */
    const struct gguf_tensor *attn_k;    /* [n_embd -> n_head_kv * head_dim] */
    const struct gguf_tensor *attn_v;
    const struct gguf_tensor *attn_output; /* [n_head * head_dim -> n_embd] */
    const struct gguf_tensor *ffn_norm;
    const struct gguf_tensor *ffn_gate; /* [n_embd -> n_ff] */
    const struct gguf_tensor *ffn_up;
    const struct gguf_tensor *ffn_down; /* [n_ff -> n_embd] */
};

struct model {
    char arch[32];
    char name[128]; /* general.name, or empty */
    uint32_t n_layers, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab;
    uint32_t context_train; /* tokens the model was trained for */
    uint32_t rope_dims;     /* rotated dimensions of a head, even, <= head_dim */
    enum model_rope rope;
    float rope_base, rms_eps;
    uint64_t n_params;                    /* weights in all tensors */
    const struct gguf_tensor *token_embd; /* [n_vocab rows of n_embd] */
    const struct gguf_tensor *output;     /* equal to token_embd when tied */
    const struct gguf_tensor *output_norm;
    struct model_layer *layers; /* n_layers */
};

/* Reads and checks. Fails with -EINVAL (malformed, or shapes that do not fit), -ENOTSUP (an architecture or
 * tensor type this build does not run, named, with what it reads) or -ENOMEM. The caller owns *ret_model. */
int model_read(const struct gguf *f, struct model **ret_model, char *err, size_t errlen);
void model_free(struct model *m);
