/* Gguf, inside: what gguf.c (opening), gguf_keys.c (reading values) and gguf_types.c (tensor types) share.
 * Beside them fingerprint.c includes this, and nobody else. */
#pragma once
#include "model/gguf.h"

#define GGUF_MAX_KEY_LEN 65535u /* as the format says */
#define GGUF_MAX_NAME_LEN 64u   /* likewise, for tensors */

struct gguf_array {
    uint32_t type; /* of the elements; never GGUF_ARR */
    uint64_t len;
    const uint8_t *data;
    size_t *starts; /* strings: where each one's length field begins, counted from data. Owned */
};

struct gguf_key {
    struct gguf_str name;
    uint32_t type;
    const uint8_t *value;    /* scalars: the bytes; strings: the text */
    size_t len;              /* of a string */
    struct gguf_array array; /* when type is GGUF_ARR */
};

struct gguf {
    uint8_t *map;
    size_t size;
    uint32_t version;
    uint64_t n_keys, n_tensors;
    struct gguf_key *keys;
    struct gguf_tensor *tensors;
    /* The same, ordered by name: duplicates become neighbours and a look-up is a bisection. */
    const struct gguf_key **keys_by_name;
    const struct gguf_tensor **tensors_by_name;
};

/* How a tensor type is laid out; NULL for one nobody has told this build about. */
struct gguf_type_info {
    const char *name;
    uint32_t block; /* weights in a block */
    uint32_t bytes; /* of a block */
};
const struct gguf_type_info *gguf_type_info(uint32_t type);

/* Bytes of a scalar value; 0 for strings, arrays and unknown types. */
size_t gguf_scalar_size(uint32_t type);
/* "u32", "string", "array", ...; "unknown" for others. */
const char *gguf_value_type_name(uint32_t type);

int gguf_str_compare(struct gguf_str a, struct gguf_str b);
/* A little-endian integer of 1, 2, 4 or 8 bytes. */
uint64_t gguf_load(const uint8_t *from, size_t bytes);
