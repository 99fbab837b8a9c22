/* Feed: a thread that is handed decisions through a bounded queue. A full queue drops and counts: whoever
 * offers never waits. Bounded in bytes too, for tables of many slots are large.
 * Tests: tests/unit/policy_stress.c (for ThreadSanitizer), tests/unit/test_shadow.c */
#pragma once
#include "policy/decision.h"

#define POLICY_FEED_ITEMS 256u
#define POLICY_FEED_BYTES ((size_t)16 << 20)

struct policy_feed;

struct policy_feed_options {
    const char *thread_name; /* at most 15 characters */
    /* [the feed's thread] */
    void (*take)(void *arg, const struct policy_decision *d);
    /* [the feed's thread] Nothing will be taken any more: lets go of arg. */
    void (*end)(void *arg);
    void *arg;
};

/* On failure `end` is not called. */
int policy_feed_start(const struct policy_feed_options *o, struct policy_feed **ret_feed);
/* [any thread, until stopped] A listener's offer: takes a reference, or drops. */
void policy_feed_offer(void *feed, struct policy_decision *d);
uint64_t policy_feed_dropped(const struct policy_feed *f);
/* Nobody offers any more. What is queued is still taken (when `finish`) or dropped, then `end` is called.
 * Waits at most wait_ms for a thread that is held up; such a one is left behind, and ends by itself should it
 * ever come back. Returns whether it ended. NULL is fine. */
bool policy_feed_stop(struct policy_feed *f, bool finish, unsigned wait_ms);
