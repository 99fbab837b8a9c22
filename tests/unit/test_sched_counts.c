/* What the scheduler counts beside its totals: times, reasons of misses, what is remembered of placements. */
#include "sched_rig.h"

#include "sched/placed.h"
#include <math.h>

static uint64_t seen(const struct sched_times *t)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= SCHED_TIME_EDGES; i++)
        n += t->bins[i];
    return n;
}

static struct sched_tally tally_of(struct rig *r)
{
    struct sched_status *st = sched_status_get(r->s);
    cr_assert(st);
    struct sched_tally t = st->tally;
    free(st);
    return t;
}

/* Runs a job of n tokens made from `seed` to its end. */
static void run_named(struct rig *r, uint32_t seed, size_t n, uint32_t max_new, const char *id,
                      struct heard *h)
{
    int32_t *tokens = prompt_of(seed, n);
    struct sched_job job = job_of(tokens, n, max_new, h);
    job.request_id = id;
    run_job(r, &job);
    free(tokens);
}

Test(sched_counts, every_token_but_the_first_has_a_time_since_the_one_before)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    heard_init(&h);
    run_named(&r, 1, 100, 9, "a", &h);
    struct sched_tally t = tally_of(&r);
    cr_expect_eq(seen(&t.queued), 1);
    cr_expect_eq(seen(&t.first_token), 1);
    cr_expect_eq(seen(&t.between), 8);
    cr_expect_eq(seen(&t.whole), 1);
    cr_expect_eq(t.cut_off, 1);
    cr_expect_eq(t.stopped, 0);
    cr_expect_eq(t.read_tokens, 100);
    /* What is told of the job is what is counted: the parts of its time add up to the whole. */
    uint64_t parts = t.first_token.total_ns + t.between.total_ns;
    cr_expect(parts <= t.whole.total_ns && t.whole.total_ns - parts < 1000000 + t.whole.total_ns / 10,
              "%lu and %lu", parts, t.whole.total_ns);
    cr_expect_leq(t.queued.total_ns, t.first_token.total_ns);
    heard_clear(&h);
    rig_close(&r);
}

Test(sched_counts, times_fall_into_the_bin_whose_upper_edge_they_do_not_pass)
{
    struct heard h[2];
    struct sched_options o = rig_options;
    o.slots = o.rows = 1;
    o.now_ns = rig_now_ns;
    struct rig r = rig_open(&o, 4096);
    for (int i = 0; i < 2; i++)
        heard_init(&h[i]);
    int32_t *one = prompt_of(1, 60), *two = prompt_of(2, 60);
    struct sched_job first = job_of(one, 60, 20, &h[0]), second = job_of(two, 60, 1, &h[1]);
    rig_shut();
    cr_assert_eq(submit(&r, &first), 0);
    rig_await_window();
    cr_assert_eq(submit(&r, &second), 0);
    atomic_fetch_add(&rig_ahead_ns, 30000000000u); /* it waits 30 s */
    rig_open_gate();
    heard_wait(&h[0], HEARD_DONE);
    heard_wait(&h[1], HEARD_DONE);
    struct sched_tally t = tally_of(&r);
    uint32_t bin = 0;
    while (sched_time_edges_s[bin] < 30)
        bin++;
    cr_expect_eq(t.queued.bins[bin], 1, "30 s lie above 20 and below 40");
    cr_expect_eq(t.whole.bins[bin], 2);
    free(one);
    free(two);
    for (int i = 0; i < 2; i++)
        heard_clear(&h[i]);
    rig_close(&r);
}

Test(sched_counts, a_prompt_that_may_not_use_what_is_kept_misses_nothing)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    heard_init(&h);
    int32_t *tokens = prompt_of(1, 80);
    struct sched_job job = job_of(tokens, 80, 1, &h);
    job.cache_prompt = false;
    run_job(&r, &job);
    struct sched_tally t = tally_of(&r);
    for (uint32_t i = 0; i < SCHED_MISSES; i++)
        cr_expect_eq(t.misses.prompts[i], 0, "%s", sched_miss_name(i));
    free(tokens);
    heard_clear(&h);
    rig_close(&r);
}

static struct sched_placed *placed_of(struct rig *r, const char *id, size_t expected)
{
    struct sched_placed *found[SCHED_PLACED_FOUND];
    size_t n = sched_placed_get(r->s, id, found);
    cr_assert_eq(n, expected, "%zu of \"%s\"", n, id);
    for (size_t i = 1; i < n; i++)
        sched_placed_free(found[i]);
    return n ? found[0] : NULL;
}

Test(sched_counts, a_request_is_found_by_its_id_and_by_its_job)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[3];
    char number[24];
    for (int i = 0; i < 3; i++) {
        heard_init(&h[i]);
        run_named(&r, 1 + (uint32_t)i % 2, 90, 2, i == 1 ? "other" : "mine", &h[i]);
    }
    struct sched_placed *p = placed_of(&r, "mine", 2);
    cr_expect_eq(p->job, h[2].job, "the newest first");
    cr_expect_eq(p->cached, 89, "it asked the same again");
    cr_expect_eq(p->prompt_tokens, 90);
    sched_placed_free(p);
    snprintf(number, sizeof number, "%lu", h[1].job);
    p = placed_of(&r, number, 1);
    cr_expect_str_eq(p->request_id, "other");
    cr_expect_str_eq(sched_miss_name(p->miss), "first_turn");
    cr_expect_eq(p->miss_tokens, 90);
    cr_assert_eq(p->n_choices, 2, "main was parked for it, then it began there");
    const struct sched_choice *c = p->choices[0];
    cr_expect_eq(c->kind, SCHED_PARK);
    cr_expect_str_eq(c->policy, "builtin");
    cr_expect_eq(c->source, SCHED_MAIN);
    cr_assert_eq(c->n_rows, rig_options.slots + 1);
    cr_expect_eq(c->row[rig_options.slots].tokens, 91, "main held the prompt and an answer");
    cr_expect_eq(c->row[0].tokens, 0, "as it was before");
    c = p->choices[1];
    cr_expect(c->kind == SCHED_PLACE && c->slot == SCHED_MAIN && !*c->policy && isnan(c->loss));
    cr_expect(strstr(c->sentence, "main"), "%s", c->sentence);
    cr_expect_eq(c->row[0].tokens, 91, "parked by then");
    sched_placed_free(p);
    placed_of(&r, "none", 0);
    placed_of(&r, "", 0);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
    rig_close(&r);
}

Test(sched_counts, the_last_500_requests_are_remembered)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    for (uint32_t i = 0; i <= SCHED_PLACED; i++) {
        char id[16];
        heard_init(&h);
        snprintf(id, sizeof id, "r%u", i);
        run_named(&r, i % 3, 8, 1, id, &h);
        heard_clear(&h);
    }
    placed_of(&r, "r0", 0);
    sched_placed_free(placed_of(&r, "r1", 1));
    sched_placed_free(placed_of(&r, "r500", 1));
    rig_close(&r);
}

static void count_event(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

Test(sched_counts, who_watches_hears_of_every_event_until_he_stops)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    atomic_uint heard = 0;
    sched_placements_watch(r.s, count_event, &heard);
    heard_init(&h);
    run_named(&r, 1, 40, 1, NULL, &h);
    heard_clear(&h);
    cr_expect_eq(atomic_load(&heard), last_placement(&r));
    sched_placements_watch(r.s, NULL, NULL);
    heard_init(&h);
    run_named(&r, 2, 40, 1, NULL, &h);
    heard_clear(&h);
    cr_expect_lt(atomic_load(&heard), last_placement(&r));
    rig_close(&r);
}
