/* Step: one window: who is let in, which jobs take part with how many tokens, the engine's run, the choices.
 *
 * Every running job with one token to feed takes part. Beside them at most one chunk of prompt is read, of at
 * most chunk_tokens and about ALONE_MS, beside streams max_pause_ms, by the measured rate: so a cancel, a
 * newcomer or a stream never waits longer than that. One prompt is read at a time, the one with the least
 * left first; when it leaves room in the chunk the next waiting job claims and shares the window. A waiting
 * one with at most half as much to read goes before it, at most INTERRUPTS_MAX times; what was read is kept.
 * Thread: the scheduler's. Tests: tests/unit/test_sched.c */
#include "sched/parts.h"
#include "util/clock.h"
#include "util/log.h"
#include <errno.h>
#include <stdio.h>

#define ALONE_MS 250u
#define FIRST_CHUNK 64u /* before any speed was measured */
#define PACE_LEAST 0.05
/* However slow the machine is: prompts must come to their end, and the less is read at once, the longer. */
#define LEAST_ALONE 64u
#define LEAST_BESIDE 16u
#define INTERRUPTS_MAX 2u

/* What of a chunk is still to be given out. */
struct chunk {
    uint32_t tokens; /* left */
    uint64_t ns;     /* left, in terms of the rate */
    uint32_t taken, least;
};

static uint32_t count_streams(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += !atomic_load(&s->running[i]->paused) && queue_unread(s, s->running[i]) == 1;
    return n;
}

static struct chunk chunk_new(const struct sched *s)
{
    uint32_t streams = count_streams(s), ms = ALONE_MS;
    if (streams) {
        /* More streams than rows take turns, and what lies between two turns of one counts together. */
        uint32_t turns = (streams + s->o.rows - 1) / s->o.rows;
        uint32_t pause = atomic_load(&s->max_pause_ms) / turns;
        ms = pause < ms ? pause : ms;
    }
    return (struct chunk){ .tokens = s->o.chunk_tokens,
                           .ns = (uint64_t)((double)(ms * NS_PER_MS) / s->pace),
                           .least = streams ? LEAST_BESIDE : LEAST_ALONE };
}

/* How many of `left` tokens from position `from` on the chunk has room for; takes them. */
static uint32_t chunk_take(const struct sched *s, struct chunk *c, uint32_t from, uint32_t left)
{
    uint32_t n = c->ns ? prompt_rate_tokens(&s->rate, from, c->ns) : 0;
    if (prompt_rate_measured(&s->rate) <= 0 && n > FIRST_CHUNK)
        n = FIRST_CHUNK;
    if (c->taken + n < c->least)
        n = c->least - c->taken;
    if (n > c->tokens)
        n = c->tokens;
    if (n > left)
        n = left;
    uint64_t ns = prompt_rate_ns(&s->rate, from, from + n);
    c->ns = ns < c->ns ? c->ns - ns : 0;
    c->tokens -= n;
    c->taken += n;
    return n;
}

static bool chunk_is_full(const struct chunk *c)
{
    return !c->tokens || (!c->ns && c->taken >= c->least);
}

/* The running job that reads next: the least left first, of equals the one that runs longest. Those with
 * fewer left than `than` (by that order) are passed over. */
static struct job *next_reader(const struct sched *s, const struct job *than)
{
    struct job *best = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct job *j = s->running[i];
        uint32_t left = queue_unread(s, j);
        if (left < 2 || atomic_load(&j->paused))
            continue;
        uint32_t than_left = than ? queue_unread(s, than) : 0;
        if (than && (left < than_left || (left == than_left && j->id <= than->id)))
            continue;
        uint32_t best_left = best ? queue_unread(s, best) : UINT32_MAX;
        if (!best || left < best_left || (left == best_left && j->id < best->id))
            best = j;
    }
    return best;
}

/* Whether the chunk has room beside what would be read of jobs with at most `most` left. */
static bool has_room(const struct sched *s, uint32_t most)
{
    struct chunk c = chunk_new(s);
    const struct job *r = NULL;
    uint32_t readers = 0;
    while (!chunk_is_full(&c) && (r = next_reader(s, r)) && queue_unread(s, r) <= most) {
        chunk_take(s, &c, slots_at(s->h.table, r->at)->n, queue_unread(s, r));
        readers++;
    }
    return !chunk_is_full(&c) && count_streams(s) + readers < s->o.rows;
}

/* Lets waiting jobs go before the one that is being read: those with at most half as much to read, as many as
 * the chunk has room for. Jobs with nothing to read but their last token interrupt nobody. */
static void interrupt(struct sched *s, struct job *reader)
{
    uint32_t half = queue_unread(s, reader) / 2;
    uint32_t most = reader->interrupted < INTERRUPTS_MAX ? half : 1;
    bool interrupted = false;
    while (s->waiting && has_room(s, half) && claim_next(s, most))
        interrupted |= queue_unread(s, s->running[s->n_running - 1]) > 1;
    reader->interrupted += interrupted;
}

/* Lets waiting jobs in: as many as the chunk has room for, then those that interrupt. */
static void let_in(struct sched *s)
{
    while (s->waiting && has_room(s, UINT32_MAX))
        if (!claim_next(s, UINT32_MAX))
            return;
    struct job *reader = s->waiting ? next_reader(s, NULL) : NULL;
    if (reader)
        interrupt(s, reader);
}

static void add_row(struct sched *s, uint32_t *n_rows, struct job *j, uint32_t n)
{
    const struct slots_history *h = slots_at(s->h.table, j->at);
    s->row_jobs[*n_rows] = j;
    s->rows[(*n_rows)++] = (struct engine_row){
        .session = s->h.sessions[j->at],
        .tokens = j->seq + h->n,
        .n = n,
        .n_logits = h->n + n == j->n_seq,
    };
}

static uint32_t add_streams(struct sched *s, bool reader)
{
    /* More jobs than rows can be awake after pauses: they take turns, and a reader keeps one row. */
    uint32_t n_rows = 0, most = s->o.rows - (reader && s->o.rows > 1);
    for (uint32_t k = 0; k < s->n_running && n_rows < most; k++) {
        struct job *j = s->running[(s->turn + k) % s->n_running];
        if (!atomic_load(&j->paused) && queue_unread(s, j) == 1)
            add_row(s, &n_rows, j, 1);
    }
    s->turn += most;
    s->solo.n_draft = 0;
    if (n_rows == 1 && s->row_jobs[0]->at == s->h.n) {
        s->rows[0].n = s->rows[0].n_logits = solo_draft(s, s->row_jobs[0]);
        s->rows[0].tokens = s->solo.fed;
    }
    return n_rows;
}

/* Fills s->rows; *ret_chunk: prompt tokens among them. */
static uint32_t plan(struct sched *s, uint32_t *ret_chunk)
{
    struct chunk c = chunk_new(s);
    struct job *r = next_reader(s, NULL);
    uint32_t n_rows = add_streams(s, r != NULL);
    for (; r && n_rows < s->o.rows && !chunk_is_full(&c); r = next_reader(s, r))
        add_row(s, &n_rows, r, chunk_take(s, &c, slots_at(s->h.table, r->at)->n, queue_unread(s, r)));
    *ret_chunk = c.taken;
    return n_rows;
}

static void fail_rows(struct sched *s, uint32_t n_rows, const char *error)
{
    for (uint32_t i = 0; i < n_rows; i++)
        queue_end(s, s->row_jobs[i], SCHED_STOP_FAILED, error);
}

static int reserve_histories(struct sched *s, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        int r = slots_reserve(s->h.table, s->row_jobs[i]->at, s->rows[i].n);
        if (r < 0)
            return r;
    }
    return 0;
}

static double smooth(double old, double now)
{
    return old > 0 ? 0.5 * old + 0.5 * now : now;
}

/* What reading costs. What the streams of a shared window took is not the prompt's doing: counted in, a slow
 * decode would shrink the chunks, and the chunks' fixed cost would then shrink them further. */
static void measure(struct sched *s, uint32_t n_rows, uint32_t chunk, uint64_t window_ns)
{
    double ns = (double)window_ns;
    if (!chunk) {
        if (!s->solo.n_draft)
            s->decode_ns = smooth(s->decode_ns, ns);
        return;
    }
    if (s->rows[0].n == 1) /* streams come first */
        ns = ns - s->decode_ns > ns / 4 ? ns - s->decode_ns : ns / 4;
    uint32_t from = slots_at(s->h.table, s->row_jobs[n_rows - 1]->at)->n;
    prompt_rate_learn(&s->rate, from, chunk, (uint64_t)ns);
    /* The rate has a long memory. How busy the machine is just now is the pace, slower to believe that it
     * became idle. */
    double pace = ns / (double)(prompt_rate_ns(&s->rate, from, from + chunk) + 1);
    s->pace += (pace > s->pace ? 0.5 : 0.25) * (pace - s->pace);
    if (s->pace < PACE_LEAST)
        s->pace = PACE_LEAST;
}

/* The tokens after the row's first are a draft: each stays as long as it is what would have been chosen. */
static enum sched_stop choose(struct sched *s, struct job *j, const struct engine_row *row,
                              uint32_t *ret_right, const char **ret_error)
{
    enum sched_stop stop;
    uint32_t right = 0, n_draft = s->solo.n_draft;
    for (;;) {
        const float *logits = row->logits + (size_t)right * s->n_vocab;
        stop = job_choose(s, j, logits, ret_error);
        if (stop != SCHED_STOP_NONE || right == n_draft || s->solo.fed[1 + right] != j->seq[j->n_seq - 1])
            break;
        right++;
    }
    *ret_right = right;
    return stop;
}

static uint32_t prompt_read(const struct sched *s, const struct job *j)
{
    uint32_t n = slots_at(s->h.table, j->at)->n;
    return n < j->n_prompt ? n : j->n_prompt;
}

static void took(struct sched *s, const struct job *j, const int32_t *tokens, uint32_t n)
{
    uint32_t before = prompt_read(s, j);
    histories_took(&s->h, j->at, tokens, n);
    s->tally.read_tokens += prompt_read(s, j) - before;
}

static void take_row(struct sched *s, uint32_t i)
{
    struct job *j = s->row_jobs[i];
    const struct engine_row *row = &s->rows[i];
    const char *error = NULL;
    uint32_t before = j->generated, right = 0, n_draft = s->solo.n_draft;
    uint64_t before_ns = j->first_ns ? j->last_ns : 0;
    if (!n_draft)
        took(s, j, row->tokens, row->n);
    if (!n_draft && row->n > 1)
        job_progress(j, slots_at(s->h.table, j->at)->n, s->now_ns);
    if (!row->n_logits)
        return;
    enum sched_stop stop = choose(s, j, row, &right, &error);
    if (n_draft) {
        took(s, j, row->tokens, 1 + right);
        drafts_result(s->solo.drafts, n_draft, right);
        j->drafted += n_draft;
        j->accepted += right;
        s->count.drafted_tokens += n_draft;
        s->count.accepted_tokens += right;
    }
    count_tokens(s, j, j->generated - before, before_ns);
    if (stop != SCHED_STOP_NONE)
        queue_end(s, j, stop, error);
}

/* tokens_per_s: what is reckoned with from now on. */
static void log_window(const struct sched *s, uint32_t n_rows, uint32_t chunk, uint64_t ns)
{
    if (log_level_get() > LOG_DEBUG || !chunk)
        return;
    uint32_t at = slots_at(s->h.table, s->row_jobs[n_rows - 1]->at)->n;
    double reckoned = (double)(prompt_rate_ns(&s->rate, at, at + chunk) + 1) * s->pace;
    log_write(LOG_DEBUG, "window", "rows=%u prompt_tokens=%u ms=%.2f tokens_per_s=%.0f", n_rows, chunk,
              (double)ns / (double)NS_PER_MS, chunk / reckoned * 1e9);
}

/* Runs what is planned, less whom memory has no room for. */
static int run(struct sched *s, uint32_t *ret_rows, uint32_t *ret_chunk, char *err, size_t errlen)
{
    for (;;) {
        *ret_rows = plan(s, ret_chunk);
        if (!*ret_rows)
            return 0;
        int r = reserve_histories(s, *ret_rows);
        if (r == 0 && !room_make(s, *ret_rows))
            r = -ENOSPC;
        if (r == 0) {
            status_publish(s, *ret_chunk ? "reading a prompt" : "decoding");
            r = engine_window(s->engine, s->rows, *ret_rows, err, errlen);
        }
        if (r != -ENOSPC || !room_requeue_youngest(s))
            return r;
    }
}

bool step_run(struct sched *s)
{
    char err[256] = "", text[320];
    uint32_t chunk, n_rows;
    let_in(s);
    uint64_t begin = s->o.now_ns();
    int r = run(s, &n_rows, &chunk, err, sizeof err);
    uint64_t took = s->o.now_ns() - begin;
    if (!n_rows)
        return false;
    s->now_ns = s->o.now_ns();
    s->count.step++;
    if (r == -ENOSPC) {
        snprintf(text, sizeof text, "the key-value pool of %u blocks is too small for this request",
                 s->blocks);
        fail_rows(s, n_rows, text);
    } else if (r < 0) {
        snprintf(text, sizeof text, "the engine failed: %s", *err ? err : "out of memory");
        fail_rows(s, n_rows, text);
    } else {
        measure(s, n_rows, chunk, took);
        log_window(s, n_rows, chunk, took);
        for (uint32_t i = 0; i < n_rows; i++)
            take_row(s, i);
    }
    return true;
}
