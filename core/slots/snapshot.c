/* Snapshot builder: see snapshot.h. */
#include "slots/snapshot.h"
#include "slots/slots_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_LIMIT 4096u

_Static_assert(SLOTS_MAX <= POLICY_SLOTS_MAX, "policies are promised no more slots than that");

struct snapshot {
    uint32_t history_size, group_size, returns_size;
    /* All four are as large as any layout needs, so that another one costs no memory. */
    char *slots; /* [n_slots + 1] of history_size, main last */
    char *groups, *returns;
    struct policy_snapshot *view;
};

static uint32_t larger(size_t ours, uint32_t theirs)
{
    uint32_t n = theirs > ours ? theirs : (uint32_t)ours;
    return (n + 7) & ~7u; /* every element aligned */
}

/* What lies beyond our own part of an element is zero, also where another layout had an element. */
static void set_stride(char *array, size_t n, uint32_t *size, uint32_t new_size)
{
    memset(array, 0, n * (new_size > *size ? new_size : *size));
    *size = new_size;
}

int snapshot_lay_out(struct snapshot *b, const struct snapshot_sizes *sizes)
{
    struct policy_snapshot *v = b->view;
    if (sizes->snapshot > SIZE_LIMIT || sizes->history > SIZE_LIMIT || sizes->group > SIZE_LIMIT ||
        sizes->returns > SIZE_LIMIT)
        return -EINVAL;
    set_stride(b->slots, (size_t)v->n_slots + 1, &b->history_size,
               larger(sizeof(struct policy_history), sizes->history));
    set_stride(b->groups, v->n_groups, &b->group_size, larger(sizeof(struct policy_group), sizes->group));
    set_stride(b->returns, POLICY_STOPS, &b->returns_size,
               larger(sizeof(struct policy_returns), sizes->returns));
    v->size = larger(sizeof *v, sizes->snapshot);
    v->slot_stride = b->history_size;
    v->group_stride = b->group_size;
    v->returns_stride = b->returns_size;
    v->main_history = (const struct policy_history *)(b->slots + (size_t)v->n_slots * b->history_size);
    return 0;
}

int snapshot_new(const struct slots *s, const struct snapshot_sizes *sizes, struct snapshot **ret_snapshot)
{
    struct snapshot *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    uint32_t n_groups = s->o.n_slots / s->o.group_slots;
    b->slots = calloc(s->n, SIZE_LIMIT);
    b->groups = calloc(n_groups, SIZE_LIMIT);
    b->returns = calloc(POLICY_STOPS, SIZE_LIMIT);
    b->view = calloc(1, SIZE_LIMIT);
    int r = b->slots && b->groups && b->returns && b->view ? 0 : -ENOMEM;
    if (r == 0) {
        b->view->slots = (const struct policy_history *)b->slots;
        b->view->n_slots = s->o.n_slots;
        b->view->groups = (const struct policy_group *)b->groups;
        b->view->n_groups = n_groups;
        r = snapshot_lay_out(b, sizes ? sizes : &(struct snapshot_sizes){ 0 });
    }
    if (r < 0) {
        snapshot_free(b);
        return r;
    }
    *ret_snapshot = b;
    return 0;
}

void snapshot_free(struct snapshot *b)
{
    if (!b)
        return;
    free(b->slots);
    free(b->groups);
    free(b->returns);
    free(b->view);
    free(b);
}

static void fill_history(struct policy_history *r, struct slots *s, uint32_t i,
                         const struct snapshot_input *in)
{
    const struct slots_history *h = &s->h[i];
    bool is_main = i == s->o.n_slots;
    *r = (struct policy_history){
        .id = is_main ? 0 : i,
        .group = is_main ? 0 : i / s->o.group_slots,
        .flags = (h->busy ? POLICY_BUSY : 0) | (h->excluded ? POLICY_EXCLUDED : 0) |
                 (h->held ? POLICY_HELD : 0) | (h->reliable ? POLICY_RELIABLE : 0),
        .tokens = h->n,
        .turn_tokens = h->turn_tokens,
        .shared_prompt = in->shared_prompt ? in->shared_prompt[i] : 0,
        .last_use_ns = h->busy ? in->now_ns : h->label.last_use_ns,
        .turns = h->label.turns,
        .stop_reason = h->label.stop_reason,
        .prompt_tokens = h->label.prompt_tokens,
        .request_flags = h->label.request_flags,
        .client_key = h->label.client_key,
        .session_key = h->label.session_key,
        .parent_key = h->label.parent_key,
        .line_key = h->label.line_key,
        .recompute_ns = in->rate && h->n ? prompt_rate_ns(in->rate, slots_kept(s, i), h->n) : 0,
        .bytes = in->bytes ? in->bytes[i] : 0,
        .tier = POLICY_TIER_POOL,
    };
}

const struct policy_snapshot *snapshot_build(struct snapshot *b, struct slots *s,
                                             const struct snapshot_input *in)
{
    struct policy_snapshot *v = b->view;
    for (uint32_t g = 0; g < v->n_groups; g++)
        *(struct policy_group *)(b->groups + (size_t)g * b->group_size) =
            (struct policy_group){ .id = g, .slots = s->o.group_slots };
    for (uint32_t i = 0; i < s->n; i++) {
        fill_history((struct policy_history *)(b->slots + (size_t)i * b->history_size), s, i, in);
        if (i < s->o.n_slots && (s->h[i].busy || s->h[i].excluded)) {
            uint32_t g = i / s->o.group_slots;
            ((struct policy_group *)(b->groups + (size_t)g * b->group_size))->busy_rows++;
        }
    }
    v->flags = in->padding_safe ? POLICY_PADDING_SAFE : 0;
    v->now_ns = in->now_ns;
    v->shared = s->shared;
    v->shared_stride = s->n * (uint32_t)sizeof *s->shared;
    for (uint32_t i = 0; in->returns && i < POLICY_STOPS; i++)
        *(struct policy_returns *)(b->returns + (size_t)i * b->returns_size) = in->returns[i];
    v->returns = in->returns ? (const struct policy_returns *)b->returns : NULL;
    v->n_returns = in->returns ? POLICY_STOPS : 0;
    v->prompt_tokens_per_s = in->rate ? prompt_rate_measured(in->rate) : 0;
    v->seed = in->seed;
    return v;
}
