/* Placed: why the last requests ran where they did: each decision with the table it was made over. Lengths,
 * ages and losses only; what tokens the prompts had is not kept.
 * Thread: written by the scheduler's, read by any. Tests: tests/unit/test_sched_counts.c */
#pragma once
#include "sched/placement.h"

#define SCHED_PLACED 500u      /* requests that are remembered */
#define SCHED_CHOICES_MAX 8u   /* decisions of one of them; later ones are left out */
#define SCHED_PLACED_FOUND 16u /* requests of one id that are told */

struct sched_row {                        /* a slot at the decision, or main */
    uint32_t tokens, turn_tokens, shared; /* shared: with the prompt */
    bool busy, excluded, held, reliable, superseded;
    const char *state;  /* "blank", "expired", "protected", as lately asked */
    double age_s;       /* since its last use; 0 while busy; NaN: never */
    double value, loss; /* loss: NaN where the slot was not considered */
};

struct sched_choice {
    enum sched_placement_kind kind;
    uint64_t time_ns; /* wall clock */
    int32_t slot, source;
    uint32_t tokens; /* as of the event of that kind */
    char reason[SCHED_REASON_SIZE], sentence[256];
    char policy[32]; /* who decided; "": nobody was asked */
    bool by_builtin; /* because the policy gave no legal answer */
    uint64_t generation;
    double loss; /* of the place chosen, as the policy says; NaN: not known */
    uint64_t tokens_lost;
    uint32_t n_rows; /* 0, or the slots and main */
    struct sched_row row[];
};

struct sched_placed {
    uint64_t job, client_key;
    char request_id[SCHED_ID_MAX + 1];
    uint32_t prompt_tokens, cached; /* cached: what was reused when it began first */
    uint64_t queue_ns;
    uint32_t miss, miss_tokens; /* sched_miss_name */
    bool judged;                /* it may use what is kept, and has begun */
    uint32_t n_choices;
    struct sched_choice *choices[SCHED_CHOICES_MAX]; /* as they were made */
};

/* [any thread] The requests of this id, the newest first: a request id, or the number of a job. Copies, to be
 * freed each with sched_placed_free. */
size_t sched_placed_get(struct sched *s, const char *id, struct sched_placed *ret[SCHED_PLACED_FOUND]);
void sched_placed_free(struct sched_placed *p);
