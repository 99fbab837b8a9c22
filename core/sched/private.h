/* Private to the scheduler's files: what the scheduler is made of.
 * Lock order: `admission.lock`, `status_lock`, `ring.lock`, `placed.lock` and `visits.lock` are leaves; none
 * is held while another is taken, nor while a job's on_event or the engine is called. `ring.watch_lock` is
 * held while the watcher of placement events is called, which may take locks of its own. */
#pragma once
#include "engine/drafts.h"
#include "model/textout.h"
#include "policy/host.h"
#include "sched/histories.h"
#include "sched/job.h"
#include "sched/placed.h"
#include "sched/placement.h"
#include "sched/visit.h"
#include "sched/windows.h"
#include "slots/giveup.h"
#include "slots/misses.h"
#include "slots/prompt.h"
#include "slots/returns.h"
#include "util/queue.h"
#include <pthread.h>
#include <stdatomic.h>

#define BLOCK_TOKENS 64u
#define LOOK_AHEAD 512u /* tokens of an answer that are reckoned with when a request is let in */

/* Who is in: bounds the queue and finds jobs by their ids. */
struct admission {
    pthread_mutex_t lock;
    struct job **jobs; /* every job between submit and its last event */
    uint32_t n, cap, waiting;
    uint32_t rows, queue_max;
    uint64_t next_id;
};

/* A waiting job as the next claim sees it. */
struct candidate {
    struct job *job;
    uint32_t source, shared, to_read; /* the history that shares most with it */
    bool aged;
};

/* Which waiting jobs continue a history. */
struct want {
    uint32_t n, n_requeued;
    const struct job *best; /* the one that shares most; NULL: none */
    uint32_t shared;
};

struct solo { /* what runs on main has drafts */
    struct drafts *drafts;
    uint64_t job; /* whose history the drafts know; 0: nobody's */
    uint32_t known;
    int32_t fed[1 + DRAFTS_MAX]; /* the row: its last token and the draft */
};

struct placement_ring {
    pthread_mutex_t lock;
    uint64_t next_id, wall_ns; /* wall clock - monotonic clock */
    struct sched_placement at[SCHED_PLACEMENTS];
    pthread_mutex_t watch_lock; /* held while the watcher is called */
    void (*watch)(void *arg);
    void *watch_arg;
};

struct placed_ring {
    pthread_mutex_t lock;
    uint32_t next;
    struct sched_placed **at; /* [SCHED_PLACED], NULL where none is yet */
};

/* Pushed when there is something to look at, and at most once in the queue. */
struct mark {
    atomic_bool queued;
};

struct sched {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    struct sched_options o;
    uint32_t n_vocab, blocks;
    pthread_t thread;
    struct queue *inbox;           /* jobs, and the two below at most once each */
    struct mark wake, window_back; /* what is pushed for sched_wake and others, and for a finished window */
    atomic_bool stopping;
    atomic_uint max_pause_ms;
    struct admission admission;

    /* The scheduler thread's own. */
    uint64_t now_ns;
    struct histories h;
    struct policy_host *host;
    struct snapshot *snapshot;
    uint64_t breach_logged_ns, breaches_unlogged;
    uint64_t *bytes; /* [slots + 1]: of the snapshot */
    size_t block_bytes;
    uint32_t *nothing;      /* [slots + 1] zeros: what a job that takes no prefix shares */
    uint64_t *superseded;   /* the last answer */
    size_t superseded_size; /* bytes */
    struct giveup *giveup;
    struct giveup_history *giveup_list; /* [slots + 2] */
    uint32_t *giveup_tokens;            /* [slots + 2] */
    struct job *waiting;                /* by age */
    uint32_t n_waiting;
    struct candidate *candidates; /* [slots + queue_max] */
    struct want *wants;           /* [slots + 1] */
    uint64_t blocked_until_ns;    /* no waiting job can go, and nothing has changed since that was found */
    struct job **running;         /* by start */
    uint32_t n_running;
    struct solo solo;
    struct visits visits;
    struct window *windows; /* [n_windows] */
    uint32_t n_windows;
    struct session *
        *pads;        /* [slots], what pad rows are computed for, empty in between; NULL: there are none */
    uint32_t *active; /* [2 * slots of a group]: of a padded window, and what it destroys */
    uint32_t n_flights, flights_max;     /* windows under way */
    uint32_t reads_max;                  /* prompts read at once while nobody decodes */
    uint64_t begun, n_back, chunk_begun; /* counts of windows; which was the last with a chunk */
    struct prompt_rate rate;
    double pace;      /* time that chunks took lately, in terms of what the rate says */
    double decode_ns; /* measured time of a window of streams alone; 0 until known */
    const char *doing;
    bool device_lost; /* the last window ended with that */
    uint64_t worth_ns;
    struct policy_worth *worth; /* [slots + 1], as of worth_ns, for the status */
    struct {
        uint64_t step, started, completed, cancelled, failed;
        uint64_t prompt_tokens, cached_tokens, generated_tokens, drafted_tokens, accepted_tokens;
    } count;

    struct sched_tally tally;
    struct misses *misses;
    struct returns *returns;

    struct placement_ring ring;
    struct placed_ring placed;
    pthread_mutex_t status_lock;
    struct sched_status *status; /* status_lock: the published record */
    struct sched_status *spare;  /* the scheduler's, to be filled next */
};

#include "sched/parts.h"
