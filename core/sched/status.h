/* Status: what the scheduler tells of itself: an immutable record, replaced with each step, and before a job
 * is told that it has started or ended. Included by sched.h. Tests: tests/unit/test_sched_counts.c */
#pragma once
#include "policy/host.h"
#include <stdbool.h>
#include <stdint.h>

struct sched;

/* Times of requests, counted in bins: bin i holds those of at most sched_time_edges_s[i] seconds that are
 * above the edge before, the last one all that are longer. */
#define SCHED_TIME_EDGES 22u
extern const double sched_time_edges_s[SCHED_TIME_EDGES];
struct sched_times {
    uint64_t bins[SCHED_TIME_EDGES + 1];
    uint64_t total_ns;
};

/* Why prompts were read although they might have been known (slots/misses.h, whose order this is). */
#define SCHED_MISSES 7u
const char *sched_miss_name(uint32_t i); /* "slot_taken"; 0 is "none" */
struct sched_misses {
    uint64_t prompts[SCHED_MISSES], tokens[SCHED_MISSES];
};

#define SCHED_PLACEMENT_KINDS_MAX 16u
struct sched_tally {
    uint64_t stopped, cut_off;      /* completed requests: by themselves, by a limit of length */
    uint64_t read_tokens;           /* prompt tokens that were read; those of a requeued job each time */
    struct sched_times first_token; /* from submit to the first token */
    struct sched_times between;     /* from token to token of a request */
    struct sched_times whole;       /* from submit to the end of completed ones */
    struct sched_times queued;      /* from submit to a place */
    struct sched_misses misses;     /* of requests that may use what is kept */
    uint64_t placements[SCHED_PLACEMENT_KINDS_MAX], placement_tokens[SCHED_PLACEMENT_KINDS_MAX];
};

struct sched_slot_status {
    bool busy, superseded;
    uint64_t job;     /* while busy */
    uint64_t request; /* the job that it holds most from: the running one or the last; 0: none */
    uint32_t tokens, turn_tokens, turns;
    uint32_t cached;         /* what that one found of its prompt when it came */
    const char *stop_reason; /* "none", "end_turn", "tool_use", "length", "cancelled" */
    const char *state;       /* "blank", "expired", "protected": until ttl_s after last use */
    uint64_t last_use_ns;    /* monotonic clock; 0: never */
    uint64_t client_key;
    double ttl_s, retention, value;
};

struct sched_status {
    uint64_t step, last_step_ns; /* monotonic clock */
    uint32_t running, waiting, slots;
    /* started = completed + cancelled + failed + running + waiting: a request counts as started when the
     * scheduler takes it in. */
    uint64_t started, completed, cancelled, failed;
    uint64_t prompt_tokens, cached_tokens, generated_tokens, drafted_tokens, accepted_tokens;
    uint32_t kv_blocks, kv_blocks_used, kv_block_tokens;
    uint64_t kv_bytes;
    double prompt_tokens_per_s; /* as measured lately; 0: not yet */
    const char *doing;          /* "idle", "reading a prompt", "decoding" */
    bool device_lost;           /* the last window failed because a device no longer answers */
    struct policy_host_status policy;
    struct sched_tally tally;
    struct sched_slot_status slot[]; /* `slots` of them and main */
};
/* [any thread] A copy, to be freed with free(); NULL only when out of memory. Does not wait for the
 * scheduler. */
struct sched_status *sched_status_get(struct sched *s);
