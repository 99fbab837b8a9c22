/* Decision: one question a policy was asked, with the table it was asked about and what was answered.
 *
 * A decision on the scheduler's stack borrows everything it points to. policy_decision_new makes a counted
 * copy in one block, which does not change any more and may be kept and read by any thread: that is what
 * shadows, the trace and whoever else listens are given. Copies are made only while somebody listens.
 *
 * Must not know: who asked, what a good answer is, the time. Tests: tests/unit/test_decision.c */
#pragma once
#include "abi/policy.h"
#include <stdbool.h>

enum policy_call {
    POLICY_CALL_PLACE,
    POLICY_CALL_PARK,
    POLICY_CALL_STATE,
    POLICY_CALL_SUPERSEDED,
    POLICY_CALLS,
};

/* "place", "park_destination", "cache_state", "superseded_slots" */
const char *policy_call_name(enum policy_call call);

/* A checked answer. Which fields mean something is said by the call; the others are 0 or NULL. Slots are
 * indexes. */
struct policy_answer {
    int result;                       /* POLICY_DECIDED or POLICY_NONE */
    uint32_t slot;                    /* place, park: POLICY_NO_SLOT with POLICY_NONE */
    uint32_t source_kind, source;     /* place: POLICY_SOURCE_* */
    double loss;                      /* place */
    uint64_t tokens_lost;             /* place */
    const char *reason;               /* place, park: its name, */
    const char *sentence;             /* and what it says to people; NULL: not known */
    const double *candidate_loss;     /* place: [n_slots], NaN where not considered; or NULL */
    const struct policy_worth *worth; /* cache_state: [n_slots + 1], main last (blank where there is none) */
    const uint64_t *superseded;       /* superseded_slots: [n_slots / 64 + 1] words, slot i is bit i % 64 */
    bool by_builtin;                  /* instead of the policy, which gave no legal answer */
};

struct policy_decision {
    uint64_t id;      /* 1, 2, 3, ... in this process; 0: not numbered */
    uint64_t time_ns; /* wall clock */
    uint64_t job;     /* of the request; 0: there is none */
    uint32_t took_ns; /* the call, checks included */
    enum policy_call call;
    bool for_display; /* nothing was done with the answer but to show it */
    const char *policy;
    uint64_t generation;                    /* of the policy, as /metrics has it; 0: not known */
    const struct policy_snapshot *snapshot; /* of a copy: elements at our own sizes */
    const struct policy_request *request;   /* NULL where the call has none */
    uint32_t placing;                       /* park: as in policy_host_park */
    struct policy_answer answer;
    size_t size; /* of a copy: bytes, for whoever keeps many; it grows with the square of the slots */
};

/* Copies what `from` holds and points to, at our own sizes of the structs. -ENOMEM, or -EINVAL for a table
 * beyond all bounds (more than 1,024 slots or 65,536 bins). The caller has the one reference. */
int policy_decision_new(const struct policy_decision *from, struct policy_decision **ret_decision);
/* [any thread] Returns d. */
struct policy_decision *policy_decision_ref(struct policy_decision *d);
/* [any thread] NULL is fine. */
void policy_decision_unref(struct policy_decision *d);

/* What a policy declares of the structs it is given to read; 0 and anything smaller: ours. */
struct policy_table_sizes {
    uint32_t snapshot, history, group, returns;
};

/* A copy of a table at the larger of our sizes and these, what lies beyond ours zero. Freed with free().
 * -EINVAL also for a size above 4,096. */
int policy_table_copy(const struct policy_snapshot *from, const struct policy_table_sizes *sizes,
                      struct policy_snapshot **ret_snapshot);

/* ---- those who listen ---- */

struct policy_listeners;

#define POLICY_LISTENERS_MAX 32u /* two sets of shadows while one replaces the other, a trace, and more */

struct policy_listener {
    /* [scheduler] Must neither wait nor allocate: takes a reference of d, or drops it and counts. */
    void (*offer)(void *arg, struct policy_decision *d);
    void *arg;
};

int policy_listeners_new(struct policy_listeners **ret_listeners);
void policy_listeners_free(struct policy_listeners *l); /* nobody offers any more */
/* [any thread] -ENOSPC when there are POLICY_LISTENERS_MAX. */
int policy_listeners_add(struct policy_listeners *l, struct policy_listener one);
/* [any thread] When it returns, `one` is not called any more. */
void policy_listeners_remove(struct policy_listeners *l, struct policy_listener one);
/* [any thread] Whether an offer would reach anybody: an atomic read. l may be NULL: nobody. */
bool policy_listeners_any(const struct policy_listeners *l);
/* [scheduler] Numbers `d`, copies it and hands the copy to all; does nothing when nobody listens. Returns 0,
 * or what policy_decision_new said: then nobody is told of this one. Lock: held while listeners are called, a
 * leaf but for those of the listeners' queues. */
int policy_listeners_offer(struct policy_listeners *l, struct policy_decision *d);
