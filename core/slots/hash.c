/* Block hashes: see hash.h.
 *
 * Each block is reduced by two keyed sums of products over pairs of its words (NH, as in UMAC): for two
 * different blocks each sum is equal with probability 2^-64 over the choice of the key. The sums do not wait
 * for each other nor for the block before, so a long prompt costs little more than reading it; only the short
 * mixing into the chain is sequential. */
#include "slots/hash.h"
#include "util/rng.h"
#include <stddef.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

static uint64_t keyed_word(const uint64_t key[2], uint32_t i)
{
    uint32_t a[4], b[4];
    rng_philox(key[0], i, a);
    rng_philox(key[1], ~(uint64_t)i, b);
    return ((uint64_t)(a[0] ^ b[2]) << 32) | (a[1] ^ b[3]);
}

void hasher_init(struct hasher *h, const uint64_t key[2], uint32_t block_tokens)
{
    h->block_tokens = block_tokens;
    for (uint32_t i = 0; i < HASH_KEY_WORDS; i++)
        h->key[i] = keyed_word(key, i);
    for (uint32_t i = 0; i < 4; i++)
        h->mix[i] = keyed_word(key, HASH_KEY_WORDS + i);
}

static uint64_t rotate(uint64_t x, int by)
{
    return (x << by) | (x >> (64 - by));
}

static uint64_t fold(uint64_t x, uint64_t y)
{
    wide p = (wide)x * y;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Inline with a constant length for the usual block, so that the loop is unrolled. */
static inline void sum_block(const struct hasher *h, const int32_t *tokens, uint32_t words, wide ret_sums[2])
{
    wide first = 0, second = 0;
    for (uint32_t i = 0; i < words; i += 2) {
        uint64_t w[2];
        memcpy(w, tokens + (size_t)2 * i, sizeof w);
        first += (wide)(w[0] + h->key[i]) * (w[1] + h->key[i + 1]);
        second += (wide)(w[0] + h->key[i + 2]) * (w[1] + h->key[i + 3]);
    }
    ret_sums[0] = first;
    ret_sums[1] = second;
}

static void mix(const struct hasher *h, const wide sums[2], uint64_t state[2])
{
    uint64_t a = state[0], b = state[1];
    uint64_t t = fold((uint64_t)sums[0] ^ h->mix[0] ^ a, (uint64_t)sums[1] ^ h->mix[1] ^ rotate(b, 32));
    uint64_t u = fold((uint64_t)(sums[0] >> 64) ^ h->mix[2] ^ b,
                      (uint64_t)(sums[1] >> 64) ^ h->mix[3] ^ rotate(a, 32));
    state[0] = t + rotate(u, 29);
    state[1] = u + rotate(t, 31) + a;
}

void hasher_extend(const struct hasher *h, uint64_t salt, const int32_t *tokens, uint32_t n, uint32_t have,
                   uint64_t (*chain)[2])
{
    uint64_t state[2] = { salt ^ h->mix[0], rotate(salt, 32) + h->mix[1] };
    uint32_t blocks = n / h->block_tokens;
    wide sums[2];
    if (have)
        memcpy(state, chain[have - 1], sizeof state);
    for (uint32_t b = have; b < blocks; b++) {
        const int32_t *block = tokens + (size_t)b * h->block_tokens;
        if (h->block_tokens == HASH_BLOCK_MAX)
            sum_block(h, block, HASH_BLOCK_MAX / 2, sums);
        else
            sum_block(h, block, h->block_tokens / 2, sums);
        mix(h, sums, state);
        memcpy(chain[b], state, sizeof state);
    }
}
