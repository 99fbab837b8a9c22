/* Seat: the policy in use. A new one is published while others still ask the old one; each of them holds a
 * reference from policy_seat_take on, so that it ends when the last of them lets go.
 *
 * Thread: any; the lock is a leaf and held for the exchange of a pointer. Must not know: what policies do.
 * Tests: tests/unit/test_seat.c, tests/unit/policy_swap_stress.c */
#pragma once
#include "policy/loaded.h"

struct policy_seat;

/* Takes a reference of its own; first has generation 1. -ENOMEM. */
int policy_seat_new(struct policy_loaded *first, struct policy_seat **ret_seat);
void policy_seat_free(struct policy_seat *s); /* nobody takes any more; NULL is fine */

/* Puts a policy in use (the same one again, if need be), with a reference of its own, and returns its
 * generation: one more than the last. Whoever asks from now on gets this one, free of quarantine. */
uint64_t policy_seat_publish(struct policy_seat *s, struct policy_loaded *p);
/* A reference to the policy in use; *ret_generation may be NULL. */
struct policy_loaded *policy_seat_take(struct policy_seat *s, uint64_t *ret_generation);
