/* Reading: whose prompt is read next, how much of it at once, and who is let in for that.
 *
 * Beside the streams of a window at most one chunk of prompt is read, of at most chunk_tokens and about
 * ALONE_MS, beside streams max_pause_ms, by the measured rate: so a cancel, a newcomer or a stream never
 * waits longer than that. One prompt is read at a time, the one with the least left first; when it leaves
 * room in the chunk the next waiting job claims and shares the window. A waiting one with at most half as
 * much to read goes before it, at most INTERRUPTS_MAX times; what was read is kept.
 *
 * With several groups the streams of all of them wait for a chunk, whichever it is read in: the next one may
 * begin when every other group that has streams has begun a window since the last one did. Only while nobody
 * decodes as many prompts are read at once as there are stages to keep busy.
 * Thread: the scheduler's. Tests: tests/unit/test_sched_queue.c, test_sched_groups.c */
#include "sched/parts.h"
#include "util/clock.h"

#define ALONE_MS 250u
#define FIRST_CHUNK 64u /* before any speed was measured */
/* However slow the machine is: prompts must come to their end, and the less is read at once, the longer. */
#define LEAST_ALONE 64u
#define LEAST_BESIDE 16u
#define INTERRUPTS_MAX 2u
#define ANY_GROUP UINT32_MAX

uint32_t reading_left(const struct sched *s, const struct job *j)
{
    return queue_unread(s, j) - j->flying;
}

bool reading_is_stream(const struct sched *s, const struct job *j)
{
    return !atomic_load(&j->paused) && reading_left(s, j) < 2;
}

static uint32_t count_streams(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += reading_is_stream(s, s->running[i]);
    return n;
}

/* ---- how much ---- */

struct chunk reading_chunk(const struct sched *s)
{
    uint32_t streams = count_streams(s), ms = ALONE_MS;
    if (streams) {
        /* More streams than rows take turns, and what lies between two turns of one counts together. */
        uint32_t turns = (streams + s->o.rows - 1) / s->o.rows;
        uint32_t pause = atomic_load(&s->max_pause_ms) / turns;
        ms = pause < ms ? pause : ms;
    }
    return (struct chunk){ .tokens = s->o.chunk_tokens,
                           .ns = (uint64_t)((double)(ms * NS_PER_MS) / s->pace),
                           .least = streams ? LEAST_BESIDE : LEAST_ALONE };
}

uint32_t reading_take(const struct sched *s, struct chunk *c, const struct job *j)
{
    uint32_t from = slots_at(s->h.table, j->at)->n + j->flying, left = reading_left(s, j);
    uint32_t n = c->ns ? prompt_rate_tokens(&s->rate, from, c->ns) : 0;
    if (prompt_rate_measured(&s->rate) <= 0 && n > FIRST_CHUNK)
        n = FIRST_CHUNK;
    if (c->taken + n < c->least)
        n = c->least - c->taken;
    if (n > c->tokens)
        n = c->tokens;
    if (n > left)
        n = left;
    uint64_t ns = prompt_rate_ns(&s->rate, from, from + n);
    c->ns = ns < c->ns ? c->ns - ns : 0;
    c->tokens -= n;
    c->taken += n;
    return n;
}

bool reading_is_full(const struct chunk *c)
{
    return !c->tokens || (!c->ns && c->taken >= c->least);
}

/* ---- who ---- */

static bool goes_before(const struct sched *s, const struct job *a, const struct job *b)
{
    uint32_t left_a = reading_left(s, a), left_b = reading_left(s, b);
    return s->o.by_arrival || left_a == left_b ? a->id < b->id : left_a < left_b;
}

/* The running job that reads next, of a group or of all: the least left first, of equals the one that came
 * first. Those that are up to `than` in that order are passed over. */
static struct job *next_reader(const struct sched *s, uint32_t group, const struct job *than)
{
    struct job *best = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct job *j = s->running[i];
        if (reading_left(s, j) < 2 || atomic_load(&j->paused))
            continue;
        if (group != ANY_GROUP && step_group(s, j->at) != group)
            continue;
        if ((!than || goes_before(s, than, j)) && (!best || goes_before(s, j, best)))
            best = j;
    }
    return best;
}

/* Whether a stream outside of the group has not been served since the last chunk began. One whose prompt is
 * under way has said nothing yet that a pause could follow. */
static bool others_are_due(const struct sched *s, uint32_t group)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct job *j = s->running[i];
        uint32_t g = step_group(s, j->at);
        if (g != group && s->windows[g].begun <= s->chunk_begun && !atomic_load(&j->paused) &&
            queue_unread(s, j) == 1)
            return true;
    }
    return false;
}

/* Beside streams the chunk is for the prompt that is next of all: a longer one in another group would
 * otherwise take every chunk, since the other groups have always just been served when it is planned. */
static bool is_next_of_all(const struct sched *s, uint32_t group)
{
    const struct job *r = next_reader(s, ANY_GROUP, NULL);
    while (r && r->flying)
        r = next_reader(s, ANY_GROUP, r);
    return r && step_group(s, r->at) == group;
}

struct job *reading_next(const struct sched *s, uint32_t group, const struct job *than)
{
    if (!than && count_streams(s) && (others_are_due(s, group) || !is_next_of_all(s, group)))
        return NULL;
    return next_reader(s, group, than);
}

/* ---- letting in ---- */

/* Whether there is room beside what would be read of jobs with at most `most` left. */
static bool has_room(const struct sched *s, uint32_t most)
{
    struct chunk c = reading_chunk(s);
    const struct job *r = NULL;
    uint32_t streams = count_streams(s), readers = 0;
    if (s->o.by_arrival)
        return true; /* as long as there are rows and slots */
    while ((r = next_reader(s, ANY_GROUP, r)) && reading_left(s, r) <= most) {
        if (!reading_is_full(&c))
            reading_take(s, &c, r);
        readers++;
    }
    if (reading_is_full(&c) && (streams || readers >= s->reads_max))
        return false;
    return streams + readers < s->o.rows;
}

/* Lets waiting jobs go before the one that is being read: those with at most half as much to read, as many as
 * there is room for. Jobs with nothing to read but their last token interrupt nobody. */
static void interrupt(struct sched *s, struct job *reader)
{
    uint32_t half = reading_left(s, reader) / 2;
    uint32_t most = reader->interrupted < INTERRUPTS_MAX ? half : 1;
    bool interrupted = false;
    while (s->waiting && has_room(s, half) && claim_next(s, most))
        interrupted |= queue_unread(s, s->running[s->n_running - 1]) > 1;
    reader->interrupted += interrupted;
}

void reading_let_in(struct sched *s)
{
    while (s->waiting && has_room(s, UINT32_MAX))
        if (!claim_next(s, UINT32_MAX))
            return;
    struct job *reader = s->waiting && !s->o.by_arrival ? next_reader(s, ANY_GROUP, NULL) : NULL;
    if (reader)
        interrupt(s, reader);
}
