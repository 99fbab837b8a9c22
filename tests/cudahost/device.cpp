/* cudahost: devices, their lasting errors, and what a test turns. Thread: any; this file has the one lock.
 * Tests: test_stream.cpp */
#include "host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static cudahost_order order_from_environment();
cudahost_order host_order = order_from_environment();
uint64_t host_seed = 1, host_launches, host_switches;
bool host_deferred = true;

static host_device devices[HOST_DEVICES];
static int n_devices; /* 0: not set up yet */
static char report[1000];
static thread_local int current;
static thread_local cudaError_t last;

std::recursive_mutex &host_lock()
{
    static std::recursive_mutex *m =
        new std::recursive_mutex; /* never destroyed: threads may outlive main() */
    return *m;
}

void host_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(report, sizeof report, fmt, ap);
    va_end(ap);
    fprintf(stderr, "cudahost: %s\n", report);
}

static size_t from_environment(const char *name, size_t usual, size_t least, size_t most)
{
    const char *s = getenv(name);
    if (!s)
        return usual;
    char *end;
    unsigned long long n = strtoull(s, &end, 10);
    if (*end || n < least || n > most) {
        fprintf(stderr, "cudahost: %s=%s is not a number of %zu..%zu\n", name, s, least, most);
        abort();
    }
    return (size_t)n;
}

/* CUDAHOST_ORDER: forward (usual), reverse, random. */
static cudahost_order order_from_environment()
{
    static const char *const names[] = { "forward", "reverse", "random" };
    const char *s = getenv("CUDAHOST_ORDER");
    for (int i = 0; s && i < 3; i++)
        if (!strcmp(s, names[i]))
            return (cudahost_order)i;
    if (s) {
        fprintf(stderr, "cudahost: CUDAHOST_ORDER=%s is none of forward, reverse, random\n", s);
        abort();
    }
    return CUDAHOST_FORWARD;
}

static void set_up(int n, size_t bytes)
{
    n_devices = n;
    for (host_device &d : devices) {
        d = host_device();
        d.total = bytes;
    }
}

int host_devices()
{
    if (!n_devices)
        set_up((int)from_environment("CUDAHOST_DEVICES", 1, 1, HOST_DEVICES),
               from_environment("CUDAHOST_MEMORY", 1024, 1, 1 << 20) << 20);
    return n_devices;
}

host_device &host_dev(int device)
{
    host_devices();
    return devices[device];
}

int host_current()
{
    return current < host_devices() ? current : 0;
}

cudaError_t host_result(cudaError_t e)
{
    if (e)
        last = e;
    return e;
}

cudaError_t host_alive()
{
    return host_dev(host_current()).sticky;
}

extern "C" void cudahost_set_order(enum cudahost_order order, uint64_t seed)
{
    HOST_LOCKED;
    host_order = order;
    host_seed = seed;
}

extern "C" void cudahost_set_deferred(bool on)
{
    HOST_LOCKED;
    host_deferred = on;
}

extern "C" void cudahost_reset(int n, size_t bytes)
{
    HOST_LOCKED;
    host_streams_reset();
    host_memory_reset();
    set_up(n, bytes);
    report[0] = 0;
    host_launches = host_switches = 0;
    current = 0;
    last = cudaSuccess;
}

extern "C" void cudahost_lose_device(int device)
{
    HOST_LOCKED;
    host_dev(device).sticky = cudaErrorDevicesUnavailable;
}

void host_lose_if_told(int device)
{
    static const char *const file = getenv("CUDAHOST_LOSE");
    if (file && access(file, F_OK) == 0)
        cudahost_lose_device(device);
}

extern "C" const char *cudahost_report(void)
{
    return report;
}

extern "C" uint64_t cudahost_launches(void)
{
    return host_launches;
}

extern "C" uint64_t cudahost_switches(void)
{
    return host_switches;
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument" },
    { cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "device is busy or unavailable" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no device" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { cudaErrorNotReady, "cudaErrorNotReady", "not ready" },
    { cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "illegal memory access" },
    { cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
      "peer access is enabled already" },
    { cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address" },
    { cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure" },
};

const char *cudaGetErrorName(cudaError_t e)
{
    for (const auto &row : errors)
        if (row.e == e)
            return row.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    for (const auto &row : errors)
        if (row.e == e)
            return row.text;
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

cudaError_t cudaGetLastError(void)
{
    HOST_LOCKED;
    cudaError_t e = last;
    last = host_alive(); /* what has lost a device is told again and again */
    return e;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    HOST_LOCKED;
    *n = host_devices();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    HOST_LOCKED;
    if (device < 0 || device >= host_devices())
        return host_result(cudaErrorInvalidDevice);
    current = device;
    return host_result(host_alive());
}

cudaError_t cudaGetDevice(int *device)
{
    HOST_LOCKED;
    *device = host_current();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    HOST_LOCKED;
    if (device < 0 || device >= host_devices())
        return host_result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cudahost %d", device);
    p->totalGlobalMem = host_dev(device).total;
    p->sharedMemPerBlock = HOST_SHARED_PLAIN;
    p->sharedMemPerBlockOptin = HOST_SHARED_MAX;
    p->sharedMemPerMultiprocessor = HOST_SHARED_MAX + 1024;
    p->major = 9;
    p->multiProcessorCount = 4; /* few, so that loops over a grid's blocks have more than one turn */
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->warpSize = 32;
    p->l2CacheSize = 1 << 20;
    p->regsPerBlock = 65536;
    p->memoryBusWidth = 64;
    p->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    cudaDeviceProp p;
    if (cudaError_t e = cudaGetDeviceProperties(&p, device))
        return e;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    default:
        return host_result(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    HOST_LOCKED;
    if (device < 0 || device >= host_devices() || peer < 0 || peer >= host_devices())
        return host_result(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    HOST_LOCKED;
    if (peer < 0 || peer >= host_devices() || peer == host_current())
        return host_result(cudaErrorInvalidDevice);
    host_device &d = host_dev(host_current());
    if (d.peers >> peer & 1)
        return host_result(cudaErrorPeerAccessAlreadyEnabled);
    d.peers |= 1u << peer;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = 13000;
    return cudaSuccess;
}
