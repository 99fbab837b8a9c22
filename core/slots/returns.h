/* Returns: how soon conversations come back, learned per stop reason and handed to policies.
 *
 * When a request ends, its history waits for the conversation's next turn, which comes or does not, until the
 * history is lost. A wait counts as at risk in each bin of ages it reached, and as returned in the one it
 * ended in when the next turn came; a lost one just stops counting, so that histories which were given up
 * early do not look like conversations that nobody wanted. Waits that still go on count as far as they are.
 *
 * Thread: the scheduler's. Must not know: policies (only their words), what time it is.
 * Tests: tests/property/returns_model.c */
#pragma once
#include "abi/policy.h"
#include "slots/slots.h"

/* Half octaves from 250 ms to 36 hours, below them one from 0 and above them one without end. */
#define RETURNS_BINS 40u

struct returns;

/* max_waits: how many histories there can be. */
int returns_new(uint32_t max_waits, struct returns **ret_returns);
void returns_free(struct returns *r);

/* A request ended with this POLICY_STOP_*. Waits beyond max_waits push out the one that began first. */
void returns_wait(struct returns *r, uint64_t request_key, uint32_t stop_reason, int64_t now_ns);
/* The turn that follows that request came at at_ns, which may be past already. Unknown keys are ignored. */
void returns_back(struct returns *r, uint64_t request_key, int64_t at_ns);
/* History i loses its end or all. As long as another one of the same request is there nothing is lost. */
void returns_lost(struct returns *r, const struct slots *s, uint32_t i, int64_t now_ns);
/* What is known now: POLICY_STOPS of them. Valid until the next call. */
const struct policy_returns *returns_at(struct returns *r, int64_t now_ns);
