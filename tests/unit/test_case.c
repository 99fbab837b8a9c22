/* Tests of core/policy/case_read.c and case_write.c: what is written reads back as it was, the recorded cases
 * are read as another reader reads them, and bad cases are refused by the name of what is wrong in them. */
#include "../cases.h"
#include "policy_case.h"

#include "policy/asker.h"
#include "policy/case.h"
#include "policy/load.h"
#include "util/buf.h"
#include "util/jsonx.h"

#include <errno.h>

static uint64_t random_bits(uint64_t *x)
{
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return *x >> 11;
}

static uint32_t below(uint64_t *x, uint32_t n)
{
    return (uint32_t)(random_bits(x) % n);
}

/* Reads text; what is wrong with it, or "". */
static const char *read_text(struct policy_case *c, const char *text, size_t len)
{
    static char err[512];
    json_t *o = NULL;
    *err = 0;
    int r = jsonx_parse(text, len, POLICY_CASE_DEPTH, true, &o, err, sizeof err);
    if (r == 0)
        r = policy_case_read(c, o, err, sizeof err);
    cr_assert_eq(r < 0, *err != 0, "%d \"%s\" of %.*s", r, err, (int)len, text);
    json_decref(o);
    return err;
}

static void expect_same_history(const struct policy_history *a, const struct policy_history *b,
                                const char *of)
{
    cr_assert_eq(a == NULL, b == NULL, "%s", of);
    if (a)
        cr_assert_arr_eq(a, b, sizeof *a, "%s", of);
}

static void expect_same_returns(const struct policy_snapshot *a, const struct policy_snapshot *b)
{
    for (uint32_t i = 0; i < POLICY_STOPS; i++) {
        const struct policy_returns *x = policy_returns_after(a, i), *y = policy_returns_after(b, i);
        cr_assert_eq(x ? x->bins : 0, y ? y->bins : 0);
        if (!x || !x->bins)
            continue;
        cr_assert_arr_eq(x->edges_ns, y->edges_ns, x->bins * sizeof(uint64_t));
        cr_assert_arr_eq(x->at_risk, y->at_risk, x->bins * sizeof(uint64_t));
        cr_assert_arr_eq(x->returned, y->returned, x->bins * sizeof(uint64_t));
    }
}

static void expect_same_table(const struct policy_snapshot *a, const struct policy_snapshot *b,
                              const char *of)
{
    cr_assert_eq(a->n_slots, b->n_slots, "%s", of);
    cr_assert_eq(a->now_ns, b->now_ns, "%s: %ld %ld", of, a->now_ns, b->now_ns);
    cr_assert_eq(a->flags, b->flags, "%s", of);
    cr_assert_eq(a->seed, b->seed, "%s", of);
    cr_assert_eq(a->prompt_tokens_per_s, b->prompt_tokens_per_s, "%s", of);
    for (uint32_t i = 0; i <= a->n_slots; i++) {
        expect_same_history(policy_at(a, i), policy_at(b, i), of);
        if (i < a->n_slots)
            cr_assert_eq(policy_busy_rows(a, policy_at(a, i)->group),
                         policy_busy_rows(b, policy_at(b, i)->group), "%s", of);
        for (uint32_t k = 0; k <= a->n_slots; k++)
            if (i != k)
                cr_assert_eq(policy_shared(a, i, k), policy_shared(b, i, k), "%s: %u %u", of, i, k);
    }
    expect_same_returns(a, b);
}

/* ---- written and read ---- */

static void random_history(uint64_t *x, struct policy_history *h, uint32_t prompt_tokens, bool is_main)
{
    uint32_t id = h->id, group = h->group;
    *h = (struct policy_history){
        .id = id,
        .group = group,
        .flags = below(x, 16),
        .tokens = below(x, 4) ? below(x, 300000) : 0,
        .last_use_ns = (int64_t)(random_bits(x) % (1ull << 50)) >> below(x, 40),
        .turns = below(x, 9),
        .stop_reason = below(x, POLICY_STOPS),
        .prompt_tokens = below(x, 2) * below(x, 300000),
        .request_flags = below(x, 8),
        .client_key = random_bits(x) << 10,
        .session_key = below(x, 2) ? random_bits(x) : 0,
        .parent_key = below(x, 3),
        .line_key = INT64_MAX,
        .recompute_ns = below(x, 2) * (random_bits(x) >> below(x, 50)) % (1ull << 50),
        .bytes = below(x, 2) * random_bits(x),
    };
    h->turn_tokens = h->tokens ? below(x, h->tokens + 1) : 0;
    uint32_t most = prompt_tokens - 1 < h->tokens ? prompt_tokens - 1 : h->tokens;
    h->shared_prompt = below(x, most + 1);
    if (is_main)
        h->flags &= POLICY_BUSY | POLICY_RELIABLE;
}

static uint64_t bins[POLICY_STOPS][3][8];
static struct policy_returns returns[POLICY_STOPS];

static void random_returns(uint64_t *x, struct policy_snapshot *v)
{
    for (uint32_t i = 0; i < POLICY_STOPS; i++) {
        uint32_t n = below(x, 3) ? below(x, 8) : 0;
        returns[i] = (struct policy_returns){ bins[i][0], bins[i][1], bins[i][2], n, 0 };
        for (uint32_t k = 0; k < n; k++) {
            bins[i][0][k] = (k ? bins[i][0][k - 1] + 1 : 0) + below(x, 1u << 31);
            bins[i][1][k] = random_bits(x);
            bins[i][2][k] = below(x, 1000);
        }
    }
    v->returns = below(x, 2) ? returns : NULL;
    v->n_returns = v->returns ? 1 + below(x, POLICY_STOPS) : 0;
    v->returns_stride = sizeof returns[0];
}

static struct case_table *random_table(uint64_t *x)
{
    uint32_t n = 1 + below(x, CASE_SLOTS);
    struct case_table *t = case_new(n, 1 + below(x, n), below(x, 4) != 0);
    uint32_t first = below(x, 2) * below(x, 100000);
    t->request = (struct policy_request){ .size = sizeof t->request,
                                          .flags = below(x, 8),
                                          .prompt_tokens = 1 + below(x, 200000),
                                          .turn_tokens = below(x, 1000),
                                          .max_new_tokens = below(x, 500),
                                          .client_key = random_bits(x),
                                          .session_key = random_bits(x),
                                          .parent_key = below(x, 2),
                                          .line_key = random_bits(x) };
    for (uint32_t i = 0; i < n; i++) {
        t->slots[i].h.id = first + i * 3;
        random_history(x, &t->slots[i].h, t->request.prompt_tokens, false);
    }
    random_history(x, &t->main.h, t->request.prompt_tokens, true);
    for (uint32_t i = 0; i <= n; i++)
        for (uint32_t k = 0; k < i; k++)
            case_shared(t, i, k, below(x, 2) * below(x, 100000));
    t->v.now_ns = (int64_t)(random_bits(x) % (1ull << 50)) >> below(x, 30);
    t->v.flags = below(x, 2) ? POLICY_PADDING_SAFE : 0;
    t->v.prompt_tokens_per_s = below(x, 2) * ((double)random_bits(x) / 3e9);
    t->v.seed = below(x, 2) * (random_bits(x) << 11);
    random_returns(x, &t->v);
    case_ready(t);
    return t;
}

Test(case, what_is_written_reads_back_as_it_was)
{
    struct policy_case *c;
    struct buf b = { 0 };
    uint64_t x = 1;
    cr_assert_eq(policy_case_new(&c), 0);
    for (unsigned i = 0; i < 2000; i++) {
        struct case_table *t = random_table(&x);
        struct policy_decision d = { .call = i % POLICY_CALLS, .id = i, .snapshot = &t->v };
        if (d.call == POLICY_CALL_PLACE || d.call == POLICY_CALL_PARK)
            d.request = &t->request;
        buf_clear(&b);
        policy_case_write(&b, &d);
        cr_assert_str_eq(read_text(c, b.data, b.len), "", "%s", b.data);
        const struct policy_decision *back = policy_case_get(c);
        cr_assert_eq(back->call, d.call);
        cr_assert_eq(back->placing, POLICY_NO_SLOT);
        cr_assert_eq(back->request == NULL, d.request == NULL);
        if (d.request)
            cr_assert_arr_eq(back->request, d.request, sizeof *d.request);
        expect_same_table(&t->v, back->snapshot, b.data);
        free(t);
    }
    buf_free(&b);
    policy_case_free(c);
}

Test(case, a_machine_that_has_been_up_for_years_loses_no_nanosecond)
{
    struct case_table *t = case_new(3, 3, true);
    struct policy_case *c;
    struct buf b = { 0 };
    int64_t year = 31557600ll * 1000000000ll, now = 7 * year + 123456789;
    const int64_t ages[] = { 1, 999999999, 86400ll * 1000000000 * 12 + 7, -5 };
    cr_assert_eq(policy_case_new(&c), 0);
    t->v.now_ns = now;
    for (int i = 0; i < 3; i++)
        t->slots[i].h.last_use_ns = now - ages[i];
    t->main.h.last_use_ns = now - ages[3];
    case_ready(t);
    policy_case_write(&b, &(struct policy_decision){ .call = POLICY_CALL_STATE, .snapshot = &t->v });
    cr_assert_str_eq(read_text(c, b.data, b.len), "");
    const struct policy_snapshot *v = policy_case_get(c)->snapshot;
    for (uint32_t i = 0; i <= 3; i++)
        cr_expect_eq(v->now_ns - policy_at(v, i)->last_use_ns, ages[i]);
    buf_free(&b);
    policy_case_free(c);
    free(t);
}

/* ---- asked again ---- */

/* Asks about d, and writes the answer. */
static void write_answer(struct policy_asker *a, const struct policy_decision *d, struct buf *b)
{
    char err[160];
    struct policy_decision with = *d;
    buf_clear(b);
    cr_assert_eq(policy_asker_ask(a, d, &with.answer, err, sizeof err), 0, "%s", err);
    policy_answer_write(b, &with);
    cr_assert(b->len > 4 && !b->failed);
}

/* Numbers are compared as they are printed, with all their digits. */
static void ask_twice(struct policy_loaded *p, uint64_t seed, unsigned n)
{
    struct policy_asker *a;
    struct policy_case *c;
    struct buf first = { 0 }, line = { 0 }, again = { 0 };
    uint64_t x = seed;
    cr_assert_eq(policy_asker_new(p, &a), 0);
    cr_assert_eq(policy_case_new(&c), 0);
    for (unsigned i = 0; i < n; i++) {
        struct case_table *t = random_table(&x);
        struct policy_decision d = { .call = i % POLICY_CALLS, .policy = "p", .snapshot = &t->v };
        if (d.call == POLICY_CALL_PLACE || d.call == POLICY_CALL_PARK)
            d.request = &t->request;
        d.placing = POLICY_NO_SLOT;
        write_answer(a, &d, &first);
        char err[160];
        cr_assert_eq(policy_asker_ask(a, &d, &d.answer, err, sizeof err), 0);
        buf_clear(&line);
        policy_case_write_decided(&line, &d);
        cr_assert_not_null(strstr(line.data, first.data), "a trace line says what was decided");
        free(t);
        cr_assert_str_eq(read_text(c, line.data, line.len), "");
        write_answer(a, policy_case_get(c), &again);
        cr_assert_str_eq(first.data, again.data, "%s", line.data);
    }
    buf_free(&first);
    buf_free(&line);
    buf_free(&again);
    policy_asker_free(a);
    policy_case_free(c);
}

Test(case, a_line_of_a_trace_is_decided_again_to_the_last_digit)
{
    char path[1024], err[512] = "";
    struct policy_load_options o = { .path = path };
    struct policy_loaded *value = NULL;
    const char *build = getenv("BERTH_BUILD");
    cr_assert_not_null(build, "BERTH_BUILD is not set");
    snprintf(path, sizeof path, "%s/plugins/value.so", build);
    cr_assert_eq(policy_load(&o, &value, err, sizeof err), 0, "%s", err);
    ask_twice(policy_loaded_builtin(), 11, 1000);
    ask_twice(value, 12, 2000);
    policy_loaded_unref(value);
}

/* ---- recorded cases ---- */

static struct policy_case *ours;

static void check_recorded(const json_t *root, struct case_table *t, const json_t *expect)
{
    char err[512] = "";
    (void)expect;
    const json_t *one = json_object_get(root, "case"), *request = json_object_get(one, "request");
    cr_assert_eq(policy_case_read(ours, one, err, sizeof err), 0, "%s", err);
    const struct policy_decision *d = policy_case_get(ours);
    for (uint32_t i = 0; i <= t->v.n_slots; i++) { /* what the other reader passes over */
        struct policy_history *h = (struct policy_history *)(uintptr_t)policy_at(d->snapshot, i);
        if (h)
            h->turns = h->stop_reason = 0;
    }
    t->v.prompt_tokens_per_s =
        json_number_value(json_object_get(json_object_get(one, "snapshot"), "prompt_tokens_per_s"));
    expect_same_table(&t->v, d->snapshot, json_string_value(json_object_get(one, "id")));
    if (d->request) {
        cr_assert_eq(d->request->prompt_tokens, case_int(request, "prompt_tokens"));
        cr_assert_eq(d->request->turn_tokens, case_int(request, "turn_tokens"));
        cr_assert_eq(d->request->max_new_tokens, case_int(request, "max_new_tokens"));
        cr_assert_eq(d->request->flags, case_flag(request, "side", POLICY_REQUEST_SIDE));
    }
}

Test(case, recorded_cases_are_read_as_another_reader_reads_them)
{
    uint32_t n = 0;
    cr_assert_eq(policy_case_new(&ours), 0);
    for (unsigned call = 0; call < POLICY_CALLS; call++)
        n += case_each(policy_call_name(call), check_recorded);
    cr_expect_geq(n, 3995);
    policy_case_free(ours);
}

/* ---- bad ones ---- */

#define SLOT0 "{\"id\":0,\"tokens\":5,\"turn_tokens\":5}"
#define PLACE(snapshot, request)                                                                             \
    "{\"id\":1,\"call\":\"place\",\"snapshot\":{" snapshot "},\"request\":{" request "}}"

static const struct {
    const char *text, *wrong;
} bad[] = {
    { "[1]", "a list where a case, an object, is wanted" },
    { "{}", "call: is missing" },
    { "{\"call\":\"place\",\"cal\":1}", "cal: unknown key; did you mean call?" },
    { "{\"call\":\"placed\"}",
      "call: \"placed\" is none of place, park_destination, cache_state, superseded_slots" },
    { "{\"call\":7}", "call: a number where a string is wanted" },
    { "{\"call\":\"place\"}", "snapshot: is missing" },
    { "{\"call\":\"place\",\"snapshot\":[]}", "snapshot: a list where an object is wanted" },
    { PLACE("", ""), "snapshot.slots: is missing: 1..1024 slots are wanted" },
    { PLACE("\"slots\":{}", ""), "snapshot.slots: an object where a list is wanted" },
    { PLACE("\"slots\":[]", ""), "snapshot.slots: 0 slots where 1..1024 are wanted" },
    { PLACE("\"slots\":[{},{\"id\":1},{\"id\":1}]", ""),
      "snapshot.slots[2].id: 1 is the id of slot 1 of the list too" },
    { PLACE("\"slots\":[{},3]", ""), "snapshot.slots[1]: a number where an object is wanted" },
    { PLACE("\"slots\":[{},{\"id\":1,\"turn_tokens\":9,\"tokens\":5}]", ""),
      "snapshot.slots[1].turn_tokens: 9 is above tokens, which is 5" },
    { PLACE("\"slots\":[{\"shared_prompt\":6,\"tokens\":5}]", "\"prompt_tokens\":100"),
      "snapshot.slots[0].shared_prompt: 6 is above tokens, which is 5" },
    { PLACE("\"slots\":[{\"shared_prompt\":5,\"tokens\":5}]", "\"prompt_tokens\":5"),
      "snapshot.slots[0].shared_prompt: 5 is above the request's prompt_tokens - 1, which is 4" },
    { PLACE("\"slots\":[{}],\"main\":{\"valid\":true,\"tokens\":2,\"turn_tokens\":3}", ""),
      "snapshot.main.turn_tokens: 3 is above tokens, which is 2" },
    { PLACE("\"slots\":[{}],\"main\":{\"id\":0}", ""), "snapshot.main.id: unknown key" },
    { PLACE("\"slots\":[{\"valid\":true}]", ""), "snapshot.slots[0].valid: unknown key" },
    { PLACE("\"slots\":[{\"token\":1}]", ""), "snapshot.slots[0].token: unknown key; did you mean tokens?" },
    { PLACE("\"slots\":[{\"tokens\":1.5}]", ""),
      "snapshot.slots[0].tokens: a number where a whole number is wanted" },
    { PLACE("\"slots\":[{\"tokens\":-1}]", ""), "snapshot.slots[0].tokens: -1 is outside 0..2147483647" },
    { PLACE("\"slots\":[{\"id\":4294967296}]", ""),
      "snapshot.slots[0].id: 4294967296 is outside 0..4294967295" },
    { PLACE("\"slots\":[{\"tokens\":\"1\"}]", ""),
      "snapshot.slots[0].tokens: a string where a whole number is wanted" },
    { PLACE("\"slots\":[{\"client_key\":-1}]", ""),
      "snapshot.slots[0].client_key: -1 is outside 0..9223372036854775807" },
    { PLACE("\"slots\":[{\"state\":\"free\"}]", ""),
      "snapshot.slots[0].state: \"free\" is neither idle nor busy" },
    { PLACE("\"slots\":[{\"reliable\":1}]", ""),
      "snapshot.slots[0].reliable: a number where true or false is wanted" },
    { PLACE("\"slots\":[{\"stop_reason\":\"stop\"}]", ""),
      "snapshot.slots[0].stop_reason: \"stop\" is none of none, end_turn, tool_use, length, cancelled" },
    { PLACE("\"slots\":[{\"last_use_s\":1e10}]", ""),
      "snapshot.slots[0].last_use_s: 1e+10 is outside -9.2e+09..9.2e+09" },
    { PLACE("\"slots\":[{\"recompute_s\":-1}]", ""),
      "snapshot.slots[0].recompute_s: -1 is outside 0..9.2e+09" },
    { PLACE("\"slots\":[{}],\"pading_safe\":1", ""),
      "snapshot.pading_safe: unknown key; did you mean padding_safe?" },
    { PLACE("\"slots\":[{}],\"now_s\":\"x\"", ""), "snapshot.now_s: a string where a number is wanted" },
    { PLACE("\"slots\":[{}],\"prompt_tokens_per_s\":-2", ""),
      "snapshot.prompt_tokens_per_s: -2 is outside 0..1e+300" },
    { PLACE("\"slots\":[{}]", "\"tools\":0"), "request.tools: a number where true or false is wanted" },
    { PLACE("\"slots\":[{}]", "\"prompt\":0"), "request.prompt: unknown key" },
    { "{\"call\":\"cache_state\",\"snapshot\":{\"slots\":[{}]},\"request\":4}",
      "request: a number where an object is wanted" },
    { PLACE("\"slots\":[{}],\"shared\":[[0,1]]", ""),
      "snapshot.shared: 1 rows where 2 are wanted: every slot, and main last" },
    { PLACE("\"slots\":[{}],\"shared\":[[0,1],[1]]", ""),
      "snapshot.shared[1]: 1 numbers where 2 are wanted: every slot, and main last" },
    { PLACE("\"slots\":[{}],\"shared\":[[0,1],[2,0]]", ""),
      "snapshot.shared[1]: number 0 is 2, and number 1 of row 0 is 1: the matrix is symmetric" },
    { PLACE("\"slots\":[{}],\"shared\":[[0,true],[2,0]]", ""),
      "snapshot.shared[0]: true or false where a whole number is wanted" },
    { PLACE("\"slots\":[{}],\"shared\":{}", ""), "snapshot.shared: an object where a list is wanted" },
    { PLACE("\"slots\":[{}],\"returns\":{\"stop\":{}}", ""), "snapshot.returns.stop: unknown key" },
    { PLACE("\"slots\":[{}],\"returns\":{\"length\":{}}", ""),
      "snapshot.returns.length.edges_s: is missing" },
    { PLACE("\"slots\":[{}],\"returns\":{\"length\":{\"edges_s\":[0,1],\"at_risk\":[1],\"returned\":[0,0]}}",
            ""),
      "snapshot.returns.length.at_risk: 1 numbers where edges_s has 2" },
    { PLACE(
          "\"slots\":[{}],\"returns\":{\"length\":{\"edges_s\":[1,1],\"at_risk\":[1,1],\"returned\":[0,0]}}",
          ""),
      "snapshot.returns.length.edges_s: number 1 is not above the one before it" },
};

Test(case, a_bad_case_is_refused_by_the_name_of_what_is_wrong)
{
    struct policy_case *c;
    cr_assert_eq(policy_case_new(&c), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *wrong = read_text(c, bad[i].text, strlen(bad[i].text));
        cr_expect_str_eq(wrong, bad[i].wrong, "%s\n gave: %s\n wanted: %s", bad[i].text, wrong, bad[i].wrong);
    }
    const char *good = PLACE("\"slots\":[" SLOT0 "]", "\"prompt_tokens\":5");
    cr_expect_str_eq(read_text(c, good, strlen(good)), "", "and the next good one is read");
    policy_case_free(c);
}

Test(case, what_is_left_out_has_its_default)
{
    struct policy_case *c;
    const char *text =
        "{\"call\":\"superseded_slots\",\"decision\":[{\"any\":\"thing\"}],\"id\":null,"
        "\"snapshot\":{\"slots\":[{\"shared_prompt\":3,\"tokens\":3,\"group\":7,\"excluded\":true},"
        "{\"id\":5,\"group\":7,\"state\":\"busy\",\"main\":null}]}}";
    cr_assert_eq(policy_case_new(&c), 0);
    cr_assert_str_eq(read_text(c, text, strlen(text)), "snapshot.slots[1].main: unknown key", "null or not");
    text = "{\"call\":\"superseded_slots\",\"decision\":[{\"any\":\"thing\"}],\"id\":null,"
           "\"snapshot\":{\"main\":null,\"slots\":[{\"shared_prompt\":3,\"tokens\":3,\"group\":7,"
           "\"excluded\":true},"
           "{\"id\":5,\"group\":7,\"state\":\"busy\"}]}}";
    cr_assert_str_eq(read_text(c, text, strlen(text)), "");
    const struct policy_snapshot *v = policy_case_get(c)->snapshot;
    cr_expect_eq(v->flags, POLICY_PADDING_SAFE);
    cr_expect_null(v->main_history);
    cr_expect_null(v->returns);
    cr_expect_eq(v->n_groups, 1);
    cr_expect_eq(policy_busy_rows(v, 7), 2);
    cr_expect_eq(policy_at(v, 0)->flags, POLICY_RELIABLE | POLICY_EXCLUDED);
    cr_expect_eq(policy_at(v, 1)->flags, POLICY_RELIABLE | POLICY_BUSY);
    cr_expect_eq(policy_shared(v, 0, 2), 0);
    cr_expect_null(policy_case_get(c)->request);
    policy_case_free(c);
}

/* ---- mutated ones ---- */

static const char alphabet[] = "{}[],:\"0123456789.-+eEtrufalsn _\\\x00\x7f\xc3";

static size_t mutate(char *text, size_t len, size_t cap, uint64_t *x)
{
    for (uint32_t n = 1 + below(x, 4); n; n--) {
        size_t at = below(x, (uint32_t)len), from = below(x, (uint32_t)len);
        size_t some = below(x, 24) + 1;
        some = some > len - at ? len - at : some;
        switch (below(x, 4)) {
        case 0:
            text[at] = alphabet[below(x, sizeof alphabet - 1)];
            break;
        case 1: /* cut a piece out */
            memmove(text + at, text + at + some, len - at - some);
            len -= some;
            break;
        case 2: /* copy a piece over another */
            memmove(text + at, text + from, some > len - from ? len - from : some);
            break;
        default: /* put a piece in */
            if (len + some > cap)
                break;
            memmove(text + at + some, text + at, len - at);
            len += some;
        }
        if (len < 2)
            break;
    }
    return len;
}

/* A value somewhere in the tree becomes another one; the text stays JSON. */
static void spoil(json_t *v, uint64_t *x)
{
    static const char *const odd[] = { "null", "true",    "-1",        "1e300", "9223372036854775807",
                                       "\"\"", "[]",      "{}",        "[[]]",  "4294967295",
                                       "0.5",  "[0,0,0]", "{\"a\":1}", "-0.0" };
    json_t *other = json_loads(odd[below(x, sizeof odd / sizeof odd[0])], JSON_DECODE_ANY, NULL);
    for (;;) {
        uint32_t n = (uint32_t)(json_is_array(v) ? json_array_size(v) : json_object_size(v)), k;
        if (!n)
            break;
        k = below(x, n);
        const char *key = NULL;
        if (json_is_object(v)) {
            void *it = json_object_iter(v);
            while (k--)
                it = json_object_iter_next(v, it);
            key = json_object_iter_key(it);
        }
        json_t *inner = key ? json_object_get(v, key) : json_array_get(v, k);
        if (!json_is_array(inner) && !json_is_object(inner)) {
            key ? json_object_set(v, key, other) : json_array_set(v, k, other);
            break;
        }
        if (below(x, 6) == 0) {
            key ? json_object_set(v, key, other) : json_array_set(v, k, other);
            break;
        }
        v = inner;
    }
    json_decref(other);
}

static uint64_t mutations;
static unsigned read_well, refused;

static void judge(const char *text, size_t len)
{
    const char *wrong = read_text(ours, text, len);
    if (*wrong) {
        refused++;
        cr_assert_not_null(strchr(wrong, ' '), "%s", wrong);
        return;
    }
    read_well++; /* then it is a table that can be asked about */
    struct policy_decision *copy;
    cr_assert_eq(policy_decision_new(policy_case_get(ours), &copy), 0);
    for (uint32_t i = 0; i <= copy->snapshot->n_slots; i++)
        policy_blank(copy->snapshot, i);
    policy_decision_unref(copy);
}

static void mutate_recorded(const json_t *root, struct case_table *t, const json_t *expect)
{
    static char text[1 << 16];
    static uint32_t which;
    (void)t;
    (void)expect;
    if (!cases_all() && which++ % 5)
        return;
    json_t *one = json_deep_copy(json_object_get(root, "case"));
    for (uint32_t n = 1 + below(&mutations, 2); n; n--)
        spoil(one, &mutations);
    size_t len = json_dumpb(one, text, sizeof text, JSON_COMPACT);
    json_decref(one);
    cr_assert_leq(len, sizeof text);
    judge(text, len);
    judge(text, mutate(text, len, sizeof text, &mutations));
}

Test(case, no_mutation_of_a_case_does_harm)
{
    mutations = 5;
    cr_assert_eq(policy_case_new(&ours), 0);
    for (unsigned call = 0; call < POLICY_CALLS; call++)
        case_each(policy_call_name(call), mutate_recorded);
    cr_log_info("%u read, %u refused", read_well, refused);
    cr_expect_gt(read_well, cases_of(500, 5));
    cr_expect_gt(refused, cases_of(5000, 5));
    policy_case_free(ours);
}
