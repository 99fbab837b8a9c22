/* Probe: a child process that loads a policy the way this one is about to, so that what crashes, aborts or
 * hangs does it there. It is a berth of the same build, given the same sealed bytes through an inherited
 * descriptor, and killed (by its process id) when its time is over.
 *
 * Thread: the caller's, which waits. Must not know: what is checked. Tests: tests/abi/test_load.c */
#pragma once
#include "policy/load.h"

#define POLICY_PROBE_FD 3
#define POLICY_PROBE_PATH "/dev/fd/3"
/* What `berth policy check --probe` says at last when all is well, and exits with 0: a policy that ends the
 * process itself does not say so. */
#define POLICY_PROBE_PASSED "passed"
/* What it exits with otherwise. */
#define POLICY_PROBE_REFUSED 1  /* the last line of its output is the reason */
#define POLICY_PROBE_SETTINGS 3 /* settings are wrong: as policy_load's -EDOM */

/* fd: the bytes, from their beginning. 0; -EDOM: only the settings were refused, which the caller finds out
 * better itself, knowing where they came from; else -ENOEXEC or what the system said, with err. */
int policy_probe(const struct policy_load_options *o, int fd, char *err, size_t errlen);
