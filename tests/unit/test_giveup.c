/* Tests of core/slots/giveup: which histories lose what when blocks are needed. Blocks of 10 tokens; a
 * history is written as its block numbers. */
#include "abi/policy.h"
#include "slots/giveup.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS(...)                                                                                          \
    .blocks = (const uint32_t[]){ __VA_ARGS__ },                                                             \
    .n_blocks = sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t)
#define EXPIRED .reliable = true, .state = POLICY_STATE_EXPIRED
#define PROTECTED .reliable = true, .state = POLICY_STATE_PROTECTED

static int64_t plan(const struct giveup_history *h, uint32_t n, uint32_t needed, bool take_wanted,
                    uint32_t *to)
{
    struct giveup *g = NULL;
    cr_assert_eq(giveup_new(64, 10, 8, &g), 0);
    int64_t freed = giveup_plan(g, h, n, needed, take_wanted, to);
    giveup_free(g);
    return freed;
}

Test(giveup, takes_from_the_end_and_no_more_than_needed)
{
    uint32_t to[1];
    struct giveup_history h[] = { { BLOCKS(3, 1, 4, 9), .tokens = 35, EXPIRED } };
    cr_expect_eq(plan(h, 1, 0, false, to), 0);
    cr_expect_eq(to[0], 35);
    cr_expect_eq(plan(h, 1, 1, false, to), 1);
    cr_expect_eq(to[0], 30);
    cr_expect_eq(plan(h, 1, 3, false, to), 3);
    cr_expect_eq(to[0], 10);
    cr_expect_eq(plan(h, 1, 9, false, to), 4, "all there is");
    cr_expect_eq(to[0], 0);
}

Test(giveup, goes_by_state_then_worth_then_order)
{
    uint32_t to[5];
    struct giveup_history h[] = {
        { BLOCKS(0), .tokens = 10, PROTECTED, .give_up = 0.1 },
        { BLOCKS(1), .tokens = 10, EXPIRED, .give_up = 0.5 },
        { BLOCKS(2), .tokens = 10, EXPIRED, .give_up = 0.2 },
        { BLOCKS(3), .tokens = 10, EXPIRED, .give_up = 0.2 },
        { BLOCKS(4), .tokens = 10, PROTECTED, .worthless = true, .give_up = 9 },
    };
    static const int order[] = { 4, 2, 3, 1, 0 };
    for (uint32_t needed = 1; needed <= 5; needed++) {
        cr_assert_eq(plan(h, 5, needed, false, to), needed);
        for (uint32_t k = 0; k < 5; k++)
            cr_expect_eq(to[order[k]], k < needed ? 0 : 10, "%u needed, place %u", needed, k);
    }
}

Test(giveup, a_worth_that_is_no_number_is_the_lowest)
{
    uint32_t to[2];
    struct giveup_history h[] = {
        { BLOCKS(0), .tokens = 10, EXPIRED, .give_up = -1e9 },
        { BLOCKS(1), .tokens = 10, EXPIRED, .give_up = (double)NAN },
    };
    cr_expect_eq(plan(h, 2, 1, false, to), 1);
    cr_expect(to[0] == 10 && to[1] == 0);
}

Test(giveup, a_shared_block_is_worth_what_its_best_holder_is)
{
    uint32_t to[3];
    struct giveup_history h[] = {
        { BLOCKS(0, 1, 2), .tokens = 30, EXPIRED, .give_up = 0.1 },
        { BLOCKS(0, 1, 3), .tokens = 30, EXPIRED, .give_up = 0.9 },
        { BLOCKS(4, 5), .tokens = 20, EXPIRED, .give_up = 0.5 },
    };
    cr_expect_eq(plan(h, 3, 3, false, to), 3);
    cr_expect_eq(to[0], 20, "its own block only: the others are the better one's too");
    cr_expect_eq(to[1], 30);
    cr_expect_eq(to[2], 0);
    cr_expect_eq(plan(h, 3, 5, false, to), 5);
    cr_expect_eq(to[0], 10, "cut where the first freed block began");
    cr_expect_eq(to[1], 10);
}

Test(giveup, busy_histories_and_what_they_share_stay)
{
    uint32_t to[2];
    struct giveup_history h[] = { { BLOCKS(0, 1, 2), .tokens = 30, EXPIRED },
                                  { BLOCKS(0, 1, 5), .tokens = 25, EXPIRED, .busy = true } };
    cr_expect_eq(plan(h, 2, UINT32_MAX, true, to), 1);
    cr_expect_eq(to[0], 20);
    cr_expect_eq(to[1], 25);
}

Test(giveup, wanted_histories_go_last_and_only_when_allowed)
{
    uint32_t to[2];
    struct giveup_history h[] = { { BLOCKS(0, 1), .tokens = 20, EXPIRED, .give_up = 0, .wanted = true },
                                  { BLOCKS(2, 3), .tokens = 20, PROTECTED, .give_up = 7 } };
    cr_expect_eq(plan(h, 2, 4, false, to), 2);
    cr_expect(to[0] == 20 && to[1] == 0);
    cr_expect_eq(plan(h, 2, 3, true, to), 3);
    cr_expect(to[0] == 10 && to[1] == 0);
}

Test(giveup, an_unreliable_history_frees_its_blocks_at_once)
{
    uint32_t to[3];
    struct giveup_history h[] = { { BLOCKS(0, 1), .tokens = 20, .reliable = false },
                                  { BLOCKS(0, 2), .tokens = 20, EXPIRED },
                                  { .blocks = NULL, .tokens = 50, .reliable = false } };
    cr_expect_eq(plan(h, 3, 0, false, to), 1, "needed or not; block 0 has another holder");
    cr_expect(to[0] == 0 && to[1] == 20 && to[2] == 0);
    h[0].busy = true;
    cr_expect_eq(plan(h, 3, 0, false, to), 0, "but never under a running request");
    cr_expect_eq(to[0], 20);
}

Test(giveup, asks_how_much_there_is)
{
    uint32_t to[2];
    struct giveup_history h[] = { { BLOCKS(0, 1), .tokens = 20, PROTECTED, .give_up = NAN },
                                  { BLOCKS(0, 2), .tokens = 20, EXPIRED, .give_up = INFINITY } };
    cr_expect_eq(plan(h, 2, UINT32_MAX, false, to), 3);
    cr_expect_eq(plan(NULL, 0, 5, false, to), 0);
}

Test(giveup, refuses_a_block_the_pool_does_not_have)
{
    uint32_t to[9];
    struct giveup_history h[9] = { { BLOCKS(64), .tokens = 10, EXPIRED } };
    cr_expect_eq(plan(h, 1, 1, false, to), -EINVAL);
    cr_expect_eq(plan(h, 9, 1, false, to), -EINVAL, "more histories than the workspace is for");
    struct giveup *g = NULL;
    cr_expect_eq(giveup_new(4, 0, 1, &g), -EINVAL);
    giveup_free(NULL);
}
