/* Trace: a line of JSON for every decision, in the form that `berth policy eval` reads (policy/case.h), to a
 * file or to standard error. Decisions whose answer is only shown are left out. Lengths, ages and salted
 * keys; no tokens, no text.
 *
 * Off at first. Lines are written by a thread of its own from a bounded queue; what does not fit is dropped
 * and counted, as is a line that cannot be written.
 *
 * Thread: opened and closed by the loader, read by any. Must not know: the configuration.
 * Tests: tests/unit/test_trace.c, tests/unit/policy_stress.c */
#pragma once
#include "policy/decision.h"
#include <stddef.h>

struct policy_trace;

struct policy_trace_status {
    bool on;
    uint64_t lines, dropped, failed; /* since the trace was made */
};

/* on_failure is told, once for each file in use, of the first line that could not be written; on the thread
 * that writes. */
int policy_trace_new(struct policy_listeners *l, void (*on_failure)(void *arg, int error), void *arg,
                     struct policy_trace **ret_trace);
/* What is queued is written first, for as long as a second. */
void policy_trace_free(struct policy_trace *t);

/* Opens a file that can be given to policy_trace_use: at `path` (made readable by its owner alone, appended
 * to), or standard error when NULL. Nothing is changed by it, so a reload can do it before it is sure. A pipe
 * that nobody reads is refused. */
int policy_trace_open(const char *path, int *ret_fd, char *err, size_t errlen);
/* Whether policy_trace_open could open it, as far as can be told without making it. */
int policy_trace_check(const char *path, char *err, size_t errlen);
/* Writes there from now on, and closes what was open before; -1: no more. Takes fd over. Given the same path
 * again, a file that was moved away is let go. -ENOMEM, and then fd is closed and nothing else changed. */
int policy_trace_use(struct policy_trace *t, int fd);

/* [any thread] */
struct policy_trace_status policy_trace_status(struct policy_trace *t);
