/* Policy host: asks the policy in use the four questions and trusts no answer.
 *
 * Every answer is checked against the snapshot it was given for; one that is not legal is a breach: it is
 * counted, told to the caller, and the built-in policy answers that call. So whoever asks always has a legal
 * answer. Three breaches within a minute put the policy into quarantine: the built-in answers everything
 * until another generation is published. The host lays out requests and answers at the sizes the policy was
 * built with, times each call, and marks that it is inside one.
 *
 * A group of decisions that belong together is asked between policy_host_pin and policy_host_unpin: all of it
 * is answered by the same generation, and nothing may be asked outside.
 *
 * Thread: its owner's, the scheduler's (a host's answers share its memory). Must not know: what a good
 * decision is, tokens, the engine, HTTP, the time (it is given a clock). Tests: tests/unit/test_host.c,
 * tests/unit/test_seat.c, tests/unit/test_builtin.c, tests/unit/policy_swap_stress.c */
#pragma once
#include "abi/policy.h"
#include "policy/decision.h"
#include "policy/marker.h"
#include "policy/seat.h"
#include "slots/snapshot.h"

/* The policy that is linked in; no `create` is needed before it is asked. */
extern const struct slot_policy policy_builtin;

struct policy_host;

struct policy_breach { /* valid during the call only */
    enum policy_call call;
    const char *what; /* "place: slot 9 of 4" */
    const struct policy_snapshot *snapshot;
    const struct policy_request *request; /* NULL where the call has none */
    uint32_t placing;                     /* park: as in policy_host_park */
    bool quarantined;                     /* this one was the third within a minute */
};

struct policy_host_options {
    struct policy_seat *seat; /* whose policy is asked; NULL: the built-in alone */
    uint64_t (*now_ns)(void); /* monotonic; NULL: time stands still */
    void (*on_breach)(void *arg, const struct policy_breach *breach); /* may be NULL */
    void *arg;
};

struct policy_host_place {
    uint32_t slot;
    uint32_t source_kind, source; /* POLICY_SOURCE_*; a slot's index */
    double loss;
    uint64_t tokens_lost;
    const char *reason, *sentence; /* of the policy that answered; valid until unpinned */
    const double *candidate_loss;  /* [n_slots], NaN where not considered; valid until the next call */
    bool by_builtin;               /* instead of the policy */
};

struct policy_host_park {
    uint32_t slot;
    const char *reason, *sentence;
    bool by_builtin;
};

#define POLICY_CALL_BUDGET_NS 1000000u /* a call that takes longer is counted as slow */
#define POLICY_TIME_BINS 14u
/* Upper edges of all bins but the last, which has none: 1, 2, 5, ... us up to 1 s. */
extern const uint64_t policy_time_edges_ns[POLICY_TIME_BINS - 1];

struct policy_call_counts { /* since the host was made, over all generations */
    uint64_t calls, breaches, slow, by_builtin;
    uint64_t time_ns; /* of the policy in use alone, as the next */
    uint64_t times[POLICY_TIME_BINS];
};

struct policy_host_status {
    char name[POLICY_NAME_SIZE], version[64], digest[65];
    uint64_t generation;  /* 1, 2, ...: as last pinned */
    bool quarantined;     /* that one is */
    uint64_t quarantines; /* how often one was */
    struct policy_call_counts call[POLICY_CALLS];
};

/* n_slots: 1..SLOTS_MAX. -EINVAL, -ENOMEM. */
int policy_host_new(const struct policy_host_options *o, uint32_t n_slots, struct policy_host **ret_host);
void policy_host_free(struct policy_host *h); /* NULL is fine */

/* From now on the policy in use is asked. True when it is another generation than the last time: snapshots
 * must be laid out anew (policy_host_sizes, snapshot_lay_out). Cannot fail. */
bool policy_host_pin(struct policy_host *h);
void policy_host_unpin(struct policy_host *h);
/* What snapshots for this host must be laid out for, as last pinned. */
struct snapshot_sizes policy_host_sizes(const struct policy_host *h);
const char *policy_host_name(const struct policy_host *h); /* as last pinned, as is the generation */
uint64_t policy_host_generation(const struct policy_host *h);
void policy_host_status(const struct policy_host *h, struct policy_host_status *ret_status);
/* [any thread reads it] Where the host's calls are marked; lives as long as the host. */
const struct policy_marker *policy_host_marker(const struct policy_host *h);

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
