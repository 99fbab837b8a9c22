/* Loaded: see loaded.h. */
#include "policy/loaded.h"
#include "policy/host.h"
#include "policy/object.h"
#include "policy/settings.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct policy_loaded {
    atomic_size_t refs;
    struct slot_policy entry;
    void *self;
    struct policy_object *object;
    struct policy_settings *settings;
    char *path, *digest;
    struct policy_graveyard *graveyard;
    struct policy_loaded *next; /* on the graveyard */
};

struct policy_graveyard {
    pthread_mutex_t lock;
    struct policy_loaded *first;
    void (*wake)(void *arg);
    void *arg;
};

/* ---- the one linked in: no count, no end ---- */

static const struct policy_loaded builtin_handle; /* an address to know it by */

static const struct policy_loaded *only_builtin(const struct policy_loaded *p)
{
    return p == &builtin_handle ? p : NULL;
}

struct policy_loaded *policy_loaded_builtin(void)
{
    return (struct policy_loaded *)(uintptr_t)&builtin_handle;
}

/* ---- what it is ---- */

const struct slot_policy *policy_loaded_entry(const struct policy_loaded *p)
{
    return only_builtin(p) ? &policy_builtin : &p->entry;
}

const void *policy_loaded_self(const struct policy_loaded *p)
{
    return only_builtin(p) ? &policy_builtin : p->self;
}

const char *policy_loaded_name(const struct policy_loaded *p)
{
    return policy_loaded_entry(p)->name;
}

const char *policy_loaded_version(const struct policy_loaded *p)
{
    return policy_loaded_entry(p)->version;
}

const char *policy_loaded_summary(const struct policy_loaded *p)
{
    return policy_loaded_entry(p)->summary;
}

const char *policy_loaded_path(const struct policy_loaded *p)
{
    return only_builtin(p) ? policy_builtin.name : p->path;
}

const char *policy_loaded_digest(const struct policy_loaded *p)
{
    return only_builtin(p) ? "" : p->digest;
}

struct policy_loaded_setting policy_loaded_setting_get(const struct policy_loaded *p, uint32_t i)
{
    return policy_settings_get(p->settings, i);
}

/* ---- counting ---- */

static void destroy(struct policy_loaded *p)
{
    if (p->entry.destroy) {
        struct policy_marker marker = { 0 };
        policy_marker_enter(&marker, p->entry.name, "destroy", 0);
        p->entry.destroy(p->self);
        policy_marker_leave(&marker);
    }
    policy_settings_free(p->settings);
    policy_object_free(p->object);
    free(p->path);
    free(p->digest);
    free(p);
}

struct policy_loaded *policy_loaded_ref(struct policy_loaded *p)
{
    if (!only_builtin(p))
        atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void policy_loaded_unref(struct policy_loaded *p)
{
    if (!p || only_builtin(p) || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) > 1)
        return;
    struct policy_graveyard *g = p->graveyard;
    if (!g) {
        destroy(p);
        return;
    }
    pthread_mutex_lock(&g->lock);
    p->next = g->first;
    g->first = p;
    pthread_mutex_unlock(&g->lock);
    if (g->wake)
        g->wake(g->arg);
}

int policy_loaded_new(const struct policy_loaded_parts *parts, struct policy_loaded **ret_policy)
{
    struct policy_loaded *p = calloc(1, sizeof *p);
    size_t size = parts->entry->head.size;
    if (!p)
        return -ENOMEM;
    p->path = strdup(parts->path ? parts->path : "");
    p->digest = strdup(parts->digest ? parts->digest : "");
    if (!p->path || !p->digest) {
        free(p->path);
        free(p->digest);
        free(p);
        return -ENOMEM;
    }
    memcpy(&p->entry, parts->entry, size < sizeof p->entry ? size : sizeof p->entry);
    p->self = parts->self;
    p->object = parts->object;
    p->settings = parts->settings;
    p->graveyard = parts->graveyard;
    atomic_init(&p->refs, 1);
    *ret_policy = p;
    return 0;
}

/* ---- the end ---- */

int policy_graveyard_new(void (*wake)(void *arg), void *arg, struct policy_graveyard **ret_graveyard)
{
    struct policy_graveyard *g = calloc(1, sizeof *g);
    if (!g)
        return -ENOMEM;
    pthread_mutex_init(&g->lock, NULL);
    g->wake = wake;
    g->arg = arg;
    *ret_graveyard = g;
    return 0;
}

size_t policy_graveyard_bury(struct policy_graveyard *g)
{
    size_t n = 0;
    pthread_mutex_lock(&g->lock);
    struct policy_loaded *p = g->first;
    g->first = NULL;
    pthread_mutex_unlock(&g->lock);
    for (struct policy_loaded *next; p; p = next, n++) {
        next = p->next;
        destroy(p);
    }
    return n;
}

void policy_graveyard_free(struct policy_graveyard *g)
{
    if (!g)
        return;
    policy_graveyard_bury(g);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
