/* KV form: the first positions of a block between how it lies on a device (shape.h), in memory that the host
 * reads, and the form that ops.h has for all devices. Pure; any thread. Must not know: pools, devices.
 * Tests: tests/kernels/test_attention.c */
#pragma once
#include "ops_args.h"

/* block: all of it, block_bytes of shape_of_kv; to, from: tokens (1..64) positions of every layer and head,
 * [layer][head][K, V][token] of row_bytes each. put leaves other positions as they are. */
void kv_form_get(const struct ops_kv_shape *shape, const unsigned char *block, uint32_t tokens, void *to);
void kv_form_put(const struct ops_kv_shape *shape, unsigned char *block, uint32_t tokens, const void *from);
