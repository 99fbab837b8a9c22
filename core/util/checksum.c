/* Checksum: see checksum.h. Four lanes take every fourth word. All that is done to a lane with a word can be
 * undone by one who knows the word, and likewise for the end: so two inputs that differ in one word alone
 * never come to the same. Words are little-endian on every machine. */
#include "util/checksum.h"
#include <string.h>

#define LANES 4u
#define BLOCK (LANES * sizeof(uint64_t))

static uint64_t load(const unsigned char *p)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* Odd multipliers without a pattern. */
static uint64_t stir(uint64_t state, uint64_t word)
{
    state ^= word;
    return (state << 29 | state >> 35) * 0xd6e8feb86659fd93u;
}

static void add_block(uint64_t lane[LANES], const unsigned char *block)
{
    for (unsigned i = 0; i < LANES; i++)
        lane[i] = stir(lane[i], load(block + 8 * i));
}

uint64_t checksum64(uint64_t seed, const void *data, size_t len)
{
    uint64_t lane[LANES] = { seed, ~seed, seed + 0x9e3779b97f4a7c15u, seed ^ 0xa0761d6478bd642fu };
    const unsigned char *p = data;
    unsigned char tail[BLOCK] = { 0 };
    size_t rest = len % BLOCK;

    for (size_t i = 0; i < len / BLOCK; i++)
        add_block(lane, p + i * BLOCK);
    if (rest)
        memcpy(tail, p + (len - rest), rest);
    add_block(lane, tail);
    uint64_t sum = len;
    for (unsigned i = 0; i < LANES; i++)
        sum = stir(sum, lane[i]);
    sum = (sum ^ sum >> 32) * 0xff51afd7ed558ccdu;
    return sum ^ sum >> 29;
}
