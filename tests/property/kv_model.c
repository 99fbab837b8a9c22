/* KV blocks against a slow model. Random histories of new, free, cut, fork, swap, growing in windows, several
 * of them in flight, and failing devices run on an engine and on a model that stores every session's tokens
 * and block identities, and counts holders by looking. Always: the same blocks in use, -ENOSPC exactly when
 * the model says so, sessions in flight as they were before, and, whatever a session went through, its logits
 * are the bits of a fresh session fed the same tokens. */
#include "../cases.h"
#include "../unit/engine_rig.h"

#define SESSIONS 6
#define POOL 14 /* blocks: small, so that windows are refused now and then */
#define MAX_LEN 400
#define MAX_BLOCKS (MAX_LEN / 64 + 1)

struct slow_session {
    bool exists;
    uint32_t len, n_blocks;
    int32_t tokens[MAX_LEN];
    uint64_t blocks[MAX_BLOCKS]; /* identities: a new number for every block ever taken */
};

/* A window under way, and what its sessions will be. */
struct slow_flight {
    struct flight *flight;
    uint32_t n;
    int which[SESSIONS];
    struct slow_session after[SESSIONS];
};

struct world {
    struct rig rig, cold; /* the same model; cold has room for one fresh session */
    struct session *real[SESSIONS];
    struct slow_session slow[SESSIONS];
    struct slow_flight flights[SESSIONS + 1]; /* each has a session of its own, but the one being planned */
    uint32_t n_flights;
    bool flying[SESSIONS];
    uint64_t next_block, seed;
    uint32_t refused, failed, compared, grown, together, forked_flying;
};

static const struct tiny_shape shape = { .layers = 3,
                                         .embd = 32,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 32, /* as q8_0 wants it */
                                         .ff = 32,
                                         .vocab = 40,
                                         .type = 8,
                                         .seed = 5 };

static uint32_t below(struct world *w, uint32_t n)
{
    return random_below(&w->seed, n);
}

/* How many sessions hold a block. */
static uint32_t holders(const struct world *w, uint64_t block)
{
    uint32_t n = 0;
    for (int s = 0; s < SESSIONS; s++)
        for (uint32_t b = 0; w->slow[s].exists && b < w->slow[s].n_blocks; b++)
            n += w->slow[s].blocks[b] == block;
    return n;
}

static uint32_t add_new(uint64_t *seen, uint32_t n_seen, const struct slow_session *s)
{
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        uint32_t i = 0;
        while (i < n_seen && seen[i] != s->blocks[b])
            i++;
        if (i == n_seen)
            seen[n_seen++] = s->blocks[b];
    }
    return n_seen;
}

/* Distinct blocks that sessions hold, or flights for them. */
static uint32_t distinct(const struct world *w, bool flights)
{
    uint64_t seen[2 * SESSIONS * MAX_BLOCKS];
    uint32_t n = 0;
    for (int i = 0; i < SESSIONS; i++)
        if (w->slow[i].exists)
            n = add_new(seen, n, &w->slow[i]);
    for (uint32_t f = 0; flights && f < w->n_flights; f++)
        for (uint32_t k = 0; k < w->flights[f].n; k++)
            n = add_new(seen, n, &w->flights[f].after[k]);
    return n;
}

static void slow_cut(struct slow_session *s, uint32_t n)
{
    s->len = n;
    s->n_blocks = (n + 63) / 64;
}

/* copy: its last block was shared when the window began. */
static void slow_append(struct world *w, struct slow_session *s, const int32_t *tokens, uint32_t n, bool copy)
{
    if (copy)
        s->blocks[s->n_blocks - 1] = w->next_block++;
    for (uint32_t i = 0; i < n; i++) {
        if (s->len % 64 == 0)
            s->blocks[s->n_blocks++] = w->next_block++;
        s->tokens[s->len++] = tokens[i];
    }
}

static bool last_is_shared(const struct world *w, const struct slow_session *s)
{
    return s->len % 64 && holders(w, s->blocks[s->n_blocks - 1]) > 1;
}

static void compare_logits(struct world *w, int i, const float *logits)
{
    struct slow_session *s = &w->slow[i];
    struct session *fresh = rig_session(&w->cold);
    char err[256] = "";
    struct engine_row row = { .session = fresh, .tokens = s->tokens, .n = s->len, .n_logits = 1 };
    cr_assert_eq(engine_window(w->cold.e, &row, 1, err, sizeof err), 0, "%s", err);
    cr_assert_eq(memcmp(row.logits, logits, shape.vocab * sizeof *logits), 0,
                 "session %d of %u tokens: other logits than a fresh one", i, s->len);
    session_free(fresh);
    w->compared++;
}

/* After a failure: one more token behind every session, through a fork, so that nothing of it changes. */
static void probe_all(struct world *w)
{
    for (int i = 0; i < SESSIONS; i++) {
        struct slow_session *s = &w->slow[i], held;
        struct session *probe;
        struct engine_row row = { .tokens = (const int32_t[]){ 7 }, .n = 1, .n_logits = 1 };
        char err[256] = "";
        if (!s->exists || s->len == MAX_LEN)
            continue;
        probe = rig_session(&w->rig);
        cr_assert_eq(session_fork(probe, w->real[i], s->len), 0);
        row.session = probe;
        held = *s;
        s->tokens[s->len++] = 7;
        if (engine_window(w->rig.e, &row, 1, err, sizeof err) == 0)
            compare_logits(w, i, row.logits);
        session_free(probe);
        *s = held;
    }
}

/* Rows of sessions that are in no flight; *ret_needed: blocks. The flight knows what they will be. */
static uint32_t choose_rows(struct world *w, struct engine_row *rows, int32_t (*tokens)[90],
                            struct slow_flight *f, uint32_t *ret_needed)
{
    uint32_t wanted = 1 + below(w, 3), needed = 0;
    f->n = 0;
    for (int k = 0, i = (int)below(w, SESSIONS); k < SESSIONS && f->n < wanted; k++, i = (i + 1) % SESSIONS) {
        uint32_t len = 1 + below(w, below(w, 2) ? 90 : 3), n = f->n;
        if (!w->slow[i].exists || w->flying[i] || w->slow[i].len + len > MAX_LEN)
            continue;
        for (uint32_t t = 0; t < len; t++)
            tokens[n][t] = (int32_t)below(w, shape.vocab);
        rows[n] = (struct engine_row){ .session = w->real[i], .tokens = tokens[n], .n = len, .n_logits = 1 };
        needed += (w->slow[i].len + len + 63) / 64 - w->slow[i].n_blocks + last_is_shared(w, &w->slow[i]);
        f->which[n] = i;
        f->after[n] = w->slow[i];
        slow_append(w, &f->after[n], tokens[n], len, last_is_shared(w, &w->slow[i]));
        f->n++;
    }
    *ret_needed = needed;
    return f->n;
}

static void do_begin(struct world *w)
{
    struct slow_flight *f = &w->flights[w->n_flights];
    struct engine_row rows[SESSIONS];
    int32_t tokens[SESSIONS][90];
    char err[256] = "";
    uint32_t needed, used = distinct(w, true);
    if (!choose_rows(w, rows, tokens, f, &needed))
        return;
    if (atomic_load(&rig_fail_in) <= 0 && below(w, 12) == 0)
        atomic_store(&rig_fail_in, 1 + (int)below(w, 3));
    int r = engine_begin(w->rig.e, rows, f->n, &f->flight, err, sizeof err);
    if (used + needed > POOL) {
        cr_assert_eq(r, -ENOSPC, "%d where the model lacks blocks", r);
        w->refused++;
        return;
    }
    cr_assert_eq(r, 0, "%d: %s", r, err);
    memset(tokens, -1, sizeof tokens); /* copied */
    for (uint32_t k = 0; k < f->n; k++)
        w->flying[f->which[k]] = true;
    w->n_flights++;
    w->together += w->n_flights > 1;
}

static uint32_t choose_flight(struct world *w)
{
    uint32_t f = below(w, w->n_flights);
    struct flight *first = below(w, 2) ? engine_next_finished(w->rig.e, true) : NULL;
    /* NULL: all of them were returned before. */
    for (uint32_t i = 0; first && i < w->n_flights; i++)
        f = w->flights[i].flight == first ? i : f;
    return f;
}

static void do_end(struct world *w)
{
    char err[256] = "";
    if (!w->n_flights)
        return;
    uint32_t which = choose_flight(w);
    struct slow_flight f = w->flights[which];
    int r = flight_end(f.flight, err, sizeof err);
    w->flights[which] = w->flights[--w->n_flights];
    if (r < 0)
        cr_assert(r == -EIO && strstr(err, "told"), "%d: %s", r, err);
    for (uint32_t k = 0; k < f.n; k++) {
        w->flying[f.which[k]] = false;
        if (r == 0)
            w->slow[f.which[k]] = f.after[k];
    }
    w->failed += r < 0;
    w->grown += r == 0;
    for (uint32_t k = 0; r == 0 && k < f.n; k++)
        if (below(w, 3) == 0)
            compare_logits(w, f.which[k], flight_logits(f.flight, k));
    flight_release(f.flight);
    if (r < 0)
        probe_all(w);
}

static void do_fork(struct world *w)
{
    int from = (int)below(w, SESSIONS), to = (int)below(w, SESSIONS);
    uint32_t n;
    if (!w->slow[from].exists || !w->slow[to].exists)
        return;
    n = below(w, w->slow[from].len + 1);
    if (w->flying[to]) {
        cr_assert_eq(session_fork(w->real[to], w->real[from], n), -EBUSY);
        return;
    }
    cr_assert_eq(session_fork(w->real[to], w->real[from], n), 0);
    w->forked_flying += w->flying[from] && n > 0;
    if (to != from)
        w->slow[to] = w->slow[from];
    slow_cut(&w->slow[to], n);
}

static void do_new_or_free(struct world *w)
{
    int i = (int)below(w, SESSIONS);
    if (w->flying[i])
        return;
    if (w->slow[i].exists && below(w, 2)) {
        session_free(w->real[i]);
        w->slow[i] = (struct slow_session){ 0 };
    } else if (!w->slow[i].exists) {
        w->real[i] = rig_session(&w->rig);
        w->slow[i].exists = true;
    }
}

static void do_cut_or_swap(struct world *w)
{
    int a = (int)below(w, SESSIONS), b = (int)below(w, SESSIONS);
    if (!w->slow[a].exists || !w->slow[b].exists || w->flying[a] || w->flying[b])
        return;
    if (below(w, 2)) {
        uint32_t n = below(w, w->slow[a].len + 1);
        session_cut(w->real[a], n);
        slow_cut(&w->slow[a], n);
    } else {
        struct slow_session held = w->slow[a];
        session_swap(w->real[a], w->real[b]);
        w->slow[a] = w->slow[b];
        w->slow[b] = held;
    }
}

static void check(const struct world *w, uint32_t step)
{
    struct engine_info info;
    engine_info_get(w->rig.e, &info);
    cr_assert_eq(info.blocks_used, distinct(w, true), "step %u: %u blocks in use, the model has %u", step,
                 info.blocks_used, distinct(w, true));
    cr_assert_eq(info.blocks_used - info.blocks_flying, distinct(w, false));
    for (int i = 0; i < SESSIONS; i++) {
        const struct slow_session *s = &w->slow[i];
        uint32_t more, copy;
        if (!s->exists)
            continue;
        cr_assert_eq(session_len(w->real[i]), s->len);
        cr_assert_eq(session_in_flight(w->real[i]), w->flying[i]);
        copy = s->len % 64 && holders(w, s->blocks[s->n_blocks - 1]) > 1;
        more = (s->len + 70 + 63) / 64 - s->n_blocks;
        cr_assert_eq(session_blocks_needed(w->real[i], 70), more + copy);
        cr_assert_eq(session_blocks_needed(w->real[i], 0), 0);
    }
}

static void run(const char *isa, uint32_t stages, uint32_t threads, const char *kv_type, uint32_t steps,
                uint64_t seed)
{
    struct engine_options o = { .isa = isa,
                                .threads = threads,
                                .stages = stages,
                                .kv_type = kv_type,
                                .kv_tokens = POOL * 64,
                                .max_rows = SESSIONS,
                                .max_tokens = MAX_LEN + 90 };
    struct world *w = calloc(1, sizeof *w);
    char err[256] = "";
    cr_assert_not_null(w);
    w->rig = rig_open(&shape, &o);
    o.stages = 1;
    w->cold = w->rig; /* the same model on a device that never fails */
    cr_assert_eq(engine_open(w->rig.f, w->rig.m, &o, NULL, NULL, &w->cold.e, err, sizeof err), 0, "%s", err);
    w->seed = seed;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t what = below(w, 30);
        if (what < 10)
            do_begin(w);
        else if (what < 20)
            do_end(w);
        else if (what < 23)
            do_fork(w);
        else if (what < 26)
            do_new_or_free(w);
        else
            do_cut_or_swap(w);
        check(w, step);
    }
    while (w->n_flights)
        do_end(w);
    atomic_store(&rig_fail_in, 0); /* what nobody ran into */
    cr_expect(w->refused > 0 && w->failed > 0 && w->compared > 20 && w->together > 20 && w->forked_flying > 0,
              "too tame: %u refused, %u failed, %u compared, %u together, %u forked in flight of %u windows",
              w->refused, w->failed, w->compared, w->together, w->forked_flying, w->grown);
    for (int i = 0; i < SESSIONS; i++)
        session_free(w->slow[i].exists ? w->real[i] : NULL);
    cr_expect_eq(rig_blocks_used(&w->rig), 0);
    engine_close(w->cold.e);
    rig_close(&w->rig);
    free(w);
}

Test(kv_model, random_histories_on_the_reference_device)
{
    run("ref", 1, 1, "f32", cases_of(800, 2), 1);
}

Test(kv_model, random_histories_on_the_processor)
{
    run("auto", 1, 2, "f16", cases_of(1500, 3), 2);
    run("auto", 1, 1, "q8_0", 500, 3);
}

Test(kv_model, random_histories_on_two_and_three_stages)
{
    run("auto", 2, 2, "f16", cases_of(2000, 2), 4);
    run("auto", 3, 3, "f32", 1000, 5);
}
