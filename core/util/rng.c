/* Rng: Philox 4x32-10. Ten rounds of two 32x32->64 multiplications; the key moves by a Weyl constant each
 * round. Pure but for rng_system_seed; any thread. Tests: tests/unit/test_util.c (the paper's known answers)
 */
#include "util/rng.h"

#include "util/clock.h"

#include <unistd.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u /* golden ratio */
#define PHILOX_W1 0xBB67AE85u /* sqrt(3) - 1 */
#define PHILOX_ROUNDS 10

void rng_philox(uint64_t seed, uint64_t counter, uint32_t ret_words[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)p0;
        key0 += PHILOX_W0;
        key1 += PHILOX_W1;
    }
    ret_words[0] = c0;
    ret_words[1] = c1;
    ret_words[2] = c2;
    ret_words[3] = c3;
}

double rng_uniform(uint64_t seed, uint64_t counter)
{
    uint32_t w[4];

    rng_philox(seed, counter, w);
    return (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1.0p-53;
}

uint64_t rng_system_seed(void)
{
    uint64_t seed;

    /* Without a random source (a sandbox that forbids getrandom) seeds still differ from call to call. */
    if (getentropy(&seed, sizeof seed) < 0) {
        uint32_t w[4];

        rng_philox(clock_wall_ns(), clock_now_ns() ^ (uint64_t)getpid() << 48, w);
        seed = (uint64_t)w[0] << 32 | w[1];
    }
    return seed;
}
