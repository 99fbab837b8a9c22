/* Private to the scheduler's files: what a job and the scheduler are made of.
 * Lock order: `admission.lock` and `status_lock` are leaves; neither is held while the other is taken, nor
 * while a job's on_event or the engine is called. */
#pragma once
#include "model/textout.h"
#include "sched/sched.h"
#include "sched/slots.h"
#include "util/queue.h"
#include <pthread.h>
#include <stdatomic.h>

struct job {
    uint64_t id;
    struct job *next;           /* in the waiting list */
    atomic_bool cancel, paused; /* written by any thread, read between windows */
    bool waiting;               /* admission.lock; has no slot */
    uint64_t client_key;

    int32_t *seq; /* the prompt and what was generated */
    uint32_t n_seq, cap_seq, n_prompt;
    uint32_t max_new; /* > 0, and fits in the context */
    bool cache_prompt;
    int32_t id_slot;
    bool want_tokens; /* logprobs were asked for */
    struct sampler_bias *bias;
    struct sampler *sampler;
    struct textout *textout;
    void (*on_event)(void *arg, const struct sched_event *ev);
    void *arg;

    bool running, was_started;
    uint32_t slot;
    struct sched_token *pending; /* chosen, but their text is not wholly out yet */
    size_t n_pending, cap_pending;
    uint32_t cached, generated;
    uint64_t submit_ns, start_ns, first_ns, last_ns;
};

/* Who is in: bounds the queue and finds jobs by their ids. */
struct admission {
    pthread_mutex_t lock;
    struct job **jobs; /* every job between submit and its last event */
    uint32_t n, cap, waiting;
    uint32_t rows, queue_max;
    uint64_t next_id;
};

struct sched {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    struct sched_options o;
    uint32_t n_vocab, blocks;
    pthread_t thread;
    struct queue *inbox; /* jobs, and `wake` at most once */
    char wake;
    atomic_bool wake_queued, stopping;
    struct admission admission;

    /* The scheduler thread's own. */
    struct slots slots;
    struct job *waiting; /* by age */
    uint32_t n_waiting;
    struct job **running; /* by start */
    uint32_t n_running, turn;
    struct engine_row *rows;
    struct job **row_jobs;
    double tokens_per_ms; /* measured speed of prompt reading; 0 until known */
    double decode_ms;     /* measured time of a window of streams alone; 0 until known */
    struct {
        uint64_t step, started, completed, cancelled, failed, prompt_tokens, cached_tokens, generated_tokens;
    } count;

    pthread_mutex_t status_lock;
    struct sched_status *status; /* status_lock: the published record */
    struct sched_status *spare;  /* the scheduler's, to be filled next */
};

/* job.c: a job's own life. */
int job_new(const struct sched *s, const struct sched_job *from, struct job **ret_job, char *err,
            size_t errlen);
void job_free(struct job *j);
void job_started(struct job *j);
/* `read` tokens of the prompt are in the session by now. */
void job_progress(struct job *j, uint32_t read);
/* Takes the logits after the job's last token: chooses the next, hands out text. Returns SCHED_STOP_NONE
 * while the job goes on; *ret_error is set with SCHED_STOP_FAILED. */
enum sched_stop job_choose(const struct sched *s, struct job *j, const float *logits, const char **ret_error);
/* The last event. */
void job_done(struct job *j, enum sched_stop stop, const char *error);

/* admission.c */
int admission_init(struct admission *a, uint32_t rows, uint32_t slots, uint32_t queue_max);
void admission_clear(struct admission *a);
/* Numbers the job and counts it as waiting. -EAGAIN, -EBUSY as in sched_submit. */
int admission_enter(struct admission *a, struct job *j, char *err, size_t errlen);
void admission_set_waiting(struct admission *a, struct job *j, bool waiting);
void admission_leave(struct admission *a, struct job *j);
enum admission_flag { ADMISSION_CANCEL, ADMISSION_PAUSE, ADMISSION_RESUME };
/* Sets a flag of the job with this id; false when there is none. */
bool admission_flag(struct admission *a, uint64_t id, enum admission_flag flag);

/* queue.c: the waiting list and the way into and out of slots. */
void queue_add(struct sched *s, struct job *j);
/* Ends jobs that were cancelled, then starts waiting ones, oldest first, as long as they fit. */
void queue_sweep(struct sched *s);
void queue_admit(struct sched *s);
/* Takes the youngest running job (paused ones first) out of its slot and back into the queue; false when only
 * one runs. */
bool queue_requeue_youngest(struct sched *s);
/* Ends a job, running or waiting, and frees it. */
void queue_end(struct sched *s, struct job *j, enum sched_stop stop, const char *error);

/* step.c: one window. False when there was nothing to run. */
bool step_run(struct sched *s);

/* status.c */
int status_init(struct sched *s);
void status_clear(struct sched *s);
void status_publish(struct sched *s, const char *doing);
