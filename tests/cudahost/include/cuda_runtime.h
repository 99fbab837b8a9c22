/* cudahost: the part of CUDA that our kernels use, on the CPU, so that they are tested where there is no GPU.
 *
 * What it owns: the host's side of the runtime: devices, memory, streams, events, errors, launches. The
 * device's side (barriers, shuffles, intrinsics) is in cudahost_device.h; what a test may turn and ask is in
 * cudahost.h.
 *
 * It is stricter than a GPU on purpose. Work given to a stream is not done until something waits for it, so a
 * missing wait is seen. Device memory starts as NaN, lies between pages that must not be touched, is never
 * given out twice and cannot be read by host code. Every kernel argument that is a pointer must point into
 * memory of the device. The threads of a block are fibers that change places only at barriers, collectives
 * and atomics, in one of three orders. A fault names kernel, block and thread, and the device is lost, as on
 * a GPU.
 *
 * Differences in spelling: kernels/cuda_spelling.cuh (GPU_LAUNCH, GPU_SHARED, GPU_SHARED_DYNAMIC) for what
 * g++ cannot parse or what needs a guard. Thread: any; one lock around everything. Tests:
 * tests/cudahost/test_*.cpp */
#pragma once
#include "cudahost_device.h"

#include <functional>
#include <type_traits>

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
    cudaErrorDevicesUnavailable = 46,
} cudaError_t;
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, maxThreadsPerBlock, maxThreadsPerMultiProcessor, warpSize,
        l2CacheSize;
    int regsPerBlock, memoryBusWidth, pciBusID, pciDeviceID, pciDomainID;
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDriverGetVersion(int *v);
cudaError_t cudaRuntimeGetVersion(int *v);

typedef struct cudahost_stream *cudaStream_t;
typedef struct cudahost_event *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *);
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
cudaError_t cudaStreamCreate(cudaStream_t *s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum {
    cudaHostAllocDefault = 0,
    cudaHostAllocPortable = 1,
    cudaHostAllocMapped = 2,
    cudaHostAllocWriteCombined = 4
};
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaMallocHost(void **p, size_t bytes, unsigned flags = 0);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s = nullptr);
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t s = nullptr);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s = nullptr);
cudaError_t cudaMemset(void *p, int byte, size_t bytes);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s = nullptr);
template <class T> cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc((void **)p, bytes);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t bytes)
{
    return cudaMallocHost((void **)p, bytes, 0);
}
template <class T> cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned flags)
{
    return cudaHostAlloc((void **)p, bytes, flags);
}

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
cudaError_t cudahost_func_attribute(const void *kernel, cudaFuncAttribute a, int value);
template <class F> cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute a, int value)
{
    return cudahost_func_attribute((const void *)kernel, a, value);
}

/* What GPU_LAUNCH of cuda_spelling.cuh is here: kernel<<<grid, block, shared, stream>>>(args...). */
struct cudahost_launch_config {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
void cudahost_launch(const cudahost_launch_config &how, const void *const *pointers, int n_pointers,
                     std::function<void()> body);

template <class T> void cudahost_pointer_of(const T &v, const void **list, int *n)
{
    if constexpr (std::is_pointer<T>::value)
        list[(*n)++] = (const void *)v;
}
template <class... P, class... A>
void ch_launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                      cudaStream_t stream, A... args)
{
    const void *list[sizeof...(P) + 1] = {};
    int n = 0;
    (cudahost_pointer_of(static_cast<P>(args), list, &n), ...);
    cudahost_launch({ name, (const void *)kernel, grid, block, shared, stream }, list, n,
                    [=] { kernel(static_cast<P>(args)...); }); /* arguments are copied now, as CUDA does */
}
#define GPU_LAUNCH(kernel, grid, block, shared, stream, ...)                                                 \
    ch_launch_kernel(#kernel, (kernel), (grid), (block), (shared), (stream), ##__VA_ARGS__)
