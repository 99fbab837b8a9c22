/* Clock: the only place that asks what time it is. Data structures and policies take times as arguments. */
#pragma once
#include <stdint.h>

#define NS_PER_S 1000000000ull
#define NS_PER_MS 1000000ull

/* Monotonic time in ns since an arbitrary start; never goes back. */
uint64_t clock_now_ns(void);
/* Wall-clock time in ns since 1970-01-01 UTC. */
uint64_t clock_wall_ns(void);
/* Time that all threads of this process have had a processor for, added up. */
uint64_t clock_process_ns(void);
