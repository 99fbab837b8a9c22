/* The scheduler under stress, for ThreadSanitizer, where Criterion does not start: several threads submit,
 * cancel and pause random turns of a few conversations on a pool that is too small for them, while others
 * read its records. Every job must end exactly once, and what the same prompt is answered must always be the
 * same, however many stages and groups there are. The scheduler looks over all its books after every step.
 * Usage: sched_stress [JOBS [SEED [STAGES [GROUPS [padded]]]]] */
#include "../cases.h"
#include "engine/engine.h"
#include "sched/placement.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 3u
#define AHEAD 6u /* jobs of one thread at once */
#define FAMILIES 6u
#define ANSWERS 4096u
#define MAX_NEW 40u

static struct sched *sched;
static atomic_bool over;
static atomic_uint ended, wrong;

/* What a prompt was answered the first time. */
static struct {
    pthread_mutex_t lock;
    struct {
        uint32_t family, n, n_tokens;
        int32_t tokens[MAX_NEW];
    } at[ANSWERS];
    uint32_t n;
} answers = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct turn {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t job;
    uint32_t family, n, done, n_tokens;
    enum sched_stop stop;
    int32_t prompt[512], tokens[MAX_NEW];
};

static void fail(const char *what, unsigned a, unsigned b)
{
    fprintf(stderr, "sched_stress: %s: %u, %u\n", what, a, b);
    atomic_fetch_add(&wrong, 1);
}

static uint32_t random_below(uint64_t *x, uint32_t n)
{
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*x >> 33) % n);
}

static void compare(const struct turn *t)
{
    pthread_mutex_lock(&answers.lock);
    for (uint32_t i = 0; i < answers.n; i++) {
        if (answers.at[i].family != t->family || answers.at[i].n != t->n)
            continue;
        uint32_t n = t->n_tokens < answers.at[i].n_tokens ? t->n_tokens : answers.at[i].n_tokens;
        if (memcmp(answers.at[i].tokens, t->tokens, n * sizeof *t->tokens))
            fail("another answer to family and length", t->family, t->n);
        pthread_mutex_unlock(&answers.lock);
        return;
    }
    if (answers.n < ANSWERS) {
        answers.at[answers.n].family = t->family;
        answers.at[answers.n].n = t->n;
        answers.at[answers.n].n_tokens = t->n_tokens;
        memcpy(answers.at[answers.n++].tokens, t->tokens, sizeof t->tokens);
    }
    pthread_mutex_unlock(&answers.lock);
}

static void on_event(void *arg, const struct sched_event *ev)
{
    struct turn *t = arg;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < ev->n_tokens && t->n_tokens < MAX_NEW; i++)
        t->tokens[t->n_tokens++] = ev->tokens[i].choice.token;
    if (ev->kind == SCHED_EV_DONE) {
        t->stop = ev->stop;
        if (t->done++)
            fail("ended more than once", t->done, 0);
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Some beginning of one of the families, which share the beginnings of each other. */
static void make_prompt(struct turn *t, uint64_t *x)
{
    t->family = random_below(x, FAMILIES);
    t->n = 1 + random_below(x, 300);
    for (uint32_t i = 0; i < t->n; i++) {
        uint64_t y = i < 60 + 20 * (t->family % 3) ? 1 : t->family + 2;
        y = (y * 1000003 + i) * 0x9E3779B97F4A7C15ull;
        t->prompt[i] = i % 50 == 49 ? 1 : (int32_t)(3 + (y >> 33) % 300);
    }
}

static void begin(struct turn *t, uint64_t *x)
{
    char err[256];
    make_prompt(t, x);
    t->done = t->n_tokens = 0;
    uint32_t dice = random_below(x, 1000);
    struct sched_job job = {
        .tokens = t->prompt,
        .n_tokens = t->n,
        .sampling = { .top_p = 1, .repeat_penalty = 1, .ignore_eos = true, .n_top_logprobs = 0 },
        .max_new_tokens = 1 + dice % MAX_NEW,
        .cache_prompt = dice % 10 != 0,
        .id_slot = dice % 13 ? -1 : (int32_t)(dice % 8),
        .client_key = 1 + dice % 3,
        .on_event = on_event,
        .arg = t,
    };
    while (sched_submit(sched, &job, &t->job, err, sizeof err) < 0)
        ; /* the queue is full: others end */
    if (dice % 5 == 0)
        sched_cancel(sched, t->job);
    if (dice % 7 == 0) {
        sched_pause(sched, t->job, true);
        sched_pause(sched, t->job, false);
    }
}

static void await(struct turn *t)
{
    pthread_mutex_lock(&t->lock);
    while (!t->done)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    if (t->stop == SCHED_STOP_FAILED)
        fail("failed", t->family, t->n);
    compare(t);
    atomic_fetch_add(&ended, 1);
}

struct client {
    pthread_t thread;
    uint32_t jobs;
    uint64_t seed;
};

static void *client_main(void *arg)
{
    struct client *c = arg;
    struct turn *turns = calloc(AHEAD, sizeof *turns);
    if (!turns)
        return NULL;
    for (uint32_t i = 0; i < AHEAD; i++) {
        pthread_mutex_init(&turns[i].lock, NULL);
        pthread_cond_init(&turns[i].changed, NULL);
    }
    for (uint32_t i = 0; i < c->jobs + AHEAD; i++) {
        struct turn *t = &turns[i % AHEAD];
        if (i >= AHEAD)
            await(t);
        if (i < c->jobs)
            begin(t, &c->seed);
    }
    free(turns);
    return NULL;
}

static void *reader_main(void *arg)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    uint64_t seen = 0;
    (void)arg;
    while (!atomic_load(&over)) {
        struct sched_status *st = sched_status_get(sched);
        if (st && st->started != st->completed + st->cancelled + st->failed + st->running + st->waiting)
            fail("counts do not add up", (unsigned)st->started, (unsigned)st->completed);
        free(st);
        size_t n = sched_placements_get(sched, seen, events);
        for (size_t i = 0; i < n; i++) {
            if (events[i].id <= seen)
                fail("an event twice", (unsigned)events[i].id, 0);
            seen = events[i].id;
        }
        struct timespec nap = { .tv_nsec = 1000000 };
        nanosleep(&nap, NULL);
    }
    return NULL;
}

static int run(struct engine *e, const struct tokenizer *t, uint32_t jobs, uint64_t seed, uint32_t groups,
               bool padded)
{
    struct sched_options o = { .context = 512,
                               .slots = 8,
                               .groups = groups,
                               .padded = padded,
                               .rows = 4,
                               .queue_max = 16,
                               .chunk_tokens = 64,
                               .max_pause_ms = 20,
                               .turn_token = 1,
                               .check = true };
    struct client clients[THREADS];
    pthread_t reader;
    char err[256] = "";
    if (sched_start(e, t, &o, &sched, err, sizeof err) < 0) {
        fprintf(stderr, "sched_stress: %s\n", err);
        return 1;
    }
    pthread_create(&reader, NULL, reader_main, NULL);
    for (uint32_t i = 0; i < THREADS; i++) {
        clients[i] = (struct client){ .jobs = jobs / THREADS, .seed = seed * 1000 + i };
        pthread_create(&clients[i].thread, NULL, client_main, &clients[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(clients[i].thread, NULL);
    atomic_store(&over, true);
    pthread_join(reader, NULL);
    struct sched_status *st = sched_status_get(sched);
    printf("%u jobs, %lu cancelled, %lu of %lu prompt tokens reused, %lu of %lu draft tokens right, %lu "
           "windows\n",
           atomic_load(&ended), st->cancelled, st->cached_tokens, st->prompt_tokens, st->accepted_tokens,
           st->drafted_tokens, st->step);
    free(st);
    sched_stop(sched);
    struct engine_info info;
    engine_info_get(e, &info);
    if (info.blocks_used)
        fail("blocks are left in use", info.blocks_used, info.blocks);
    return atomic_load(&wrong) ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *data = getenv("BERTH_TEST_DATA");
    uint32_t jobs = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 600;
    uint64_t seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    uint32_t stages = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    uint32_t groups = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1;
    char path[4096], err[512] = "BERTH_TEST_DATA is not set";
    struct gguf *f = NULL;
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    struct engine *e = NULL;
    struct engine_options eo = {
        .isa = "auto", .threads = 1, .stages = stages, .kv_tokens = 640, .max_rows = 8, .max_tokens = 72
    };
    snprintf(path, sizeof path, "%s/tiny-deep.gguf", data ? data : "");
    int r = data ? gguf_open(path, &f, err, sizeof err) : -1;
    if (r == 0)
        r = model_read(f, &m, err, sizeof err);
    if (r == 0)
        r = tokenizer_open(f, &t, err, sizeof err);
    if (r == 0)
        r = engine_open(f, m, &eo, NULL, NULL, &e, err, sizeof err);
    if (r < 0) {
        fprintf(stderr, "sched_stress: %s\n", err);
        return 1;
    }
    r = run(e, t, cases_of(jobs, 3), seed, groups, argc > 5);
    engine_close(e);
    tokenizer_free(t);
    model_free(m);
    gguf_close(f);
    return r;
}
