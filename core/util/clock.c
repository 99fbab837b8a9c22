/* Clock: the system's clocks as nanoseconds. Any thread.
 * Tests: tests/unit/test_util.c */
#include "util/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts = { 0 };

    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t clock_process_ns(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
