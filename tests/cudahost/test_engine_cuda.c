/* The whole engine on emulated devices: the bits of the CPU's vector kernels, whatever else runs, on one
 * device and divided between two; and what happens when memory or a device is not to be had. */
#include "../cases.h"
#include "cudahost.h"
#include "unit/engine_rig.h"

#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define TOKENS 150u /* over two block borders */

static const struct engine_options cuda = {
    .device = "cuda", .isa = "auto", .threads = 1, .kv_tokens = 2048, .max_rows = 4, .max_tokens = 128
};

/* What the CPU says of n tokens; NULL where it has no vector kernels to say it. To be freed. */
static float *cpu_logits(const struct tiny_shape *shape, struct engine_options o, const int32_t *tokens,
                         uint32_t n)
{
    const struct ops_open how = { .isa = "avx2", .threads = 1 };
    struct ops_dev *d;
    char err[256];
    if (ops_cpu.open(&how, &d, err, sizeof err) < 0)
        return NULL;
    ops_cpu.close(d);
    o.device = "cpu";
    o.isa = "avx2";
    o.stages = 1;
    struct rig rig = rig_open(shape, &o);
    float *logits = rig_alone(&rig, tokens, n);
    rig_close(&rig);
    return logits;
}

static void expect_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert(memcmp(&a[i], &b[i], sizeof *a) == 0, "%s: value %zu is %a, %a is wanted", what, i,
                  (double)a[i], (double)b[i]);
}

/* `length` tokens in chunks of several sizes, on an engine opened so. */
static void check_length(const struct tiny_shape *shape, const struct engine_options *o, uint32_t length,
                         const uint32_t *chunks, size_t n_chunks, const char *what)
{
    const size_t n = (size_t)length * shape->vocab;
    int32_t *tokens = rig_tokens(length, shape->vocab, 5);
    float *want = cpu_logits(shape, *o, tokens, length), *got = malloc(n * sizeof *got);
    struct rig rig = rig_open(shape, o);
    cr_assert_not_null(got);
    for (size_t c = 0; c < n_chunks; c++) {
        struct session *s = rig_session(&rig);
        rig_feed(&rig, s, tokens, length, chunks[c], got);
        if (!want) {
            want = got;
            got = malloc(n * sizeof *got);
        } else {
            expect_same(got, want, n, what);
        }
        session_free(s);
    }
    rig_close(&rig);
    free(got);
    free(want);
    free(tokens);
}

static void check_chunks(const struct tiny_shape *shape, const struct engine_options *o, const char *what)
{
    /* Over the border of a block from within another, and each kind of product. */
    static const uint32_t chunks[] = { 100, 7 };
    check_length(shape, o, TOKENS, chunks, LENGTH(chunks), what);
}

/* Few tokens: the kernels of a type show themselves in a chunk of each kind. */
Test(engine_cuda, every_weight_type_gives_the_cpus_bits)
{
    static const uint32_t types[] = { 3, 14, 0, 1, 30, 2, 6, 7, 8, 12, 13 };
    static const uint32_t chunks[] = { 19, 5 };
    cudahost_reset(1, (size_t)256 << 20);
    for (size_t i = 0; i < (cases_all() ? LENGTH(types) : 2); i++) {
        struct tiny_shape shape = rig_shape;
        if (types[i] >= 12 && types[i] <= 14) /* in blocks of 256 */
            shape = (struct tiny_shape){ 1, 256, 4, 1, 64, 256, 70, .seed = 6 };
        shape.type = types[i];
        check_length(&shape, &cuda, 24, chunks, LENGTH(chunks), gguf_type_name(types[i]));
    }
}

Test(engine_cuda, every_architecture_gives_the_cpus_bits)
{
    static const struct tiny_shape shapes[] = {
        { 2, 64, 7, 1, 32, 96, 70, 2, false, 3, .arch = "qwen2" },
        { 2, 96, 4, 2, 40, 64, 61, 8, true, 4, .arch = "qwen3" },
        { 6, 64, 3, 1, 32, 96, 99, 8, false, 5, .arch = "gemma3", .window = 40 },
        { 2, 64, 8, 2, 20, 96, 61, 3, false, 1, .biased = true, .factors = true, .scaling = "yarn" },
    };
    cudahost_reset(1, (size_t)256 << 20);
    for (size_t i = 0; i < LENGTH(shapes); i++)
        if (cases_all())
            check_chunks(&shapes[i], &cuda, shapes[i].arch ? shapes[i].arch : "llama");
        else if (shapes[i].window)
            check_length(&shapes[i], &cuda, 80, (const uint32_t[]){ 50 }, 1, shapes[i].arch);
}

Test(engine_cuda, other_activations_and_kv_in_f32_give_the_cpus_bits)
{
    struct engine_options o = cuda;
    cudahost_reset(1, (size_t)256 << 20);
    o.kv_type = "f32";
    o.activations = "int16";
    check_chunks(&rig_shape, &o, "int16 activations, f32 keys and values");
    o.activations = "f32";
    check_chunks(&rig_shape, &o, "f32 activations");
}

Test(engine_cuda, kv_in_q8_0_gives_the_cpus_bits)
{
    static const uint32_t chunks[] = { 80, 7 };
    const struct tiny_shape shape = { 1, 64, 2, 1, 32, 96, 99, 8, .seed = 9 };
    struct engine_options o = cuda;
    cudahost_reset(1, (size_t)256 << 20);
    o.kv_type = "q8_0";
    check_length(&shape, &o, 80, chunks, LENGTH(chunks), "keys and values in q8_0");
}

Test(engine_cuda, the_order_of_threads_shows_in_no_bit)
{
    for (int i = cases_all() ? CUDAHOST_FORWARD : CUDAHOST_RANDOM; i <= CUDAHOST_RANDOM; i++) {
        cudahost_reset(1, (size_t)256 << 20);
        cudahost_set_order((enum cudahost_order)i, 7);
        check_chunks(&rig_shape, &cuda, "order of threads");
    }
}

Test(engine_cuda, layers_divided_between_two_devices_give_the_same_bits)
{
    struct engine_options o = cuda;
    struct tiny_shape shape = rig_shape;
    struct engine_info info;
    shape.layers = 4;
    o.stages = 2;
    cudahost_reset(2, (size_t)256 << 20);
    check_chunks(&shape, &o, "two devices");
    struct rig rig = rig_open(&shape, &o);
    engine_info_get(rig.e, &info);
    cr_expect(strstr(info.stages[0].device, "device 0") && strstr(info.stages[1].device, "device 1"),
              "%s, %s", info.stages[0].device, info.stages[1].device);
    rig_close(&rig);
}

/* Rows of several lengths in each window; in between a session is forked in the middle of a block, and the
 * fork continues the same: every logit is that of the sequence alone. */
Test(engine_cuda, company_and_forks_change_no_bit)
{
    enum { N = 4 };
    int32_t *tokens[N];
    float *want[N];
    struct session *sessions[N], *fork;
    char err[512] = "";
    cudahost_reset(1, (size_t)256 << 20);
    struct rig rig = rig_open(&rig_shape, &cuda);
    for (uint32_t i = 0; i < N; i++) {
        tokens[i] = rig_tokens(TOKENS, rig_shape.vocab, 40 + i);
        want[i] = rig_alone(&rig, tokens[i], TOKENS);
        sessions[i] = rig_session(&rig);
    }
    fork = rig_session(&rig);
    for (uint32_t step = 0; session_len(sessions[0]) < 100; step++) {
        struct engine_row rows[N];
        for (uint32_t i = 0; i < N; i++) {
            uint32_t n = (step + i) % 3 ? 1 : 9 + i;
            rows[i] = (struct engine_row){
                .session = sessions[i], .tokens = tokens[i] + session_len(sessions[i]), .n = n, .n_logits = 1
            };
        }
        cr_assert_eq(engine_window(rig.e, rows, N, err, sizeof err), 0, "%s", err);
        for (uint32_t i = 0; i < N; i++)
            expect_same(rows[i].logits, want[i] + (size_t)(session_len(sessions[i]) - 1) * rig_shape.vocab,
                        rig_shape.vocab, "in company");
    }
    cr_assert_eq(session_fork(fork, sessions[1], 70), 0);
    float *rest = malloc((size_t)TOKENS * rig_shape.vocab * sizeof *rest);
    rig_feed(&rig, fork, tokens[1] + 70, 60, 11, rest);
    expect_same(rest, want[1] + 70 * rig_shape.vocab, 60 * rig_shape.vocab, "a fork");
    rig_feed(&rig, sessions[1], tokens[1] + session_len(sessions[1]), 20, 20, rest);
    free(rest);
    session_free(fork);
    for (uint32_t i = 0; i < N; i++) {
        session_free(sessions[i]);
        free(want[i]);
        free(tokens[i]);
    }
    cr_expect_eq(rig_blocks_used(&rig), 0);
    rig_close(&rig);
}

/* Where a row asks for the best alone, what the host has of its logits stays as it was until they are asked
 * for; then they are those of a row that asked for all. */
static void check_best(struct rig *rig, uint32_t vocab)
{
    enum { N = 20 };
    int32_t *tokens = rig_tokens(N, vocab, 8);
    float *want = rig_alone(rig, tokens, N);
    struct session *a = rig_session(rig), *b = rig_session(rig);
    struct engine_row rows[] = {
        { .session = a, .tokens = tokens, .n = N, .n_logits = 2 },
        { .session = b, .tokens = tokens, .n = N, .n_logits = 3, .best = true, .scale = 2 },
    };
    struct flight *f;
    struct sampler_best best;
    char err[512] = "";
    want += (size_t)(N - 3) * vocab;
    memset(rig->e->idle->host_logits, 0x55, 5 * (size_t)vocab * sizeof(float));
    cr_assert_eq(engine_begin(rig->e, rows, 2, &f, err, sizeof err), 0, "%s", err);
    cr_assert_eq(flight_end(f, err, sizeof err), 0, "%s", err);
    for (size_t i = 0; i < 3 * (size_t)vocab * sizeof(float); i++)
        cr_assert_eq(((unsigned char *)(f->host_logits + 2 * vocab))[i], 0x55, "byte %zu was fetched", i);
    cr_expect_not(flight_best(f, 0, 0, &best), "a row that asked for all");
    expect_same(flight_logits(f, 0), want + vocab, 2 * vocab, "a row that asked for all");
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(flight_best(f, 1, i, &best));
        for (uint32_t k = 0; k < vocab; k++) {
            cr_assert_eq(memcmp(&best.logit[k], &want[i * vocab + best.id[k]], sizeof(float)), 0);
            cr_assert(k == 0 || best.logit[k] <= best.logit[k - 1]);
        }
        cr_expect(best.n == vocab && best.max == best.logit[0] && best.scaled_sum < best.sum);
    }
    expect_same(flight_logits(f, 1), want, 3 * vocab, "fetched afterwards");
    cr_expect_not(flight_best(f, 1, 0, &best), "they are here now");
    flight_release(f);
    session_free(a);
    session_free(b);
    free(want - (size_t)(N - 3) * vocab);
    free(tokens);
}

Test(engine_cuda, only_the_best_logits_leave_the_device_until_all_are_asked_for)
{
    for (uint32_t stages = 1; stages <= 2; stages++) {
        struct engine_options o = cuda;
        o.stages = stages;
        cudahost_reset((int)stages, (size_t)256 << 20);
        struct rig rig = rig_open(&rig_shape, &o);
        check_best(&rig, rig_shape.vocab);
        rig_close(&rig);
    }
}

/* A chunk of 128 by cuBLAS, whose activations are halves: near what float activations give, much nearer than
 * bytes, and other bits than our kernels'. */
Test(engine_cuda, cublas_takes_large_chunks_where_the_order_of_sums_is_free)
{
    enum { N = 128 };
    enum { FLOATS, OURS, LIBRARY, WAYS };
    int32_t *tokens = rig_tokens(N, rig_shape.vocab, 5);
    const size_t n = (size_t)N * rig_shape.vocab;
    struct tiny_shape shape = rig_shape;
    float *got[WAYS] = { 0 };
    double ours = 0, library = 0;
    cudahost_reset(1, (size_t)256 << 20);
    shape.biased = true;
    for (int way = FLOATS; way < WAYS; way++) {
        struct engine_options o = cuda;
        o.activations = way == FLOATS ? "f32" : "int8";
        o.any_order = way == LIBRARY;
        struct rig rig = rig_open(&shape, &o);
        struct session *s = rig_session(&rig);
        got[way] = malloc(n * sizeof(float));
        rig_feed(&rig, s, tokens, N, N, got[way]);
        session_free(s);
        rig_close(&rig);
    }
    for (size_t i = 0; i < n; i++) {
        ours = fmax(ours, fabs((double)got[OURS][i] - (double)got[FLOATS][i]));
        library = fmax(library, fabs((double)got[LIBRARY][i] - (double)got[FLOATS][i]));
    }
    cr_expect(library > 0 && library < ours / 4, "off by %g, our kernels by %g", library, ours);
    for (int way = FLOATS; way < WAYS; way++)
        free(got[way]);
    free(tokens);
}

/* ---- what fails ---- */

Test(engine_cuda, too_little_memory_says_what_is_wanted_and_free)
{
    struct engine_options o = cuda;
    struct rig rig;
    char err[512] = "";
    cudahost_reset(1, (size_t)8 << 20);
    o.kv_tokens = 1 << 20;
    cr_expect_eq(rig_try_open(&rig_shape, &o, &rig, err, sizeof err), -ENOMEM);
    cr_expect(strstr(err, "out of memory on cuda device 0") && strstr(err, "the KV pool wants") &&
                  strstr(err, "are free"),
              "%s", err);
}

Test(engine_cuda, a_lost_device_fails_its_windows_and_nothing_else)
{
    int32_t tokens[] = { 1, 2, 3 };
    char err[512] = "";
    cudahost_reset(1, (size_t)256 << 20);
    struct rig rig = rig_open(&rig_shape, &cuda);
    struct session *s = rig_session(&rig);
    rig_feed(&rig, s, tokens, 3, 3, NULL);
    cudahost_lose_device(0);
    struct engine_row row = { .session = s, .tokens = tokens, .n = 3, .n_logits = 1 };
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(engine_window(rig.e, &row, 1, err, sizeof err), -ENODEV);
        cr_expect(strstr(err, "CUDA device 0") != NULL, "%s", err);
        cr_expect_eq(session_len(s), 3);
    }
    session_free(s);
    rig_close(&rig);
}

Test(engine_cuda, which_device_is_found)
{
    const char *device = NULL;
    uint64_t unused = 0, two = 0;
    char err[256];
    cudahost_reset(2, (size_t)64 << 20);
    cr_expect_eq(engine_device_find("auto", 1, &device, &unused, err, sizeof err), 0);
    cr_expect_str_eq(device, "cuda");
    cr_expect(unused > (uint64_t)32 << 20 && unused <= (uint64_t)64 << 20, "%zu", (size_t)unused);
    cr_expect_eq(engine_device_find("cuda", 3, &device, &two, err, sizeof err), 0);
    cr_expect(two > unused + ((uint64_t)32 << 20) && two <= (uint64_t)128 << 20, "%zu", (size_t)two);
    cr_expect_eq(engine_device_find("cpu", 1, &device, &unused, err, sizeof err), 0);
    cr_expect_str_eq(device, "cpu");
    cudahost_lose_device(0);
    cr_expect_eq(engine_device_find("cuda", 1, &device, &unused, err, sizeof err), -ENODEV);
    cr_expect(strstr(err, "CUDA device 0 cannot be used") != NULL, "%s", err);
    cr_expect_eq(engine_device_find("auto", 1, &device, &unused, err, sizeof err), 0);
    cr_expect_str_eq(device, "cpu");
    cr_expect(strstr(err, "CUDA device 0 cannot be used") != NULL, "%s", err);
}
