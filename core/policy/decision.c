/* Decision: see decision.h. Copies are laid out twice by the same code: first to count the bytes, then into
 * one block of that size. */
#include "policy/decision.h"
#include "abi/policy_words.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_LIMIT 4096u
#define BINS_LIMIT 65536u

const char *policy_call_name(enum policy_call call)
{
    static const char *const names[POLICY_CALLS] = {
        [POLICY_CALL_PLACE] = "place",
        [POLICY_CALL_PARK] = "park_destination",
        [POLICY_CALL_STATE] = "cache_state",
        [POLICY_CALL_SUPERSEDED] = "superseded_slots",
    };
    return names[call];
}

/* ---- one block ---- */

struct block {
    char *base; /* NULL: counting only */
    size_t used;
};

/* The next len bytes, aligned; NULL while counting. */
static void *take(struct block *b, size_t len)
{
    char *at = b->base ? b->base + b->used : NULL;
    b->used += (len + 15) & ~(size_t)15;
    return at;
}

static const void *take_copy(struct block *b, const void *from, size_t len)
{
    if (!from)
        return NULL;
    void *at = take(b, len);
    if (at)
        memcpy(at, from, len);
    return at;
}

static const char *take_text(struct block *b, const char *text)
{
    return text ? take_copy(b, text, strlen(text) + 1) : NULL;
}

/* n elements that lie from_stride apart: `len` bytes of each, to_stride apart, zero between. */
static const void *take_elements(struct block *b, const void *from, uint32_t n, uint32_t from_stride,
                                 size_t len, uint32_t to_stride)
{
    if (!from)
        return NULL;
    char *at = take(b, (size_t)n * to_stride);
    for (uint32_t i = 0; at && i < n; i++) {
        memcpy(at + (size_t)i * to_stride, policy_element(from, i, from_stride), len);
        memset(at + (size_t)i * to_stride + len, 0, to_stride - len);
    }
    return at;
}

/* ---- tables ---- */

static uint32_t larger(size_t ours, uint32_t theirs)
{
    uint32_t n = theirs > ours ? theirs : (uint32_t)ours;
    return (n + 7) & ~7u; /* every element aligned */
}

static const struct policy_returns *take_returns(struct block *b, const struct policy_snapshot *from,
                                                 uint32_t stride)
{
    char *rows = take(b, (size_t)from->n_returns * stride);
    if (rows)
        memset(rows, 0, (size_t)from->n_returns * stride);
    for (uint32_t i = 0; i < from->n_returns; i++) {
        const struct policy_returns *r = policy_element(from->returns, i, from->returns_stride);
        struct policy_returns copy = { .bins = r->bins };
        size_t len = r->bins * sizeof *r->edges_ns;
        copy.edges_ns = r->bins ? take_copy(b, r->edges_ns, len) : NULL;
        copy.at_risk = r->bins ? take_copy(b, r->at_risk, len) : NULL;
        copy.returned = r->bins ? take_copy(b, r->returned, len) : NULL;
        if (rows)
            memcpy(rows + (size_t)i * stride, &copy, sizeof copy);
    }
    return (const struct policy_returns *)(void *)rows;
}

static const uint32_t *take_shared(struct block *b, const struct policy_snapshot *from)
{
    uint32_t n = from->n_slots + 1, row = n * (uint32_t)sizeof *from->shared;
    return take_elements(b, from->shared, n, from->shared_stride, row, row);
}

static struct policy_snapshot *take_table(struct block *b, const struct policy_snapshot *from,
                                          const struct policy_table_sizes *sizes)
{
    uint32_t size = larger(sizeof *from, sizes->snapshot);
    struct policy_snapshot *to = take(b, size);
    struct policy_snapshot view = *from;
    size_t history = sizeof(struct policy_history), group = sizeof(struct policy_group);
    view.size = size;
    view.slot_stride = larger(history, sizes->history);
    view.group_stride = larger(group, sizes->group);
    view.returns_stride = from->returns ? larger(sizeof(struct policy_returns), sizes->returns) : 0;
    view.n_returns = from->returns ? from->n_returns : 0;
    view.slots = take_elements(b, from->slots, from->n_slots, from->slot_stride, history, view.slot_stride);
    view.main_history = take_elements(b, from->main_history, 1, 0, history, view.slot_stride);
    view.groups =
        take_elements(b, from->groups, from->n_groups, from->group_stride, group, view.group_stride);
    view.shared = take_shared(b, from);
    view.shared_stride = from->shared ? (from->n_slots + 1) * (uint32_t)sizeof *from->shared : 0;
    view.returns = from->returns ? take_returns(b, from, view.returns_stride) : NULL;
    if (to) {
        memset(to, 0, size);
        memcpy(to, &view, sizeof view);
    }
    return to;
}

static int check_table(const struct policy_snapshot *s)
{
    if (!s->n_slots || s->n_slots > POLICY_SLOTS_MAX || s->n_groups > POLICY_SLOTS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; s->returns && i < s->n_returns; i++)
        if (((const struct policy_returns *)policy_element(s->returns, i, s->returns_stride))->bins >
                BINS_LIMIT ||
            i > BINS_LIMIT)
            return -EINVAL;
    return 0;
}

int policy_table_copy(const struct policy_snapshot *from, const struct policy_table_sizes *sizes,
                      struct policy_snapshot **ret_snapshot)
{
    struct policy_table_sizes want = sizes ? *sizes : (struct policy_table_sizes){ 0 };
    struct block b = { 0 };
    if (want.snapshot > SIZE_LIMIT || want.history > SIZE_LIMIT || want.group > SIZE_LIMIT ||
        want.returns > SIZE_LIMIT || check_table(from) < 0)
        return -EINVAL;
    take_table(&b, from, &want);
    b.base = malloc(b.used);
    if (!b.base)
        return -ENOMEM;
    b.used = 0;
    *ret_snapshot = take_table(&b, from, &want);
    return 0;
}

/* ---- decisions ---- */

struct counted {
    atomic_uint refs;
    struct policy_decision d;
};

static struct counted *counted_of(struct policy_decision *d)
{
    return (struct counted *)(void *)((char *)d - offsetof(struct counted, d));
}

static struct counted *take_decision(struct block *b, const struct policy_decision *from)
{
    static const struct policy_table_sizes ours;
    struct counted *c = take(b, sizeof *c);
    struct policy_decision d = *from;
    uint32_t n = from->snapshot->n_slots;
    d.policy = take_text(b, from->policy);
    d.snapshot = take_table(b, from->snapshot, &ours);
    d.request = take_copy(b, from->request, sizeof *from->request);
    d.answer.reason = take_text(b, from->answer.reason);
    d.answer.sentence = take_text(b, from->answer.sentence);
    d.answer.candidate_loss =
        take_copy(b, from->answer.candidate_loss, n * sizeof *from->answer.candidate_loss);
    d.answer.worth = take_copy(b, from->answer.worth, (n + (size_t)1) * sizeof *from->answer.worth);
    d.answer.superseded =
        take_copy(b, from->answer.superseded, (n / 64 + (size_t)1) * sizeof *from->answer.superseded);
    d.size = b->used;
    if (c) {
        atomic_init(&c->refs, 1);
        c->d = d;
    }
    return c;
}

int policy_decision_new(const struct policy_decision *from, struct policy_decision **ret_decision)
{
    struct block b = { 0 };
    int r = check_table(from->snapshot);
    if (r < 0)
        return r;
    take_decision(&b, from);
    b.base = malloc(b.used);
    if (!b.base)
        return -ENOMEM;
    b.used = 0;
    *ret_decision = &take_decision(&b, from)->d;
    return 0;
}

struct policy_decision *policy_decision_ref(struct policy_decision *d)
{
    atomic_fetch_add_explicit(&counted_of(d)->refs, 1, memory_order_relaxed);
    return d;
}

void policy_decision_unref(struct policy_decision *d)
{
    if (d && atomic_fetch_sub_explicit(&counted_of(d)->refs, 1, memory_order_acq_rel) == 1)
        free(counted_of(d));
}

/* ---- listeners ---- */

struct policy_listeners {
    pthread_mutex_t lock;
    atomic_uint n; /* written under the lock */
    struct policy_listener at[POLICY_LISTENERS_MAX];
    uint64_t last_id; /* the scheduler's */
};

int policy_listeners_new(struct policy_listeners **ret_listeners)
{
    struct policy_listeners *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    pthread_mutex_init(&l->lock, NULL);
    *ret_listeners = l;
    return 0;
}

void policy_listeners_free(struct policy_listeners *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int policy_listeners_add(struct policy_listeners *l, struct policy_listener one)
{
    int r = -ENOSPC;
    pthread_mutex_lock(&l->lock);
    unsigned n = atomic_load(&l->n);
    if (n < POLICY_LISTENERS_MAX) {
        l->at[n] = one;
        atomic_store(&l->n, n + 1);
        r = 0;
    }
    pthread_mutex_unlock(&l->lock);
    return r;
}

void policy_listeners_remove(struct policy_listeners *l, struct policy_listener one)
{
    pthread_mutex_lock(&l->lock);
    unsigned n = atomic_load(&l->n);
    for (unsigned i = 0; i < n; i++) {
        if (l->at[i].offer != one.offer || l->at[i].arg != one.arg)
            continue;
        l->at[i] = l->at[n - 1];
        atomic_store(&l->n, n - 1);
        break;
    }
    pthread_mutex_unlock(&l->lock);
}

bool policy_listeners_any(const struct policy_listeners *l)
{
    return l && atomic_load_explicit(&l->n, memory_order_relaxed) > 0;
}

int policy_listeners_offer(struct policy_listeners *l, struct policy_decision *d)
{
    struct policy_decision *copy;
    if (!policy_listeners_any(l))
        return 0;
    d->id = l->last_id + 1;
    int r = policy_decision_new(d, &copy);
    if (r < 0)
        return r;
    l->last_id = d->id;
    pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < atomic_load(&l->n); i++)
        l->at[i].offer(l->at[i].arg, copy);
    pthread_mutex_unlock(&l->lock);
    policy_decision_unref(copy);
    return 0;
}
