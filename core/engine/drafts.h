/* Drafts by prompt lookup: what came after the last tokens the last time they occurred, as a guess at what
 * comes next. A guess is verified by the engine in one window, so it changes how fast an answer comes and
 * never what it says.
 *
 * Every position is filed under a hash of the DRAFTS_KEY tokens that end there. A lookup walks the latest
 * earlier positions of the same key, takes the one with the longest common past (the latest of equals), and
 * copies what followed it. Bringing the index up to date costs as much as there are new tokens, whatever the
 * length of the history.
 *
 * How much is drafted follows what was accepted: all of it, and the next draft is twice as long; less, and it
 * is as long as what was accepted and one more. Where guesses keep failing, only longer matches are tried.
 *
 * Pure data; any thread, one at a time. Must not know: sessions, sampling, the time.
 * Tests: tests/unit/test_drafts.c */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define DRAFTS_KEY 3u         /* tokens that must agree at least */
#define DRAFTS_MATCH_MAX 32u  /* a longer common past counts as this long */
#define DRAFTS_CANDIDATES 16u /* earlier positions looked at */
#define DRAFTS_MAX 16u        /* tokens of a draft */

struct drafts;

int drafts_new(struct drafts **ret_drafts);
void drafts_free(struct drafts *d);
/* Another request: an empty history, lengths as at first. */
void drafts_reset(struct drafts *d);

/* The history is now these n tokens: what the index has of it before must be unchanged as far as `kept`
 * tokens. Call it whenever tokens were added, with the earlier length, or the history was cut. -ENOMEM. */
int drafts_update(struct drafts *d, const int32_t *tokens, uint32_t kept, uint32_t n);
/* At most `max` tokens that may follow the history given to drafts_update; returns how many. */
uint32_t drafts_propose(struct drafts *d, const int32_t *tokens, uint32_t max, int32_t *ret_draft);
/* How the last draft fared: `accepted` of `drafted` tokens. */
void drafts_result(struct drafts *d, uint32_t drafted, uint32_t accepted);
