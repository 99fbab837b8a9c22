/* Private to the scheduler's files: windows, and what is read of prompts in them (step.c, reading.c).
 * Thread: the scheduler's. Tests: tests/unit/test_sched_groups.c, test_sched_queue.c */
#pragma once
#include "engine/engine.h"

struct sched;
struct job;

/* The window of a group: planned, then under way, then taken back. Main is a group of its own, the last. */
struct window {
    uint32_t group;
    struct flight *flight; /* NULL: none is under way */
    bool looked_at;        /* in the search for the next to begin */
    uint32_t n_rows, turn;
    uint32_t n_pads;         /* rows after those, of idle slots */
    uint32_t chunk;          /* prompt tokens among them */
    uint32_t n_draft;        /* guesses in the only row */
    uint64_t begun, back;    /* the how manieth of all windows it was to begin, and to come back; 0: never */
    uint64_t begin_ns;       /* when it was planned */
    struct engine_row *rows; /* [o.rows], padded [slots of a group] more */
    struct job **jobs;       /* [o.rows] */
};

/* reading.c: prompts. */
struct chunk { /* what of a chunk is still to be given out */
    uint32_t tokens;
    uint64_t ns; /* in terms of the rate */
    uint32_t taken, least;
};
struct chunk reading_chunk(const struct sched *s);
/* How many of j's tokens the chunk has room for; takes them. */
uint32_t reading_take(const struct sched *s, struct chunk *c, const struct job *j);
bool reading_is_full(const struct chunk *c);
/* The job of this group that reads in its window: the first one, then the one after `than`. NULL also when no
 * chunk may be read in it now. */
struct job *reading_next(const struct sched *s, uint32_t group, const struct job *than);
/* Tokens of a running job that neither its session nor a window under way has. */
uint32_t reading_left(const struct sched *s, const struct job *j);
/* It is awake and has its last token alone to feed, or will have when its window is back. */
bool reading_is_stream(const struct sched *s, const struct job *j);
/* Lets waiting jobs in: as many as the chunk has room for, then those that interrupt. */
void reading_let_in(struct sched *s);

/* step.c: windows. */
int step_init(struct sched *s);
void step_clear(struct sched *s);
/* The group that serves this history. */
uint32_t step_group(const struct sched *s, uint32_t at);
/* Begins what windows can begin and takes back those that finished. False when there was nothing to do. */
bool step_run(struct sched *s);
/* Takes back one that has finished; with `wait` one that will. False when there is none. */
bool step_take_back(struct sched *s, bool wait);
