/* Cmd serve policy: which policies, and which trace, a configuration and the environment ask for, and loading
 * them: at start, at every reload, and for `berth check`.
 *
 *   STRATA_SLOT_CACHE_AFFINITY  0: the built-in policy; 1: policy.path, else the installed value.so
 *   STRATA_PIPELINE_ACTIVE_ROWS 1: windows have active rows; 0: they are padded
 *   STRATA_CACHE_TRACE          1: trace.path, else standard error; 0: trace.path alone
 *
 * Names are looked up in the configuration's `env`, then in the process environment.
 * Thread: any, one at a time; blocks as policy_load does. Must not know: who uses the policies.
 * Tests: tests/e2e/test_policy_start.py, tests/e2e/test_reload.py */
#pragma once
#include "config/config.h"
#include "policy/loaded.h"
#include "policy/shadow.h"

struct serve_policies {
    struct policy_loaded *policy; /* never NULL */
    struct policy_loaded *shadow[POLICY_SHADOWS_MAX];
    size_t n_shadows;
    bool trace;
    const char *trace_path; /* with trace; NULL: standard error. The configuration's */
    char fallback[1024];    /* why the built-in policy is there instead, or a shadow is not; "": all are */
    char unused[512];       /* environment names that are set for no policy of these; "": none */
};

/* All or nothing. starting: policy.fallback is heard. stop_fd: policy_load's. err names the key or the
 * environment name, where it was set, and what is wrong. */
int serve_policies_load(const struct config *c, bool starting, int stop_fd, struct policy_graveyard *g,
                        struct serve_policies *ret_policies, char *err, size_t errlen);
void serve_policies_clear(struct serve_policies *p);
/* Whether windows are padded: what engine.windows or the environment says. -EDOM when they contradict. */
int serve_padded(const struct config *c, bool *ret_padded, char *err, size_t errlen);
/* The folder of the policies that came with this program: plugins/ beside it where it was built, else where
 * they were installed to, as seen from it. -ENAMETOOLONG, or why it cannot be told. */
int serve_policies_folder(char *dst, size_t size);
