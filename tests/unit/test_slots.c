/* Tests of core/slots: the table, prompts against it, the prompt rate, the snapshot. */
#include "slots_rig.h"

#include "abi/policy_words.h"
#include "slots/rate.h"
#include "slots/snapshot.h"

#include <math.h>

/* ---- the table ---- */

Test(slots, an_impossible_table_is_refused)
{
    struct slots *s = NULL;
    struct slots_options o = { .n_slots = 4, .group_slots = 3, .turn_token = -1 };
    cr_expect_eq(slots_new(&o, &s), -EINVAL, "3 does not divide 4");
    o.group_slots = 0;
    cr_expect_eq(slots_new(&o, &s), -EINVAL);
    o = (struct slots_options){ .n_slots = 0, .group_slots = 1 };
    cr_expect_eq(slots_new(&o, &s), -EINVAL);
    o = (struct slots_options){ .n_slots = SLOTS_MAX + 1, .group_slots = 1 };
    cr_expect_eq(slots_new(&o, &s), -EINVAL);
    o = (struct slots_options){ .n_slots = 4, .group_slots = 4, .block_tokens = 6 };
    cr_expect_eq(slots_new(&o, &s), -EINVAL, "blocks are hashed in fours");
    cr_expect_null(s);
    slots_free(NULL);
}

Test(slots, a_history_is_what_was_computed_however_its_request_ended)
{
    static const struct {
        enum slots_end how;
        uint32_t stop_reason;
    } ends[] = {
        { SLOTS_END_STOP, POLICY_STOP_END_TURN },     { SLOTS_END_STRING, POLICY_STOP_END_TURN },
        { SLOTS_END_TOOL_USE, POLICY_STOP_TOOL_USE }, { SLOTS_END_LENGTH, POLICY_STOP_LENGTH },
        { SLOTS_END_CANCEL, POLICY_STOP_CANCELLED },  { SLOTS_END_FAIL, POLICY_STOP_CANCELLED },
        { SLOTS_END_REQUEUE, POLICY_STOP_CANCELLED },
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct slots *s = rig_slots(2, 2);
        struct slots_request r = { .prompt_tokens = 500, .client_key = 7, .flags = POLICY_REQUEST_TOOLS };
        cr_assert_eq(slots_begin(s, 1, SLOTS_NONE, 0, &r), 0);
        cr_expect(slots_any_busy(s));
        rig_append(s, 1, 100, 300);
        rig_append(s, 1, 400, 20);
        cr_assert_eq(slots_end(s, 1, ends[i].how, SEC(9)), 0);
        const struct slots_history *h = slots_at(s, 1);
        cr_expect_eq(h->n, 320);
        for (uint32_t k = 0; k < h->n; k++)
            cr_assert_eq(h->tokens[k], 100 + (int32_t)k);
        cr_expect_eq(h->label.stop_reason, ends[i].stop_reason);
        cr_expect_eq(h->label.last_use_ns, SEC(9));
        cr_expect_eq(h->label.client_key, 7);
        cr_expect_eq(h->label.prompt_tokens, 500);
        cr_expect_eq(h->label.request_flags, POLICY_REQUEST_TOOLS);
        cr_expect(!h->busy && !slots_any_busy(s));
        slots_free(s);
    }
}

Test(slots, a_request_that_fed_nothing_leaves_no_trace)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request first = { .prompt_tokens = 100, .session_key = 5 }, second = { .session_key = 6 };
    cr_assert_eq(slots_begin(s, 0, SLOTS_NONE, 0, &first), 0);
    rig_append(s, 0, 10, 100);
    slots_end(s, 0, SLOTS_END_TOOL_USE, SEC(1));
    struct slots_label before = slots_at(s, 0)->label;

    cr_assert_eq(slots_begin(s, 0, 0, 100, &second), 0);
    cr_expect_eq(slots_at(s, 0)->label.session_key, 6, "while it runs it is seen");
    cr_expect_eq(slots_at(s, 0)->label.turns, 2);
    slots_end(s, 0, SLOTS_END_CANCEL, SEC(50));
    cr_expect_eq(memcmp(&before, &slots_at(s, 0)->label, sizeof before), 0);
    slots_free(s);
}

Test(slots, turn_tokens_counts_what_lies_before_the_last_turn)
{
    struct slots *s = rig_slots(1, 1);
    const int32_t t[] = { TURN, 5, 6, TURN, 7, 8, TURN, 9 };
    cr_expect_eq(slots_turn_tokens(s, t, 8), 6);
    cr_expect_eq(slots_turn_tokens(s, t, 7), 6);
    cr_expect_eq(slots_turn_tokens(s, t, 6), 3);
    cr_expect_eq(slots_turn_tokens(s, t, 3), 3, "a turn at position 0 only: all of it");
    cr_expect_eq(slots_turn_tokens(s, t + 1, 2), 2, "no turn: all of it");
    cr_expect_eq(slots_turn_tokens(s, t, 0), 0);

    struct slots_request r = { 0 };
    slots_begin(s, 0, SLOTS_NONE, 0, &r);
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert_eq(slots_append(s, 0, t + i, 1), 0);
        cr_expect_eq(slots_at(s, 0)->turn_tokens, slots_turn_tokens(s, t, i + 1), "after %u tokens", i + 1);
    }
    slots_free(s);
}

Test(slots, a_model_without_a_turn_token_has_turns_of_everything)
{
    struct slots_options o = { .n_slots = 1, .group_slots = 1, .turn_token = -1 };
    struct slots *s = NULL;
    cr_assert_eq(slots_new(&o, &s), 0);
    rig_fill(s, 0, 0, 9, SEC(1));
    cr_expect_eq(slots_at(s, 0)->turn_tokens, 9);
    slots_free(s);
}

Test(slots, a_cut_keeps_at_most_its_tokens_as_turns)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request r = { 0 };
    slots_begin(s, 0, SLOTS_NONE, 0, &r);
    rig_append(s, 0, 10, 20);
    slots_append(s, 0, (const int32_t[]){ TURN }, 1);
    rig_append(s, 0, 50, 29);
    slots_append(s, 0, (const int32_t[]){ TURN }, 1);
    rig_append(s, 0, 90, 9);
    slots_end(s, 0, SLOTS_END_STOP, SEC(3));
    cr_assert_eq(slots_at(s, 0)->turn_tokens, 50);

    cr_assert_eq(slots_cut(s, 0, 55), 0);
    cr_expect_eq(slots_at(s, 0)->turn_tokens, 50);
    cr_assert_eq(slots_cut(s, 0, 40), 0);
    cr_expect_eq(slots_at(s, 0)->n, 40);
    cr_expect_eq(slots_at(s, 0)->turn_tokens, 40, "not 20, where the turn before began");
    cr_expect_eq(slots_at(s, 0)->label.last_use_ns, SEC(3), "being cut is not being used");
    cr_expect_eq(slots_cut(s, 0, 41), -EINVAL);

    /* Continued, the stump has the turns its tokens have. */
    slots_begin(s, 1, 0, 40, &r);
    cr_expect_eq(slots_at(s, 1)->turn_tokens, 40);
    rig_append(s, 1, 70, 5);
    cr_expect_eq(slots_at(s, 1)->turn_tokens, 20);
    slots_free(s);
}

Test(slots, a_fork_has_the_turns_of_its_tokens)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request r = { 0 };
    slots_begin(s, 0, SLOTS_NONE, 0, &r);
    slots_append(s, 0, (const int32_t[]){ 9, 8, TURN, 7, 6, TURN, 5 }, 7);
    slots_begin(s, 1, 0, 4, &r);
    cr_expect_eq(slots_at(s, 1)->turn_tokens, 2);
    slots_end(s, 0, SLOTS_END_STOP, SEC(1));
    slots_begin(s, 0, 0, 2, &r);
    cr_expect_eq(slots_at(s, 0)->turn_tokens, 2, "no turn left: all of it");
    slots_free(s);
}

Test(slots, a_park_keeps_the_last_use_and_the_label)
{
    struct slots *s = rig_slots(4, 4);
    uint32_t main_at = 4;
    struct slots_request r = { .session_key = 77, .line_key = 78, .prompt_tokens = 11900 };
    slots_begin(s, main_at, SLOTS_NONE, 0, &r);
    rig_append(s, main_at, 100, 11900);
    slots_end(s, main_at, SLOTS_END_TOOL_USE, SEC(100));
    cr_assert_eq(slots_park(s, 2), 0);
    cr_expect_eq(slots_at(s, 2)->label.last_use_ns, SEC(100), "copying is not using");
    cr_expect_eq(slots_at(s, 2)->label.session_key, 77);
    cr_expect_eq(slots_at(s, 2)->label.stop_reason, POLICY_STOP_TOOL_USE);
    cr_expect_eq(slots_at(s, 2)->n, 11900);
    cr_expect_eq(slots_shared(s, 2, main_at), 11900);
    cr_expect_eq(slots_at(s, main_at)->n, 11900, "main holds it until it is replaced");
    slots_free(s);
}

Test(slots, nothing_is_parked_from_a_busy_or_empty_main)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request r = { 0 };
    cr_expect_eq(slots_park(s, 0), -EINVAL);
    slots_begin(s, 2, SLOTS_NONE, 0, &r);
    rig_append(s, 2, 10, 5);
    cr_expect_eq(slots_park(s, 0), -EBUSY);
    slots_free(s);
}

Test(slots, a_promoted_request_goes_on_and_main_keeps_the_history)
{
    struct slots *s = rig_slots(4, 4);
    uint32_t main_at = 4;
    rig_fill(s, main_at, 100, 50, SEC(10));
    struct slots_request r = { .session_key = 3, .prompt_tokens = 60 };
    cr_assert_eq(slots_begin(s, main_at, main_at, 50, &r), 0);
    rig_append(s, main_at, 150, 14);
    cr_assert_eq(slots_hand_over(s, main_at, 1, SEC(20)), 0);
    const struct slots_history *h = slots_at(s, 1), *m = slots_at(s, main_at);
    cr_expect(h->busy && !m->busy && slots_any_busy(s));
    cr_expect(h->n == 64 && m->n == 64 && slots_shared(s, 1, main_at) == 64);
    cr_expect_eq(m->label.last_use_ns, SEC(20), "its last use is this moment");
    cr_expect_eq(h->label.last_use_ns, SEC(10), "inherited until it ends");
    cr_expect_eq(h->label.turns, 2);
    cr_expect_eq(m->label.session_key, 3);

    rig_append(s, 1, 900, 10);
    slots_end(s, 1, SLOTS_END_STOP, SEC(30));
    cr_expect_eq(slots_at(s, 1)->label.last_use_ns, SEC(30));
    cr_expect_eq(slots_shared(s, 1, main_at), 64);
    cr_expect(!slots_any_busy(s));
    slots_free(s);
}

Test(slots, a_move_takes_everything_along)
{
    struct slots *s = rig_slots(4, 2);
    rig_fill(s, 0, 10, 100, SEC(5));
    rig_fill(s, 3, 10, 70, SEC(6));
    slots_set_excluded(s, 2, true);
    cr_assert_eq(slots_move(s, 0, 2), 0);
    cr_expect_eq(slots_at(s, 0)->n, 0);
    cr_expect_eq(slots_at(s, 2)->n, 100);
    cr_expect_eq(slots_at(s, 2)->label.last_use_ns, SEC(5));
    cr_expect(slots_at(s, 2)->excluded, "that is the slot's, not the history's");
    cr_expect(slots_shared(s, 2, 3) == 70 && slots_shared(s, 0, 3) == 0 && slots_shared(s, 0, 2) == 0);
    slots_free(s);
}

Test(slots, a_source_may_be_busy_and_is_left_alone)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request r = { 0 };
    slots_begin(s, 0, SLOTS_NONE, 0, &r);
    rig_append(s, 0, 10, 200);
    cr_assert_eq(slots_begin(s, 1, 0, 150, &r), 0);
    rig_append(s, 1, 160, 60);
    cr_expect_eq(slots_at(s, 0)->n, 200);
    cr_expect_eq(slots_shared(s, 0, 1), 200, "the new tokens agree with the source's");
    rig_append(s, 0, 210, 5);
    cr_expect_eq(slots_shared(s, 0, 1), 205, "and these with its");
    slots_free(s);
}

Test(slots, what_is_wrong_is_refused_and_changes_nothing)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request r = { 0 }, salted = { .salt = 9 };
    rig_fill(s, 0, 10, 50, SEC(1));
    cr_expect_eq(slots_begin(s, 7, SLOTS_NONE, 0, &r), -EINVAL);
    cr_expect_eq(slots_begin(s, 1, SLOTS_NONE, 5, &r), -EINVAL);
    cr_expect_eq(slots_begin(s, 1, 0, 51, &r), -EINVAL);
    cr_expect_eq(slots_begin(s, 1, 0, 50, &salted), -EINVAL, "another salt's history");
    cr_expect_eq(slots_append(s, 0, (const int32_t[]){ 3 }, 1), -EINVAL, "no request runs there");
    cr_expect_eq(slots_end(s, 0, SLOTS_END_STOP, 0), -EINVAL);
    cr_expect_eq(slots_copy(s, 0, 0, 10), -EINVAL);
    cr_expect_eq(slots_move(s, 0, 3), -EINVAL);
    slots_set_reliable(s, 0, false);
    cr_expect_eq(slots_begin(s, 1, 0, 50, &r), -EINVAL, "the engine may not hold it any more");
    slots_set_reliable(s, 0, true);
    slots_begin(s, 0, 0, 50, &r);
    cr_expect_eq(slots_begin(s, 0, SLOTS_NONE, 0, &r), -EBUSY);
    cr_expect_eq(slots_cut(s, 0, 1), -EBUSY);
    cr_expect_eq(slots_clear(s, 0), -EBUSY);
    cr_expect_eq(slots_copy(s, 1, 0, 0), -EBUSY);
    cr_expect_eq(slots_move(s, 0, 1), -EBUSY);
    cr_expect_eq(slots_hand_over(s, 1, 0, 0), -EINVAL);
    cr_expect_eq(slots_at(s, 0)->n, 50);
    cr_expect_eq(slots_at(s, 1)->n, 0);
    slots_free(s);
}

Test(slots, turns_count_the_requests_of_a_conversation)
{
    struct slots *s = rig_slots(3, 3);
    struct slots_request r = { 0 }, again = { .resumed = true };
    rig_fill(s, 0, 10, 50, SEC(1));
    cr_expect_eq(slots_at(s, 0)->label.turns, 1);
    slots_begin(s, 0, 0, 50, &r);
    rig_append(s, 0, 60, 10);
    slots_end(s, 0, SLOTS_END_REQUEUE, SEC(2));
    cr_expect_eq(slots_at(s, 0)->label.turns, 2);
    slots_begin(s, 1, 0, 60, &again);
    rig_append(s, 1, 70, 10);
    slots_end(s, 1, SLOTS_END_STOP, SEC(3));
    cr_expect_eq(slots_at(s, 1)->label.turns, 2, "put back into the queue and resumed: the same turn");
    slots_begin(s, 2, 1, 20, &r);
    rig_append(s, 2, 500, 10);
    cr_expect_eq(slots_at(s, 2)->label.turns, 1, "another conversation with the same beginning");
    slots_free(s);
}

Test(slots, salts_share_nothing)
{
    struct slots *s = rig_slots(2, 2);
    struct slots_request mine = { .salt = 1 }, theirs = { .salt = 2 };
    int32_t *t = rig_tokens(10, 200);
    slots_begin(s, 0, SLOTS_NONE, 0, &mine);
    slots_append(s, 0, t, 200);
    slots_begin(s, 1, SLOTS_NONE, 0, &theirs);
    slots_append(s, 1, t, 200);
    cr_expect_eq(slots_shared(s, 0, 1), 0);
    struct slots_prompt *p = NULL;
    cr_assert_eq(slots_prompt_new(s, t, 200, 2, &p), 0);
    cr_expect_eq(slots_prompt_shared(s, p)[0], 0);
    cr_expect_eq(slots_prompt_shared(s, p)[1], 199);
    cr_expect_eq(slots_prompt_verify(s, p, 0), 0);
    slots_prompt_free(p);
    slots_free(s);
    free(t);
}

/* ---- prompts ---- */

Test(prompt, shares_to_the_token_at_every_length)
{
    struct slots *s = rig_slots(2, 2);
    int32_t *t = rig_tokens(1000, 400);
    rig_fill(s, 0, 1000, 300, SEC(1));
    for (uint32_t at = 0; at < 310; at++) {
        struct slots_prompt *p = NULL;
        int32_t kept = t[at];
        t[at] = 5;
        cr_assert_eq(slots_prompt_new(s, t, 400, 0, &p), 0);
        uint32_t expected = at < 300 ? at : 300;
        cr_assert_eq(slots_prompt_shared(s, p)[0], expected);
        cr_assert_eq(slots_prompt_verify(s, p, 0), expected);
        cr_assert_eq(slots_prompt_shared(s, p)[1], 0);
        slots_prompt_free(p);
        t[at] = kept;
    }
    free(t);
    slots_free(s);
}

Test(prompt, one_token_is_always_left_to_read)
{
    struct slots *s = rig_slots(1, 1);
    int32_t *t = rig_tokens(10, 128);
    rig_fill(s, 0, 10, 128, SEC(1));
    for (uint32_t n = 1; n <= 128; n++) {
        struct slots_prompt *p = NULL;
        cr_assert_eq(slots_prompt_new(s, t, n, 0, &p), 0);
        cr_expect_eq(slots_prompt_shared(s, p)[0], n - 1);
        cr_expect_eq(slots_prompt_verify(s, p, 0), n - 1);
        slots_prompt_free(p);
    }
    struct slots_prompt *p = NULL;
    cr_expect_eq(slots_prompt_new(s, t, 0, 0, &p), -EINVAL);
    free(t);
    slots_free(s);
}

Test(prompt, follows_the_table_as_it_changes)
{
    struct slots *s = rig_slots(3, 3);
    struct slots_request r = { 0 };
    struct slots_prompt *p = NULL;
    int32_t *t = rig_tokens(10, 1000);
    cr_assert_eq(slots_prompt_new(s, t, 1000, 0, &p), 0);
    cr_expect_eq(slots_prompt_shared(s, p)[0], 0);
    slots_begin(s, 0, SLOTS_NONE, 0, &r);
    for (uint32_t n = 0; n < 700; n += 7) {
        rig_append(s, 0, 10 + (int32_t)n, 7);
        cr_assert_eq(slots_prompt_shared(s, p)[0], n + 7);
    }
    rig_append(s, 0, 710, 290);
    cr_expect_eq(slots_prompt_shared(s, p)[0], 990);
    slots_end(s, 0, SLOTS_END_STOP, SEC(1));
    slots_move(s, 0, 2);
    cr_expect_eq(slots_prompt_shared(s, p)[0], 0);
    cr_expect_eq(slots_prompt_shared(s, p)[2], 990);
    slots_cut(s, 2, 333);
    cr_expect_eq(slots_prompt_shared(s, p)[2], 333);
    uint32_t shared = 0;
    cr_expect_eq(slots_prompt_longest(s, p, &shared), 2);
    cr_expect_eq(shared, 333);
    cr_expect(slots_prompt_continues(s, p, 2));
    slots_set_reliable(s, 2, false);
    cr_expect_eq(slots_prompt_longest(s, p, &shared), SLOTS_NONE);
    cr_expect(!slots_prompt_continues(s, p, 2));
    slots_prompt_free(p);
    free(t);
    slots_free(s);
}

Test(prompt, another_key_gives_other_hashes_and_the_same_lengths)
{
    struct slots_options o = { .n_slots = 1, .group_slots = 1, .turn_token = TURN };
    uint64_t first[2] = { 0 };
    int32_t *t = rig_tokens(10, 130);
    for (uint64_t key = 0; key < 4; key++) {
        struct slots *s = NULL;
        struct slots_prompt *p = NULL;
        o.key[key % 2] = key + 1;
        cr_assert_eq(slots_new(&o, &s), 0);
        rig_fill(s, 0, 10, 130, SEC(1));
        cr_assert_eq(slots_prompt_new(s, t, 130, 0, &p), 0);
        cr_expect_eq(slots_prompt_shared(s, p)[0], 129);
        cr_expect_neq(memcmp(first, slots_at(s, 0)->hashes[1], sizeof first), 0);
        memcpy(first, slots_at(s, 0)->hashes[1], sizeof first);
        slots_prompt_free(p);
        slots_free(s);
    }
    free(t);
}

Test(prompt, blocks_that_differ_anywhere_hash_differently)
{
    struct slots_options o = { .n_slots = 1, .group_slots = 1, .turn_token = -1, .key = { 5, 6 } };
    struct slots *s = NULL;
    struct slots_prompt *plain = NULL;
    int32_t t[192];
    cr_assert_eq(slots_new(&o, &s), 0);
    memset(t, 0, sizeof t);
    cr_assert_eq(slots_prompt_new(s, t, 192, 0, &plain), 0);
    for (uint32_t at = 0; at < 192; at++) {
        for (int bit = 0; bit < 31; bit++) {
            struct slots_prompt *p = NULL;
            t[at] ^= 1 << bit;
            cr_assert_eq(slots_prompt_new(s, t, 192, 0, &p), 0);
            for (uint32_t b = 0; b < 3; b++) {
                int differs = memcmp(p->hashes[b], plain->hashes[b], sizeof *p->hashes) != 0;
                cr_assert_eq(differs, b >= at / 64, "token %u, bit %d, block %u", at, bit, b);
            }
            t[at] ^= 1 << bit;
            slots_prompt_free(p);
        }
    }
    slots_prompt_free(plain);
    slots_free(s);
}

Test(prompt, blocks_in_another_order_hash_differently)
{
    struct slots *s = rig_slots(1, 1);
    struct slots_prompt *plain = NULL;
    int32_t *t = rig_tokens(1000, 64);
    cr_assert_eq(slots_prompt_new(s, t, 64, 0, &plain), 0);
    for (uint32_t step = 1; step <= 16; step *= 2) { /* runs of `step` tokens exchanged with the next run */
        for (uint32_t at = 0; at + 2 * step <= 64; at += 2 * step) {
            struct slots_prompt *p = NULL;
            for (uint32_t i = 0; i < step; i++) {
                t[at + i] += (int32_t)step;
                t[at + step + i] -= (int32_t)step;
            }
            cr_assert_eq(slots_prompt_new(s, t, 64, 0, &p), 0);
            cr_assert_neq(memcmp(p->hashes[0], plain->hashes[0], sizeof *p->hashes), 0, "%u, %u", step, at);
            for (int half = 0; half < 2; half++)
                cr_assert_neq(p->hashes[0][half], plain->hashes[0][half], "each half by itself");
            for (uint32_t i = 0; i < 2 * step; i++)
                t[at + i] = 1000 + (int32_t)(at + i);
            slots_prompt_free(p);
        }
    }
    slots_prompt_free(plain);
    slots_free(s);
    free(t);
}

/* ---- prompt rate ---- */

Test(rate, a_sensible_price_before_anything_is_known)
{
    struct prompt_rate r;
    prompt_rate_init(&r);
    cr_expect_eq(prompt_rate_measured(&r), 0);
    cr_expect_gt(prompt_rate_ns(&r, 0, 1000), 0);
    cr_expect_gt(prompt_rate_ns(&r, 9000, 10000), prompt_rate_ns(&r, 0, 1000));
    cr_expect_eq(prompt_rate_ns(&r, 10, 10), 0);
    cr_expect_eq(prompt_rate_ns(&r, 11, 10), 0);
    cr_expect_gt(prompt_rate_ns(&r, 0, UINT32_MAX), 0);
}

static double true_ns(double from, double to)
{
    return (to - from) * (250e3 + 31 * (from + to - 1) / 2); /* 4,000 tokens/s; half that at 8,065 */
}

Test(rate, learns_a_line_and_prices_what_it_has_not_seen)
{
    struct prompt_rate r;
    prompt_rate_init(&r);
    for (int round = 0; round < 3; round++)
        for (uint32_t from = 0; from < 6144; from += 512)
            prompt_rate_learn(&r, from, 512, (uint64_t)true_ns(from, from + 512));
    cr_expect_float_eq((double)prompt_rate_ns(&r, 0, 6144) / true_ns(0, 6144), 1, 0.02);
    cr_expect_float_eq((double)prompt_rate_ns(&r, 30000, 36000) / true_ns(30000, 36000), 1, 0.1);
    cr_expect_float_eq(prompt_rate_measured(&r), 2700, 300, "of the last chunks, not of all");
    uint32_t n = prompt_rate_tokens(&r, 4000, 100000000);
    cr_expect_leq(prompt_rate_ns(&r, 4000, 4000 + n), 100000000);
    cr_expect_gt(prompt_rate_ns(&r, 4000, 4000 + n + 2), 100000000);
    cr_expect_eq(prompt_rate_tokens(&r, 4000, 0), 1, "never nothing");
}

Test(rate, forgets_what_the_machine_was)
{
    struct prompt_rate r;
    prompt_rate_init(&r);
    for (int i = 0; i < 3000; i++)
        prompt_rate_learn(&r, 512u * (uint32_t)(i % 12), 512, 512 * 1000000);
    for (int i = 0; i < 3000; i++)
        prompt_rate_learn(&r, 512u * (uint32_t)(i % 12), 512, 512 * 100000);
    cr_expect_float_eq((double)prompt_rate_ns(&r, 0, 1000), 1000 * 100000.0, 1000 * 3000.0);
    cr_expect_float_eq(prompt_rate_measured(&r), 10000, 10);
}

Test(rate, never_costs_less_further_on_whatever_it_is_told)
{
    uint64_t x = 1;
    struct prompt_rate r;
    prompt_rate_init(&r);
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        prompt_rate_learn(&r, (uint32_t)(x >> 45), (uint32_t)(x >> 20) % 600, x >> 30 & 0xffffffff);
        uint64_t near = prompt_rate_ns(&r, 0, 100), far = prompt_rate_ns(&r, 100000, 100100);
        cr_assert(near <= far && r.first >= 0 && isfinite(r.first) && isfinite(r.slope), "after %d", i);
    }
}

/* ---- snapshot ---- */

Test(snapshot, shows_the_table_field_by_field)
{
    struct slots *s = rig_slots(4, 2);
    struct snapshot *b = NULL;
    struct slots_request r = { .client_key = 1,
                               .session_key = 2,
                               .parent_key = 3,
                               .line_key = 4,
                               .prompt_tokens = 90,
                               .flags = POLICY_REQUEST_SIDE };
    cr_assert_eq(snapshot_new(s, NULL, &b), 0);
    slots_begin(s, 1, SLOTS_NONE, 0, &r);
    rig_append(s, 1, 10, 100);
    slots_end(s, 1, SLOTS_END_LENGTH, SEC(5));
    rig_fill(s, 4, 10, 60, SEC(6));
    slots_begin(s, 3, 4, 30, &r);
    slots_set_held(s, 1, true);
    slots_set_excluded(s, 2, true);
    struct prompt_rate rate;
    prompt_rate_init(&rate);
    uint32_t shared[] = { 0, 40, 0, 30, 41 };
    uint64_t bytes[] = { 0, 111, 0, 0, 222 };
    const struct policy_snapshot *v = snapshot_build(b, s,
                                                     &(struct snapshot_input){ .now_ns = SEC(9),
                                                                               .padding_safe = true,
                                                                               .shared_prompt = shared,
                                                                               .bytes = bytes,
                                                                               .rate = &rate,
                                                                               .seed = 99 });

    cr_expect(v->n_slots == 4 && v->n_groups == 2 && v->now_ns == SEC(9) && v->seed == 99);
    cr_expect_eq(v->flags, POLICY_PADDING_SAFE);
    cr_expect_eq(v->prompt_tokens_per_s, 0, "nothing measured");
    const struct policy_history *h = policy_at(v, 1);
    cr_expect(h->id == 1 && h->group == 0 && h->flags == (POLICY_HELD | POLICY_RELIABLE));
    cr_expect(h->tokens == 100 && h->turn_tokens == 100 && h->shared_prompt == 40 && h->turns == 1);
    cr_expect(h->last_use_ns == SEC(5) && h->stop_reason == POLICY_STOP_LENGTH && h->prompt_tokens == 90);
    cr_expect(h->client_key == 1 && h->session_key == 2 && h->parent_key == 3 && h->line_key == 4);
    cr_expect(h->request_flags == POLICY_REQUEST_SIDE && h->bytes == 111 && h->tier == POLICY_TIER_POOL);
    cr_expect_eq(h->recompute_ns, prompt_rate_ns(&rate, 60, 100), "main holds the first 60");
    h = policy_at(v, 3);
    cr_expect(h->group == 1 && h->flags == (POLICY_BUSY | POLICY_RELIABLE) && h->tokens == 30);
    cr_expect_eq(h->last_use_ns, SEC(9), "in use");
    cr_expect_eq(policy_at(v, 2)->flags, POLICY_EXCLUDED | POLICY_RELIABLE);
    cr_expect_eq(v->main_history->tokens, 60);
    cr_expect_eq(v->main_history->bytes, 222);
    cr_expect_eq(policy_busy_rows(v, 0), 0, "held is no row");
    cr_expect_eq(policy_busy_rows(v, 1), 2);
    cr_expect_eq(policy_shared(v, 1, 4), 60);
    cr_expect_eq(policy_shared(v, 4, 3), 30);
    snapshot_free(b);
    slots_free(s);
}

Test(snapshot, counts_only_reliable_others_as_keeping_a_prefix)
{
    struct slots *s = rig_slots(2, 2);
    struct snapshot *b = NULL;
    struct prompt_rate rate;
    prompt_rate_init(&rate);
    cr_assert_eq(snapshot_new(s, NULL, &b), 0);
    rig_fill(s, 0, 10, 100, SEC(1));
    rig_fill(s, 1, 10, 80, SEC(1));
    struct snapshot_input in = { .rate = &rate };
    cr_expect_eq(policy_at(snapshot_build(b, s, &in), 0)->recompute_ns, prompt_rate_ns(&rate, 80, 100));
    slots_set_reliable(s, 1, false);
    cr_expect_eq(policy_at(snapshot_build(b, s, &in), 0)->recompute_ns, prompt_rate_ns(&rate, 0, 100));
    snapshot_free(b);
    slots_free(s);
}

Test(snapshot, is_laid_out_for_a_policy_with_larger_structs)
{
    struct slots *s = rig_slots(3, 1);
    struct snapshot *b = NULL;
    struct snapshot_sizes sizes = { .snapshot = 300, .history = 161, .group = 40 };
    cr_assert_eq(snapshot_new(s, &(struct snapshot_sizes){ .history = 5000 }, &b), -EINVAL);
    cr_assert_eq(snapshot_new(s, &sizes, &b), 0);
    rig_fill(s, 2, 10, 33, SEC(1));
    rig_fill(s, 3, 10, 44, SEC(1));
    const struct policy_snapshot *v = snapshot_build(b, s, &(struct snapshot_input){ .now_ns = 1 });
    cr_expect_geq(v->size, 300);
    cr_expect_geq(v->slot_stride, 161);
    cr_expect_eq(v->slot_stride % 8, 0);
    cr_expect_geq(v->group_stride, 40);
    cr_expect_eq(policy_at(v, 2)->tokens, 33);
    cr_expect_eq(policy_at(v, 3)->tokens, 44);
    for (uint32_t i = 0; i <= 3; i++)
        for (uint32_t k = sizeof(struct policy_history); k < v->slot_stride; k++)
            cr_expect_eq(((const char *)policy_at(v, i))[k], 0);
    cr_expect(v == snapshot_build(b, s, &(struct snapshot_input){ .now_ns = 2 }), "the same memory again");
    snapshot_free(b);
    slots_free(s);
}
