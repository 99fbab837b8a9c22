/* Self-test: canned tables put to a policy before it is published. Each question is asked twice, in opposite
 * order and of copies in other places, through a host of its own: an answer that is not legal or not the same
 * again refuses the policy. Empty and full tables, one slot and many, unknown and extreme numbers.
 *
 * Thread: the caller's. Tests: tests/abi/test_load.c */
#pragma once
#include "policy/loaded.h"

/* -ENOEXEC with err: "self-test: place: slot 9 of 4"; or -ENOMEM. */
int policy_selftest(struct policy_loaded *p, char *err, size_t errlen);
