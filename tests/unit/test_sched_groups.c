/* Groups and stages: several windows under way at once, each of one group. */
#include "sched_cast.h"

/* What the first stage was given, window by window. */
struct seen {
    uint32_t n_rows, n_tokens;
    uint32_t pos[16]; /* of each row's first token */
    uint32_t n[16];
};
static struct seen seen[4096];
static atomic_uint n_seen;
static const struct ops_dev *first_stage;

static void note_window(const struct ops_dev *d, const struct ops_attention *a)
{
    uint32_t i = atomic_load(&n_seen);
    if (d != first_stage || i == 4096 || a->n_rows > 16)
        return;
    seen[i] = (struct seen){ .n_rows = a->n_rows, .n_tokens = a->n_tokens };
    for (uint32_t r = 0; r < a->n_rows; r++) {
        seen[i].pos[r] = a->rows[r].pos;
        seen[i].n[r] = a->rows[r].n;
    }
    atomic_store(&n_seen, i + 1);
}

static bool padded;

static struct rig staged(uint32_t stages, uint32_t groups, uint32_t kv_tokens)
{
    struct sched_options o = rig_options;
    o.groups = groups;
    o.padded = padded;
    o.rows = 8;
    o.queue_max = 16;
    rig_file = "tiny-deep.gguf";
    rig_stages = stages;
    struct rig r = rig_open(&o, kv_tokens);
    atomic_store(&n_seen, 0);
    first_stage = r.e->stages[0].dev;
    rig_on_window = note_window;
    return r;
}

static void closed(struct rig *r)
{
    rig_on_window = NULL;
    rig_close(r);
}

/* A job with a prompt of its own. */
static void cast_own(struct cast *c, uint32_t i, size_t n, uint32_t max_new)
{
    cast_job(c, (int)i, prompt_of(50 + i, n), n, max_new);
}

/* Submits a job and lets windows through until it has said something; then one stands. */
static void enter_until_text(struct rig *r, struct cast *c, uint32_t i)
{
    rig_shut();
    cr_assert_eq(submit(r, &c->job[i]), 0);
    rig_await_window();
    while (!c->h[i].texts) { /* nothing is said while a window stands */
        rig_pass(1);
        rig_await_window();
    }
}

/* What the job is answered by a scheduler of its own, with one stage and one group. */
static void cold_run(const struct sched_job *job, struct heard *h)
{
    uint32_t stages = rig_stages;
    struct rig r;
    struct sched_job own = *job;
    rig_on_window = NULL;
    rig_stages = 1;
    heard_init(h);
    own.arg = h;
    own.on_event = heard_event;
    own.id_slot = -1;
    r = rig_open(&rig_options, 4096);
    run_job(&r, &own);
    rig_close(&r);
    rig_stages = stages;
}

static void expect_cold(struct cast *c, uint32_t i, const char *what)
{
    struct heard wanted;
    cold_run(&c->job[i], &wanted);
    expect_same(&wanted, &c->h[i], what);
    heard_clear(&wanted);
}

/* ---- the answers ---- */

#define TURNS 2u
#define TALKS 6u

static struct sched_job turn_of(const int32_t *tokens, size_t n, uint32_t talk, uint32_t turn,
                                struct heard *h)
{
    struct sched_job job = job_of(tokens, n, 30 + 10 * talk, h);
    job.sampling.temperature = talk % 2 ? 0 : 1;
    job.sampling.seed = 10 * turn + talk;
    return job;
}

/* Six conversations of two turns, all at once but the first, which is alone when it begins. */
static void talk(struct rig *r, struct heard h[TALKS * TURNS])
{
    int32_t *prompts[TALKS * TURNS];
    size_t n[TALKS * TURNS];
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (uint32_t i = 0; i < TALKS; i++) {
            uint32_t at = turn * TALKS + i;
            heard_init(&h[at]);
            n[at] = 20 + 50 * i;
            prompts[at] =
                turn ? next_turn(prompts[i], n[i], &h[i], 70 + i, 15, &n[at]) : prompt_of(60 + i, n[at]);
            struct sched_job job = turn_of(prompts[at], n[at], i, turn, &h[at]);
            cr_assert_eq(submit(r, &job), 0);
            if (!i)
                heard_wait(&h[at], HEARD_TEXT);
        }
        for (uint32_t i = 0; i < TALKS; i++)
            heard_wait(&h[turn * TALKS + i], HEARD_DONE);
    }
    for (uint32_t i = 0; i < TALKS * TURNS; i++)
        free(prompts[i]);
}

Test(sched_groups, answers_depend_on_neither_stages_nor_groups)
{
    static const uint32_t cases[][3] = { { 1, 1 },    { 1, 4 },    { 2, 1 },    { 2, 2 },
                                         { 2, 4 },    { 3, 2 },    { 3, 8 },    { 5, 8 },
                                         { 1, 1, 1 }, { 1, 2, 1 }, { 2, 2, 1 }, { 3, 4, 1 } };
    static struct heard wanted[TALKS * TURNS], h[TALKS * TURNS];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char what[64];
        padded = cases[c][2];
        struct rig r = staged(cases[c][0], cases[c][1], 4096);
        struct heard *into = c ? h : wanted;
        talk(&r, into);
        expect_balance(&r);
        closed(&r);
        snprintf(what, sizeof what, "%u stages, %u groups, %s", cases[c][0], cases[c][1],
                 padded ? "padded" : "active");
        for (uint32_t i = 0; c && i < TALKS * TURNS; i++) {
            cr_expect_eq(h[i].stop, SCHED_STOP_LENGTH);
            expect_same(&wanted[i], &h[i], what);
            heard_clear(&h[i]);
        }
    }
    for (uint32_t i = 0; i < TALKS * TURNS; i++) {
        cr_expect_gt(wanted[i].n_tokens, 20);
        heard_clear(&wanted[i]);
    }
}

/* ---- several under way ---- */

/* Jobs 0 and 1 stand in the two stages, one window each, of different groups. */
static struct rig two_under_way(struct cast *c, size_t n)
{
    struct rig r = staged(2, 2, 4096);
    for (uint32_t i = 0; i < 2; i++) {
        cast_own(c, i, n, 30);
        c->job[i].id_slot = (int32_t)(4 * i);
    }
    rig_shut();
    cr_assert_eq(submit(&r, &c->job[0]), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &c->job[1]), 0);
    rig_pass(1);
    rig_await_windows(2);
    return r;
}

Test(sched_groups, windows_of_two_groups_are_under_way_at_once)
{
    struct cast c = { 0 };
    struct rig r = two_under_way(&c, 30);
    rig_open_gate();
    for (uint32_t i = 0; i < 2; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    cr_expect_eq(c.h[0].slot, 0);
    cr_expect_eq(c.h[1].slot, 4);
    closed(&r);
    for (uint32_t i = 0; i < 2; i++)
        expect_cold(&c, i, "beside one of another group");
    cast_clear(&c);
}

Test(sched_groups, while_nobody_decodes_a_prompt_is_read_in_each_stage)
{
    struct cast c = { 0 };
    struct rig r = two_under_way(&c, 300); /* several chunks each, and neither has been read */
    cr_expect_eq(c.h[0].texts + c.h[1].texts, 0);
    rig_open_gate();
    for (uint32_t i = 0; i < 2; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    closed(&r);
    cast_clear(&c);
}

Test(sched_groups, a_stage_that_fails_ends_the_requests_of_its_window_and_no_others)
{
    struct cast c = { 0 };
    struct rig r = two_under_way(&c, 30);
    atomic_store(&rig_failures, 1);
    rig_open_gate();
    for (uint32_t i = 0; i < 2; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    uint32_t failed = c.h[0].stop == SCHED_STOP_FAILED ? 0 : 1;
    cr_expect_eq(c.h[failed].stop, SCHED_STOP_FAILED);
    cr_expect_str_eq(c.h[failed].error, failed ? "the engine failed: stage 1 of 2 (layers 0-2): the device "
                                                 "failed, as it was told to"
                                               : "the engine failed: stage 2 of 2 (layers 3-4): the device "
                                                 "failed, as it was told to");
    cr_expect_eq(c.h[1 - failed].stop, SCHED_STOP_LENGTH);
    cast_own(&c, 2, 30, 10);
    run_job(&r, &c.job[2]);
    cr_expect_eq(c.h[2].stop, SCHED_STOP_LENGTH, "the server goes on");
    expect_balance(&r);
    closed(&r);
    expect_cold(&c, 1 - failed, "beside one that failed");
    cast_clear(&c);
}

Test(sched_groups, one_that_is_cancelled_ends_when_its_window_is_back)
{
    struct cast c = { 0 };
    struct rig r = two_under_way(&c, 30);
    sched_cancel(r.s, c.h[0].job);
    cast_own(&c, 2, 10, 1);
    cr_assert_eq(submit(&r, &c.job[2]), 0);
    heard_wait(&c.h[2], HEARD_STARTED); /* so the scheduler has looked at the cancel too */
    cr_expect_eq(c.h[0].done, 0);
    rig_open_gate();
    for (uint32_t i = 0; i < 3; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    cr_expect_eq(c.h[0].stop, SCHED_STOP_CANCELLED);
    cr_expect_eq(c.h[1].stop, SCHED_STOP_LENGTH);
    cr_expect_eq(c.h[2].stop, SCHED_STOP_LENGTH);
    expect_balance(&r);
    closed(&r);
    expect_cold(&c, 1, "beside one that was cancelled");
    cast_clear(&c);
}

Test(sched_groups, a_prefix_is_taken_from_one_whose_window_is_under_way)
{
    struct cast c = { 0 };
    struct rig r = staged(2, 2, 4096);
    cast_own(&c, 0, 100, 30);
    cast_own(&c, 1, 120, 30);
    memcpy(c.p[1], c.p[0], 100 * sizeof *c.p[0]);
    c.job[0].id_slot = 0;
    c.job[1].id_slot = 4;
    enter_until_text(&r, &c, 0);
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    heard_wait(&c.h[1], HEARD_STARTED);
    cr_expect_eq(c.h[1].at_start.cached, 100);
    rig_open_gate();
    for (uint32_t i = 0; i < 2; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    closed(&r);
    for (uint32_t i = 0; i < 2; i++)
        expect_cold(&c, i, "what was taken while it grew");
    cast_clear(&c);
}

Test(sched_groups, one_on_main_makes_way_when_its_window_is_back)
{
    char text[400];
    struct cast c = { 0 };
    struct rig r = staged(2, 2, 4096);
    cast_own(&c, 0, 200, 60);
    cast_own(&c, 1, 40, 30);
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    rig_pass(1);
    rig_await_window(); /* in the second stage */
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    rig_open_gate();
    for (uint32_t i = 0; i < 2; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    placements(&r, 0, text, sizeof text);
    cr_expect_eq(strncmp(text, "place main<- 0, promote ", 24), 0, "%s", text);
    closed(&r);
    for (uint32_t i = 0; i < 2; i++)
        expect_cold(&c, i, "promoted between two windows");
    cast_clear(&c);
}

Test(sched_groups, one_left_alone_goes_back_to_main_when_its_window_is_back)
{
    char text[1000];
    struct cast c = { 0 };
    struct rig r = staged(2, 2, 4096);
    for (uint32_t i = 0; i < 2; i++) {
        cast_own(&c, i, 40, 100);
        enter_until_text(&r, &c, i);
    }
    sched_pause(r.s, c.h[1].job, true);
    rig_pass(6); /* those of the paused one are back */
    rig_await_window();
    uint64_t events = last_placement(&r);
    sched_cancel(r.s, c.h[1].job);
    heard_wait(&c.h[1], HEARD_DONE);
    rig_open_gate();
    heard_wait(&c.h[0], HEARD_DONE);
    placements(&r, events, text, sizeof text);
    cr_expect(strstr(text, "back_to_solo main<"), "%s", text);
    closed(&r);
    expect_cold(&c, 0, "from main to a slot and back");
    cast_clear(&c);
}

/* ---- whose turn it is ---- */

/* The window with the row of a stream at this position. */
static uint32_t window_of(uint32_t pos)
{
    for (uint32_t i = 0; i < atomic_load(&n_seen); i++)
        for (uint32_t r = 0; r < seen[i].n_rows; r++)
            if (seen[i].n[r] == 1 && seen[i].pos[r] == pos)
                return i;
    cr_assert(false, "position %u is in no window", pos);
    return 0;
}

Test(sched_groups, the_group_that_has_waited_longest_goes_first)
{
    struct cast c = { 0 };
    struct rig r = staged(1, 4, 4096);
    rig_shut();
    for (uint32_t i = 0; i < 4; i++) {
        cast_own(&c, i, 10 + 100 * i, 60);
        c.job[i].id_slot = (int32_t)(2 * i);
        cr_assert_eq(submit(&r, &c.job[i]), 0);
        if (!i)
            rig_await_window();
    }
    rig_open_gate();
    for (uint32_t i = 0; i < 4; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    closed(&r);
    /* The last one's prompt is read by then. */
    uint32_t from = window_of(311), served[4] = { 0 };
    for (uint32_t i = from; i < from + 40; i++) {
        cr_expect_eq(seen[i].n_rows, 1, "a window serves one group");
        served[seen[i].pos[0] / 100]++;
        for (uint32_t g = 0; i % 4 == (from + 3) % 4 && g < 4; g++)
            cr_expect_eq(served[g], (i - from + 1) / 4, "group %u in window %u", g, i);
    }
    cast_clear(&c);
}

/* Windows with a chunk of prompt that come between two tokens of a stream, the second token's included. */
static uint32_t most_chunks_between(uint32_t first_pos, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t k = 0; k + 1 < n; k++) {
        uint32_t chunks = 0;
        for (uint32_t i = window_of(first_pos + k) + 1; i <= window_of(first_pos + k + 1); i++)
            chunks += seen[i].n_tokens > seen[i].n_rows;
        most = chunks > most ? chunks : most;
    }
    return most;
}

static void read_beside_streams(uint32_t stages, uint32_t groups)
{
    struct cast c = { 0 };
    struct rig r = staged(stages, groups, 4096);
    cast_own(&c, 0, 3, 60); /* positions that chunks do not begin at: one row tells whose it is */
    cast_own(&c, 1, 401, 60);
    cast_own(&c, 2, 300, 2);
    cast_own(&c, 3, 300, 2);
    c.job[0].id_slot = 0;
    c.job[1].id_slot = 4;
    c.job[2].id_slot = 5;
    c.job[3].id_slot = 1;
    for (uint32_t i = 0; i < 2; i++)
        enter_until_text(&r, &c, i);
    for (uint32_t i = 2; i < 4; i++)
        cr_assert_eq(submit(&r, &c.job[i]), 0);
    rig_open_gate();
    for (uint32_t i = 0; i < 4; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    closed(&r);
    cr_expect_leq(most_chunks_between(3, 59), 1, "%u stages, %u groups", stages, groups);
    cr_expect_leq(most_chunks_between(401, 59), 1, "%u stages, %u groups", stages, groups);
    cast_clear(&c);
}

Test(sched_groups, a_stream_waits_for_one_chunk_at_a_time_whichever_group_reads_it)
{
    read_beside_streams(1, 1);
    read_beside_streams(1, 2);
    read_beside_streams(2, 2);
    read_beside_streams(3, 4);
}

/* How many chunks of its prompt another job had read when this one ended. */
struct beside {
    const struct heard *of;
    uint32_t chunks;
};
static struct beside beside;

static void note_beside(void *arg, const struct sched_event *ev)
{
    if (ev->kind == SCHED_EV_DONE)
        beside.chunks = beside.of->progress;
    heard_event(arg, ev);
}

Test(sched_groups, a_short_prompt_in_another_group_is_read_before_the_rest_of_a_long_one)
{
    struct cast c = { 0 };
    struct rig r = staged(2, 2, 4096);
    cast_own(&c, 0, 10, 400); /* a stream in each group */
    cast_own(&c, 1, 12, 400);
    cast_own(&c, 2, 460, 2);
    cast_own(&c, 3, 90, 2);
    c.job[0].id_slot = 0;
    c.job[1].id_slot = 4;
    c.job[2].id_slot = 1;
    c.job[3].id_slot = 5;
    c.job[3].on_event = note_beside;
    beside.of = &c.h[2];
    for (uint32_t i = 0; i < 2; i++)
        enter_until_text(&r, &c, i);
    cr_assert_eq(submit(&r, &c.job[2]), 0);
    while (c.h[2].progress < 2) { /* the chunks are the long one's so far */
        rig_pass(1);
        rig_await_window();
    }
    cr_assert_eq(submit(&r, &c.job[3]), 0);
    rig_open_gate();
    for (uint32_t i = 0; i < 4; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    cr_expect_leq(beside.chunks, 5, "chunks that the longer prompt took meanwhile");
    cr_expect_geq(c.h[2].progress, 10);
    closed(&r);
    cast_clear(&c);
}

Test(sched_groups, groups_divide_the_slots)
{
    struct rig r = staged(1, 1, 4096);
    struct sched *s;
    struct sched_options o = rig_options;
    char err[256] = "";
    o.groups = 3;
    cr_expect_eq(sched_start(r.e, r.t, &o, &s, err, sizeof err), -EINVAL);
    cr_expect_str_eq(err, "scheduler options: 3 groups, which is no divisor of 8 slots");
    closed(&r);
}

/* ---- padded windows ---- */

/* A job of its own, run to its end in this slot. */
static void leave_history(struct rig *r, struct cast *c, uint32_t i, int32_t slot)
{
    cast_own(c, i, 60, 5);
    c->job[i].id_slot = slot;
    run_job(r, &c->job[i]);
    cr_expect_eq(c->h[i].last_slot, slot);
}

/* What the next turn of job i finds, in the slot it names. */
static uint32_t found(struct rig *r, struct cast *c, uint32_t i, int32_t slot)
{
    size_t n;
    struct heard h;
    heard_init(&h);
    int32_t *turn = next_turn(c->p[i], 60, &c->h[i], 7, 10, &n);
    struct sched_job job = job_of(turn, n, 1, &h);
    job.id_slot = slot;
    run_job(r, &job);
    uint32_t cached = h.at_start.cached;
    heard_clear(&h);
    free(turn);
    return cached;
}

/* Placement events of a kind, "slot:tokens " each. */
static const char *events_of(struct rig *r, enum sched_placement_kind kind)
{
    static char text[400];
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(r->s, 0, events), used = 0;
    *text = 0;
    for (size_t i = 0; i < n; i++)
        if (events[i].kind == kind)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%d:%u ", events[i].slot, events[i].tokens);
    return text;
}

Test(sched_groups, a_padded_window_destroys_idle_histories_below_its_last_row_and_no_others)
{
    struct cast c = { 0 };
    padded = true;
    struct rig r = staged(1, 2, 4096);
    leave_history(&r, &c, 0, 3);
    leave_history(&r, &c, 1, 7);
    leave_history(&r, &c, 2, 0); /* the lowest slot: nothing lies below it */
    cr_expect_str_eq(events_of(&r, SCHED_PAD), "");
    leave_history(&r, &c, 3, 2);
    cr_expect_str_eq(events_of(&r, SCHED_PAD), "0:64 ");
    cr_expect_eq(seen[atomic_load(&n_seen) - 1].n_rows, 3, "slots 0 to 2");
    cr_expect_eq(found(&r, &c, 2, 0), 0, "lost");
    cr_expect_str_eq(events_of(&r, SCHED_OVERWRITE), "", "and not once more");
    cr_expect_eq(found(&r, &c, 3, 2), 64, "there");
    cr_expect_eq(found(&r, &c, 0, 3), 64, "higher");
    cr_expect_eq(found(&r, &c, 1, 7), 64, "of another group");
    closed(&r);
    cast_clear(&c);
}

/* Two jobs, the second of which runs in a higher slot and so many windows longer. */
static const char *lost_by_ending_apart(uint32_t windows)
{
    struct cast c = { 0 };
    padded = true;
    struct rig r = staged(1, 1, 4096);
    cast_own(&c, 0, 30, 11);
    cast_own(&c, 1, 30, 10 + windows); /* it begins one window later */
    c.job[0].id_slot = 1;
    c.job[1].id_slot = 3;
    rig_shut();
    cr_assert_eq(submit(&r, &c.job[0]), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &c.job[1]), 0);
    rig_open_gate();
    for (uint32_t i = 0; i < 2; i++)
        heard_wait(&c.h[i], HEARD_DONE);
    const char *text = events_of(&r, SCHED_PAD);
    closed(&r);
    cast_clear(&c);
    return text;
}

Test(sched_groups, what_came_to_rest_in_a_padded_window_is_lost_with_the_next_one)
{
    cr_expect_str_eq(lost_by_ending_apart(0), "", "both ended in the last one");
    cr_expect_str_eq(lost_by_ending_apart(1), "1:40 ");
}

/* Tokens given up while a job runs beside histories that fill the pool, in slots that no pad row is for. */
static uint64_t given_up(bool pad)
{
    struct cast c = { 0 };
    padded = pad;
    struct rig r = staged(1, 1, 512);
    for (uint32_t i = 0; i < 4; i++) { /* two blocks each */
        cast_own(&c, i, 100, 10);
        c.job[i].id_slot = (int32_t)(7 - i);
        run_job(&r, &c.job[i]);
    }
    cast_own(&c, 4, 30, 100);
    c.job[4].id_slot = 3;
    run_job(&r, &c.job[4]);
    struct sched_status *st = sched_status_get(r.s);
    uint64_t tokens = st->tally.placement_tokens[SCHED_EVICT];
    free(st);
    closed(&r);
    expect_cold(&c, 4, "in a full pool");
    cast_clear(&c);
    return tokens;
}

Test(sched_groups, pad_rows_are_left_out_rather_than_taking_memory)
{
    uint64_t active = given_up(false);
    cr_expect_gt(active, 0);
    cr_expect_eq(given_up(true), active);
}

Test(sched_groups, what_a_padded_window_destroyed_is_not_given_up_as_well)
{
    struct cast c = { 0 };
    padded = true;
    struct rig r = staged(1, 1, 512);
    static const int32_t slots[] = { 0, 1, 7, 6, 5 };
    for (uint32_t i = 0; i < 5; i++) {
        cast_own(&c, i, 100, 10);
        c.job[i].id_slot = slots[i];
        run_job(&r, &c.job[i]);
    }
    cast_own(&c, 5, 100, 100);
    c.job[5].id_slot = 4;
    run_job(&r, &c.job[5]);
    cr_expect_str_eq(events_of(&r, SCHED_PAD), "0:109 1:109 ");
    cr_expect_str_eq(events_of(&r, SCHED_EVICT), "7:45 7:64 ", "the oldest that is there");
    cast_clear(&c);
    closed(&r);
}
