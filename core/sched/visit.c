/* Visits: see visit.h. Thread: the scheduler's, but for visits_call. */
#include "engine/session_io.h"
#include "sched/parts.h"
#include "util/clock.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VISIT_MS 2u /* of a window's time */

int visits_init(struct visits *v)
{
    v->kind = VISIT_ERASE;
    pthread_cond_init(&v->answered, NULL);
    int r = -pthread_mutex_init(&v->lock, NULL);
    v->made = r == 0;
    return r;
}

void visits_clear(struct visits *v)
{
    if (!v->made)
        return;
    pthread_mutex_destroy(&v->lock);
    pthread_cond_destroy(&v->answered);
    v->made = false;
}

int visits_call(struct sched *s, struct visit_call *c)
{
    struct visits *v = &s->visits;
    c->next = NULL;
    c->done = false;
    *c->err = '\0';
    pthread_mutex_lock(&v->lock);
    if (v->last)
        v->last->next = c;
    else
        v->first = c;
    v->last = c;
    pthread_mutex_unlock(&v->lock);
    sched_wake(s);
    pthread_mutex_lock(&v->lock);
    while (!c->done)
        pthread_cond_wait(&v->answered, &v->lock);
    pthread_mutex_unlock(&v->lock);
    return c->result;
}

static struct visit_call *take(struct visits *v)
{
    pthread_mutex_lock(&v->lock);
    struct visit_call *c = v->first;
    if (c)
        v->first = c->next;
    if (!v->first)
        v->last = NULL;
    pthread_mutex_unlock(&v->lock);
    return c;
}

static void answer(struct visits *v, struct visit_call *c)
{
    pthread_mutex_lock(&v->lock);
    c->done = true;
    pthread_cond_broadcast(&v->answered);
    pthread_mutex_unlock(&v->lock);
}

static const char *name_of(const struct sched *s, uint32_t index, char text[16])
{
    if (index == s->h.n)
        return "main";
    snprintf(text, 16, "slot %u", index);
    return text;
}

__attribute__((format(printf, 4, 5))) static int fail(const struct sched *s, struct visit_call *c, int r,
                                                      const char *fmt, ...)
{
    char place[16];
    va_list args;
    int n = snprintf(c->err, sizeof c->err, "%s: ", name_of(s, c->index, place));
    va_start(args, fmt);
    vsnprintf(c->err + n, sizeof c->err - (size_t)n, fmt, args);
    va_end(args);
    return r;
}

/* ---- coming and going ---- */

static int check_idle(const struct sched *s, struct visit_call *c)
{
    if (c->index > s->h.n)
        return fail(s, c, -EINVAL, "there is none of that number");
    if (slots_at(s->h.table, c->index)->busy || session_in_flight(s->h.sessions[c->index]))
        return fail(s, c, -EBUSY, "a request runs there");
    return 0;
}

static int check_free(const struct sched *s, struct visit_call *c)
{
    char place[16];
    if (s->visits.kind != VISIT_ERASE)
        return fail(s, c, -EBUSY, "%s is being saved or restored, one at a time",
                    name_of(s, s->visits.index, place));
    return check_idle(s, c);
}

static void exclude(struct sched *s, bool excluded)
{
    const struct visits *v = &s->visits;
    if (v->kind != VISIT_ERASE && v->index < s->h.n && !slots_at(s->h.table, v->index)->busy)
        slots_set_excluded(s->h.table, v->index, excluded);
}

static void begin(struct sched *s, const struct visit_call *c)
{
    struct visits *v = &s->visits;
    const struct slots_history *h = slots_at(s->h.table, c->index);
    v->kind = c->what;
    v->index = c->index;
    v->version = h->version;
    v->gave_way = false;
}

static int end(struct sched *s)
{
    struct visits *v = &s->visits;
    exclude(s, false);
    v->kind = VISIT_ERASE;
    session_free(s->h.incoming);
    s->h.incoming = NULL;
    s->blocked_until_ns = 0;
    return 0;
}

/* Something else lies there now: what is told of the histories is told anew. */
static void changed(struct sched *s)
{
    s->blocked_until_ns = 0;
    room_ask_superseded(s);
    room_ask_worth(s, true);
    status_publish(s, s->doing);
}

/* ---- out ---- */

static int erase(struct sched *s, struct visit_call *c)
{
    int r = check_idle(s, c);
    if (r == 0 && s->visits.kind != VISIT_ERASE && s->visits.index == c->index)
        r = fail(s, c, -EBUSY, "it is being saved or restored");
    if (r < 0)
        return r;
    c->n = slots_at(s->h.table, c->index)->n;
    if (c->n)
        count_lost(s, c->index, c->index == s->h.n ? MISS_REPLACED_ON_MAIN : MISS_SLOT_TAKEN);
    histories_cut(&s->h, c->index, 0);
    events_add(
        s,
        (struct sched_placement){
            .kind = SCHED_ERASE, .slot = events_slot(s, c->index), .source = SCHED_NONE, .tokens = c->n },
        NULL, "asked");
    changed(s);
    return 0;
}

static int leave(struct sched *s, struct visit_call *c)
{
    int r = check_free(s, c);
    if (r < 0)
        return r;
    const struct slots_history *h = slots_at(s->h.table, c->index);
    if (!h->n)
        return fail(s, c, -ENODATA, "it holds nothing");
    if (!h->reliable)
        return fail(s, c, -ENODATA, "what it holds is not to be relied on");
    c->tokens = malloc(h->n * sizeof *c->tokens);
    if (!c->tokens)
        return fail(s, c, -ENOMEM, "out of memory");
    memcpy(c->tokens, h->tokens, h->n * sizeof *c->tokens);
    c->history = (struct slotfile_history){ .n_tokens = h->n,
                                            .turn_tokens = h->turn_tokens,
                                            .turns = h->label.turns,
                                            .stop_reason = h->label.stop_reason,
                                            .prompt_tokens = h->label.prompt_tokens,
                                            .request_flags = h->label.request_flags,
                                            .cut = h->cut,
                                            .salt = h->salt };
    begin(s, c);
    s->visits.n = h->n;
    return 0;
}

static bool time_is_over(const struct sched *s, uint64_t begin_ns)
{
    return s->n_running && clock_now_ns() - begin_ns >= VISIT_MS * NS_PER_MS;
}

/* Its first n tokens are what they were unless it was cut, lost or replaced, all of which change the version.
 */
static int get(struct sched *s, struct visit_call *c)
{
    const struct visits *v = &s->visits;
    const struct slots_history *h = slots_at(s->h.table, v->index);
    uint64_t begin_ns = clock_now_ns();
    c->index = v->index;
    if (h->version != v->version)
        return fail(s, c, -EBUSY, "its memory was needed while it was being saved");
    c->n = 0;
    while (c->at + c->n < v->n && (c->n + SESSION_IO_TOKENS) * c->token_bytes <= c->size) {
        uint32_t from = c->at + c->n, n;
        n = session_io_get(s->h.sessions[v->index], from / SESSION_IO_TOKENS,
                           c->bytes + c->n * c->token_bytes);
        c->n += n < v->n - from ? n : v->n - from;
        if (time_is_over(s, begin_ns))
            break;
    }
    return 0;
}

/* ---- in ---- */

static uint32_t blocks_for(uint32_t tokens)
{
    return (tokens + SESSION_IO_TOKENS - 1) / SESSION_IO_TOKENS;
}

static int no_room(const struct sched *s, struct visit_call *c)
{
    return fail(s, c, -ENOMEM,
                "the memory of conversations has no room for %u tokens beside what runs and what it holds; "
                "erase it first, or others",
                s->visits.n);
}

static int enter(struct sched *s, struct visit_call *c)
{
    int r = check_free(s, c);
    if (r < 0)
        return r;
    begin(s, c);
    s->visits.n = c->history.n_tokens;
    r = session_new(s->engine, &s->h.incoming);
    if (r < 0)
        r = fail(s, c, r, "out of memory");
    else if (!room_has(s, blocks_for(s->visits.n)))
        r = no_room(s, c);
    if (r < 0)
        end(s);
    return r;
}

bool visits_give_way(struct sched *s)
{
    if (!s->h.incoming || s->visits.gave_way)
        return false;
    session_cut(s->h.incoming, 0);
    s->visits.gave_way = true;
    return true;
}

bool visits_main(const struct sched *s)
{
    return s->visits.kind != VISIT_ERASE && s->visits.index == s->h.n;
}

uint32_t visits_spared(const struct sched *s)
{
    bool enters = s->visits.kind == VISIT_ENTER && !s->visits.gave_way;
    return enters ? s->visits.index : SLOTS_NONE;
}

static int put(struct sched *s, struct visit_call *c)
{
    uint64_t begin_ns = clock_now_ns();
    c->index = s->visits.index;
    c->taken = 0;
    if (s->visits.gave_way || session_len(s->h.incoming) != c->at || !room_make_blocks(s, blocks_for(c->n)))
        return no_room(s, c);
    while (c->taken < c->n) {
        uint32_t n = c->n - c->taken < SESSION_IO_TOKENS ? c->n - c->taken : SESSION_IO_TOKENS;
        int r = session_io_put(s->h.incoming, n, c->bytes + c->taken * c->token_bytes);
        if (r < 0)
            return fail(s, c, r, "%s", strerror(-r));
        c->taken += n;
        if (time_is_over(s, begin_ns))
            break;
    }
    return 0;
}

static struct slots_given given(const struct sched *s, const struct visit_call *c)
{
    const struct slotfile_history *h = &c->history;
    return (struct slots_given){
        .tokens = c->tokens,
        .n = h->n_tokens,
        .turn_tokens = h->turn_tokens,
        .cut = h->cut,
        .salt = h->salt,
        /* To restore it is to use it. */
        .label = { .last_use_ns = (int64_t)s->now_ns,
                   .turns = h->turns,
                   .stop_reason = h->stop_reason < POLICY_STOPS ? h->stop_reason : POLICY_STOP_NONE,
                   .prompt_tokens = h->prompt_tokens,
                   .request_flags = h->request_flags },
    };
}

static int commit(struct sched *s, struct visit_call *c)
{
    c->index = s->visits.index;
    if (s->visits.gave_way || session_len(s->h.incoming) != c->history.n_tokens)
        return no_room(s, c);
    int r = check_idle(s, c);
    if (r < 0)
        return r;
    struct slots_given g = given(s, c);
    claim_note_overwrite(s, NULL, c->index, SLOTS_NONE, 0);
    r = histories_put(&s->h, c->index, &g);
    if (r < 0)
        return fail(s, c, r, "%s", strerror(-r));
    events_add(
        s,
        (struct sched_placement){
            .kind = SCHED_LOAD, .slot = events_slot(s, c->index), .source = SCHED_NONE, .tokens = g.n },
        NULL, "file");
    changed(s);
    return 0;
}

/* ---- calls ---- */

static int serve(struct sched *s, struct visit_call *c)
{
    switch (c->what) {
    case VISIT_ERASE:
        return erase(s, c);
    case VISIT_LEAVE:
        return leave(s, c);
    case VISIT_GET:
        return get(s, c);
    case VISIT_ENTER:
        return enter(s, c);
    case VISIT_PUT:
        return put(s, c);
    case VISIT_COMMIT:
        return commit(s, c);
    case VISIT_END:
        return end(s);
    }
    return -EINVAL;
}

bool visits_serve(struct sched *s)
{
    struct visit_call *c = take(&s->visits);
    if (c) {
        c->result = serve(s, c);
        answer(&s->visits, c);
    }
    exclude(s, true); /* somebody else who excluded it for a decision has ended that */
    return c != NULL;
}

void visits_close(struct sched *s)
{
    (void)end(s);
}
