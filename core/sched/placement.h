/* Placement events: where requests ran, what was kept and what was lost, the last SCHED_PLACEMENTS of them.
 * Lengths only, never text. Each is also a line of the log at debug level. Tests: tests/unit/test_sched.c */
#pragma once
#include "sched/sched.h"

#define SCHED_PLACEMENTS 96u
#define SCHED_REASON_SIZE 32

enum sched_placement_kind {
    SCHED_PLACE,           /* a request runs in `slot`; its first `tokens` come from `source` */
    SCHED_CONTINUE,        /* the same, where the conversation it continues lay */
    SCHED_RESTORE,         /* a request runs on main with what slot `source` keeps */
    SCHED_PARK,            /* main's `tokens` are kept in `slot` too */
    SCHED_PARK_SKIP,       /* they are not, for `reason` */
    SCHED_OVERWRITE,       /* what `slot` held gives way: `tokens` that no other history has */
    SCHED_EVICT,           /* `slot` gave up its last `tokens` for lack of memory */
    SCHED_PROMOTE,         /* a request goes on in `slot` */
    SCHED_BACK_TO_SOLO,    /* a request goes on on main, from slot `source` */
    SCHED_PAD,             /* a padded window wrote over what `slot` held */
    SCHED_REQUEUE,         /* the request in `slot` waits again, for `reason` */
    SCHED_LOAD,            /* `slot` holds `tokens` from a file */
    SCHED_ERASE,           /* `slot` was emptied of `tokens`: it was asked for */
    SCHED_PLACEMENT_KINDS, /* those that are counted */
    SCHED_RELOAD = SCHED_PLACEMENT_KINDS, /* another policy is in use: `generation`, its name is the reason */
    SCHED_RELOAD_FAILED,                  /* all is as it was */
    SCHED_EVENT_KINDS,
};

struct sched_placement {
    uint64_t id;      /* 1, 2, 3, ... */
    uint64_t time_ns; /* wall clock */
    enum sched_placement_kind kind;
    int32_t slot, source; /* or SCHED_MAIN, SCHED_NONE */
    uint32_t tokens;
    uint32_t took_us;         /* of parks, moves and forks: while they were made nothing else ran */
    uint64_t job, client_key; /* 0: nobody's */
    char request_id[SCHED_ID_MAX + 1];
    uint64_t generation; /* of the policy in use */
    char reason[SCHED_REASON_SIZE];
};

const char *sched_placement_name(enum sched_placement_kind kind); /* "park_skip" */
/* [any thread] The configuration was read again, with this outcome. */
void sched_placements_reloaded(struct sched *s, bool ok, const char *policy, uint64_t generation);
/* [any thread] From now on fn(arg) is called after each new event, on any thread, and must not
 * block; NULL: no more, and when this returns none is under way. */
void sched_placements_watch(struct sched *s, void (*fn)(void *arg), void *arg);
/* [any thread] Those after `after` (an id; 0: all there are), oldest first; returns how many. */
size_t sched_placements_get(struct sched *s, uint64_t after, struct sched_placement ret[SCHED_PLACEMENTS]);
