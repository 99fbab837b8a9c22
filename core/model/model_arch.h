/* Model, inside: what a row of the architecture table says. Included by model.c, model_rope.c and
 * model_arch.c alone. */
#pragma once
#include "model/model.h"

/* What a tensor's rows and columns are counted in. */
enum model_dim {
    MODEL_DIM_ONE,
    MODEL_DIM_EMBD,
    MODEL_DIM_HEAD, /* of one head */
    MODEL_DIM_HEADS,
    MODEL_DIM_KV_HEADS,
    MODEL_DIM_FF
};

/* A tensor of each layer: blk.N.<name>. */
struct model_tensor_row {
    const char *name;
    size_t offset;             /* of its pointer in struct model_layer */
    enum model_dim cols, rows; /* inputs, outputs; rows MODEL_DIM_ONE: a vector, which is F32 */
    bool optional;
};

struct model_arch {
    const char *name; /* as in general.architecture; keys begin with it */
    enum model_rope rope;
    bool rope_factors; /* may have a tensor of divisors of the rope's frequencies */
    enum model_gate gate;
    bool embd_scaled; /* embeddings times sqrt(n_embd) */
    bool int16;       /* as in struct model */
    /* Of so many layers the last sees everything, the others a window where the file has one; 0: all see
     * everything. */
    uint32_t window_period;
    /* With so many layers queries are scaled by embd/heads instead of the head's size; 0: never. */
    uint32_t scaled_by_embd_layers;
    const struct model_tensor_row *own; /* besides what all have */
    size_t n_own;
};

/* What all of them have in each layer. */
extern const struct model_tensor_row model_arch_common[];
extern const size_t model_arch_n_common;

/* NULL for an architecture this build does not run. */
const struct model_arch *model_arch_find(struct gguf_str name);
/* "llama qwen2 ...", for error texts. */
const char *model_arch_names(void);
