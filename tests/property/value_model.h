/* The rules of the value policy once more, written from their text and from nothing else: plain arrays, every
 * word computed for every slot, no thought of speed. It shares no line with plugins/value.c or
 * policy_words.h, so that the two can only agree by both being right.
 *
 * A choice is a list of candidates, each with the numbers it is ordered by; the least list wins. Where the
 * text and the recorded decisions differ, the latter count: of identical copies the slot with the lower id
 * supersedes the others whether it is idle or busy. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MODEL_SLOTS 16
#define MODEL_MAIN MODEL_SLOTS /* main's place in the arrays */
#define MODEL_ALL (MODEL_SLOTS + 1)
#define MODEL_NOWHERE (-1)

struct model {
    /* settings */
    double ttl_max_s, expired_keep_score, idle_value_zero_s, park_value_ratio, park_min_value,
        park_kept_share;
    /* the table */
    int n;
    bool padding_safe, has_main;
    double prompt_tokens_per_s;
    int64_t now;
    uint32_t id[MODEL_ALL], group[MODEL_ALL];
    bool busy[MODEL_ALL], excluded[MODEL_ALL], held[MODEL_ALL], reliable[MODEL_ALL];
    uint32_t tokens[MODEL_ALL], turn_tokens[MODEL_ALL], shared_prompt[MODEL_ALL];
    int64_t last_use[MODEL_ALL];
    uint32_t shared[MODEL_ALL][MODEL_ALL];
    /* found by model_judge */
    bool superseded[MODEL_ALL], blank[MODEL_ALL], is_protected[MODEL_ALL], row[MODEL_ALL], is_free[MODEL_ALL];
    bool continued[MODEL_ALL]; /* reliable, and the prompt continues it */
    double age[MODEL_ALL], ttl[MODEL_ALL], retention[MODEL_ALL], value[MODEL_ALL], give_up[MODEL_ALL];
    double collateral[MODEL_ALL], loss[MODEL_ALL];
    int rank[MODEL_ALL], rows[MODEL_ALL]; /* rows of its group */
};

struct model_place {
    int slot, source; /* MODEL_NOWHERE, a slot, MODEL_MAIN */
    const char *reason;
    double loss;
    uint64_t tokens_lost;
    bool candidate[MODEL_SLOTS];
    double candidate_loss[MODEL_SLOTS];
    bool tied; /* slot order decided something, or one of several equal sources was named */
};

struct model_park {
    int slot;
    const char *reason;
    bool tied;
};

/* ---- curves ---- */

static double model_ttl(const struct model *m, double n)
{
    const double at[] = { 0, 500, 2000, 8000, 32000, 50000, 100000, 262144 };
    const double seconds[] = { 0, 0.1, 2, 10, 45, 65, 90, 120 };
    int i = 1;
    if (n >= 262144)
        return 120 * (m->ttl_max_s / 120);
    while (n > at[i])
        i++;
    double y = seconds[i - 1] + (seconds[i] - seconds[i - 1]) * (n - at[i - 1]) / (at[i] - at[i - 1]);
    return y * (m->ttl_max_s / 120);
}

static double model_base(double n)
{
    return n > 0 ? pow(n / 50000, 0.7) * pow(n / (n + 2000), 2) : 0;
}

static double model_x(const struct model *m, double age, double ttl)
{
    if (m->idle_value_zero_s == 0 || age < ttl)
        return 0;
    if (m->idle_value_zero_s <= ttl)
        return 1;
    return fmax(0, fmin(1, (age - ttl) / (m->idle_value_zero_s - ttl)));
}

/* ---- words ---- */

static bool model_superseded_by(const struct model *m, int a, int b)
{
    if (a == b || !m->reliable[a] || !m->reliable[b] || m->busy[a])
        return false;
    if (!(m->shared[a][b] >= m->turn_tokens[a] && m->turn_tokens[a] > 0))
        return false;
    if (!(m->tokens[b] >= m->tokens[a] && m->last_use[b] >= m->last_use[a]))
        return false;
    bool more = m->tokens[b] > m->tokens[a] || m->last_use[b] > m->last_use[a];
    bool identical =
        m->tokens[b] == m->tokens[a] && m->last_use[b] == m->last_use[a] && m->shared[a][b] == m->tokens[a];
    return more || (identical && b != MODEL_MAIN && m->id[a] > m->id[b]);
}

/* Whether i exists. */
static bool model_has(const struct model *m, int i)
{
    return i < m->n || (i == MODEL_MAIN && m->has_main);
}

static void model_judge_one(struct model *m, int i)
{
    m->superseded[i] = false;
    for (int b = 0; i != MODEL_MAIN && b < MODEL_ALL; b++)
        if (model_has(m, b) && model_superseded_by(m, i, b))
            m->superseded[i] = true;
    m->blank[i] = m->tokens[i] == 0 || !m->reliable[i] || m->superseded[i];
    m->row[i] = i != MODEL_MAIN && (m->busy[i] || m->excluded[i]);
    m->is_free[i] = i != MODEL_MAIN && !m->busy[i] && !m->excluded[i] && !m->held[i];
    m->continued[i] = m->reliable[i] && m->turn_tokens[i] > 0 && m->shared_prompt[i] >= m->turn_tokens[i];
    m->age[i] = m->now > m->last_use[i] ? (double)(m->now - m->last_use[i]) / 1e9 : 0;
    m->ttl[i] = model_ttl(m, m->tokens[i]);
    m->is_protected[i] = !m->blank[i] && m->age[i] < m->ttl[i];
    double base = model_base(m->tokens[i]), x = model_x(m, m->age[i], m->ttl[i]);
    double fresh = m->age[i] < m->ttl[i] ? 1 - m->age[i] / m->ttl[i] : 0;
    m->retention[i] = m->blank[i] ? 0 : base * (0.25 + 0.75 * fresh);
    m->value[i] = m->blank[i] ? 0 : base * 0.25 * (1 - x * x);
    m->give_up[i] = m->blank[i]          ? 0
                    : m->is_protected[i] ? m->retention[i] / m->tokens[i]
                                         : m->value[i] / m->tokens[i];
}

static bool model_row_above(const struct model *m, int s)
{
    for (int k = 0; k < m->n; k++)
        if (m->group[k] == m->group[s] && m->rank[k] > m->rank[s] && m->row[k])
            return true;
    return false;
}

static void model_judge(struct model *m)
{
    for (int i = 0; i < MODEL_ALL; i++)
        if (model_has(m, i))
            model_judge_one(m, i);
    for (int i = 0; i < m->n; i++) {
        m->rank[i] = m->rows[i] = 0;
        for (int k = 0; k < m->n; k++) {
            m->rank[i] += m->group[k] == m->group[i] && m->id[k] < m->id[i];
            m->rows[i] += m->group[k] == m->group[i] && m->row[k];
        }
    }
    for (int i = 0; i < m->n; i++) {
        m->collateral[i] = 0;
        for (int k = 0; k < m->n && !m->padding_safe; k++)
            if (m->group[k] == m->group[i] && m->rank[k] < m->rank[i] && !m->row[k] && m->is_protected[k] &&
                !model_row_above(m, k))
                m->collateral[i] += m->retention[k];
        m->loss[i] = m->blank[i] ? 0 : m->is_protected[i] ? m->retention[i] : m->value[i];
        m->loss[i] += m->collateral[i];
    }
}

/* ---- choosing ---- */

struct model_choice {
    int slot;
    double key[6];
    bool tied;
};

/* Takes slot s if its numbers, slot order after them, are less than those of the best so far. */
static void model_offer(const struct model *m, struct model_choice *best, int s, const double *key)
{
    double full[6] = { key[0], key[1], key[2], key[3], m->rank[s], m->group[s] };
    int differ = 0;
    while (best->slot != MODEL_NOWHERE && differ < 6 && !(full[differ] < best->key[differ]) &&
           !(full[differ] > best->key[differ]))
        differ++;
    if (best->slot != MODEL_NOWHERE && differ >= 4)
        best->tied = true;
    if (best->slot != MODEL_NOWHERE && !(full[differ] < best->key[differ]))
        return;
    best->tied = best->slot != MODEL_NOWHERE && differ >= 4;
    best->slot = s;
    memcpy(best->key, full, sizeof full);
}

static bool model_keep(const struct model *m, int s)
{
    return !m->blank[s] && m->loss[s] >= m->expired_keep_score;
}

static void model_candidate(struct model_place *a, int s, double loss)
{
    a->candidate[s] = true;
    a->candidate_loss[s] = loss;
}

static struct model_choice model_continue(const struct model *m, struct model_place *a)
{
    struct model_choice best = { .slot = MODEL_NOWHERE };
    uint32_t most = 0;
    bool source[MODEL_ALL] = { false }, any = false;
    for (int i = 0; i < MODEL_ALL; i++)
        if (model_has(m, i) && m->continued[i] && m->shared_prompt[i] > most)
            most = m->shared_prompt[i];
    double margin = fmin(0.02 * most, 4096);
    if (m->prompt_tokens_per_s > 0)
        margin = fmin(margin, m->prompt_tokens_per_s);
    for (int i = 0; i < MODEL_ALL; i++)
        source[i] = model_has(m, i) && m->continued[i] && m->shared_prompt[i] >= most - margin;
    for (int i = 0; i < m->n; i++)
        any = any || (source[i] && m->is_free[i]);
    if (!any)
        return best;
    for (int i = 0; i < m->n; i++) {
        if (!m->is_free[i] || !(source[i] || (m->blank[i] && m->collateral[i] == 0)))
            continue;
        double shared = m->reliable[i] ? m->shared_prompt[i] : 0;
        double key[4] = { m->rows[i], !source[i], -shared, 0 };
        model_offer(m, &best, i, key);
        model_candidate(a, i, source[i] ? m->collateral[i] : m->loss[i]);
    }
    a->reason = source[best.slot] ? "continue" : "continue_moved";
    a->loss = source[best.slot] ? m->collateral[best.slot] : m->loss[best.slot];
    return best;
}

static struct model_choice model_new_place(const struct model *m, struct model_place *a)
{
    struct model_choice best = { .slot = MODEL_NOWHERE };
    for (int i = 0; i < m->n; i++) {
        if (!m->is_free[i] || m->is_protected[i] || m->collateral[i] > 0)
            continue;
        double key[4] = { model_keep(m, i), m->rows[i], m->loss[i], !m->blank[i] };
        model_offer(m, &best, i, key);
        model_candidate(a, i, m->loss[i]);
    }
    if (best.slot == MODEL_NOWHERE)
        return best;
    a->loss = m->loss[best.slot];
    a->reason = m->blank[best.slot] ? "new_blank" : model_keep(m, best.slot) ? "new_kept" : "new_expired";
    return best;
}

static struct model_choice model_overwrite(const struct model *m, struct model_place *a)
{
    struct model_choice best = { .slot = MODEL_NOWHERE };
    double least = INFINITY;
    for (int i = 0; i < m->n; i++)
        if (m->is_free[i])
            least = fmin(least, m->loss[i]);
    for (int i = 0; i < m->n; i++) {
        if (!m->is_free[i])
            continue;
        double key[4] = { m->rows[i], m->loss[i], !m->blank[i], 0 };
        if (m->loss[i] <= 1.10 * least)
            model_offer(m, &best, i, key);
        model_candidate(a, i, m->loss[i]);
    }
    a->reason = "protected_overwritten";
    a->loss = best.slot == MODEL_NOWHERE ? 0 : m->loss[best.slot];
    return best;
}

static void model_source(const struct model *m, struct model_place *a)
{
    uint32_t most = 0;
    int equals = 0;
    a->source = MODEL_NOWHERE;
    for (int i = 0; i < MODEL_ALL; i++)
        if (model_has(m, i) && m->reliable[i] && m->shared_prompt[i] > most)
            most = m->shared_prompt[i];
    if (!most)
        return;
    for (int i = 0; i < m->n; i++) {
        if (!m->reliable[i] || m->shared_prompt[i] != most)
            continue;
        equals++;
        if (a->source == MODEL_NOWHERE || m->id[i] < m->id[a->source])
            a->source = i;
    }
    if (m->has_main && m->reliable[MODEL_MAIN] && m->shared_prompt[MODEL_MAIN] == most)
        a->source = MODEL_MAIN;
    if (m->reliable[a->slot] && m->shared_prompt[a->slot] == most)
        a->source = a->slot;
    a->tied = a->tied || (equals > 1 && a->source != MODEL_MAIN && a->source != a->slot);
}

static struct model_place model_place(const struct model *m)
{
    struct model_place a = { .slot = MODEL_NOWHERE, .source = MODEL_NOWHERE, .reason = "none" };
    struct model_choice c = model_continue(m, &a);
    if (c.slot == MODEL_NOWHERE)
        c = model_new_place(m, &a);
    if (c.slot == MODEL_NOWHERE)
        c = model_overwrite(m, &a);
    if (c.slot == MODEL_NOWHERE) {
        a.reason = "none";
        return a;
    }
    int s = a.slot = c.slot;
    a.tied = c.tied;
    model_source(m, &a);
    if (m->blank[s] || m->continued[s])
        a.tokens_lost = 0;
    else if (a.source == MODEL_NOWHERE)
        a.tokens_lost = m->tokens[s];
    else
        a.tokens_lost = m->tokens[s] - (a.source == s ? m->shared_prompt[s] : m->shared[s][a.source]);
    return a;
}

/* ---- park ---- */

static const char *model_refusal(const struct model *m)
{
    const int main = MODEL_MAIN;
    if (!m->has_main || m->tokens[main] == 0 || !m->reliable[main])
        return "no_main";
    if (m->turn_tokens[main] > 0 && m->shared_prompt[main] >= m->turn_tokens[main])
        return "same_conversation";
    if (m->value[main] < m->expired_keep_score || m->value[main] < m->park_min_value)
        return "main_low_value";
    for (int i = 0; i < m->n; i++)
        if (m->reliable[i] && !m->excluded[i] &&
            m->shared[i][main] >= m->park_kept_share * (double)m->tokens[main])
            return "already_kept";
    return NULL;
}

static struct model_park model_park(const struct model *m)
{
    struct model_choice copy = { .slot = MODEL_NOWHERE }, other = { .slot = MODEL_NOWHERE };
    const char *refused = model_refusal(m);
    if (refused)
        return (struct model_park){ .slot = MODEL_NOWHERE, .reason = refused };
    for (int i = 0; i < m->n; i++) {
        if (!m->is_free[i] || (!m->padding_safe && model_row_above(m, i)))
            continue;
        if (model_superseded_by(m, i, MODEL_MAIN)) {
            double key[4] = { -(double)m->shared[i][MODEL_MAIN], 0, 0, 0 };
            model_offer(m, &copy, i, key);
            continue;
        }
        bool keep = !m->blank[i] && m->value[i] >= m->expired_keep_score;
        bool outdone = m->park_value_ratio > 0 && m->value[MODEL_MAIN] >= m->park_value_ratio * m->value[i];
        if (m->is_protected[i] || (keep && !outdone))
            continue;
        double key[4] = { keep, m->rows[i], m->value[i], !m->blank[i] };
        model_offer(m, &other, i, key);
    }
    if (copy.slot != MODEL_NOWHERE)
        return (struct model_park){ .slot = copy.slot, .reason = "own_copy", .tied = copy.tied };
    return (struct model_park){ .slot = other.slot,
                                .reason = other.slot == MODEL_NOWHERE ? "no_destination" : "parked",
                                .tied = other.tied };
}
