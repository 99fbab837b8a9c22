/* Cmd crash: one line on standard error when a fault kills the process, which says whether it happened inside
 * a policy and in which function of it. Thread: any may fault; installed once, before others are started.
 * Tests: tests/e2e/test_policy_faults.py */
#pragma once

/* For SIGSEGV, SIGBUS, SIGABRT, SIGFPE and SIGILL, as far as nobody else handles them. The signal then does
 * what it would have done. */
void crash_install(void);
