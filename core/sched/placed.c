/* Placed: see placed.h. The ring's lock is a leaf. A record is made with the first decision about a job, and
 * changes until the job has ended; readers get copies. */
#include "sched/placed.h"
#include "sched/parts.h"
#include "util/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int placed_init(struct placed_ring *ring)
{
    ring->at = calloc(SCHED_PLACED, sizeof(struct sched_placed *));
    if (!ring->at)
        return -ENOMEM;
    return -pthread_mutex_init(&ring->lock, NULL);
}

void placed_clear(struct placed_ring *ring)
{
    if (!ring->at)
        return;
    for (uint32_t i = 0; i < SCHED_PLACED; i++)
        sched_placed_free(ring->at[i]);
    free(ring->at);
    ring->at = NULL;
    pthread_mutex_destroy(&ring->lock);
}

void sched_placed_free(struct sched_placed *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_choices; i++)
        free(p->choices[i]);
    free(p);
}

/* ---- a decision ---- */

static struct sched_row row_of(struct sched *s, uint32_t i, uint32_t shared, const double *loss)
{
    const struct slots_history *h = slots_at(s->h.table, i);
    int64_t used = h->label.last_use_ns, now = (int64_t)s->now_ns;
    return (struct sched_row){
        .tokens = h->n,
        .turn_tokens = h->turn_tokens,
        .shared = shared,
        .busy = h->busy,
        .excluded = h->excluded,
        .held = h->held,
        .reliable = h->reliable,
        .superseded = i < s->h.n && s->superseded[i / 64] >> (i % 64) & 1,
        .state = status_state_name(s->worth[i].state),
        .age_s = h->busy      ? 0
                 : used <= 0  ? NAN
                 : now > used ? (double)(now - used) / 1e9
                              : 0,
        .value = s->worth[i].value,
        .loss = loss && i < s->h.n ? loss[i] : NAN,
    };
}

struct sched_choice *placed_look(struct sched *s, struct job *j, const struct placed_why *why)
{
    uint32_t n = why->table ? s->h.n + 1 : 0;
    struct sched_choice *c = calloc(1, sizeof *c + n * sizeof c->row[0]);
    if (!c)
        return NULL;
    snprintf(c->reason, sizeof c->reason, "%s", why->reason ? why->reason : "");
    snprintf(c->sentence, sizeof c->sentence, "%s", why->sentence ? why->sentence : "");
    if (why->asked) {
        snprintf(c->policy, sizeof c->policy, "%s", policy_host_name(s->host));
        c->generation = why->generation;
        c->by_builtin = why->by_builtin;
    }
    c->loss = why->loss;
    c->tokens_lost = why->tokens_lost;
    c->n_rows = n;
    const uint32_t *shared = n && claim_reuses(j) ? slots_prompt_shared(s->h.table, j->prompt) : s->nothing;
    for (uint32_t i = 0; i < n; i++)
        c->row[i] = row_of(s, i, shared[i], why->candidate_loss);
    return c;
}

/* ---- the ring ---- */

/* The newest first: those asked about are the latest. */
static struct sched_placed *find(const struct placed_ring *ring, uint64_t job)
{
    for (uint32_t k = 1; k <= SCHED_PLACED; k++) {
        struct sched_placed *p = ring->at[(ring->next + SCHED_PLACED - k) % SCHED_PLACED];
        if (p && p->job == job)
            return p;
    }
    return NULL;
}

static struct sched_placed *record_new(const struct job *j)
{
    struct sched_placed *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->job = j->id;
    p->client_key = j->client_key;
    p->prompt_tokens = j->n_prompt;
    snprintf(p->request_id, sizeof p->request_id, "%s", j->request_id);
    return p;
}

/* The job's record, made when there is none yet; *ret_old is to be freed by the caller, without the lock. */
static struct sched_placed *record_of(struct placed_ring *ring, const struct job *j,
                                      struct sched_placed **ret_old)
{
    struct sched_placed *p = find(ring, j->id);
    if (p)
        return p;
    p = record_new(j);
    if (!p)
        return NULL;
    *ret_old = ring->at[ring->next];
    ring->at[ring->next] = p;
    ring->next = (ring->next + 1) % SCHED_PLACED;
    return p;
}

void placed_add(struct sched *s, const struct job *j, struct sched_choice *c, const struct sched_placement *e)
{
    struct sched_placed *old = NULL;
    if (!c)
        return;
    c->kind = e->kind;
    c->slot = e->slot;
    c->source = e->source;
    c->tokens = e->tokens;
    c->time_ns = s->now_ns + s->ring.wall_ns;
    pthread_mutex_lock(&s->placed.lock);
    struct sched_placed *p = record_of(&s->placed, j, &old);
    bool kept = p && p->n_choices < SCHED_CHOICES_MAX;
    if (kept)
        p->choices[p->n_choices++] = c;
    pthread_mutex_unlock(&s->placed.lock);
    if (!kept)
        free(c);
    sched_placed_free(old);
}

void placed_begun(struct sched *s, const struct job *j, const struct miss *miss)
{
    struct sched_placed *old = NULL;
    pthread_mutex_lock(&s->placed.lock);
    struct sched_placed *p = record_of(&s->placed, j, &old);
    if (p) {
        p->cached = j->cached;
        p->queue_ns = s->now_ns > j->submit_ns ? s->now_ns - j->submit_ns : 0;
        p->judged = miss != NULL;
        p->miss = miss ? miss->reason : MISS_NONE;
        p->miss_tokens = miss ? miss->tokens : 0;
    }
    pthread_mutex_unlock(&s->placed.lock);
    sched_placed_free(old);
}

/* ---- reading ---- */

static struct sched_placed *copy_of(const struct sched_placed *from)
{
    struct sched_placed *p = malloc(sizeof *p);
    if (!p)
        return NULL;
    *p = *from;
    p->n_choices = 0;
    for (uint32_t i = 0; i < from->n_choices; i++) {
        size_t size = sizeof *p->choices[i] + from->choices[i]->n_rows * sizeof p->choices[i]->row[0];
        struct sched_choice *c = malloc(size);
        if (!c)
            break;
        memcpy(c, from->choices[i], size);
        p->choices[p->n_choices++] = c;
    }
    return p;
}

static bool is_called(const struct sched_placed *p, const char *id)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, p->job);
    return strcmp(p->request_id, id) == 0 || strcmp(number, id) == 0;
}

size_t sched_placed_get(struct sched *s, const char *id, struct sched_placed *ret[SCHED_PLACED_FOUND])
{
    struct placed_ring *ring = &s->placed;
    size_t n = 0;
    pthread_mutex_lock(&ring->lock);
    for (uint32_t k = 1; k <= SCHED_PLACED && n < SCHED_PLACED_FOUND; k++) {
        const struct sched_placed *p = ring->at[(ring->next + SCHED_PLACED - k) % SCHED_PLACED];
        if (p && is_called(p, id) && (ret[n] = copy_of(p)))
            n++;
    }
    pthread_mutex_unlock(&ring->lock);
    return n;
}
