/* Loaded: one load of one policy, counted. Loading the same file again makes another one.
 *
 * It never changes. Whoever holds a reference may ask it, on any thread; the last one who lets go of it puts
 * it on its graveyard, where one thread (the loader's) destroys the policy's own state and closes the object:
 * never the thread that happened to be last. Strings and tables of a policy lie in its object and are gone
 * with it: who keeps them longer than his reference copies them.
 *
 * Thread: any; a graveyard's lock is a leaf. Must not know: how a policy was found, who asks it.
 * Tests: tests/unit/test_seat.c, tests/unit/policy_swap_stress.c */
#pragma once
#include "abi/policy.h"
#include <stddef.h>

struct policy_loaded;
struct policy_graveyard;

/* ---- what it is; valid while a reference is held ---- */

/* At our own size: functions that a shorter one lacks are NULL. head is as the policy was built; its name,
 * strings and tables were found sound. */
const struct slot_policy *policy_loaded_entry(const struct policy_loaded *p);
const void *policy_loaded_self(const struct policy_loaded *p); /* what the four functions are called with */
const char *policy_loaded_name(const struct policy_loaded *p);
const char *policy_loaded_version(const struct policy_loaded *p);
const char *policy_loaded_summary(const struct policy_loaded *p);
const char *policy_loaded_path(const struct policy_loaded *p);   /* "builtin" for the one linked in */
const char *policy_loaded_digest(const struct policy_loaded *p); /* SHA-256 of the file in hex; or "" */

struct policy_loaded_setting {
    const char *name;
    const char *text;   /* the value in effect, as it was written */
    const char *origin; /* where it was: "default", or what the loader was told */
};
/* i < entry's n_settings, in its order. */
struct policy_loaded_setting policy_loaded_setting_get(const struct policy_loaded *p, uint32_t i);

/* ---- counting ---- */

/* Returns p. */
struct policy_loaded *policy_loaded_ref(struct policy_loaded *p);
void policy_loaded_unref(struct policy_loaded *p); /* NULL is fine */
/* The policy that is linked in: always there, counted like any other to no effect. */
struct policy_loaded *policy_loaded_builtin(void);

/* ---- the end ---- */

/* wake is called, on the thread that let go last, when there is something to bury; it may be NULL. */
int policy_graveyard_new(void (*wake)(void *arg), void *arg, struct policy_graveyard **ret_graveyard);
/* [loader] Destroys all that lies there and returns how many it was. */
size_t policy_graveyard_bury(struct policy_graveyard *g);
/* Buries; nothing that would end here may be left. NULL is fine. */
void policy_graveyard_free(struct policy_graveyard *g);

/* ---- making one (load.c; tests, of an entry of their own) ---- */

struct policy_object;
struct policy_settings;

struct policy_loaded_parts {
    const struct slot_policy *entry; /* sound; lives as long as the object, or for ever */
    void *self;
    struct policy_object *object;       /* NULL: linked in. Closed at the end, as settings are freed */
    struct policy_settings *settings;   /* NULL: it has none */
    const char *path, *digest;          /* copied; NULL: "" */
    struct policy_graveyard *graveyard; /* must outlive it; NULL: it is destroyed where the last reference is
                                           let go */
};
/* Takes the parts over, but on -ENOMEM, which leaves them the caller's. */
int policy_loaded_new(const struct policy_loaded_parts *parts, struct policy_loaded **ret_policy);
