/* Model, inside: what a row of the architecture table says. Included by model.c and model_arch.c alone. */
#pragma once
#include "model/model.h"

/* What a tensor's rows and columns are counted in. */
enum model_dim { MODEL_DIM_ONE, MODEL_DIM_EMBD, MODEL_DIM_HEADS, MODEL_DIM_KV_HEADS, MODEL_DIM_FF };

/* A tensor of each layer: blk.N.<name>. */
struct model_tensor_row {
    const char *name;
    size_t offset;             /* of its pointer in struct model_layer */
    enum model_dim cols, rows; /* inputs, outputs; rows MODEL_DIM_ONE: a vector, which is F32 */
};

struct model_arch {
    const char *name; /* as in general.architecture; keys begin with it */
    enum model_rope rope;
    const struct model_tensor_row *tensors;
    size_t n_tensors;
};

/* NULL for an architecture this build does not run. */
const struct model_arch *model_arch_find(struct gguf_str name);
/* "llama", for error texts. */
const char *model_arch_names(void);
