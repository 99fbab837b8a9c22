/* Shadows: policies that answer the same questions beside the one in use, each on a thread of its own. What
 * they say is compared with what was done, counted, and thrown away.
 *
 * They agree when they would do the same: place: same slot and same source; park: same slot, or neither;
 * cache_state: every history in the same state, and memory given up in the same order; superseded_slots: the
 * same slots. A decision of the built-in instead of the policy in use counts like any other. An answer that
 * is not legal is a breach, and no disagreement.
 *
 * Thread: replaced by the loader, read by any; the lock is a leaf but for the listeners'. Must not know: the
 * scheduler, what a good answer is. Tests: tests/unit/test_shadow.c, tests/unit/policy_stress.c */
#pragma once
#include "policy/decision.h"
#include <stddef.h>

#define POLICY_SHADOWS_MAX 8u

struct policy_loaded;
struct policy_shadows;

struct policy_shadow_status {
    char name[32], version[64], digest[65];
    uint64_t asked[POLICY_CALLS], agreed[POLICY_CALLS], disagreed[POLICY_CALLS], breaches[POLICY_CALLS];
    uint64_t dropped; /* decisions it was not asked about: its queue was full */
    bool stuck;       /* in a call for more than a second */
};

int policy_shadows_new(struct policy_listeners *l, struct policy_shadows **ret_shadows);
/* Stops all. */
void policy_shadows_free(struct policy_shadows *s);

/* These instead of those there are; their counts begin at 0. Takes references of its own. All or nothing:
 * the new ones run before an old one is stopped. An old one that hangs in a call is left behind after a
 * second: returns how many, whose threads go on for as long as their calls. -E2BIG for more than
 * POLICY_SHADOWS_MAX, -ENOMEM and what pthread_create says; err has the text. */
int policy_shadows_replace(struct policy_shadows *s, struct policy_loaded *const *policies, size_t n,
                           char *err, size_t errlen);

/* [any thread] Fills up to POLICY_SHADOWS_MAX and returns how many there are. */
size_t policy_shadows_status(struct policy_shadows *s, struct policy_shadow_status ret[POLICY_SHADOWS_MAX]);
