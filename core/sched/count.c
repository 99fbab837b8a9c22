/* Count: what is counted beside the totals: times of requests, reasons of misses, returns.
 * Thread: the scheduler's. Tests: tests/unit/test_sched_counts.c */
#include "sched/parts.h"
#include "util/clock.h"

const double sched_time_edges_s[SCHED_TIME_EDGES] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                      0.5,   0.75,   1,     2.5,  5,     7.5,  10,  20,
                                                      40,    80,     160,   320,  640,   2560 };

_Static_assert(SCHED_MISSES == MISS_REASONS, "as many as slots/misses.h has");
_Static_assert(SCHED_PLACEMENT_KINDS <= SCHED_PLACEMENT_KINDS_MAX, "room for all kinds");

const char *sched_miss_name(uint32_t i)
{
    return miss_reason_name((enum miss_reason)i);
}

/* n times of ns each. */
static void add(struct sched_times *t, uint64_t ns, uint64_t n)
{
    double s = (double)ns / (double)NS_PER_S;
    uint32_t i = 0;
    while (i < SCHED_TIME_EDGES && s > sched_time_edges_s[i])
        i++;
    t->bins[i] += n;
    t->total_ns += ns * n;
}

static uint64_t since(const struct sched *s, uint64_t then_ns)
{
    return s->now_ns > then_ns ? s->now_ns - then_ns : 0;
}

/* Whether the prompt has answers in it: what the api knows, or else what its turns tell. */
static bool has_answers(const struct job *j)
{
    return j->answers ? j->answers > 0 : j->prompt->has_answers;
}

struct count_begin count_judge(struct sched *s, struct job *j, uint32_t source, uint32_t n)
{
    struct count_begin b = { .judged = j->cache_prompt };
    if (!b.judged)
        return b;
    b.miss = misses_judge(s->misses, s->h.table, j->prompt, n, has_answers(j));
    if (n && slots_prompt_resumes(s->h.table, j->prompt, source))
        b.back = slots_at(s->h.table, source)->label.request_key;
    return b;
}

void count_begun(struct sched *s, struct job *j, uint32_t n, const struct count_begin *b)
{
    j->cached = n;
    s->count.prompt_tokens += j->n_prompt;
    s->count.cached_tokens += n;
    add(&s->tally.queued, since(s, j->submit_ns), 1);
    if (b->judged) {
        s->tally.misses.prompts[b->miss.reason]++;
        s->tally.misses.tokens[b->miss.reason] += b->miss.tokens;
    }
    if (b->back)
        returns_back(s->returns, b->back, (int64_t)j->submit_ns);
    placed_begun(s, j, b->judged ? &b->miss : NULL);
}

void count_lost(struct sched *s, uint32_t at, enum miss_reason reason)
{
    returns_lost(s->returns, s->h.table, at, (int64_t)s->now_ns);
    misses_note_lost(s->misses, s->h.table, at, reason);
}

void count_tokens(struct sched *s, const struct job *j, uint32_t n, uint64_t before_ns)
{
    s->count.generated_tokens += n;
    if (!n)
        return;
    if (before_ns) /* several at once were as long in coming together */
        add(&s->tally.between, since(s, before_ns) / n, n);
    else
        add(&s->tally.first_token, since(s, j->submit_ns), 1);
}

void count_end(struct sched *s, const struct job *j, enum sched_stop stop)
{
    if (stop == SCHED_STOP_CANCELLED) {
        s->count.cancelled++;
        return;
    }
    if (stop == SCHED_STOP_FAILED) {
        s->count.failed++;
        return;
    }
    s->count.completed++;
    if (stop == SCHED_STOP_LENGTH)
        s->tally.cut_off++;
    else
        s->tally.stopped++;
    add(&s->tally.whole, since(s, j->submit_ns), 1);
}

void count_left(struct sched *s, const struct job *j)
{
    const struct slots_history *h = slots_at(s->h.table, j->at);
    if (h->n && h->label.request_key == j->id) /* otherwise it added nothing to what lay there */
        returns_wait(s->returns, j->id, h->label.stop_reason, (int64_t)s->now_ns);
}
