/* Ask: the one place where the scheduler puts a question to the policy, and where the finished decision is
 * offered to those who listen (shadows, the trace, the history of placements). While nobody listens nothing
 * is copied and no clock is read; otherwise one bounded copy is made, and nobody is waited for.
 * Thread: the scheduler's. Must not know: who listens. Tests: tests/unit/test_sched_decisions.c */
#include "policy/case.h"
#include "sched/parts.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/log.h"

#define BREACH_LOG_NS (10 * NS_PER_S) /* at most one breach is logged in so long, besides a quarantine */
#define CASE_BYTES ((size_t)4 << 20)

void ask_begin(struct sched *s)
{
    if (!policy_host_pin(s->host))
        return;
    struct snapshot_sizes sizes = policy_host_sizes(s->host);
    (void)snapshot_lay_out(s->snapshot, &sizes); /* the sizes of a loaded policy are within its bounds */
}

void ask_end(struct sched *s)
{
    policy_host_unpin(s->host);
}

/* What is decided while nobody is asked, and by whom. */
struct asked {
    struct policy_decision d;
    bool heard;
    uint64_t begin_ns;
};

static struct asked begin(struct sched *s, enum policy_call call, const struct job *j,
                          const struct policy_request *r)
{
    struct asked a = { .heard = policy_listeners_any(s->o.listeners) };
    a.d = (struct policy_decision){
        .call = call,
        .job = j ? j->id : 0,
        .request = r,
        .policy = policy_host_name(s->host),
        .generation = policy_host_generation(s->host),
        .placing = POLICY_NO_SLOT,
        .answer = { .slot = POLICY_NO_SLOT },
    };
    if (a.heard)
        a.begin_ns = clock_now_ns();
    return a;
}

static void offer(struct sched *s, struct asked *a)
{
    if (!a->heard)
        return;
    uint64_t now_ns = clock_now_ns();
    a->d.took_ns = now_ns - a->begin_ns < UINT32_MAX ? (uint32_t)(now_ns - a->begin_ns) : UINT32_MAX;
    a->d.time_ns = now_ns + s->ring.wall_ns;
    (void)policy_listeners_offer(s->o.listeners, &a->d); /* out of memory: this one is not told of */
}

int ask_place(struct sched *s, struct job *j, struct policy_host_place *ret_place)
{
    struct policy_request r = claim_request(j);
    const struct policy_snapshot *v = claim_snapshot(s, j);
    struct asked a = begin(s, POLICY_CALL_PLACE, j, &r);
    int decided = policy_host_place(s->host, v, &r, ret_place);
    a.d.snapshot = v;
    a.d.answer = (struct policy_answer){
        .result = decided,
        .slot = ret_place->slot,
        .source_kind = decided == POLICY_DECIDED ? ret_place->source_kind : POLICY_SOURCE_NONE,
        .source = ret_place->source,
        .loss = decided == POLICY_DECIDED ? ret_place->loss : 0,
        .tokens_lost = decided == POLICY_DECIDED ? ret_place->tokens_lost : 0,
        .reason = ret_place->reason,
        .sentence = ret_place->sentence,
        .candidate_loss = ret_place->candidate_loss,
        .by_builtin = ret_place->by_builtin,
    };
    offer(s, &a);
    return decided;
}

int ask_park(struct sched *s, struct job *j, uint32_t placing, struct policy_host_park *ret_park)
{
    struct policy_request r = claim_request(j);
    const struct policy_snapshot *v = claim_snapshot(s, j);
    struct asked a = begin(s, POLICY_CALL_PARK, j, &r);
    int decided = policy_host_park(s->host, v, &r, placing, ret_park);
    a.d.snapshot = v;
    a.d.placing = placing;
    a.d.answer = (struct policy_answer){ .result = decided,
                                         .slot = ret_park->slot,
                                         .reason = ret_park->reason,
                                         .sentence = ret_park->sentence,
                                         .by_builtin = ret_park->by_builtin };
    offer(s, &a);
    return decided;
}

const struct policy_worth *ask_state(struct sched *s, bool for_display)
{
    const struct policy_snapshot *v = claim_snapshot(s, NULL);
    struct asked a = begin(s, POLICY_CALL_STATE, NULL, NULL);
    const struct policy_worth *worth = policy_host_state(s->host, v);
    a.d.snapshot = v;
    a.d.for_display = for_display;
    a.d.answer.worth = worth;
    offer(s, &a);
    return worth;
}

const uint64_t *ask_superseded(struct sched *s)
{
    const struct policy_snapshot *v = claim_snapshot(s, NULL);
    struct asked a = begin(s, POLICY_CALL_SUPERSEDED, NULL, NULL);
    const uint64_t *words = policy_host_superseded(s->host, v);
    a.d.snapshot = v;
    a.d.answer.superseded = words;
    offer(s, &a);
    return words;
}

/* The question as a case, in the form that `berth policy eval` reads: one line of JSON. */
static void log_case(struct sched *s, const struct policy_breach *b)
{
    struct buf text = { .max = CASE_BYTES };
    struct policy_decision d = {
        .call = b->call,
        .policy = policy_host_name(s->host),
        .generation = policy_host_generation(s->host),
        .snapshot = b->snapshot,
        .request = b->request,
        .placing = b->placing,
    };
    policy_case_write(&text, &d);
    if (!text.failed && text.len)
        log_line(LOG_WARN, text.data, text.len);
    buf_free(&text);
}

void ask_log_breach(void *sched, const struct policy_breach *b)
{
    struct sched *s = sched;
    char what[256];
    s->breaches_unlogged++;
    if (!b->quarantined && s->breach_logged_ns && s->now_ns - s->breach_logged_ns < BREACH_LOG_NS)
        return;
    log_write(LOG_WARN, "policy_breach", "policy=%s generation=%llu what=%s count=%llu answered=builtin%s",
              policy_host_name(s->host), (unsigned long long)policy_host_generation(s->host),
              log_quote(what, sizeof what, b->what), (unsigned long long)s->breaches_unlogged,
              b->quarantined ? " state=\"quarantined until the next reload\"" : "");
    log_case(s, b);
    s->breach_logged_ns = s->now_ns;
    s->breaches_unlogged = 0;
}
