/* cudahost: what a test turns and asks. C and C++. See include/cuda_runtime.h for the whole. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cudahost_order { CUDAHOST_FORWARD, CUDAHOST_REVERSE, CUDAHOST_RANDOM };

/* The order of the threads of a block and of the blocks of a grid. The seed is for CUDAHOST_RANDOM. */
void cudahost_set_order(enum cudahost_order order, uint64_t seed);
/* true, from the start: a stream's work is done when something waits for it. false: at once. */
void cudahost_set_deferred(bool on);
/* As if the machine had these: 1..8 devices (from the start CUDAHOST_DEVICES or 1), and bytes of memory on
 * each (from the start CUDAHOST_MEMORY in MiB or 1024). Everything there was is forgotten: errors, memory,
 * streams. */
void cudahost_reset(int devices, size_t bytes);
/* The device answers nothing but errors from now on, until cudahost_reset. Where the environment's
 * CUDAHOST_LOSE names a file, this happens to each device that starts a kernel while the file is there. */
void cudahost_lose_device(int device);
/* What went wrong last, in words, or "". Also written to stderr as it happens. */
const char *cudahost_report(void);
/* Kernels started and changes between threads since the last reset. */
uint64_t cudahost_launches(void);
uint64_t cudahost_switches(void);

#ifdef __cplusplus
}
#endif
