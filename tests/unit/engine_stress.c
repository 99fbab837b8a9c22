/* Stages under stress, for ThreadSanitizer, where Criterion does not start: windows of random rows in flight
 * on three stages with two threads each, begun and ended in random order, while idle sessions are forked, cut
 * and freed, and now and then a stage fails. Every sequence is the beginning of one of a few texts, so what
 * its logits must be was computed before, on one stage. Usage: engine_stress [STEPS [SEED [ISA]]] */
#include "engine/engine_impl.h"
#include "tiny_model.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

#define TEXTS 4u
#define LONG 160u
#define SESSIONS 10u
#define ROWS 4u

static const struct tiny_shape shape = { .layers = 5,
                                         .embd = 32,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 16,
                                         .ff = 64,
                                         .vocab = 50,
                                         .type = 8,
                                         .seed = 6 };

/* The texts share their first half. */
static int32_t texts[TEXTS][LONG];
static uint64_t wanted[TEXTS][LONG]; /* a digest of each token's logits */
static atomic_uint told, fail_in;
static const char *isa = "auto";

struct leg {
    struct flight *flight;
    uint32_t n, who[ROWS], before[ROWS];
};

static struct {
    struct engine *e;
    struct session *sessions[SESSIONS];
    uint32_t text[SESSIONS];
    struct leg legs[SESSIONS + 1]; /* the last one: being planned, without a session that is free */
    uint32_t n_legs;
    uint64_t seed;
    uint32_t wrong, compared, failed, refused, together;
} w;

static uint32_t below(uint32_t n)
{
    return random_below(&w.seed, n);
}

static uint64_t digest(const float *logits)
{
    uint64_t h = 1469598103934665603u;
    for (const unsigned char *p = (const unsigned char *)logits,
                             *end = (const unsigned char *)(logits + shape.vocab);
         p < end; p++)
        h = (h ^ *p) * 1099511628211u;
    return h;
}

static void expect(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "engine_stress: %s\n", what);
    w.wrong++;
}

static int failing_sync(struct ops_dev *d, char *err, size_t errlen)
{
    int r = ops_cpu.sync(d, err, errlen);
    uint32_t left = atomic_load(&fail_in);
    if (r < 0 || !left || !atomic_compare_exchange_strong(&fail_in, &left, left - 1) || left != 1)
        return r;
    snprintf(err, errlen, "told to fail");
    return -EIO;
}

static struct engine *open_engine(const struct ops *ops, uint32_t stages, uint32_t threads)
{
    struct engine_options o = { .isa = isa,
                                .threads = threads,
                                .stages = stages,
                                .kv_tokens = 14 * 64,
                                .max_rows = ROWS,
                                .max_tokens = 2 * LONG };
    struct bytes file = tiny_model(&shape, NULL);
    struct engine *e = NULL;
    struct gguf *f = NULL;
    struct model *m = NULL;
    char err[256] = "";
    int r = open_bytes(file.data, file.len, &f, err, sizeof err);
    if (r == 0)
        r = model_read(f, &m, err, sizeof err);
    if (r == 0)
        r = engine_open_on(ops, f, m, &o, NULL, NULL, &e, err, sizeof err);
    expect(r == 0, err);
    model_free(m);
    gguf_close(f);
    free(file.data);
    return e;
}

static bool compute_wanted(void)
{
    struct engine *e = open_engine(&ops_cpu, 1, 1);
    char err[256];
    uint64_t seed = 9;
    for (uint32_t t = 0; e && t < TEXTS; t++) {
        struct session *s;
        for (uint32_t i = 0; i < LONG; i++)
            texts[t][i] = i < LONG / 2 && t ? texts[0][i] : (int32_t)random_below(&seed, shape.vocab);
        if (session_new(e, &s) < 0)
            return false;
        struct engine_row row = { .session = s, .tokens = texts[t], .n = LONG, .n_logits = LONG };
        expect(engine_window(e, &row, 1, err, sizeof err) == 0, "the texts cannot be computed");
        for (uint32_t i = 0; !w.wrong && i < LONG; i++)
            wanted[t][i] = digest(row.logits + (size_t)i * shape.vocab);
        session_free(s);
    }
    engine_close(e);
    return e != NULL;
}

static void begin(void)
{
    struct leg *l = &w.legs[w.n_legs];
    struct engine_row rows[ROWS];
    char err[256] = "";
    uint32_t most = 1 + below(ROWS), first = below(SESSIONS);
    l->n = 0;
    for (uint32_t k = 0; k < SESSIONS && l->n < most; k++) {
        uint32_t i = (first + k) % SESSIONS, len = session_len(w.sessions[i]);
        uint32_t n = below(3) ? 1 + below(3) : 1 + below(50);
        if (session_in_flight(w.sessions[i]) || len == LONG)
            continue;
        n = n < LONG - len ? n : LONG - len;
        l->who[l->n] = i;
        l->before[l->n] = len;
        rows[l->n++] = (struct engine_row){
            .session = w.sessions[i], .tokens = texts[w.text[i]] + len, .n = n, .n_logits = n
        };
    }
    if (!l->n)
        return;
    if (!atomic_load(&fail_in) && below(40) == 0)
        atomic_store(&fail_in, 1 + below(6));
    int r = engine_begin(w.e, rows, l->n, &l->flight, err, sizeof err);
    expect(r == 0 || r == -ENOSPC, err);
    w.refused += r < 0;
    w.n_legs += r == 0;
    w.together += r == 0 && w.n_legs > 1;
}

static void compare(const struct leg *l)
{
    for (uint32_t k = 0; k < l->n; k++) {
        const float *logits = flight_logits(l->flight, k);
        uint32_t len = session_len(w.sessions[l->who[k]]);
        for (uint32_t i = l->before[k]; i < len; i++, w.compared++)
            expect(digest(logits + (size_t)(i - l->before[k]) * shape.vocab) == wanted[w.text[l->who[k]]][i],
                   "other logits than on one stage");
    }
}

static void end(void)
{
    char err[256] = "";
    uint32_t which = below(w.n_legs);
    struct flight *first = below(2) ? engine_next_finished(w.e, below(2)) : NULL;
    for (uint32_t i = 0; first && i < w.n_legs; i++)
        which = w.legs[i].flight == first ? i : which;
    struct leg l = w.legs[which];
    int r = flight_end(l.flight, err, sizeof err);
    expect(r == 0 || (r == -EIO && strstr(err, "of 3 (layers ") && strstr(err, "told to fail")), err);
    w.failed += r < 0;
    for (uint32_t k = 0; r < 0 && k < l.n; k++)
        expect(session_len(w.sessions[l.who[k]]) == l.before[k], "a failure changed a session");
    if (r == 0)
        compare(&l);
    flight_release(l.flight);
    w.legs[which] = w.legs[--w.n_legs];
}

static void change_idle(void)
{
    uint32_t to = below(SESSIONS), from = below(SESSIONS);
    struct session *s = w.sessions[to];
    if (session_in_flight(s))
        return;
    uint32_t n = below(session_len(w.sessions[from]) + 1);
    if (below(3) == 0) {
        session_free(s);
        expect(session_new(w.e, &w.sessions[to]) == 0, "no session");
        w.text[to] = below(TEXTS);
    } else {
        expect(session_fork(s, w.sessions[from], n) == 0, "no fork");
        w.text[to] = n <= LONG / 2 ? below(TEXTS) : w.text[from];
    }
}

static void count(void *arg)
{
    (void)arg;
    atomic_fetch_add(&told, 1);
}

static void run(uint32_t steps)
{
    uint32_t begun = 0;
    engine_watch(w.e, count, NULL);
    for (uint32_t i = 0; i < SESSIONS; i++)
        expect(session_new(w.e, &w.sessions[i]) == 0, "no session");
    for (uint32_t step = 0; step < steps && !w.wrong; step++) {
        uint32_t what = below(10), before = w.n_legs;
        if (what < 4)
            begin();
        else if (what < 8 && w.n_legs)
            end();
        else
            change_idle();
        begun += w.n_legs > before;
    }
    while (w.n_legs)
        end();
    engine_watch(w.e, NULL, NULL);
    expect(atomic_load(&told) == begun, "not every end was told");
    for (uint32_t i = 0; i < SESSIONS; i++)
        session_free(w.sessions[i]);
    struct engine_info info;
    engine_info_get(w.e, &info);
    expect(info.blocks_used == 0 && info.blocks_flying == 0, "blocks are left in use");
    printf("%u windows, %u begun beside others, %u logits compared, %u failed, %u refused\n", begun,
           w.together, w.compared, w.failed, w.refused);
    expect(steps < 1000 || (w.together && w.compared && w.failed && w.refused), "too tame");
}

int main(int argc, char **argv)
{
    static struct ops ops;
    uint32_t steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 3000;
    w.seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    isa = argc > 3 ? argv[3] : isa;
    ops = ops_cpu;
    ops.sync = failing_sync;
    if (compute_wanted() && (w.e = open_engine(&ops, 3, 6)))
        run(steps);
    engine_close(w.e);
    return w.wrong ? 1 : 0;
}
