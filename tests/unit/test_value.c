/* Tests of plugins/value.c: the built module against decisions recorded from an independent implementation,
 * and its declarations. What must hold for every table: tests/property/value_model.c */
#include "policy_case.h"
#include "policy_module.h"

static const struct slot_policy *value;
static void *self;

/* The module, with the settings of one recorded case. */
static void begin(const json_t *settings)
{
    double v[MODULE_SETTINGS];
    const char *name;
    json_t *text;
    value = module_open("value");
    module_defaults(value, v);
    json_object_foreach((json_t *)settings, name, text) v[module_setting(value, name)] =
        strtod(json_string_value(text), NULL);
    self = module_create(value, v);
}

static const char *id_of(const json_t *one)
{
    return json_string_value(json_object_get(json_object_get(one, "case"), "id"));
}

static void expect_slot(const json_t *one, const json_t *expect, uint32_t slot, const struct case_table *t)
{
    const json_t *wanted = json_object_get(expect, "slot");
    if (json_is_null(wanted))
        cr_expect_eq(slot, POLICY_NO_SLOT, "%s: slot %u, none expected", id_of(one), slot);
    else if (slot >= t->v.n_slots)
        cr_expect_fail("%s: no slot, %lld expected", id_of(one), json_integer_value(wanted));
    else
        cr_expect_eq(t->slots[slot].h.id, json_integer_value(wanted), "%s: slot %u, %lld expected",
                     id_of(one), t->slots[slot].h.id, json_integer_value(wanted));
}

static void expect_reason(const json_t *one, const json_t *expect, uint32_t reason)
{
    cr_assert_lt(reason, value->n_reasons);
    cr_expect_str_eq(value->reasons[reason].name, json_string_value(json_object_get(expect, "reason")), "%s",
                     id_of(one));
}

static void expect_number(const json_t *one, const json_t *expect, const char *name, double got)
{
    double wanted = json_number_value(json_object_get(expect, name));
    cr_expect(fabs(got - wanted) <= 1e-12 * fabs(wanted), "%s: %s is %.17g, %.17g expected", id_of(one), name,
              got, wanted);
}

/* ---- the recorded decisions ---- */

static void check_place(const json_t *one, struct case_table *t, const json_t *expect)
{
    double loss[CASE_SLOTS];
    struct policy_place a = { .size = sizeof a, .slot = POLICY_NO_SLOT, .candidate_loss = loss };
    const json_t *source = json_object_get(expect, "source");
    begin(json_object_get(one, "settings"));
    a.n_candidates = t->v.n_slots;
    for (uint32_t i = 0; i < CASE_SLOTS; i++)
        loss[i] = NAN;
    int result = value->place(self, &t->v, &t->request, &a);
    cr_expect_eq(result, a.slot == POLICY_NO_SLOT ? POLICY_NONE : POLICY_DECIDED);
    expect_slot(one, expect, a.slot, t);
    expect_reason(one, expect, a.reason);
    expect_number(one, expect, "loss", a.loss);
    cr_expect_eq(a.tokens_lost, (uint64_t)case_int(expect, "tokens_lost"), "%s", id_of(one));
    if (json_is_null(source))
        cr_expect_eq(a.source_kind, POLICY_SOURCE_NONE, "%s", id_of(one));
    else if (json_is_string(source))
        cr_expect_eq(a.source_kind, POLICY_SOURCE_MAIN, "%s", id_of(one));
    else
        cr_expect(a.source_kind == POLICY_SOURCE_SLOT &&
                      t->slots[a.source].h.id == json_integer_value(source),
                  "%s", id_of(one));
    for (uint32_t i = 0; i < t->v.n_slots; i++)
        cr_expect(isnan(loss[i]) || policy_is_free(&t->slots[i].h), "%s: slot %u", id_of(one), i);
    if (result == POLICY_DECIDED)
        cr_expect(fabs(loss[a.slot] - a.loss) <= 0, "%s: the loss of the slot is that of the answer",
                  id_of(one));
    value->destroy(self);
}

static void check_park(const json_t *one, struct case_table *t, const json_t *expect)
{
    struct policy_park a = { .size = sizeof a, .slot = POLICY_NO_SLOT };
    begin(json_object_get(one, "settings"));
    int result = value->park_destination(self, &t->v, &t->request, &a);
    cr_expect_eq(result, a.slot == POLICY_NO_SLOT ? POLICY_NONE : POLICY_DECIDED);
    expect_slot(one, expect, a.slot, t);
    expect_reason(one, expect, a.reason);
    value->destroy(self);
}

static void expect_worth(const json_t *one, const json_t *expect, const struct policy_worth *w)
{
    static const char *const names[] = { "unknown", "blank", "expired", "protected" };
    cr_assert_leq(w->state, POLICY_STATE_PROTECTED);
    cr_expect_str_eq(names[w->state], json_string_value(json_object_get(expect, "state")), "%s", id_of(one));
    expect_number(one, expect, "retention", w->retention);
    expect_number(one, expect, "value", w->value);
    expect_number(one, expect, "age_s", w->age_s);
    expect_number(one, expect, "ttl_s", w->ttl_s);
    expect_number(one, expect, "give_up", w->give_up);
}

static void check_state(const json_t *one, struct case_table *t, const json_t *expect)
{
    struct module_worth worth[CASE_SLOTS] = { 0 };
    struct policy_worth of_main = { 0 };
    struct policy_state a = { .size = sizeof a, .stride = sizeof worth[0], .worth = &worth[0].w };
    const json_t *slots = json_object_get(expect, "slots"), *main = json_object_get(expect, "main");
    a.of_main = t->v.main_history ? &of_main : NULL;
    begin(json_object_get(one, "settings"));
    cr_assert_eq(value->cache_state(self, &t->v, &a), POLICY_DECIDED);
    cr_assert_eq(json_array_size(slots), t->v.n_slots);
    for (uint32_t i = 0; i < t->v.n_slots; i++)
        expect_worth(one, json_array_get(slots, i), &worth[i].w);
    cr_assert_eq(json_is_null(main), a.of_main == NULL, "%s", id_of(one));
    if (a.of_main)
        expect_worth(one, main, a.of_main);
    value->destroy(self);
}

static void check_superseded(const json_t *one, struct case_table *t, const json_t *expect)
{
    uint64_t words[1] = { 0 }, wanted = 0;
    struct policy_set a = { .size = sizeof a, .n_words = 1, .words = words };
    size_t k;
    json_t *id;
    begin(json_object_get(one, "settings"));
    cr_assert_eq(value->superseded_slots(self, &t->v, &a), POLICY_DECIDED);
    json_array_foreach(json_object_get(expect, "slots"), k, id) for (uint32_t i = 0; i < t->v.n_slots; i++)
        wanted |= (uint64_t)(t->slots[i].h.id == json_integer_value(id)) << i;
    cr_expect_eq(words[0], wanted, "%s", id_of(one));
    value->destroy(self);
}

Test(value, every_recorded_place)
{
    cr_expect_eq(case_each("place", check_place), 1725);
}

Test(value, every_recorded_park)
{
    cr_expect_eq(case_each("park_destination", check_park), 1099);
}

Test(value, every_recorded_state)
{
    cr_expect_eq(case_each("cache_state", check_state), 591);
}

Test(value, every_recorded_superseded_slot)
{
    cr_expect_eq(case_each("superseded_slots", check_superseded), 580);
}

/* ---- what it declares ---- */

Test(value, its_settings_are_the_ones_operators_know)
{
    static const struct {
        const char *name, *env, *standard;
        double min, max;
        uint32_t kind;
    } rows[] = {
        { "ttl_max_s", "STRATA_SLOT_TTL_MAX_S", "120", 0, 86400, POLICY_SECONDS },
        { "expired_keep_score", "STRATA_SLOT_EXPIRED_KEEP_SCORE", "0.01", 0, 10, POLICY_REAL },
        { "idle_value_zero_s", "STRATA_SLOT_IDLE_VALUE_ZERO_S", "1800", 0, 604800, POLICY_SECONDS },
        { "park_value_ratio", "STRATA_SLOT_PARK_VALUE_RATIO", "2", 0, 1000, POLICY_REAL },
        { "park_min_value", "STRATA_SLOT_PARK_MIN_VALUE", "0.01", 0, 10, POLICY_REAL },
        { "park_kept_share", "STRATA_SLOT_PARK_KEPT_SHARE", "0.98", 0.01, 1, POLICY_REAL },
    };
    value = module_open("value");
    cr_assert_eq(value->n_settings, sizeof rows / sizeof *rows);
    for (uint32_t i = 0; i < value->n_settings; i++) {
        const struct policy_setting *s = &value->settings[i];
        cr_expect_str_eq(s->name, rows[i].name);
        cr_expect_str_eq(s->env, rows[i].env);
        cr_expect_str_eq(s->default_text, rows[i].standard);
        cr_expect(s->min == rows[i].min && s->max == rows[i].max && s->kind == rows[i].kind, "%s", s->name);
        cr_expect(s->help && s->unit && s->n_choices == 0);
    }
}
