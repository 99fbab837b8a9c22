/* Misses: why a prompt had to be read although its conversation had been here before.
 *
 * What histories lose is remembered: of the last ones overwritten or cut, keyed hashes of their blocks and of
 * a few exact lengths, never tokens. A prompt that starts is judged against the table and these. It is a miss
 * when it resumes no history (slots/prompt.h), or when a lost one had more of it than any has now.
 * Lengths in a lost reply are known to whole blocks, all others exactly.
 *
 * Thread: the scheduler's. Must not know: jobs, policies, the time.
 * Tests: tests/property/misses_model.c, against one that keeps all tokens */
#pragma once
#include "slots/prompt.h"

enum miss_reason {
    MISS_NONE, /* none: what there was is what it resumed */
    MISS_FIRST_TURN,
    MISS_SLOT_TAKEN,             /* another request took the slot of its history */
    MISS_REPLACED_ON_MAIN,       /* another one replaced it on main, and it was kept nowhere */
    MISS_EVICTED_MEMORY,         /* the end of its history was given up for want of memory */
    MISS_CLIENT_CHANGED_HISTORY, /* its conversation is known, but what it says of the past is not */
    MISS_RESTART,                /* it has answers in it and nothing of it is known: from before the start,
                                    or lost too long ago */
    MISS_REASONS,
};

const char *miss_reason_name(enum miss_reason reason); /* "slot_taken" */

#define MISSES_LOST 10000u /* histories that are remembered */

struct misses;

int misses_new(uint32_t n_lost, struct misses **ret_misses);
void misses_free(struct misses *m);

/* History i is about to lose its end or all, for a reason that is one of the three kinds of loss. One that
 * was cut before was noted then. */
void misses_note_lost(struct misses *m, const struct slots *s, uint32_t i, enum miss_reason reason);

struct miss {
    enum miss_reason reason;
    uint32_t tokens; /* a loss: those that had been known and were not reused; otherwise all that were not */
};
/* The prompt starts with `cached` reused tokens; call it before the table changes. has_answers: whether it
 * holds assistant turns. */
struct miss misses_judge(struct misses *m, const struct slots *s, struct slots_prompt *p, uint32_t cached,
                         bool has_answers);
