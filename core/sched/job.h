/* Private to the scheduler's files: a job, from submit to its last event.
 * Thread: the scheduler's, but where a field says otherwise. Tests: tests/unit/test_sched.c */
#pragma once
#include "model/textout.h"
#include "sched/sched.h"
#include "slots/prompt.h"
#include <stdatomic.h>

struct job {
    uint64_t id;
    struct job *next;           /* in the waiting list */
    atomic_bool cancel, paused; /* written by any thread, read between windows */
    bool waiting;               /* admission.lock; has no slot */
    uint32_t request_flags;
    uint64_t client_key, session_key, parent_key, line_key, salt;
    char request_id[SCHED_ID_MAX + 1];
    int answers;

    int32_t *seq; /* the prompt and what was generated */
    uint32_t n_seq, cap_seq, n_prompt;
    uint32_t max_new; /* > 0, and fits in the context */
    bool cache_prompt;
    int32_t id_slot;
    bool one_of_several;         /* answers to its prompt */
    bool want_tokens;            /* logprobs were asked for */
    struct slots_prompt *prompt; /* what it had to read when it began to wait: some or all of seq */
    struct sampler_bias *bias;
    struct sampler *sampler;
    struct textout *textout;
    size_t stop_index; /* of the stop string that ended it */
    void (*on_event)(void *arg, const struct sched_event *ev);
    bool (*asks_tool)(void *arg);
    bool one_tool;
    void *arg;

    bool running, was_started;
    bool requeued;                  /* at least once */
    bool aged;                      /* had waited so long that it went before all others */
    uint32_t at;                    /* while running: its history */
    uint32_t flying;                /* tokens of it in a window under way; 0: it is in none */
    int32_t slot;                   /* the same, or where it was last, as others name it */
    uint32_t interrupted, returned; /* how often others were read first, how often it went back to main */
    uint64_t peer;                  /* the job `peer_shared` was compared with */
    uint32_t peer_shared;
    struct sched_token *pending; /* chosen, but their text is not wholly out yet */
    size_t n_pending, cap_pending;
    uint32_t cached, generated, drafted, accepted;
    uint64_t submit_ns, wait_ns, start_ns, first_ns, last_ns;
};
