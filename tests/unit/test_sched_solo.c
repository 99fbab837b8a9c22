/* The scheduler's solo session and its slots: who runs where, what is kept, what is shared, and that none of
 * it changes a word. */
#include "sched_rig.h"

#define SAME(got, wanted)                                                                                    \
    do {                                                                                                     \
        const char *text_ = (got);                                                                           \
        cr_expect(strcmp(text_, wanted) == 0, "\n  %s\nwanted\n  %s", text_, wanted);                        \
    } while (0)

static char text[8192];

/* A job by itself, cold, with a clean slate: what it must say. */
static void cold_run(const struct sched_job *job, struct heard *h)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct sched_job cold = *job;
    heard_init(h);
    cold.arg = h;
    run_job(&r, &cold);
    rig_close(&r);
}

Test(sched_solo, what_main_held_is_parked_before_another_conversation_replaces_it)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard a1, b, a2;
    size_t n;
    heard_init(&a1);
    heard_init(&b);
    heard_init(&a2);
    int32_t *p = prompt_of(1, 100), *q = prompt_of(2, 50);
    struct sched_job job = job_of(p, 100, 20, &a1);
    run_job(&r, &job);
    cr_expect_eq(a1.slot, SCHED_MAIN);
    struct sched_status *st = sched_status_get(r.s);
    uint64_t used = st->slot[8].last_use_ns;
    cr_expect_eq(st->slot[8].tokens, 119);
    cr_expect_gt(used, 0);
    free(st);
    atomic_fetch_add(&rig_ahead_ns, 5000000000u);
    job = job_of(q, 50, 20, &b);
    run_job(&r, &job);
    st = sched_status_get(r.s);
    cr_expect_eq(st->slot[0].tokens, 119);
    cr_expect_eq(st->slot[0].last_use_ns, used, "parking is not using");
    cr_expect_geq(st->slot[8].last_use_ns, used + 5000000000u);
    free(st);
    int32_t *turn = next_turn(p, 100, &a1, 3, 10, &n);
    job = job_of(turn, n, 5, &a2);
    run_job(&r, &job);
    cr_expect_eq(a2.at_start.cached, 119);
    SAME(placements(&r, 0, text, sizeof text),
         "place main<- 0, park 0<main 119, place main<- 0, park 1<main 69, restore main<0 119");
    rig_close(&r);
    heard_clear(&a1);
    heard_clear(&b);
    heard_clear(&a2);
    free(p);
    free(q);
    free(turn);
}

Test(sched_solo, the_own_conversation_is_neither_parked_nor_moved)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[2];
    size_t n;
    heard_init(&h[0]);
    heard_init(&h[1]);
    int32_t *p = prompt_of(4, 80);
    struct sched_job job = job_of(p, 80, 20, &h[0]);
    run_job(&r, &job);
    int32_t *turn = next_turn(p, 80, &h[0], 5, 10, &n);
    job = job_of(turn, n, 5, &h[1]);
    run_job(&r, &job);
    SAME(placements(&r, 0, text, sizeof text), "place main<- 0, continue main<main 99");
    rig_close(&r);
    heard_clear(&h[0]);
    heard_clear(&h[1]);
    free(p);
    free(turn);
}

Test(sched_solo, a_slot_is_continued_where_its_finished_turns_agree_and_loses_nothing_by_that)
{
    struct sched_options o = rig_options;
    o.turn_token = 2;
    struct rig r = rig_open(&o, 4096);
    struct heard h[3];
    int32_t *p = prompt_of(40, 120);
    p[0] = p[60] = o.turn_token; /* from 60 on the last turn: the answer to it is not sent back whole */
    for (int i = 0; i < 3; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(p, 120, 1, &h[i]); /* one token: never on main */
        if (i == 1)
            p[100] = p[100] == 5 ? 6 : 5;
        else if (i == 2)
            p[40] = p[40] == 5 ? 6 : 5;
        run_job(&r, &job);
    }
    SAME(placements(&r, 0, text, sizeof text), "place 0<- 0, continue 0<0 100, place 1<0 40");
    rig_close(&r);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched_solo, a_request_for_one_token_leaves_main_alone)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[2];
    heard_init(&h[0]);
    heard_init(&h[1]);
    int32_t *p = prompt_of(6, 80), *q = prompt_of(7, 30);
    struct sched_job job = job_of(p, 80, 20, &h[0]);
    run_job(&r, &job);
    job = job_of(q, 30, 1, &h[1]);
    run_job(&r, &job);
    SAME(placements(&r, 0, text, sizeof text), "place main<- 0, place 0<- 0");
    rig_close(&r);
    heard_clear(&h[0]);
    heard_clear(&h[1]);
    free(p);
    free(q);
}

/* Greedy or sampled, with all that looks back. */
static void make_choosy(struct sched_job *job, int kind)
{
    job->sampling.n_top_logprobs = kind % 2 ? 3 : 0;
    if (kind >= 1) {
        job->sampling.temperature = 0.8f;
        job->sampling.seed = 99;
    }
    if (kind >= 2) {
        job->sampling.repeat_penalty = 1.1f;
        job->sampling.presence_penalty = 0.1f;
    }
}

/* A prompt that repeats itself makes for drafts. */
static int32_t *repeating(uint32_t seed)
{
    int32_t *p = prompt_of(seed, 60);
    for (int i = 20; i < 60; i++)
        p[i] = p[i % 10];
    return p;
}

Test(sched_solo, drafts_change_the_speed_and_not_a_word)
{
    uint32_t right = 0;
    for (int kind = 0; kind < 4; kind++) {
        struct rig r = rig_open(&rig_options, 4096);
        struct heard alone, beside, other;
        heard_init(&alone);
        heard_init(&beside);
        heard_init(&other);
        int32_t *p = repeating(8), *q = prompt_of(9, 10);
        struct sched_job job = job_of(p, 60, 200, &alone);
        make_choosy(&job, kind);
        run_job(&r, &job);
        struct sched_job stream = job_of(q, 10, 400, &other);
        rig_until_text(&r, &stream);
        rig_open_gate();
        job.arg = &beside;
        job.cache_prompt = false;
        job.id_slot = 5; /* never on main */
        run_job(&r, &job);
        expect_same(&alone, &beside, "with drafts and without");
        cr_expect_eq(alone.timings.generated, 200);
        cr_expect_eq(beside.timings.drafted, 0);
        cr_expect_leq(alone.timings.accepted, alone.timings.drafted);
        right += alone.timings.accepted;
        struct sched_status *st = sched_status_get(r.s);
        cr_expect_geq(st->drafted_tokens, alone.timings.drafted);
        free(st);
        sched_cancel(r.s, other.job);
        heard_wait(&other, HEARD_DONE);
        rig_close(&r);
        heard_clear(&alone);
        heard_clear(&beside);
        heard_clear(&other);
        free(p);
        free(q);
    }
    cr_expect_gt(right, 0, "no draft was ever right: nothing was tested");
}

Test(sched_solo, a_stop_string_and_a_limit_end_a_draft_where_they_would_end_it_anyway)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard whole, cut, next;
    heard_init(&whole);
    int32_t *p = repeating(8);
    struct sched_job job = job_of(p, 60, 120, &whole);
    run_job(&r, &job);
    for (uint32_t limit = 1; limit <= 40; limit++) {
        heard_init(&cut);
        heard_init(&next);
        job = job_of(p, 60, limit, &cut);
        run_job(&r, &job);
        cr_assert_eq(cut.n_tokens, limit);
        /* With the prompt's last token as many are guessed as there may be beside the one that is sure. */
        if (limit <= 2)
            cr_expect_eq(cut.timings.drafted, limit - 1);
        cr_assert_arr_eq(cut.tokens, whole.tokens, limit * sizeof(int32_t));
        /* And what it left is what it says it is. */
        job = job_of(p, 60, 60, &next);
        run_job(&r, &job);
        cr_assert_eq(next.n_tokens, 60);
        cr_assert_arr_eq(next.tokens, whole.tokens, 60 * sizeof(int32_t));
        heard_clear(&cut);
        heard_clear(&next);
    }
    rig_close(&r);
    heard_clear(&whole);
    free(p);
}

Test(sched_solo, a_draft_is_no_longer_than_a_window)
{
    struct sched_options o = rig_options;
    struct heard wanted, h;
    int32_t *p = repeating(8);
    struct sched_job job = job_of(p, 60, 120, NULL);
    cold_run(&job, &wanted);
    cr_assert_gt(wanted.timings.accepted, 0);
    o.rows = 1;
    o.chunk_tokens = 3;
    struct rig r = rig_open(&o, 4096);
    heard_init(&h);
    job.arg = &h;
    run_job(&r, &job);
    cr_expect_eq(h.stop, SCHED_STOP_LENGTH, "%s", h.error);
    cr_expect_gt(h.timings.accepted, 0);
    expect_same(&wanted, &h, "in windows of three tokens");
    rig_close(&r);
    heard_clear(&wanted);
    heard_clear(&h);
    free(p);
}

Test(sched_solo, what_one_requests_drafts_taught_says_nothing_of_the_next)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard wanted, h[2];
    int32_t *p = repeating(8), *q = repeating(11);
    struct sched_job job = job_of(p, 60, 120, NULL);
    cold_run(&job, &wanted);
    for (int i = 0; i < 2; i++) {
        heard_init(&h[i]);
        job = job_of(i ? p : q, 60, 120, &h[i]);
        job.sampling.temperature = i ? 0 : 0.8f;
        run_job(&r, &job);
    }
    cr_assert_gt(h[0].timings.drafted, h[0].timings.accepted, "its guesses were right");
    cr_expect_eq(h[1].timings.drafted, wanted.timings.drafted);
    cr_expect_eq(h[1].timings.accepted, wanted.timings.accepted);
    rig_close(&r);
    heard_clear(&wanted);
    heard_clear(&h[0]);
    heard_clear(&h[1]);
    free(p);
    free(q);
}

static struct {
    struct sched *s;
    uint32_t prompt;
} early;

static void end_before_the_block_is_full(void *arg, const struct sched_event *ev)
{
    struct heard *h = arg;
    if (ev->kind == SCHED_EV_TEXT && early.prompt + ev->timings.generated >= 255)
        sched_cancel(early.s, h->job);
    heard_event(arg, ev);
}

/* Four blocks of eight are kept, and the answer is to fill the other four, whatever is guessed at their end.
 */
Test(sched_solo, a_guess_is_not_worth_somebodys_history)
{
    uint32_t right = 0;
    for (uint32_t n = 50; n < 60; n++) {
        struct rig r = rig_open(&rig_options, 512);
        struct heard kept, h;
        int32_t *p = repeating(8), *q = prompt_of(12, 256);
        heard_init(&kept);
        heard_init(&h);
        struct sched_job job = job_of(q, 256, 1, &kept);
        job.id_slot = 2;
        run_job(&r, &job);
        early.s = r.s;
        early.prompt = n;
        job = job_of(p, n, 400, &h);
        job.on_event = end_before_the_block_is_full;
        run_job(&r, &job);
        cr_expect_eq(h.stop, SCHED_STOP_CANCELLED);
        SAME(placements(&r, 0, text, sizeof text), "place 2<- 0, place main<- 0");
        right += h.timings.accepted;
        rig_close(&r);
        heard_clear(&kept);
        heard_clear(&h);
        free(p);
        free(q);
    }
    cr_expect_gt(right, 200, "%u guesses were right", right);
}

Test(sched_solo, somebody_else_promotes_the_one_on_main_and_nothing_is_read_again)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard first, a, b, wanted_a, wanted_b;
    size_t n;
    heard_init(&first);
    heard_init(&a);
    heard_init(&b);
    int32_t *p = prompt_of(10, 100), *q = prompt_of(11, 40);
    struct sched_job job = job_of(p, 100, 20, &first);
    run_job(&r, &job);
    int32_t *turn = next_turn(p, 100, &first, 12, 200, &n); /* several chunks */
    struct sched_job job_a = job_of(turn, n, 100, &a), job_b = job_of(q, 40, 20, &b);
    uint64_t events = last_placement(&r);
    atomic_store(&rig_n_computed, 0);
    rig_shut();
    cr_assert_eq(submit(&r, &job_a), 0);
    rig_pass(1); /* a chunk of the prompt is read */
    rig_await_window();
    cr_assert_eq(submit(&r, &job_b), 0);
    rig_open_gate();
    heard_wait(&a, HEARD_DONE);
    heard_wait(&b, HEARD_DONE);
    cr_expect_eq(a.at_start.cached, 119);
    cr_expect_eq(a.timings.cached, 119, "what the first leg reused is reported");
    cr_expect_eq(a.timings.prompt, n - 119);
    cr_expect_eq(a.started, 1);
    size_t needed = (n - 119) + 99 + 40 + 19; /* prompts, and every generated token but the last */
    cr_expect_eq(atomic_load(&rig_n_computed),
                 needed + a.timings.drafted - a.timings.accepted + b.timings.drafted - b.timings.accepted);
    placements(&r, events, text, sizeof text);
    cr_expect_eq(strncmp(text, "continue main<main 119, promote 0<main ", 39), 0, "%s", text);
    cr_expect(strstr(text, ", place 1<- 0"), "%s", text);
    cold_run(&job_a, &wanted_a);
    cold_run(&job_b, &wanted_b);
    expect_same(&wanted_a, &a, "promoted while its prompt was read");
    expect_same(&wanted_b, &b, "beside it");
    rig_close(&r);
    heard_clear(&first);
    heard_clear(&a);
    heard_clear(&b);
    heard_clear(&wanted_a);
    heard_clear(&wanted_b);
    free(p);
    free(q);
    free(turn);
}

Test(sched_solo, one_left_alone_goes_back_to_main_but_not_for_ever)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard a, other[3], wanted;
    heard_init(&a);
    int32_t *p = prompt_of(13, 30), *q = prompt_of(14, 10);
    struct sched_job job_a = job_of(p, 30, 300, &a);
    rig_shut();
    cr_assert_eq(submit(&r, &job_a), 0);
    rig_pass(3);
    for (int i = 0; i < 3; i++) {
        heard_init(&other[i]);
        struct sched_job job = job_of(q, 10, 2, &other[i]);
        rig_await_window();
        cr_assert_eq(submit(&r, &job), 0);
        rig_pass(5);
        heard_wait(&other[i], HEARD_DONE);
    }
    rig_open_gate();
    heard_wait(&a, HEARD_DONE);
    placements(&r, 0, text, sizeof text);
    int promotions = 0, returns = 0;
    for (const char *at = text; (at = strstr(at, "promote ")); at++)
        promotions++;
    for (const char *at = text; (at = strstr(at, "back_to_solo main<")); at++)
        returns++;
    cr_expect_eq(promotions, 3, "%s", text);
    cr_expect_eq(returns, 2, "%s", text);
    cold_run(&job_a, &wanted);
    expect_same(&wanted, &a, "back and forth");
    rig_close(&r);
    for (int i = 0; i < 3; i++)
        heard_clear(&other[i]);
    heard_clear(&a);
    heard_clear(&wanted);
    free(p);
    free(q);
}

Test(sched_solo, the_way_back_to_main_is_worth_32_tokens)
{
    for (uint32_t to_go = 31; to_go <= 32; to_go++) {
        struct rig r = rig_open(&rig_options, 4096);
        struct heard a, b;
        heard_init(&a);
        heard_init(&b);
        int32_t *p = prompt_of(44, 10), *q = prompt_of(45, 10);
        struct sched_job job = job_of(q, 10, 2, &b);
        rig_shut();
        cr_assert_eq(submit(&r, &job), 0);
        rig_await_window();
        job = job_of(p, 10, to_go + 1, &a); /* one is chosen in the window after which b leaves */
        cr_assert_eq(submit(&r, &job), 0);
        rig_open_gate();
        heard_wait(&a, HEARD_DONE);
        heard_wait(&b, HEARD_DONE);
        placements(&r, 0, text, sizeof text);
        cr_expect_eq(strstr(text, "back_to_solo") != NULL, to_go == 32, "%u to go: %s", to_go, text);
        rig_close(&r);
        heard_clear(&a);
        heard_clear(&b);
        free(p);
        free(q);
    }
}

Test(sched_solo, a_promotion_leaves_the_slot_that_the_newcomer_asked_for)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard a, b;
    heard_init(&a);
    heard_init(&b);
    int32_t *p = prompt_of(42, 30), *q = prompt_of(43, 30);
    struct sched_job job = job_of(p, 30, 100, &a);
    rig_until_text(&r, &job);
    job = job_of(q, 30, 2, &b);
    job.id_slot = 0; /* where the other one would go */
    cr_assert_eq(submit(&r, &job), 0);
    rig_open_gate();
    heard_wait(&b, HEARD_DONE);
    heard_wait(&a, HEARD_DONE);
    cr_expect_eq(b.slot, 0);
    cr_expect(strstr(placements(&r, 0, text, sizeof text), "promote 1<main"), "%s", text);
    rig_close(&r);
    heard_clear(&a);
    heard_clear(&b);
    free(p);
    free(q);
}

Test(sched_solo, going_back_to_main_costs_no_conversation)
{
    struct sched_options o = rig_options;
    o.slots = 2;
    o.rows = 2;
    struct rig r = rig_open(&o, 4096);
    struct heard x[2], a, b, again[2];
    int32_t *p[2] = { prompt_of(15, 50), prompt_of(16, 50) }, *q = prompt_of(17, 40), *z = prompt_of(18, 30);
    for (int i = 0; i < 2; i++) {
        heard_init(&x[i]);
        struct sched_job job = job_of(p[i], 50, 5, &x[i]);
        run_job(&r, &job); /* the first is parked in slot 0, the second stays on main */
    }
    heard_init(&a);
    heard_init(&b);
    struct sched_job job_a = job_of(q, 40, 100, &a), job_b = job_of(z, 30, 3, &b);
    rig_shut();
    job_b.id_slot = 1;
    job_a.id_slot = -1;
    cr_assert_eq(submit(&r, &job_b), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &job_a), 0);
    rig_open_gate();
    heard_wait(&a, HEARD_DONE);
    heard_wait(&b, HEARD_DONE);
    cr_expect_eq(a.last_slot, SCHED_MAIN, "%s", placements(&r, 0, text, sizeof text));
    /* Slot 0 went to a, which had no other place; what main held is still there. */
    heard_init(&again[1]);
    struct sched_job job = job_of(p[1], 50, 5, &again[1]);
    run_job(&r, &job);
    cr_expect_eq(again[1].at_start.cached, 49, "%s", placements(&r, 0, text, sizeof text));
    rig_close(&r);
    for (int i = 0; i < 2; i++) {
        heard_clear(&x[i]);
        free(p[i]);
    }
    heard_clear(&again[1]);
    heard_clear(&a);
    heard_clear(&b);
    free(q);
    free(z);
}

Test(sched_solo, a_prefix_is_taken_from_whatever_holds_it_busy_or_idle_to_the_token)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard first, second, wanted;
    heard_init(&first);
    heard_init(&second);
    int32_t *p = prompt_of(19, 200), *q = prompt_of(20, 150);
    memcpy(q, p, 131 * sizeof *p); /* in the middle of a block */
    q[131] = p[131] == 5 ? 6 : 5;
    struct sched_job job = job_of(p, 200, 400, &first);
    rig_hold(&r, &job);
    struct sched_job job_b = job_of(q, 150, 30, &second);
    run_job(&r, &job_b);
    cr_expect_eq(first.done, 0, "the source is still running");
    cr_expect_eq(second.at_start.cached, 131);
    sched_cancel(r.s, first.job);
    heard_wait(&first, HEARD_DONE);
    cold_run(&job_b, &wanted);
    expect_same(&wanted, &second, "from a busy history");
    rig_close(&r);
    heard_clear(&first);
    heard_clear(&second);
    heard_clear(&wanted);
    free(p);
    free(q);
}

Test(sched_solo, one_prompt_asked_for_twice_at_once_is_read_once)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[3];
    int32_t *p = prompt_of(21, 300);
    atomic_store(&rig_n_computed, 0);
    rig_shut();
    for (int i = 0; i < 3; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(p, 300, 10, &h[i]);
        job.sampling.temperature = 1;
        job.sampling.seed = (uint64_t)i;
        cr_assert_eq(submit(&r, &job), 0);
        if (i == 0)
            rig_await_window();
    }
    rig_open_gate();
    for (int i = 0; i < 3; i++)
        heard_wait(&h[i], HEARD_DONE);
    cr_expect_eq(h[1].at_start.cached, 299);
    cr_expect_eq(h[2].at_start.cached, 299);
    cr_expect_leq(atomic_load(&rig_n_computed),
                  300 + 2 + 3 * 9 + h[0].timings.drafted + h[1].timings.drafted + h[2].timings.drafted);
    rig_close(&r);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched_solo, without_cache_prompt_nothing_is_taken_but_something_is_left)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[3];
    int32_t *p = prompt_of(22, 90);
    for (int i = 0; i < 3; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(p, 90, 5, &h[i]);
        job.cache_prompt = i != 1;
        run_job(&r, &job);
        cr_expect_eq(h[i].at_start.cached, i == 2 ? 89 : 0);
        expect_same(&h[0], &h[i], "cached or not");
    }
    rig_close(&r);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched_solo, different_salts_share_nothing)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[4];
    int32_t *p = prompt_of(23, 90);
    const uint64_t salts[] = { 7, 8, 7, 8 };
    for (int i = 0; i < 4; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(p, 90, 5, &h[i]);
        job.salt = salts[i];
        run_job(&r, &job);
        cr_expect_eq(h[i].at_start.cached, i < 2 ? 0 : 89);
        expect_same(&h[0], &h[i], "salted");
    }
    rig_close(&r);
    for (int i = 0; i < 4; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched_solo, a_slot_that_is_asked_for_is_had_when_idle_and_of_the_same_salt)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[4];
    int32_t *p = prompt_of(24, 40);
    for (int i = 0; i < 4; i++)
        heard_init(&h[i]);
    struct sched_job job = job_of(p, 40, 400, &h[0]);
    job.id_slot = 6;
    rig_hold(&r, &job);
    cr_expect_eq(h[0].slot, 6);
    job = job_of(p, 40, 3, &h[1]);
    job.id_slot = 6;
    run_job(&r, &job);
    cr_expect_neq(h[1].slot, 6, "busy");
    cr_expect_eq(h[1].at_start.cached, 39);
    sched_cancel(r.s, h[0].job);
    heard_wait(&h[0], HEARD_DONE);
    job = job_of(p, 40, 3, &h[2]);
    job.id_slot = 6;
    job.salt = 1;
    run_job(&r, &job);
    cr_expect_neq(h[2].slot, 6, "somebody else's");
    job = job_of(p, 40, 3, &h[3]);
    job.id_slot = 6;
    run_job(&r, &job);
    cr_expect_eq(h[3].slot, 6);
    rig_close(&r);
    for (int i = 0; i < 4; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched_solo, the_last_96_placements_are_told)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct sched_placement e[SCHED_PLACEMENTS];
    int32_t *p = prompt_of(25, 5);
    for (int i = 0; i < 100; i++) {
        struct heard h;
        heard_init(&h);
        struct sched_job job = job_of(p, 5, 2, &h);
        job.client_key = 11;
        run_job(&r, &job);
        heard_clear(&h);
    }
    size_t n = sched_placements_get(r.s, 0, e);
    cr_expect_eq(n, 96);
    for (size_t i = 0; i < n; i++)
        cr_expect(e[i].id == e[0].id + i && e[i].client_key == 11 && e[i].time_ns >= e[0].time_ns);
    uint64_t last = e[n - 1].id;
    cr_expect_eq(sched_placements_get(r.s, last, e), 0);
    cr_expect_eq(sched_placements_get(r.s, last - 2, e), 2);
    cr_expect_eq(e[1].id, last);
    rig_close(&r);
    free(p);
}

Test(sched_solo, one_of_several_answers_runs_in_a_slot)
{
    struct rig r = rig_open(&rig_options, 2048);
    int32_t *prompt = prompt_of(77, 100);
    struct heard h[2];
    for (uint32_t i = 0; i < 2; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(prompt, 100, 60, &h[i]);
        job.samples = 2;
        job.sampling.temperature = 1;
        job.sampling.seed = i;
        uint64_t before = last_placement(&r);
        run_job(&r, &job);
        placements(&r, before, text, sizeof text);
        cr_expect(!strstr(text, "main"), "%s", text);
        cr_expect_eq(h[i].timings.cached, i ? 99 : 0);
    }
    heard_clear(&h[0]);
    heard_clear(&h[1]);
    rig_close(&r);
    free(prompt);
}
