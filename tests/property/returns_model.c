/* Return times against a list of every wait there ever was: when it began, how long it was seen, how it
 * ended. The histograms must be what their definition makes of the list, at any moment. */
#include "../cases.h"
#include "../unit/slots_rig.h"

#include "slots/returns.h"
#include <math.h>

#define SLOTS 5
#define SEQUENCES 4000
#define STEPS 120

enum fate { GOES_ON, CAME_BACK, LOST };

struct seen {
    uint64_t key;
    int64_t since, until; /* until: where it ended */
    uint32_t stop;
    enum fate fate;
};

struct world {
    struct slots *s;
    struct returns *r;
    struct seen waits[STEPS * 2];
    uint32_t n;
    int64_t now;
    uint64_t seed;
};

static uint32_t below(struct world *w, uint32_t n)
{
    w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->seed >> 33) % n;
}

/* From nanoseconds to days, each octave about as likely. */
static int64_t some_time(struct world *w)
{
    return (int64_t)exp2(below(w, 480) / 10.0);
}

static void compare(struct world *w)
{
    const struct policy_returns *is = returns_at(w->r, w->now);
    for (uint32_t k = 0; k < POLICY_STOPS; k++) {
        cr_assert_eq(is[k].bins, RETURNS_BINS);
        for (uint32_t b = 0; b < RETURNS_BINS; b++) {
            double edge = b ? 0.25e9 * exp2((b - 1) / 2.0) : 0; /* half octaves, from a quarter second on */
            uint64_t at_risk = 0, returned = 0;
            cr_assert(fabs((double)is[k].edges_ns[b] - edge) <= 1 + edge * 1e-12, "edge %u", b);
            int64_t from = (int64_t)is[k].edges_ns[b];
            int64_t to = b + 1 < RETURNS_BINS ? (int64_t)is[k].edges_ns[b + 1] : INT64_MAX;
            for (uint32_t i = 0; i < w->n; i++) {
                const struct seen *x = &w->waits[i];
                int64_t age = (x->fate == GOES_ON ? w->now : x->until) - x->since;
                if (age < 0)
                    age = 0;
                if (x->stop != k)
                    continue;
                at_risk += age >= from;
                returned += x->fate == CAME_BACK && age >= from && age < to;
            }
            cr_assert_eq(is[k].at_risk[b], at_risk, "stop %u bin %u: %lu at risk, not %lu", k, b,
                         is[k].at_risk[b], at_risk);
            cr_assert_eq(is[k].returned[b], returned, "stop %u bin %u: %lu came back, not %lu", k, b,
                         is[k].returned[b], returned);
        }
    }
}

static struct seen *waiting(struct world *w, uint64_t key)
{
    for (uint32_t i = w->n; key && i-- > 0;)
        if (w->waits[i].key == key && w->waits[i].fate == GOES_ON)
            return &w->waits[i];
    return NULL;
}

/* Whether another history than i is what that request left. */
static bool elsewhere(const struct world *w, uint32_t i, uint64_t key)
{
    for (uint32_t j = 0; j <= SLOTS; j++)
        if (j != i && slots_at(w->s, j)->n && !slots_at(w->s, j)->cut &&
            slots_at(w->s, j)->label.request_key == key)
            return true;
    return false;
}

static void lose(struct world *w, uint32_t i)
{
    uint64_t key = slots_at(w->s, i)->label.request_key;
    struct seen *x = waiting(w, key);
    if (x && !elsewhere(w, i, key)) {
        x->fate = LOST;
        x->until = w->now;
    }
    returns_lost(w->r, w->s, i, w->now);
}

static void request(struct world *w, uint32_t at, uint64_t key)
{
    static const uint32_t stops[] = { POLICY_STOP_END_TURN, POLICY_STOP_TOOL_USE, POLICY_STOP_LENGTH,
                                      POLICY_STOP_CANCELLED };
    static const enum slots_end ends[] = { SLOTS_END_STOP, SLOTS_END_TOOL_USE, SLOTS_END_LENGTH,
                                           SLOTS_END_CANCEL };
    struct slots_request r = { .request_key = key };
    uint32_t how = below(w, 4);
    struct seen *x = waiting(w, slots_at(w->s, at)->label.request_key);
    if (x && below(w, 2)) { /* the next turn: it may have stood in the queue since some earlier moment */
        int64_t came = w->now - some_time(w);
        x->fate = CAME_BACK;
        x->until = came;
        returns_back(w->r, x->key, came);
    } else {
        lose(w, at);
    }
    cr_assert_eq(slots_begin(w->s, at, SLOTS_NONE, 0, &r), 0);
    rig_append(w->s, at, 100, 20);
    w->now += some_time(w) / 16;
    cr_assert_eq(slots_end(w->s, at, ends[how], w->now), 0);
    returns_wait(w->r, key, stops[how], w->now);
    w->waits[w->n++] = (struct seen){ .key = key, .since = w->now, .stop = stops[how] };
}

static void operate(struct world *w, uint64_t key)
{
    uint32_t at = below(w, SLOTS + 1), n = slots_at(w->s, at)->n;
    w->now += some_time(w);
    switch (below(w, 6)) {
    case 0:
        if (n) {
            lose(w, at);
            cr_assert_eq(slots_cut(w->s, at, below(w, n)), 0);
        }
        break;
    case 1:
        if (at < SLOTS && slots_at(w->s, SLOTS)->n && !slots_at(w->s, SLOTS)->cut) {
            lose(w, at);
            cr_assert_eq(slots_park(w->s, at), 0);
        }
        break;
    default:
        request(w, at, key);
        break;
    }
    if (below(w, 4) == 0)
        compare(w);
}

Test(returns_model, the_histograms_are_what_their_words_say, .timeout = 120)
{
    static struct world w;
    struct slots_options o = { .n_slots = SLOTS, .group_slots = SLOTS, .turn_token = TURN, .key = { 1, 2 } };
    for (uint64_t i = 0; i < cases_of(SEQUENCES, 8); i++) {
        w.seed = i;
        w.n = 0;
        w.now = SEC(1000);
        cr_assert_eq(slots_new(&o, &w.s), 0);
        cr_assert_eq(returns_new(SLOTS + 1, &w.r), 0);
        for (uint64_t k = 1; k <= STEPS; k++)
            operate(&w, k);
        compare(&w);
        returns_free(w.r);
        slots_free(w.s);
    }
}

Test(returns, more_waits_than_there_is_room_for_push_out_the_oldest)
{
    struct returns *r;
    cr_assert_eq(returns_new(2, &r), 0);
    for (uint64_t key = 1; key <= 3; key++)
        returns_wait(r, key, POLICY_STOP_TOOL_USE, SEC(key));
    returns_back(r, 1, SEC(10));
    const struct policy_returns *view = returns_at(r, SEC(10));
    cr_expect_eq(view[POLICY_STOP_TOOL_USE].at_risk[0], 3);
    for (uint32_t b = 0; b < RETURNS_BINS; b++)
        cr_expect_eq(view[POLICY_STOP_TOOL_USE].returned[b], 0, "the first was given up at 3 s");
    returns_back(r, 2, SEC(3));
    cr_expect_eq(view[POLICY_STOP_TOOL_USE].returned[5], 1, "1 s: between 1 and 1.41");
    returns_free(r);
}
