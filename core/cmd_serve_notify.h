/* Cmd serve notify: tells the service manager how the server is, in the way systemd documents (sd_notify):
 * lines in one datagram to the socket that NOTIFY_SOCKET names. Without one nothing is told, and whether
 * anybody listens makes no difference to the server.
 * Thread: any. Must not know: what a state means. Tests: tests/e2e/test_notify.py */
#pragma once
#include <stdint.h>

/* Lines as "READY=1\nSTATUS=text". */
__attribute__((format(printf, 1, 2))) void serve_notify(const char *fmt, ...);
/* How often the service manager wants to hear WATCHDOG=1 of this process, in ns; 0: not at all. */
uint64_t serve_notify_watchdog_ns(void);
