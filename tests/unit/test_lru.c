/* Tests of plugins/lru.c: the built module, asked directly. */
#include "policy_case.h"
#include "policy_module.h"

static const struct slot_policy *lru;
static void *self;

static void open_lru(void)
{
    lru = module_open("lru");
    self = module_create(lru, NULL);
}

TestSuite(lru, .init = open_lru);

static void set(struct case_table *t, uint32_t i, uint32_t tokens, uint32_t shared_prompt, double last_use_s)
{
    struct policy_history *h = i < t->v.n_slots ? &t->slots[i].h : &t->main.h;
    h->tokens = tokens;
    h->turn_tokens = tokens - tokens / 10;
    h->shared_prompt = shared_prompt;
    h->last_use_ns = SEC(last_use_s);
}

static void expect_place(struct case_table *t, uint32_t slot, const char *reason, uint64_t tokens_lost)
{
    double loss[CASE_SLOTS];
    struct policy_place a = { .size = sizeof a, .slot = 77, .candidate_loss = loss };
    a.n_candidates = t->v.n_slots;
    for (uint32_t i = 0; i < CASE_SLOTS; i++)
        loss[i] = NAN;
    int result = lru->place(self, case_ready(t), &t->request, &a);
    cr_expect_eq(result, slot == POLICY_NO_SLOT ? POLICY_NONE : POLICY_DECIDED, "%s", reason);
    cr_expect_eq(a.slot, slot, "%s: slot %u", reason, a.slot);
    cr_expect_str_eq(lru->reasons[a.reason].name, reason);
    cr_expect_eq(a.tokens_lost, tokens_lost, "%s: %lu tokens", reason, a.tokens_lost);
    cr_expect_eq(a.loss, (double)tokens_lost);
    for (uint32_t i = 0; i < t->v.n_slots; i++)
        cr_expect(i == slot ? loss[i] == a.loss : isnan(loss[i]), "%s: loss of %u", reason, i);
}

static void expect_park(struct case_table *t, uint32_t slot, const char *reason)
{
    struct policy_park a = { .size = sizeof a, .slot = 77 };
    int result = lru->park_destination(self, case_ready(t), &t->request, &a);
    cr_expect_eq(result, slot == POLICY_NO_SLOT ? POLICY_NONE : POLICY_DECIDED, "%s", reason);
    cr_expect_eq(a.slot, slot, "%s: slot %u", reason, a.slot);
    cr_expect_str_eq(lru->reasons[a.reason].name, reason);
}

Test(lru, a_request_runs_where_its_conversation_lies)
{
    struct case_table *t = case_new(4, 2, true);
    set(t, 0, 1000, 950, 10);
    set(t, 1, 2000, 1990, 20);
    set(t, 2, 3000, 2600, 30);
    expect_place(t, 1, "continue", 0);
    t->slots[1].h.flags |= POLICY_BUSY;
    expect_place(t, 0, "continue", 0);
    t->slots[0].h.flags = 0;
    expect_place(t, 0, "new_blank", 0);
    t->slots[0].h.flags = POLICY_RELIABLE | POLICY_HELD;
    expect_place(t, 3, "new_blank", 0);
    set(t, 3, 2000, 1990, 5);
    t->slots[1].h.flags = POLICY_RELIABLE;
    expect_place(t, 1, "continue", 0);
    t->slots[3].h.id = 1; /* now the first of its group */
    expect_place(t, 3, "continue", 0);
    free(t);
}

Test(lru, otherwise_in_a_blank_slot_or_the_one_used_longest_ago)
{
    struct case_table *t = case_new(3, 3, true);
    set(t, 0, 5000, 100, 30);
    set(t, 1, 6000, 0, 20);
    expect_place(t, 2, "new_blank", 0);
    set(t, 2, 7000, 0, 40);
    expect_place(t, 1, "least_recent", 6000);
    set(t, 0, 5000, 100, 20);
    expect_place(t, 0, "least_recent", 4900);
    t->slots[0].h.flags |= POLICY_EXCLUDED;
    expect_place(t, 1, "least_recent", 6000);
    t->slots[1].h.flags |= POLICY_HELD;
    expect_place(t, 2, "least_recent", 7000);
    t->slots[2].h.flags |= POLICY_BUSY;
    expect_place(t, POLICY_NO_SLOT, "none", 0);
    free(t);
}

Test(lru, main_is_parked_in_the_same_order)
{
    struct case_table *t = case_new(3, 3, false);
    expect_park(t, POLICY_NO_SLOT, "no_main");
    t->v.main_history = &t->main.h;
    expect_park(t, POLICY_NO_SLOT, "no_main");
    set(t, 3, 6000, 5400, 500);
    expect_park(t, POLICY_NO_SLOT, "same_conversation");
    t->main.h.shared_prompt = 5399;
    set(t, 0, 1000, 0, 400);
    set(t, 1, 7000, 0, 300);
    expect_park(t, 2, "parked");
    set(t, 2, 1000, 0, 350);
    expect_park(t, 1, "parked");
    case_shared(t, 1, 3, 6000);
    expect_park(t, POLICY_NO_SLOT, "already_kept");
    case_shared(t, 1, 3, 5999);
    expect_park(t, 1, "parked");
    t->main.h.last_use_ns = SEC(300);
    expect_park(t, 1, "parked");
    t->main.h.last_use_ns = SEC(299);
    expect_park(t, POLICY_NO_SLOT, "main_is_oldest");
    for (uint32_t i = 0; i < 3; i++)
        t->slots[i].h.flags |= POLICY_BUSY;
    expect_park(t, POLICY_NO_SLOT, "no_destination");
    free(t);
}

Test(lru, memory_is_given_up_by_last_use)
{
    struct case_table *t = case_new(4, 4, true);
    struct module_worth worth[4] = { 0 };
    struct policy_worth of_main = { 0 };
    struct policy_state a = { .size = sizeof a, .stride = sizeof worth[0], .worth = &worth[0].w };
    a.of_main = &of_main;
    set(t, 0, 100, 0, 990);
    set(t, 1, 100, 0, 5);
    set(t, 3, 90, 0, 990);
    set(t, 4, 100, 0, 1001);
    case_shared(t, 0, 3, 90);
    cr_assert_eq(lru->cache_state(self, case_ready(t), &a), POLICY_DECIDED);
    cr_expect_eq(worth[2].w.state, POLICY_STATE_BLANK, "empty");
    cr_expect_eq(worth[3].w.state, POLICY_STATE_BLANK, "an older copy");
    cr_expect(worth[0].w.state == POLICY_STATE_EXPIRED && worth[1].w.state == POLICY_STATE_EXPIRED);
    cr_expect(worth[1].w.give_up < worth[0].w.give_up && worth[0].w.give_up < of_main.give_up);
    cr_expect(worth[1].w.age_s == 995 && of_main.age_s == 0 && worth[1].w.value < worth[0].w.value);

    uint64_t words[1] = { 0 };
    struct policy_set set_of = { .size = sizeof set_of, .n_words = 1, .words = words };
    cr_assert_eq(lru->superseded_slots(self, &t->v, &set_of), POLICY_DECIDED);
    cr_expect_eq(words[0], 1u << 3);
    free(t);
}
