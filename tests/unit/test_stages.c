/* Stages and flights: logits are the same bits whatever the layers are divided into and whatever is under way
 * at once; windows really overlap; sessions are as before until a flight ended; a stage that fails takes down
 * what it was computing and nothing else. */
#include "../cases.h"
#include "engine/balance.h"
#include "engine_rig.h"
#include <pthread.h>

#define VOCAB 99u
#define LONG 150u
#define SESSIONS 6u

static const struct tiny_shape shape = { .layers = 5,
                                         .embd = 64,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 16,
                                         .ff = 96,
                                         .vocab = VOCAB,
                                         .type = 8,
                                         .seed = 4 };

static struct engine_options staged(uint32_t stages, uint32_t threads)
{
    struct engine_options o = rig_options;
    o.stages = stages;
    o.threads = threads;
    return o;
}

static struct flight *begin_row(struct rig *r, struct session *s, const int32_t *tokens, uint32_t n)
{
    struct engine_row row = { .session = s, .tokens = tokens, .n = n, .n_logits = n };
    struct flight *f;
    char err[256] = "";
    cr_assert_eq(engine_begin(r->e, &row, 1, &f, err, sizeof err), 0, "%s", err);
    return f;
}

static void end_well(struct flight *f)
{
    char err[256] = "";
    cr_assert_eq(flight_end(f, err, sizeof err), 0, "%s", err);
}

static bool same(const float *a, const float *b, uint32_t tokens)
{
    return memcmp(a, b, (size_t)tokens * VOCAB * sizeof *a) == 0;
}

/* ---- who gets which layers ---- */

static double slowest(const struct balance *b, const uint32_t *first)
{
    double max = 0;
    for (uint32_t s = 0; s < b->n_stages; s++) {
        double cost = (s == 0 ? b->embed : 0) + (s + 1 == b->n_stages ? b->head : 0);
        for (uint32_t i = first[s]; i < first[s + 1]; i++)
            cost += b->layer[i];
        max = cost / b->threads[s] > max ? cost / b->threads[s] : max;
    }
    return max;
}

/* Over every way to share the layers: a bit for each border between two of them. */
static double best_of_all(const struct balance *b)
{
    double best = INFINITY;
    for (uint32_t borders = 0; borders < 1u << (b->n_layers - 1); borders++) {
        uint32_t first[10] = { 0 }, n = 1;
        for (uint32_t i = 1; i < b->n_layers; i++)
            if (borders >> (i - 1) & 1)
                first[n++] = i;
        first[n] = b->n_layers;
        if (n != b->n_stages)
            continue;
        double d = slowest(b, first);
        best = d < best ? d : best;
    }
    return best;
}

Test(balance, no_other_way_has_a_faster_slowest_stage)
{
    uint64_t seed = 7;
    for (int i = 0; i < 400; i++) {
        double layer[9];
        uint32_t threads[5], first[6] = { 0 };
        struct balance b = { .layer = layer, .threads = threads, .at_first = 1 };
        b.n_layers = 1 + random_below(&seed, 9);
        b.n_stages = 1 + random_below(&seed, b.n_layers < 5 ? b.n_layers : 5);
        b.embed = random_below(&seed, 4);
        b.head = random_below(&seed, 30);
        for (uint32_t l = 0; l < b.n_layers; l++)
            layer[l] = 1 + random_below(&seed, i % 2 ? 1 : 20);
        for (uint32_t s = 0; s < b.n_stages; s++)
            threads[s] = 1 + random_below(&seed, i % 3 ? 1 : 4);
        cr_assert_eq(balance_layers(&b, first), 0);
        cr_assert(first[0] == 0 && first[b.n_stages] == b.n_layers);
        for (uint32_t s = 0; s < b.n_stages; s++)
            cr_assert_lt(first[s], first[s + 1], "a stage without a layer");
        double best = best_of_all(&b);
        cr_expect_eq(slowest(&b, first), best, "case %d: %g where %g is possible", i, slowest(&b, first),
                     best);
    }
}

static void expect_shares(double embed, double head, uint32_t at_first, const uint32_t *threads,
                          uint32_t n_stages, const uint32_t *wanted)
{
    static const double layer[12] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    struct balance b = { .layer = layer,
                         .n_layers = 12,
                         .embed = embed,
                         .at_first = at_first,
                         .head = head,
                         .threads = threads,
                         .n_stages = n_stages };
    uint32_t first[13];
    cr_assert_eq(balance_layers(&b, first), 0);
    for (uint32_t s = 0; s < n_stages; s++)
        cr_expect_eq(first[s + 1] - first[s], wanted[s], "stage %u of %u has %u layers", s, n_stages,
                     first[s + 1] - first[s]);
}

Test(balance, heads_and_threads_count_and_ties_are_shared_evenly)
{
    static const uint32_t one[] = { 1, 1, 1, 1 }, uneven[] = { 1, 3 };
    expect_shares(0, 0, 1, one, 3, (const uint32_t[]){ 4, 4, 4 });
    expect_shares(0, 4, 1, one, 2, (const uint32_t[]){ 8, 4 });
    expect_shares(2, 0, 1, one, 2, (const uint32_t[]){ 5, 7 });
    expect_shares(0, 0, 1, uneven, 2, (const uint32_t[]){ 3, 9 });
    expect_shares(0, 0, 5, uneven, 2, (const uint32_t[]){ 5, 7 });
    expect_shares(0, 0, 10, one, 3, (const uint32_t[]){ 10, 1, 1 });
    /* The head is the slowest in any case: those before it still share what is left. */
    expect_shares(0, 100, 1, one, 3, (const uint32_t[]){ 5, 6, 1 });
    expect_shares(0, 0, 1, (const uint32_t[12]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 12,
                  (const uint32_t[12]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 });
}

/* ---- exactness ---- */

struct traveller {
    struct session *session;
    int32_t *tokens;
    float *alone;
};

struct journey { /* a flight of one to three travellers */
    struct flight *flight;
    uint32_t n, who[3], from[3];
};

struct travel {
    struct rig *rig;
    struct traveller at[SESSIONS];
    struct journey under_way[SESSIONS + 1]; /* the last one: being planned, without a session that is free */
    uint32_t n_under_way;
    uint64_t seed;
};

static void set_out(struct travel *t)
{
    struct journey *j = &t->under_way[t->n_under_way];
    struct engine_row rows[3];
    char err[256] = "";
    uint32_t wanted = 1 + random_below(&t->seed, 3), first = random_below(&t->seed, SESSIONS);
    *j = (struct journey){ 0 };
    for (uint32_t k = 0; k < SESSIONS && j->n < wanted; k++) {
        uint32_t i = (first + k) % SESSIONS, len = session_len(t->at[i].session);
        uint32_t take = random_below(&t->seed, 2) ? 1 : 1 + random_below(&t->seed, 40);
        if (len == LONG || session_in_flight(t->at[i].session))
            continue;
        take = take < LONG - len ? take : LONG - len;
        j->who[j->n] = i;
        j->from[j->n] = len;
        rows[j->n++] = (struct engine_row){
            .session = t->at[i].session, .tokens = t->at[i].tokens + len, .n = take, .n_logits = take
        };
    }
    if (!j->n)
        return;
    cr_assert_eq(engine_begin(t->rig->e, rows, j->n, &j->flight, err, sizeof err), 0, "%s", err);
    memset(rows, 0, sizeof rows); /* copied: nobody looks at them any more */
    t->n_under_way++;
}

static void arrive(struct travel *t, uint32_t which)
{
    struct journey j = t->under_way[which];
    end_well(j.flight);
    for (uint32_t k = 0; k < j.n; k++) {
        const struct traveller *a = &t->at[j.who[k]];
        uint32_t n = session_len(a->session) - j.from[k];
        cr_assert_gt(n, 0);
        cr_expect(same(flight_logits(j.flight, k), a->alone + (size_t)j.from[k] * VOCAB, n),
                  "session %u, tokens %u to %u", j.who[k], j.from[k], j.from[k] + n - 1);
    }
    flight_release(j.flight);
    t->under_way[which] = t->under_way[--t->n_under_way];
}

static void travel(struct rig *rig, struct traveller *start, uint64_t seed)
{
    struct travel t = { .rig = rig, .seed = seed };
    bool left = true;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        t.at[i] = start[i];
        t.at[i].session = rig_session(rig);
    }
    while (left || t.n_under_way) {
        if (left && random_below(&t.seed, 5) < 3)
            set_out(&t);
        else if (t.n_under_way)
            arrive(&t, random_below(&t.seed, t.n_under_way));
        left = false;
        for (uint32_t i = 0; i < SESSIONS; i++)
            left |= session_len(t.at[i].session) < LONG && !session_in_flight(t.at[i].session);
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        cr_expect_eq(session_len(t.at[i].session), LONG);
        session_free(t.at[i].session);
    }
    cr_expect_eq(rig_blocks_used(rig), 0);
}

Test(stages, one_two_three_and_five_stages_with_windows_in_flight_give_the_same_bits)
{
    static const uint32_t stages[] = { 1, 2, 3, 5 }, types[] = { 8, 0, 3 };
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct tiny_shape s = shape;
        struct engine_options o = staged(1, 1);
        s.type = types[t];
        s.untied = t == 1;
        struct rig rig = rig_open(&s, &o);
        struct traveller start[SESSIONS];
        for (uint32_t i = 0; i < SESSIONS; i++) {
            start[i].tokens = rig_tokens(LONG, VOCAB, 50 + i);
            start[i].alone = rig_alone(&rig, start[i].tokens, LONG);
        }
        rig_close(&rig);
        for (size_t k = 0; k < sizeof stages / sizeof *stages; k++)
            for (uint32_t threads = 1; threads <= 5; threads += 2) {
                if (!cases_all() && threads / 2 != (t + k) % 3)
                    continue;
                o = staged(stages[k], threads);
                rig = rig_open(&s, &o);
                travel(&rig, start, 10 * stages[k] + threads);
                rig_close(&rig);
            }
        for (uint32_t i = 0; i < SESSIONS; i++) {
            free(start[i].tokens);
            free(start[i].alone);
        }
    }
}

/* ---- how they are under way ---- */

static void count(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

Test(stages, a_stage_takes_what_has_waited_longest_and_finishing_is_told)
{
    for (uint32_t stages = 1; stages <= 3; stages++) {
        struct engine_options o = staged(stages, stages);
        struct rig rig = rig_open(&shape, &o);
        int32_t *tokens = rig_tokens(LONG, VOCAB, 1);
        struct session *s[SESSIONS];
        struct flight *f[SESSIONS];
        atomic_uint told = 0;

        cr_expect_null(engine_next_finished(rig.e, true), "nothing is under way");
        engine_watch(rig.e, count, &told);
        for (uint32_t i = 0; i < SESSIONS; i++) {
            s[i] = rig_session(&rig);
            f[i] = begin_row(&rig, s[i], tokens, i ? 1 : LONG);
        }
        for (uint32_t i = 0; i < SESSIONS; i++) {
            cr_expect_eq(engine_next_finished(rig.e, true), f[i], "%u stages: flight %u", stages, i);
            end_well(f[i]);
            cr_expect_gt(flight_ns(f[i]), 0);
            flight_release(f[i]);
        }
        engine_watch(rig.e, NULL, NULL);
        cr_expect_eq(atomic_load(&told), SESSIONS);
        cr_expect_null(engine_next_finished(rig.e, true));
        /* One that was ended is not returned; one that was neither is ended by its release. */
        f[0] = begin_row(&rig, s[0], tokens, 1);
        f[1] = begin_row(&rig, s[1], tokens, 1);
        end_well(f[1]);
        cr_expect_eq(engine_next_finished(rig.e, true), f[0]);
        cr_expect_null(engine_next_finished(rig.e, false));
        flight_release(f[1]);
        flight_release(f[0]);
        cr_expect_eq(session_len(s[0]), LONG + 1);
        for (uint32_t i = 0; i < SESSIONS; i++)
            session_free(s[i]);
        free(tokens);
        rig_close(&rig);
    }
}

/* Which of the devices opened belongs to which stage, and what their syncs do. */
static struct {
    struct ops_dev *dev[3];
    pthread_t thread[3];
    atomic_bool foreign; /* a device driven by another thread than the one that opened it */
    bool meet;           /* the first two stages wait for each other in their syncs */
    pthread_barrier_t meeting;
    uint32_t fail_stage, fail_open; /* from 1 on; 0: none */
    atomic_int fail_after;          /* syncs of that stage that still go well */
    atomic_int syncs[3];
} hooks;

static int hooked_open(const struct ops_open *how, struct ops_dev **ret, char *err, size_t errlen)
{
    if (how->part + 1 == hooks.fail_open) {
        snprintf(err, errlen, "this device does not open");
        return -ENODEV;
    }
    int r = ops_cpu.open(how, ret, err, errlen);
    if (r == 0) {
        hooks.dev[how->part] = *ret;
        hooks.thread[how->part] = pthread_self();
    }
    return r;
}

static int hooked_sync(struct ops_dev *d, char *err, size_t errlen)
{
    uint32_t s = 0;
    while (hooks.dev[s] != d)
        s++;
    if (!pthread_equal(hooks.thread[s], pthread_self()))
        atomic_store(&hooks.foreign, true);
    int n = atomic_fetch_add(&hooks.syncs[s], 1);
    /* The second window on the first stage together with the first on the second. */
    if (hooks.meet && ((s == 0 && n == 1) || (s == 1 && n == 0)))
        pthread_barrier_wait(&hooks.meeting);
    int r = ops_cpu.sync(d, err, errlen);
    if (r == 0 && s + 1 == hooks.fail_stage && atomic_fetch_sub(&hooks.fail_after, 1) == 0) {
        snprintf(err, errlen, "a cable was pulled");
        return -EIO;
    }
    return r;
}

static int hooked_rig(uint32_t stages, struct rig *ret, char *err, size_t errlen)
{
    static struct ops ops;
    struct engine_options o = staged(stages, stages);
    struct bytes file = tiny_model(&shape, NULL);
    cr_assert_eq(open_bytes(file.data, file.len, &ret->f, err, errlen), 0, "%s", err);
    free(file.data);
    cr_assert_eq(model_read(ret->f, &ret->m, err, errlen), 0, "%s", err);
    ops = ops_cpu;
    ops.open = hooked_open;
    ops.sync = hooked_sync;
    ret->e = NULL;
    int r = engine_open_on(&ops, ret->f, ret->m, &o, NULL, NULL, &ret->e, err, errlen);
    for (int i = 0; i < 3; i++)
        atomic_store(&hooks.syncs[i], 0);
    return r;
}

Test(stages, windows_are_computed_at_the_same_time, .timeout = 60)
{
    char err[256] = "";
    struct rig rig;
    cr_assert_eq(hooked_rig(2, &rig, err, sizeof err), 0, "%s", err);
    struct session *a = rig_session(&rig), *b = rig_session(&rig);
    const int32_t tokens[] = { 1, 2, 3 };
    /* Neither stage gets any further unless both are computing. */
    hooks.meet = true;
    pthread_barrier_init(&hooks.meeting, NULL, 2);
    struct flight *f = begin_row(&rig, a, tokens, 3), *g = begin_row(&rig, b, tokens, 3);
    end_well(f);
    end_well(g);
    cr_expect(same(flight_logits(f, 0), flight_logits(g, 0), 3));
    hooks.meet = false;
    pthread_barrier_destroy(&hooks.meeting);
    cr_expect_not(atomic_load(&hooks.foreign), "a device belongs to one thread");
    cr_expect_not(pthread_equal(hooks.thread[0], hooks.thread[1]));
    flight_release(f);
    flight_release(g);
    session_free(a);
    session_free(b);
    rig_close(&rig);
}

Test(stages, one_stage_is_computed_by_the_caller)
{
    char err[256] = "";
    struct rig rig;
    cr_assert_eq(hooked_rig(1, &rig, err, sizeof err), 0, "%s", err);
    cr_expect(pthread_equal(hooks.thread[0], pthread_self()));
    struct session *a = rig_session(&rig);
    struct flight *f = begin_row(&rig, a, (const int32_t[]){ 1 }, 1);
    cr_expect_eq(engine_next_finished(rig.e, false), f, "it has finished when begin returns");
    cr_expect_not(atomic_load(&hooks.foreign));
    flight_release(f);
    session_free(a);
    rig_close(&rig);
}

/* ---- sessions meanwhile ---- */

Test(stages, a_session_in_flight_is_as_before_and_must_not_be_changed)
{
    struct engine_options o = staged(2, 2);
    struct rig rig = rig_open(&shape, &o);
    int32_t *tokens = rig_tokens(LONG, VOCAB, 1);
    float *alone = rig_alone(&rig, tokens, LONG);
    struct session *a = rig_session(&rig), *b = rig_session(&rig);
    struct flight *f, *g;
    struct engine_info info;
    char err[256] = "";
    uint32_t n;

    rig_feed(&rig, a, tokens, 70, 70, NULL);
    f = begin_row(&rig, a, tokens + 70, 80);
    struct engine_row again = { .session = a, .tokens = tokens, .n = 1 };
    cr_expect_eq(engine_begin(rig.e, &again, 1, &g, err, sizeof err), -EBUSY);
    cr_expect_str_eq(err, "row 0: its session is in another flight");
    cr_expect_eq(session_fork(a, b, 0), -EBUSY);
    cr_expect_eq(session_fork(b, a, 71), -EINVAL, "only what it had");
    cr_expect(session_in_flight(a) && session_len(a) == 70);
    session_blocks(a, &n);
    cr_expect_eq(n, 2);
    engine_info_get(rig.e, &info);
    cr_expect(info.blocks_used == 3 && info.blocks_flying == 1);
    cr_expect_eq(session_blocks_needed(a, 1), 0);
    /* A fork of what it had goes its own way while the original is written to. */
    cr_expect_eq(session_fork(b, a, 70), 0);
    cr_expect_eq(session_blocks_needed(b, 1), 1, "the last block is shared now");
    g = begin_row(&rig, b, tokens + 70, 80);
    end_well(g);
    cr_expect(same(flight_logits(g, 0), alone + 70 * VOCAB, 80));
    flight_release(g);
    end_well(f);
    cr_expect(same(flight_logits(f, 0), alone + 70 * VOCAB, 80));
    flight_release(f);
    cr_expect(!session_in_flight(a) && session_len(a) == 150);
    engine_info_get(rig.e, &info);
    cr_expect(info.blocks_used == 5 && info.blocks_flying == 0);
    session_free(a);
    session_free(b);
    cr_expect_eq(rig_blocks_used(&rig), 0);
    free(alone);
    free(tokens);
    rig_close(&rig);
}

/* A copy on write is under way: a fork takes what the session had, not the copy, which may yet be undone. */
Test(stages, a_fork_while_a_block_is_copied_takes_the_original)
{
    struct engine_options o = staged(2, 2);
    struct rig rig = rig_open(&shape, &o);
    int32_t *tokens = rig_tokens(LONG, VOCAB, 1);
    float *alone = rig_alone(&rig, tokens, LONG);
    struct session *a = rig_session(&rig), *b = rig_session(&rig), *c = rig_session(&rig);

    rig_feed(&rig, a, tokens, 40, 40, NULL);
    cr_assert_eq(session_fork(b, a, 40), 0);
    rig_fail_in = 1;
    struct flight *f = begin_row(&rig, a, tokens + 40, 10);
    cr_assert_eq(session_fork(c, a, 40), 0);
    session_free(b); /* the other holder goes while the copy is being made */
    char err[256] = "";
    cr_assert_eq(flight_end(f, err, sizeof err), -EIO);
    flight_release(f);
    cr_expect_eq(rig_blocks_used(&rig), 1);
    struct flight *g = begin_row(&rig, c, tokens + 40, 10), *h = begin_row(&rig, a, tokens + 40, 30);
    end_well(h);
    end_well(g);
    cr_expect(same(flight_logits(g, 0), alone + 40 * VOCAB, 10));
    cr_expect(same(flight_logits(h, 0), alone + 40 * VOCAB, 30));
    flight_release(g);
    flight_release(h);
    session_free(a);
    session_free(c);
    cr_expect_eq(rig_blocks_used(&rig), 0);
    free(alone);
    free(tokens);
    rig_close(&rig);
}

/* ---- failures ---- */

static void fail_second_of_three(struct rig *rig, uint32_t stage, const int32_t *tokens, const float *alone)
{
    struct session *s[3];
    struct flight *f[3];
    char err[256] = "", wanted[64];
    struct engine_info info;

    engine_info_get(rig->e, &info);
    snprintf(wanted, sizeof wanted, "stage %u of 3 (layers %u-%u): a cable was pulled", stage,
             info.stages[stage - 1].first_layer,
             info.stages[stage - 1].first_layer + info.stages[stage - 1].n_layers - 1);
    for (int i = 0; i < 3; i++) {
        s[i] = rig_session(rig);
        rig_feed(rig, s[i], tokens, 70, 70, NULL);
    }
    atomic_store(&hooks.fail_after, 1);
    hooks.fail_stage = stage;
    for (int i = 0; i < 3; i++)
        f[i] = begin_row(rig, s[i], tokens + 70, 60);
    for (int i = 0; i < 3; i++) {
        int r = flight_end(f[i], err, sizeof err);
        cr_expect_eq(r, i == 1 ? -EIO : 0, "flight %d: %d", i, r);
        if (r == 0)
            cr_expect(same(flight_logits(f[i], 0), alone + 70 * VOCAB, 60));
        flight_release(f[i]);
    }
    cr_expect_str_eq(err, wanted);
    cr_expect_eq(session_len(s[1]), 70);
    hooks.fail_stage = 0;
    cr_expect_eq(rig_blocks_used(rig), 3 + 2 + 3);
    f[1] = begin_row(rig, s[1], tokens + 70, 60);
    end_well(f[1]);
    cr_expect(same(flight_logits(f[1], 0), alone + 70 * VOCAB, 60), "after the failure");
    flight_release(f[1]);
    for (int i = 0; i < 3; i++)
        session_free(s[i]);
}

Test(stages, a_stage_that_fails_takes_down_what_it_computed_and_nothing_else)
{
    char err[256] = "";
    struct rig rig;
    cr_assert_eq(hooked_rig(3, &rig, err, sizeof err), 0, "%s", err);
    int32_t *tokens = rig_tokens(LONG, VOCAB, 1);
    float *alone = rig_alone(&rig, tokens, LONG);
    for (uint32_t stage = 1; stage <= 3; stage++)
        fail_second_of_three(&rig, stage, tokens, alone);
    cr_expect_eq(rig_blocks_used(&rig), 0);
    free(tokens);
    free(alone);
    rig_close(&rig);
}

Test(stages, a_stage_that_does_not_open_is_an_error_and_no_leak)
{
    char err[256] = "";
    struct rig rig;
    hooks.fail_open = 2;
    cr_expect_eq(hooked_rig(3, &rig, err, sizeof err), -ENODEV);
    cr_expect_str_eq(err, "this device does not open");
    rig_close(&rig);
    hooks.fail_open = 0;
    /* Timing the head is the last stage's first work. */
    hooks.fail_stage = 3;
    atomic_store(&hooks.fail_after, 0);
    cr_expect_eq(hooked_rig(3, &rig, err, sizeof err), -EIO);
    hooks.fail_stage = 0;
    rig_close(&rig);
}

/* ---- what is told of them ---- */

Test(stages, every_layer_and_thread_belongs_to_one_stage)
{
    for (uint32_t stages = 1; stages <= 5; stages++)
        for (uint32_t threads = 1; threads <= 7; threads += 3) {
            struct engine_options o = staged(stages, threads);
            struct rig rig = rig_open(&shape, &o);
            struct engine_info info;
            uint32_t layers = 0, all = 0;
            size_t bytes = 0;
            engine_info_get(rig.e, &info);
            cr_assert_eq(info.n_stages, stages);
            cr_expect_str_eq(info.device, info.stages[0].device);
            for (uint32_t s = 0; s < stages; s++) {
                cr_expect_eq(info.stages[s].first_layer, layers);
                cr_expect_geq(info.stages[s].n_layers, 1);
                cr_expect_geq(info.stages[s].threads, 1);
                cr_expect_eq(strncmp(info.stages[s].device, "cpu ", 4), 0);
                layers += info.stages[s].n_layers;
                all += info.stages[s].threads;
                bytes += info.stages[s].weight_bytes;
            }
            cr_expect_eq(layers, 5);
            cr_expect_eq(all, threads > stages ? threads : stages);
            cr_expect_eq(bytes, info.weight_bytes);
            cr_expect_eq(info.kv_bytes, 4096 * engine_kv_token_bytes(rig.m, "f16"));
            rig_close(&rig);
        }
}
