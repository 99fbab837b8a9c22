/* Model: what a model file says about its network: hyperparameters and the tensors of each layer, checked for
 * presence, shape and a type this build reads. The architectures are rows of one table (model_arch.c). Pure
 * data; borrowed from the gguf file, which must stay open while tensors are read. Must not know: how anything
 * is computed, threads, files. Tests: tests/unit/test_model.c */
#pragma once
#include "model/gguf.h"

enum model_rope { MODEL_ROPE_PAIRS /* (0,1) (2,3) .. */, MODEL_ROPE_HALVES /* (0,n/2) (1,n/2+1) .. */ };
enum model_gate { MODEL_GATE_SILU, MODEL_GATE_GELU /* the tanh form */ };

/* How a model's rotations were stretched to contexts longer than it was first trained for. */
enum model_scaling { MODEL_SCALING_NONE, MODEL_SCALING_LINEAR, MODEL_SCALING_YARN };

/* Pointers alone; those the architecture does not have are NULL. */
struct model_layer {
    const struct gguf_tensor *attn_norm; /* F32 [n_embd] */
    const struct gguf_tensor *attn_q;    /* [n_embd -> n_head * head_dim] */
    const struct gguf_tensor *attn_k;    /* [n_embd -> n_head_kv * head_dim] */
    const struct gguf_tensor *attn_v;
    const struct gguf_tensor *attn_q_bias; /* F32 [n_head * head_dim] */
    const struct gguf_tensor *attn_k_bias; /* F32 [n_head_kv * head_dim] */
    const struct gguf_tensor *attn_v_bias;
    const struct gguf_tensor *attn_q_norm; /* F32 [head_dim], of each head before it is rotated */
    const struct gguf_tensor *attn_k_norm;
    const struct gguf_tensor *attn_output;    /* [n_head * head_dim -> n_embd] */
    const struct gguf_tensor *attn_post_norm; /* F32 [n_embd], of what attention adds to the stream */
    const struct gguf_tensor *ffn_norm;
    const struct gguf_tensor *ffn_gate; /* [n_embd -> n_ff] */
    const struct gguf_tensor *ffn_up;
    const struct gguf_tensor *ffn_down; /* [n_ff -> n_embd] */
    const struct gguf_tensor *ffn_post_norm;
};

struct model_yarn {
    float beta_fast, beta_slow; /* rotations within context_original above which nothing, below which all is
                                   stretched */
    float magnitude;            /* of queries and keys, besides the factor's own */
    uint32_t context_original;  /* tokens */
};

struct model {
    char arch[32];
    char name[128]; /* general.name, or empty */
    uint32_t n_layers, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab;
    uint32_t context_train; /* tokens the model was trained for */
    enum model_gate gate;
    float embd_scale; /* of embeddings on their way in */
    float attn_scale; /* of q.k */
    bool int16;       /* wants activations of 16 bits: a few are many times larger than their neighbours */
    float rms_eps;

    uint32_t window; /* positions that a layer with a window sees, its own included; 0: no layer has one */
    uint32_t window_period; /* with a window: of so many layers only the last sees everything */
    uint32_t window_unused; /* what the file says of one where the architecture has none; 0: nothing */

    uint32_t rope_dims; /* rotated dimensions of a head, even, <= head_dim */
    enum model_rope rope;
    float rope_base, rope_base_window; /* the latter in layers with a window, which are not scaled either */
    enum model_scaling scaling;
    float scaling_factor; /* > 0 */
    struct model_yarn yarn;
    const struct gguf_tensor *rope_factors; /* F32 [rope_dims / 2]: divisors of the frequencies; or NULL */

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

/* Whether a layer (below n_layers) sees a window of positions only. */
bool model_layer_has_window(const struct model *m, uint32_t layer);
/* The rotations of layers with a window or without: ret_frequencies[i] (rope_dims / 2 of them) is in radians
 * per position, *ret_magnitude what cosines and sines are multiplied by. The tensors must still be there. */
void model_rope_frequencies(const struct model *m, bool with_window, double *ret_frequencies,
                            double *ret_magnitude);
