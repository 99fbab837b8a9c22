/* Events: the ring of the last placement events, and their lines in the log.
 * Thread: written by the scheduler's, but for reloads, read by any; ring.lock is a leaf. Tests:
 * tests/unit/test_sched.c */
#include "sched/parts.h"
#include "util/clock.h"
#include "util/log.h"
#include <inttypes.h>
#include <stdio.h>

int events_init(struct placement_ring *ring)
{
    ring->next_id = 1;
    ring->wall_ns = clock_wall_ns() - clock_now_ns();
    pthread_mutex_init(&ring->watch_lock, NULL);
    return -pthread_mutex_init(&ring->lock, NULL);
}

void events_clear(struct placement_ring *ring)
{
    if (ring->next_id) {
        pthread_mutex_destroy(&ring->lock);
        pthread_mutex_destroy(&ring->watch_lock);
    }
    ring->next_id = 0;
}

int32_t events_slot(const struct sched *s, uint32_t history)
{
    return history == SLOTS_NONE ? SCHED_NONE : history == s->h.n ? SCHED_MAIN : (int32_t)history;
}

const char *sched_placement_name(enum sched_placement_kind kind)
{
    static const char *const names[SCHED_EVENT_KINDS] = {
        [SCHED_PLACE] = "place", [SCHED_CONTINUE] = "continue",   [SCHED_RESTORE] = "restore",
        [SCHED_PARK] = "park",   [SCHED_PARK_SKIP] = "park_skip", [SCHED_OVERWRITE] = "overwrite",
        [SCHED_EVICT] = "evict", [SCHED_PROMOTE] = "promote",     [SCHED_BACK_TO_SOLO] = "back_to_solo",
        [SCHED_LOAD] = "load",   [SCHED_ERASE] = "erase",         [SCHED_REQUEUE] = "requeue",
        [SCHED_PAD] = "pad",     [SCHED_RELOAD] = "reload",       [SCHED_RELOAD_FAILED] = "reload_failed",
    };
    return names[kind];
}

static const char *place_name(int32_t slot, char text[16])
{
    if (slot == SCHED_MAIN)
        return "main";
    if (slot == SCHED_NONE)
        return "none";
    snprintf(text, 16, "%" PRId32, slot);
    return text;
}

static void tell_watcher(struct placement_ring *ring)
{
    pthread_mutex_lock(&ring->watch_lock);
    if (ring->watch)
        ring->watch(ring->watch_arg);
    pthread_mutex_unlock(&ring->watch_lock);
}

static void keep(struct placement_ring *ring, struct sched_placement *e)
{
    pthread_mutex_lock(&ring->lock);
    e->id = ring->next_id++;
    ring->at[e->id % SCHED_PLACEMENTS] = *e;
    pthread_mutex_unlock(&ring->lock);
    tell_watcher(ring);
}

void sched_placements_reloaded(struct sched *s, bool ok, const char *policy, uint64_t generation)
{
    struct sched_placement e = { .kind = ok ? SCHED_RELOAD : SCHED_RELOAD_FAILED,
                                 .time_ns = clock_wall_ns(),
                                 .slot = SCHED_NONE,
                                 .source = SCHED_NONE,
                                 .generation = generation };
    snprintf(e.reason, sizeof e.reason, "%s", policy);
    keep(&s->ring, &e);
}

void sched_placements_watch(struct sched *s, void (*fn)(void *arg), void *arg)
{
    struct placement_ring *ring = &s->ring;
    pthread_mutex_lock(&ring->watch_lock);
    ring->watch = fn;
    ring->watch_arg = arg;
    pthread_mutex_unlock(&ring->watch_lock);
}

void events_add(struct sched *s, struct sched_placement e, const struct job *j, const char *reason)
{
    struct placement_ring *ring = &s->ring;
    e.time_ns = s->now_ns + ring->wall_ns;
    e.job = j ? j->id : 0;
    e.client_key = j ? j->client_key : 0;
    e.generation = policy_host_generation(s->host);
    snprintf(e.request_id, sizeof e.request_id, "%s", j ? j->request_id : "");
    snprintf(e.reason, sizeof e.reason, "%s", reason ? reason : "");
    keep(ring, &e);
    s->tally.placements[e.kind]++;
    s->tally.placement_tokens[e.kind] += e.tokens;
    if (log_level_get() <= LOG_DEBUG) {
        char slot[16], source[16];
        log_write(LOG_DEBUG, "placement",
                  "kind=%s job=%" PRIu64 " slot=%s source=%s tokens=%" PRIu32 " reason=%s us=%" PRIu32,
                  sched_placement_name(e.kind), e.job, place_name(e.slot, slot), place_name(e.source, source),
                  e.tokens, *e.reason ? e.reason : "-", e.took_us);
    }
}

size_t sched_placements_get(struct sched *s, uint64_t after, struct sched_placement ret[SCHED_PLACEMENTS])
{
    struct placement_ring *ring = &s->ring;
    size_t n = 0;
    pthread_mutex_lock(&ring->lock);
    uint64_t first = ring->next_id > SCHED_PLACEMENTS ? ring->next_id - SCHED_PLACEMENTS : 1;
    for (uint64_t id = after >= first ? after + 1 : first; id < ring->next_id; id++)
        ret[n++] = ring->at[id % SCHED_PLACEMENTS];
    pthread_mutex_unlock(&ring->lock);
    return n;
}
