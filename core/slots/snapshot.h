/* Snapshot builder: the slot table at one moment, as policies see it (abi/policy.h).
 *
 * All memory is taken once: building and laying out anew allocate nothing, and the same builder is used for
 * every decision. The elements are laid out at the sizes the loaded policy was built with, where those are
 * larger than ours.
 *
 * Thread: the scheduler's. Must not know: what a policy decides, the engine, the time.
 * Tests: tests/unit/test_slots.c, tests/property/slots_model.c */
#pragma once
#include "abi/policy.h"
#include "slots/rate.h"
#include "slots/slots.h"

struct snapshot;

struct snapshot_sizes { /* as a policy declares them; 0: ours */
    uint32_t snapshot, history, group, returns;
};

struct snapshot_input {
    int64_t now_ns;
    bool padding_safe;
    const uint32_t *shared_prompt; /* [n_slots + 1]; NULL: there is no request */
    const uint64_t *bytes;         /* [n_slots + 1]: memory each history holds alone; NULL: unknown */
    const struct prompt_rate *rate;
    uint64_t seed;
    const struct policy_returns *returns; /* [POLICY_STOPS] by stop reason; NULL: unknown */
};

/* -EINVAL when a size is above 4,096; -ENOMEM. */
int snapshot_new(const struct slots *s, const struct snapshot_sizes *sizes, struct snapshot **ret_snapshot);
void snapshot_free(struct snapshot *b);
/* Another layout from now on, for another policy. -EINVAL as above, else it cannot fail. */
int snapshot_lay_out(struct snapshot *b, const struct snapshot_sizes *sizes);

/* Fills and returns the builder's one snapshot; valid until the next build, or until the table changes (the
 * shared lengths are the table's own). A busy history is in use, so its last use is now. */
const struct policy_snapshot *snapshot_build(struct snapshot *b, struct slots *s,
                                             const struct snapshot_input *in);
