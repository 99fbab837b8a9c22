/* What padded windows destroy: random requests, copies and windows over a table, against a model that keeps
 * all windows that ever began and asks of each history whether one of them lay on it: one that began after it
 * came to rest in its slot, with a higher slot of its group among its rows. */
#include "../cases.h"
#include "slots/padding.h"
#include <criterion/criterion.h>
#include <stdlib.h>

#define SLOTS 12u
#define STEPS 4000u

struct begun { /* a window */
    uint32_t time, group, last;
};

/* What the model knows of a slot: nothing of what the table makes of it. */
struct rest {
    bool there, busy;
    bool bad;       /* it came from a history that was lost */
    uint32_t since; /* when it came to rest here */
};

struct model {
    struct slots *table;
    uint32_t group_slots, now, n_windows;
    struct begun windows[STEPS];
    struct rest at[SLOTS + 1];
    uint32_t lost, kept;
};

static uint64_t x;

static uint32_t below(uint32_t n)
{
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((x >> 33) % n);
}

static bool is_bad(const struct model *m, uint32_t i)
{
    const struct rest *r = &m->at[i];
    bool bad = r->there && !r->busy && r->bad;
    for (uint32_t k = 0; k < m->n_windows && r->there && !r->busy && i < SLOTS; k++) {
        const struct begun *w = &m->windows[k];
        bad |= w->time > r->since && w->group == i / m->group_slots && w->last > i;
    }
    return bad;
}

static void rests(struct model *m, uint32_t i, bool bad)
{
    bool there = slots_at(m->table, i)->n > 0;
    m->at[i] = (struct rest){ .there = there, .bad = there && bad, .since = m->now };
}

static void window(struct model *m)
{
    uint32_t group = below(SLOTS / m->group_slots), active[SLOTS], lost[SLOTS], n = 0, last = 0;
    for (uint32_t i = 0; i < m->group_slots; i++) {
        uint32_t slot = group * m->group_slots + (i * 5 + 3) % m->group_slots;
        if (!m->at[slot].busy || below(4) == 0)
            continue;
        active[n++] = slot;
        last = slot > last ? slot : last;
    }
    uint32_t n_lost = padding_lost(m->table, active, n, lost);
    for (uint32_t i = 0; i < n_lost; i++) {
        cr_assert(i == 0 || lost[i] > lost[i - 1]);
        slots_set_reliable(m->table, lost[i], false);
    }
    m->lost += n_lost;
    if (n)
        m->windows[m->n_windows++] = (struct begun){ .time = m->now, .group = group, .last = last };
}

static void append(struct model *m, uint32_t i)
{
    int32_t tokens[8];
    uint32_t n = 1 + below(8);
    for (uint32_t k = 0; k < n; k++)
        tokens[k] = (int32_t)below(3);
    cr_assert_eq(slots_append(m->table, i, tokens, n), 0);
    m->at[i].there = true;
}

static void begin(struct model *m, uint32_t i, uint32_t j)
{
    struct slots_request r = { .request_key = m->now };
    bool whole = m->at[j].there && !is_bad(m, j) && below(3);
    uint32_t n = whole ? slots_at(m->table, j)->n : 0;
    if (m->at[i].busy)
        return;
    cr_assert_eq(slots_begin(m->table, i, n ? j : SLOTS_NONE, n, &r), 0);
    m->at[i] = (struct rest){ .there = n > 0, .busy = true };
    if (below(8))
        append(m, i);
}

static void end(struct model *m, uint32_t i)
{
    if (!m->at[i].busy)
        return;
    cr_assert_eq(slots_end(m->table, i, SLOTS_END_STOP, m->now), 0);
    rests(m, i, false);
}

static void copy(struct model *m, uint32_t i, uint32_t j)
{
    bool bad = is_bad(m, j);
    if (i == j || m->at[i].busy || i == SLOTS)
        return;
    uint32_t n = below(slots_at(m->table, j)->n + 1);
    cr_assert_eq(slots_copy(m->table, j, i, n), 0);
    rests(m, i, bad);
}

static void hand_over(struct model *m, uint32_t i, uint32_t j)
{
    if (i == j || !m->at[i].busy || m->at[j].busy)
        return;
    cr_assert_eq(slots_hand_over(m->table, i, j, m->now), 0);
    m->at[j] = (struct rest){ .there = slots_at(m->table, j)->n > 0, .busy = true };
    rests(m, i, false);
}

static void swap(struct model *m, uint32_t i, uint32_t j)
{
    bool bad_i = is_bad(m, i), bad_j = is_bad(m, j);
    struct rest was_i = m->at[i], was_j = m->at[j];
    if (i == j)
        return;
    cr_assert_eq(slots_swap(m->table, i, j), 0);
    m->at[i] = (struct rest){ was_j.there, was_j.busy, bad_j, m->now };
    m->at[j] = (struct rest){ was_i.there, was_i.busy, bad_i, m->now };
}

static void give_up(struct model *m, uint32_t i)
{
    if (m->at[i].busy)
        return;
    uint32_t n = below(slots_at(m->table, i)->n + 1);
    cr_assert_eq(slots_cut(m->table, i, n), 0);
    if (!n)
        m->at[i] = (struct rest){ 0 };
}

static void check(struct model *m)
{
    for (uint32_t i = 0; i <= SLOTS; i++) {
        cr_assert_eq(slots_at(m->table, i)->reliable, !is_bad(m, i), "step %u, slot %u", m->now, i);
        m->kept += m->at[i].there && !m->at[i].busy && !is_bad(m, i);
    }
}

static void run(uint32_t group_slots, uint64_t seed)
{
    struct slots_options o = { .n_slots = SLOTS, .group_slots = group_slots, .turn_token = 1 };
    struct model *m = calloc(1, sizeof *m);
    cr_assert(m && slots_new(&o, &m->table) == 0);
    m->group_slots = group_slots;
    x = seed;
    for (m->now = 1; m->now < STEPS; m->now++) {
        uint32_t dice = below(20), i = below(SLOTS + 1), j = below(SLOTS + 1);
        if (dice < 8)
            window(m);
        else if (dice < 12)
            begin(m, i, j);
        else if (dice < 15)
            end(m, i);
        else if (dice < 16)
            copy(m, i, j);
        else if (dice < 17)
            hand_over(m, i, j);
        else if (dice < 18)
            swap(m, i, j);
        else if (dice < 19)
            give_up(m, i);
        else if (m->at[i].busy)
            append(m, i);
        check(m);
    }
    if (group_slots > 1)
        cr_expect_gt(m->lost, 100, "something was lost");
    else
        cr_expect_eq(m->lost, 0, "nothing lies below the only slot");
    cr_expect_gt(m->kept, STEPS / 4, "and something was not");
    slots_free(m->table);
    free(m);
}

Test(padding_model, a_history_is_lost_with_the_first_window_that_begins_after_it_came_to_rest)
{
    for (uint64_t seed = 1; seed <= cases_of(10, 5); seed++) {
        run(12, seed);
        run(4, seed);
        run(1, seed);
    }
}
