/* Rng: counter-based random numbers, Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
 * easy as 1, 2, 3", SC 2011). A value depends on (seed, counter) alone, so a sampled token depends on the
 * request's seed and the token's position and on nothing else that runs. Pure; any thread. */
#pragma once
#include <stdint.h>

/* Philox 4x32-10 with key = seed (low word, high word) and counter words (low, high of `counter`, 0, 0). */
void rng_philox(uint64_t seed, uint64_t counter, uint32_t ret_words[4]);
/* A double in [0, 1) with 53 random bits, from the first two words. */
double rng_uniform(uint64_t seed, uint64_t counter);
/* A seed from the system's random source. */
uint64_t rng_system_seed(void);
