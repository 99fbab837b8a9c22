/* Slots (private to the scheduler): where conversations lie, and which one a prompt continues.
 *
 * A slot keeps a session and the tokens that were fed to it, its history. An idle slot's history stays until
 * another request takes the slot or the pool needs its blocks. Thread: the scheduler's alone. Must not know:
 * jobs, HTTP, the time (order of use is a counter). Tests: tests/unit/test_sched.c */
#pragma once
#include "engine/engine.h"

struct slot {
    struct session *session;
    int32_t *tokens; /* the history; n == session_len(session) */
    uint32_t n, cap;
    uint64_t last_use; /* a counter: higher is later */
    bool busy;
};

struct slots {
    struct engine *engine;
    uint32_t n, idle;
    uint64_t uses;
    struct slot *at;
};

int slots_init(struct slots *s, struct engine *e, uint32_t n);
void slots_clear(struct slots *s);

/* Takes an idle slot for a prompt and puts into it the longest prefix (at most n - 1 tokens) that any history
 * shares with the prompt; none of it when !reuse. wanted: that slot if it is idle, -1 for any. -EBUSY when no
 * slot is idle; -ENOMEM, and then nothing was taken. */
int slots_take(struct slots *s, const int32_t *tokens, uint32_t n, int32_t wanted, bool reuse,
               uint32_t *ret_slot, uint32_t *ret_shared);
/* The slot becomes idle and keeps its history. */
void slots_release(struct slots *s, uint32_t slot);
/* Makes room for n more tokens in a history, so that slots_append cannot fail. */
int slots_reserve(struct slots *s, uint32_t slot, uint32_t n);
/* Notes tokens that the engine has appended to the slot's session. */
void slots_append(struct slots *s, uint32_t slot, const int32_t *tokens, uint32_t n);
/* Cuts idle histories from their ends, least recently used first, until `wanted` blocks of the pool are free.
 * False when all idle histories are gone and it still has fewer. */
bool slots_give_up(struct slots *s, uint32_t wanted);
