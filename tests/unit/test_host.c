/* Tests of core/policy/host.c: legal answers pass, others are counted, told, and answered by the built-in. */
#include "policy_case.h"

#include "policy/host.h"

#include <errno.h>

/* ---- a policy that says what it is told to ---- */

struct script {
    int result;
    struct policy_place place;
    struct policy_park park;
    struct policy_worth worth, of_main;
    uint64_t words[2];
    const struct policy_request *seen;
    uint32_t seen_size;
};

static int said_place(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                      struct policy_place *a)
{
    struct script *say = (struct script *)(uintptr_t)self;
    (void)s;
    cr_assert(a->slot == POLICY_NO_SLOT && a->source_kind == 0 && a->reason == 0 &&
              isnan(a->candidate_loss[0]));
    cr_assert_eq(a->n_candidates, s->n_slots);
    say->seen = r;
    say->seen_size = a->size;
    a->slot = say->place.slot;
    a->source_kind = say->place.source_kind;
    a->source = say->place.source;
    a->reason = say->place.reason;
    a->loss = say->place.loss;
    a->tokens_lost = say->place.tokens_lost;
    a->candidate_loss[s->n_slots - 1] = 5;
    return say->result;
}

static int said_park(const void *self, const struct policy_snapshot *s, const struct policy_request *r,
                     struct policy_park *a)
{
    const struct script *say = self;
    (void)s;
    (void)r;
    cr_assert_eq(a->slot, POLICY_NO_SLOT);
    a->slot = say->park.slot;
    a->reason = say->park.reason;
    return say->result;
}

static int said_state(const void *self, const struct policy_snapshot *s, struct policy_state *a)
{
    const struct script *say = self;
    for (uint32_t i = 0; i < s->n_slots; i++)
        *policy_worth_at(a, i) = say->worth;
    cr_assert_eq(a->of_main != NULL, s->main_history != NULL);
    if (a->of_main)
        *a->of_main = say->of_main;
    return say->result;
}

static int said_superseded(const void *self, const struct policy_snapshot *s, struct policy_set *a)
{
    const struct script *say = self;
    (void)s;
    memcpy(a->words, say->words, a->n_words * sizeof *a->words);
    return say->result;
}

static const struct policy_reason reasons[] = { { "first", "The first." }, { "second", "The second." } };

static const struct slot_policy scripted = {
    .head = POLICY_HEAD(0),
    .name = "scripted",
    .version = "1",
    .summary = "Says what it is told to.",
    .reasons = reasons,
    .n_reasons = 2,
    .place = said_place,
    .park_destination = said_park,
    .cache_state = said_state,
    .superseded_slots = said_superseded,
};

/* ---- the table all tests ask about: 4 slots, and what the built-in says of it ----
 * 0: conversation, continued by the prompt; 1: busy, shares some; 2: another, excluded; 3: held; main shares
 * some. The built-in continues in slot 0. */

struct rig {
    struct case_table *t;
    struct policy_seat *seat;
    struct policy_host *h;
    struct script say;
    uint32_t told;
    char what[160];
};

static void listen(void *arg, const struct policy_breach *breach)
{
    struct rig *g = arg;
    g->told++;
    snprintf(g->what, sizeof g->what, "%s", breach->what);
    cr_expect_eq(breach->snapshot, &g->t->v);
    cr_expect_eq(breach->request != NULL,
                 breach->call == POLICY_CALL_PLACE || breach->call == POLICY_CALL_PARK);
}

static struct rig rig_new(void)
{
    static const uint32_t flags[] = { 0, POLICY_BUSY, POLICY_EXCLUDED, POLICY_HELD };
    struct rig g = { .t = case_new(4, 4, true) };
    for (uint32_t i = 0; i < 4; i++) {
        struct policy_history *h = &g.t->slots[i].h;
        h->tokens = 1000 * (i + 1);
        h->turn_tokens = 900;
        h->flags |= flags[i];
        h->last_use_ns = SEC(10 + i);
    }
    g.t->slots[0].h.shared_prompt = 950;
    g.t->slots[1].h.shared_prompt = 500;
    g.t->main.h.tokens = 700;
    g.t->main.h.turn_tokens = 700;
    g.t->main.h.shared_prompt = 300;
    g.t->main.h.last_use_ns = SEC(500);
    case_ready(g.t);
    g.say.worth = (struct policy_worth){ .state = POLICY_STATE_EXPIRED, .value = 2 };
    g.say.of_main = (struct policy_worth){ .state = POLICY_STATE_PROTECTED, .retention = 7, .give_up = NAN };
    g.say.place = (struct policy_place){ .slot = 0 };
    g.say.park = (struct policy_park){ .slot = 0 };
    return g;
}

static void rig_host(struct rig *g, const struct slot_policy *entry)
{
    struct policy_loaded *loaded = policy_loaded_builtin();
    if (entry) {
        struct policy_loaded_parts parts = { .entry = entry, .self = &g->say };
        cr_assert_eq(policy_loaded_new(&parts, &loaded), 0);
    }
    cr_assert_eq(policy_seat_new(loaded, &g->seat), 0);
    policy_loaded_unref(loaded);
    struct policy_host_options o = { .seat = g->seat, .on_breach = listen, .arg = g };
    cr_assert_eq(policy_host_new(&o, 4, &g->h), 0);
    policy_host_pin(g->h);
}

static void rig_free(struct rig *g)
{
    policy_host_unpin(g->h);
    policy_host_free(g->h);
    policy_seat_free(g->seat);
    free(g->t);
}

static struct policy_call_counts counts(const struct rig *g, enum policy_call call)
{
    struct policy_host_status status;
    policy_host_status(g->h, &status);
    return status.call[call];
}

/* ---- legal answers ---- */

Test(host, passes_a_legal_answer_on)
{
    struct rig g = rig_new();
    struct policy_host_place a;
    rig_host(&g, &scripted);
    g.say.place = (struct policy_place){
        .slot = 0, .source_kind = POLICY_SOURCE_MAIN, .reason = 1, .loss = 2.5, .tokens_lost = 40
    };
    cr_assert_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_DECIDED);
    cr_expect(a.slot == 0 && a.source_kind == POLICY_SOURCE_MAIN && a.loss == 2.5 && a.tokens_lost == 40);
    cr_expect_str_eq(a.reason, "second");
    cr_expect(!a.by_builtin && isnan(a.candidate_loss[0]) && a.candidate_loss[3] == 5);
    cr_expect_eq(g.say.seen->prompt_tokens, g.t->request.prompt_tokens);

    g.say.place = (struct policy_place){ .slot = 0, .source_kind = POLICY_SOURCE_SLOT, .source = 1 };
    cr_assert_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_DECIDED);
    cr_expect(!a.by_builtin && a.source == 1, "a busy source is a source");
    struct policy_call_counts c = counts(&g, POLICY_CALL_PLACE);
    cr_expect(c.calls == 2 && c.breaches == 0 && c.by_builtin == 0 && g.told == 0);
    cr_expect_str_eq(policy_host_name(g.h), "scripted");
    rig_free(&g);
}

Test(host, the_builtin_answers_when_nothing_is_loaded)
{
    struct rig g = rig_new();
    struct policy_host_place a;
    rig_host(&g, NULL);
    cr_assert_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_DECIDED);
    cr_expect(a.slot == 0 && a.source_kind == POLICY_SOURCE_SLOT && a.source == 0);
    cr_expect_str_eq(a.reason, "continue");
    cr_expect(!a.by_builtin, "that is its own answer");
    cr_expect_str_eq(policy_host_name(g.h), "builtin");
    rig_free(&g);
}

/* ---- breaches ---- */

static void expect_place_breach(int result, struct policy_place said, const char *what)
{
    struct rig g = rig_new();
    struct policy_host_place a = { 0 };
    rig_host(&g, &scripted);
    g.say.result = result;
    g.say.place = said;
    cr_expect_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_DECIDED);
    cr_expect_eq(g.told, 1, "%s", what);
    cr_expect_str_eq(g.what, what);
    cr_expect(a.by_builtin && a.slot == 0 && a.source == 0);
    cr_expect_str_eq(a.reason, "continue");
    cr_expect_eq(counts(&g, POLICY_CALL_PLACE).breaches, 1);
    rig_free(&g);
}

Test(host, no_illegal_place_gets_through)
{
    struct policy_place p = { .slot = 4 };
    expect_place_breach(0, p, "place: slot 4 of 4");
    p.slot = POLICY_NO_SLOT;
    expect_place_breach(0, p, "place: slot 4294967295 of 4");
    p.slot = 1;
    expect_place_breach(0, p, "place: slot 1 is busy");
    p.slot = 2;
    expect_place_breach(0, p, "place: slot 2 is excluded");
    p.slot = 3;
    expect_place_breach(0, p, "place: slot 3 is held for another request");
    p = (struct policy_place){ .slot = 0, .source_kind = POLICY_SOURCE_SLOT, .source = 4 };
    expect_place_breach(0, p, "place: source slot 4 of 4");
    p.source = 2;
    expect_place_breach(0, p, "place: source 2 shares nothing with the prompt");
    p.source_kind = POLICY_SOURCE_TIER;
    expect_place_breach(0, p, "place: source kind 3");
    p = (struct policy_place){ .slot = 0, .loss = NAN };
    expect_place_breach(0, p, "place: loss is not a number");
    p = (struct policy_place){ .slot = 0, .reason = 2 };
    expect_place_breach(0, p, "place: reason 2 of 2");
    p.reason = 0;
    expect_place_breach(1, p, "place: no slot although one is free");
    expect_place_breach(-5, p, "place: failed with -5");
    expect_place_breach(7, p, "place: returned 7");
}

Test(host, a_source_must_be_there_and_reliable)
{
    struct rig g = rig_new();
    struct policy_host_place a;
    rig_host(&g, &scripted);
    g.say.place = (struct policy_place){ .slot = 0, .source_kind = POLICY_SOURCE_SLOT, .source = 1 };
    g.t->slots[1].h.flags &= ~POLICY_RELIABLE;
    policy_host_place(g.h, &g.t->v, &g.t->request, &a);
    cr_expect_str_eq(g.what, "place: source 1 is not reliable");
    g.say.place.source_kind = POLICY_SOURCE_MAIN;
    g.t->v.main_history = NULL;
    policy_host_place(g.h, &g.t->v, &g.t->request, &a);
    cr_expect_str_eq(g.what, "place: main as the source where there is none");
    cr_expect_eq(g.told, 2);
    rig_free(&g);
}

Test(host, no_slot_is_an_answer_when_none_is_free)
{
    struct rig g = rig_new();
    struct policy_host_place a;
    rig_host(&g, &scripted);
    g.t->slots[0].h.flags |= POLICY_HELD;
    g.say.result = POLICY_NONE;
    g.say.place.slot = 0;
    cr_expect_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_NONE);
    cr_expect(a.slot == POLICY_NO_SLOT && g.told == 0);
    g.say.result = POLICY_DECIDED;
    cr_expect_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_NONE, "nor can the built-in");
    cr_expect(a.by_builtin && a.slot == POLICY_NO_SLOT && g.told == 1);
    rig_free(&g);
}

static void expect_park_breach(int result, struct policy_park said, uint32_t placing, const char *what)
{
    struct rig g = rig_new();
    struct policy_host_park a = { 0 };
    rig_host(&g, &scripted);
    g.say.result = result;
    g.say.park = said;
    int r = policy_host_park(g.h, &g.t->v, &g.t->request, placing, &a);
    cr_expect_eq(g.told, 1, "%s", what);
    cr_expect_str_eq(g.what, what);
    cr_expect(a.by_builtin);
    if (placing == POLICY_NO_SLOT)
        cr_expect(r == POLICY_DECIDED && a.slot == 0 && !strcmp(a.reason, "parked"));
    else
        cr_expect(r == POLICY_NONE && a.slot == POLICY_NO_SLOT && !strcmp(a.reason, "no_destination"));
    rig_free(&g);
}

Test(host, no_illegal_park_gets_through)
{
    struct policy_park p = { .slot = 9 };
    expect_park_breach(0, p, POLICY_NO_SLOT, "park_destination: slot 9 of 4");
    p.slot = 1;
    expect_park_breach(0, p, POLICY_NO_SLOT, "park_destination: slot 1 is busy");
    p.slot = 0;
    expect_park_breach(0, p, 0, "park_destination: slot 0 is where the request is placed");
    expect_park_breach(-1, p, POLICY_NO_SLOT, "park_destination: failed with -1");
    p.reason = 5;
    expect_park_breach(1, p, POLICY_NO_SLOT, "park_destination: reason 5 of 2");
}

Test(host, passes_parks_and_refusals_on)
{
    struct rig g = rig_new();
    struct policy_host_park a;
    rig_host(&g, &scripted);
    g.say.park.reason = 1;
    cr_expect_eq(policy_host_park(g.h, &g.t->v, &g.t->request, POLICY_NO_SLOT, &a), POLICY_DECIDED);
    cr_expect(a.slot == 0 && !a.by_builtin);
    cr_expect_str_eq(a.reason, "second");
    g.say.result = POLICY_NONE;
    cr_expect_eq(policy_host_park(g.h, &g.t->v, &g.t->request, POLICY_NO_SLOT, &a), POLICY_NONE);
    cr_expect(a.slot == POLICY_NO_SLOT && g.told == 0);
    g.say.result = POLICY_DECIDED;
    g.t->main.h.tokens = 0;
    cr_expect_eq(policy_host_park(g.h, &g.t->v, &g.t->request, POLICY_NO_SLOT, &a), POLICY_NONE);
    cr_expect_str_eq(g.what, "park_destination: slot 0 where main holds nothing");
    rig_free(&g);
}

Test(host, worth_is_checked_and_filled_in)
{
    struct rig g = rig_new();
    rig_host(&g, &scripted);
    g.say.worth.give_up = NAN;
    const struct policy_worth *w = policy_host_state(g.h, &g.t->v);
    cr_expect(w[3].state == POLICY_STATE_EXPIRED && w[3].value == 2);
    cr_expect_eq(w[3].give_up, 2.0 / 4000, "value per token when expired");
    cr_expect_eq(w[4].give_up, 7.0 / 700, "retention per token when protected");
    g.t->v.main_history = NULL;
    w = policy_host_state(g.h, &g.t->v);
    cr_expect(w[4].state == POLICY_STATE_BLANK && w[4].give_up == 0);
    cr_expect_eq(g.told, 0);

    g.say.worth.state = POLICY_STATE_UNKNOWN;
    w = policy_host_state(g.h, &g.t->v);
    cr_expect_str_eq(g.what, "cache_state: history 0 has state 0");
    cr_expect(w[0].state == POLICY_STATE_EXPIRED && w[0].give_up == -990, "the built-in's");
    g.say.worth.state = POLICY_STATE_EXPIRED;
    g.say.worth.age_s = NAN;
    policy_host_state(g.h, &g.t->v);
    cr_expect_str_eq(g.what, "cache_state: a number of history 0 is not one");
    g.say.result = 1;
    policy_host_state(g.h, &g.t->v);
    cr_expect_str_eq(g.what, "cache_state: returned 1");
    cr_expect_eq(counts(&g, POLICY_CALL_STATE).breaches, 3);
    rig_free(&g);
}

Test(host, superseded_sets_stay_within_the_slots)
{
    struct rig g = rig_new();
    rig_host(&g, &scripted);
    g.say.words[0] = 1u << 2 | 1u << 3;
    cr_expect_eq(policy_host_superseded(g.h, &g.t->v)[0], 12);
    g.say.words[0] = 1u << 4;
    cr_expect_eq(policy_host_superseded(g.h, &g.t->v)[0], 0, "the built-in's: nothing is");
    cr_expect_str_eq(g.what, "superseded_slots: slot 4 of 4");
    g.say.words[0] = 1u << 1;
    policy_host_superseded(g.h, &g.t->v);
    cr_expect_str_eq(g.what, "superseded_slots: slot 1 is busy");
    g.say.words[0] = UINT64_C(1) << 63;
    policy_host_superseded(g.h, &g.t->v);
    cr_expect_str_eq(g.what, "superseded_slots: slot 63 of 4");
    rig_free(&g);
}

/* ---- growth ---- */

Test(host, a_policy_without_some_functions_has_the_builtins)
{
    struct slot_policy lacking = scripted;
    struct rig g = rig_new();
    struct policy_host_place a;
    struct policy_host_park p;
    lacking.head.size = offsetof(struct slot_policy, park_destination); /* as from before there was more */
    lacking.park_destination = (void *)1;
    rig_host(&g, &lacking);
    cr_expect_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_DECIDED);
    cr_expect(!a.by_builtin);
    cr_expect_eq(policy_host_park(g.h, &g.t->v, &g.t->request, POLICY_NO_SLOT, &p), POLICY_DECIDED);
    cr_expect(p.by_builtin && g.told == 0, "lacking a function is no breach");
    cr_expect_eq(policy_host_state(g.h, &g.t->v)[0].give_up, -990);
    cr_expect_eq(policy_host_superseded(g.h, &g.t->v)[0], 0);
    rig_free(&g);
}

Test(host, lays_out_for_a_policy_with_larger_structs)
{
    struct slot_policy grown = scripted;
    struct rig g = rig_new();
    struct policy_host_place a;
    grown.head.size = sizeof grown + 64;
    grown.head.size_place += 40;
    grown.head.size_worth += 12;
    grown.head.size_history = 500;
    rig_host(&g, &grown);
    cr_expect_eq(policy_host_place(g.h, &g.t->v, &g.t->request, &a), POLICY_DECIDED);
    cr_expect_geq(g.say.seen_size, sizeof(struct policy_place) + 40);
    g.say.worth.give_up = 3;
    for (uint32_t i = 0; i < 4; i++)
        cr_expect_eq(policy_host_state(g.h, &g.t->v)[i].give_up, 3);
    cr_expect_eq(policy_host_sizes(g.h).history, 500);
    rig_free(&g);
}

Test(host, refuses_a_table_without_slots)
{
    struct policy_host *h = NULL;
    struct policy_host_options o = { .seat = NULL };
    cr_expect_eq(policy_host_new(&o, 0, &h), -EINVAL);
    cr_expect_eq(policy_host_new(&o, SLOTS_MAX + 1, &h), -EINVAL);
    cr_expect_null(h);
    policy_host_free(NULL);
}
