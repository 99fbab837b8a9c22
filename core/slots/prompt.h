/* Prompts against the table: how much of a prompt each history already holds.
 *
 * A prompt is hashed once, in blocks; then each history costs a binary search over its own hashes and one
 * comparison inside the block where they part. What was found is remembered and looked up again only for
 * histories that changed, so a waiting prompt can be asked at every window. Lengths rest on hashes until
 * slots_prompt_verify has compared the tokens: verify what is used.
 *
 * Thread: the scheduler's; a prompt itself may be made on any thread. Must not know: jobs, policies, the
 * time. Tests: tests/unit/test_slots.c, tests/property/slots_model.c; speed: tests/unit/bench_slots.c */
#pragma once
#include "slots/slots.h"

struct slots_prompt {
    const int32_t *tokens; /* borrowed */
    uint32_t n, turn_tokens;
    uint32_t opening; /* tokens before its first answer: the beginning a conversation is known by */
    bool has_answers; /* as its turn tokens tell: it is not the first turn of a conversation */
    uint64_t salt;
    /* Its own. */
    uint64_t (*hashes)[2];
    uint32_t *shared; /* [n_slots + 1], at most n - 1 each */
    struct slots_seen {
        uint64_t version;
        uint32_t n; /* length of the history when it was compared */
    } * seen;
};

/* -EINVAL for n of 0; -ENOMEM. */
int slots_prompt_new(const struct slots *s, const int32_t *tokens, uint32_t n, uint64_t salt,
                     struct slots_prompt **ret_prompt);
void slots_prompt_free(struct slots_prompt *p);

/* Common prefix with each history, n_slots + 1 lengths, at most n - 1 (one token must be read to have
 * logits), whether reliable or not. Valid until the next call for this prompt. */
const uint32_t *slots_prompt_shared(const struct slots *s, struct slots_prompt *p);
/* The reliable history that shares most, SLOTS_NONE when none shares anything; of equals main, then the
 * lowest index. */
uint32_t slots_prompt_longest(const struct slots *s, struct slots_prompt *p, uint32_t *ret_shared);
/* Whether the prompt continues history i (policy.h's word) and it is reliable. */
bool slots_prompt_continues(const struct slots *s, struct slots_prompt *p, uint32_t i);
/* Whether it is the next turn of the conversation that history i holds: it continues it, and not only in
 * what many conversations begin with. */
bool slots_prompt_resumes(const struct slots *s, struct slots_prompt *p, uint32_t i);
/* The same length as slots_prompt_shared's for history i, from the tokens themselves; remembered. */
uint32_t slots_prompt_verify(const struct slots *s, struct slots_prompt *p, uint32_t i);
