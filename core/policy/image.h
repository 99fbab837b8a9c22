/* Image: whether bytes are a shared object of this machine that could hold a policy, and where its entry
 * lies.
 *
 * Nothing is trusted: every offset, count and size is checked against the bytes before it is followed, so
 * that any bytes whatever get an answer. What the dynamic linker reads beyond that (relocations, needed
 * libraries) is found out by a child process (probe.h).
 *
 * Pure; any thread. Must not know: what an entry holds. Tests: tests/abi/test_image.c, tests/abi/test_load.c
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct policy_image_symbol {
    size_t offset; /* in the bytes, where all of it lies */
    uint64_t size;
};

/* A 64-bit little-endian ELF shared object of this machine whose segments lie within the bytes, and in it the
 * data symbol `name`, defined and global. -ENOEXEC with err. */
int policy_image_find(const void *bytes, size_t len, const char *name, struct policy_image_symbol *ret_symbol,
                      char *err, size_t errlen);
