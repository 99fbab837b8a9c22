/* Asker: see asker.h. A host is made for one number of slots, and made again when a table has another. */
#include "policy/asker.h"
#include "abi/policy_words.h"
#include "policy/host.h"
#include "policy/seat.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct policy_asker {
    struct policy_loaded *policy;
    struct policy_seat *seat;
    struct policy_host *host;
    uint32_t n_slots;              /* the host's */
    struct policy_snapshot *table; /* laid out for the policy; NULL where ours will do */
    bool breached;
    char *err;
    size_t errlen;
};

static void on_breach(void *arg, const struct policy_breach *breach)
{
    struct policy_asker *a = arg;
    a->breached = true;
    snprintf(a->err, a->errlen, "%s", breach->what);
}

int policy_asker_new(struct policy_loaded *p, struct policy_asker **ret_asker)
{
    struct policy_asker *a = calloc(1, sizeof *a);
    if (!a)
        return -ENOMEM;
    int r = policy_seat_new(p, &a->seat);
    if (r < 0) {
        free(a);
        return r;
    }
    a->policy = policy_loaded_ref(p);
    *ret_asker = a;
    return 0;
}

void policy_asker_free(struct policy_asker *a)
{
    if (!a)
        return;
    policy_host_free(a->host);
    policy_seat_free(a->seat);
    policy_loaded_unref(a->policy);
    free(a->table);
    free(a);
}

static int make_host(struct policy_asker *a, uint32_t n_slots)
{
    struct policy_host_options o = { .seat = a->seat, .on_breach = on_breach, .arg = a };
    if (a->host && a->n_slots == n_slots)
        return 0;
    policy_host_free(a->host);
    a->host = NULL;
    a->n_slots = n_slots;
    return policy_host_new(&o, n_slots, &a->host);
}

/* The table as the policy must see it: s itself where elements of our size are large enough. */
static int lay_out(struct policy_asker *a, const struct policy_snapshot *s,
                   const struct policy_snapshot **ret_table)
{
    const struct policy_head *head = &policy_loaded_entry(a->policy)->head;
    const struct policy_table_sizes sizes = {
        .snapshot = head->size_snapshot,
        .history = head->size_history,
        .group = head->size_group,
        .returns = head->size_returns,
    };
    free(a->table);
    a->table = NULL;
    *ret_table = s;
    if (sizes.snapshot <= s->size && sizes.history <= s->slot_stride && sizes.group <= s->group_stride &&
        (!s->returns || sizes.returns <= s->returns_stride))
        return 0;
    int r = policy_table_copy(s, &sizes, &a->table);
    *ret_table = a->table;
    return r;
}

static void ask_place(struct policy_asker *a, const struct policy_snapshot *s,
                      const struct policy_decision *d, struct policy_answer *ret)
{
    struct policy_host_place p;
    ret->result = policy_host_place(a->host, s, d->request, &p);
    ret->slot = p.slot;
    ret->reason = p.reason;
    ret->sentence = p.sentence;
    ret->candidate_loss = p.candidate_loss;
    if (ret->result != POLICY_DECIDED)
        return;
    ret->source_kind = p.source_kind;
    ret->source = p.source;
    ret->loss = p.loss;
    ret->tokens_lost = p.tokens_lost;
}

static void ask_park(struct policy_asker *a, const struct policy_snapshot *s, const struct policy_decision *d,
                     struct policy_answer *ret)
{
    struct policy_host_park p;
    ret->result = policy_host_park(a->host, s, d->request, d->placing, &p);
    ret->slot = p.slot;
    ret->reason = p.reason;
    ret->sentence = p.sentence;
}

static void ask(struct policy_asker *a, const struct policy_snapshot *s, const struct policy_decision *d,
                struct policy_answer *ret)
{
    *ret = (struct policy_answer){ .slot = POLICY_NO_SLOT };
    policy_host_pin(a->host);
    switch (d->call) {
    case POLICY_CALL_PLACE:
        ask_place(a, s, d, ret);
        break;
    case POLICY_CALL_PARK:
        ask_park(a, s, d, ret);
        break;
    case POLICY_CALL_STATE:
        ret->worth = policy_host_state(a->host, s);
        break;
    default:
        ret->superseded = policy_host_superseded(a->host, s);
    }
    policy_host_unpin(a->host);
}

int policy_asker_ask(struct policy_asker *a, const struct policy_decision *d,
                     struct policy_answer *ret_answer, char *err, size_t errlen)
{
    const struct policy_snapshot *s = NULL;
    int r = make_host(a, d->snapshot->n_slots);
    if (r == 0)
        r = lay_out(a, d->snapshot, &s);
    if (r < 0) {
        snprintf(err, errlen, "%s", r == -ENOMEM ? "out of memory" : "the table is too large");
        return r;
    }
    a->breached = false;
    a->err = err;
    a->errlen = errlen;
    ask(a, s, d, ret_answer);
    if (!a->breached)
        return 0;
    /* Every question is put to the policy, whatever it said before: no quarantine here. */
    policy_seat_publish(a->seat, a->policy);
    return -EPROTO;
}
