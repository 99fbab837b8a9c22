/* Solo: main, the session of a request that is alone.
 *
 * There it has the engine for itself, and drafts: what may follow is guessed from the text so far and
 * verified in one window. Each position is sampled from its own logits as always, with randomness that
 * depends on seed and position only; a draft token that differs from what was sampled ends the window's use.
 * So drafts change how fast an answer comes, never the answer.
 *
 * Before main takes another conversation the policy is asked which slot keeps what it held; keeping takes
 * references. When somebody else claims, the request on main goes on in a slot at that window border, nothing
 * is read again, and main keeps a copy. Left alone with enough to go it comes back, at most RETURNS_MAX
 * times.
 * Thread: the scheduler's. Tests: tests/unit/test_sched.c */
#include "sched/parts.h"
#include "util/clock.h"
#include <math.h>
#include <stdlib.h>

#define RETURNS_MAX 2u
#define RETURN_TOKENS 32u /* fewer to go are not worth the way back */

static const struct placed_why alone_why = {
    .reason = "solo",
    .sentence = "No other request runs, so it runs on main, where drafts make it faster.",
    .loss = NAN,
    .table = true,
};
static const struct placed_why back_why = {
    .reason = "left_alone",
    .sentence = "All others have ended, so it goes on on main, where drafts make it faster.",
    .loss = NAN,
};

struct job *solo_job(const struct sched *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->at == s->h.n)
            return s->running[i];
    return NULL;
}

static uint32_t micros_since(uint64_t begin_ns)
{
    return (uint32_t)((clock_now_ns() - begin_ns) / 1000);
}

/* ---- parking ---- */

/* What main holds is about to be replaced: keeps it where the policy says. `source` (a slot's, or another
 * history's index) is not to be taken. */
static bool park(struct sched *s, struct job *j, uint32_t source)
{
    struct policy_host_park p;
    uint32_t tokens = slots_at(s->h.table, s->h.n)->n;
    bool excluded = source < s->h.n && !slots_at(s->h.table, source)->busy;
    if (excluded)
        slots_set_excluded(s->h.table, source, true);
    int decided = ask_park(s, j, POLICY_NO_SLOT, &p);
    struct placed_why why = { .reason = p.reason,
                              .sentence = p.sentence,
                              .asked = true,
                              .by_builtin = p.by_builtin,
                              .generation = policy_host_generation(s->host),
                              .loss = NAN,
                              .table = true };
    struct sched_choice *choice = placed_look(s, j, &why);
    if (excluded)
        slots_set_excluded(s->h.table, source, false);
    struct sched_placement e = {
        .kind = SCHED_PARK_SKIP, .slot = SCHED_NONE, .source = SCHED_MAIN, .tokens = tokens
    };
    if (decided == POLICY_DECIDED) {
        claim_note_overwrite(s, j, p.slot, s->h.n, tokens);
        uint64_t begin = clock_now_ns();
        if (histories_park(&s->h, p.slot) == 0) {
            e.kind = SCHED_PARK;
            e.slot = (int32_t)p.slot;
            e.took_us = micros_since(begin);
        } else {
            p.reason = "out_of_memory";
        }
    }
    placed_add(s, j, choice, &e);
    events_add(s, e, j, p.reason);
    return e.kind == SCHED_PARK;
}

static bool main_is_kept(const struct sched *s)
{
    uint32_t tokens = slots_at(s->h.table, s->h.n)->n;
    for (uint32_t i = 0; i < s->h.n; i++)
        if (slots_at(s->h.table, i)->reliable && slots_shared(s->h.table, i, s->h.n) >= tokens)
            return true;
    return false;
}

/* ---- in ---- */

bool solo_start(struct sched *s, struct job *j)
{
    uint32_t at = s->h.n, source = SLOTS_NONE, n = 0;
    if (j->max_new - j->generated < 2 || j->id_slot >= 0 || j->one_of_several || visits_main(s))
        return false;
    if (claim_reuses(j))
        source = slots_prompt_longest(s->h.table, j->prompt, &n);
    if (source != SLOTS_NONE)
        n = slots_prompt_verify(s->h.table, j->prompt, source);
    bool continues = n && slots_prompt_continues(s->h.table, j->prompt, source);
    bool same = claim_reuses(j) && slots_prompt_continues(s->h.table, j->prompt, at);
    if (slots_at(s->h.table, at)->n && !same)
        park(s, j, source);
    struct sched_choice *choice = placed_look(s, j, &alone_why);
    uint64_t begin = clock_now_ns();
    if (claim_begin(s, j, at, source, n) < 0) {
        free(choice);
        return claim_no_memory(s, j);
    }
    claim_tell(s, j,
               (struct sched_placement){ .kind = !n             ? SCHED_PLACE
                                                 : source != at ? SCHED_RESTORE
                                                 : continues    ? SCHED_CONTINUE
                                                                : SCHED_PLACE,
                                         .slot = SCHED_MAIN,
                                         .source = n ? events_slot(s, source) : SCHED_NONE,
                                         .tokens = n,
                                         .took_us = micros_since(begin) },
               choice, "solo");
    return true;
}

/* ---- out ---- */

bool solo_promote(struct sched *s, uint32_t reserved)
{
    struct job *j = solo_job(s);
    struct policy_host_place p;
    if (reserved != SLOTS_NONE)
        slots_set_excluded(s->h.table, reserved, true);
    int decided = claim_place(s, j, true, &p);
    if (reserved != SLOTS_NONE)
        slots_set_excluded(s->h.table, reserved, false);
    if (decided != POLICY_DECIDED)
        return false;
    uint32_t n = slots_at(s->h.table, j->at)->n;
    struct placed_why why = claim_why(s, &p);
    struct sched_choice *choice = placed_look(s, j, &why);
    claim_note_overwrite(s, j, p.slot, s->h.n, n);
    uint64_t begin = clock_now_ns();
    if (histories_hand_over(&s->h, j->at, p.slot, (int64_t)s->now_ns) < 0) {
        free(choice);
        return false;
    }
    j->at = p.slot;
    j->slot = (int32_t)p.slot;
    struct sched_placement e = { .kind = SCHED_PROMOTE,
                                 .slot = j->slot,
                                 .source = SCHED_MAIN,
                                 .tokens = n,
                                 .took_us = micros_since(begin) };
    placed_add(s, j, choice, &e);
    events_add(s, e, j, p.reason);
    return true;
}

/* ---- back ---- */

static struct job *left_alone(const struct sched *s)
{
    struct job *j = s->n_running == 1 && !s->waiting && !visits_main(s) ? s->running[0] : NULL;
    if (!j || j->at == s->h.n || j->returned >= RETURNS_MAX || j->id_slot >= 0 || j->one_of_several)
        return NULL;
    bool decodes = reading_is_stream(s, j) && !j->flying;
    return decodes && j->max_new - j->generated >= RETURN_TOKENS ? j : NULL;
}

void solo_return(struct sched *s)
{
    struct job *j = left_alone(s);
    if (!j)
        return;
    const struct slots_history *h = slots_at(s->h.table, s->h.n);
    uint32_t from = j->at;
    bool same = h->turn_tokens && slots_shared(s->h.table, from, s->h.n) >= h->turn_tokens;
    uint64_t begin = clock_now_ns();
    if (h->n && !same && !park(s, j, from) && !main_is_kept(s)) {
        /* Going back is for speed alone and costs no conversation: what main held moves into the slot. */
        histories_swap(&s->h, from, s->h.n);
    } else if (histories_hand_over(&s->h, from, s->h.n, (int64_t)s->now_ns) < 0) {
        return;
    }
    j->returned++;
    j->at = s->h.n;
    j->slot = SCHED_MAIN;
    struct sched_placement e = { .kind = SCHED_BACK_TO_SOLO,
                                 .slot = SCHED_MAIN,
                                 .source = (int32_t)from,
                                 .tokens = slots_at(s->h.table, s->h.n)->n,
                                 .took_us = micros_since(begin) };
    placed_add(s, j, placed_look(s, j, &back_why), &e);
    events_add(s, e, j, back_why.reason);
}

/* ---- drafts ---- */

uint32_t solo_draft(struct sched *s, struct job *j)
{
    struct solo *solo = &s->solo;
    uint32_t left = j->max_new - j->generated, most = left ? left - 1 : 0;
    solo->fed[0] = j->seq[j->n_seq - 1];
    if (most > DRAFTS_MAX)
        most = DRAFTS_MAX;
    if (most > s->o.chunk_tokens - 1)
        most = s->o.chunk_tokens - 1;
    if (solo->job != j->id) {
        drafts_reset(solo->drafts);
        solo->job = j->id;
        solo->known = 0;
    }
    if (!most || drafts_update(solo->drafts, j->seq, solo->known, j->n_seq) < 0)
        return 1;
    solo->known = j->n_seq;
    uint32_t n = drafts_propose(solo->drafts, j->seq, most, solo->fed + 1);
    /* A guess is not worth somebody's history. */
    if (session_blocks_needed(s->h.sessions[j->at], 1 + n) > histories_free_blocks(&s->h))
        n = 0;
    return 1 + n;
}
