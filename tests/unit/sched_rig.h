/* Sched rig: a scheduler over the small ChatML model of tests/data, jobs whose events are kept, and a device
 * that fails when it is told to. */
#pragma once
#include "engine/engine_impl.h"
#include "sched/placement.h"
#include "sched_gate.h"
#include "util/buf.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct rig {
    struct gguf *f;
    struct model *m;
    struct tokenizer *t;
    struct engine *e;
    struct sched *s;
    struct sched_options o;
};

static const struct sched_options rig_options = {
    .context = 512,
    .slots = 8,
    .rows = 4,
    .queue_max = 8,
    .chunk_tokens = 48,
    .max_pause_ms = 50,
    .turn_token = -1,
    .check = true,
};

static const struct ops *rig_real;
static atomic_int rig_failures;            /* so many of the next windows fail */
static atomic_uint_least64_t rig_ahead_ns; /* how far a test put the scheduler's clock forward */
static atomic_uint_least64_t rig_spent_ns; /* what windows took by that clock */
static atomic_uint_least64_t rig_token_ns = 20000;
static atomic_uint rig_starts;
static atomic_uint_least64_t rig_n_computed; /* tokens that went through the engine */
static const char *rig_file = "tiny-chatml.gguf";
static uint32_t rig_stages = 1;
/* Called by each stage for each window; may be NULL. */
static void (*rig_on_window)(const struct ops_dev *d, const struct ops_attention *a);

static _Thread_local bool rig_computed; /* a window, and it has not stood before the gate */

/* The scheduler's clock. It moves with the work alone, so that chunks are as long on a busy machine as on an
 * idle one. The scheduler asks it first thing after a window: what passes at the gate counts after that. */
static inline uint64_t rig_now_ns(void)
{
    uint64_t now = 1000000000u + atomic_load(&rig_spent_ns) + atomic_load(&rig_ahead_ns);
    if (rig_computed) {
        rig_computed = false;
        rig_stand();
    }
    return now;
}

static void rig_attention(struct ops_dev *d, const struct ops_attention *a)
{
    if (a->layer == 0 && rig_on_window)
        rig_on_window(d, a);
    if (a->layer == 0) {
        atomic_fetch_add(&rig_n_computed, a->n_tokens);
        atomic_fetch_add(&rig_spent_ns, 50000 + atomic_load(&rig_token_ns) * a->n_tokens);
    }
    rig_real->attention(d, a);
}

static int rig_sync(struct ops_dev *d, char *err, size_t errlen)
{
    int r = rig_real->sync(d, err, errlen);
    if (rig_stages > 1)
        rig_stand(); /* once in each stage */
    else
        rig_computed = true;
    if (r < 0 || atomic_load(&rig_failures) == 0)
        return r;
    atomic_fetch_sub(&rig_failures, 1);
    snprintf(err, errlen, "the device failed, as it was told to");
    return -EIO;
}

static inline struct rig rig_open(const struct sched_options *o, uint32_t kv_tokens)
{
    static struct ops ops;
    char path[4096], err[512] = "";
    struct rig rig = { .o = *o };
    const char *data = getenv("BERTH_TEST_DATA");
    cr_assert(data, "BERTH_TEST_DATA is not set");
    snprintf(path, sizeof path, "%s/%s", data, rig_file);
    cr_assert_eq(gguf_open(path, &rig.f, err, sizeof err), 0, "%s: %s", path, err);
    cr_assert_eq(model_read(rig.f, &rig.m, err, sizeof err), 0, "%s", err);
    cr_assert_eq(tokenizer_open(rig.f, &rig.t, err, sizeof err), 0, "%s", err);
    struct engine_options eo = { .isa = "auto",
                                 .threads = 1,
                                 .stages = rig_stages,
                                 .kv_tokens = kv_tokens,
                                 .max_rows = o->rows,
                                 .max_tokens = o->chunk_tokens + o->rows };
    rig_real = &ops_cpu;
    ops = *rig_real;
    ops.sync = rig_sync;
    ops.attention = rig_attention;
    rig.o.now_ns = rig_now_ns;
    cr_assert_eq(engine_open_on(&ops, rig.f, rig.m, &eo, NULL, NULL, &rig.e, err, sizeof err), 0, "%s", err);
    cr_assert_eq(sched_start(rig.e, rig.t, &rig.o, &rig.s, err, sizeof err), 0, "%s", err);
    return rig;
}

static inline void rig_close(struct rig *r)
{
    struct engine_info info;
    sched_stop(r->s);
    engine_info_get(r->e, &info);
    cr_expect_eq(info.blocks_used, 0, "a stopped scheduler holds no blocks");
    engine_close(r->e);
    tokenizer_free(r->t);
    model_free(r->m);
    gguf_close(r->f);
}

/* What one job said. */
struct heard {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t job;
    unsigned started, progress, texts, done;
    bool order_broken;
    int32_t slot, last_slot;
    unsigned start_order;       /* 1, 2, ... over all jobs of the test */
    const struct heard *beside; /* NULL, or a job whose progress is noted when this one starts */
    uint32_t beside_read;
    enum sched_stop stop;
    struct sched_timings timings, at_start;
    char error[200];
    struct buf text;
    int32_t tokens[2048];
    float logprobs[2048];
    size_t n_tokens, top_too_few;
};

static inline void heard_init(struct heard *h)
{
    memset(h, 0, sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
}

static inline void heard_clear(struct heard *h)
{
    buf_free(&h->text);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
}

static inline void heard_event(void *arg, const struct sched_event *ev)
{
    struct heard *h = arg;
    pthread_mutex_lock(&h->lock);
    if (h->done || (ev->kind != SCHED_EV_DONE && (ev->kind == SCHED_EV_STARTED) != !h->started))
        h->order_broken = true;
    h->timings = ev->timings;
    h->last_slot = ev->slot;
    if (ev->kind == SCHED_EV_STARTED) {
        h->started++;
        h->slot = ev->slot;
        h->start_order = atomic_fetch_add(&rig_starts, 1) + 1;
        /* Both are told on the scheduler's thread. */
        h->beside_read = h->beside ? h->beside->timings.prompt : 0;
        h->at_start = ev->timings;
    } else if (ev->kind == SCHED_EV_PROGRESS) {
        h->progress++;
        if (h->texts)
            h->order_broken = true;
    } else if (ev->kind == SCHED_EV_TEXT) {
        h->texts++;
        buf_append(&h->text, ev->text, ev->text_len);
        for (size_t i = 0; i < ev->n_tokens && h->n_tokens < 2048; i++) {
            h->tokens[h->n_tokens] = ev->tokens[i].choice.token;
            h->logprobs[h->n_tokens++] = ev->tokens[i].choice.logprob;
        }
    } else {
        h->done++;
        h->stop = ev->stop;
        snprintf(h->error, sizeof h->error, "%s", ev->error ? ev->error : "");
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

enum heard_what { HEARD_STARTED, HEARD_TEXT, HEARD_DONE };

static inline void heard_wait(struct heard *h, enum heard_what what)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&h->lock);
    while (!(what == HEARD_STARTED ? h->started : what == HEARD_TEXT ? h->texts : h->done) && !h->done)
        if (pthread_cond_timedwait(&h->changed, &h->lock, &until) == ETIMEDOUT)
            break;
    bool ok = what == HEARD_DONE ? h->done == 1 : h->started || h->done;
    pthread_mutex_unlock(&h->lock);
    cr_assert(ok, "waited 60 s for %s in vain", what == HEARD_DONE ? "the end" : "a beginning");
}

/* n tokens that depend on `seed`, none of them a control token. */
static inline int32_t *prompt_of(uint32_t seed, size_t n)
{
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    uint64_t x = seed * 0x9E3779B97F4A7C15ull + 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        tokens[i] = (int32_t)(3 + (x >> 33) % 300);
    }
    return tokens;
}

static inline struct sched_job job_of(const int32_t *tokens, size_t n, uint32_t max_new, struct heard *h)
{
    return (struct sched_job){ .tokens = tokens,
                               .n_tokens = n,
                               .sampling = { .temperature = 0,
                                             .top_p = 1,
                                             .repeat_penalty = 1,
                                             .ignore_eos = true,
                                             .n_top_logprobs = 0 },
                               .max_new_tokens = max_new,
                               .cache_prompt = true,
                               .id_slot = -1,
                               .on_event = heard_event,
                               .arg = h };
}

static inline int submit(struct rig *r, const struct sched_job *job)
{
    char err[256] = "";
    struct heard *h = job->arg;
    int rc = sched_submit(r->s, job, &h->job, err, sizeof err);
    cr_expect((rc < 0) == (*err != 0), "an error has a text: %d \"%s\"", rc, err);
    return rc;
}

/* Runs one job to its end. */
static inline void run_job(struct rig *r, const struct sched_job *job)
{
    cr_assert_eq(submit(r, job), 0);
    heard_wait(job->arg, HEARD_DONE);
}

/* Submits a job and lets windows through until it has said something and the next one stands. */
static inline void rig_until_text(struct rig *r, const struct sched_job *job)
{
    struct heard *h = job->arg;
    bool said = false;
    rig_shut();
    cr_assert_eq(submit(r, job), 0);
    for (;;) {
        rig_await_window();
        pthread_mutex_lock(&h->lock);
        said = h->texts > 0;
        pthread_mutex_unlock(&h->lock);
        cr_assert_not(h->done, "it ended without a word");
        if (said)
            return;
        rig_pass(1);
    }
}

/* Submits a job that has said something when this returns, and keeps its slot, silent, until it is resumed or
 * cancelled. */
static inline void rig_hold(struct rig *r, const struct sched_job *job)
{
    struct heard *h = job->arg;
    rig_until_text(r, job);
    sched_pause(r->s, h->job, true);
    rig_pass(1);
    rig_open_gate();
}

static inline void expect_same(const struct heard *a, const struct heard *b, const char *what)
{
    cr_expect_eq(a->n_tokens, b->n_tokens, "%s: %zu and %zu tokens", what, a->n_tokens, b->n_tokens);
    cr_expect_arr_eq(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens, "%s: other tokens", what);
    cr_expect_arr_eq(a->logprobs, b->logprobs, a->n_tokens * sizeof *a->logprobs, "%s: other logprobs", what);
    cr_expect(a->text.len == b->text.len &&
                  (!a->text.len || memcmp(a->text.data, b->text.data, a->text.len) == 0),
              "%s: other text", what);
}

static inline void expect_balance(struct rig *r)
{
    struct sched_status *st = sched_status_get(r->s);
    cr_assert(st);
    cr_expect_eq(st->started, st->completed + st->cancelled + st->failed + st->running + st->waiting,
                 "started %lu completed %lu cancelled %lu failed %lu running %u waiting %u", st->started,
                 st->completed, st->cancelled, st->failed, st->running, st->waiting);
    uint32_t busy = 0;
    for (uint32_t i = 0; i <= st->slots; i++)
        busy += st->slot[i].busy;
    cr_expect_eq(busy, st->running);
    free(st);
}

/* What happened since placement event `after`, as "place main<none 0" a piece, separated by ", ". */
static inline const char *placements(struct rig *r, uint64_t after, char *text, size_t len)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(r->s, after, events), used = 0;
    *text = 0;
    for (size_t i = 0; i < n && used < len; i++) {
        char at[2][16];
        const int32_t slots[2] = { events[i].slot, events[i].source };
        for (int k = 0; k < 2; k++)
            snprintf(at[k], sizeof at[k],
                     slots[k] == SCHED_MAIN   ? "main"
                     : slots[k] == SCHED_NONE ? "-"
                                              : "%d",
                     slots[k]);
        used += (size_t)snprintf(text + used, len - used, "%s%s %s<%s %u", i ? ", " : "",
                                 sched_placement_name(events[i].kind), at[0], at[1], events[i].tokens);
    }
    return text;
}

static inline uint64_t last_placement(struct rig *r)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(r->s, 0, events);
    return n ? events[n - 1].id : 0;
}

/* The next turn of a conversation: what was said so far, and n more tokens. To be freed. */
static inline int32_t *next_turn(const int32_t *prompt, size_t n_prompt, const struct heard *h, uint32_t seed,
                                 size_t n, size_t *ret_n)
{
    int32_t *more = prompt_of(seed, n), *all = malloc((n_prompt + h->n_tokens + n + 1) * sizeof *all);
    memcpy(all, prompt, n_prompt * sizeof *all);
    memcpy(all + n_prompt, h->tokens, h->n_tokens * sizeof *all);
    memcpy(all + n_prompt + h->n_tokens, more, n * sizeof *all);
    free(more);
    *ret_n = n_prompt + h->n_tokens + n;
    return all;
}
