/* Cmd serve reload: the policy in use and how it, and every other setting that may change, is exchanged while
 * requests run. SIGHUP and POST /admin/reload only ask; the loader thread reads the configuration again, from
 * the same file with the same --set, loads what it names, and exchanges all of it or nothing. Whatever was
 * asked for while it worked becomes one further reload. The loader also destroys policies that nobody uses
 * any more, and is waited for by nobody.
 *
 * Threads: the main thread until reload_start; then each function says which. `lock` (reload.c) is a leaf.
 * Must not know: HTTP, what a policy decides. Tests: tests/e2e/test_reload.py, tests/e2e/test_swap.py */
#pragma once
#include "config/config.h"
#include "http/http.h"
#include "policy/decision.h"
#include "policy/seat.h"
#include "policy/shadow.h"
#include "policy/trace.h"

struct reload;

struct reload_options {          /* borrowed */
    const struct config *config; /* the one at start */
    const char *path;            /* of its file; NULL: none */
    const char *const *sets;
    size_t n_sets;
};

struct reload_outcome { /* of one reload */
    bool ok;
    uint64_t generation; /* of the policy in use after it */
    char policy[64];     /* its name */
    char digest[65];
    char error[1024];   /* "": ok */
    char restart[1024]; /* keys that were changed but need a restart, with commas; "": none */
    double seconds;
};

struct reload_status {
    uint64_t reloads, failures; /* tried, start apart; of these failed */
    char last_error[1024];      /* of the last failure; "": none so far */
};

/* Makes what the scheduler needs: loads the first policy and shadows, opens the trace. err names what is
 * wrong with the configuration. */
int reload_new(const struct reload_options *o, struct reload **ret_reload, char *err, size_t errlen);
struct policy_seat *reload_seat(struct reload *r);
struct policy_listeners *reload_listeners(struct reload *r);

struct reload_hooks {
    /* [event thread] Puts new settings in force, and `rules` in exchange for those that were. Cannot fail. */
    void (*put)(void *arg, const struct config *c, struct http_rules **rules);
    /* [event thread] A reload is over; all that was asked for up to `ticket` is answered by it. */
    void (*done)(void *arg, uint64_t ticket, const struct reload_outcome *outcome);
    void *arg;
};
/* Starts the loader thread; h and what the hooks use outlive it. */
int reload_start(struct reload *r, struct http *h, const struct reload_hooks *hooks);

/* [any thread] Wants a reload that begins from now on; returns its ticket. */
uint64_t reload_ask(struct reload *r);
struct reload_status reload_status_get(struct reload *r);         /* [any thread] */
struct policy_trace_status reload_trace_status(struct reload *r); /* [any thread] */
size_t reload_shadow_status(struct reload *r,
                            struct policy_shadow_status ret[POLICY_SHADOWS_MAX]); /* [any] */

/* Ends the thread. False when it hangs in a policy; then nothing it uses can be freed. NULL is fine. */
bool reload_stop(struct reload *r);
/* After the scheduler and http are gone. */
void reload_free(struct reload *r);
