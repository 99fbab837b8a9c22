/* Histories (private to the scheduler): the slot table and the engine's sessions, kept as one.
 *
 * History i of the table (slots 0..n-1, main n) lies in sessions[i]: every change here is made to both, and
 * both hold as many tokens, but for histories that are not reliable, whose sessions are empty. Nothing here
 * copies keys or values: parking, moving and forking exchange block references. Functions that return int
 * fail with -ENOMEM (and what the table says of wrong arguments), and then the history at `to` may be lost,
 * but table and sessions still agree.
 *
 * Thread: the scheduler's. Must not know: jobs, policies, the time. Tests: tests/unit/test_sched.c,
 * speed: tests/unit/bench_histories.c */
#pragma once
#include "engine/engine.h"
#include "slots/slots.h"

struct histories {
    struct engine *engine;
    struct slots *table;
    struct session **sessions; /* [n + 1] */
    uint32_t n;                /* slots; main's index too */
    struct session *incoming;  /* what is being brought in from elsewhere; NULL: nothing */
};

int histories_init(struct histories *h, struct engine *e, const struct slots_options *o);
void histories_clear(struct histories *h);

/* As slots_begin: a request begins at `at` with the first n tokens of `source`. */
int histories_begin(struct histories *h, uint32_t at, uint32_t source, uint32_t n,
                    const struct slots_request *r);
/* As slots_append, after the engine took `taken` tokens of which the first n stay. The caller has reserved
 * them (slots_reserve). */
void histories_took(struct histories *h, uint32_t at, const int32_t *tokens, uint32_t n);
/* As slots_hand_over: promotion and back to solo. */
int histories_hand_over(struct histories *h, uint32_t from, uint32_t to, int64_t now_ns);
/* As slots_park, slots_swap, slots_move, slots_cut. */
int histories_park(struct histories *h, uint32_t to);
void histories_swap(struct histories *h, uint32_t a, uint32_t b);
int histories_move(struct histories *h, uint32_t from, uint32_t to);
/* As slots_put, with what `incoming` holds, which has that many tokens and is then empty. */
int histories_put(struct histories *h, uint32_t at, const struct slots_given *g);
void histories_cut(struct histories *h, uint32_t at, uint32_t n);
/* What the idle history at `at` says it holds is there no more: its record stays, not reliable, its blocks
 * are free. */
void histories_lose(struct histories *h, uint32_t at);

/* Blocks of the pool that nobody holds. */
uint32_t histories_free_blocks(const struct histories *h);
/* What must hold after every step: table and sessions agree, and the blocks in use are the distinct blocks
 * of the histories. False with text in err. Costs as much as there are blocks. */
bool histories_check(const struct histories *h, char *err, size_t errlen);
