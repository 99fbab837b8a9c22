/* Private to the scheduler's files: what is told, counted and published of its decisions (see parts.h).
 * Thread: the scheduler's; what is told lies behind locks of its own. Tests: tests/unit/test_sched.c */
#pragma once
#include "sched/private.h"

/* events.c */
int events_init(struct placement_ring *ring);
void events_clear(struct placement_ring *ring);
/* id and time are filled in. reason may be NULL. */
void events_add(struct sched *s, struct sched_placement e, const struct job *j, const char *reason);
int32_t events_slot(const struct sched *s, uint32_t history); /* SLOTS_NONE: SCHED_NONE */

/* placed.c */
int placed_init(struct placed_ring *ring);
void placed_clear(struct placed_ring *ring);
struct placed_why {
    const char *reason, *sentence;
    bool asked, by_builtin; /* the policy was asked */
    uint64_t generation;
    double loss;
    uint64_t tokens_lost;
    const double *candidate_loss;
    bool table; /* with the table as it is now */
};
/* A decision about j as it is made, before the table changes; NULL when out of memory. */
struct sched_choice *placed_look(struct sched *s, struct job *j, const struct placed_why *why);
/* What became of it; c may be NULL and is taken over. */
void placed_add(struct sched *s, const struct job *j, struct sched_choice *c,
                const struct sched_placement *e);
void placed_begun(struct sched *s, const struct job *j, const struct miss *miss);

/* count.c */
struct count_begin {
    bool judged; /* it may use what is kept */
    struct miss miss;
    uint64_t back; /* the request whose next turn it is; 0: none */
};
/* A job is to begin for the first time, with the first n tokens of `source`; before the table changes. */
struct count_begin count_judge(struct sched *s, struct job *j, uint32_t source, uint32_t n);
/* It has. */
void count_begun(struct sched *s, struct job *j, uint32_t n, const struct count_begin *b);
/* A history is about to lose its end or all. */
void count_lost(struct sched *s, uint32_t at, enum miss_reason reason);
/* n tokens of j came; before_ns: when the one before them did, 0: there was none. */
void count_tokens(struct sched *s, const struct job *j, uint32_t n, uint64_t before_ns);
void count_end(struct sched *s, const struct job *j, enum sched_stop stop);
/* A job has ended, and its history stays at j->at. */
void count_left(struct sched *s, const struct job *j);

/* status.c */
const char *status_state_name(uint32_t state); /* "blank", "expired", "protected" */
int status_init(struct sched *s);
void status_clear(struct sched *s);
void status_publish(struct sched *s, const char *doing);
