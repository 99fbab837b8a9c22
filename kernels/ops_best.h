/* Ops best: what a device says of logits that stay with it: the best of them, and the sums that a choice
 * among them is reckoned with. Enough for a choice in almost every case, in 2 KB a row instead of 4 bytes a
 * token of the vocabulary. A leaf: includes nothing of ours. */
#pragma once
#include <stdint.h>

#define OPS_BEST 256u

struct ops_best {
    double sum[2]; /* over all of exp((logit - max) * scale): for scale 1, and for the row's own scale */
    float max;     /* -INFINITY when there is nothing else; the sums are 0 when it is no number */
    uint32_t n;    /* the smaller of OPS_BEST and the vocabulary */
    uint32_t id[OPS_BEST]; /* the higher logit first, the lower id among equals; NaN counts as minus
                              infinity */
    float logit[OPS_BEST];
};
