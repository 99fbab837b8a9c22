/* What must hold for plugins/value.c whatever the table: it agrees with another implementation of the same
 * rules on 200,000 random tables, and its curves and choices have the properties that operators rely on. */
#include "value_model.h"
#include "../unit/policy_case.h"
#include "../unit/policy_module.h"

#define TABLES 200000u
#define MAX_TOKENS 300000u

static const struct slot_policy *value;

static void open_value(void)
{
    value = module_open("value");
}

TestSuite(value_model, .init = open_value);

/* ---- chance ---- */

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 32) * n >> 32);
}

static uint32_t between(uint32_t least, uint32_t most)
{
    return least + below(most - least + 1);
}

static double unit(void)
{
    return (double)below(1u << 30) / (1u << 30);
}

/* ---- settings ---- */

/* A value within the bounds: the default, a bound, or anything between, small ones as likely as large. */
static double random_setting(const struct policy_setting *s)
{
    switch (below(6)) {
    case 0:
        return s->min;
    case 1:
        return s->max;
    case 2:
    case 3:
        return strtod(s->default_text, NULL);
    default:
        return fmax(s->min, s->max * pow(10, -5 * unit()));
    }
}

static void model_settings(struct model *m, const double *v)
{
    m->ttl_max_s = v[module_setting(value, "ttl_max_s")];
    m->expired_keep_score = v[module_setting(value, "expired_keep_score")];
    m->idle_value_zero_s = v[module_setting(value, "idle_value_zero_s")];
    m->park_value_ratio = v[module_setting(value, "park_value_ratio")];
    m->park_min_value = v[module_setting(value, "park_min_value")];
    m->park_kept_share = v[module_setting(value, "park_kept_share")];
}

static void *create_with(struct model *m, const char *name, double x)
{
    double v[MODULE_SETTINGS];
    module_defaults(value, v);
    if (name)
        v[module_setting(value, name)] = x;
    model_settings(m, v);
    return module_create(value, v);
}

/* ---- random tables ---- */

static uint32_t random_tokens(void)
{
    static const uint32_t often[] = {
        0, 1, 500, 501, 2000, 8000, 8000, 32000, 50000, 100000, 262144, 262145
    };
    if (below(3))
        return (uint32_t)exp(log(MAX_TOKENS) * unit());
    return often[below(sizeof often / sizeof *often)];
}

/* Ages at which something happens, and others. */
static int64_t random_age(const struct model *m, uint32_t tokens)
{
    int64_t ttl = (int64_t)(model_ttl(m, tokens) * 1e9), zero = (int64_t)(m->idle_value_zero_s * 1e9);
    switch (below(8)) {
    case 0:
        return -SEC(below(5));
    case 1:
        return ttl + (int64_t)below(3) - 1;
    case 2:
        return zero + (int64_t)below(3) - 1;
    case 3:
        return SEC(below(4) * 10);
    case 4:
    case 5:
        return (int64_t)((double)ttl * unit());
    default:
        return (int64_t)(1e9 * exp(log(700000) * unit()));
    }
}

static struct policy_history *history(struct case_table *t, uint32_t i)
{
    return i < t->v.n_slots ? &t->slots[i].h : &t->main.h;
}

/* `mood`: what most tables of a kind have in common, so that each rule is reached often. */
static void random_history(struct case_table *t, const struct model *m, uint32_t i, uint32_t mood)
{
    struct policy_history *h = history(t, i);
    h->tokens = random_tokens();
    if (mood == 1 && h->tokens < 2000)
        h->tokens += 4000;
    if (i && below(4) == 0)
        h->tokens = history(t, i - 1)->tokens;
    h->turn_tokens = below(4) ? (uint32_t)(h->tokens * unit()) : h->tokens;
    h->shared_prompt = below(3) ? 0 : below(3) ? h->tokens : (uint32_t)(h->tokens * unit());
    h->last_use_ns = t->v.now_ns - random_age(m, h->tokens);
    if (mood == 1) /* nearly all are protected */
        h->last_use_ns = t->v.now_ns - (int64_t)(model_ttl(m, h->tokens) * 1e9 * unit() * 1.03);
    if (i && below(5) == 0)
        h->last_use_ns = history(t, i - 1)->last_use_ns;
    h->flags = below(8) ? POLICY_RELIABLE : 0;
    if (i < t->v.n_slots && below(3) == 0)
        h->flags |= 1u << below(3);
    if (mood == 2 && below(4))
        h->flags |= POLICY_BUSY;
    h->turns = below(9);
    h->stop_reason = below(POLICY_STOPS);
    h->client_key = below(3);
}

static void random_shared(struct case_table *t, uint32_t mood)
{
    for (uint32_t a = 0; a <= t->v.n_slots; a++)
        for (uint32_t b = 0; b < a; b++) {
            uint32_t most =
                history(t, a)->tokens < history(t, b)->tokens ? history(t, a)->tokens : history(t, b)->tokens;
            uint32_t n = below(mood == 1 ? 12 : 5) == 0 ? (uint32_t)(most * unit()) : 0;
            if (below(mood == 1 ? 20 : 4) == 0)
                n = most;
            case_shared(t, a, b, n);
        }
}

static struct case_table *random_table(const struct model *m)
{
    uint32_t n = between(1, 10), groups = between(1, 3), mood = below(4);
    uint32_t prompt = MAX_TOKENS + 1 + below(1000);
    struct case_table *t = case_new(n, n, below(5) != 0);
    t->v.flags = below(3) ? POLICY_PADDING_SAFE : 0;
    t->v.now_ns = SEC(1000000 + below(1000));
    t->v.prompt_tokens_per_s = below(2) ? 0 : 1 + below(5000);
    t->request.prompt_tokens = prompt;
    for (uint32_t i = 0; i <= n; i++) {
        random_history(t, m, i, mood);
        t->slots[i].h.group = i < n ? below(groups) * 3 : 0;
        t->slots[i].h.id = i;
    }
    for (uint32_t i = 0; i < n; i++) { /* ids in any order */
        uint32_t k = i + below(n - i), id = t->slots[i].h.id;
        t->slots[i].h.id = t->slots[k].h.id;
        t->slots[k].h.id = id;
    }
    if (mood == 3 && n > 1) { /* near copies of what the prompt continues: the margin decides */
        uint32_t k = below(n);
        history(t, k)->shared_prompt = history(t, k)->tokens;
        for (uint32_t i = 0; i <= n; i++) {
            if (below(2))
                continue;
            history(t, i)->tokens = history(t, k)->tokens - (uint32_t)(history(t, k)->tokens * 0.03 * unit());
            history(t, i)->shared_prompt = history(t, i)->tokens;
            history(t, i)->turn_tokens = history(t, i)->tokens / 2;
        }
    }
    random_shared(t, mood);
    case_ready(t);
    return t;
}

/* ---- the same table for the model ---- */

static void model_history(struct model *m, int i, const struct policy_history *h)
{
    m->id[i] = h->id;
    m->group[i] = h->group;
    m->busy[i] = h->flags & POLICY_BUSY;
    m->excluded[i] = h->flags & POLICY_EXCLUDED;
    m->held[i] = h->flags & POLICY_HELD;
    m->reliable[i] = h->flags & POLICY_RELIABLE;
    m->tokens[i] = h->tokens;
    m->turn_tokens[i] = h->turn_tokens;
    m->shared_prompt[i] = h->shared_prompt;
    m->last_use[i] = h->last_use_ns;
}

static void model_table(struct model *m, struct case_table *t)
{
    uint32_t n = t->v.n_slots;
    m->n = (int)n;
    m->padding_safe = t->v.flags & POLICY_PADDING_SAFE;
    m->has_main = t->v.main_history != NULL;
    m->prompt_tokens_per_s = t->v.prompt_tokens_per_s;
    m->now = t->v.now_ns;
    for (uint32_t a = 0; a <= n; a++) {
        uint32_t to_a = a < n ? a : MODEL_MAIN;
        model_history(m, (int)to_a, history(t, a));
        for (uint32_t b = 0; b <= n; b++)
            m->shared[to_a][b < n ? b : MODEL_MAIN] = t->shared[a][b];
    }
    model_judge(m);
}

/* ---- asking ---- */

struct answer {
    struct policy_place place;
    double loss[CASE_SLOTS];
    const char *reason;
    int result;
};

static void ask_place(void *self, struct case_table *t, struct answer *a)
{
    memset(a, 0, sizeof *a);
    a->place = (struct policy_place){ .size = sizeof a->place,
                                      .slot = POLICY_NO_SLOT,
                                      .n_candidates = t->v.n_slots,
                                      .candidate_loss = a->loss };
    for (uint32_t i = 0; i < CASE_SLOTS; i++)
        a->loss[i] = NAN;
    a->result = value->place(self, &t->v, &t->request, &a->place);
    a->reason = value->reasons[a->place.reason].name;
}

static int ask_park(void *self, struct case_table *t, struct policy_park *a, const char **ret_reason)
{
    *a = (struct policy_park){ .size = sizeof *a, .slot = POLICY_NO_SLOT };
    int result = value->park_destination(self, &t->v, &t->request, a);
    *ret_reason = value->reasons[a->reason].name;
    return result;
}

static void ask_state(void *self, struct case_table *t, struct policy_worth *of_all)
{
    struct module_worth worth[CASE_SLOTS] = { 0 };
    struct policy_state a = { .size = sizeof a, .stride = sizeof worth[0], .worth = &worth[0].w };
    a.of_main = t->v.main_history ? &of_all[t->v.n_slots] : NULL;
    cr_assert_eq(value->cache_state(self, &t->v, &a), POLICY_DECIDED);
    for (uint32_t i = 0; i < t->v.n_slots; i++)
        of_all[i] = worth[i].w;
}

static struct policy_worth worth_of(void *self, uint32_t tokens, double age_s)
{
    struct policy_worth worth[CASE_SLOTS + 1] = { { 0 } };
    struct case_table *t = case_new(1, 1, false);
    t->slots[0].h.tokens = t->slots[0].h.turn_tokens = tokens;
    t->v.now_ns = SEC(1000000);
    t->slots[0].h.last_use_ns = t->v.now_ns - SEC(age_s);
    case_ready(t);
    ask_state(self, t, worth);
    free(t);
    return worth[0];
}

/* ---- agreement ---- */

static bool same(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static bool same_place(const struct answer *a, const struct model_place *e, uint32_t n)
{
    bool decided = e->slot != MODEL_NOWHERE;
    uint32_t kind = e->source == MODEL_NOWHERE ? POLICY_SOURCE_NONE
                    : e->source == MODEL_MAIN  ? POLICY_SOURCE_MAIN
                                               : POLICY_SOURCE_SLOT;
    for (uint32_t i = 0; i < n; i++)
        if (isnan(a->loss[i]) == e->candidate[i] ||
            (e->candidate[i] && !same(a->loss[i], e->candidate_loss[i])))
            return false;
    return a->result == (decided ? POLICY_DECIDED : POLICY_NONE) &&
           a->place.slot == (decided ? (uint32_t)e->slot : POLICY_NO_SLOT) && !strcmp(a->reason, e->reason) &&
           a->place.source_kind == kind &&
           (kind != POLICY_SOURCE_SLOT || a->place.source == (uint32_t)e->source) &&
           same(a->place.loss, e->loss) && a->place.tokens_lost == e->tokens_lost;
}

static void expect_same_worth(const struct model *m, int i, const struct policy_worth *w, uint32_t table)
{
    uint32_t state = m->blank[i]          ? POLICY_STATE_BLANK
                     : m->is_protected[i] ? POLICY_STATE_PROTECTED
                                          : POLICY_STATE_EXPIRED;
    cr_assert(w->state == state && same(w->retention, m->retention[i]) && same(w->value, m->value[i]) &&
                  same(w->age_s, m->age[i]) && same(w->ttl_s, m->ttl[i]) && same(w->give_up, m->give_up[i]),
              "table %u: worth of %d", table, i);
}

static void expect_same_state(void *self, struct case_table *t, const struct model *m, uint32_t table)
{
    struct policy_worth worth[CASE_SLOTS + 1] = { { 0 } };
    uint64_t words[1] = { 0 }, superseded = 0;
    struct policy_set set = { .size = sizeof set, .n_words = 1, .words = words };
    ask_state(self, t, worth);
    for (int i = 0; i < m->n; i++) {
        expect_same_worth(m, i, &worth[i], table);
        superseded |= (uint64_t)m->superseded[i] << i;
    }
    if (m->has_main)
        expect_same_worth(m, MODEL_MAIN, &worth[m->n], table);
    cr_assert_eq(value->superseded_slots(self, &t->v, &set), POLICY_DECIDED);
    cr_assert_eq(words[0], superseded, "table %u: superseded", table);
}

static void count_reason(uint32_t *seen, const char *reason)
{
    for (uint32_t i = 0; i < value->n_reasons; i++)
        seen[i] += !strcmp(value->reasons[i].name, reason);
}

Test(value_model, another_implementation_decides_the_same_on_random_tables)
{
    struct model m = { 0 };
    double settings[MODULE_SETTINGS];
    uint32_t seen[32] = { 0 };
    void *self = NULL;
    for (uint32_t k = 0; k < TABLES; k++) {
        struct answer a;
        struct policy_park p;
        const char *reason;
        if (k % 50 == 0) {
            if (self)
                value->destroy(self);
            for (uint32_t i = 0; i < value->n_settings; i++)
                settings[i] = random_setting(&value->settings[i]);
            self = module_create(value, settings);
            model_settings(&m, settings);
        }
        struct case_table *t = random_table(&m);
        model_table(&m, t);
        struct model_place e = model_place(&m);
        ask_place(self, t, &a);
        cr_assert(same_place(&a, &e, t->v.n_slots),
                  "table %u: slot %d, %s, loss %.17g instead of %d, %s, %.17g", k, (int)a.place.slot,
                  a.reason, a.place.loss, e.slot, e.reason, e.loss);
        struct model_park q = model_park(&m);
        int result = ask_park(self, t, &p, &reason);
        cr_assert(result == (q.slot == MODEL_NOWHERE ? POLICY_NONE : POLICY_DECIDED) &&
                      (int)p.slot == q.slot && !strcmp(reason, q.reason),
                  "table %u: park %d, %s instead of %d, %s", k, (int)p.slot, reason, q.slot, q.reason);
        expect_same_state(self, t, &m, k);
        count_reason(seen, e.reason);
        count_reason(seen, q.reason);
        free(t);
    }
    value->destroy(self);
    for (uint32_t i = 0; i < value->n_reasons; i++)
        cr_expect_gt(seen[i], TABLES / 500, "only %u tables end in %s", seen[i], value->reasons[i].name);
}

/* ---- the curves ---- */

static void expect_near(double got, double wanted, double tolerance, const char *what)
{
    cr_expect(fabs(got - wanted) <= tolerance, "%s: %.9g, %.9g expected", what, got, wanted);
}

Test(value_model, the_curves_go_through_known_points)
{
    struct model m;
    void *self = create_with(&m, NULL, 0);
    expect_near(worth_of(self, 7900, 0).ttl_s, 9.8667, 5e-5, "ttl of 7,900");
    expect_near(worth_of(self, 9000, 0).ttl_s, 11.4583, 5e-5, "ttl of 9,000");
    expect_near(worth_of(self, 500000, 0).ttl_s, 120, 0, "ttl above 262,144");
    expect_near(worth_of(self, 50000, 0).retention, 0.9246, 5e-5, "base of 50,000");
    expect_near(worth_of(self, 500, 0).retention, 0.0016, 5e-5, "base of 500");
    expect_near(worth_of(self, 10062, 0).value, 0.0566, 5e-5, "a quarter of the base of 10,062");
    expect_near(worth_of(self, 12900, 0).value, 0.0726, 5e-5, "a quarter of the base of 12,900");
    expect_near(worth_of(self, 42100, 0).value, 0.2020, 5e-5, "a quarter of the base of 42,100");
    cr_expect_lt(worth_of(self, 2586, 3).value, 0.01, "what it takes to be worth keeping at expiry");
    cr_expect_geq(worth_of(self, 2587, 0).value, 0.01);
    for (uint32_t tokens = 1; tokens < 300000; tokens += 1 + tokens / 3) {
        cr_expect_eq(worth_of(self, tokens, 1800).value, 0);
        cr_expect_gt(worth_of(self, tokens, 1799).value, 0);
    }
    value->destroy(self);
}

Test(value_model, worth_is_continuous_where_protection_ends)
{
    for (uint32_t k = 0; k < 3000; k++) {
        struct model m;
        void *self = create_with(&m, "ttl_max_s", between(1, 900));
        uint32_t tokens = between(10, MAX_TOKENS);
        double ttl = model_ttl(&m, tokens), base = model_base(tokens);
        struct policy_worth before = worth_of(self, tokens, ttl - 1e-6),
                            at = worth_of(self, tokens, ttl + 1e-6);
        cr_assert(before.state == POLICY_STATE_PROTECTED && at.state == POLICY_STATE_EXPIRED);
        cr_assert_leq(fabs(before.retention - at.retention), base * 3e-6 / ttl + 1e-15);
        cr_assert_leq(fabs(before.value - at.value), base * 1e-9);
        cr_assert_leq(fabs(at.retention - at.value), base * 1e-9, "one goes on where the other ended");
        cr_assert(before.retention > at.retention && before.value >= at.value);
        value->destroy(self);
    }
}

Test(value_model, an_expired_history_loses_more_with_every_second)
{
    struct model m;
    void *self = create_with(&m, NULL, 0);
    for (uint32_t tokens = 100; tokens < 300000; tokens += 50 + tokens / 5) {
        double ttl = model_ttl(&m, tokens), step = (1800 - ttl) / 40, lost = 0;
        for (int k = 0; k < 40; k++) {
            double now = worth_of(self, tokens, ttl + 1e-6 + k * step).value;
            double next = worth_of(self, tokens, ttl + 1e-6 + (k + 1) * step).value;
            cr_assert_gt(now - next, lost, "%u tokens, step %d", tokens, k);
            lost = now - next;
        }
        cr_expect_eq(worth_of(self, tokens, 1801).value, 0, "and nothing once all is lost");
    }
    value->destroy(self);
}

/* A free slot and main hold histories of one length and age: what becomes of them when a request comes. */
static void expect_at(void *self, uint32_t tokens, double age_s, const char *place, const char *park)
{
    struct case_table *t = case_new(1, 1, true);
    struct answer a;
    struct policy_park p;
    const char *reason;
    t->v.now_ns = SEC(1000000);
    for (uint32_t i = 0; i < 2; i++) {
        history(t, i)->tokens = history(t, i)->turn_tokens = tokens;
        history(t, i)->last_use_ns = t->v.now_ns - SEC(age_s);
    }
    case_ready(t);
    ask_place(self, t, &a);
    cr_expect_str_eq(a.reason, place, "%u tokens, %.3f s: %s", tokens, age_s, a.reason);
    ask_park(self, t, &p, &reason);
    cr_expect_str_eq(reason, park, "%u tokens, %.3f s: %s", tokens, age_s, reason);
    free(t);
}

Test(value_model, longer_histories_are_worth_keeping_for_longer)
{
    struct model m;
    void *self = create_with(&m, "park_value_ratio", 0.5);
    double last = 0;
    for (uint32_t tokens = 8000; tokens <= 262144; tokens = tokens * 5 / 4) {
        double ttl = model_ttl(&m, tokens), full = 0.25 * model_base(tokens);
        double age_s = ttl + (1800 - ttl) * sqrt(1 - 0.01 / full);
        expect_at(self, tokens, ttl - 0.001, "protected_overwritten", "no_destination");
        expect_at(self, tokens, ttl + 0.001, "new_kept", "parked");
        expect_at(self, tokens, age_s - 0.001, "new_kept", "parked");
        expect_at(self, tokens, age_s + 0.001, "new_expired", "main_low_value");
        cr_expect_gt(age_s, last);
        last = age_s;
    }
    value->destroy(self);
}

Test(value_model, protection_outlasts_a_shorter_idle_limit)
{
    for (uint32_t k = 0; k < 2000; k++) {
        struct model m;
        void *self = create_with(&m, "idle_value_zero_s", 0.001 * between(1, 10000));
        uint32_t tokens = between(8000, MAX_TOKENS); /* protected for 10 s or more */
        double ttl = model_ttl(&m, tokens), full = 0.25 * model_base(tokens);
        struct policy_worth inside = worth_of(self, tokens, (ttl - 0.001) * unit());
        struct policy_worth after = worth_of(self, tokens, ttl + 0.001);
        cr_assert(inside.state == POLICY_STATE_PROTECTED && same(inside.value, full));
        cr_assert(inside.retention >= full);
        cr_assert(after.state == POLICY_STATE_EXPIRED && after.value == 0);
        value->destroy(self);
    }
}

Test(value_model, an_idle_limit_of_zero_turns_decay_off)
{
    struct model m;
    void *self = create_with(&m, "idle_value_zero_s", 0);
    for (uint32_t k = 0; k < 2000; k++) {
        uint32_t tokens = between(1, MAX_TOKENS);
        cr_assert(same(worth_of(self, tokens, 900000 * unit()).value, 0.25 * model_base(tokens)));
    }
    value->destroy(self);
}

/* ---- choices ---- */

static void expect_unchanged(void *self, struct case_table *t, struct case_table *u, uint32_t table)
{
    struct answer a, b;
    struct policy_park p, q;
    const char *reason_p, *reason_q;
    struct policy_worth worth_t[CASE_SLOTS + 1] = { { 0 } }, worth_u[CASE_SLOTS + 1] = { { 0 } };
    ask_place(self, t, &a);
    ask_place(self, u, &b);
    cr_assert(a.result == b.result && a.reason == b.reason && a.place.slot == b.place.slot &&
                  a.place.source_kind == b.place.source_kind && a.place.source == b.place.source &&
                  a.place.tokens_lost == b.place.tokens_lost && same(a.place.loss, b.place.loss),
              "table %u: place", table);
    ask_park(self, t, &p, &reason_p);
    ask_park(self, u, &q, &reason_q);
    cr_assert(p.slot == q.slot && reason_p == reason_q, "table %u: park", table);
    ask_state(self, t, worth_t);
    ask_state(self, u, worth_u);
    cr_assert_arr_eq(worth_t, worth_u, sizeof worth_t);
}

static struct case_table *copy_of(const struct case_table *t)
{
    struct case_table *u = malloc(sizeof *u);
    cr_assert_not_null(u);
    *u = *t;
    u->v.slots = &u->slots[0].h;
    u->v.main_history = t->v.main_history ? &u->main.h : NULL;
    u->v.groups = u->groups;
    u->v.shared = &u->shared[0][0];
    return u;
}

Test(value_model, only_a_use_makes_a_history_younger)
{
    struct model m;
    void *self = create_with(&m, NULL, 0);
    for (uint32_t k = 0; k < 10000; k++) {
        struct case_table *t = random_table(&m), *u = copy_of(t);
        int64_t later = SEC(between(1, 100000));
        u->v.now_ns += later;
        u->v.seed = 1 + below(1000);
        for (uint32_t i = 0; i <= u->v.n_slots; i++) {
            struct policy_history *h = history(u, i);
            h->last_use_ns += later; /* the clock's zero means nothing */
            h->turns = below(100);
            h->stop_reason = below(POLICY_STOPS);
            h->prompt_tokens = below(1000);
            h->request_flags = below(8);
            h->client_key = h->session_key = h->parent_key = h->line_key = below(3);
            h->recompute_ns = below(1000000);
            h->bytes = below(1000000);
        }
        expect_unchanged(self, t, u, k);
        free(t);
        free(u);
    }
    value->destroy(self);
}

Test(value_model, place_and_park_choose_alike)
{
    struct model m;
    void *self = create_with(&m, NULL, 0);
    uint32_t compared = 0, outdone = 0;
    for (uint32_t k = 0; k < 60000; k++) {
        struct case_table *t = random_table(&m);
        struct answer a;
        struct policy_park p;
        const char *reason;
        t->v.flags = POLICY_PADDING_SAFE;
        ask_place(self, t, &a);
        if (ask_park(self, t, &p, &reason) == POLICY_DECIDED && !strcmp(reason, "parked") &&
            !strncmp(a.reason, "new_", 4)) {
            model_table(&m, t);
            double worth = m.value[a.place.slot];
            if (!strcmp(a.reason, "new_kept") && m.value[MODEL_MAIN] < 2 * worth)
                outdone++; /* a request may take what main may not */
            else
                cr_assert_eq(p.slot, a.place.slot, "table %u: %s", k, a.reason);
            compared++;
        }
        free(t);
    }
    cr_expect(compared > 1000 && outdone < compared / 2, "%u compared, %u outdone", compared, outdone);
    value->destroy(self);
}

static bool has_identical_copies(const struct model *m)
{
    for (int a = 0; a < m->n; a++)
        for (int b = 0; b < a; b++)
            if (m->shared[a][b] == m->tokens[a] && m->tokens[a] == m->tokens[b] &&
                m->last_use[a] == m->last_use[b])
                return true;
    return false;
}

/* Other ids, in any order, and other groups, of the same slots each. */
static void relabel(struct case_table *t)
{
    uint32_t n = t->v.n_slots, group[3] = { 5, 1, 8 };
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t k = i + below(3 - i), held = group[i];
        group[i] = group[k];
        group[k] = held;
    }
    for (uint32_t i = 0; i < n; i++)
        t->slots[i].h.group = group[t->slots[i].h.group / 3];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i + below(n - i), id = t->slots[i].h.id;
        t->slots[i].h.id = t->slots[k].h.id;
        t->slots[k].h.id = id;
    }
    case_ready(t);
}

Test(value_model, slots_by_other_names_are_chosen_alike)
{
    struct model m;
    void *self = create_with(&m, NULL, 0);
    uint32_t compared = 0;
    for (uint32_t k = 0; k < 20000; k++) {
        struct case_table *t = random_table(&m), *u;
        t->v.flags = POLICY_PADDING_SAFE;
        model_table(&m, t);
        u = copy_of(t);
        relabel(u);
        if (!has_identical_copies(&m) && !model_place(&m).tied && !model_park(&m).tied) {
            expect_unchanged(self, t, u, k);
            compared++;
        }
        free(t);
        free(u);
    }
    cr_expect_gt(compared, 5000, "%u compared", compared);
    value->destroy(self);
}

Test(value_model, asking_changes_nothing)
{
    struct model m;
    void *self = create_with(&m, NULL, 0);
    for (uint32_t k = 0; k < 5000; k++) {
        struct case_table *t = random_table(&m), *before = malloc(sizeof *before);
        struct case_table *copy = copy_of(t);
        cr_assert_not_null(before);
        memcpy(before, t, sizeof *t);
        expect_unchanged(self, t, copy, k);
        cr_assert(memcmp(before, t, sizeof *t) == 0, "table %u was written", k);
        free(t);
        free(before);
        free(copy);
    }
    value->destroy(self);
}
