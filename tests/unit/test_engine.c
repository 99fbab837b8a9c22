/* Engine: logits are the same bits whatever else runs, however a prompt is cut up, on any number of threads
 * and wherever the prefix comes from; what fails changes nothing. */
#include "../cases.h"
#include "engine_rig.h"

#define LONG 200u  /* tokens: over three block borders */
#define SWEEP 140u /* over two, for tests that try all types */

static const struct engine_options ways[] = {
    { .isa = "auto", .threads = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
    { .isa = "auto", .threads = 2, .kv_type = "f32", .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
    { .isa = "auto",
      .threads = 2,
      .activations = "f32",
      .kv_type = "f32",
      .kv_tokens = 4096,
      .max_rows = 8,
      .max_tokens = 512 },
    { .isa = "auto", .threads = 2, .stages = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
    { .isa = "avx2",
      .threads = 2,
      .activations = "int16",
      .kv_tokens = 4096,
      .max_rows = 8,
      .max_tokens = 512 },
    { .isa = "amx", .threads = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
    { .isa = "portable", .threads = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
    { .isa = "portable",
      .threads = 1,
      .activations = "f32",
      .kv_tokens = 4096,
      .max_rows = 8,
      .max_tokens = 512 },
    { .isa = "ref", .threads = 1, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
    { .isa = "ref", .threads = 1, .stages = 2, .kv_tokens = 4096, .max_rows = 8, .max_tokens = 512 },
};
#define N_WAYS (sizeof ways / sizeof *ways)

/* Whether this machine can run it: portable and reference always, the others unless the device says that the
 * processor cannot. */
static bool possible(const struct engine_options *o)
{
    const struct ops_open how = { .isa = o->isa, .threads = 1 };
    struct ops_dev *d;
    char err[256] = "";

    if (strcmp(o->isa, "ref") == 0)
        return true;
    int r = ops_cpu.open(&how, &d, err, sizeof err);
    if (r < 0) {
        cr_assert_eq(r, -ENOTSUP, "%s", err);
        cr_assert(strcmp(o->isa, "portable") != 0 && strcmp(o->isa, "auto") != 0, "%s", err);
        return false;
    }
    ops_cpu.close(d);
    return true;
}

/* Possible, and not what "auto" is here by its own name: that is tried as "auto". */
static bool worth_trying(const struct engine_options *o)
{
    const struct ops_open how[] = { { .isa = o->isa, .threads = 1 }, { .isa = "auto", .threads = 1 } };
    struct ops_dev *d[2];
    char err[256] = "";

    if (strcmp(o->isa, "ref") == 0 || strcmp(o->isa, "auto") == 0)
        return true;
    if (!possible(o))
        return false;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(ops_cpu.open(&how[i], &d[i], err, sizeof err), 0, "%s", err);
    const bool same = strcmp(ops_cpu.describe(d[0]), ops_cpu.describe(d[1])) == 0;
    ops_cpu.close(d[0]);
    ops_cpu.close(d[1]);
    return !same;
}

static void expect_same(const float *a, const float *b, size_t n, const char *what,
                        const struct engine_options *o)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            cr_expect(false, "%s (%s, %u threads, kv %s, activations %s): value %zu is %a, %a is wanted",
                      what, o->isa, o->threads, o->kv_type ? o->kv_type : "f16",
                      o->activations ? o->activations : "auto", i, (double)a[i], (double)b[i]);
            return;
        }
}

Test(engine, a_prompt_in_chunks_of_any_size_gives_the_same_bits)
{
    static const uint32_t chunks[] = { 1, 7, 64, 512 };
    for (size_t w = 0; w < N_WAYS; w++) {
        if (!worth_trying(&ways[w]))
            continue;
        struct rig rig = rig_open(&rig_shape, &ways[w]);
        size_t n = (size_t)LONG * rig_shape.vocab;
        int32_t *tokens = rig_tokens(LONG, rig_shape.vocab, 1);
        float *alone = rig_alone(&rig, tokens, LONG), *logits = malloc(n * sizeof *logits);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            struct session *s = rig_session(&rig);
            rig_feed(&rig, s, tokens, LONG, chunks[c], logits);
            expect_same(logits, alone, n, "chunks", &ways[w]);
            session_free(s);
        }
        cr_expect_eq(rig_blocks_used(&rig), 0);
        free(logits);
        free(alone);
        free(tokens);
        rig_close(&rig);
    }
}

Test(engine, asking_for_fewer_logits_gives_the_same_bits)
{
    for (size_t w = 0; w < N_WAYS; w++) {
        if (!worth_trying(&ways[w]))
            continue;
        struct rig rig = rig_open(&rig_shape, &ways[w]);
        int32_t *tokens = rig_tokens(LONG, rig_shape.vocab, 1);
        float *alone = rig_alone(&rig, tokens, LONG);
        struct session *s = rig_session(&rig);
        char err[512] = "";
        rig_feed(&rig, s, tokens, 100, 50, NULL);
        struct engine_row row = { .session = s, .tokens = tokens + 100, .n = 100, .n_logits = 3 };
        cr_assert_eq(engine_window(rig.e, &row, 1, err, sizeof err), 0, "%s", err);
        expect_same(row.logits, alone + 197 * rig_shape.vocab, 3 * rig_shape.vocab, "the last three",
                    &ways[w]);
        session_free(s);
        free(alone);
        free(tokens);
        rig_close(&rig);
    }
}

/* Eight sequences advance in windows of random company: 2 to 8 rows, some of one token, some of many. */
struct company {
    struct rig *rig;
    const struct engine_options *way;
    struct session *sessions[8];
    int32_t *tokens[8];
    float *alone[8];
    uint64_t seed;
};

static uint32_t choose_rows(struct company *c, struct engine_row *rows, uint32_t *which)
{
    uint32_t wanted = 2 + random_below(&c->seed, 7), first = random_below(&c->seed, 8), n = 0;
    for (uint32_t i = 0; i < 8 && n < wanted; i++) {
        uint32_t s = (i + first) % 8, len = session_len(c->sessions[s]), left = LONG - len;
        uint32_t take = random_below(&c->seed, 2) ? 1 : 1 + random_below(&c->seed, 40);
        if (left == 0)
            continue;
        which[n] = s;
        rows[n] = (struct engine_row){ .session = c->sessions[s],
                                       .tokens = c->tokens[s] + len,
                                       .n = take < left ? take : left };
        rows[n].n_logits = random_below(&c->seed, rows[n].n + 1);
        n++;
    }
    return n;
}

static void run_company(struct company *c)
{
    struct engine_row rows[8];
    uint32_t which[8], n;
    char err[512] = "";

    while ((n = choose_rows(c, rows, which)) > 0) {
        cr_assert_eq(engine_window(c->rig->e, rows, n, err, sizeof err), 0, "%s", err);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t from = session_len(rows[i].session) - rows[i].n_logits;
            cr_expect_eq(rows[i].logits == NULL, rows[i].n_logits == 0);
            if (rows[i].n_logits)
                expect_same(rows[i].logits, c->alone[which[i]] + (size_t)from * rig_shape.vocab,
                            (size_t)rows[i].n_logits * rig_shape.vocab, "in company", c->way);
        }
    }
}

Test(engine, sequences_in_windows_of_2_to_8_give_the_bits_of_each_alone)
{
    for (size_t w = 0; w < N_WAYS; w++) {
        if (!worth_trying(&ways[w]))
            continue;
        struct rig rig = rig_open(&rig_shape, &ways[w]);
        struct company c = { .rig = &rig, .way = &ways[w], .seed = 11 };
        for (uint32_t i = 0; i < 8; i++) {
            c.tokens[i] = rig_tokens(LONG, rig_shape.vocab, 100 + i);
            c.alone[i] = rig_alone(&rig, c.tokens[i], LONG);
            c.sessions[i] = rig_session(&rig);
        }
        run_company(&c);
        for (uint32_t i = 0; i < 8; i++) {
            session_free(c.sessions[i]);
            free(c.alone[i]);
            free(c.tokens[i]);
        }
        rig_close(&rig);
    }
}

/* All logits of one sequence on an engine opened so. To be freed. */
static float *logits_of(const struct tiny_shape *s, const struct engine_options *o)
{
    struct rig rig = rig_open(s, o);
    int32_t *tokens = rig_tokens(SWEEP, s->vocab, 5);
    float *logits = rig_alone(&rig, tokens, SWEEP);
    free(tokens);
    rig_close(&rig);
    return logits;
}

static const uint32_t types[] = { 0, 1, 30, 2, 3, 8 };

Test(engine, one_two_and_three_threads_give_the_same_bits)
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct tiny_shape s = rig_shape;
        struct engine_options o = rig_options;
        s.type = types[t];
        o.threads = 1;
        float *one = logits_of(&s, &o);
        for (o.threads = 2; o.threads <= 3; o.threads++) {
            float *more = logits_of(&s, &o);
            expect_same(more, one, (size_t)SWEEP * s.vocab, gguf_type_name(s.type), &o);
            free(more);
        }
        free(one);
    }
}

Test(engine, avx2_avx512_and_amx_give_the_same_bits)
{
    static const char *const others[] = { "avx512", "amx" };
    struct engine_options o = rig_options;

    o.isa = "avx2";
    if (!possible(&o)) {
        cr_log_warn("this processor has no AVX2: nothing to compare");
        return;
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int exact = 0; exact < 2; exact++) {
            struct tiny_shape s = rig_shape;
            s.type = types[t];
            o.activations = exact ? "f32" : "auto";
            o.kv_type = exact ? "f32" : "f16";
            o.isa = "avx2";
            float *wanted = logits_of(&s, &o);
            for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
                o.isa = others[i];
                if (!possible(&o))
                    continue;
                float *logits = logits_of(&s, &o);
                expect_same(logits, wanted, (size_t)SWEEP * s.vocab, gguf_type_name(s.type), &o);
                free(logits);
            }
            free(wanted);
        }
}

/* The largest difference of n logits; a NaN is the largest of all. */
static double deviation(const float *a, const float *b, size_t n)
{
    double max = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        max = d <= max ? max : d;
    }
    return max;
}

Test(engine, activations_in_floats_and_in_16_bits_agree_with_the_reference)
{
    static const char *const isas[] = { "portable", "avx2", "avx512", "amx" };
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct tiny_shape s = rig_shape;
        struct engine_options o = rig_options;
        s.type = types[t];
        s.untied = t % 2;
        o.kv_type = "f32";
        o.isa = "ref";
        float *wanted = logits_of(&s, &o);
        for (size_t i = 0; i < 2 * (sizeof isas / sizeof *isas); i++) {
            o.isa = isas[i / 2];
            o.activations = i % 2 ? "int16" : "f32";
            if (!possible(&o))
                continue;
            float *logits = logits_of(&s, &o);
            double d = deviation(logits, wanted, (size_t)SWEEP * s.vocab);
            cr_expect_lt(d, i % 2 ? 1e-2 : 2e-3, "%s %s %s: %g", o.isa, o.activations, gguf_type_name(s.type),
                         d);
            free(logits);
        }
        free(wanted);
    }
}

/* A header may say anything that model_read lets through; the devices must compute it. */
Test(engine, odd_shapes_agree_with_the_reference)
{
    static const char *const isas[] = { "portable", "avx2", "avx512", "amx" };
    static const struct tiny_shape shapes[] = {
        { .layers = 1,
          .embd = 23,
          .heads = 3,
          .kv_heads = 1,
          .head_dim = 2,
          .ff = 37,
          .vocab = 5,
          .seed = 1 },
        { .layers = 2, .embd = 18, .heads = 3, .kv_heads = 3, .head_dim = 6, .ff = 1, .vocab = 2, .seed = 2 },
        { .layers = 1,
          .embd = 40,
          .heads = 5,
          .kv_heads = 5,
          .head_dim = 10,
          .ff = 33,
          .vocab = 71,
          .type = 1,
          .seed = 3 },
        { .layers = 1,
          .embd = 160,
          .heads = 4,
          .kv_heads = 1,
          .head_dim = 80,
          .ff = 64,
          .vocab = 33,
          .type = 3,
          .seed = 4 },
        { .layers = 1,
          .embd = 32,
          .heads = 7,
          .kv_heads = 7,
          .head_dim = 256,
          .ff = 32,
          .vocab = 16,
          .type = 8,
          .seed = 5 },
    };
    for (size_t t = 0; t < sizeof shapes / sizeof *shapes; t++) {
        struct engine_options o = rig_options;
        o.activations = "f32";
        o.kv_type = "f32";
        o.isa = "ref";
        float *wanted = logits_of(&shapes[t], &o);
        for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
            o.isa = isas[i];
            if (!possible(&o))
                continue;
            float *logits = logits_of(&shapes[t], &o);
            double d = deviation(logits, wanted, (size_t)SWEEP * shapes[t].vocab);
            cr_expect_lt(d, 2e-3, "%s, heads of %u: %g", isas[i], shapes[t].head_dim, d);
            free(logits);
        }
        free(wanted);
    }
}

Test(engine, a_forked_prefix_gives_the_bits_of_a_cold_read)
{
    static const uint32_t cuts[] = { 1, 63, 64, 65, 100, 128, 199 };
    for (size_t w = 0; w < N_WAYS; w++) {
        if (!worth_trying(&ways[w]))
            continue;
        struct rig rig = rig_open(&rig_shape, &ways[w]);
        int32_t *first = rig_tokens(LONG, rig_shape.vocab, 1), *second = rig_tokens(LONG, rig_shape.vocab, 2);
        float *first_alone = rig_alone(&rig, first, LONG), logits[50 * 99];
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i += cases_all() ? 1 : 3) {
            uint32_t n = cuts[i], more = LONG - n < 50 ? LONG - n : 50;
            struct session *a = rig_session(&rig), *b = rig_session(&rig);
            rig_feed(&rig, a, first, n + more / 2, 512, NULL);
            cr_assert_eq(session_fork(b, a, n), 0);
            memcpy(second, first, n * sizeof *second);
            float *second_alone = rig_alone(&rig, second, n + more);
            rig_feed(&rig, b, second + n, more, 512, logits);
            expect_same(logits, second_alone + (size_t)n * 99, more * 99, "the fork", &ways[w]);
            rig_feed(&rig, a, first + n + more / 2, more - more / 2, 512, logits);
            expect_same(logits, first_alone + (size_t)(n + more / 2) * 99, (more - more / 2) * 99,
                        "the original", &ways[w]);
            session_free(a);
            session_free(b);
            free(second_alone);
        }
        cr_expect_eq(rig_blocks_used(&rig), 0);
        free(first);
        free(second);
        free(first_alone);
        rig_close(&rig);
    }
}

Test(engine, a_fork_copies_nothing_until_somebody_grows_inside_a_shared_block)
{
    struct rig rig = rig_open(&rig_shape, &rig_options);
    int32_t *tokens = rig_tokens(LONG, rig_shape.vocab, 1);
    struct session *a = rig_session(&rig), *b = rig_session(&rig);

    rig_feed(&rig, a, tokens, 100, 512, NULL);
    cr_assert_eq(session_fork(b, a, 100), 0);
    cr_expect_eq(rig_blocks_used(&rig), 2);
    cr_expect_eq(session_blocks_needed(b, 1), 1, "the shared last block is copied");
    cr_expect_eq(session_blocks_needed(b, 40), 2);
    rig_feed(&rig, b, tokens, 1, 1, NULL);
    cr_expect_eq(rig_blocks_used(&rig), 3);
    cr_expect_eq(session_blocks_needed(a, 28), 0, "its last block is its own again");
    session_free(a);
    cr_expect_eq(rig_blocks_used(&rig), 2);
    cr_expect_eq(session_fork(b, b, 64), 0, "a fork of itself is a cut");
    cr_expect_eq(session_len(b), 64);
    cr_expect_eq(rig_blocks_used(&rig), 1);
    cr_expect_eq(session_fork(b, b, 65), -EINVAL);
    session_free(b);
    free(tokens);
    rig_close(&rig);
}

Test(engine, a_swap_exchanges_what_two_sessions_hold)
{
    struct rig rig = rig_open(&rig_shape, &rig_options);
    int32_t *tokens = rig_tokens(LONG, rig_shape.vocab, 1);
    float *alone = rig_alone(&rig, tokens, LONG), logits[100 * 99];
    struct session *a = rig_session(&rig), *b = rig_session(&rig);

    rig_feed(&rig, a, tokens, 100, 512, NULL);
    session_swap(a, b);
    cr_expect(session_len(a) == 0 && session_len(b) == 100);
    rig_feed(&rig, b, tokens + 100, 100, 512, logits);
    expect_same(logits, alone + 100 * 99, 100 * 99, "after a swap", &rig_options);
    session_free(a);
    session_free(b);
    free(alone);
    free(tokens);
    rig_close(&rig);
}

/* A window that must fail with `error`, and change neither lengths nor blocks. */
static void expect_unchanged(struct rig *rig, struct engine_row *rows, uint32_t n_rows, int error,
                             const char *message)
{
    char err[512] = "";
    uint32_t lens[16] = { 0 }, used = rig_blocks_used(rig);
    for (uint32_t i = 0; i < n_rows && i < 16; i++)
        lens[i] = rows[i].session ? session_len(rows[i].session) : 0;
    cr_expect_eq(engine_window(rig->e, rows, n_rows, err, sizeof err), error, "wanted: %s", message);
    cr_expect(strstr(err, message) != NULL, "wanted \"%s\", got \"%s\"", message, err);
    cr_expect_eq(rig_blocks_used(rig), used);
    for (uint32_t i = 0; i < n_rows && i < 16; i++)
        cr_expect_eq(rows[i].session ? session_len(rows[i].session) : 0, lens[i]);
}

Test(engine, bad_rows_are_refused_and_change_nothing)
{
    struct rig rig = rig_open(&rig_shape, &rig_options), other = rig_open(&rig_shape, &rig_options);
    struct session *a = rig_session(&rig), *foreign = rig_session(&other);
    const int32_t good[600] = { 1, 2, 3 }, low[] = { 1, -1 }, high[] = { 1, 99 };
    struct engine_row row = { .session = a, .tokens = good, .n = 3, .n_logits = 1 }, bad, two[2], nine[9];

    rig_feed(&rig, a, good, 3, 3, NULL);
    bad = row;
    bad.tokens = low;
    bad.n = 2;
    expect_unchanged(&rig, &bad, 1, -EINVAL, "row 0: token -1 is outside 0..98");
    bad.tokens = high;
    expect_unchanged(&rig, &bad, 1, -EINVAL, "row 0: token 99 is outside 0..98");
    bad = row;
    bad.n = 0;
    bad.n_logits = 0;
    expect_unchanged(&rig, &bad, 1, -EINVAL, "row 0: wants");
    bad = row;
    bad.n_logits = 4;
    expect_unchanged(&rig, &bad, 1, -EINVAL, "row 0: wants");
    bad = row;
    bad.session = foreign;
    expect_unchanged(&rig, &bad, 1, -EINVAL, "row 0: wants a session of this engine");
    bad = row;
    bad.n = 513;
    expect_unchanged(&rig, &bad, 1, -EINVAL, "513 tokens in a window: at most 512");
    two[0] = two[1] = row;
    expect_unchanged(&rig, two, 2, -EINVAL, "rows 0 and 1 are of one session");
    for (int i = 0; i < 9; i++)
        nine[i] = row;
    expect_unchanged(&rig, nine, 9, -EINVAL, "9 rows in a window: 1..8");
    expect_unchanged(&rig, &row, 0, -EINVAL, "0 rows in a window");
    session_free(a);
    session_free(foreign);
    rig_close(&rig);
    rig_close(&other);
}

Test(engine, a_pool_without_room_changes_nothing)
{
    struct engine_options o = rig_options;
    o.kv_tokens = 4 * 64 - 10;
    struct rig rig = rig_open(&rig_shape, &o);
    int32_t *tokens = rig_tokens(LONG, rig_shape.vocab, 1);
    float *alone = rig_alone(&rig, tokens, LONG), logits[30 * 99];
    struct session *a = rig_session(&rig), *b = rig_session(&rig);
    struct engine_row rows[2] = { { .session = a, .tokens = tokens, .n = 20 },
                                  { .session = b, .tokens = tokens, .n = 120 } };

    rig_feed(&rig, a, tokens, 150, 512, NULL);
    cr_assert_eq(session_fork(b, a, 150), 0);
    /* The first row's copy takes the last free block; the second row then lacks one and both are as before.
     */
    rows[0].tokens = tokens + 150;
    expect_unchanged(&rig, rows, 2, -ENOSPC, "the pool of 4 blocks has too few free ones for row 1");
    rig_feed(&rig, a, tokens + 150, 30, 512, logits);
    expect_same(logits, alone + 150 * 99, 30 * 99, "after a refused window", &o);
    rig_feed(&rig, b, tokens + 150, 30, 512, logits);
    expect_same(logits, alone + 150 * 99, 30 * 99, "the other one", &o);
    session_free(a);
    session_free(b);
    free(alone);
    free(tokens);
    rig_close(&rig);
}

Test(engine, a_failing_device_leaves_sessions_as_they_were)
{
    struct rig rig = rig_open(&rig_shape, &rig_options);
    int32_t *tokens = rig_tokens(LONG, rig_shape.vocab, 1);
    float *alone = rig_alone(&rig, tokens, LONG), logits[100 * 99];
    struct session *a = rig_session(&rig), *b = rig_session(&rig);
    struct engine_row rows[2] = { { .session = a, .tokens = tokens + 5, .n = 90 },
                                  { .session = b, .tokens = tokens, .n = 7 } };

    rig_feed(&rig, a, tokens, 100, 512, NULL);
    cr_assert_eq(session_fork(b, a, 90), 0);
    rig_fail_in = 1;
    expect_unchanged(&rig, rows, 2, -EIO, "the device failed");
    rig_feed(&rig, a, tokens + 100, 100, 512, logits);
    expect_same(logits, alone + 100 * 99, 100 * 99, "after a failure", &rig_options);
    rig_feed(&rig, b, tokens + 90, 100, 512, logits);
    expect_same(logits, alone + 90 * 99, 100 * 99, "after a failure, shared", &rig_options);
    session_free(a);
    session_free(b);
    free(alone);
    free(tokens);
    rig_close(&rig);
}

struct seen {
    uint64_t done, total, calls;
};

static void watch(void *arg, uint64_t done, uint64_t total)
{
    struct seen *s = arg;
    cr_expect_gt(done, s->done);
    *s = (struct seen){ .done = done, .total = total, .calls = s->calls + 1 };
}

Test(engine, loading_tells_how_far_it_is_and_what_it_made)
{
    char err[512] = "";
    struct rig rig = rig_open(&rig_shape, &rig_options);
    struct engine *e;
    struct seen seen = { 0 };
    struct engine_info info;

    cr_assert_eq(engine_open(rig.f, rig.m, &rig_options, watch, &seen, &e, err, sizeof err), 0, "%s", err);
    cr_expect_eq(seen.done, seen.total);
    cr_expect_eq(seen.calls, gguf_n_tensors(rig.f));
    engine_info_get(e, &info);
    cr_expect(info.blocks == 64 && info.blocks_used == 0 && info.n_vocab == 99);
    cr_expect_eq(info.kv_bytes, 4096 * engine_kv_token_bytes(rig.m, "f16"));
    cr_expect_eq(engine_kv_token_bytes(rig.m, "f32"), 2 * 2 * 2 * 16 * 4);
    cr_expect_eq(engine_kv_token_bytes(rig.m, "q8_0"), 0, "16 is no multiple of 32");
    cr_expect_geq(info.weight_bytes, 64 * 99);
    cr_expect(strncmp(info.device, "cpu ", 4) == 0, "%s", info.device);
    engine_close(e);
    rig_close(&rig);
}

/* What berth check opens: every stage's device, and of the weights next to nothing. */
Test(engine, a_sample_has_a_row_of_each_matrix_on_every_stage)
{
    struct rig rig = rig_open(&rig_shape, &rig_options);
    struct engine_info whole, info;

    engine_info_get(rig.e, &whole);
    for (uint32_t stages = 1; stages <= 2; stages++) {
        struct engine_options o = rig_options;
        struct engine *e;
        char err[512] = "";

        o.sample = true;
        o.stages = stages;
        cr_assert_eq(engine_open(rig.f, rig.m, &o, NULL, NULL, &e, err, sizeof err), 0, "%s", err);
        engine_info_get(e, &info);
        cr_expect_eq(info.n_stages, stages);
        for (uint32_t s = 0; s < stages; s++)
            cr_expect_eq(info.stages[s].n_layers, 2 / stages);
        cr_expect_lt(info.weight_bytes, whole.weight_bytes / 2, "%zu of %zu", info.weight_bytes,
                     whole.weight_bytes);
        engine_close(e);
    }
    rig_close(&rig);
}

Test(engine, options_out_of_bounds_are_refused_by_name)
{
    char err[512] = "";
    struct rig rig;
    struct engine_options o = rig_options;

    o.threads = 0;
    cr_expect_eq(rig_try_open(&rig_shape, &o, &rig, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "threads: 0 is outside 1..256");
    o = rig_options;
    o.kv_tokens = 0;
    cr_expect_eq(rig_try_open(&rig_shape, &o, &rig, err, sizeof err), -EINVAL);
    o = rig_options;
    o.max_tokens = 5000;
    cr_expect_eq(rig_try_open(&rig_shape, &o, &rig, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "tokens of a window: 5000 is outside 1..4096");
    o = rig_options;
    o.stages = 3;
    cr_expect_eq(rig_try_open(&rig_shape, &o, &rig, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "stages: 3 for a model of 2 layers; at most one a layer, and 64");
    o = rig_options;
    o.isa = "mmx";
    cr_expect_lt(rig_try_open(&rig_shape, &o, &rig, err, sizeof err), 0);
    cr_expect(strstr(err, "mmx") != NULL, "%s", err);
}
