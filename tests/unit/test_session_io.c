/* Session io: what one engine gives, another takes, and a sequence goes on with the same bits as if it had
 * been computed there; whatever the number of stages and the layout of the pool. */
#include "../cases.h"
#include "engine/session_io.h"
#include "engine_rig.h"

#define VOCAB 99u
#define LONG 300u
#define KEPT 201u /* three whole pieces and nine tokens */

static const struct tiny_shape shape = { .layers = 5,
                                         .embd = 64,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 24, /* the CPU pads V to 32 */
                                         .ff = 96,
                                         .vocab = VOCAB,
                                         .type = 8,
                                         .seed = 4 };

static struct engine_options with(const char *isa, uint32_t stages, const char *kv_type)
{
    struct engine_options o = rig_options;
    o.isa = isa;
    o.stages = stages;
    o.kv_type = kv_type;
    return o;
}

/* All pieces one after another; to be freed. */
static unsigned char *bytes_of(struct rig *r, const struct session *s, size_t *ret_len)
{
    struct session_io_kind kind;
    session_io_kind(r->e, &kind);
    size_t len = 0;
    unsigned char *bytes = malloc(kind.token_bytes * (session_len(s) + 1));
    cr_assert_not_null(bytes);
    for (uint32_t piece = 0, n; (n = session_io_get(s, piece, bytes + len)); piece++)
        len += n * kind.token_bytes;
    cr_assert_eq(len, kind.token_bytes * session_len(s));
    *ret_len = len;
    return bytes;
}

static struct session *session_with(struct rig *r, const unsigned char *bytes, uint32_t n)
{
    struct session_io_kind kind;
    session_io_kind(r->e, &kind);
    struct session *s = rig_session(r);
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < SESSION_IO_TOKENS ? n - at : SESSION_IO_TOKENS;
        cr_assert_eq(session_io_put(s, k, bytes + at * kind.token_bytes), 0);
    }
    cr_assert_eq(session_len(s), n);
    return s;
}

static void expect_goes_on(const char *isa, const char *kv_type, uint32_t stages_from, uint32_t stages_to)
{
    struct engine_options from = with(isa, stages_from, kv_type), to = with(isa, stages_to, kv_type);
    struct tiny_shape of = shape;
    if (!strcmp(kv_type, "q8_0"))
        of.head_dim = 32;
    struct rig a = rig_open(&of, &from);
    int32_t *tokens = rig_tokens(LONG, VOCAB, 8);
    float *wanted = rig_alone(&a, tokens, LONG), *got = malloc(LONG * VOCAB * sizeof *got);
    struct session *s = rig_session(&a);
    size_t len, again_len;
    rig_feed(&a, s, tokens, KEPT, 77, NULL);
    unsigned char *bytes = bytes_of(&a, s, &len);
    session_free(s);
    rig_close(&a);

    struct rig b = rig_open(&of, &to);
    struct session *other = rig_session(&b); /* so that other blocks are used */
    rig_feed(&b, other, tokens + 50, 130, 130, NULL);
    s = session_with(&b, bytes, KEPT);
    unsigned char *again = bytes_of(&b, s, &again_len);
    cr_expect(again_len == len && memcmp(again, bytes, len) == 0, "%s: other bytes", isa);
    rig_feed(&b, s, tokens + KEPT, LONG - KEPT, 41, got);
    cr_expect(memcmp(got, wanted + KEPT * VOCAB, (LONG - KEPT) * VOCAB * sizeof *got) == 0,
              "%s, kv %s, from %u stages to %u: other logits", isa, kv_type, stages_from, stages_to);
    session_free(s);
    session_free(other);
    rig_close(&b);
    free(again);
    free(bytes);
    free(got);
    free(wanted);
    free(tokens);
}

Test(session_io, a_sequence_goes_on_with_the_same_bits)
{
    static const char *const types[] = { "f16", "f32", "q8_0" };
    static const struct {
        const char *isa;
        uint32_t from, to;
    } ways[] = { { "auto", 1, 1 }, { "auto", 1, 2 },     { "auto", 2, 1 },
                 { "auto", 2, 5 }, { "portable", 1, 2 }, { "ref", 2, 1 } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            if (cases_all() || w % 3 == i)
                expect_goes_on(ways[w].isa, types[i], ways[w].from, ways[w].to);
    }
}

Test(session_io, engines_say_of_which_kind_they_are)
{
    const struct engine_options ways[] = { with("auto", 1, "f16"), with("auto", 2, "f16"),
                                           with("auto", 1, "f32"), with("portable", 1, "f16"),
                                           with("ref", 1, "f16") };
    struct session_io_kind kind[5];
    char arithmetic[5][64];
    for (int i = 0; i < 5; i++) {
        struct rig r = rig_open(&shape, &ways[i]);
        session_io_kind(r.e, &kind[i]);
        snprintf(arithmetic[i], sizeof arithmetic[i], "%s", kind[i].arithmetic);
        cr_expect_eq(kind[i].token_bytes, 2u * 5 * 2 * 24 * (i == 2 ? 4 : 2));
        cr_expect_str_eq(kind[i].kv_type, i == 2 ? "f32" : "f16");
        rig_close(&r);
    }
    cr_expect_str_eq(arithmetic[0], arithmetic[1], "stages change no bits");
    cr_expect_str_neq(arithmetic[0], arithmetic[4]);
    cr_expect_str_neq(arithmetic[3], arithmetic[4]);
}

Test(session_io, a_full_pool_takes_nothing_and_changes_nothing)
{
    struct engine_options o = with("auto", 2, "f16");
    o.kv_tokens = 3 * 64;
    struct rig r = rig_open(&shape, &o);
    struct session_io_kind kind;
    session_io_kind(r.e, &kind);
    unsigned char *piece = calloc(SESSION_IO_TOKENS, kind.token_bytes);
    struct session *s = rig_session(&r);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(session_io_put(s, SESSION_IO_TOKENS, piece), 0);
    cr_expect_eq(session_io_put(s, 1, piece), -ENOSPC);
    cr_expect_eq(session_len(s), 192);
    session_cut(s, 191);
    cr_expect_eq(session_io_put(s, 1, piece), -EINVAL, "the last piece is not whole");
    session_cut(s, 128);
    cr_expect_eq(session_io_put(s, 0, piece), -EINVAL);
    cr_expect_eq(session_io_put(s, SESSION_IO_TOKENS + 1, piece), -EINVAL);
    cr_expect_eq(session_io_put(s, 5, piece), 0);
    cr_expect_eq(session_len(s), 133);
    cr_expect_eq(session_io_get(s, 2, piece), 5);
    cr_expect_eq(session_io_get(s, 3, piece), 0);
    free(piece);
    session_free(s);
    cr_expect_eq(rig_blocks_used(&r), 0);
    rig_close(&r);
}

Test(session_io, other_sessions_keep_what_they_have_while_flights_are_under_way)
{
    struct engine_options o = with("auto", 2, "f16");
    struct rig r = rig_open(&shape, &o);
    int32_t *tokens = rig_tokens(LONG, VOCAB, 9);
    float *wanted = rig_alone(&r, tokens, LONG);
    struct session *idle = rig_session(&r), *flying = rig_session(&r);
    size_t len, now_len;
    char err[256] = "";
    rig_feed(&r, idle, tokens, KEPT, KEPT, NULL);
    cr_assert_eq(session_fork(flying, idle, KEPT), 0); /* shares the last block, which it has to copy */
    unsigned char *bytes = bytes_of(&r, idle, &len);
    struct engine_row row = { .session = flying, .tokens = tokens + KEPT, .n = LONG - KEPT, .n_logits = 1 };
    struct flight *f;
    cr_assert_eq(engine_begin(r.e, &row, 1, &f, err, sizeof err), 0, "%s", err);
    cr_expect_eq(session_io_put(flying, 1, bytes), -EINVAL); /* 201 tokens are not whole pieces */
    struct session *in = session_with(&r, bytes, KEPT);
    unsigned char *now = bytes_of(&r, idle, &now_len);
    cr_assert_eq(flight_end(f, err, sizeof err), 0, "%s", err);
    cr_expect(now_len == len && memcmp(now, bytes, len) == 0);
    cr_expect(memcmp(flight_logits(f, 0), wanted + (LONG - 1) * VOCAB, VOCAB * sizeof *wanted) == 0);
    flight_release(f);
    float *got = malloc(LONG * VOCAB * sizeof *got);
    rig_feed(&r, in, tokens + KEPT, LONG - KEPT, LONG, got);
    cr_expect(memcmp(got, wanted + KEPT * VOCAB, (LONG - KEPT) * VOCAB * sizeof *got) == 0);
    free(got);
    free(now);
    free(bytes);
    session_free(in);
    session_free(idle);
    session_free(flying);
    rig_close(&r);
    free(wanted);
    free(tokens);
}
