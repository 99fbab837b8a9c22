/* Room: memory. Who is let in, and which idle histories lose how much of their ends.
 *
 * The pool is shared by all histories and always full in the long run. A waiting job is let in when what it
 * has to read and the beginning of its answer fit in free blocks and those of paused jobs and of idle
 * histories that no other waiting job continues; one that is alone always fits. A window that finds no block
 * free takes them from the ends of idle histories (slots/giveup.h says in which order); when busy ones alone
 * are left, the youngest job is requeued. What a requeued job had read counts as nobody's: it gave it up.
 * Thread: the scheduler's. Must not know: what a history is worth, only whom to ask.
 * Tests: tests/unit/test_sched.c */
#include "sched/parts.h"
#include <errno.h>
#include <string.h>

static uint32_t blocks_for(uint64_t tokens)
{
    return (uint32_t)((tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
}

void room_ask_superseded(struct sched *s)
{
    memcpy(s->superseded, ask_superseded(s), s->superseded_size);
}

void room_ask_worth(struct sched *s, bool for_display)
{
    memcpy(s->worth, ask_state(s, for_display), ((size_t)s->h.n + 1) * sizeof *s->worth);
    s->worth_ns = s->now_ns;
}

static bool is_superseded(const struct sched *s, uint32_t i)
{
    return i < s->h.n && s->superseded[i / 64] >> (i % 64) & 1;
}

/* Whether a waiting job other than j continues history i. */
static bool is_wanted(struct sched *s, uint32_t i, struct job *j)
{
    uint32_t n = s->wants[i].n - s->wants[i].n_requeued;
    if (n && j && !j->requeued && claim_reuses(j) && slots_prompt_continues(s->h.table, j->prompt, i))
        n--;
    return n > 0;
}

/* The histories as giveup sees them: who holds what, and who may lose it. Their worth only where asked. */
static void list_histories(struct sched *s, struct job *j, bool with_worth)
{
    for (uint32_t i = 0; i <= s->h.n; i++) {
        const struct slots_history *h = slots_at(s->h.table, i);
        struct giveup_history *g = &s->giveup_list[i];
        *g = (struct giveup_history){ .tokens = session_len(s->h.sessions[i]),
                                      .busy = h->busy || i == visits_spared(s),
                                      .reliable = h->reliable,
                                      .wanted = is_wanted(s, i, j) };
        g->blocks = session_blocks(s->h.sessions[i], &g->n_blocks);
        if (!with_worth)
            continue;
        g->worthless = is_superseded(s, i) || s->worth[i].state == POLICY_STATE_BLANK;
        g->state = s->worth[i].state;
        g->give_up = s->worth[i].give_up;
    }
}

/* What paused jobs hold is there for others: they would be requeued. */
static void list_paused_as_idle(struct sched *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (atomic_load(&s->running[i]->paused))
            s->giveup_list[s->running[i]->at].busy = false;
}

/* Blocks that the prompts being read will still take: free ones among them are spoken for. */
static uint32_t promised(const struct sched *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct job *j = s->running[i];
        const struct session *session = s->h.sessions[j->at];
        uint32_t unread = queue_unread(s, j);
        if (unread > 1 && !atomic_load(&j->paused)) /* what is under way has its blocks */
            n += session_blocks_needed(session, unread) - session_blocks_needed(session, j->flying);
    }
    return n;
}

bool room_admits(struct sched *s, const struct candidate *c)
{
    const struct job *j = c->job;
    if (!s->n_running)
        return true;
    uint32_t left = j->max_new - j->generated;
    uint32_t whole = blocks_for((uint64_t)j->n_seq + (left < LOOK_AHEAD ? left : LOOK_AHEAD));
    uint32_t needed = whole - c->shared / BLOCK_TOKENS + promised(s), free = histories_free_blocks(&s->h);
    if (needed <= free)
        return true;
    list_histories(s, c->job, false);
    list_paused_as_idle(s);
    /* Its own prefix it will hold itself. */
    struct giveup_history *own = &s->giveup_list[s->h.n + 1];
    *own = (struct giveup_history){ .busy = true, .reliable = true };
    if (c->source != SLOTS_NONE) {
        own->blocks = session_blocks(s->h.sessions[c->source], &own->n_blocks);
        own->n_blocks = c->shared / BLOCK_TOKENS;
        own->tokens = own->n_blocks * BLOCK_TOKENS;
    }
    int64_t idle = giveup_plan(s->giveup, s->giveup_list, s->h.n + 2, UINT32_MAX, c->aged, s->giveup_tokens);
    return idle >= 0 && needed <= free + (uint64_t)idle;
}

uint32_t room_blocks(const struct window *w)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < w->n_rows; i++)
        need += session_blocks_needed(w->rows[i].session, w->rows[i].n);
    return need;
}

static void evict(struct sched *s, uint32_t i, uint32_t keep)
{
    uint32_t had = slots_at(s->h.table, i)->n;
    count_lost(s, i, MISS_EVICTED_MEMORY);
    histories_cut(&s->h, i, keep);
    events_add(
        s,
        (struct sched_placement){
            .kind = SCHED_EVICT, .slot = events_slot(s, i), .source = SCHED_NONE, .tokens = had - keep },
        NULL, "memory");
}

/* Cuts idle histories until so many blocks are free, or none may go. */
static bool give_up(struct sched *s, uint32_t needed, bool take_wanted)
{
    uint32_t free = histories_free_blocks(&s->h);
    if (needed <= free)
        return true;
    room_ask_superseded(s);
    room_ask_worth(s, false);
    (void)queue_order(s);
    list_histories(s, NULL, true);
    if (giveup_plan(s->giveup, s->giveup_list, s->h.n + 1, needed - free, take_wanted, s->giveup_tokens) <= 0)
        return false;
    for (uint32_t i = 0; i <= s->h.n; i++)
        if (s->giveup_tokens[i] < s->giveup_list[i].tokens)
            evict(s, i, s->giveup_tokens[i]);
    return needed <= histories_free_blocks(&s->h);
}

/* Wanted histories may go when nobody else runs, or for one that has waited so long that it went first. */
static bool may_take_wanted(const struct sched *s, const struct window *w)
{
    bool aged = s->n_running == 1;
    for (uint32_t i = 0; i < w->n_rows; i++)
        aged |= w->jobs[i]->aged && !w->jobs[i]->first_ns;
    return aged;
}

bool room_make_blocks(struct sched *s, uint32_t n)
{
    return give_up(s, n, false);
}

bool room_has(struct sched *s, uint32_t n)
{
    (void)queue_order(s);
    list_histories(s, NULL, false);
    int64_t idle = giveup_plan(s->giveup, s->giveup_list, s->h.n + 1, UINT32_MAX, false, s->giveup_tokens);
    return idle >= 0 && n <= histories_free_blocks(&s->h) + (uint64_t)idle;
}

/* Whether history i has this block at this place. */
static bool holds(const struct sched *s, uint32_t i, uint32_t place, uint32_t block)
{
    uint32_t n;
    const uint32_t *blocks = session_blocks(s->h.sessions[i], &n);
    return place < n && blocks[place] == block;
}

static bool end_sharing_of(struct sched *s, const struct session *session, bool take_wanted)
{
    uint32_t n, holders = 0;
    const uint32_t *blocks = session_blocks(session, &n);
    if (!(session_len(session) % BLOCK_TOKENS))
        return false; /* nothing is written into the last block */
    uint32_t place = n - 1, block = blocks[place];
    for (uint32_t i = 0; i <= s->h.n; i++) {
        const struct giveup_history *g = &s->giveup_list[i];
        if (s->h.sessions[i] == session || !holds(s, i, place, block))
            continue;
        if (g->busy || (g->wanted && !take_wanted))
            return false;
        holders++;
    }
    for (uint32_t i = 0; holders && i <= s->h.n; i++)
        if (s->h.sessions[i] != session && holds(s, i, place, block))
            evict(s, i, place * BLOCK_TOKENS);
    return holders > 0;
}

/* What idle histories share with busy ones frees nothing when it goes, but for this: a row whose last block
 * is shared would go on in a copy, and in the block itself once nobody else holds it. Follows a give_up that
 * found too little. */
static bool end_sharing(struct sched *s, const struct window *w, bool take_wanted)
{
    bool ended = false;
    for (uint32_t i = 0; i < w->n_rows; i++)
        ended |= end_sharing_of(s, w->rows[i].session, take_wanted);
    return ended;
}

static bool make_from(struct sched *s, const struct window *w, bool take_wanted)
{
    return give_up(s, room_blocks(w), take_wanted) ||
           (end_sharing(s, w, take_wanted) && give_up(s, room_blocks(w), take_wanted));
}

static bool make(struct sched *s, const struct window *w)
{
    return make_from(s, w, false) || (may_take_wanted(s, w) && make_from(s, w, true));
}

bool room_make(struct sched *s, const struct window *w)
{
    return make(s, w) || (visits_give_way(s) && make(s, w));
}

int room_requeue_youngest(struct sched *s)
{
    struct job *victim = NULL;
    if (s->n_running < 2)
        return -ENOSPC;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct job *j = s->running[i];
        bool j_paused = atomic_load(&j->paused), v_paused = victim && atomic_load(&victim->paused);
        if (!victim || (j_paused && !v_paused) || (j_paused == v_paused && j->id > victim->id))
            victim = j;
    }
    if (victim->flying)
        return -EAGAIN;
    queue_requeue(s, victim, "memory");
    return 0;
}
