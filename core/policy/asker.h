/* Asker: puts decisions, as they were, to one policy: for shadows, the command line and measurements. The
 * host does the asking, so answers are checked the same way; but nobody answers instead.
 *
 * Thread: its owner's. Must not know: what was answered before. Tests: tests/unit/test_shadow.c */
#pragma once
#include "policy/decision.h"
#include <stddef.h>

struct policy_loaded;
struct policy_asker;

/* Takes a reference. -ENOMEM. */
int policy_asker_new(struct policy_loaded *p, struct policy_asker **ret_asker);
void policy_asker_free(struct policy_asker *a); /* NULL is fine */
/* Asks what d asked; d's own answer is not looked at. *ret_answer is valid until the next call. -EPROTO: the
 * answer was not legal, and err says why ("place: slot 9 of 4"); -ENOMEM or -EINVAL: the table cannot be laid
 * out, err says so. */
int policy_asker_ask(struct policy_asker *a, const struct policy_decision *d,
                     struct policy_answer *ret_answer, char *err, size_t errlen);
