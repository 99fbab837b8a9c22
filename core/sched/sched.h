/* Sched: takes jobs (tokens in, sampled tokens out) and runs them together in shared windows.
 *
 * Thread: one thread of its own owns slots, queue, sampling and the engine. Others only submit, cancel and
 * pause, through a bounded queue. It tells what happens through each job's on_event, called on the scheduler
 * thread, which must not block: an event is to be handed on. Must not know: JSON, sockets, CUDA. Never waits
 * on a socket: a slow reader pauses its own job only. Tests: tests/unit/test_sched.c, tests/e2e */
#pragma once
#include "engine/engine.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

struct sched;
struct policy_listeners;
struct policy_seat;

enum sched_stop { /* why a generation ended */
                  SCHED_STOP_NONE,
                  SCHED_STOP_EOG,       /* the model's own end */
                  SCHED_STOP_STRING,    /* a stop string */
                  SCHED_STOP_LENGTH,    /* max_new_tokens, or the context is full */
                  SCHED_STOP_CANCELLED, /* sched_cancel */
                  SCHED_STOP_FAILED,    /* `error` says why */
};

struct sched_token {
    struct sampler_choice choice; /* top logprobs as asked for */
};

#define SCHED_MAIN (-1) /* the solo session, where a slot is named */
#define SCHED_NONE (-2)
#define SCHED_ID_MAX 128

struct sched_timings {
    uint32_t cached, prompt, generated; /* prompt: tokens processed = prompt length - cached */
    uint32_t drafted, accepted;         /* tokens guessed ahead, and those that were right */
    double queue_ms, prompt_ms, generate_ms;
    double first_token_ms; /* from submit */
};

enum sched_event_kind {
    SCHED_EV_STARTED,  /* it has a place; `slot`, `timings.cached` */
    SCHED_EV_PROGRESS, /* a prompt chunk was read: `timings.prompt` tokens so far */
    SCHED_EV_TEXT,     /* text and/or tokens that became certain */
    SCHED_EV_DONE,     /* the last one, exactly once: stop, timings */
};

struct sched_event { /* valid during the call only */
    enum sched_event_kind kind;
    uint64_t job;
    int32_t slot;     /* or SCHED_MAIN; it may change while the job runs */
    const char *text; /* never splits a character, never holds the start of a stop string */
    size_t text_len;
    const struct sched_token
        *tokens; /* when the job asked for logprobs: those whose text is now wholly out */
    size_t n_tokens;
    enum sched_stop stop;
    size_t stop_index; /* of the stop string, with SCHED_STOP_STRING */
    const char *error;
    struct sched_timings timings;
};

/* request_flags: the same bits as in abi/policy.h. */
#define SCHED_REQUEST_SIDE 1u
#define SCHED_REQUEST_TOOLS 2u
#define SCHED_REQUEST_SUBAGENT 4u

struct sched_job { /* filled by the submitter, copied by sched_submit (tokens, stops and biases too) */
    const int32_t *tokens; /* the prompt, 1..context-1 */
    size_t n_tokens;
    struct sampler_params sampling;
    uint32_t max_new_tokens; /* 0: what fits in the context */
    const char *const *stops;
    const size_t *stop_lens;
    size_t n_stops;
    const int32_t *shown; /* control tokens whose text is part of the answer's, at most 8 */
    size_t n_shown;
    bool cache_prompt; /* reuse a kept prefix (default true in requests) */
    /* Answers to this prompt, each of them a job; of more than one the first to run reads it, and none runs
     * on main. 0 is 1. */
    uint32_t samples;
    int32_t id_slot;     /* -1: any; another one is honoured when that slot is idle */
    uint64_t client_key; /* for the per-client share of the queue; 0: nobody */
    /* What policies are told (abi/policy.h), keys of 63 bits; 0: not known. */
    uint64_t session_key, parent_key, line_key;
    uint32_t request_flags;
    uint64_t salt; /* jobs of different salts share nothing */
    /* For people: by what name to ask for it later (placed.h), at most SCHED_ID_MAX bytes are kept; may be
     * NULL. And whether the prompt holds answers, so is no first turn: 1 yes, -1 no, 0: its turns tell. */
    const char *request_id;
    int answers;
    void (*on_event)(void *arg, const struct sched_event *ev);
    /* [scheduler thread] Whether the answer, whose text was all handed out, ends by asking for a tool:
     * policies are told that the client is about to come back. NULL: it never does. */
    bool (*asks_tool)(void *arg);
    bool one_tool; /* the answer ends as soon as asks_tool says yes */
    void *arg;
};

struct sched_options {
    uint32_t context;         /* tokens of one request, prompt and answer */
    uint32_t slots;           /* conversations kept */
    uint32_t groups;          /* a divisor of slots: a window serves the slots of one; 0: one */
    bool padded;              /* windows have rows for idle slots too and destroy them (slots/padding.h) */
    uint32_t rows;            /* requests running at once, over all groups, <= slots */
    uint32_t queue_max;       /* waiting requests */
    bool by_arrival;          /* slots are taken as soon as they are free, and prompts read, in that order */
    uint32_t chunk_tokens;    /* longest prompt chunk, 512 */
    uint32_t max_pause_ms;    /* longest chunk between two decode windows of a stream */
    int32_t turn_token;       /* starts a turn; -1: the model has none */
    struct policy_seat *seat; /* whose policy decides, borrowed; NULL: the built-in */
    struct policy_listeners
        *listeners; /* who is told of decisions (policy/decision.h), borrowed; may be NULL */
    /* For tests: another source of monotonic times than util/clock, where not NULL; and to look over all
     * books after every step and abort where they differ. */
    uint64_t (*now_ns)(void);
    bool check;
};

/* Starts the thread. engine and tokenizer are borrowed and must outlive it. */
int sched_start(struct engine *e, const struct tokenizer *t, const struct sched_options *o,
                struct sched **ret_sched, char *err, size_t errlen);
/* Ends every job (DONE with SCHED_STOP_CANCELLED), joins the thread. */
void sched_stop(struct sched *s);

/* [any thread] *ret_job names it from now on. -EAGAIN: the queue is full (429); -EBUSY: this client already
 * holds its half of the queue (429); -ENOMEM; -EINVAL (err). on_event may be called before this returns. */
int sched_submit(struct sched *s, const struct sched_job *job, uint64_t *ret_job, char *err, size_t errlen);
/* [any thread] For how long, in nanoseconds, the request that waits longest has been there; 0: none waits. */
uint64_t sched_oldest_wait_ns(struct sched *s);
/* [any thread] The job ends within one window; unknown ids are ignored. */
void sched_cancel(struct sched *s, uint64_t job);
/* [any thread] A paused job generates nothing, and keeps its slot unless another job needs it. */
void sched_pause(struct sched *s, uint64_t job, bool paused);

/* [any thread] Looks around although nothing was submitted, so that a policy put in use shows at once. */
void sched_wake(struct sched *s);
/* [any thread] As the option of that name, at least 1; from the next chunk on. */
void sched_set_max_pause(struct sched *s, uint32_t ms);

/* The call of a policy that the scheduler is in at this moment. */
struct sched_inside {
    char policy[32];
    const char *function; /* "place", ... */
    uint64_t since_ns;    /* monotonic clock */
};
/* [any thread] False when it is in none. Waits for nobody: it also tells of a call that never returns. */
bool sched_inside_policy(const struct sched *s, struct sched_inside *ret_inside);

#include "sched/status.h"
