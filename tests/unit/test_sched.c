/* The scheduler over a real engine and a small model: what jobs hear, what they share, how they end. */
#include "sched_rig.h"

Test(sched, events_come_in_order_and_the_last_one_once)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    heard_init(&h);
    int32_t *p = prompt_of(1, 150);
    struct sched_job job = job_of(p, 150, 20, &h);
    run_job(&r, &job);
    cr_expect_eq(h.started, 1);
    cr_expect_eq(h.done, 1);
    cr_expect_geq(h.progress, 4, "150 tokens in chunks of 48");
    cr_expect_not(h.order_broken);
    cr_expect_eq(h.stop, SCHED_STOP_LENGTH);
    cr_expect_eq(h.timings.prompt, 150);
    cr_expect_eq(h.timings.cached, 0);
    cr_expect_eq(h.timings.generated, 20);
    cr_expect_eq(h.n_tokens, 20);
    rig_close(&r);
    cr_expect_eq(h.done, 1, "stopping adds nothing");
    heard_clear(&h);
    free(p);
}

/* The oracle: one session, one token at a time, the highest logit. */
static void plain_loop(struct rig *r, const int32_t *prompt, size_t n_prompt, size_t n, int32_t *out)
{
    struct engine *e;
    struct session *s;
    char err[256];
    struct engine_options eo = {
        .isa = "auto", .threads = 1, .kv_tokens = 1024, .max_rows = 1, .max_tokens = 1
    };
    cr_assert_eq(engine_open(r->f, r->m, &eo, NULL, NULL, &e, err, sizeof err), 0, "%s", err);
    cr_assert_eq(session_new(e, &s), 0);
    for (size_t i = 0; i < n_prompt + n; i++) {
        int32_t token = i < n_prompt ? prompt[i] : out[i - n_prompt];
        struct engine_row row = { .session = s, .tokens = &token, .n = 1, .n_logits = 1 };
        cr_assert_eq(engine_window(e, &row, 1, err, sizeof err), 0, "%s", err);
        if (i + 1 < n_prompt || i + 1 == n_prompt + n)
            continue;
        int32_t best = -1;
        for (int32_t k = 0; k < (int32_t)r->m->n_vocab; k++)
            if (!tokenizer_is_eog(r->t, k) && (best < 0 || row.logits[k] > row.logits[best]))
                best = k;
        out[i + 1 - n_prompt] = best;
    }
    session_free(s);
    engine_close(e);
}

Test(sched, greedy_tokens_are_those_of_a_plain_loop)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    int32_t wanted[40];
    heard_init(&h);
    int32_t *p = prompt_of(2, 101);
    plain_loop(&r, p, 101, 40, wanted);
    struct sched_job job = job_of(p, 101, 40, &h);
    run_job(&r, &job);
    cr_assert_eq(h.n_tokens, 40);
    cr_expect_arr_eq(h.tokens, wanted, sizeof wanted);
    rig_close(&r);
    heard_clear(&h);
    free(p);
}

Test(sched, a_seed_gives_the_same_text_alone_and_beside_others)
{
    enum { N = 7 };
    struct rig r = rig_open(&rig_options, 4096);
    struct heard alone, again, others[N];
    int32_t *p = prompt_of(3, 90), *q[N];
    heard_init(&alone);
    heard_init(&again);
    struct sched_job job = job_of(p, 90, 60, &alone);
    job.sampling.temperature = 1;
    job.sampling.seed = 77;
    job.cache_prompt = false;
    run_job(&r, &job);
    for (uint32_t i = 0; i < N; i++) {
        heard_init(&others[i]);
        q[i] = prompt_of(100 + i, 30 + 20 * i);
        struct sched_job other = job_of(q[i], 30 + 20 * i, 50, &others[i]);
        other.sampling.temperature = 1;
        other.sampling.seed = i;
        cr_assert_eq(submit(&r, &other), 0);
        if (i == 2) {
            job.arg = &again;
            cr_assert_eq(submit(&r, &job), 0);
        }
    }
    for (uint32_t i = 0; i < N; i++)
        heard_wait(&others[i], HEARD_DONE);
    heard_wait(&again, HEARD_DONE);
    expect_same(&alone, &again, "alone and beside seven");
    expect_balance(&r);
    rig_close(&r);
    for (uint32_t i = 0; i < N; i++) {
        heard_clear(&others[i]);
        free(q[i]);
    }
    heard_clear(&alone);
    heard_clear(&again);
    free(p);
}

Test(sched, a_second_turn_reads_only_what_is_new_and_says_the_same)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard first, second, cold;
    int32_t turn[200];
    int32_t *p = prompt_of(4, 100), *more = prompt_of(5, 20);
    heard_init(&first);
    heard_init(&second);
    heard_init(&cold);
    struct sched_job job = job_of(p, 100, 30, &first);
    run_job(&r, &job);
    memcpy(turn, p, 100 * sizeof *p);
    memcpy(turn + 100, first.tokens, 30 * sizeof *p);
    memcpy(turn + 130, more, 20 * sizeof *p);
    job = job_of(turn, 150, 30, &second);
    run_job(&r, &job);
    cr_expect_eq(second.at_start.cached, 129, "all but the last generated token, which was never read");
    cr_expect_eq(second.timings.prompt, 21);
    cr_expect_eq(second.slot, first.slot);
    job = job_of(turn, 150, 30, &cold);
    job.cache_prompt = false;
    run_job(&r, &job);
    cr_expect_eq(cold.at_start.cached, 0);
    expect_same(&second, &cold, "continued and cold");
    rig_close(&r);
    heard_clear(&first);
    heard_clear(&second);
    heard_clear(&cold);
    free(p);
    free(more);
}

Test(sched, two_conversations_with_one_beginning_do_not_overwrite_each_other)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[4];
    int32_t a[220], b[220];
    int32_t *common = prompt_of(6, 100), *x = prompt_of(7, 100), *y = prompt_of(8, 100);
    memcpy(a, common, 100 * sizeof *a);
    memcpy(b, common, 100 * sizeof *b);
    memcpy(a + 100, x, 100 * sizeof *a);
    memcpy(b + 100, y, 100 * sizeof *b);
    for (int i = 0; i < 4; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(i % 2 ? b : a, 200, 5, &h[i]);
        run_job(&r, &job);
    }
    cr_expect_eq(h[1].at_start.cached, 100, "the common beginning is shared");
    cr_expect_eq(h[2].at_start.cached, 199, "the first conversation is whole");
    cr_expect_eq(h[3].at_start.cached, 199, "so is the second");
    expect_same(&h[0], &h[2], "first conversation");
    expect_same(&h[1], &h[3], "second conversation");
    rig_close(&r);
    for (int i = 0; i < 4; i++)
        heard_clear(&h[i]);
    free(common);
    free(x);
    free(y);
}

Test(sched, a_job_can_be_cancelled_while_it_waits_reads_and_decodes)
{
    struct sched_options o = rig_options;
    o.rows = 1;
    struct rig r = rig_open(&o, 4096);
    struct heard decoding, waiting, reading, after;
    heard_init(&decoding);
    heard_init(&waiting);
    heard_init(&reading);
    heard_init(&after);
    int32_t *p = prompt_of(9, 400);
    struct sched_job job = job_of(p, 10, 0, &decoding);
    rig_until_text(&r, &job);
    job = job_of(p, 400, 0, &waiting);
    cr_assert_eq(submit(&r, &job), 0);
    sched_cancel(r.s, waiting.job);
    rig_pass(1);
    heard_wait(&waiting, HEARD_DONE);
    cr_expect_eq(waiting.stop, SCHED_STOP_CANCELLED);
    cr_expect_eq(waiting.started, 0);
    rig_await_window();
    cr_expect_eq(decoding.done, 0, "cancelling one never touches another");
    sched_cancel(r.s, decoding.job);
    sched_cancel(r.s, decoding.job);
    rig_open_gate();
    heard_wait(&decoding, HEARD_DONE);
    cr_expect_eq(decoding.stop, SCHED_STOP_CANCELLED);
    job = job_of(p, 400, 0, &reading);
    rig_shut();
    cr_assert_eq(submit(&r, &job), 0);
    rig_await_window();
    cr_expect_eq(reading.started, 1);
    sched_cancel(r.s, reading.job);
    rig_open_gate();
    heard_wait(&reading, HEARD_DONE);
    cr_expect_eq(reading.progress, 1, "it ends within one window");
    cr_expect_eq(reading.stop, SCHED_STOP_CANCELLED);
    sched_cancel(r.s, 123456789);
    job = job_of(p, 10, 3, &after);
    run_job(&r, &job);
    cr_expect_eq(after.stop, SCHED_STOP_LENGTH);
    expect_balance(&r);
    rig_close(&r);
    heard_clear(&decoding);
    heard_clear(&waiting);
    heard_clear(&reading);
    heard_clear(&after);
    free(p);
}

Test(sched, a_paused_job_is_silent_while_others_go_on_and_then_says_the_same)
{
    struct sched_options o = rig_options;
    o.rows = 1;
    struct rig r = rig_open(&o, 4096);
    struct heard paused, other, third, alone;
    heard_init(&paused);
    heard_init(&other);
    heard_init(&third);
    heard_init(&alone);
    int32_t *p = prompt_of(10, 50), *q = prompt_of(11, 50);
    struct sched_job job = job_of(p, 50, 400, &paused);
    rig_hold(&r, &job);
    job = job_of(q, 50, 30, &other);
    run_job(&r, &job); /* with one row: it can only run while the first does not */
    pthread_mutex_lock(&paused.lock);
    unsigned before = paused.texts;
    cr_expect_eq(paused.done, 0);
    pthread_mutex_unlock(&paused.lock);
    job.arg = &third;
    run_job(&r, &job);
    cr_expect_eq(paused.texts, before, "nothing was generated meanwhile");
    sched_pause(r.s, paused.job, false);
    heard_wait(&paused, HEARD_DONE);
    cr_expect_eq(paused.stop, SCHED_STOP_LENGTH);
    job = job_of(p, 50, 400, &alone);
    job.cache_prompt = false;
    run_job(&r, &job);
    expect_same(&paused, &alone, "paused and not paused");
    rig_close(&r);
    heard_clear(&paused);
    heard_clear(&other);
    heard_clear(&third);
    heard_clear(&alone);
    free(p);
    free(q);
}

Test(sched, a_pool_too_small_for_all_requeues_and_changes_no_output)
{
    enum { N = 4 };
    struct rig big = rig_open(&rig_options, 8192);
    struct heard wanted[N], got[N];
    int32_t *p[N];
    for (uint32_t i = 0; i < N; i++) {
        p[i] = prompt_of(20 + i, 20);
        heard_init(&wanted[i]);
        struct sched_job job = job_of(p[i], 20, 480, &wanted[i]);
        job.cache_prompt = false;
        run_job(&big, &job);
    }
    rig_close(&big);
    /* Each needs 8 blocks in the end and 1 in the beginning; there are 10, so all get in and not all can
     * stay. */
    struct rig r = rig_open(&rig_options, 640);
    for (uint32_t i = 0; i < N; i++) {
        heard_init(&got[i]);
        struct sched_job job = job_of(p[i], 20, 480, &got[i]);
        cr_assert_eq(submit(&r, &job), 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        heard_wait(&got[i], HEARD_DONE);
        cr_expect_eq(got[i].stop, SCHED_STOP_LENGTH, "job %u: %s", i, got[i].error);
        cr_expect_eq(got[i].started, 1, "being requeued is no second start");
        expect_same(&wanted[i], &got[i], "small pool");
    }
    expect_balance(&r);
    rig_close(&r);
    for (uint32_t i = 0; i < N; i++) {
        heard_clear(&wanted[i]);
        heard_clear(&got[i]);
        free(p[i]);
    }
}

Test(sched, idle_histories_give_way_from_their_ends)
{
    struct rig r = rig_open(&rig_options, 512); /* 8 blocks */
    struct heard h[3];
    int32_t *a = prompt_of(30, 300), *b = prompt_of(31, 300);
    for (int i = 0; i < 3; i++)
        heard_init(&h[i]);
    struct sched_job job = job_of(a, 300, 1, &h[0]);
    run_job(&r, &job);
    job = job_of(b, 300, 1, &h[1]); /* needs 5 of 8 blocks, 5 are taken: two of the first go */
    run_job(&r, &job);
    job = job_of(a, 300, 1, &h[2]);
    run_job(&r, &job);
    cr_expect_eq(h[2].at_start.cached, 192, "three whole blocks of it are left");
    expect_same(&h[0], &h[2], "with a cut history");
    rig_close(&r);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
    free(a);
    free(b);
}

/* The pool is as large as a context, and all of it is held already by what the request shares. */
Test(sched, a_request_that_is_alone_fits_whatever_it_shares)
{
    for (size_t n = 449; n <= 511; n += 31) {
        struct rig r = rig_open(&rig_options, 512);
        struct heard a, b;
        int32_t *p = prompt_of(1, n);
        heard_init(&a);
        heard_init(&b);
        struct sched_job job = job_of(p, n, 1, &a);
        job.id_slot = 0;
        run_job(&r, &job);
        cr_assert_eq(a.stop, SCHED_STOP_LENGTH);
        job.arg = &b;
        job.id_slot = 1;
        run_job(&r, &job);
        cr_expect_eq(b.stop, SCHED_STOP_LENGTH, "%zu: %s", n, b.error);
        cr_expect_eq(b.slot, 1);
        cr_expect_eq(b.timings.cached, n - 1);
        expect_same(&a, &b, "with all that is shared");
        expect_balance(&r);
        rig_close(&r);
        heard_clear(&a);
        heard_clear(&b);
        free(p);
    }
}

Test(sched, the_queue_is_bounded_and_one_client_holds_at_most_half)
{
    struct sched_options o = rig_options;
    o.rows = 1;
    o.queue_max = 4;
    struct rig r = rig_open(&o, 4096);
    struct heard h[8];
    int32_t *p = prompt_of(12, 20);
    for (int i = 0; i < 8; i++)
        heard_init(&h[i]);
    struct sched_job job = job_of(p, 20, 0, &h[0]);
    rig_hold(&r, &job);
    job = job_of(p, 20, 0, &h[1]); /* a paused job uses no row: the next one starts */
    rig_until_text(&r, &job);
    for (int i = 2; i < 4; i++) {
        job = job_of(p, 20, 1, &h[i]);
        job.client_key = 5;
        cr_expect_eq(submit(&r, &job), 0);
    }
    job = job_of(p, 20, 1, &h[4]);
    job.client_key = 5;
    cr_expect_eq(submit(&r, &job), -EBUSY);
    for (int i = 5; i < 7; i++) {
        job = job_of(p, 20, 1, &h[i]);
        job.client_key = 6;
        cr_expect_eq(submit(&r, &job), 0);
    }
    job = job_of(p, 20, 1, &h[7]);
    job.client_key = 7;
    cr_expect_eq(submit(&r, &job), -EAGAIN);
    sched_cancel(r.s, h[0].job);
    sched_cancel(r.s, h[1].job);
    rig_open_gate();
    for (int i = 2; i < 7; i++)
        if (i != 4)
            heard_wait(&h[i], HEARD_DONE);
    cr_expect_eq(submit(&r, &job), 0, "there is room again");
    heard_wait(&h[7], HEARD_DONE);
    rig_close(&r);
    for (int i = 0; i < 8; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched, a_stop_string_ends_the_text_before_it)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard whole, cut;
    heard_init(&whole);
    heard_init(&cut);
    int32_t *p = prompt_of(13, 30);
    struct sched_job job = job_of(p, 30, 60, &whole);
    run_job(&r, &job);
    /* A string from the middle of what it says, long enough to lie across tokens. */
    cr_assert_gt(whole.text.len, 40);
    size_t at = whole.text.len / 2;
    while (((unsigned char)whole.text.data[at] & 0xC0) == 0x80)
        at++;
    char stop[32] = "";
    size_t len = 9;
    while (((unsigned char)whole.text.data[at + len] & 0xC0) == 0x80)
        len++;
    memcpy(stop, whole.text.data + at, len);
    const char *stops[] = { stop };
    job = job_of(p, 30, 60, &cut);
    job.stops = stops;
    job.stop_lens = &len;
    job.n_stops = 1;
    run_job(&r, &job);
    const char *first = memmem(whole.text.data, whole.text.len, stop, len);
    cr_expect_eq(cut.stop, SCHED_STOP_STRING);
    cr_expect_eq(cut.text.len, (size_t)(first - whole.text.data));
    cr_expect(!cut.text.len || memcmp(cut.text.data, whole.text.data, cut.text.len) == 0);
    rig_close(&r);
    heard_clear(&whole);
    heard_clear(&cut);
    free(p);
}

Test(sched, a_generation_ends_where_the_context_does)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    heard_init(&h);
    int32_t *p = prompt_of(14, 500);
    struct sched_job job = job_of(p, 500, 0, &h);
    run_job(&r, &job);
    cr_expect_eq(h.stop, SCHED_STOP_LENGTH);
    cr_expect_eq(h.timings.generated, 12, "500 of 512 are the prompt");
    rig_close(&r);
    heard_clear(&h);
    free(p);
}

Test(sched, the_models_own_end_is_masked_by_min_tokens_and_ignore_eos)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[3];
    int32_t *p = prompt_of(15, 30);
    struct sampler_bias bias = { .token = tokenizer_eos(r.t), .bias = 100 };
    cr_assert_geq(bias.token, 0);
    for (int i = 0; i < 3; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(p, 30, 20, &h[i]);
        job.sampling.bias = &bias;
        job.sampling.n_bias = 1;
        job.sampling.ignore_eos = i == 2;
        job.sampling.min_tokens = i == 1 ? 5 : 0;
        run_job(&r, &job);
    }
    cr_expect_eq(h[0].stop, SCHED_STOP_EOG);
    cr_expect_eq(h[0].timings.generated, 1);
    cr_expect_eq(h[0].text.len, 0, "the end has no text");
    cr_expect_eq(h[1].stop, SCHED_STOP_EOG);
    cr_expect_eq(h[1].timings.generated, 6);
    cr_expect_eq(h[1].n_tokens, 5);
    cr_expect_eq(h[2].stop, SCHED_STOP_LENGTH);
    cr_expect_eq(h[2].timings.generated, 20);
    rig_close(&r);
    for (int i = 0; i < 3; i++)
        heard_clear(&h[i]);
    free(p);
}

Test(sched, what_can_never_run_is_refused)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h;
    heard_init(&h);
    int32_t *p = prompt_of(16, 600);
    struct sched_job job = job_of(p, 0, 1, &h);
    cr_expect_eq(submit(&r, &job), -EINVAL, "no tokens");
    job = job_of(p, 512, 1, &h);
    cr_expect_eq(submit(&r, &job), -EINVAL, "no room for an answer");
    p[3] = (int32_t)r.m->n_vocab;
    job = job_of(p, 10, 1, &h);
    cr_expect_eq(submit(&r, &job), -EINVAL, "no such token");
    p[3] = -1;
    cr_expect_eq(submit(&r, &job), -EINVAL, "no such token");
    cr_expect_eq(h.done + h.started, 0);
    char err[256] = "";
    struct sched *s;
    struct sched_options o = rig_options;
    o.context = 8192;
    cr_expect_eq(sched_start(r.e, r.t, &o, &s, err, sizeof err), -EINVAL, "a pool below the context");
    rig_close(&r);
    heard_clear(&h);
    free(p);
}

Test(sched, a_failed_window_fails_its_jobs_and_nothing_else)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard failed, after;
    heard_init(&failed);
    heard_init(&after);
    int32_t *p = prompt_of(17, 40);
    struct sched_job job = job_of(p, 40, 0, &failed);
    rig_until_text(&r, &job);
    atomic_store(&rig_failures, 1);
    rig_open_gate();
    heard_wait(&failed, HEARD_DONE);
    cr_expect_eq(failed.stop, SCHED_STOP_FAILED);
    cr_expect(strstr(failed.error, "as it was told to"), "\"%s\" names the cause", failed.error);
    job = job_of(p, 40, 10, &after);
    run_job(&r, &job);
    cr_expect_eq(after.stop, SCHED_STOP_LENGTH);
    cr_expect_arr_eq(after.tokens, failed.tokens,
                     (failed.n_tokens < 10 ? failed.n_tokens : 10) * sizeof(int32_t));
    expect_balance(&r);
    rig_close(&r);
    heard_clear(&failed);
    heard_clear(&after);
    free(p);
}

Test(sched, stopping_ends_every_job)
{
    struct rig r = rig_open(&rig_options, 4096);
    struct heard h[10];
    int32_t *p = prompt_of(18, 100);
    for (int i = 0; i < 10; i++) {
        heard_init(&h[i]);
        struct sched_job job = job_of(p, 100, 0, &h[i]);
        cr_assert_eq(submit(&r, &job), 0);
    }
    heard_wait(&h[0], HEARD_STARTED);
    rig_close(&r);
    for (int i = 0; i < 10; i++) {
        cr_expect_eq(h[i].done, 1);
        cr_expect(h[i].stop == SCHED_STOP_CANCELLED || h[i].stop == SCHED_STOP_LENGTH);
        heard_clear(&h[i]);
    }
    free(p);
}

/* A few hundred jobs of all kinds, cancelled and paused at random, on a pool that is too small for them. */
Test(sched, a_random_crowd_ends_each_once_and_the_counts_add_up)
{
    enum { N = 150 };
    struct sched_options o = rig_options;
    o.queue_max = N;
    struct rig r = rig_open(&o, 1024);
    static struct heard h[N];
    static struct sched_job jobs[N];
    int32_t *p[N];
    uint64_t x = 42;
    for (uint32_t i = 0; i < N; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t dice = (uint32_t)(x >> 40);
        size_t n = 1 + dice % 300;
        heard_init(&h[i]);
        p[i] = prompt_of(dice % 7, n);
        struct sched_job job = job_of(p[i], n, 1 + dice / 300 % 60, &h[i]);
        job.sampling.temperature = 1;
        job.id_slot = dice % 5 ? -1 : (int32_t)(dice % 8);
        jobs[i] = job;
        cr_assert_eq(submit(&r, &job), 0);
        if (dice % 4 == 0)
            sched_cancel(r.s, h[i].job);
        if (dice % 3 == 0)
            sched_pause(r.s, h[i].job, true);
        if (i % 10 == 9)
            expect_balance(&r);
    }
    for (uint32_t i = 0; i < N; i++)
        sched_pause(r.s, h[i].job, false);
    for (uint32_t i = 0; i < N; i++) {
        heard_wait(&h[i], HEARD_DONE);
        cr_expect_not(h[i].order_broken);
        cr_expect_neq(h[i].stop, SCHED_STOP_FAILED, "%s", h[i].error);
    }
    expect_balance(&r);
    /* And each said what it says alone, or how that begins. */
    for (uint32_t i = 0; i < N; i++) {
        struct heard alone;
        heard_init(&alone);
        jobs[i].arg = &alone;
        jobs[i].cache_prompt = false;
        run_job(&r, &jobs[i]);
        cr_expect(h[i].n_tokens == alone.n_tokens ||
                  (h[i].stop == SCHED_STOP_CANCELLED && h[i].n_tokens < alone.n_tokens));
        cr_expect_arr_eq(h[i].tokens, alone.tokens, h[i].n_tokens * sizeof(int32_t), "job %u", i);
        cr_expect_arr_eq(h[i].logprobs, alone.logprobs, h[i].n_tokens * sizeof(float), "job %u", i);
        heard_clear(&alone);
    }
    rig_close(&r);
    for (uint32_t i = 0; i < N; i++) {
        cr_expect_eq(h[i].done, 1);
        heard_clear(&h[i]);
        free(p[i]);
    }
}

/* One who asks for the records the moment he is told something. */
struct asker {
    struct heard heard;
    struct rig *rig;
    struct sched_status *started, *done;
    struct sched_placement placed;
};

static void ask_records(void *arg, const struct sched_event *ev)
{
    struct asker *a = arg;
    struct sched_placement events[SCHED_PLACEMENTS];
    if (ev->kind == SCHED_EV_STARTED) {
        size_t n = sched_placements_get(a->rig->s, 0, events);
        a->placed = n ? events[n - 1] : (struct sched_placement){ 0 };
        a->started = sched_status_get(a->rig->s);
    } else if (ev->kind == SCHED_EV_DONE) {
        a->done = sched_status_get(a->rig->s);
    }
    heard_event(&a->heard, ev);
}

Test(sched, the_records_are_true_when_a_job_is_told)
{
    for (int32_t slot = -1; slot < 4; slot++) {
        struct rig r = rig_open(&rig_options, 4096);
        struct asker a = { .rig = &r };
        uint32_t at = slot < 0 ? rig_options.slots : (uint32_t)slot;
        heard_init(&a.heard);
        int32_t *p = prompt_of(19, 90);
        struct sched_job job = job_of(p, 90, 5, &a.heard);
        char err[64];
        job.id_slot = slot;
        job.on_event = ask_records;
        job.arg = &a;
        cr_assert_eq(sched_submit(r.s, &job, &a.heard.job, err, sizeof err), 0);
        heard_wait(&a.heard, HEARD_DONE);
        cr_expect_eq(a.placed.job, a.heard.job);
        cr_expect_eq(a.placed.slot, slot);
        cr_expect_str_eq(sched_placement_name(a.placed.kind), "place");
        cr_expect(a.started->running == 1 && a.started->waiting == 0 && a.started->prompt_tokens == 90);
        cr_expect(a.started->slot[at].busy && a.started->slot[at].job == a.heard.job);
        cr_expect(a.done->running == 0 && a.done->completed == 1 && a.done->generated_tokens == 5);
        cr_expect_eq(a.done->kv_blocks_used, 2);
        const struct sched_slot_status *h = &a.done->slot[at];
        cr_expect(!h->busy && h->tokens == 94 && h->turns == 1 && h->last_use_ns > 0);
        cr_expect_str_eq(h->stop_reason, "length");
        cr_expect_str_eq(h->state, "expired", "slot %d is %s", slot, h->state);
        rig_close(&r);
        free(a.started);
        free(a.done);
        heard_clear(&a.heard);
        free(p);
    }
}

static size_t length_when_asked;

static bool asks_tool(void *arg)
{
    struct heard *h = arg;
    length_when_asked = h->text.len; /* both are told on the scheduler's thread */
    return true;
}

Test(sched, an_answer_that_asks_for_a_tool_is_labelled_so)
{
    for (int cut = 0; cut < 2; cut++) {
        struct rig r = rig_open(&rig_options, 4096);
        struct heard whole, h;
        int32_t *p = prompt_of(23, 40);
        struct sampler_bias bias = { .token = tokenizer_eos(r.t), .bias = 100 };
        heard_init(&whole);
        heard_init(&h);
        struct sched_job job = job_of(p, 40, cut ? 6 : 20, &whole);
        job.sampling.bias = &bias;
        job.sampling.n_bias = 1;
        job.sampling.ignore_eos = false;
        job.sampling.min_tokens = 6;
        run_job(&r, &job);
        /* A stop string that the end of the answer begins: it is held back until the end is known. */
        char stop[512];
        cr_assert(whole.text.len > 2 && whole.text.len < sizeof stop - 8);
        size_t len = whole.text.len + 6;
        memcpy(stop, whole.text.data, whole.text.len);
        memcpy(stop + whole.text.len, " never", 6);
        job.stops = (const char *const[]){ stop };
        job.stop_lens = &len;
        job.n_stops = 1;
        job.arg = &h;
        job.asks_tool = asks_tool;
        job.id_slot = 1;
        length_when_asked = 0;
        run_job(&r, &job);
        struct sched_status *st = sched_status_get(r.s);
        cr_expect_eq(h.text.len, whole.text.len);
        cr_expect_eq(h.stop, cut ? SCHED_STOP_LENGTH : SCHED_STOP_EOG);
        cr_expect_eq(length_when_asked, cut ? 0 : h.text.len,
                     "asked only where the model ends, all text being out");
        cr_expect_str_eq(st->slot[1].stop_reason, cut ? "length" : "tool_use");
        free(st);
        rig_close(&r);
        heard_clear(&whole);
        heard_clear(&h);
        free(p);
    }
}
