/* Private to the scheduler's files: what each of them does for the others. */
#pragma once
#include "sched/private.h"

struct placed_why;

/* job.c: a job's own life. */
int job_new(const struct sched *s, const struct sched_job *from, struct job **ret_job, char *err,
            size_t errlen);
void job_free(struct job *j);
void job_started(struct job *j, uint64_t now_ns);
/* `read` tokens of the prompt are in the session by now. */
void job_progress(struct job *j, uint32_t read, uint64_t now_ns);
/* Logits after a job's last token: number `i` of what a row of a flight wanted. */
struct job_logits {
    struct flight *flight;
    uint32_t row, i;
};

/* From those: chooses the next token, hands out text. Returns SCHED_STOP_NONE while the job goes on;
 * *ret_error is set with SCHED_STOP_FAILED. */
enum sched_stop job_choose(const struct sched *s, struct job *j, const struct job_logits *from,
                           const char **ret_error);
/* It waits again, for all it has: what it has to read is compared with the histories from now on. */
void job_wait_again(const struct sched *s, struct job *j);
/* What was held back, because it could have become a stop string, comes out: no more is chosen. */
void job_finish_text(struct job *j);
/* The last event. */
void job_done(struct job *j, enum sched_stop stop, const char *error, uint64_t now_ns);

/* admission.c */
int admission_init(struct admission *a, uint32_t rows, uint32_t slots, uint32_t queue_max);
void admission_clear(struct admission *a);
/* Numbers the job and counts it as waiting. -EAGAIN, -EBUSY as in sched_submit. */
int admission_enter(struct admission *a, struct job *j, char *err, size_t errlen);
/* When the one that has waited longest came; UINT64_MAX: none waits. */
uint64_t admission_oldest_ns(struct admission *a);
void admission_set_waiting(struct admission *a, struct job *j, bool waiting);
void admission_leave(struct admission *a, struct job *j);
enum admission_flag { ADMISSION_CANCEL, ADMISSION_PAUSE, ADMISSION_RESUME };
/* Sets a flag of the job with this id; false when there is none. */
bool admission_flag(struct admission *a, uint64_t id, enum admission_flag flag);

/* queue.c: the waiting list, its order, and who leaves. */
void queue_add(struct sched *s, struct job *j);
void queue_remove(struct sched *s, struct job *j);
/* Ends jobs that were cancelled, but those in a window under way. */
void queue_sweep(struct sched *s);
/* Fills s->wants, and s->candidates in the order in which they go, without paused ones; returns how many. */
uint32_t queue_order(struct sched *s);
/* Ends a job, running or waiting, and frees it. */
void queue_end(struct sched *s, struct job *j, enum sched_stop stop, const char *error);
/* Takes a running job out of its slot, whose history stays, and back into the queue. */
void queue_requeue(struct sched *s, struct job *j, const char *reason);
/* The same with the youngest paused job that is in no window; false when there is none. */
bool queue_requeue_paused(struct sched *s);
/* Waiting jobs that are not paused. */
uint32_t queue_ready(const struct sched *s);
/* Running jobs that are not paused. */
uint32_t queue_active(const struct sched *s);
/* Tokens of a running job that are not in its session yet. */
uint32_t queue_unread(const struct sched *s, const struct job *j);

/* claim.c: the way from the queue into a slot. */
/* Lets the first waiting request in that may go and has at most `most` tokens to read. False when nothing
 * changed. */
bool claim_next(struct sched *s, uint32_t most);
/* Runs j at `at`, with the first n tokens of `source`. */
int claim_begin(struct sched *s, struct job *j, uint32_t at, uint32_t source, uint32_t n);
/* After that: where it runs, as a placement event and, the first time, to the job itself, who then finds the
 * event and the status that belong to it. */
void claim_tell(struct sched *s, struct job *j, struct sched_placement e, struct sched_choice *c,
                const char *reason);
struct placed_why claim_why(const struct sched *s, const struct policy_host_place *p);
/* Tells of what is lost when `at` becomes the first n tokens of `source`. */
void claim_note_overwrite(struct sched *s, const struct job *j, uint32_t at, uint32_t source, uint32_t n);
/* Asks the policy for j's place; held slots are respected as long as that leaves one. POLICY_DECIDED or
 * POLICY_NONE. */
int claim_place(struct sched *s, struct job *j, bool respect_held, struct policy_host_place *ret_place);
/* The table as the policy sees it; j may be NULL. */
const struct policy_snapshot *claim_snapshot(struct sched *s, struct job *j);
struct policy_request claim_request(const struct job *j);
struct slots_request claim_label(const struct job *j);
bool claim_reuses(const struct job *j);
/* After a begin failed: ends j when nothing runs, and says whether it did. */
bool claim_no_memory(struct sched *s, struct job *j);

/* ask.c: the policy's answers, as policy/host.h describes them; listeners are told. */
/* All that is asked between the two is answered by one generation of the policy. Not around a wait. */
void ask_begin(struct sched *s);
void ask_end(struct sched *s);
void ask_log_breach(void *sched, const struct policy_breach *b);
int ask_place(struct sched *s, struct job *j, struct policy_host_place *ret_place);
/* placing: as in policy_host_park. */
int ask_park(struct sched *s, struct job *j, uint32_t placing, struct policy_host_park *ret_park);
const struct policy_worth *ask_state(struct sched *s, bool for_display);
const uint64_t *ask_superseded(struct sched *s);

/* solo.c: main. */
/* The only request there is starts on main. False when it is not for main, and nothing changed. */
bool solo_start(struct sched *s, struct job *j);
struct job *solo_job(const struct sched *s); /* NULL: nobody runs there */
/* The request on main goes on in a slot; `reserved`: a slot that somebody else is about to take, or
 * SLOTS_NONE. */
bool solo_promote(struct sched *s, uint32_t reserved);
/* A request that was left alone goes back to main. */
void solo_return(struct sched *s);
/* Guesses what follows j's last token: s->solo.fed is its row, of which it returns the length. */
uint32_t solo_draft(struct sched *s, struct job *j);

/* room.c: memory. */
/* Whether what c has to read and the beginning of its answer fit beside what runs. */
bool room_admits(struct sched *s, const struct candidate *c);
/* Blocks that the planned rows take. */
uint32_t room_blocks(const struct window *w);
/* Makes the pool fit the planned rows, at the cost of idle histories. */
bool room_make(struct sched *s, const struct window *w);
/* The same for n blocks of somebody else's, who takes none from wanted histories. */
bool room_make_blocks(struct sched *s, uint32_t n);
/* Whether that could be done; takes nothing. */
bool room_has(struct sched *s, uint32_t n);
/* Requeues the youngest running job (paused ones first). -EAGAIN: it is in a window under way; -ENOSPC: only
 * one runs. */
int room_requeue_youngest(struct sched *s);
void room_ask_superseded(struct sched *s);
/* Keeps what the policy says each history is worth; for_display: for the status alone. */
void room_ask_worth(struct sched *s, bool for_display);

#include "sched/records.h"
