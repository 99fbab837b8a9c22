/* Load: from a file to a policy that can be published, or to a line that says why not.
 *
 * The file is read once. Its bytes are checked as an ELF object, its entry's head included, before anything
 * of it runs; then they lie in a sealed memory file, which nobody can change any more, and everything else is
 * done with that: a child process (the probe) loads it first and answers the self-test, so that a file which
 * crashes, aborts or hangs kills that child and not this process; then it is opened here, its tables are
 * looked over, its settings parsed, its state created, and the self-test asked again. Whatever fails leaves
 * nothing behind.
 *
 * Thread: one at a time (the loader's). Blocks: up to probe_ms and the policy's own time. Must not know: the
 * configuration's form, who uses the policy. Tests: tests/abi/ */
#pragma once
#include "policy/loaded.h"
#include <stdbool.h>

struct policy_given { /* a value as somebody wrote it, and where, for the message that refuses it */
    const char *name; /* of a setting; or of an environment variable */
    const char *text;
    const char
        *origin; /* "conf/berth.json: policy.settings.ttl_max_s", "environment STRATA_SLOT_TTL_MAX_S" */
};

struct policy_load_options {
    const char *path;
    /* Settings by name, or by the environment name a setting accepts; each once. An unknown one is refused.
     */
    const struct policy_given *settings;
    size_t n_settings;
    /* The environment: names nobody declared are passed over; the first of two entries counts. A setting
     * given above wins over it. */
    const struct policy_given *env;
    size_t n_env;
    const char *probe_program; /* a berth ("/proc/self/exe"), asked `policy check --probe`; NULL: no probe */
    unsigned probe_ms;         /* its time limit; 0: 5,000 */
    int stop_fd;               /* readable: give the probe up (-ECANCELED); 0: none */
    struct policy_graveyard *graveyard; /* of the policy loaded; may be NULL */
    /* Where a private file goes when memory files may not be executed; NULL: $TMPDIR, else /tmp. */
    const char *private_dir;
    bool no_memfd; /* as if they might not, for tests */
};

/* 0; -EINVAL, -ENOEXEC, -ENOENT, ...: refused, and err says why in one line without the path. -EDOM: settings
 * are what was refused. -ECANCELED: by stop_fd. */
int policy_load(const struct policy_load_options *o, struct policy_loaded **ret_policy, char *err,
                size_t errlen);
