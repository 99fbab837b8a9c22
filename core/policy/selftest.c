/* Self-test: see selftest.h. */
#include "policy/selftest.h"
#include "policy/host.h"
#include "util/buf.h"
#include "util/digest.h"
#include "util/rng.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 64u /* at most */
#define NOW_NS INT64_C(4000000000000)

enum mood { USUAL, EMPTY, FULL, HELD, UNKNOWN, EXTREME, MOODS };

static const struct shape {
    uint32_t n_slots, group_slots;
    bool padding_safe, has_main;
} shapes[] = {
    { 1, 1, true, true },  { 2, 1, true, false },  { 4, 4, true, true },
    { 8, 4, false, true }, { 16, 16, true, true }, { SLOTS, 8, false, true },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, TABLES = SHAPES * MOODS };

/* A table with all it points to. */
struct table {
    struct policy_history slots[SLOTS], main;
    struct policy_group groups[SLOTS];
    uint32_t shared[SLOTS + 1][SLOTS + 1];
    struct policy_returns returns[POLICY_STOPS];
    struct policy_snapshot v;
    struct policy_request request;
};

static const uint64_t edges_ns[] = { 0, 5000000000, 60000000000 };
static const uint64_t at_risk[] = { 100, 60, 20 }, returned[] = { 40, 40, 5 };

struct test {
    struct policy_loaded *policy;
    struct table *table;
    uint64_t seed, counter;                          /* of the table being made */
    uint8_t first[TABLES][POLICY_CALLS][DIGEST_LEN]; /* what was answered the first time */
    char breach[256];
};

static uint32_t below(struct test *t, uint32_t n)
{
    uint32_t words[4];
    rng_philox(t->seed, t->counter++, words);
    return n ? words[0] % n : 0;
}

/* ---- tables ---- */

static uint32_t length(struct test *t, enum mood mood)
{
    static const uint32_t lengths[] = { 0, 1, 40, 700, 2600, 9000, 33000, 120000, 300000 };
    if (mood == EMPTY)
        return 0;
    if (mood == EXTREME && below(t, 2))
        return UINT32_MAX - below(t, 3);
    return lengths[below(t, sizeof lengths / sizeof *lengths)];
}

static int64_t last_use(struct test *t, enum mood mood)
{
    static const int64_t ages_s[] = { 0, 1, 8, 30, 100, 400, 1700, 1801, 3999 };
    if (mood == EXTREME)
        return below(t, 2) ? INT64_MAX : below(t, 2) ? INT64_MIN / 2 : NOW_NS + 1;
    return NOW_NS - ages_s[below(t, sizeof ages_s / sizeof *ages_s)] * INT64_C(1000000000);
}

static struct policy_history history(struct test *t, enum mood mood)
{
    uint32_t tokens = length(t, mood);
    struct policy_history h = {
        .flags = mood == EXTREME && below(t, 3) == 0 ? 0 : POLICY_RELIABLE,
        .tokens = tokens,
        .turn_tokens = below(t, 3) ? tokens : tokens / 2,
        .last_use_ns = tokens ? last_use(t, mood) : 0,
    };
    if (mood == FULL)
        h.flags |= POLICY_BUSY;
    else if (mood == HELD)
        h.flags |= below(t, 2) ? POLICY_HELD : POLICY_EXCLUDED;
    else if (mood == USUAL && below(t, 4) == 0)
        h.flags |= below(t, 2) ? POLICY_BUSY : below(t, 2) ? POLICY_HELD : POLICY_EXCLUDED;
    if (mood == UNKNOWN || !tokens)
        return h;
    h.turns = 1 + below(t, 20);
    h.stop_reason = below(t, POLICY_STOPS);
    h.prompt_tokens = tokens / 2;
    h.request_flags = below(t, 8);
    h.client_key = 1 + below(t, 3);
    h.session_key = 1 + below(t, 6);
    h.line_key = 1 + below(t, 9);
    h.recompute_ns = (uint64_t)tokens * 100000;
    h.bytes = (uint64_t)tokens * 256;
    return h;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct policy_history *at(struct table *b, uint32_t i)
{
    return i < b->v.n_slots ? &b->slots[i] : &b->main;
}

static void fill_shared(struct test *t, enum mood mood)
{
    struct table *b = t->table;
    for (uint32_t i = 0; i <= b->v.n_slots; i++) {
        struct policy_history *x = at(b, i);
        uint32_t most = least(x->tokens, b->request.prompt_tokens - 1);
        x->shared_prompt = below(t, 3) == 0 ? most : below(t, 2) ? most / 3 : 0;
        b->shared[i][i] = x->tokens;
        for (uint32_t k = 0; k < i; k++) {
            uint32_t both = least(x->tokens, at(b, k)->tokens), how = below(t, 6);
            b->shared[i][k] = b->shared[k][i] = how == 0 ? both : how == 1 ? both / 2 : 0;
        }
    }
    b->v.shared = mood == UNKNOWN ? NULL : &b->shared[0][0];
}

static void fill_groups(struct table *b, uint32_t group_slots)
{
    for (uint32_t i = 0; i < b->v.n_slots; i++) {
        struct policy_history *h = &b->slots[i];
        struct policy_group *g = &b->groups[i / group_slots];
        h->id = i;
        h->group = g->id = i / group_slots;
        g->slots++;
        g->busy_rows += (h->flags & (POLICY_BUSY | POLICY_EXCLUDED)) != 0;
    }
    b->v.n_groups = b->v.n_slots / group_slots;
}

static void make_table(struct test *t, uint32_t index)
{
    const struct shape *shape = &shapes[index % SHAPES];
    enum mood mood = (enum mood)(index / SHAPES);
    struct table *b = t->table;
    memset(b, 0, sizeof *b);
    t->seed = index + 1;
    t->counter = 0;
    b->request = (struct policy_request){ .size = sizeof b->request,
                                          .prompt_tokens = mood == EMPTY ? 1 : 1 + below(t, 200000),
                                          .flags = below(t, 8),
                                          .max_new_tokens = below(t, 3) * 100,
                                          .client_key = 1 + below(t, 3),
                                          .session_key = 1 + below(t, 6) };
    b->request.turn_tokens = b->request.prompt_tokens / 2;
    b->v = (struct policy_snapshot){
        .size = sizeof b->v,
        .flags = shape->padding_safe ? POLICY_PADDING_SAFE : 0,
        .now_ns = NOW_NS,
        .slots = b->slots,
        .n_slots = shape->n_slots,
        .slot_stride = sizeof b->slots[0],
        .main_history = shape->has_main ? &b->main : NULL,
        .groups = b->groups,
        .group_stride = sizeof b->groups[0],
        .shared_stride = sizeof b->shared[0],
        .prompt_tokens_per_s = mood == UNKNOWN ? 0 : 800,
        .seed = index,
    };
    for (uint32_t i = 0; i <= shape->n_slots; i++)
        *at(b, i) = history(t, mood);
    b->main.flags &= POLICY_RELIABLE;
    fill_groups(b, shape->group_slots);
    fill_shared(t, mood);
    if (mood == UNKNOWN)
        return;
    for (uint32_t i = 0; i < POLICY_STOPS; i++)
        b->returns[i] = (struct policy_returns){ edges_ns, at_risk, returned, i ? 3 : 0, 0 };
    b->v.returns = b->returns;
    b->v.n_returns = POLICY_STOPS;
    b->v.returns_stride = sizeof b->returns[0];
}

/* ---- questions ---- */

static void on_breach(void *arg, const struct policy_breach *breach)
{
    struct test *t = arg;
    if (!*t->breach)
        snprintf(t->breach, sizeof t->breach, "%s", breach->what);
}

static void add(struct buf *b, const void *data, size_t len)
{
    if (len)
        buf_append(b, data, len);
}

/* What a policy answers, as bytes. */
static void answer(struct policy_host *h, const struct policy_snapshot *s, const struct policy_request *r,
                   enum policy_call call, struct buf *b)
{
    struct policy_host_place place = { 0 };
    struct policy_host_park park = { 0 };
    int result = POLICY_DECIDED;
    if (call == POLICY_CALL_PLACE) {
        result = policy_host_place(h, s, r, &place);
        add(b, &place.slot, sizeof place.slot);
        add(b, &place.source_kind, sizeof place.source_kind);
        add(b, &place.source, sizeof place.source);
        add(b, &place.loss, sizeof place.loss);
        add(b, &place.tokens_lost, sizeof place.tokens_lost);
        add(b, place.candidate_loss, s->n_slots * sizeof *place.candidate_loss);
        add(b, place.reason, strlen(place.reason));
    } else if (call == POLICY_CALL_PARK) {
        result = policy_host_park(h, s, r, POLICY_NO_SLOT, &park);
        add(b, &park.slot, sizeof park.slot);
        add(b, park.reason, strlen(park.reason));
    } else if (call == POLICY_CALL_STATE) {
        const struct policy_worth *w = policy_host_state(h, s);
        add(b, w, ((size_t)s->n_slots + 1) * sizeof *w);
    } else {
        const uint64_t *words = policy_host_superseded(h, s);
        add(b, words, (s->n_slots / 64 + 1) * sizeof *words);
    }
    add(b, &result, sizeof result);
}

static int ask(struct test *t, struct policy_host *h, uint32_t index, enum policy_call call, bool again,
               char *err, size_t errlen)
{
    const struct policy_head *head = &policy_loaded_entry(t->policy)->head;
    struct policy_table_sizes sizes = { head->size_snapshot, head->size_history, head->size_group,
                                        head->size_returns };
    struct policy_snapshot *copy = NULL;
    struct buf b = { 0 };
    uint8_t digest[DIGEST_LEN];
    int r = policy_table_copy(&t->table->v, &sizes, &copy);
    if (r == 0) {
        answer(h, copy, &t->table->request, call, &b);
        r = b.failed ? -ENOMEM : 0;
    }
    if (r < 0) {
        snprintf(err, errlen, "self-test: out of memory");
        goto out;
    }
    digest_sha256(b.data, b.len, digest);
    if (*t->breach) {
        snprintf(err, errlen, "self-test: %s (table %u)", t->breach, index);
        r = -ENOEXEC;
    } else if (!again) {
        memcpy(t->first[index][call], digest, sizeof digest);
    } else if (!digest_equal(t->first[index][call], digest)) {
        snprintf(err, errlen, "self-test: %s: asked the same twice, it answers differently (table %u)",
                 policy_call_name(call), index);
        r = -ENOEXEC;
    }
out:
    free(copy);
    buf_free(&b);
    return r;
}

static int ask_all(struct test *t, uint32_t index, bool again, char *err, size_t errlen)
{
    struct policy_seat *seat = NULL;
    struct policy_host *h = NULL;
    make_table(t, index);
    int r = policy_seat_new(t->policy, &seat);
    struct policy_host_options o = { .seat = seat, .on_breach = on_breach, .arg = t };
    if (r == 0)
        r = policy_host_new(&o, t->table->v.n_slots, &h);
    if (r < 0) {
        snprintf(err, errlen, "self-test: out of memory");
    } else {
        policy_host_pin(h);
        for (uint32_t k = 0; r == 0 && k < POLICY_CALLS; k++)
            r = ask(t, h, index, (enum policy_call)(again ? POLICY_CALLS - 1 - k : k), again, err, errlen);
        policy_host_unpin(h);
    }
    policy_host_free(h);
    policy_seat_free(seat);
    return r;
}

int policy_selftest(struct policy_loaded *p, char *err, size_t errlen)
{
    struct test *t = calloc(1, sizeof *t);
    int r = 0;
    if (t)
        t->table = calloc(1, sizeof *t->table);
    if (!t || !t->table) {
        snprintf(err, errlen, "self-test: out of memory");
        free(t);
        return -ENOMEM;
    }
    t->policy = p;
    for (uint32_t i = 0; r == 0 && i < TABLES; i++)
        r = ask_all(t, i, false, err, errlen);
    for (uint32_t i = TABLES; r == 0 && i-- > 0;)
        r = ask_all(t, i, true, err, errlen);
    free(t->table);
    free(t);
    return r;
}
