/* Step: windows: which group's is next, which of its jobs take part with how many tokens, and what becomes of
 * a window that has come back.
 *
 * A window serves one group: all its jobs with one token to feed, and beside them the chunk of prompt that
 * reading.c allows. A group has one window under way at a time, main counting as a group of its own; the
 * group that has waited longest goes first. There is one window more under way than there are stages, so that
 * none of them runs dry, and with one stage each is computed as it begins. While a window is under way its
 * jobs are neither ended nor moved nor requeued: what they asked for happens when it is back.
 * Thread: the scheduler's. Tests: tests/unit/test_sched.c, test_sched_groups.c */
#include "sched/parts.h"
#include "slots/padding.h"
#include "util/clock.h"
#include "util/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PACE_LEAST 0.05

/* ---- padding ---- */

static const int32_t pad_token; /* any will do */

static int open_pads(struct sched *s)
{
    uint32_t n = s->o.slots / s->o.groups;
    s->pads = calloc(s->o.slots, sizeof(struct session *));
    s->active = calloc(2 * (size_t)n, sizeof *s->active);
    if (!s->pads || !s->active)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->o.slots; i++) {
        int r = session_new(s->engine, &s->pads[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static uint32_t last_active(const struct window *w)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < w->n_rows; i++)
        last = w->jobs[i]->at > last ? w->jobs[i]->at : last;
    return last;
}

/* A row for each slot that no request runs in, up to the last active one. They are there for what they cost,
 * so where memory is short they are left out: nothing is given up or requeued for them. */
static void add_pads(struct sched *s, struct window *w)
{
    uint32_t n = s->h.n / s->o.groups, first = w->group * n;
    uint32_t free = histories_free_blocks(&s->h), needed = room_blocks(w);
    w->n_pads = 0;
    if (!s->pads || w->group == s->o.groups)
        return;
    for (uint32_t i = first; i < last_active(w) && needed + w->n_pads < free; i++)
        if (!slots_at(s->h.table, i)->busy)
            w->rows[w->n_rows + w->n_pads++] = (struct engine_row){
                .session = s->pads[i], .tokens = &pad_token, .n = 1, .n_logits = 1, .best = true, .scale = 1
            };
}

/* The window has begun: what it writes over is lost. */
static void lose_padded_over(struct sched *s, const struct window *w)
{
    uint32_t *lost = s->active + s->h.n / s->o.groups;
    if (!s->pads || w->group == s->o.groups)
        return;
    for (uint32_t i = 0; i < w->n_rows; i++)
        s->active[i] = w->jobs[i]->at;
    uint32_t n = padding_lost(s->h.table, s->active, w->n_rows, lost);
    for (uint32_t i = 0; i < n; i++) {
        struct sched_placement e = { .kind = SCHED_PAD,
                                     .slot = events_slot(s, lost[i]),
                                     .source = SCHED_NONE,
                                     .tokens = slots_at(s->h.table, lost[i])->n };
        count_lost(s, lost[i], MISS_SLOT_TAKEN);
        histories_lose(&s->h, lost[i]);
        events_add(s, e, NULL, "padded");
    }
}

/* ---- the windows ---- */

int step_init(struct sched *s)
{
    struct engine_info info;
    engine_info_get(s->engine, &info);
    s->n_windows = s->o.groups + 1;
    s->flights_max = info.n_stages > 1 ? info.n_stages + 1 : 1;
    s->reads_max = info.n_stages < s->o.groups ? info.n_stages : s->o.groups;
    s->windows = calloc(s->n_windows, sizeof *s->windows);
    uint32_t pads = s->o.padded ? s->o.slots / s->o.groups : 0;
    for (uint32_t g = 0; s->windows && g < s->n_windows; g++) {
        struct window *w = &s->windows[g];
        w->group = g;
        w->rows = calloc((size_t)s->o.rows + pads, sizeof *w->rows);
        w->jobs = calloc(s->o.rows, sizeof(struct job *));
        if (!w->rows || !w->jobs)
            return -ENOMEM;
    }
    if (!s->windows)
        return -ENOMEM;
    return s->o.padded ? open_pads(s) : 0;
}

void step_clear(struct sched *s)
{
    for (uint32_t g = 0; s->windows && g < s->n_windows; g++) {
        free(s->windows[g].rows);
        free(s->windows[g].jobs);
    }
    free(s->windows);
    for (uint32_t i = 0; s->pads && i < s->o.slots; i++)
        session_free(s->pads[i]);
    free(s->pads);
    free(s->active);
}

uint32_t step_group(const struct sched *s, uint32_t at)
{
    return at / (s->h.n / s->o.groups); /* main's index is n */
}

/* ---- planning ---- */

static void add_row(struct sched *s, struct window *w, struct job *j, uint32_t n)
{
    const struct slots_history *h = slots_at(s->h.table, j->at);
    w->jobs[w->n_rows] = j;
    w->rows[w->n_rows++] = (struct engine_row){
        .session = s->h.sessions[j->at],
        .tokens = j->seq + h->n,
        .n = n,
        .n_logits = h->n + n == j->n_seq,
        .best = !sampler_wants_all(j->sampler),
        .scale = sampler_scale(j->sampler),
    };
}

static void add_streams(struct sched *s, struct window *w, bool reader)
{
    /* More jobs than rows can be awake after pauses: they take turns, and a reader keeps one row. */
    uint32_t most = s->o.rows - (reader && s->o.rows > 1);
    for (uint32_t k = 0; k < s->n_running && w->n_rows < most; k++) {
        struct job *j = s->running[(w->turn + k) % s->n_running];
        if (step_group(s, j->at) == w->group && reading_is_stream(s, j))
            add_row(s, w, j, 1);
    }
    w->turn += most;
    if (w->n_rows == 1 && w->jobs[0]->at == s->h.n) {
        w->rows[0].n = w->rows[0].n_logits = solo_draft(s, w->jobs[0]);
        w->rows[0].tokens = s->solo.fed;
        w->n_draft = w->rows[0].n - 1;
    }
}

static void plan(struct sched *s, struct window *w)
{
    struct chunk c = reading_chunk(s);
    struct job *r = reading_next(s, w->group, NULL);
    w->n_rows = w->n_draft = 0;
    add_streams(s, w, r != NULL);
    for (; r && w->n_rows < s->o.rows && !reading_is_full(&c); r = reading_next(s, w->group, r))
        add_row(s, w, r, reading_take(s, &c, r));
    w->chunk = c.taken;
}

/* ---- beginning ---- */

static int reserve_histories(struct sched *s, const struct window *w)
{
    for (uint32_t i = 0; i < w->n_rows; i++) {
        int r = slots_reserve(s->h.table, w->jobs[i]->at, w->rows[i].n);
        if (r < 0)
            return r;
    }
    return 0;
}

static void note_begun(struct sched *s, struct window *w)
{
    w->begun = ++s->begun;
    if (w->chunk)
        s->chunk_begun = w->begun;
    s->n_flights++;
    for (uint32_t i = 0; i < w->n_rows; i++) {
        struct job *j = w->jobs[i];
        uint32_t unread = queue_unread(s, j); /* of a draft more is fed than is known */
        j->flying = w->rows[i].n < unread ? w->rows[i].n : unread;
    }
    lose_padded_over(s, w);
}

/* Begins what is planned, less whom memory has no room for. -EAGAIN: that is known when a window under way is
 * back. */
static int begin(struct sched *s, struct window *w, char *err, size_t errlen)
{
    w->begin_ns = s->o.now_ns();
    for (;;) {
        plan(s, w);
        if (!w->n_rows)
            return 0;
        int r = reserve_histories(s, w);
        if (r == 0 && !room_make(s, w))
            r = -ENOSPC;
        if (r == 0) {
            status_publish(s, w->chunk ? "reading a prompt" : "decoding");
            add_pads(s, w);
            r = engine_begin(s->engine, w->rows, w->n_rows + w->n_pads, &w->flight, err, errlen);
        }
        if (r == 0)
            note_begun(s, w);
        if (r == -ENOSPC)
            r = room_requeue_youngest(s);
        else
            return r;
        if (r < 0)
            return r;
    }
}

static void fail_rows(struct sched *s, struct window *w, int r, const char *why)
{
    char text[400];
    s->now_ns = s->o.now_ns();
    s->count.step++;
    if (r == -ENOSPC)
        snprintf(text, sizeof text, "the key-value pool of %u blocks is too small for this request",
                 s->blocks);
    else
        snprintf(text, sizeof text, "the engine failed: %s", *why ? why : "out of memory");
    for (uint32_t i = 0; i < w->n_rows; i++)
        queue_end(s, w->jobs[i], SCHED_STOP_FAILED, text);
}

static struct window *longest_waiting(struct sched *s)
{
    struct window *best = NULL;
    for (uint32_t g = 0; g < s->n_windows; g++) {
        struct window *w = &s->windows[g];
        if (!w->flight && !w->looked_at && (!best || w->back < best->back))
            best = w;
    }
    return best;
}

/* True when a window began, or failed to. */
static bool begin_next(struct sched *s)
{
    char err[256] = "";
    struct window *w;
    if (s->n_flights >= s->flights_max)
        return false;
    for (uint32_t g = 0; g < s->n_windows; g++)
        s->windows[g].looked_at = false;
    while ((w = longest_waiting(s))) {
        w->looked_at = true;
        int r = begin(s, w, err, sizeof err);
        if (r == -EAGAIN || !w->n_rows)
            continue;
        if (r < 0)
            fail_rows(s, w, r, err);
        return true;
    }
    return false;
}

/* ---- coming back ---- */

static double smooth(double old, double now)
{
    return old > 0 ? 0.5 * old + 0.5 * now : now;
}

/* What reading costs. What the streams of a shared window took is not the prompt's doing: counted in, a slow
 * decode would shrink the chunks, and the chunks' fixed cost would then shrink them further. */
static void measure(struct sched *s, const struct window *w, uint64_t window_ns)
{
    double ns = (double)window_ns;
    if (!w->chunk) {
        if (!w->n_draft)
            s->decode_ns = smooth(s->decode_ns, ns);
        return;
    }
    if (w->rows[0].n == 1) /* streams come first */
        ns = ns - s->decode_ns > ns / 4 ? ns - s->decode_ns : ns / 4;
    uint32_t from = slots_at(s->h.table, w->jobs[w->n_rows - 1]->at)->n;
    prompt_rate_learn(&s->rate, from, w->chunk, (uint64_t)ns);
    /* The rate has a long memory. How busy the machine is just now is the pace, slower to believe that it
     * became idle. */
    double pace = ns / (double)(prompt_rate_ns(&s->rate, from, from + w->chunk) + 1);
    s->pace += (pace > s->pace ? 0.5 : 0.25) * (pace - s->pace);
    if (s->pace < PACE_LEAST)
        s->pace = PACE_LEAST;
}

/* The tokens after the row's first are a draft: each stays as long as it is what would have been chosen. */
static enum sched_stop choose(struct sched *s, struct job *j, const struct window *w, uint32_t row,
                              uint32_t *ret_right, const char **ret_error)
{
    enum sched_stop stop;
    uint32_t right = 0, n_draft = w->n_draft;
    for (;;) {
        stop = job_choose(s, j, &(struct job_logits){ w->flight, row, right }, ret_error);
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

static void take_row(struct sched *s, const struct window *w, uint32_t i)
{
    struct job *j = w->jobs[i];
    const struct engine_row *row = &w->rows[i];
    const char *error = NULL;
    uint32_t before = j->generated, right = 0, n_draft = w->n_draft;
    uint64_t before_ns = j->first_ns ? j->last_ns : 0;
    if (!n_draft)
        took(s, j, row->tokens, row->n);
    if (!n_draft && row->n > 1)
        job_progress(j, slots_at(s->h.table, j->at)->n, s->now_ns);
    if (!row->n_logits)
        return;
    enum sched_stop stop = choose(s, j, w, i, &right, &error);
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
static void log_window(const struct sched *s, const struct window *w, uint64_t ns)
{
    if (log_level_get() > LOG_DEBUG || !w->chunk)
        return;
    uint32_t at = slots_at(s->h.table, w->jobs[w->n_rows - 1]->at)->n;
    double reckoned = (double)(prompt_rate_ns(&s->rate, at, at + w->chunk) + 1) * s->pace;
    log_write(LOG_DEBUG, "window", "rows=%u prompt_tokens=%u ms=%.2f tokens_per_s=%.0f", w->n_rows, w->chunk,
              (double)ns / (double)NS_PER_MS, w->chunk / reckoned * 1e9);
}

static void take_back(struct sched *s, struct window *w)
{
    char err[256] = "";
    s->now_ns = s->o.now_ns();
    int r = flight_end(w->flight, err, sizeof err);
    for (uint32_t i = 0; i < w->n_rows; i++)
        w->jobs[i]->flying = 0;
    for (uint32_t i = 0; i < w->n_pads; i++)
        session_cut(w->rows[w->n_rows + i].session, 0);
    s->n_flights--;
    w->back = ++s->n_back;
    if (r == -ENODEV && !s->device_lost)
        log_write(LOG_ERROR, "device", "lost reason=\"%s\" next=\"requests fail, /ready says 503\"", err);
    s->device_lost = r == -ENODEV;
    if (r < 0) {
        fail_rows(s, w, r, err);
    } else {
        /* Among others a window also waits, which says nothing of what it costs. */
        uint64_t ns = s->flights_max > 1 ? flight_ns(w->flight) : s->now_ns - w->begin_ns;
        s->count.step++;
        measure(s, w, ns);
        log_window(s, w, ns);
        for (uint32_t i = 0; i < w->n_rows; i++)
            take_row(s, w, i);
    }
    flight_release(w->flight);
    w->flight = NULL;
}

bool step_take_back(struct sched *s, bool wait)
{
    struct flight *f = s->n_flights ? engine_next_finished(s->engine, wait) : NULL;
    if (!f)
        return false;
    struct window *w = s->windows;
    while (w->flight != f)
        w++;
    take_back(s, w);
    return true;
}

bool step_run(struct sched *s)
{
    bool worked = false;
    reading_let_in(s);
    while (begin_next(s))
        worked = true;
    while (step_take_back(s, false))
        worked = true;
    return worked;
}
