/* Who waits how long: the order of the queue, slots held for those that wait, prompts that are read one at a
 * time, and what memory costs whom. */
#include "sched_cast.h"

/* Submits job i while a window stands before the gate. */
static void enter(struct rig *r, struct cast *c, int i)
{
    rig_await_window();
    cr_assert_eq(submit(r, &c->job[i]), 0);
}

/* A scheduler with so many rows; rig_options' number of slots for 0. */
static struct rig queue_open(uint32_t rows, uint32_t slots, uint32_t kv_tokens)
{
    struct sched_options o = rig_options;
    o.rows = rows;
    o.slots = slots ? slots : o.slots;
    return rig_open(&o, kv_tokens);
}

static void queue_close(struct rig *r, struct cast *c)
{
    rig_close(r);
    cast_clear(c);
}

static void wait_all(struct cast *c, int from, int to)
{
    for (int i = from; i <= to; i++)
        heard_wait(&c->h[i], HEARD_DONE);
}

Test(sched_queue, the_fewest_tokens_to_read_go_first)
{
    struct rig r = queue_open(1, 0, 4096);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 200), 200, 1); /* stays as a history */
    run_job(&r, &c.job[0]);
    cast_job(&c, 1, prompt_of(2, 10), 10, 10);
    cast_job(&c, 2, prompt_of(3, 300), 300, 2);
    cast_job(&c, 3, prompt_of(4, 20), 20, 2);
    cast_job(&c, 4, prompt_of(1, 210), 210, 2); /* 10 of its tokens are new */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    for (int i = 2; i <= 4; i++)
        enter(&r, &c, i);
    rig_open_gate();
    wait_all(&c, 1, 4);
    cr_expect_eq(c.h[4].start_order, 3, "10 of 210 tokens are to be read");
    cr_expect_eq(c.h[4].at_start.cached, 200);
    cr_expect_eq(c.h[3].start_order, 4);
    cr_expect_eq(c.h[2].start_order, 5);
    queue_close(&r, &c);
}

static const struct heard *ends[CAST];
static unsigned n_ends;

static void note_end(void *arg, const struct sched_event *ev)
{
    if (ev->kind == SCHED_EV_DONE)
        ends[n_ends++] = arg;
    heard_event(arg, ev);
}

/* Three prompts of 300, 200 and 100 tokens, that begin alike or not; `order`: in which they end. Returns how
 * much of the first was read when the last got its slot. */
static uint32_t three_come(bool by_arrival, uint32_t rows, bool alike, const char *order)
{
    struct sched_options o = rig_options;
    o.by_arrival = by_arrival;
    o.rows = rows;
    struct rig r = rig_open(&o, 4096);
    struct cast c = { 0 };
    n_ends = 0;
    rig_shut();
    for (uint32_t i = 0; i < 3; i++) {
        cast_job(&c, (int)i, prompt_of(alike ? 1 : 1 + i, 300), 300 - 100 * i, 1);
        c.job[i].on_event = note_end;
        c.h[i].beside = &c.h[0];
        if (i)
            rig_await_window();
        cr_assert_eq(submit(&r, &c.job[i]), 0);
    }
    rig_open_gate();
    wait_all(&c, 0, 2);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(ends[i], &c.h[order[i] - '0'], "%u rows, arrival %d, place %d", rows, by_arrival, i);
    uint32_t beside = c.h[2].beside_read;
    queue_close(&r, &c);
    return beside;
}

Test(sched_queue, by_arrival_all_are_let_in_and_read_in_that_order)
{
    cr_expect_lt(three_come(true, 4, false, "012"), 100, "slots are taken at once");
    cr_expect_lt(three_come(true, 4, true, "012"), 100, "and nobody waits for what another reads");
    three_come(true, 1, false, "012");
    three_come(false, 1, false, "021");
}

Test(sched_queue, one_that_has_waited_long_goes_before_all_others)
{
    for (int aged = 0; aged < 2; aged++) {
        struct rig r = queue_open(1, 0, 4096);
        struct cast c = { 0 };
        cast_job(&c, 0, prompt_of(1, 10), 10, 10);
        cast_job(&c, 1, prompt_of(2, 300), 300, 2);
        cast_job(&c, 2, prompt_of(3, 250), 250, 2);
        cast_job(&c, 3, prompt_of(4, 20), 20, 2);
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[0]), 0);
        enter(&r, &c, 1);
        enter(&r, &c, 2);
        rig_await_window();
        /* 60 s and 4 times what reading takes, which no machine needs a minute for. */
        atomic_fetch_add(&rig_ahead_ns, aged ? 300000000000u : 1000000000u);
        enter(&r, &c, 3);
        cr_expect_eq(sched_oldest_wait_ns(r.s), aged ? 300000000000u : 1000000000u);
        rig_open_gate();
        wait_all(&c, 0, 3);
        unsigned first = c.h[0].start_order;
        cr_expect_eq(c.h[1].start_order - first, aged ? 1 : 3, "the oldest of the aged first");
        cr_expect_eq(c.h[2].start_order - first, 2);
        cr_expect_eq(c.h[3].start_order - first, aged ? 3 : 1);
        queue_close(&r, &c);
    }
}

Test(sched_queue, how_long_is_long_depends_on_how_long_reading_takes)
{
    for (int aged = 0; aged < 2; aged++) {
        struct sched_options o = rig_options;
        o.rows = 1;
        atomic_store(&rig_token_ns, 1000000000u);
        struct rig r = rig_open(&o, 4096);
        struct cast c = { 0 };
        cast_job(&c, 0, prompt_of(1, 40), 40,
                 1); /* teaches the speed: 300 tokens take 300 s, so 1,260 are long */
        run_job(&r, &c.job[0]);
        cast_job(&c, 1, prompt_of(2, 10), 10, 10);
        cast_job(&c, 2, prompt_of(3, 300), 300, 2);
        cast_job(&c, 3, prompt_of(4, 20), 20, 2);
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[1]), 0);
        enter(&r, &c, 2);
        rig_await_window();
        atomic_fetch_add(&rig_ahead_ns, (aged ? 1600 : 800) * 1000000000ull);
        enter(&r, &c, 3);
        rig_open_gate();
        wait_all(&c, 1, 3);
        cr_expect_eq(c.h[2].start_order < c.h[3].start_order, aged);
        queue_close(&r, &c);
    }
}

/* A history in slots 0, 1 and 2, of 60 tokens each, the one in slot 0 used longest ago. */
static void fill_slots(struct rig *r, struct cast *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        cast_job(c, (int)i, prompt_of(10 + i, 60), 60, 1);
        c->job[i].id_slot = (int32_t)i;
        run_job(r, &c->job[i]);
        cr_assert_eq(c->h[i].slot, (int32_t)i);
    }
}

Test(sched_queue, a_slot_is_held_for_one_that_waits_to_continue_it)
{
    struct rig r = queue_open(2, 4, 4096);
    struct cast c = { 0 };
    fill_slots(&r, &c, 3);
    cast_job(&c, 3, prompt_of(20, 10), 10, 100);
    c.job[3].id_slot = 3;
    cast_job(&c, 4, prompt_of(10, 160), 160, 2); /* continues slot 0 */
    cast_job(&c, 5, prompt_of(21, 20), 20, 20);  /* goes first, and would take the oldest: slot 0 */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[3]), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &c.job[4]), 0);
    cr_assert_eq(submit(&r, &c.job[5]), 0);
    rig_open_gate();
    wait_all(&c, 3, 5);
    cr_expect_lt(c.h[5].start_order, c.h[4].start_order);
    cr_expect_eq(c.h[5].slot, 1);
    cr_expect_eq(c.h[4].slot, 0);
    cr_expect_eq(c.h[4].at_start.cached, 60);
    queue_close(&r, &c);
}

Test(sched_queue, no_slot_is_held_for_one_that_shares_a_beginning_only)
{
    struct rig r = queue_open(2, 4, 4096);
    struct cast c = { 0 };
    fill_slots(&r, &c, 3);
    cast_job(&c, 3, prompt_of(20, 10), 10, 100);
    c.job[3].id_slot = 3;
    cast_job(&c, 4, prompt_of(22, 160), 160, 2);
    memcpy(c.p[4], c.p[0], 40 * sizeof *c.p[4]);
    cast_job(&c, 5, prompt_of(21, 20), 20, 20); /* goes first, and takes the oldest */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[3]), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &c.job[4]), 0);
    cr_assert_eq(submit(&r, &c.job[5]), 0);
    rig_open_gate();
    wait_all(&c, 3, 5);
    cr_expect_lt(c.h[5].start_order, c.h[4].start_order);
    cr_expect_eq(c.h[5].slot, 0);
    queue_close(&r, &c);
}

Test(sched_queue, a_held_slot_goes_to_whoever_continues_it_as_far_and_takes_its_prefix)
{
    for (int takes = 0; takes < 2; takes++) {
        struct rig r = queue_open(2, 4, 4096);
        struct cast c = { 0 };
        fill_slots(&r, &c, 3);
        cast_job(&c, 3, prompt_of(20, 10), 10, 100);
        c.job[3].id_slot = 3;
        cast_job(&c, 4, prompt_of(10, 160), 160, 2); /* both continue slot 0 */
        cast_job(&c, 5, prompt_of(10, 70), 70, 20);  /* and this one has less to read */
        c.job[5].cache_prompt = takes;
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[3]), 0);
        rig_await_window();
        cr_assert_eq(submit(&r, &c.job[4]), 0);
        cr_assert_eq(submit(&r, &c.job[5]), 0);
        rig_open_gate();
        wait_all(&c, 3, 5);
        cr_expect_lt(c.h[5].start_order, c.h[4].start_order);
        cr_expect_eq(c.h[5].slot, takes ? 0 : 1, "takes %d: slot %d", takes, c.h[5].slot);
        cr_expect_eq(c.h[5].at_start.cached, takes ? 60 : 0);
        cr_expect_geq(c.h[4].at_start.cached, 60);
        queue_close(&r, &c);
    }
}

Test(sched_queue, when_only_held_slots_are_free_another_goes_first)
{
    struct rig r = queue_open(2, 2, 4096);
    struct cast c = { 0 };
    fill_slots(&r, &c, 1);
    cast_job(&c, 3, prompt_of(20, 10), 10, 100);
    c.job[3].id_slot = 1;
    cast_job(&c, 4, prompt_of(10, 160), 160, 2);
    cast_job(&c, 5, prompt_of(21, 20), 20, 2);
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[3]), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &c.job[4]), 0);
    cr_assert_eq(submit(&r, &c.job[5]), 0);
    rig_open_gate();
    wait_all(&c, 3, 5);
    cr_expect_lt(c.h[4].start_order, c.h[5].start_order, "the one it is held for");
    cr_expect_eq(c.h[4].at_start.cached, 60);
    queue_close(&r, &c);
}

/* Nor by arrival. */
Test(sched_queue, no_slot_is_held_against_one_that_has_waited_long)
{
    for (int how = 0; how < 3; how++) {
        struct sched_options o = rig_options;
        bool aged = how == 1, goes = how > 0;
        o.rows = o.slots = 2;
        o.by_arrival = how == 2;
        struct rig r = rig_open(&o, 4096);
        struct cast c = { 0 };
        fill_slots(&r, &c, 1);
        cast_job(&c, 3, prompt_of(20, 10), 10, 100);
        c.job[3].id_slot = 1;
        cast_job(&c, 4, prompt_of(21, 20), 20, 2);
        cast_job(&c, 5, prompt_of(10, 160), 160, 2); /* continues slot 0 */
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[3]), 0);
        enter(&r, &c, 4);
        atomic_fetch_add(&rig_ahead_ns, aged ? 300000000000u : 0);
        enter(&r, &c, 5);
        rig_open_gate();
        wait_all(&c, 3, 5);
        cr_expect_eq(c.h[4].start_order < c.h[5].start_order, goes);
        cr_expect_eq(c.h[5].at_start.cached, goes ? 0 : 60);
        queue_close(&r, &c);
    }
}

Test(sched_queue, when_none_could_go_a_held_slot_is_taken)
{
    struct rig r = queue_open(2, 2, 640);
    struct cast c = { 0 };
    fill_slots(&r, &c, 1);
    cast_job(&c, 3, prompt_of(20, 250), 250, 100);
    c.job[3].id_slot = 1;
    cast_job(&c, 4, prompt_of(10, 460), 460, 2); /* continues slot 0, but needs 8 blocks of 10: 4 are taken */
    cast_job(&c, 5, prompt_of(21, 20), 20, 2);
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[3]), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &c.job[4]), 0);
    cr_assert_eq(submit(&r, &c.job[5]), 0);
    rig_open_gate();
    wait_all(&c, 3, 5);
    cr_expect_lt(c.h[5].start_order, c.h[4].start_order);
    cr_expect_eq(c.h[5].slot, 0);
    cr_expect_eq(c.h[4].at_start.cached, 0);
    queue_close(&r, &c);
}

Test(sched_queue, a_slot_is_claimed_late_so_the_turn_before_is_reused_whole)
{
    struct rig r = queue_open(1, 0, 4096);
    struct cast c = { 0 };
    size_t n;
    cast_job(&c, 0, prompt_of(1, 100), 100, 40);
    run_job(&r, &c.job[0]);
    cast_job(&c, 1, prompt_of(1, 100), 100, 40);
    c.job[1].cache_prompt = false;
    cast_job(&c, 2, next_turn(c.p[0], 100, &c.h[0], 7, 10, &n), 150, 3);
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    enter(&r, &c, 2); /* when it arrives, the turn it continues is still being generated */
    rig_open_gate();
    wait_all(&c, 1, 2);
    cr_expect_eq(c.h[2].at_start.cached, 139);
    queue_close(&r, &c);
}

Test(sched_queue, a_prompt_with_half_as_much_to_read_interrupts_twice_at_most)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 480), 480, 2);
    for (int i = 1; i <= 3; i++) {
        cast_job(&c, i, prompt_of(10 + (uint32_t)i, 20), 20, 2);
        c.h[i].beside = &c.h[0];
    }
    cast_job(&c, 4, prompt_of(15, 260), 260, 2); /* more than half */
    c.h[4].beside = &c.h[0];
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    rig_pass(1);
    enter(&r, &c, 4);
    for (int i = 1; i <= 3; i++) {
        enter(&r, &c, i);
        rig_pass(1);
    }
    rig_open_gate();
    wait_all(&c, 0, 4);
    cr_expect_leq(c.h[1].beside_read, 2 * 48);
    cr_expect_leq(c.h[2].beside_read, 3 * 48);
    cr_expect_gt(c.h[3].beside_read, 480 - 48, "the third waits until there is room, after %u of 480",
                 c.h[3].beside_read);
    cr_expect_gt(c.h[4].beside_read, 480 - 48);
    cr_expect_eq(c.h[0].timings.prompt, 480, "what was read is kept");
    queue_close(&r, &c);
}

Test(sched_queue, a_prompt_is_read_although_more_streams_woke_up_than_there_are_rows)
{
    struct rig r = queue_open(2, 0, 4096);
    struct cast c = { 0 };
    for (int i = 0; i < 2; i++) {
        cast_job(&c, i, prompt_of(1 + (uint32_t)i, 20), 20, 400);
        rig_hold(&r, &c.job[i]);
    }
    cast_job(&c, 2, prompt_of(3, 300), 300, 2); /* seven chunks */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[2]), 0);
    rig_await_window();
    for (int i = 0; i < 2; i++)
        sched_pause(r.s, c.h[i].job, false);
    rig_pass(12);
    rig_await_window();
    cr_expect_eq(c.h[2].done, 1, "after %u tokens", c.h[2].timings.prompt);
    cr_expect(!c.h[0].done && !c.h[1].done);
    rig_open_gate();
    wait_all(&c, 0, 2);
    queue_close(&r, &c);
}

Test(sched_queue, no_more_run_at_once_than_there_are_rows_not_even_to_interrupt)
{
    struct rig r = queue_open(1, 0, 4096);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 300), 300, 5);
    cast_job(&c, 1, prompt_of(2, 20), 20, 2);
    c.h[1].beside = &c.h[0];
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    rig_pass(1);
    enter(&r, &c, 1);
    rig_open_gate();
    wait_all(&c, 0, 1);
    cr_expect_eq(c.h[1].beside_read, 300);
    queue_close(&r, &c);
}

Test(sched_queue, short_prompts_share_one_window)
{
    struct sched_options o = rig_options;
    o.chunk_tokens = 64;
    struct rig r = rig_open(&o, 4096);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 300), 300, 2); /* teaches the speed */
    run_job(&r, &c.job[0]);
    for (int i = 1; i <= 4; i++)
        cast_job(&c, i, prompt_of(10 + (uint32_t)i, 14), 14, 3);
    struct sched_status *before = NULL, *after;
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    rig_await_window();
    before = sched_status_get(r.s);
    for (int i = 2; i <= 4; i++)
        cr_assert_eq(submit(&r, &c.job[i]), 0);
    rig_open_gate();
    wait_all(&c, 1, 4);
    after = sched_status_get(r.s);
    cr_expect_leq(after->step - before->step, 5, "%lu windows", after->step - before->step);
    free(before);
    free(after);
    queue_close(&r, &c);
}

Test(sched_queue, nobody_waits_for_a_prompt_of_another_salt_to_be_read)
{
    for (uint64_t salt = 0; salt < 2; salt++) {
        struct rig r = rig_open(&rig_options, 4096);
        struct cast c = { 0 };
        cast_job(&c, 0, prompt_of(1, 300), 300, 2); /* the last chunk of 48 has 12 tokens */
        cast_job(&c, 1, prompt_of(1, 300), 300, 2);
        c.job[1].salt = salt;
        c.h[1].beside = &c.h[0];
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[0]), 0);
        rig_await_window();
        cr_assert_eq(submit(&r, &c.job[1]), 0);
        rig_open_gate();
        wait_all(&c, 0, 1);
        cr_expect_eq(c.h[1].at_start.cached, salt ? 0 : 299);
        cr_expect_eq(c.h[1].beside_read, salt ? 288 : 300, "after %u", c.h[1].beside_read);
        queue_close(&r, &c);
    }
}

Test(sched_queue, a_requeued_job_takes_back_what_is_left_of_its_own_even_without_cache_prompt)
{
    struct rig r = rig_open(&rig_options, 640); /* 10 blocks */
    struct cast c = { 0 };
    struct sched_placement e[SCHED_PLACEMENTS];
    uint32_t requeued = 0, taken = 0;
    for (int i = 0; i < 2; i++) { /* one block each in the beginning, 8 in the end */
        cast_job(&c, i, prompt_of(1 + (uint32_t)i, 20), 20, 480);
        c.job[i].cache_prompt = false;
    }
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    enter(&r, &c, 1);
    rig_open_gate();
    wait_all(&c, 0, 1);
    size_t n = sched_placements_get(r.s, 0, e);
    for (size_t i = 0; i < n; i++) {
        if (e[i].kind == SCHED_REQUEUE)
            requeued = e[i].tokens;
        else if (e[i].kind == SCHED_RESTORE && e[i].job == c.h[1].job) /* alone by then */
            taken = e[i].tokens;
    }
    cr_expect_eq(requeued, 319, "5 blocks each, and no sixth: %u", requeued);
    cr_expect_eq(taken, 128, "the other one took 3 of its blocks: %u", taken);
    cr_expect_eq(c.h[1].timings.cached, 0, "its own tokens are no cache");
    queue_close(&r, &c);
}

/* Of all placements since the last requeue, the first of one of these jobs. */
static uint64_t first_after_requeue(struct rig *r, uint64_t a, uint64_t b)
{
    struct sched_placement e[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(r->s, 0, e), from = n;
    for (size_t i = 0; i < n; i++)
        if (e[i].kind == SCHED_REQUEUE)
            from = i + 1;
    for (size_t i = from; i < n; i++)
        if (e[i].job == a || e[i].job == b)
            return e[i].job;
    return 0;
}

Test(sched_queue, the_time_that_a_requeued_job_ran_is_no_waiting)
{
    struct rig r = queue_open(2, 0, 640); /* 10 blocks */
    struct cast c = { 0 };
    for (int i = 0; i < 2; i++)
        cast_job(&c, i, prompt_of(1 + (uint32_t)i, 20), 20, 480);
    cast_job(&c, 2, prompt_of(3, 20), 20, 2);
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    enter(&r, &c, 1);
    rig_pass(4); /* both run */
    rig_await_window();
    atomic_fetch_add(&rig_ahead_ns, 300000000000u);
    enter(&r, &c, 2);
    rig_open_gate();
    wait_all(&c, 0, 2);
    /* Waiting for 300 s it would go before all others, who would have to wait until it fits. */
    cr_expect_eq(first_after_requeue(&r, c.h[1].job, c.h[2].job), c.h[2].job);
    queue_close(&r, &c);
}

/* Nothing happens but that time passes; that too must be noticed. */
Test(sched_queue, whoever_has_waited_long_enough_goes_within_a_tenth_of_a_second)
{
    struct rig r = queue_open(4, 0, 640); /* 10 blocks */
    struct cast c = { 0 };
    unsigned steps = 0;
    cast_job(&c, 0, prompt_of(10, 192), 192, 1); /* three blocks stay */
    c.job[0].id_slot = 0;
    run_job(&r, &c.job[0]);
    cast_job(&c, 1, prompt_of(20, 130), 130, 60); /* three */
    c.job[1].id_slot = 1;
    cast_job(&c, 2, prompt_of(30, 360), 360, 20); /* six, of which two are another's */
    cast_job(&c, 3, prompt_of(10, 500), 500, 2);  /* continues slot 0, and lacks one of five */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    enter(&r, &c, 2);
    enter(&r, &c, 3);
    rig_pass(4);
    rig_await_window();
    cr_expect_eq(c.h[2].started + c.h[3].started, 0);
    atomic_fetch_add(&rig_ahead_ns, 59800000000u); /* and 4 times some milliseconds of reading */
    for (; steps < 20 && !c.h[2].started; steps++) {
        atomic_fetch_add(&rig_ahead_ns, 50000000u);
        rig_pass(1);
        rig_await_window();
    }
    cr_expect(steps > 2 && steps < 20, "after %u steps of 50 ms", steps);
    cr_expect_eq(c.h[1].done, 0);
    rig_open_gate();
    wait_all(&c, 1, 3);
    queue_close(&r, &c);
}

Test(sched_queue, memory_takes_what_nobody_waits_for)
{
    for (int wanted = 0; wanted < 2; wanted++) {
        struct rig r = queue_open(1, 0, 640); /* 10 blocks */
        struct cast c = { 0 };
        for (int i = 0; i < 2; i++) { /* three blocks each */
            cast_job(&c, i, prompt_of(10 + (uint32_t)i, 192), 192, 1);
            c.job[i].id_slot = i;
            run_job(&r, &c.job[i]);
        }
        cast_job(&c, 2, prompt_of(20, 60), 60, 350); /* grows to seven */
        c.job[2].id_slot = 2;
        cast_job(&c, 3, prompt_of(10, 200), 200, 2);
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[2]), 0);
        rig_await_window();
        if (wanted)
            cr_assert_eq(submit(&r, &c.job[3]), 0);
        rig_open_gate();
        heard_wait(&c.h[2], HEARD_DONE);
        if (!wanted)
            cr_assert_eq(submit(&r, &c.job[3]), 0);
        heard_wait(&c.h[3], HEARD_DONE);
        if (wanted)
            cr_expect_eq(c.h[3].at_start.cached, 192, "the oldest, but somebody waits for it");
        else
            cr_expect_eq(c.h[3].at_start.cached, 0, "the oldest goes first, and all of it was needed");
        queue_close(&r, &c);
    }
}

Test(sched_queue, one_that_has_waited_long_takes_even_what_others_wait_for)
{
    for (int aged = 0; aged < 2; aged++) {
        struct rig r = rig_open(&rig_options, 640); /* 10 blocks */
        struct cast c = { 0 };
        cast_job(&c, 0, prompt_of(10, 192), 192, 1); /* three blocks stay */
        c.job[0].id_slot = 0;
        run_job(&r, &c.job[0]);
        cast_job(&c, 1, prompt_of(20, 60), 60, 200); /* grows to five */
        c.job[1].id_slot = 1;
        cast_job(&c, 2, prompt_of(30, 420), 420, 30); /* reads seven */
        cast_job(&c, 3, prompt_of(10, 480), 480, 2);  /* continues slot 0 */
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[1]), 0);
        enter(&r, &c, 2);
        rig_await_window();
        cr_assert_eq(submit(&r, &c.job[3]), 0);
        rig_await_window();
        atomic_fetch_add(&rig_ahead_ns, aged ? 300000000000u : 0);
        rig_open_gate();
        wait_all(&c, 1, 3);
        cr_expect(aged ? c.h[3].at_start.cached < 192 : c.h[3].at_start.cached == 192, "aged %d: %u", aged,
                  c.h[3].at_start.cached);
        queue_close(&r, &c);
    }
}

Test(sched_queue, a_request_that_does_not_fit_lets_a_smaller_one_pass)
{
    struct rig r = rig_open(&rig_options, 640);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 250), 250, 60);
    cast_job(&c, 1, prompt_of(2, 300), 300, 200); /* 8 blocks: beside 4 that are taken it does not fit */
    cast_job(&c, 2, prompt_of(3, 310), 310, 5);   /* more to read, but 5 blocks */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    rig_await_window();
    for (int i = 1; i <= 2; i++)
        cr_assert_eq(submit(&r, &c.job[i]), 0);
    rig_open_gate();
    wait_all(&c, 0, 2);
    cr_expect_lt(c.h[2].start_order, c.h[1].start_order);
    queue_close(&r, &c);
}

Test(sched_queue, those_who_do_not_read_keep_nobody_out)
{
    struct sched_options o = rig_options;
    for (uint32_t slots = 1; slots <= 2; slots++) {
        o.slots = slots;
        o.rows = 1;
        struct rig r = rig_open(&o, 4096);
        struct cast c = { 0 };
        char text[4096];
        for (uint32_t i = 0; i < slots; i++) {
            cast_job(&c, (int)i, prompt_of(1 + i, 30), 30, 60);
            rig_hold(&r, &c.job[i]);
        }
        cast_job(&c, 3, prompt_of(8, 30), 30, 60);
        run_job(&r, &c.job[3]); /* all slots are taken, and nobody is going to leave */
        cr_expect(strstr(placements(&r, 0, text, sizeof text), "requeue"), "%s", text);
        for (uint32_t i = 0; i < slots; i++) {
            cr_expect_eq(c.h[i].done, 0);
            sched_pause(r.s, c.h[i].job, false);
        }
        wait_all(&c, 0, (int)slots - 1);
        /* And in the end each says what it says when nobody is in its way. */
        for (uint32_t i = 0; i < slots; i++) {
            cast_job(&c, 4, prompt_of(1 + i, 30), 30, 60);
            c.job[4].cache_prompt = false;
            run_job(&r, &c.job[4]);
            expect_same(&c.h[4], &c.h[i], "made way");
            heard_clear(&c.h[4]);
            free(c.p[4]);
            c.p[4] = NULL;
        }
        expect_balance(&r);
        queue_close(&r, &c);
    }
}

Test(sched_queue, memory_is_taken_from_a_paused_job_before_one_that_goes_on)
{
    for (int older = 0; older < 2; older++) {
        struct rig r = rig_open(&rig_options, 640); /* 10 blocks */
        struct cast c = { 0 };
        char text[4096];
        cast_job(&c, 0, prompt_of(1, 150), 150, 60); /* is paused: three blocks */
        c.job[0].id_slot = 4;
        cast_job(&c, 1, prompt_of(2, 60), 60, 440); /* eight in the end */
        c.job[1].id_slot = 5;
        if (older) {
            rig_hold(&r, &c.job[0]);
            cr_assert_eq(submit(&r, &c.job[1]), 0);
        } else {
            rig_until_text(&r, &c.job[1]);
            rig_hold(&r, &c.job[0]);
        }
        heard_wait(&c.h[1], HEARD_DONE);
        cr_expect_eq(c.h[0].done, 0);
        placements(&r, 0, text, sizeof text);
        cr_expect(strstr(text, "requeue 4<") && !strstr(text, "requeue 5<"), "%s", text);
        sched_pause(r.s, c.h[0].job, false);
        heard_wait(&c.h[0], HEARD_DONE);
        cr_expect_eq(c.h[0].timings.generated, 60);
        queue_close(&r, &c);
    }
}

Test(sched_queue, the_memory_of_a_prompt_that_is_being_read_is_spoken_for)
{
    struct rig r = rig_open(&rig_options, 640); /* 10 blocks */
    struct cast c = { 0 };
    char text[4096];
    cast_job(&c, 0, prompt_of(1, 460), 460, 2); /* eight, of which the first is taken when the other comes */
    cast_job(&c, 1, prompt_of(2, 150), 150, 2); /* three */
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    enter(&r, &c, 1);
    rig_open_gate();
    wait_all(&c, 0, 1);
    placements(&r, 0, text, sizeof text);
    cr_expect(!strstr(text, "requeue") && !strstr(text, "promote"), "%s", text);
    queue_close(&r, &c);
}

Test(sched_queue, one_that_waits_long_is_not_passed_for_ever)
{
    struct rig r = rig_open(&rig_options, 640);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 250), 250, 60);
    cast_job(&c, 1, prompt_of(2, 300), 300, 200);
    cast_job(&c, 2, prompt_of(3, 310), 310, 5);
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    enter(&r, &c, 1);
    rig_await_window();
    atomic_fetch_add(&rig_ahead_ns, 300000000000u);
    cr_assert_eq(submit(&r, &c.job[2]), 0);
    rig_open_gate();
    wait_all(&c, 0, 2);
    cr_expect_lt(c.h[1].start_order, c.h[2].start_order);
    queue_close(&r, &c);
}

Test(sched_queue, cancelling_is_heard_while_waiting_reading_decoding_and_at_a_promotion)
{
    for (int when = 0; when < 4; when++) {
        struct rig r = rig_open(&rig_options, 4096);
        struct cast c = { 0 };
        cast_job(&c, 0, prompt_of(1, 200), 200, 200);
        cast_job(&c, 1, prompt_of(2, 100), 100, 20);
        cast_job(&c, 2, prompt_of(1, 200), 200, 5);
        rig_shut();
        cr_assert_eq(submit(&r, &c.job[0]), 0);
        rig_pass(when == 2 ? 8 : 1);
        rig_await_window();
        if (when != 1)
            cr_assert_eq(submit(&r, &c.job[1]), 0);
        sched_cancel(r.s, when ? c.h[0].job : c.h[1].job);
        rig_open_gate();
        if (when == 1)
            cr_assert_eq(submit(&r, &c.job[1]), 0);
        wait_all(&c, 0, 1);
        cr_expect_eq(c.h[0].stop, when ? SCHED_STOP_CANCELLED : SCHED_STOP_LENGTH);
        cr_expect_eq(c.h[1].stop, when ? SCHED_STOP_LENGTH : SCHED_STOP_CANCELLED);
        run_job(&r, &c.job[2]);
        cr_expect_eq(c.h[2].at_start.cached, when == 0 || when == 2 ? 199 : 96, "%u: what was read is kept",
                     c.h[2].at_start.cached);
        expect_balance(&r);
        queue_close(&r, &c);
    }
}

/* ---- a client with many conversations ---- */

#define MANY 30u

/* They ask again as soon as they are answered, each answer half a second after the one before. */
static struct {
    struct sched *s;
    unsigned asked, most;
    const struct heard *until; /* has started */
} many;

static void ask_again(void *arg, const struct sched_event *ev)
{
    char err[256];
    uint64_t id;
    if (ev && ev->kind != SCHED_EV_DONE)
        return;
    atomic_fetch_add(&rig_ahead_ns, ev ? 500000000u : 0u);
    if (many.asked == many.most || many.until->started || (ev && ev->stop != SCHED_STOP_LENGTH))
        return;
    int32_t *p = prompt_of(1000 + many.asked++, 20);
    struct sched_job job = job_of(p, 20, 1, NULL);
    job.arg = arg;
    job.client_key = 1;
    job.on_event = ask_again;
    cr_expect_eq(sched_submit(many.s, &job, &id, err, sizeof err), 0, "%s", err);
    free(p);
}

Test(sched_queue, a_client_with_one_conversation_waits_no_longer_than_a_minute_for_one_with_thirty)
{
    struct sched_options o = rig_options;
    o.rows = 1;
    o.queue_max = 100;
    struct rig r = rig_open(&o, 4096);
    struct cast c = { 0 };
    cast_job(&c, 0, prompt_of(1, 300), 300, 1); /* always the one with the most to read */
    c.job[0].client_key = 2;
    many.s = r.s;
    many.most = 1000;
    many.until = &c.h[0];
    rig_shut();
    ask_again(NULL, NULL);
    for (unsigned i = 1; i < MANY; i++) {
        rig_await_window(); /* the scheduler is nowhere near them */
        ask_again(NULL, NULL);
    }
    enter(&r, &c, 0);
    rig_open_gate();
    heard_wait(&c.h[0], HEARD_DONE);
    cr_expect_geq(c.h[0].at_start.queue_ms, 60000, "the others had less to read");
    cr_expect_leq(c.h[0].at_start.queue_ms, 60000 + 4 * 100 + 1000, "and no longer");
    queue_close(&r, &c);
}
