/* Visits (private to the scheduler's files): others reach into a history, one at a time: to read it out, to
 * bring one in, to empty it. A visitor's thread leaves a call and waits; the scheduler answers calls between
 * windows, no more than VISIT_MS of them while requests run.
 *
 * A slot that is visited is excluded, and main runs nothing: requests are placed elsewhere. What comes in
 * lies beside the histories until it is complete; memory that requests need is taken from it before they
 * wait. Lock: visits.lock, a leaf, guards the calls. Tests: tests/unit/test_slotio.c */
#pragma once
#include "sched/slotfile.h"
#include "slots/slots.h"
#include <pthread.h>

struct sched;

enum visit_what {
    VISIT_ERASE,  /* `n`: the tokens that were there */
    VISIT_LEAVE,  /* a history is to be read out: `history`, `tokens` (to be freed) */
    VISIT_GET,    /* from token `at` on: whole pieces into `bytes`, `n` tokens of them */
    VISIT_ENTER,  /* one of `history.n_tokens` is to be brought in */
    VISIT_PUT,    /* n tokens of pieces behind the first `at`; `taken` of them were taken */
    VISIT_COMMIT, /* it is complete: from now on it lies at the index, with `history` and `tokens` */
    VISIT_END,    /* of both kinds, however they went; after VISIT_COMMIT too */
};

struct visit_call {
    struct visit_call *next;
    enum visit_what what;
    uint32_t index, at, n, taken;
    unsigned char *bytes;
    size_t size; /* of `bytes` */
    size_t token_bytes;
    struct slotfile_history history;
    int32_t *tokens;
    int result;
    char err[256];
    bool done;
};

struct visits {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    struct visit_call *first, *last;
    bool made;

    /* The scheduler's. */
    enum visit_what kind; /* VISIT_LEAVE, VISIT_ENTER; VISIT_ERASE: nobody is there */
    uint32_t index;
    uint64_t version; /* of the history that is read out */
    uint32_t n;       /* its tokens, or those that are to come in */
    bool gave_way;    /* nothing comes in any more */
};

int visits_init(struct visits *v);
void visits_clear(struct visits *v);
/* [visitor] Leaves a call and waits for its answer. */
int visits_call(struct sched *s, struct visit_call *c);

/* [scheduler] Answers one call; false when there was none. */
bool visits_serve(struct sched *s);
/* Memory is needed: what has come in so far goes, and what it was to replace is spared no longer. False when
 * nothing comes in. */
bool visits_give_way(struct sched *s);
/* Main is being saved or restored: it is for no request until then, as a slot is that is excluded. */
bool visits_main(const struct sched *s);
/* The history that must not lose its end now, because it is the one to be replaced; SLOTS_NONE. */
uint32_t visits_spared(const struct sched *s);
/* The scheduler ends: what has come in goes. Nobody may be visiting. */
void visits_close(struct sched *s);
