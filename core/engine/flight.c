/* Flight: a window from its rows to its logits. Everything is checked and every block is taken before a
 * device is asked for anything, and the sessions learn of it only when all stages have done their part: a
 * window happens wholly or not at all.
 * Thread: the scheduler's. Must not know: why a session exists, what a row is for.
 * Tests: tests/unit/test_engine.c, tests/unit/test_stages.c, tests/property/kv_model.c */
#include "engine/flight.h"
#include "engine/compute.h"
#include "engine/stage.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_row(const struct engine *e, const struct engine_row *rows, uint32_t i, char *err,
                     size_t errlen)
{
    const struct engine_row *row = &rows[i];

    if (!row->session || row->session->engine != e || row->n == 0 || !row->tokens || row->n_logits > row->n) {
        snprintf(err, errlen,
                 "row %" PRIu32 ": wants a session of this engine, tokens, and logits for at most them", i);
        return -EINVAL;
    }
    for (uint32_t j = 0; j < i; j++)
        if (rows[j].session == row->session) {
            snprintf(err, errlen, "rows %" PRIu32 " and %" PRIu32 " are of one session", j, i);
            return -EINVAL;
        }
    for (uint32_t t = 0; t < row->n; t++)
        if (row->tokens[t] < 0 || (uint32_t)row->tokens[t] >= e->n_vocab) {
            snprintf(err, errlen, "row %" PRIu32 ": token %" PRId32 " is outside 0..%" PRIu32, i,
                     row->tokens[t], e->n_vocab - 1);
            return -EINVAL;
        }
    if (row->session->in_flight) {
        snprintf(err, errlen, "row %" PRIu32 ": its session is in another flight", i);
        return -EBUSY;
    }
    return 0;
}

static int check_rows(const struct engine *e, const struct engine_row *rows, uint32_t n_rows, char *err,
                      size_t errlen)
{
    uint64_t tokens = 0;

    if (n_rows < 1 || n_rows > e->max_rows) {
        snprintf(err, errlen, "%" PRIu32 " rows in a window: 1..%" PRIu32 " are possible", n_rows,
                 e->max_rows);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < n_rows; i++) {
        int r = check_row(e, rows, i, err, errlen);
        if (r < 0)
            return r;
        tokens += rows[i].n;
    }
    if (tokens > e->max_tokens) {
        snprintf(err, errlen, "%" PRIu64 " tokens in a window: at most %" PRIu32 " are possible", tokens,
                 e->max_tokens);
        return -EINVAL;
    }
    return 0;
}

/* ---- their memory ---- */

int flight_take(struct engine *e, struct flight **ret_flight, char *err, size_t errlen)
{
    size_t tokens = e->max_tokens, angles = tokens * (e->rope_dims / 2);
    struct flight *f = e->idle;

    if (f) {
        e->idle = f->next;
        e->n_open++;
        *ret_flight = f;
        return 0;
    }
    f = calloc(1, sizeof *f);
    if (!f)
        return engine_no_memory("a window", sizeof *f, err, errlen);
    f->engine = e;
    f->ids = calloc(tokens, sizeof *f->ids);
    f->wanted = calloc(tokens, sizeof *f->wanted);
    bool has_angles = true;
    for (uint32_t i = 0; i < e->n_ropes; i++) {
        f->cos[i] = calloc(angles, sizeof *f->cos[i]);
        f->sin[i] = calloc(angles, sizeof *f->sin[i]);
        has_angles = has_angles && f->cos[i] && f->sin[i];
    }
    f->scale = calloc(tokens, sizeof *f->scale);
    f->ops = calloc(e->max_rows, sizeof *f->ops);
    f->rows = calloc(e->max_rows, sizeof *f->rows);
    f->x = e->n_stages > 1 ? calloc(tokens * e->n_embd, sizeof *f->x) : NULL;
    if (!f->ids || !f->wanted || !has_angles || !f->scale || !f->ops || !f->rows ||
        (e->n_stages > 1 && !f->x)) {
        flight_free(f);
        return engine_no_memory("the plan of a window",
                                tokens * (2 + e->n_embd) * 4 + 2 * e->n_ropes * angles * 4, err, errlen);
    }
    e->n_open++;
    *ret_flight = f;
    return 0;
}

void flight_put_back(struct flight *f)
{
    struct engine *e = f->engine;

    f->state = FLIGHT_IDLE;
    f->next = e->idle;
    e->idle = f;
    e->n_open--;
}

void flight_free(struct flight *f)
{
    free(f->ids);
    free(f->wanted);
    for (uint32_t i = 0; i < ENGINE_MAX_ROPES; i++) {
        free(f->cos[i]);
        free(f->sin[i]);
    }
    free(f->ops);
    free(f->rows);
    free(f->x);
    free(f->blocks);
    free(f->scale);
    free(f->host_logits);
    free(f->best);
    free(f);
}

/* ---- begin ---- */

static void undo(struct flight *f)
{
    for (uint32_t i = 0; i < f->n_rows; i++)
        session_shrink_back(f, &f->rows[i]);
}

static int grow_all(struct flight *f, const struct engine_row *rows, uint32_t n_rows, char *err,
                    size_t errlen)
{
    for (f->n_rows = 0; f->n_rows < n_rows; f->n_rows++) {
        uint32_t i = f->n_rows;
        struct flight_row *row = &f->rows[i];
        *row = (struct flight_row){ .session = rows[i].session,
                                    .at = i ? row[-1].at + row[-1].n_blocks : 0,
                                    .n_logits = rows[i].n_logits,
                                    .best = rows[i].best };
        int r = session_grow(f, row, rows[i].n);
        if (r == 0)
            continue;
        if (r == -ENOSPC)
            snprintf(err, errlen, "the pool of %u blocks has too few free ones for row %" PRIu32,
                     f->engine->pool.n_blocks, i);
        else
            snprintf(err, errlen, "out of memory for the block list of row %" PRIu32, i);
        undo(f);
        return r;
    }
    return 0;
}

/* cos and sin of every token's angles, in double: a float angle at position 100,000 would be off by a
 * hundredth. */
static void plan_rope(struct flight *f, uint32_t rope, uint32_t token, uint32_t pos)
{
    const struct engine *e = f->engine;
    uint32_t half = e->rope_dims / 2;
    float *c = f->cos[rope] + (size_t)token * half, *s = f->sin[rope] + (size_t)token * half;

    for (uint32_t i = 0; i < half; i++) {
        double sine, cosine;
        sincos((double)pos * e->ropes[rope].frequency[i], &sine, &cosine);
        c[i] = (float)(cosine * e->ropes[rope].magnitude);
        s[i] = (float)(sine * e->ropes[rope].magnitude);
    }
}

static void make_plan(struct flight *f, const struct engine_row *rows)
{
    f->n_tokens = f->n_wanted = 0;
    f->has_best = false;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct engine_row *row = &rows[i];
        uint32_t pos = row->session->len;
        f->ops[i] = (struct ops_row){
            .first = f->n_tokens, .n = row->n, .pos = pos, .blocks = f->blocks + f->rows[i].at
        };
        memcpy(f->ids + f->n_tokens, row->tokens, row->n * sizeof *f->ids);
        for (uint32_t t = 0; t < row->n; t++) {
            for (uint32_t k = 0; k < f->engine->n_ropes; k++)
                plan_rope(f, k, f->n_tokens, pos + t);
            if (t + row->n_logits >= row->n) {
                f->scale[f->n_wanted] = row->best ? row->scale : 1;
                f->wanted[f->n_wanted++] = f->n_tokens;
            }
            f->n_tokens++;
        }
        f->has_best |= row->best && row->n_logits && !f->engine->ops->plain_memory;
    }
}

int engine_begin(struct engine *e, const struct engine_row *rows, uint32_t n_rows, struct flight **ret_flight,
                 char *err, size_t errlen)
{
    struct flight *f;
    int r = check_rows(e, rows, n_rows, err, errlen);
    if (r == 0)
        r = flight_take(e, &f, err, errlen);
    if (r < 0)
        return r;
    r = grow_all(f, rows, n_rows, err, errlen);
    if (r < 0) {
        flight_put_back(f);
        return r;
    }
    make_plan(f, rows);
    f->taken = false;
    f->result = 0;
    f->ns = 0;
    stage_send(f);
    *ret_flight = f;
    return 0;
}

/* ---- end ---- */

/* The lock is held. */
static void leave_list(struct flight *f)
{
    struct flight_list *l = &f->engine->finished;
    struct flight *before = NULL;

    if (f->taken)
        return;
    f->taken = true;
    for (struct flight *at = l->first; at != f; at = at->next)
        before = at;
    if (before)
        before->next = f->next;
    else
        l->first = f->next;
    if (l->last == f)
        l->last = before;
}

struct flight *engine_next_finished(struct engine *e, bool wait)
{
    struct flight *f;

    pthread_mutex_lock(&e->lock);
    while (wait && !e->finished.first && e->under_way)
        pthread_cond_wait(&e->changed, &e->lock);
    f = e->finished.first;
    if (f)
        leave_list(f);
    pthread_mutex_unlock(&e->lock);
    return f;
}

void engine_watch(struct engine *e, void (*finished)(void *arg), void *arg)
{
    pthread_mutex_lock(&e->lock);
    e->on_finished = finished;
    e->on_finished_arg = arg;
    pthread_mutex_unlock(&e->lock);
}

int flight_end(struct flight *f, char *err, size_t errlen)
{
    struct engine *e = f->engine;

    pthread_mutex_lock(&e->lock);
    while (f->state == FLIGHT_UNDER_WAY)
        pthread_cond_wait(&e->changed, &e->lock);
    assert(f->state == FLIGHT_FINISHED);
    leave_list(f);
    f->state = FLIGHT_ENDED;
    pthread_mutex_unlock(&e->lock);

    if (f->result < 0) {
        snprintf(err, errlen, "%s", f->err);
        undo(f);
        return f->result;
    }
    for (uint32_t i = 0; i < f->n_rows; i++)
        session_grown(f, &f->rows[i]);
    return 0;
}

/* Of a row's logits, the first: as one of all the window's. */
static uint32_t first_logits(const struct flight *f, uint32_t row)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < row; i++)
        n += f->rows[i].n_logits;
    return n;
}

struct fetch {
    struct flight *flight;
    uint32_t first, n;
};

static int fetch(struct stage *st, void *arg, char *err, size_t errlen)
{
    const struct fetch *a = arg;
    compute_fetch_logits(st, a->flight, a->first, a->n);
    return st->engine->ops->sync(st->dev, err, errlen);
}

const float *flight_logits(struct flight *f, uint32_t row)
{
    /* Where device memory is plain memory the caller reads the logits where they were computed. */
    const float *logits = f->host_logits ? f->host_logits : f->logits;
    struct flight_row *r = &f->rows[row];
    struct fetch a = { .flight = f, .first = first_logits(f, row), .n = r->n_logits };
    char err[256];

    if (!r->n_logits)
        return NULL;
    if (f->has_best && r->best) {
        if (stage_call(&f->engine->stages[f->engine->n_stages - 1], fetch, &a, err, sizeof err) < 0)
            return NULL;
        r->best = false; /* they are here now */
    }
    return logits + (size_t)a.first * f->engine->n_vocab;
}

bool flight_best(const struct flight *f, uint32_t row, uint32_t i, struct sampler_best *ret_best)
{
    const uint32_t at = first_logits(f, row) + i;
    const struct ops_best *b = &f->best[at];

    if (!f->has_best || !f->rows[row].best)
        return false;
    *ret_best = (struct sampler_best){ .n = b->n,
                                       .id = b->id,
                                       .logit = b->logit,
                                       .max = b->max,
                                       .sum = b->sum[0],
                                       .scale = f->scale[at],
                                       .scaled_sum = b->sum[1] };
    return true;
}

uint64_t flight_ns(const struct flight *f)
{
    return f->ns;
}

void flight_release(struct flight *f)
{
    char err[256];

    if (!f)
        return;
    if (f->state != FLIGHT_ENDED)
        (void)flight_end(f, err, sizeof err);
    flight_put_back(f);
}

int engine_window(struct engine *e, struct engine_row *rows, uint32_t n_rows, char *err, size_t errlen)
{
    struct flight *f;
    int r = engine_begin(e, rows, n_rows, &f, err, errlen);
    if (r < 0)
        return r;
    r = flight_end(f, err, errlen);
    for (uint32_t i = 0; r == 0 && i < n_rows; i++)
        rows[i].logits = flight_logits(f, i);
    /* Its memory is the next flight's: until then the logits stay. */
    flight_release(f);
    return r;
}
