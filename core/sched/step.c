/* Step: one window: which jobs take part with how many tokens, the blocks it needs, the engine's run, the
 * choices.
 *
 * Every running job with one token to feed takes part; prompts share what is left of the window, oldest
 * first. While streams decode, the prompt tokens of a window are bounded by max_pause_ms times the measured
 * speed, otherwise by chunk_tokens and about 250 ms, so a cancel or a newcomer never waits longer than that.
 * Thread: the scheduler's. Tests: tests/unit/test_sched.c */
#include "sched/private.h"
#include "util/clock.h"
#include <errno.h>
#include <stdio.h>

#define ALONE_MS 250.0
#define FIRST_CHUNK 64u /* before any speed was measured */
#define LEAST_CHUNK 32u /* however slow the machine is: prompts must come to their end */

static uint32_t left_to_feed(const struct sched *s, const struct job *j)
{
    return j->n_seq - s->slots.at[j->slot].n;
}

static uint32_t chunk_budget(const struct sched *s, bool beside_streams)
{
    double ms = ALONE_MS;
    if (beside_streams && s->o.max_pause_ms < ms)
        ms = s->o.max_pause_ms;
    double n = s->tokens_per_ms > 0 ? s->tokens_per_ms * ms : FIRST_CHUNK;
    if (n < LEAST_CHUNK)
        n = LEAST_CHUNK;
    return n < s->o.chunk_tokens ? (uint32_t)n : s->o.chunk_tokens;
}

static void add_row(struct sched *s, uint32_t *n_rows, struct job *j, uint32_t n)
{
    struct slot *slot = &s->slots.at[j->slot];
    s->row_jobs[*n_rows] = j;
    s->rows[(*n_rows)++] = (struct engine_row){
        .session = slot->session,
        .tokens = j->seq + slot->n,
        .n = n,
        .n_logits = slot->n + n == j->n_seq,
    };
}

/* Fills s->rows; *ret_chunk: prompt tokens among them. */
static uint32_t plan(struct sched *s, uint32_t *ret_chunk)
{
    uint32_t n_rows = 0, n_readers = 0, chunk = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n_readers += !atomic_load(&s->running[i]->paused) && left_to_feed(s, s->running[i]) > 1;
    /* More jobs than rows can be awake after pauses: they take turns, and a reader keeps one row. */
    uint32_t max_streams = s->o.rows - (n_readers && s->o.rows > 1);
    for (uint32_t k = 0; k < s->n_running && n_rows < max_streams; k++) {
        struct job *j = s->running[(s->turn + k) % s->n_running];
        if (!atomic_load(&j->paused) && left_to_feed(s, j) == 1)
            add_row(s, &n_rows, j, 1);
    }
    s->turn += max_streams;
    uint32_t budget = chunk_budget(s, n_rows > 0);
    for (uint32_t i = 0; i < s->n_running && n_rows < s->o.rows && chunk < budget; i++) {
        struct job *j = s->running[i];
        uint32_t left = left_to_feed(s, j);
        if (left < 2 || atomic_load(&j->paused))
            continue;
        uint32_t n = left < budget - chunk ? left : budget - chunk;
        add_row(s, &n_rows, j, n);
        chunk += n;
    }
    *ret_chunk = chunk;
    return n_rows;
}

static uint32_t blocks_needed(const struct sched *s, uint32_t n_rows)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < n_rows; i++)
        need += session_blocks_needed(s->rows[i].session, s->rows[i].n);
    return need;
}

/* Makes the pool fit the planned rows at the cost of idle histories. */
static bool make_room(struct sched *s, uint32_t n_rows)
{
    /* Giving up a history can also end the sharing of a block that would have been copied: hence the second
     * look. */
    return slots_give_up(&s->slots, blocks_needed(s, n_rows)) ||
           slots_give_up(&s->slots, blocks_needed(s, n_rows));
}

static void fail_rows(struct sched *s, uint32_t n_rows, const char *error)
{
    for (uint32_t i = 0; i < n_rows; i++)
        queue_end(s, s->row_jobs[i], SCHED_STOP_FAILED, error);
}

static int reserve_histories(struct sched *s, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        int r = slots_reserve(&s->slots, s->row_jobs[i]->slot, s->rows[i].n);
        if (r < 0)
            return r;
    }
    return 0;
}

static double smooth(double old, double now)
{
    return old > 0 ? 0.5 * old + 0.5 * now : now;
}

/* How fast prompts are read, smoothed over a few windows: attention grows with the position, so it changes
 * slowly. What the streams of a shared window took is not the prompt's doing: counted in, a slow decode would
 * shrink the chunks, and the chunks' fixed cost would then shrink them further. */
static void measure(struct sched *s, uint32_t chunk, uint64_t ns)
{
    double ms = (double)ns / (double)NS_PER_MS;
    bool streams = s->rows[0].n == 1; /* they come first */
    if (!chunk) {
        s->decode_ms = smooth(s->decode_ms, ms);
        return;
    }
    if (chunk < LEAST_CHUNK && s->tokens_per_ms > 0)
        return;
    double own = streams ? ms - s->decode_ms : ms;
    if (own < ms / 4)
        own = ms / 4;
    if (own > 0)
        s->tokens_per_ms = smooth(s->tokens_per_ms, chunk / own);
}

static void take_results(struct sched *s, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++)
        slots_append(&s->slots, s->row_jobs[i]->slot, s->rows[i].tokens, s->rows[i].n);
    for (uint32_t i = 0; i < n_rows; i++) {
        struct job *j = s->row_jobs[i];
        if (s->rows[i].n > 1)
            job_progress(j, s->slots.at[j->slot].n);
        if (!s->rows[i].n_logits)
            continue;
        const char *error = NULL;
        uint32_t before = j->generated;
        enum sched_stop stop = job_choose(s, j, s->rows[i].logits, &error);
        s->count.generated_tokens += j->generated - before;
        if (stop != SCHED_STOP_NONE)
            queue_end(s, j, stop, error);
    }
}

bool step_run(struct sched *s)
{
    char err[256] = "", text[320];
    uint32_t chunk, n_rows;
    uint64_t begin;
    int r;
    for (;;) {
        n_rows = plan(s, &chunk);
        if (!n_rows)
            return false;
        status_publish(s, chunk ? "reading a prompt" : "decoding");
        begin = clock_now_ns();
        r = reserve_histories(s, n_rows);
        if (r == 0)
            r = make_room(s, n_rows) ? engine_window(s->engine, s->rows, n_rows, err, sizeof err) : -ENOSPC;
        if (r != -ENOSPC || !queue_requeue_youngest(s))
            break;
    }
    s->count.step++;
    if (r == -ENOSPC) {
        snprintf(text, sizeof text, "the key-value pool of %u blocks is too small for this request",
                 s->blocks);
        fail_rows(s, n_rows, text);
    } else if (r < 0) {
        snprintf(text, sizeof text, "the engine failed: %s", *err ? err : "out of memory");
        fail_rows(s, n_rows, text);
    } else {
        measure(s, chunk, clock_now_ns() - begin);
        take_results(s, n_rows);
    }
    return true;
}
