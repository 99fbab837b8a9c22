/* Sampler: against one that sorts everything in double precision; frequencies against probabilities; what is
 * forbidden never comes; and what a choice costs. */
#include "../cases.h"
#include "model/ranking.h"
#include "model/sampler.h"
#include "util/rng.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- numbers that are the same in every run --- */

struct dice {
    uint64_t seed, n;
};

static double uniform(struct dice *d)
{
    return rng_uniform(d->seed, d->n++);
}

static uint32_t roll(struct dice *d, uint32_t sides)
{
    return (uint32_t)(uniform(d) * sides);
}

static double gauss(struct dice *d)
{
    return sqrt(-2 * log(1 - uniform(d))) * cos(6.283185307179586 * uniform(d));
}

static bool no_end(const void *arg, int32_t id)
{
    (void)arg;
    (void)id;
    return false;
}

static bool in_range(const void *arg, int32_t id)
{
    const int32_t *range = arg;
    return id >= range[0] && id < range[1];
}

/* Nothing but greedy. */
static struct sampler_params plain(void)
{
    return (struct sampler_params){ .top_p = 1, .repeat_penalty = 1, .n_top_logprobs = -1 };
}

static struct sampler *must_make(const struct sampler_params *p, uint32_t n)
{
    struct sampler *s;
    cr_assert_eq(sampler_new(p, n, no_end, NULL, &s), 0);
    return s;
}

static int32_t choose_once(const struct sampler_params *p, const float *logits, uint32_t n, uint64_t position)
{
    struct sampler_choice c;
    struct sampler *s = must_make(p, n);
    sampler_choose(s, logits, position, &c);
    sampler_free(s);
    return c.token;
}

/* --- the plain model --- */

struct candidate {
    double logit, weight;
    int32_t id;
};

static int order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* What sampler.h says, step by step, on everything; `history` is the tokens accepted, the last n_generated of
 * them generated. Fills the candidates that are left with their probabilities in `weight`, best first, and
 * returns their number. */
static uint32_t model_candidates(const struct sampler_params *p, const float *logits, uint32_t n,
                                 const int32_t *history, uint32_t n_history, uint32_t n_generated,
                                 struct candidate *c)
{
    for (uint32_t i = 0; i < n; i++)
        c[i] = (struct candidate){ logits[i], 0, (int32_t)i };
    for (size_t i = 0; i < p->n_bias; i++)
        c[p->bias[i].token].logit += p->bias[i].bias;
    uint32_t window = n_history < 64 ? n_history : 64;
    for (uint32_t id = 0; id < n; id++) {
        bool recent = false;
        uint32_t count = 0;
        for (uint32_t k = n_history - window; k < n_history; k++)
            recent |= history[k] == (int32_t)id;
        for (uint32_t k = n_history - n_generated; k < n_history; k++)
            count += history[k] == (int32_t)id;
        if (recent)
            c[id].logit = c[id].logit > 0 ? c[id].logit / (double)p->repeat_penalty
                                          : c[id].logit * (double)p->repeat_penalty;
        if (count)
            c[id].logit -= (double)p->presence_penalty + count * (double)p->frequency_penalty;
    }
    qsort(c, n, sizeof *c, order);
    if (p->temperature == 0)
        return 1;
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = (uint32_t)p->top_k;
    double sum = 0, part = 0, total = 0, best = c[0].logit;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(c[i].logit - best);
    for (uint32_t i = 0; i < n && p->top_p < 1; i++) {
        part += exp(c[i].logit - best);
        if (part >= (double)p->top_p * sum)
            n = i + 1;
    }
    while (n > 1 && exp(c[n - 1].logit - best) < (double)p->min_p)
        n--;
    for (uint32_t i = 0; i < n; i++)
        total += c[i].weight = exp((c[i].logit - best) / (double)p->temperature);
    for (uint32_t i = 0; i < n; i++)
        c[i].weight /= total;
    return n;
}

/* The id at the share u of the candidates; *ret_edge: how near u is to where another one begins. */
static int32_t model_draw(const struct candidate *c, uint32_t n, double u, double *ret_edge)
{
    double at = 0;
    for (uint32_t i = 0; i < n; i++) {
        double next = at + c[i].weight;
        if (u < next || i == n - 1) {
            *ret_edge = fmin(u - at, next - u);
            return c[i].id;
        }
        at = next;
    }
    return -1;
}

static struct sampler_params any_params(struct dice *d, struct sampler_bias *bias, uint32_t n)
{
    struct sampler_params p = plain();
    p.temperature = roll(d, 8) ? (float)(0.1 + 1.9 * uniform(d)) : 0;
    p.seed = roll(d, 1000000);
    if (roll(d, 2))
        p.top_k = (int32_t)roll(d, roll(d, 2) ? 50 : n + 10);
    if (roll(d, 2))
        p.top_p = (float)uniform(d);
    if (roll(d, 3) == 0)
        p.min_p = (float)(uniform(d) * uniform(d));
    if (roll(d, 3) == 0)
        p.repeat_penalty = (float)(0.5 + uniform(d));
    if (roll(d, 3) == 0)
        p.presence_penalty = (float)(4 * uniform(d) - 2);
    if (roll(d, 3) == 0)
        p.frequency_penalty = (float)(4 * uniform(d) - 2);
    p.n_bias = roll(d, 4);
    p.bias = bias;
    for (size_t i = 0; i < p.n_bias; i++)
        bias[i] = (struct sampler_bias){ (int32_t)roll(d, n), (float)(20 * uniform(d) - 10) };
    return p;
}

Test(sampler, chooses_as_sorting_everything_in_doubles_does)
{
    struct dice d = { 1, 0 };
    static float logits[20000];
    static struct candidate c[20000];
    uint32_t compared = 0, near_edge = 0;
    for (uint32_t round = 0; round < 400; round++) {
        struct sampler_bias bias[4];
        struct sampler_choice choice;
        int32_t history[100];
        uint32_t n = round % 8 == 0 ? 1 + roll(&d, 20000) : 1 + roll(&d, 400);
        uint32_t n_history = roll(&d, 100), n_generated = roll(&d, n_history + 1);
        double spread = 6 * uniform(&d);
        for (uint32_t i = 0; i < n; i++)
            logits[i] = roll(&d, 3) ? (float)(spread * gauss(&d)) : (float)roll(&d, 5); /* equals, too */
        struct sampler_params p = any_params(&d, bias, n);
        struct sampler *s = must_make(&p, n);
        for (uint32_t i = 0; i < n_history; i++) {
            history[i] = (int32_t)roll(&d, n < 30 ? n : 30);
            sampler_accept(s, history[i], i >= n_history - n_generated);
        }
        uint32_t left = model_candidates(&p, logits, n, history, n_history, n_generated, c);
        for (uint64_t position = round; position < round + 5; position++) {
            double edge = 1;
            int32_t want =
                p.temperature == 0 ? c[0].id : model_draw(c, left, rng_uniform(p.seed, position), &edge);
            sampler_choose(s, logits, position, &choice);
            compared++;
            /* The sampler's weights are floats: so near to a border either side is right. */
            if (choice.token != want && edge < 2e-6)
                near_edge++;
            else
                cr_assert_eq(choice.token, want, "round %u: %d, want %d (edge %g)", round, choice.token, want,
                             edge);
        }
        sampler_free(s);
    }
    cr_expect_lt(near_edge, compared / 200, "%u of %u", near_edge, compared);
}

Test(sampler, ranks_as_sorting_everything_does)
{
    struct dice d = { 2, 0 };
    static float logits[30000];
    static struct candidate c[30000];
    for (uint32_t round = 0; round < 100; round++) {
        uint32_t n = 1 + roll(&d, round % 3 ? 30000 : 300), sorted, kind = roll(&d, 4);
        for (uint32_t i = 0; i < n; i++) {
            double x = kind == 0   ? (double)i
                       : kind == 1 ? -(double)i
                       : kind == 2 ? (double)roll(&d, 3)
                                   : gauss(&d);
            logits[i] = roll(&d, 50) ? (float)x : roll(&d, 2) ? NAN : -INFINITY;
            c[i] =
                (struct candidate){ isnan(logits[i]) ? (double)-INFINITY : (double)logits[i], 0, (int32_t)i };
        }
        qsort(c, n, sizeof *c, order);
        struct ranking r;
        cr_assert_eq(ranking_init(&r, n), 0);
        ranking_begin(&r, logits);
        cr_assert_eq((int32_t)ranking_first(&r), c[0].id, "round %u", round);
        for (uint32_t count = 1; count <= n; count = count * (2 + roll(&d, 5)) + 1) {
            ranking_sort(&r, count, &sorted);
            cr_assert(sorted >= count && sorted <= n);
            for (uint32_t i = 0; i < sorted; i++)
                cr_assert_eq((int32_t)ranking_id(&r, i), c[i].id, "round %u, place %u of %u", round, i,
                             sorted);
        }
        ranking_free(&r);
    }
}

Test(sampler, its_exponential_is_within_3e_7_of_the_real_one)
{
    double worst = 0;
    for (double x = 0; x > -86.9; x -= 0.00137) {
        double want = exp((double)(float)x), got = (double)ranking_exp((float)x);
        worst = fmax(worst, fabs(got - want) / want);
    }
    cr_expect_lt(worst, 3e-7, "%g", worst);
    cr_expect_eq(ranking_exp(0), 1.0f);
    cr_expect_eq(ranking_exp(-200), 0.0f);
    cr_expect_eq(ranking_exp(-INFINITY), 0.0f);
    cr_expect_eq(ranking_exp(NAN), 0.0f);
}

/* --- frequencies --- */

Test(sampler, draws_in_proportion_to_the_probabilities)
{
    enum { N = 12, DRAWS = 60000 };
    float logits[N];
    uint32_t counts[N] = { 0 };
    struct candidate c[N];
    struct sampler_params p = plain();
    p.temperature = 0.8f;
    p.seed = 42;
    for (int i = 0; i < N; i++)
        logits[i] = (float)(i * 7 % N) * 0.3f;
    uint32_t left = model_candidates(&p, logits, N, NULL, 0, 0, c);
    struct sampler *s = must_make(&p, N);
    for (uint64_t position = 0; position < DRAWS; position++) {
        struct sampler_choice choice;
        sampler_choose(s, logits, position, &choice);
        counts[choice.token]++;
    }
    double chi2 = 0;
    for (uint32_t i = 0; i < left; i++) {
        double want = c[i].weight * DRAWS, miss = counts[c[i].id] - want;
        chi2 += miss * miss / want;
    }
    cr_expect_lt(chi2, 31.3, "%g: beyond the 99.9th percentile of chi-square with 11 degrees of freedom",
                 chi2);
    sampler_free(s);
}

Test(sampler, the_same_seed_and_position_give_the_same_token_whatever_was_chosen_before)
{
    enum { N = 5000 };
    static float logits[N];
    struct dice d = { 3, 0 };
    struct sampler_params p = plain();
    p.temperature = 1;
    p.top_p = 0.9f;
    uint32_t differ = 0;
    for (int i = 0; i < N; i++)
        logits[i] = (float)gauss(&d);
    struct sampler *s = must_make(&p, N);
    for (uint64_t position = 100; position > 0; position--) {
        struct sampler_choice choice;
        sampler_choose(s, logits, position, &choice);
        cr_assert_eq(choice.token, choose_once(&p, logits, N, position));
        p.seed = 1;
        differ += choice.token != choose_once(&p, logits, N, position);
        p.seed = 0;
    }
    cr_expect_gt(differ, 90, "another seed is another draw");
    sampler_free(s);
}

/* --- edges --- */

Test(sampler, greedy_takes_the_lowest_id_among_equals)
{
    struct sampler_params p = plain();
    float a[] = { 1, 3, 3, -0.0f }, b[] = { -0.0f, 0, -1, -0.0f };
    cr_expect_eq(choose_once(&p, a, 4, 0), 1);
    cr_expect_eq(choose_once(&p, b, 4, 0), 0, "0 and -0 are equal");
}

Test(sampler, logits_that_are_no_numbers_are_never_chosen)
{
    struct sampler_params greedy = plain(), warm = plain();
    warm.temperature = 1;
    float a[] = { NAN, -5, -INFINITY, -6 };
    float b[] = { NAN, 3, INFINITY, 100, INFINITY };
    float none[] = { NAN, -INFINITY, NAN };
    cr_expect_eq(choose_once(&greedy, a, 4, 0), 1);
    cr_expect_eq(choose_once(&greedy, b, 5, 0), 2, "the first of the infinite ones");
    cr_expect_eq(choose_once(&greedy, none, 3, 0), 0);
    uint32_t seen[5] = { 0 };
    for (uint64_t position = 0; position < 200; position++) {
        int32_t token = choose_once(&warm, a, 4, position);
        cr_assert(token == 1 || token == 3);
        seen[choose_once(&warm, b, 5, position)]++;
        cr_assert_eq(choose_once(&warm, none, 3, position), 0);
    }
    cr_expect(seen[2] > 60 && seen[4] > 60 && seen[2] + seen[4] == 200, "the infinite ones share: %u %u",
              seen[2], seen[4]);
}

Test(sampler, extreme_logits_and_temperatures_do_no_harm)
{
    struct sampler_params p = plain();
    float a[] = { 3e38f, -3e38f, 2.9e38f };
    p.top_p = 0.5f;
    for (float t = 1e-40f; t < 1e30f; t *= 1e10f) {
        p.temperature = t;
        cr_expect_eq(choose_once(&p, a, 3, 7), 0);
    }
    p.top_p = 0;
    p.temperature = 2;
    float b[] = { 1, 1, 1.001f, 1 };
    cr_expect_eq(choose_once(&p, b, 4, 9), 2, "top_p 0 leaves the best");
    p.top_p = 1;
    p.min_p = 1.5f;
    cr_expect_eq(choose_once(&p, b, 4, 9), 2, "so does any min_p above 1");
}

Test(sampler, ends_are_impossible_before_min_tokens_and_with_ignore_eos)
{
    int32_t range[] = { 0, 3 };
    float logits[] = { 9, 8, 7, 1, 2 };
    struct sampler_choice c;
    struct sampler *s;
    struct sampler_params p = plain();
    p.min_tokens = 2;
    cr_assert_eq(sampler_new(&p, 5, in_range, range, &s), 0);
    sampler_accept(s, 4, false);
    sampler_accept(s, 4, true);
    sampler_choose(s, logits, 0, &c);
    cr_expect_eq(c.token, 4, "one was generated, two are wanted");
    sampler_accept(s, 4, true);
    sampler_choose(s, logits, 0, &c);
    cr_expect_eq(c.token, 0);
    sampler_free(s);

    p.min_tokens = 0;
    p.ignore_eos = true;
    p.temperature = 2;
    cr_assert_eq(sampler_new(&p, 5, in_range, range, &s), 0);
    for (uint64_t position = 0; position < 300; position++) {
        sampler_choose(s, logits, position, &c);
        cr_assert_geq(c.token, 3);
    }
    float none[] = { 1, 1, 1, NAN, NAN };
    sampler_choose(s, none, 0, &c);
    cr_expect_eq(c.token, 3, "the first that is no end");
    sampler_free(s);
}

Test(sampler, a_bias_of_100_forces_and_minus_100_forbids)
{
    float logits[] = { 10, 9, 8, 7 };
    struct sampler_bias force[] = { { 3, 100 } }, forbid[] = { { 0, -100 }, { 1, -100 } };
    struct sampler_params p = plain();
    p.temperature = 1.5f;
    for (uint64_t position = 0; position < 100; position++) {
        p.bias = force;
        p.n_bias = 1;
        cr_assert_eq(choose_once(&p, logits, 4, position), 3);
        p.bias = forbid;
        p.n_bias = 2;
        cr_assert_geq(choose_once(&p, logits, 4, position), 2);
    }
}

Test(sampler, refuses_parameters_that_mean_nothing)
{
    struct sampler_bias outside[] = { { 4, 1 } };
    struct sampler *s = NULL;
    struct sampler_params bad[9];
    for (int i = 0; i < 9; i++)
        bad[i] = plain();
    bad[0].temperature = NAN;
    bad[1].temperature = -1;
    bad[2].temperature = INFINITY;
    bad[3].top_p = NAN;
    bad[4].min_p = NAN;
    bad[5].repeat_penalty = 0;
    bad[6].n_top_logprobs = 33;
    bad[7].bias = outside;
    bad[7].n_bias = 1;
    bad[8].frequency_penalty = INFINITY;
    for (int i = 0; i < 9; i++)
        cr_expect_eq(sampler_new(&bad[i], 4, no_end, NULL, &s), -EINVAL, "%d", i);
    struct sampler_params good = plain();
    cr_expect_eq(sampler_new(&good, 0, no_end, NULL, &s), -EINVAL, "no vocabulary");
    cr_expect_null(s);
}

/* --- logprobs --- */

Test(sampler, logprobs_are_the_log_softmax_of_the_raw_logits)
{
    enum { N = 3000 };
    static float logits[N];
    static struct candidate c[N];
    struct sampler_bias bias[] = { { 7, 50 } };
    struct dice d = { 4, 0 };
    struct sampler_choice choice;
    struct sampler_params p = plain();
    p.n_top_logprobs = 32;
    p.n_bias = 1;
    p.bias = bias;
    double sum = 0;
    for (int i = 0; i < N; i++) {
        logits[i] = (float)(5 * gauss(&d)) + 200;
        c[i] = (struct candidate){ logits[i], 0, i };
        sum += exp((double)logits[i] - 200);
    }
    qsort(c, N, sizeof *c, order);
    struct sampler *s = must_make(&p, N);
    sampler_choose(s, logits, 0, &choice);
    cr_expect_eq(choice.token, 7);
    cr_expect_float_eq(choice.logprob, (double)logits[7] - 200 - log(sum), 1e-4, "the bias does not show");
    cr_expect_eq(choice.n_top, 32);
    for (uint32_t i = 0; i < 32; i++) {
        cr_expect_eq(choice.top[i].token, c[i].id);
        cr_expect_float_eq(choice.top[i].logprob, c[i].logit - 200 - log(sum), 1e-4);
    }
    sampler_free(s);
}

Test(sampler, logprobs_of_logits_that_are_no_numbers_are_defined)
{
    struct sampler_choice c;
    struct sampler_params p = plain();
    p.n_top_logprobs = 4;
    float some[] = { NAN, 1, -INFINITY }, huge[] = { INFINITY, 1, INFINITY, NAN }, none[] = { NAN, NAN };
    struct sampler *s = must_make(&p, 3);
    sampler_choose(s, some, 0, &c);
    cr_expect(c.token == 1 && c.logprob == 0 && c.n_top == 3);
    cr_expect(c.top[0].token == 1 && c.top[1].token == 0 && c.top[1].logprob == -INFINITY);
    sampler_free(s);
    s = must_make(&p, 4);
    sampler_choose(s, huge, 0, &c);
    cr_expect_eq(c.token, 0);
    cr_expect_float_eq(c.logprob, log(0.5), 1e-6);
    cr_expect(c.top[1].token == 2 && c.top[2].token == 1 && c.top[2].logprob == -INFINITY);
    sampler_free(s);
    s = must_make(&p, 2);
    sampler_choose(s, none, 0, &c);
    cr_expect_eq(c.token, 0);
    cr_expect_float_eq(c.logprob, log(0.5), 1e-6);
    sampler_free(s);
}

Test(sampler, without_logprobs_none_are_given)
{
    struct sampler_choice c = { .n_top = 9 };
    struct sampler_params p = plain();
    float logits[] = { 1, 2 };
    struct sampler *s = must_make(&p, 2);
    sampler_choose(s, logits, 0, &c);
    cr_expect(c.n_top == 0 && c.logprob == 0);
    sampler_free(s);
}

/* What a device would say of these logits: plain loops, and the sums that ranking.h says. */
static void describe_best(const float *logits, uint32_t n, uint32_t most, float scale, uint32_t *id,
                          float *best_logit, struct sampler_best *ret)
{
    struct ranking r;
    uint32_t sorted;
    cr_assert_eq(ranking_init(&r, n), 0);
    ranking_begin(&r, logits);
    *ret = (struct sampler_best){ .n = most < n ? most : n, .id = id, .logit = best_logit, .scale = scale };
    ret->max = r.infinite ? INFINITY : r.max;
    ret->sum = ranking_sum(&r, 1);
    ret->scaled_sum = ranking_sum(&r, scale);
    ranking_sort(&r, ret->n, &sorted);
    for (uint32_t i = 0; i < ret->n; i++) {
        id[i] = ranking_id(&r, i);
        best_logit[i] = logits[id[i]];
    }
    ranking_free(&r);
}

Test(sampler, from_the_best_alone_it_chooses_what_it_chooses_from_all)
{
    enum { N = 700, MOST = 64, CASES = 3000 };
    float logits[N], best_logit[MOST];
    uint32_t id[MOST], told = 0, full = 0;
    struct dice d = { 77, 0 };
    for (int k = 0; k < CASES; k++) {
        struct sampler_bias bias[3];
        struct sampler_params p = any_params(&d, bias, N);
        struct sampler_choice from_all = { 0 }, from_best = { 0 };
        struct sampler_best best;
        float spread = (float)(1 + roll(&d, 8));
        if (roll(&d, 4)) {
            p.n_bias = 0;
            p.repeat_penalty = 1;
            p.presence_penalty = p.frequency_penalty = 0;
        }
        p.n_top_logprobs = (int32_t)roll(&d, 8) - 3;
        p.n_top_logprobs = p.n_top_logprobs < -1 ? -1 : p.n_top_logprobs;
        for (uint32_t i = 0; i < N; i++) /* with ties */
            logits[i] = roundf((float)gauss(&d) * spread * 8) / 8;
        if (roll(&d, 10) == 0)
            logits[roll(&d, N)] = roll(&d, 2) ? NAN : roll(&d, 2) ? INFINITY : -INFINITY;
        struct sampler *s = must_make(&p, N);
        sampler_accept(s, (int32_t)roll(&d, N), true);
        sampler_choose(s, logits, (uint64_t)k, &from_all);
        describe_best(logits, N, MOST, sampler_scale(s), id, best_logit, &best);
        full += sampler_wants_all(s);
        if (sampler_choose_best(s, &best, (uint64_t)k, &from_best)) {
            told++;
            cr_assert_not(sampler_wants_all(s));
            cr_assert_eq(from_best.token, from_all.token, "case %d", k);
            cr_assert_eq(from_best.n_top, from_all.n_top);
            cr_assert_eq(memcmp(&from_best.logprob, &from_all.logprob, sizeof(float)), 0, "case %d", k);
            cr_assert_eq(memcmp(from_best.top, from_all.top, from_all.n_top * sizeof *from_all.top), 0);
        }
        sampler_free(s);
    }
    cr_expect(full > CASES / 8 && full < CASES / 2, "%u choices need all", full);
    cr_expect(told > CASES / 3, "%u of %u were told from the best", told, CASES);
}

Test(sampler, a_mask_leaves_only_what_it_allows)
{
    enum { MANY = 200 };
    float logits[MANY];
    struct dice d = { 9, 0 };
    uint64_t mask[4] = { 0 };
    struct sampler_choice c;
    struct sampler_params p = plain();
    int32_t best = -1;
    for (int i = 0; i < MANY; i++) {
        logits[i] = (float)(3 * gauss(&d));
        if (i % 7 != 3)
            continue;
        mask[i / 64] |= UINT64_C(1) << i % 64;
        if (best < 0 || logits[i] > logits[best])
            best = i;
    }
    p.n_top_logprobs = 0;
    struct sampler *s = must_make(&p, MANY);
    sampler_choose(s, logits, 0, &c);
    int32_t free_choice = c.token;
    sampler_allow(s, mask);
    sampler_choose(s, logits, 0, &c);
    cr_expect(c.token == best && free_choice != best, "%d, the best allowed is %d", c.token, best);
    sampler_allow(s, (const uint64_t[4]){ 0, 2 });
    sampler_choose(s, logits, 0, &c);
    cr_expect_eq(c.token, 65);
    sampler_allow(s, NULL);
    sampler_choose(s, logits, 0, &c);
    cr_expect_eq(c.token, free_choice);
    sampler_free(s);

    p.temperature = 1;
    s = must_make(&p, MANY);
    sampler_allow(s, mask);
    for (uint64_t position = 0; position < 500; position++) {
        sampler_choose(s, logits, position, &c);
        cr_assert_eq(c.token % 7, 3, "%d", c.token);
    }
    sampler_free(s);
}

/* --- time --- */

static void measure(const char *name, const struct sampler_params *p, const float *logits, uint32_t n)
{
    const uint32_t rounds = cases_of(100, 20);
    struct sampler *s = must_make(p, n);
    struct sampler_choice c;
    sampler_choose(s, logits, 0, &c);
    clock_t start = clock();
    for (uint64_t position = 1; position <= rounds; position++) {
        sampler_choose(s, logits, position, &c);
        sampler_accept(s, c.token, true);
    }
    double us = 1e6 * (double)(clock() - start) / CLOCKS_PER_SEC / rounds;
    fprintf(stderr, "sampler: vocabulary %6u %-32s %7.1f us a token\n", n, name, us);
    cr_expect_lt(us, 50000, "%s", name);
    sampler_free(s);
}

Test(sampler, prints_what_a_choice_costs)
{
    static float logits[151936];
    static const uint32_t sizes[] = { 49152, 151936 };
    struct dice d = { 5, 0 };
    for (int k = 0; k < 4; k++) {
        uint32_t n = sizes[k % 2];
        bool flat = k >= 2;
        /* A trained model's: most far below a few; and a flat one, where thousands of candidates are needed.
         */
        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)((flat ? 3 : 2) * gauss(&d));
        for (int i = 0; i < 40 && !flat; i++)
            logits[roll(&d, n)] = (float)(8 + 8 * uniform(&d));
        fprintf(stderr, "sampler: %s logits\n", flat ? "flat" : "peaked");
        struct sampler_params p = plain();
        measure("greedy", &p, logits, n);
        p.temperature = 0.7f;
        measure("temperature 0.7", &p, logits, n);
        p.top_p = 0.95f;
        measure("temperature 0.7, top_p 0.95", &p, logits, n);
        p.top_p = 1;
        p.top_k = 40;
        measure("temperature 0.7, top_k 40", &p, logits, n);
        p.top_k = 0;
        p.min_p = 0.05f;
        measure("temperature 0.7, min_p 0.05", &p, logits, n);
        p.min_p = 0;
        p.top_p = 0.95f;
        p.n_top_logprobs = 20;
        p.frequency_penalty = 0.5f;
        p.repeat_penalty = 1.1f;
        measure("top_p, penalties, logprobs", &p, logits, n);
    }
}
