/* Block hashes, private to this room: chained keyed hashes of a sequence's blocks, 128 bits each. Two
 * sequences whose chains agree at block b agree in everything up to its end, but for a chance of about 2^-120
 * that nobody without the key can raise. Pure. */
#pragma once
#include <stdint.h>

#define HASH_BLOCK_MAX 64u                       /* tokens */
#define HASH_KEY_WORDS (HASH_BLOCK_MAX / 2u + 2) /* the second sum is keyed two words further on */

struct hasher {
    uint32_t block_tokens; /* a multiple of 4, at most HASH_BLOCK_MAX */
    uint64_t key[HASH_KEY_WORDS];
    uint64_t mix[4];
};

void hasher_init(struct hasher *h, const uint64_t key[2], uint32_t block_tokens);
/* Extends a chain of `have` blocks over those that n tokens complete. chain[b] belongs to block b. */
void hasher_extend(const struct hasher *h, uint64_t salt, const int32_t *tokens, uint32_t n, uint32_t have,
                   uint64_t (*chain)[2]);
