/* Cases: how many a random test tries. Under AddressSanitizer everything takes several times longer, so there
 * it tries some of those that the plain build tries in every run; all of them with BERTH_CASES=all in the
 * environment (make test-long). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool cases_all(void)
{
#ifdef __SANITIZE_ADDRESS__
    const char *wanted = getenv("BERTH_CASES");
    return wanted && strcmp(wanted, "all") == 0;
#else
    return true;
#endif
}

/* One in `divisor` of `all`, at least one. */
static inline uint32_t cases_of(uint32_t all, uint32_t divisor)
{
    return cases_all() ? all : (all + divisor - 1) / divisor;
}
