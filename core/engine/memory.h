/* Memory: what lies in the memory of a stage's device besides keys and values: the weights of layers and the
 * rows of the window that is computed. Types alone; inside the engine. */
#pragma once
#include "kernels/ops.h"

/* Angles of positions: 0 of layers that see everything, 1 of those with a window, where the model has such.
 */
enum { ENGINE_MAX_ROPES = 2 };

struct layer_weights {
    struct ops_weight *q, *k, *v, *o, *gate, *up, *down;
    /* Device memory; what the model does not have is NULL. */
    float *attn_norm, *ffn_norm;
    float *q_bias, *k_bias, *v_bias;
    float *q_norm, *k_norm;                /* of each head */
    float *attn_post_norm, *ffn_post_norm; /* of what attention and feed forward add to the stream */
};

/* A stage's device memory of a window, token-major. */
struct scratch {
    float *x;         /* [max_tokens][n_embd]: the residual stream */
    float *added;     /* [max_tokens][n_embd]: what is normed before it is added; NULL where nothing is */
    float *picked;    /* [max_tokens][n_embd]: its rows that logits are wanted for; the last stage's alone */
    float *q, *att;   /* [max_tokens][n_head * head_dim] */
    float *k, *v;     /* [max_tokens][n_head_kv * head_dim] */
    float *gate, *up; /* [max_tokens][n_ff] */
    float *cos[ENGINE_MAX_ROPES], *sin[ENGINE_MAX_ROPES]; /* [max_tokens][rope_dims / 2] */
};
