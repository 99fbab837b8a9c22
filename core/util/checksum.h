/* Checksum: 64 bits that tell damage, not intent: a change of up to 8 neighbouring bytes that start at a
 * multiple of 8 always shows, any other with all but a chance of about 2^-64. As fast as memory is read.
 * Pure; any thread. Tests: tests/unit/test_util.c */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* `seed`: the sum of what came before, so that pieces cannot change places. */
uint64_t checksum64(uint64_t seed, const void *data, size_t len);
