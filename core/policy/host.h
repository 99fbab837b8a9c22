/* Policy host: asks a policy the four questions and trusts no answer.
 *
 * Every answer is checked against the snapshot it was given for; one that is not legal is a breach: it is
 * counted, told to the caller, and the built-in policy answers that call. So whoever asks always has a legal
 * answer. The host lays out requests and answers at the sizes the policy was built with.
 *
 * Thread: the scheduler's (a host's answers share its memory). Must not know: what a good decision is,
 * tokens, the engine, HTTP, the time. Tests: tests/unit/test_host.c, tests/unit/test_builtin.c */
#pragma once
#include "abi/policy.h"
#include "policy/decision.h"
#include "slots/snapshot.h"

/* The policy that is linked in; no `create` is needed before it is asked. */
extern const struct slot_policy policy_builtin;

struct policy_host;

struct policy_breach { /* valid during the call only */
    enum policy_call call;
    const char *what; /* "place: slot 9 of 4" */
    const struct policy_snapshot *snapshot;
    const struct policy_request *request; /* NULL where the call has none */
};

struct policy_host_options {
    const struct slot_policy *entry; /* NULL: the built-in */
    const void *self;
    void (*on_breach)(void *arg, const struct policy_breach *breach); /* may be NULL */
    void *arg;
};

struct policy_host_place {
    uint32_t slot;
    uint32_t source_kind, source; /* POLICY_SOURCE_*; a slot's index */
    double loss;
    uint64_t tokens_lost;
    const char *reason;           /* from the table of the policy that answered */
    const double *candidate_loss; /* [n_slots], NaN where not considered; valid until the next call */
    bool by_builtin;              /* instead of the policy */
};

struct policy_host_park {
    uint32_t slot;
    const char *reason;
    bool by_builtin;
};

struct policy_host_counts {
    uint64_t calls[POLICY_CALLS], breaches[POLICY_CALLS];
};

/* The entry must have been found sound (its strings and tables, its sizes within 4,096); it is borrowed, and
 * a shorter one than ours is filled up with nothing. -EINVAL, -ENOMEM. */
int policy_host_new(const struct policy_host_options *o, uint32_t n_slots, struct policy_host **ret_host);
void policy_host_free(struct policy_host *h);

/* What snapshots for this host must be laid out for. */
struct snapshot_sizes policy_host_sizes(const struct policy_host *h);
const char *policy_host_name(const struct policy_host *h); /* "builtin" */
struct policy_host_counts policy_host_counts(const struct policy_host *h);

/* snapshot: of as many slots as the host was made for; shared_prompt in it is of this request.
 * POLICY_DECIDED, or POLICY_NONE when no slot is free. */
int policy_host_place(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                      struct policy_host_place *ret_answer);
/* placing: the slot the request is being placed in, which keeps nothing else; POLICY_NO_SLOT: it runs on
 * main. POLICY_DECIDED, or POLICY_NONE when main's history is not to be kept; the reason says why. */
int policy_host_park(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                     uint32_t placing, struct policy_host_park *ret_answer);
/* What each history is worth: n_slots + 1, main last (blank where there is none), give_up never NaN. Valid
 * until the next call of this function. */
const struct policy_worth *policy_host_state(struct policy_host *h, const struct policy_snapshot *s);
/* Bit i % 64 of word i / 64: slot i is superseded. Valid until the next call of this function. */
const uint64_t *policy_host_superseded(struct policy_host *h, const struct policy_snapshot *s);
