/* Claim: how a waiting job gets a slot: may it go (rows, memory, slots held for others), where does it run,
 * whose prefix does it take.
 *
 * The policy names the slot and the history the prefix comes from, idle or busy; the prefix is verified token
 * by token and taken by block references. A slot whose history a waiting job continues is held for that job:
 * others' decisions see it so, unless they share it at least as far. If that leaves no free slot, another
 * waiting job is tried first, and only when none can go is the flag ignored.
 * Thread: the scheduler's. Must not know: what a good slot is. Tests: tests/unit/test_sched.c */
#include "sched/parts.h"
#include "util/clock.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS (100 * NS_PER_MS) /* when nothing has changed but the time */
#define WORTH_WAITING 64u          /* tokens that are not to be read twice */

/* Its own tokens a requeued job takes back in any case: they are no cache. */
bool claim_reuses(const struct job *j)
{
    return j->cache_prompt || j->requeued;
}

struct policy_request claim_request(const struct job *j)
{
    return (struct policy_request){
        .flags = j->request_flags,
        .prompt_tokens = j->prompt->n,
        .turn_tokens = j->prompt->turn_tokens,
        .max_new_tokens = j->max_new - j->generated,
        .client_key = j->client_key,
        .session_key = j->session_key,
        .parent_key = j->parent_key,
        .line_key = j->line_key,
    };
}

struct slots_request claim_label(const struct job *j)
{
    return (struct slots_request){
        .client_key = j->client_key,
        .session_key = j->session_key,
        .parent_key = j->parent_key,
        .line_key = j->line_key,
        .request_key = j->id,
        .salt = j->salt,
        .prompt_tokens = j->n_prompt,
        .flags = j->request_flags,
        .resumed = j->requeued,
    };
}

const struct policy_snapshot *claim_snapshot(struct sched *s, struct job *j)
{
    const uint32_t *shared = NULL;
    if (j)
        shared = claim_reuses(j) ? slots_prompt_shared(s->h.table, j->prompt) : s->nothing;
    for (uint32_t i = 0; i <= s->h.n; i++)
        s->bytes[i] = (uint64_t)session_blocks_alone(s->h.sessions[i]) * s->block_bytes;
    struct snapshot_input in = {
        .now_ns = (int64_t)s->now_ns,
        .padding_safe = !s->o.padded,
        .shared_prompt = shared,
        .bytes = s->bytes,
        .rate = &s->rate,
        .returns = returns_at(s->returns, (int64_t)s->now_ns),
        .seed = j ? j->id : 0,
    };
    return snapshot_build(s->snapshot, s->h.table, &in);
}

/* ---- held slots ---- */

_Static_assert(SCHED_REQUEST_SIDE == POLICY_REQUEST_SIDE && SCHED_REQUEST_TOOLS == POLICY_REQUEST_TOOLS &&
                   SCHED_REQUEST_SUBAGENT == POLICY_REQUEST_SUBAGENT,
               "flags are handed on as they are");

static bool held_against(struct sched *s, struct job *j, uint32_t slot)
{
    const struct want *w = &s->wants[slot];
    if (!w->best || w->best == j)
        return false;
    if (!claim_reuses(j) || !slots_prompt_continues(s->h.table, j->prompt, slot))
        return true;
    return w->shared > slots_prompt_shared(s->h.table, j->prompt)[slot];
}

/* Marks what is held against j, or nothing; returns how many slots are free then. */
static uint32_t mark_held(struct sched *s, struct job *j, bool respect)
{
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < s->h.n; i++) {
        const struct slots_history *h = slots_at(s->h.table, i);
        bool held = respect && !h->busy && held_against(s, j, i);
        slots_set_held(s->h.table, i, held);
        n_free += !h->busy && !h->excluded && !held;
    }
    return n_free;
}

int claim_place(struct sched *s, struct job *j, bool respect_held, struct policy_host_place *ret_place)
{
    if (!mark_held(s, j, respect_held) && respect_held)
        mark_held(s, j, false);
    int decided = ask_place(s, j, ret_place);
    mark_held(s, j, false);
    return decided;
}

/* ---- beginning ---- */

void claim_note_overwrite(struct sched *s, const struct job *j, uint32_t at, uint32_t source, uint32_t n)
{
    const struct slots_history *h = slots_at(s->h.table, at);
    uint32_t kept = source == at ? n : 0;
    if (!h->n || !h->reliable || (h->turn_tokens && kept >= h->turn_tokens))
        return;
    count_lost(s, at, at == s->h.n ? MISS_REPLACED_ON_MAIN : MISS_SLOT_TAKEN);
    for (uint32_t i = 0; i <= s->h.n; i++)
        if (i != at && slots_at(s->h.table, i)->reliable && slots_shared(s->h.table, at, i) > kept)
            kept = slots_shared(s->h.table, at, i);
    if (kept < h->n)
        events_add(s,
                   (struct sched_placement){ .kind = SCHED_OVERWRITE,
                                             .slot = events_slot(s, at),
                                             .source = SCHED_NONE,
                                             .tokens = h->n - kept },
                   j, NULL);
}

int claim_begin(struct sched *s, struct job *j, uint32_t at, uint32_t source, uint32_t n)
{
    struct slots_request label = claim_label(j);
    struct count_begin judged = { 0 };
    if (!j->was_started)
        judged = count_judge(s, j, source, n);
    claim_note_overwrite(s, j, at, source, n);
    int r = histories_begin(&s->h, at, n ? source : SLOTS_NONE, n, &label);
    if (r < 0)
        return r;
    queue_remove(s, j);
    j->running = true;
    j->at = at;
    j->slot = events_slot(s, at);
    s->running[s->n_running++] = j;
    admission_set_waiting(&s->admission, j, false);
    if (!j->was_started)
        count_begun(s, j, n, &judged);
    return 0;
}

void claim_tell(struct sched *s, struct job *j, struct sched_placement e, struct sched_choice *c,
                const char *reason)
{
    placed_add(s, j, c, &e);
    events_add(s, e, j, reason);
    if (j->was_started)
        return;
    status_publish(s, "reading a prompt");
    job_started(j, s->now_ns);
}

static uint32_t source_of(const struct sched *s, const struct policy_host_place *p)
{
    return p->source_kind == POLICY_SOURCE_SLOT   ? p->source
           : p->source_kind == POLICY_SOURCE_MAIN ? s->h.n
                                                  : SLOTS_NONE;
}

/* Whether the slot that the job asks for is one it can have. */
static bool may_choose(const struct sched *s, const struct job *j)
{
    if (j->id_slot < 0 || (uint32_t)j->id_slot >= s->h.n)
        return false;
    const struct slots_history *h = slots_at(s->h.table, (uint32_t)j->id_slot);
    return !h->busy && !h->excluded && (!h->n || h->salt == j->salt);
}

/* A job gets the slot it asks for; all others are the policy's to place. */
static bool choose(struct sched *s, const struct candidate *c, bool respect_held,
                   struct policy_host_place *ret_place)
{
    if (!may_choose(s, c->job))
        return claim_place(s, c->job, respect_held, ret_place) == POLICY_DECIDED;
    uint32_t kind = c->source == SLOTS_NONE ? POLICY_SOURCE_NONE
                    : c->source == s->h.n   ? POLICY_SOURCE_MAIN
                                            : POLICY_SOURCE_SLOT;
    *ret_place = (struct policy_host_place){
        .slot = (uint32_t)c->job->id_slot,
        .source_kind = kind,
        .source = c->source,
        .reason = "id_slot",
        .sentence = "The request asked for this slot.",
    };
    return true;
}

/* No memory for a list of tokens: with others running there is hope, alone there is none. True when the job
 * was ended. */
bool claim_no_memory(struct sched *s, struct job *j)
{
    if (s->n_running)
        return false;
    queue_end(s, j, SCHED_STOP_FAILED, "out of memory");
    return true;
}

struct placed_why claim_why(const struct sched *s, const struct policy_host_place *p)
{
    bool asked = p->candidate_loss != NULL; /* otherwise the request named its slot */
    return (struct placed_why){
        .reason = p->reason,
        .sentence = p->sentence,
        .asked = asked,
        .by_builtin = p->by_builtin,
        .generation = policy_host_generation(s->host),
        .loss = asked ? p->loss : NAN,
        .tokens_lost = p->tokens_lost,
        .candidate_loss = p->candidate_loss,
        .table = true,
    };
}

/* True when the waiting list changed. */
static bool place(struct sched *s, const struct candidate *c, bool respect_held)
{
    struct job *j = c->job;
    struct policy_host_place p;
    uint32_t wanted = may_choose(s, j) ? (uint32_t)j->id_slot : SLOTS_NONE;
    if (solo_job(s) && !solo_promote(s, wanted))
        return false;
    if (!choose(s, c, respect_held, &p))
        return false;
    uint32_t source = source_of(s, &p), n = 0;
    if (source != SLOTS_NONE)
        n = slots_prompt_verify(s->h.table, j->prompt, source);
    bool stays = n && slots_prompt_continues(s->h.table, j->prompt, source) && source == p.slot;
    struct placed_why why = claim_why(s, &p);
    struct sched_choice *choice = placed_look(s, j, &why);
    uint64_t begin = clock_now_ns();
    if (claim_begin(s, j, p.slot, source, n) < 0) {
        free(choice);
        return claim_no_memory(s, j);
    }
    claim_tell(s, j,
               (struct sched_placement){ .kind = stays ? SCHED_CONTINUE : SCHED_PLACE,
                                         .slot = events_slot(s, p.slot),
                                         .source = n ? events_slot(s, source) : SCHED_NONE,
                                         .tokens = n,
                                         .took_us = (uint32_t)((clock_now_ns() - begin) / 1000) },
               choice, p.reason);
    return true;
}

/* ---- who goes ---- */

static uint32_t common_prefix(const struct job *a, const struct job *b)
{
    uint32_t n = a->n_seq < b->n_seq ? a->n_seq : b->n_seq, i = 0;
    if (a->salt != b->salt)
        return 0;
    while (n - i >= 64 && memcmp(a->seq + i, b->seq + i, 64 * sizeof *a->seq) == 0)
        i += 64;
    while (i < n && a->seq[i] == b->seq[i])
        i++;
    return i;
}

/* A prompt that is being read right now shares more with this one than any history does so far: it is read
 * once for both, so this one waits for that. */
static bool is_being_read(const struct sched *s, const struct candidate *c)
{
    struct job *j = c->job;
    for (uint32_t i = 0; i < s->n_running && claim_reuses(j); i++) {
        const struct job *r = s->running[i];
        if (queue_unread(s, r) < 2 || atomic_load(&r->paused))
            continue;
        if (j->peer != r->id) {
            j->peer = r->id;
            j->peer_shared = common_prefix(j, r);
        }
        uint32_t most = j->peer_shared < j->n_seq ? j->peer_shared : j->n_seq - 1;
        uint32_t gain = most > c->shared ? most - c->shared : 0;
        if (gain >= WORTH_WAITING || (gain && gain >= c->to_read / 2))
            return true;
    }
    return false;
}

/* Free slots that a claim needs: one more when the job on main has to make way. */
static uint32_t slots_needed(const struct sched *s)
{
    return solo_job(s) ? 2 : 1;
}

static uint32_t idle_slots(const struct sched *s)
{
    return s->h.n - s->n_running + (solo_job(s) != NULL);
}

/* Whether there are as many as a claim needs, when paused jobs have made way. */
static bool free_slots(struct sched *s)
{
    while (idle_slots(s) < slots_needed(s))
        if (!queue_requeue_paused(s))
            return false;
    return true;
}

static bool try_candidate(struct sched *s, const struct candidate *c, bool respect_held)
{
    if (respect_held && !may_choose(s, c->job) && mark_held(s, c->job, true) < slots_needed(s)) {
        mark_held(s, c->job, false);
        return false;
    }
    return place(s, c, respect_held);
}

bool claim_next(struct sched *s, uint32_t most)
{
    if (s->now_ns < s->blocked_until_ns || !queue_ready(s))
        return false;
    if (queue_active(s) >= s->o.rows || !free_slots(s))
        return false;
    const struct job *solo = solo_job(s);
    if (solo && solo->flying) /* it makes way when its window is back */
        return false;
    if (!s->n_running && s->n_waiting == 1 && solo_start(s, s->waiting))
        return true;
    uint32_t n = queue_order(s);
    bool some_later = false;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct candidate *c = &s->candidates[i];
            if (!s->o.by_arrival && (c->to_read > most || is_being_read(s, c))) {
                some_later = true;
            } else if (room_admits(s, c)) {
                c->job->aged = c->aged;
                if (try_candidate(s, c, pass == 0 && !c->aged && !s->o.by_arrival))
                    return true;
            }
            /* One that has waited long enough goes before all others, even if it cannot go yet. */
            if (c->aged)
                return false;
        }
    }
    if (!some_later)
        s->blocked_until_ns = s->now_ns + RETRY_NS;
    return false;
}
