/* Returns: see returns.h. */
#include "slots/returns.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_EDGE_NS UINT64_C(250000000)

struct wait {
    uint64_t key;
    int64_t since_ns;
    uint32_t stop;
    uint32_t bins; /* it was counted at risk in so many */
};

struct returns {
    uint64_t edges_ns[RETURNS_BINS];
    uint64_t at_risk[POLICY_STOPS][RETURNS_BINS], returned[POLICY_STOPS][RETURNS_BINS];
    struct policy_returns view[POLICY_STOPS];
    uint32_t n, cap;
    struct wait *waits; /* by age, the oldest first */
};

int returns_new(uint32_t max_waits, struct returns **ret_returns)
{
    struct returns *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->cap = max_waits ? max_waits : 1;
    r->waits = calloc(r->cap, sizeof *r->waits);
    if (!r->waits) {
        free(r);
        return -ENOMEM;
    }
    for (uint32_t i = 1; i < RETURNS_BINS; i++) {
        uint64_t octave = FIRST_EDGE_NS << (i - 1) / 2;
        r->edges_ns[i] = i % 2 ? octave : (uint64_t)((double)octave * 1.4142135623730951);
    }
    for (uint32_t k = 0; k < POLICY_STOPS; k++)
        r->view[k] = (struct policy_returns){ .edges_ns = r->edges_ns,
                                              .at_risk = r->at_risk[k],
                                              .returned = r->returned[k],
                                              .bins = RETURNS_BINS };
    *ret_returns = r;
    return 0;
}

void returns_free(struct returns *r)
{
    if (!r)
        return;
    free(r->waits);
    free(r);
}

static uint64_t age_at(const struct wait *w, int64_t now_ns)
{
    return now_ns > w->since_ns ? (uint64_t)(now_ns - w->since_ns) : 0;
}

static void advance(struct returns *r, struct wait *w, int64_t now_ns)
{
    uint64_t age = age_at(w, now_ns);
    while (w->bins < RETURNS_BINS && age >= r->edges_ns[w->bins])
        r->at_risk[w->stop][w->bins++]++;
}

static struct wait *find(struct returns *r, uint64_t key)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->waits[i].key == key)
            return &r->waits[i];
    return NULL;
}

static void drop(struct returns *r, struct wait *w)
{
    size_t at = (size_t)(w - r->waits);
    memmove(w, w + 1, (r->n - at - 1) * sizeof *w);
    r->n--;
}

static void end(struct returns *r, struct wait *w, int64_t now_ns)
{
    advance(r, w, now_ns);
    drop(r, w);
}

void returns_wait(struct returns *r, uint64_t request_key, uint32_t stop_reason, int64_t now_ns)
{
    struct wait *known = find(r, request_key);
    if (known)
        end(r, known, now_ns);
    if (r->n == r->cap)
        end(r, &r->waits[0], now_ns);
    r->waits[r->n] = (struct wait){ .key = request_key,
                                    .since_ns = now_ns,
                                    .stop = stop_reason < POLICY_STOPS ? stop_reason : POLICY_STOP_NONE };
    advance(r, &r->waits[r->n++], now_ns);
}

void returns_back(struct returns *r, uint64_t request_key, int64_t at_ns)
{
    struct wait *w = find(r, request_key);
    if (!w)
        return;
    advance(r, w, at_ns);
    uint64_t age = age_at(w, at_ns);
    /* It may have been counted on while the turn stood in the queue. */
    while (w->bins > 1 && r->edges_ns[w->bins - 1] > age)
        r->at_risk[w->stop][--w->bins]--;
    r->returned[w->stop][w->bins - 1]++;
    drop(r, w);
}

void returns_lost(struct returns *r, const struct slots *s, uint32_t i, int64_t now_ns)
{
    uint64_t key = slots_at(s, i)->label.request_key;
    struct wait *w = find(r, key);
    for (uint32_t j = 0; w && j <= slots_options(s)->n_slots; j++) {
        const struct slots_history *h = slots_at(s, j);
        if (j != i && h->n && !h->busy && !h->cut && h->label.request_key == key)
            return;
    }
    if (w)
        end(r, w, now_ns);
}

const struct policy_returns *returns_at(struct returns *r, int64_t now_ns)
{
    for (uint32_t i = 0; i < r->n; i++)
        advance(r, &r->waits[i], now_ns);
    return r->view;
}
