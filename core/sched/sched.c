/* Sched: the thread and its doors; see sched.h.
 *
 * Files: sched.c (doors, the loop), admission.c (who is in), queue.c (the waiting list and its order),
 * claim.c (from the queue into a slot), ask.c (questions to the policy), solo.c (main: parking, promotion,
 * drafts), room.c (memory), histories.c (the slot table and the engine's sessions as one), visit.c, slotio.c,
 * slotfile.c (histories to files and back), reading.c (prompts
 * and their chunks), step.c (windows), job.c (one generation), events.c (the ring of placement events),
 * placed.c (why the last requests ran where they did), count.c (times, misses, returns), status.c (the
 * published record). */
#include "sched/parts.h"
#include "util/altstack.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/rng.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEARTBEAT_MS 1000 /* while work is pending but nothing can run (all readers are slow) */

/* [any thread] The queue has room for each mark once, and for every job that is in. */
static void queue_mark(struct sched *s, struct mark *m)
{
    if (!atomic_exchange(&m->queued, true))
        (void)queue_push(s->inbox, m);
}

/* [a stage's thread, under the engine's lock] */
static void window_finished(void *arg)
{
    struct sched *s = arg;
    queue_mark(s, &s->window_back);
}

static void wake(struct sched *s)
{
    queue_mark(s, &s->wake);
}

static void take_messages(struct sched *s)
{
    for (void *item; (item = queue_pop(s->inbox));) {
        bool back = item == &s->window_back;
        if (!back)
            s->blocked_until_ns = 0;
        if (back || item == &s->wake) {
            /* The flag goes when the mark does, and before what it tells of is looked at: whoever finds it
             * set is seen, whoever doesn't queues a new mark. */
            (void)atomic_exchange(&((struct mark *)item)->queued, false);
            continue;
        }
        s->count.started++;
        queue_add(s, item);
    }
}

static void end_all(struct sched *s)
{
    while (step_take_back(s, true))
        ;
    while (s->n_running)
        queue_end(s, s->running[s->n_running - 1], SCHED_STOP_CANCELLED, NULL);
    while (s->waiting)
        queue_end(s, s->waiting, SCHED_STOP_CANCELLED, NULL);
}

static void check(const struct sched *s)
{
    char text[160] = "more requests run than histories are busy";
    uint32_t busy = 0, in_flight = 0, flying = 0;
    for (uint32_t i = 0; i <= s->h.n; i++) {
        busy += slots_at(s->h.table, i)->busy;
        in_flight += session_in_flight(s->h.sessions[i]);
    }
    for (uint32_t i = 0; i < s->n_running; i++)
        flying += s->running[i]->flying && session_in_flight(s->h.sessions[s->running[i]->at]);
    if (busy == s->n_running && flying == in_flight && histories_check(&s->h, text, sizeof text))
        return;
    log_write(LOG_ERROR, "check", "what=\"%s\" busy=%u running=%u sessions_in_flight=%u jobs_in_flight=%u",
              text, busy, s->n_running, in_flight, flying);
    abort();
}

static void *thread_main(void *arg)
{
    struct sched *s = arg;
    struct altstack stack = { 0 };
    (void)altstack_begin(&stack); /* a policy that recurses without end is named all the same */
    while (!atomic_load(&s->stopping)) {
        take_messages(s);
        s->now_ns = s->o.now_ns();
        ask_begin(s);
        while (step_take_back(s, false))
            ;
        queue_sweep(s);
        bool visited = visits_serve(s);
        solo_return(s);
        bool worked = step_run(s) || visited;
        if (s->o.check)
            check(s);
        if (worked) {
            ask_end(s);
            continue;
        }
        bool pending = s->n_running || s->waiting;
        if (!s->n_flights) {
            room_ask_worth(s, true);
            status_publish(s, pending ? "waiting for readers" : "idle");
        }
        ask_end(s);
        queue_wait(s->inbox, pending && !s->n_flights ? HEARTBEAT_MS : -1);
    }
    take_messages(s);
    visits_close(s);
    ask_begin(s);
    end_all(s);
    status_publish(s, "stopped");
    ask_end(s);
    altstack_end(&stack);
    return NULL;
}

static int check_options(const struct sched *s, char *err, size_t errlen)
{
    const struct sched_options *o = &s->o;
    if (!o->groups || o->groups > o->slots || o->slots % o->groups) {
        snprintf(err, errlen, "scheduler options: %u groups, which is no divisor of %u slots", o->groups,
                 o->slots);
        return -EINVAL;
    }
    if (o->context < 2 || !o->slots || !o->rows || o->rows > o->slots || !o->queue_max || !o->chunk_tokens ||
        !o->max_pause_ms) {
        snprintf(err, errlen,
                 "scheduler options: context %u (at least 2), slots %u, rows %u (1..slots), queue %u, chunk "
                 "%u, pause %u "
                 "(at least 1 each)",
                 o->context, o->slots, o->rows, o->queue_max, o->chunk_tokens, o->max_pause_ms);
        return -EINVAL;
    }
    if ((uint64_t)s->blocks * BLOCK_TOKENS < o->context) {
        snprintf(err, errlen, "the key-value pool holds %u tokens, fewer than the context of %u",
                 s->blocks * BLOCK_TOKENS, o->context);
        return -EINVAL;
    }
    return 0;
}

static void sched_free(struct sched *s)
{
    engine_watch(s->engine, NULL, NULL);
    step_clear(s);
    histories_clear(&s->h);
    policy_host_free(s->host);
    snapshot_free(s->snapshot);
    giveup_free(s->giveup);
    drafts_free(s->solo.drafts);
    misses_free(s->misses);
    returns_free(s->returns);
    visits_clear(&s->visits);
    status_clear(s);
    placed_clear(&s->placed);
    events_clear(&s->ring);
    admission_clear(&s->admission);
    queue_free(s->inbox);
    void *const lists[] = { s->bytes, s->nothing,    s->superseded, s->giveup_list, s->giveup_tokens,
                            s->worth, s->candidates, s->wants,      s->running };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        free(lists[i]);
    free(s);
}

static int allocate_lists(struct sched *s)
{
    const struct sched_options *o = &s->o;
    size_t n = (size_t)o->slots + 1, words = o->slots / 64 + 1;
    s->superseded_size = words * sizeof *s->superseded;
    s->bytes = calloc(n, sizeof *s->bytes);
    s->nothing = calloc(n, sizeof *s->nothing);
    s->superseded = calloc(words, sizeof *s->superseded);
    s->giveup_list = calloc(n + 1, sizeof *s->giveup_list);
    s->giveup_tokens = calloc(n + 1, sizeof *s->giveup_tokens);
    s->worth = calloc(n, sizeof *s->worth);
    s->candidates = calloc((size_t)o->slots + o->queue_max, sizeof *s->candidates);
    s->wants = calloc(n, sizeof *s->wants);
    s->running = calloc(n, sizeof(struct job *));
    bool all = s->bytes && s->nothing && s->superseded && s->giveup_list && s->giveup_tokens && s->worth &&
               s->candidates && s->wants && s->running;
    return all ? 0 : -ENOMEM;
}

/* What decides: the table, the policy, what memory is given up by. */
static int open_histories(struct sched *s)
{
    struct slots_options so = {
        .n_slots = s->o.slots,
        .group_slots = s->o.slots / s->o.groups,
        .turn_token = s->o.turn_token,
        .key = { rng_system_seed(), rng_system_seed() },
    };
    struct policy_host_options ho = {
        .seat = s->o.seat, .now_ns = clock_now_ns, .on_breach = ask_log_breach, .arg = s
    };
    int r = histories_init(&s->h, s->engine, &so);
    if (r == 0)
        r = policy_host_new(&ho, s->o.slots, &s->host);
    if (r < 0)
        return r;
    struct snapshot_sizes sizes = policy_host_sizes(s->host);
    r = snapshot_new(s->h.table, &sizes, &s->snapshot);
    if (r == 0)
        r = misses_new(MISSES_LOST, &s->misses);
    if (r == 0)
        r = returns_new(2 * (s->o.slots + 1), &s->returns);
    if (r == 0)
        r = giveup_new(s->blocks, BLOCK_TOKENS, s->o.slots + 2, &s->giveup);
    if (r == 0)
        r = drafts_new(&s->solo.drafts);
    return r;
}

static int allocate(struct sched *s)
{
    const struct sched_options *o = &s->o;
    prompt_rate_init(&s->rate);
    s->pace = 1;
    int r = allocate_lists(s);
    if (r == 0)
        r = admission_init(&s->admission, o->rows, o->slots, o->queue_max);
    if (r == 0) /* every admitted job and what wakes: a push never fails */
        r = queue_new((size_t)o->slots + o->queue_max + 2, &s->inbox);
    if (r == 0)
        r = step_init(s);
    if (r == 0)
        r = status_init(s);
    if (r == 0)
        r = events_init(&s->ring);
    if (r == 0)
        r = placed_init(&s->placed);
    if (r == 0)
        r = visits_init(&s->visits);
    return r < 0 ? r : open_histories(s);
}

int sched_start(struct engine *e, const struct tokenizer *t, const struct sched_options *o,
                struct sched **ret_sched, char *err, size_t errlen)
{
    struct sched *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    struct engine_info info;
    engine_info_get(e, &info);
    s->engine = e;
    s->tokenizer = t;
    s->o = *o;
    if (!s->o.groups)
        s->o.groups = 1;
    atomic_init(&s->max_pause_ms, o->max_pause_ms);
    s->n_vocab = info.n_vocab;
    s->blocks = info.blocks;
    s->block_bytes = info.blocks ? info.kv_bytes / info.blocks : 0;
    if (!s->o.now_ns)
        s->o.now_ns = clock_now_ns;
    s->now_ns = s->o.now_ns();
    int r = check_options(s, err, errlen);
    if (r < 0)
        goto fail;
    r = allocate(s);
    if (r == 0) {
        if (s->flights_max > 1)
            engine_watch(e, window_finished, s);
        ask_begin(s);
        room_ask_worth(s, true);
        status_publish(s, "idle");
        ask_end(s);
        r = -pthread_create(&s->thread, NULL, thread_main, s);
    }
    if (r < 0) {
        snprintf(err, errlen, "scheduler: %s", strerror(-r));
        goto fail;
    }
    pthread_setname_np(s->thread, "berth-sched");
    *ret_sched = s;
    return 0;

fail:
    sched_free(s);
    return r;
}

void sched_stop(struct sched *s)
{
    if (!s)
        return;
    atomic_store(&s->stopping, true);
    wake(s);
    pthread_join(s->thread, NULL);
    sched_free(s);
}

int sched_submit(struct sched *s, const struct sched_job *job, uint64_t *ret_job, char *err, size_t errlen)
{
    struct job *j;
    int r = job_new(s, job, &j, err, errlen);
    if (r < 0)
        return r;
    r = admission_enter(&s->admission, j, err, errlen);
    if (r < 0) {
        job_free(j);
        return r;
    }
    /* From the push on the job is the scheduler's and may be gone at any moment. */
    *ret_job = j->id;
    (void)queue_push(s->inbox, j);
    return 0;
}

uint64_t sched_oldest_wait_ns(struct sched *s)
{
    uint64_t oldest = admission_oldest_ns(&s->admission), now = s->o.now_ns();
    return oldest < now ? now - oldest : 0;
}

bool sched_inside_policy(const struct sched *s, struct sched_inside *ret_inside)
{
    struct policy_inside inside;
    if (!policy_marker_read(policy_host_marker(s->host), &inside))
        return false;
    memcpy(ret_inside->policy, inside.policy, sizeof ret_inside->policy);
    ret_inside->function = inside.function;
    ret_inside->since_ns = inside.since_ns;
    return true;
}

void sched_cancel(struct sched *s, uint64_t job)
{
    if (admission_flag(&s->admission, job, ADMISSION_CANCEL))
        wake(s);
}

void sched_wake(struct sched *s)
{
    wake(s);
}

void sched_set_max_pause(struct sched *s, uint32_t ms)
{
    atomic_store(&s->max_pause_ms, ms);
}

void sched_pause(struct sched *s, uint64_t job, bool paused)
{
    if (admission_flag(&s->admission, job, paused ? ADMISSION_PAUSE : ADMISSION_RESUME))
        wake(s);
}
