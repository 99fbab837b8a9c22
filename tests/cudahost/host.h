/* cudahost, inside: what its files know of each other.
 *
 * block.cpp runs the threads of one block, memory.cpp owns device and pinned memory, stream.cpp queues work
 * and has it done, device.cpp holds devices and errors. One lock (host_lock) is held in every call of the
 * runtime. */
#pragma once
#include "cudahost.h"
#include <cuda_runtime.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define HOST_DEVICES 8
#define HOST_SHARED_MAX (227u * 1024)  /* what sm_90 gives one block */
#define HOST_SHARED_PLAIN (48u * 1024) /* without cudaFuncSetAttribute */

std::recursive_mutex &host_lock();
#define HOST_LOCKED std::lock_guard<std::recursive_mutex> locked(host_lock())
void host_say(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* the report, and stderr */

/* ---- block.cpp */
struct host_grid {
    const char *name;
    dim3 grid, block;
    size_t shared;
    const std::function<void()> *body;
    cudahost_order order;
    uint64_t seed;
};
cudaError_t host_run_grid(const host_grid &g); /* until done or the first block that fails */
bool host_in_kernel();

/* ---- memory.cpp */
enum host_place { PLACE_PAGEABLE, PLACE_PINNED, PLACE_DEVICE };
struct host_where {
    host_place place;
    int device;
    size_t left; /* bytes from there to the end of its allocation */
};
host_where host_find(const void *p);
bool host_guarded(size_t bytes, size_t align, char **ret_p, char **ret_base, size_t *ret_body);
void host_fill(char *base, size_t body, char *p, size_t bytes); /* NaN inside, a pattern around */
bool host_intact(const char *base, size_t body, const char *p, size_t bytes, const char **ret_at);
void host_expose(unsigned devices); /* whose memory may be touched from now on; a bit for each */
std::string host_describe(const void *p);
bool host_check_edges(int device); /* false, after saying so, when something wrote around an allocation */
void host_memory_reset();

/* ---- stream.cpp */
void host_drain_device(int device);
cudaError_t host_give(cudaStream_t s,
                      std::function<void()> work); /* in the stream's turn, for its device's memory */
void host_streams_reset();

/* ---- device.cpp */
struct host_device {
    cudaError_t sticky = cudaSuccess;
    unsigned peers = 0;
    size_t total = 0, used = 0;
};
host_device &host_dev(int device);
int host_devices();
int host_current();
cudaError_t host_result(cudaError_t e); /* remembers it for cudaGetLastError */
cudaError_t host_alive();               /* the current device's lasting error */
extern cudahost_order host_order;
/* Before a kernel starts: is it time for cudahost.h's CUDAHOST_LOSE? */
void host_lose_if_told(int device);
extern uint64_t host_seed, host_launches, host_switches;
extern bool host_deferred;
