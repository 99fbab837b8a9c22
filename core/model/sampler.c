/* Sampler: see sampler.h. What bias, penalties and forbidden ends do to a few logits is done on a copy; then
 * the candidates are a prefix of the ranking, and the draw walks that prefix, best first, until the drawn
 * share is used up. Pure. Must not know: threads, time, texts. Tests: tests/unit/test_sampler.c (against
 * sorting everything in doubles) */
#include "model/sampler.h"
#include "model/ranking.h"
#include "util/rng.h"
#include <errno.h>
#include <float.h>
#include <stdlib.h>

#define REPEAT_WINDOW 64u
#define FIRST_LOOK 256u /* places ranked at first: more than a choice from a trained model mostly needs */

struct sampler {
    struct sampler_params p;
    struct ranking ranking;
    float *edited; /* n_vocab: the logits after bias, penalties and forbidden ends */

    int32_t *ends; /* end-of-generation tokens, when they may be forbidden */
    uint32_t n_ends;
    uint64_t n_generated;

    int32_t recent[REPEAT_WINDOW]; /* a ring */
    uint64_t n_accepted;

    uint32_t *counts; /* n_vocab: of generated tokens, when presence or frequency counts */
    int32_t *touched; /* those counted at least once */
    uint32_t n_touched;
    const uint64_t *mask; /* NULL: every token is allowed */
};

static bool valid(const struct sampler_params *p, uint32_t n_vocab)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return false;
    if (!(p->temperature >= 0) || !isfinite(p->temperature) || isnan(p->top_p) || isnan(p->min_p))
        return false;
    if (!(p->repeat_penalty > 0) || !isfinite(p->repeat_penalty))
        return false;
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return false;
    if (p->n_top_logprobs < -1 || p->n_top_logprobs > SAMPLER_MAX_TOP_LOGPROBS)
        return false;
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n_vocab || isnan(p->bias[i].bias))
            return false;
    return true;
}

static int list_ends(struct sampler *s, uint32_t n_vocab, bool (*is_eog)(const void *arg, int32_t id),
                     const void *arg)
{
    for (uint32_t id = 0; id < n_vocab; id++)
        s->n_ends += is_eog(arg, (int32_t)id);
    s->ends = malloc((s->n_ends + 1) * sizeof *s->ends);
    if (!s->ends)
        return -ENOMEM;
    uint32_t n = 0;
    for (uint32_t id = 0; id < n_vocab && n < s->n_ends; id++)
        if (is_eog(arg, (int32_t)id))
            s->ends[n++] = (int32_t)id;
    return 0;
}

int sampler_new(const struct sampler_params *p, uint32_t n_vocab, bool (*is_eog)(const void *arg, int32_t id),
                const void *arg, struct sampler **ret_sampler)
{
    if (!valid(p, n_vocab))
        return -EINVAL;
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->p = *p;
    int r = ranking_init(&s->ranking, n_vocab);
    s->edited = malloc(n_vocab * sizeof *s->edited);
    if (r < 0 || !s->edited)
        goto no_memory;
    if (p->min_tokens > 0 || p->ignore_eos) {
        r = list_ends(s, n_vocab, is_eog, arg);
        if (r < 0)
            goto no_memory;
    }
    if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
        s->counts = calloc(n_vocab, sizeof *s->counts);
        s->touched = malloc(n_vocab * sizeof *s->touched);
        if (!s->counts || !s->touched)
            goto no_memory;
    }
    *ret_sampler = s;
    return 0;
no_memory:
    sampler_free(s);
    return -ENOMEM;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    ranking_free(&s->ranking);
    free(s->edited);
    free(s->ends);
    free(s->counts);
    free(s->touched);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t token, bool generated)
{
    if (token < 0 || (uint32_t)token >= s->ranking.n)
        return;
    s->recent[s->n_accepted++ % REPEAT_WINDOW] = token;
    if (!generated)
        return;
    s->n_generated++;
    if (s->counts && s->counts[token]++ == 0)
        s->touched[s->n_touched++] = token;
}

static bool ends_forbidden(const struct sampler *s)
{
    return s->n_ends > 0 && (s->p.ignore_eos || s->n_generated < s->p.min_tokens);
}

/* Each token of the window once. */
static void penalize_recent(struct sampler *s)
{
    uint32_t n = s->n_accepted < REPEAT_WINDOW ? (uint32_t)s->n_accepted : REPEAT_WINDOW;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = 0;
        while (before < i && s->recent[before] != s->recent[i])
            before++;
        if (before < i)
            continue;
        float *logit = &s->edited[s->recent[i]];
        *logit = *logit > 0 ? *logit / s->p.repeat_penalty : *logit * s->p.repeat_penalty;
    }
}

static void penalize_counted(struct sampler *s)
{
    for (uint32_t i = 0; i < s->n_touched; i++) {
        int32_t token = s->touched[i];
        s->edited[token] -= (float)s->counts[token] * s->p.frequency_penalty + s->p.presence_penalty;
    }
}

static bool is_allowed(const struct sampler *s, uint32_t id)
{
    return !s->mask || s->mask[id / 64] >> id % 64 & 1;
}

void sampler_allow(struct sampler *s, const uint64_t *mask)
{
    s->mask = mask;
}

static bool repeats_count(const struct sampler *s)
{
    return s->p.repeat_penalty != 1 && s->n_accepted > 0;
}

bool sampler_wants_all(const struct sampler *s)
{
    return s->p.n_bias > 0 || repeats_count(s) || s->n_touched > 0 || ends_forbidden(s) || s->mask;
}

float sampler_scale(const struct sampler *s)
{
    return s->p.temperature > 0 ? fminf(1 / s->p.temperature, FLT_MAX) : 1;
}

/* The logits that the choice is made from: the given ones when nothing changes them. */
static const float *edit(struct sampler *s, const float *logits)
{
    bool repeat = repeats_count(s);
    bool forbidden = ends_forbidden(s);
    if (!sampler_wants_all(s))
        return logits;
    memcpy(s->edited, logits, s->ranking.n * sizeof *logits);
    for (size_t i = 0; i < s->p.n_bias; i++)
        s->edited[s->p.bias[i].token] += s->p.bias[i].bias;
    if (repeat)
        penalize_recent(s);
    penalize_counted(s);
    for (uint32_t i = 0; forbidden && i < s->n_ends; i++)
        s->edited[s->ends[i]] = -INFINITY;
    for (uint32_t i = 0; s->mask && i < s->ranking.n; i++)
        if (!is_allowed(s, i))
            s->edited[i] = -INFINITY;
    return s->edited;
}

/* The softmax of the raw logits, as far as logprobs need it. */
struct softmax {
    float raw_max;  /* before an infinite one was replaced */
    double log_sum; /* of exp(logit), or of the infinite ones' number */
    uint32_t n;
};

static double logprob_of(const struct softmax *q, float logit)
{
    if (q->raw_max == -INFINITY)
        return -log((double)q->n); /* nothing is likelier than anything else */
    if (q->raw_max == INFINITY)
        return logit == INFINITY ? -q->log_sum : -INFINITY;
    return isnan(logit) ? -INFINITY : (double)logit - q->log_sum;
}

/* Fills the best logprobs; r has been begun with the raw logits. */
static struct softmax read_softmax(struct ranking *r, const float *logits, int32_t n_top,
                                   struct sampler_choice *c)
{
    uint32_t sorted;
    struct softmax q = { .n = r->n, .raw_max = r->infinite ? INFINITY : r->max };
    q.log_sum = (double)r->max + log(ranking_sum(r, 1.0f));
    c->n_top = (uint32_t)n_top < r->n ? (uint32_t)n_top : r->n;
    ranking_sort(r, c->n_top, &sorted);
    for (uint32_t i = 0; i < c->n_top; i++) {
        uint32_t id = ranking_id(r, i);
        c->top[i] = (struct sampler_logprob){ (int32_t)id, (float)logprob_of(&q, logits[id]) };
    }
    return q;
}

/* Sorts so that `place` is known; false when there is no such place. Each look goes four times as far as the
 * one before. */
static bool reach(struct ranking *r, uint32_t place)
{
    if (place < r->n_sorted)
        return true;
    if (place >= r->n)
        return false;
    uint32_t sorted, want = FIRST_LOOK;
    while (want <= place)
        want = want < r->n / 4 ? want * 4 : r->n;
    ranking_sort(r, want, &sorted);
    return place < sorted;
}

/* How many of the first `limit` candidates hold the share top_p of their weight (at least one). */
static uint32_t count_top_p(struct ranking *r, uint32_t limit, bool limited, float top_p)
{
    double sum = 0, part = 0;
    if (!limited)
        sum = ranking_sum(r, 1.0f);
    for (uint32_t i = 0; limited && i < limit; i++)
        sum += (double)ranking_weight(r, i, 1.0f);
    for (uint32_t i = 0; i < limit && reach(r, i); i++) {
        part += (double)ranking_weight(r, i, 1.0f);
        if (part >= (double)top_p * sum)
            return i + 1;
    }
    return limit;
}

/* How many of the first `limit` are at least min_p times as likely as the best (at least one). */
static uint32_t count_min_p(struct ranking *r, uint32_t limit, float min_p)
{
    float bound = logf(min_p);
    uint32_t i = 1;
    while (i < limit && reach(r, i) && r->logits[ranking_id(r, i)] - r->max >= bound)
        i++;
    return i;
}

/* Draws among the first n candidates; -1 when none of them is possible. */
static int32_t draw(struct sampler *s, uint32_t n, uint64_t position)
{
    struct ranking *r = &s->ranking;
    float scale = sampler_scale(s);
    double sum = 0;
    if (n == r->n)
        sum = ranking_sum(r, scale);
    for (uint32_t i = 0; n < r->n && i < n && reach(r, i); i++)
        sum += (double)ranking_weight(r, i, scale);

    double left = rng_uniform(s->p.seed, position) * sum;
    int32_t last = -1;
    for (uint32_t i = 0; i < n && reach(r, i); i++) {
        double weight = (double)ranking_weight(r, i, scale);
        if (weight == 0)
            break;
        last = (int32_t)ranking_id(r, i);
        if (left < weight)
            break;
        left -= weight;
    }
    return last;
}

static int32_t sample(struct sampler *s, uint64_t position)
{
    struct ranking *r = &s->ranking;
    uint32_t n = r->n;
    bool limited = s->p.top_k > 0 && (uint32_t)s->p.top_k < n;
    if (limited) {
        uint32_t sorted;
        n = (uint32_t)s->p.top_k;
        ranking_sort(r, n, &sorted);
        if (sorted < n)
            return -1;
    }
    if (s->p.top_p < 1)
        n = count_top_p(r, n, limited, s->p.top_p);
    if (s->p.min_p > 0)
        n = count_min_p(r, n, s->p.min_p);
    return draw(s, n, position);
}

/* When no logit says anything: the lowest id that is allowed. */
static int32_t first_allowed(const struct sampler *s)
{
    uint32_t end = 0, n_ends = ends_forbidden(s) ? s->n_ends : 0;
    for (uint32_t id = 0; id < s->ranking.n; id++) {
        bool is_end = end < n_ends && s->ends[end] == (int32_t)id;
        end += is_end;
        if (!is_end && is_allowed(s, id))
            return (int32_t)id;
    }
    return 0;
}

/* From what is ranked. */
static int32_t choose_ranked(struct sampler *s, uint64_t position)
{
    int32_t token = -1;
    if (s->ranking.max > -INFINITY)
        token = s->p.temperature > 0 ? sample(s, position) : (int32_t)ranking_first(&s->ranking);
    return token >= 0 ? token : first_allowed(s);
}

void sampler_choose(struct sampler *s, const float *logits, uint64_t position,
                    struct sampler_choice *ret_choice)
{
    struct ranking *r = &s->ranking;
    struct softmax q = { 0 };
    bool logprobs = s->p.n_top_logprobs >= 0;
    const float *edited = edit(s, logits);
    ret_choice->n_top = 0;
    ret_choice->logprob = 0;
    if (logprobs) {
        ranking_begin(r, logits);
        q = read_softmax(r, logits, s->p.n_top_logprobs, ret_choice);
    }
    if (!logprobs || edited != logits)
        ranking_begin(r, edited);
    ret_choice->token = choose_ranked(s, position);
    if (logprobs)
        ret_choice->logprob = (float)logprob_of(&q, logits[ret_choice->token]);
}

bool sampler_choose_best(struct sampler *s, const struct sampler_best *best, uint64_t position,
                         struct sampler_choice *ret_choice)
{
    struct ranking *r = &s->ranking;
    struct softmax q = { 0 };
    bool logprobs = s->p.n_top_logprobs >= 0;
    if (sampler_wants_all(s) || !isfinite(best->max))
        return false;
    ranking_begin_best(r, best);
    ret_choice->n_top = 0;
    ret_choice->logprob = 0;
    if (logprobs)
        q = read_softmax(r, r->logits, s->p.n_top_logprobs, ret_choice);
    ret_choice->token = choose_ranked(s, position);
    if (r->short_of)
        return false;
    if (logprobs)
        ret_choice->logprob = (float)logprob_of(&q, r->logits[ret_choice->token]);
    return true;
}
