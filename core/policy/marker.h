/* Marker: which function of which policy a thread is in, for the line a crash handler prints and for whoever
 * asks from outside whether a call returns.
 *
 * The owner of a marker enters and leaves it around each call, on one thread. The same thread finds the one
 * it is in with policy_marker_here, which is async-signal-safe; any other reads it with policy_marker_read. A
 * marker must outlive its readers. Must not know: what is called. Tests: tests/unit/test_seat.c */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define POLICY_NAME_SIZE 32u /* of a policy's name, its zero byte included */

struct policy_marker { /* zeroed to begin with; the fields are marker.c's own */
    atomic_uint_fast64_t serial;
    _Atomic(const char *) function; /* NULL: outside */
    atomic_uint_fast64_t name[POLICY_NAME_SIZE / 8];
    atomic_uint_fast64_t since_ns;
};

struct policy_inside {
    char policy[POLICY_NAME_SIZE];
    const char *function; /* a literal: "place", "create", ... */
    uint64_t since_ns;    /* as it was told when the call began */
};

/* function is a literal; the name is copied. Calls do not nest. */
void policy_marker_enter(struct policy_marker *m, const char *policy, const char *function, uint64_t now_ns);
void policy_marker_leave(struct policy_marker *m);

/* [any thread] False when no call runs, or it began or ended just now. */
bool policy_marker_read(const struct policy_marker *m, struct policy_inside *ret_inside);
/* [async-signal-safe] Whether this thread is inside a policy. */
bool policy_marker_here(struct policy_inside *ret_inside);
