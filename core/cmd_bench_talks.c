/* Bench of settings, measuring: conversations through a scheduler of their own, in this process, as a server
 * runs them: all begin at once, each sends its next turn when the last one is answered. Threads: the caller's
 * waits, the scheduler's tells what happens. Must not know: which settings are compared. Tests:
 * tests/e2e/test_bench_windows.py */
#include "cmd_bench_windows.h"
#include "cmd_serve.h"
#include "cmd_serve_load.h"
#include "sched/sched.h"
#include "util/clock.h"
#include "util/rng.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct talk {
    struct bench_arm *arm;
    int32_t *tokens; /* all that was said; `generate` more fit than the prompt has */
    uint32_t n, n_asked;
    uint32_t turn;
    bool answered; /* arm.lock */
};

struct bench_arm {
    const struct config *config;
    struct bench_talks t;
    struct loaded model;
    struct sched *sched;
    struct talk *talks; /* [streams] */
    double *first_s;    /* [streams * turns] */
    uint32_t n_first;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char error[200]; /* arm.lock */
    uint64_t generated, read;
};

static int out_of_memory(char *err, size_t errlen)
{
    snprintf(err, errlen, "out of memory");
    return -ENOMEM;
}

static uint32_t longest(const struct bench_talks *t)
{
    return t->prompt + t->generate + (t->turns - 1) * (t->more + t->generate);
}

static int make_talks(struct bench_arm *a, char *err, size_t errlen)
{
    a->talks = calloc(a->t.streams, sizeof *a->talks);
    a->first_s = calloc((size_t)a->t.streams * a->t.turns, sizeof *a->first_s);
    if (!a->talks || !a->first_s)
        return out_of_memory(err, errlen);
    for (uint32_t i = 0; i < a->t.streams; i++) {
        a->talks[i].arm = a;
        a->talks[i].tokens = calloc(longest(&a->t), sizeof *a->talks[i].tokens);
        if (!a->talks[i].tokens)
            return out_of_memory(err, errlen);
    }
    return 0;
}

int bench_arm_open(const struct config *c, const struct bench_talks *t, struct bench_arm **ret_arm, char *err,
                   size_t errlen)
{
    struct bench_arm *a = calloc(1, sizeof *a);
    if (!a)
        return out_of_memory(err, errlen);
    a->config = c;
    a->t = *t;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    int r = load_model(c, &a->model, err, errlen);
    if (r == 0)
        r = make_talks(a, err, errlen);
    if (r == 0 && longest(t) > a->model.context) {
        snprintf(err, errlen, "a conversation of %u tokens is longer than the context of %u", longest(t),
                 a->model.context);
        r = -EINVAL;
    }
    if (r < 0) {
        bench_arm_close(a);
        return r;
    }
    *ret_arm = a;
    return 0;
}

void bench_arm_close(struct bench_arm *a)
{
    if (!a)
        return;
    for (uint32_t i = 0; a->talks && i < a->t.streams; i++)
        free(a->talks[i].tokens);
    free(a->talks);
    free(a->first_s);
    loaded_clear(&a->model);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

const char *bench_arm_device(const struct bench_arm *a)
{
    return a->model.info.device;
}

/* ---- a round ---- */

/* Tokens that no other conversation says in this place. */
static void say(struct talk *x, uint64_t number, uint32_t n)
{
    uint32_t words[4], n_vocab = tokenizer_n_vocab(x->arm->model.tokenizer);
    uint64_t stream = (uint64_t)(x - x->arm->talks);
    for (uint32_t i = 0; i < n; i++) {
        rng_philox(number, stream << 32 | x->n, words);
        x->tokens[x->n++] = (int32_t)(words[0] % n_vocab);
    }
}

/* [scheduler] */
static void on_event(void *arg, const struct sched_event *ev)
{
    struct talk *x = arg;
    struct bench_arm *a = x->arm;
    for (size_t i = 0; i < ev->n_tokens && x->n < x->n_asked + a->t.generate; i++)
        x->tokens[x->n++] = ev->tokens[i].choice.token;
    if (ev->kind != SCHED_EV_DONE)
        return;
    pthread_mutex_lock(&a->lock);
    a->generated += ev->timings.generated;
    a->read += ev->timings.prompt;
    if (ev->stop != SCHED_STOP_LENGTH)
        snprintf(a->error, sizeof a->error, "%s", ev->error ? ev->error : "a request was ended");
    if (ev->timings.first_token_ms > 0)
        a->first_s[a->n_first++] = ev->timings.first_token_ms / 1e3;
    x->answered = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static int ask(struct talk *x, char *err, size_t errlen)
{
    struct bench_arm *a = x->arm;
    uint64_t id;
    x->n_asked = x->n;
    struct sched_job job = { .tokens = x->tokens,
                             .n_tokens = x->n,
                             /* The tokens are told only with their logprobs. */
                             .sampling = { .top_p = 1, .repeat_penalty = 1, .ignore_eos = true },
                             .max_new_tokens = a->t.generate,
                             .cache_prompt = true,
                             .id_slot = -1,
                             .on_event = on_event,
                             .arg = x };
    return sched_submit(a->sched, &job, &id, err, errlen);
}

/* Waits for an answer; false when something failed. */
static struct talk *await(struct bench_arm *a)
{
    struct talk *x = NULL;
    pthread_mutex_lock(&a->lock);
    while (!x && !*a->error) {
        for (uint32_t i = 0; i < a->t.streams && !x; i++)
            x = a->talks[i].answered ? &a->talks[i] : NULL;
        if (!x)
            pthread_cond_wait(&a->changed, &a->lock);
    }
    if (x)
        x->answered = false;
    pthread_mutex_unlock(&a->lock);
    return x;
}

static int run_talks(struct bench_arm *a, uint64_t number, char *err, size_t errlen)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < a->t.streams; i++) {
        struct talk *x = &a->talks[i];
        x->n = x->turn = 0;
        x->answered = false;
        say(x, number, a->t.prompt);
        r = ask(x, err, errlen);
    }
    for (uint32_t left = a->t.streams * a->t.turns; r == 0 && left; left--) {
        struct talk *x = await(a);
        if (!x) {
            snprintf(err, errlen, "%s", a->error);
            return -EIO;
        }
        if (++x->turn == a->t.turns)
            continue;
        say(x, number, a->t.more);
        r = ask(x, err, errlen);
    }
    return r;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The least of the values that at least `share` of all are not above. */
static double percentile(const double *sorted, uint32_t n, double share)
{
    uint32_t i = (uint32_t)(share * n + 0.999999);
    return n ? sorted[i ? i - 1 : 0] : 0;
}

int bench_arm_round(struct bench_arm *a, uint64_t number, struct bench_talks_result *ret, char *err,
                    size_t errlen)
{
    struct sched_options o = serve_sched_options(a->config, &a->model);
    a->generated = a->read = a->n_first = 0;
    *a->error = '\0';
    int r = sched_start(a->model.engine, a->model.tokenizer, &o, &a->sched, err, errlen);
    if (r < 0)
        return r;
    uint64_t begin_ns = clock_now_ns();
    r = run_talks(a, number, err, errlen);
    double seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
    sched_stop(a->sched);
    if (r < 0)
        return r;
    qsort(a->first_s, a->n_first, sizeof *a->first_s, by_size);
    *ret = (struct bench_talks_result){ .tokens_per_s = (double)a->generated / seconds,
                                        .first_p50_s = percentile(a->first_s, a->n_first, 0.5),
                                        .first_p95_s = percentile(a->first_s, a->n_first, 0.95),
                                        .read_tokens = (double)a->read };
    return 0;
}
