/* Model, inside: reading keys with their bounds, for model.c and model_rope.c alone. */
#pragma once
#include "model/model_arch.h"

struct model_reader {
    const struct gguf *f;
    const struct model_arch *arch;
    struct model *m;
    uint64_t used; /* tensors found so far */
    char *err;
    size_t errlen;
};

enum { MODEL_REQUIRED = 1 };

/* Words the refusal; returns `error`. */
__attribute__((format(printf, 3, 4))) int model_refuse(struct model_reader *r, int error, const char *fmt,
                                                       ...);
/* "llama.block_count" from "block_count"; returns `name`. */
const char *model_key_name(const struct model_reader *r, const char *suffix, char name[96]);
/* A count, or a number, in min..max; absent and not required: *ret stays. */
int model_take_count(struct model_reader *r, const char *suffix, unsigned flags, uint32_t min, uint32_t max,
                     uint32_t *ret);
int model_take_real(struct model_reader *r, const char *suffix, unsigned flags, double min, double max,
                    float *ret);

/* model_rope.c: everything about rotations but the tensor of factors; then, when that was found, its values.
 */
int model_read_rope(struct model_reader *r);
int model_check_rope_factors(struct model_reader *r);
