/* Streams and events: when work is done, what waits for what, several devices, and the loss of one. */
#include "testing.h"

#include <thread>

static void init(void)
{
    cudahost_reset(2, 8u << 20);
}
TestSuite(stream, .init = init);

__global__ static void add_kernel(int *y, int by)
{
    y[threadIdx.x] += by;
}

static cudaStream_t stream_new(void)
{
    cudaStream_t s;
    cr_assert_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
}

static int *pinned(int n)
{
    int *p;
    cr_assert_eq(cudaMallocHost(&p, (size_t)n * sizeof(int)), cudaSuccess);
    return p;
}

Test(stream, work_is_done_when_it_is_waited_for)
{
    cudaStream_t s = stream_new();
    int *y = device(std::vector<int>(32, 1)), *out = pinned(32);
    out[5] = 0;
    GPU_LAUNCH(add_kernel, 1, 32, 0, s, y, 2);
    cudaMemcpyAsync(out, y, 128, cudaMemcpyDeviceToHost, s);
    cr_expect_eq(out[5], 0, "a forgotten wait reads what was there");
    cr_expect_eq(cudaStreamSynchronize(s), cudaSuccess);
    cr_expect_eq(out[5], 3);

    cudahost_set_deferred(false);
    GPU_LAUNCH(add_kernel, 1, 32, 0, s, y, 2);
    cudaMemcpyAsync(out, y, 128, cudaMemcpyDeviceToHost, s);
    cr_expect_eq(out[5], 5);
}

Test(stream, pinned_memory_is_read_when_the_copy_is_made_and_other_memory_at_once)
{
    cudaStream_t s = stream_new();
    int *from = pinned(1), *y = device<int>(2), here = 7;
    from[0] = 7;
    cudaMemcpyAsync(y, from, 4, cudaMemcpyHostToDevice, s);
    cudaMemcpyAsync(y + 1, &here, 4, cudaMemcpyHostToDevice, s);
    from[0] = here = 8; /* too early for the pinned one */
    cudaStreamSynchronize(s);
    std::vector<int> got = host(y, 2);
    cr_expect_eq(got[0], 8);
    cr_expect_eq(got[1], 7);
}

Test(stream, streams_do_not_wait_for_each_other_but_through_events)
{
    cudaStream_t a = stream_new(), b = stream_new();
    int *y = device(std::vector<int>(32, 0)), *out = pinned(32);
    out[0] = -1;
    cudaEvent_t e;
    cr_assert_eq(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);

    GPU_LAUNCH(add_kernel, 1, 32, 0, a, y, 1);
    cudaMemcpyAsync(out, y, 4, cudaMemcpyDeviceToHost, b);
    cudaStreamSynchronize(b);
    cr_expect_eq(out[0], 0, "b did not wait for a");

    cudaEventRecord(e, a);
    GPU_LAUNCH(add_kernel, 1, 32, 0, a, y, 10); /* after the event: not waited for */
    cudaStreamWaitEvent(b, e, 0);
    cudaMemcpyAsync(out, y, 4, cudaMemcpyDeviceToHost, b);
    cudaStreamSynchronize(b);
    cr_expect_eq(out[0], 1);
    cudaStreamSynchronize(a);
    cr_expect_eq(host(y, 1)[0], 11);
    cudaEventDestroy(e);
}

Test(stream, the_default_stream_waits_for_blocking_streams_only)
{
    cudaStream_t blocking, other = stream_new();
    cudaStreamCreate(&blocking);
    int *y = device(std::vector<int>(32, 0)), *z = device(std::vector<int>(32, 0));
    GPU_LAUNCH(add_kernel, 1, 32, 0, blocking, y, 1);
    GPU_LAUNCH(add_kernel, 1, 32, 0, other, z, 1);
    cr_expect_eq(host(y, 1)[0], 1);
    cr_expect_eq(host(z, 1)[0], 0);
}

Test(stream, questions_make_it_go_on)
{
    cudaStream_t s = stream_new();
    int *y = device(std::vector<int>(32, 0)), asked = 0;
    cudaEvent_t e;
    cudaEventCreate(&e);
    for (int i = 0; i < 3; i++)
        GPU_LAUNCH(add_kernel, 1, 32, 0, s, y, 1);
    cudaEventRecord(e, s);
    while (cudaEventQuery(e) == cudaErrorNotReady && asked < 100)
        asked++;
    cr_expect(asked > 1 && asked < 100);
    cr_expect_eq(cudaEventQuery(e), cudaSuccess);
    cr_expect_eq(cudaStreamQuery(s), cudaSuccess);
}

Test(stream, a_callback_comes_in_its_turn)
{
    cudaStream_t s = stream_new();
    static int seen;
    int *y = device(std::vector<int>(32, 4)), *out = pinned(1);
    cudaMemcpyAsync(out, y, 4, cudaMemcpyDeviceToHost, s);
    cudaLaunchHostFunc(
        s, [](void *p) { seen = *(int *)p; }, out);
    cr_expect_eq(seen, 0);
    cudaStreamSynchronize(s);
    cr_expect_eq(seen, 4);
}

Test(stream, work_goes_to_the_device_that_is_current)
{
    cudaStream_t s = stream_new();
    int *y = device<int>(32);
    cudaSetDevice(1);
    GPU_LAUNCH(add_kernel, 1, 32, 0, s, y, 1);
    cr_expect_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    expect_said("add_kernel on a stream of device 0 while device 1 is current");
    cudaSetDevice(0);
    cudaStreamDestroy(s);
    GPU_LAUNCH(add_kernel, 1, 32, 0, s, y, 1);
    expect_said("on a stream that was destroyed");
}

/* A stage's hand-off: device 0 makes it, a copy brings it over, device 1 goes on, each driven by its own
 * thread. */
Test(stream, one_device_hands_over_to_the_next)
{
    int *a = device(std::vector<int>(32, 1)), *b = nullptr;
    cudaStream_t first = stream_new(), second;
    cudaEvent_t there;
    cudaEventCreateWithFlags(&there, cudaEventDisableTiming);
    cudaSetDevice(1);
    second = stream_new();
    b = device<int>(32);
    cudaSetDevice(0);
    std::thread([&] {
        cudaSetDevice(0);
        GPU_LAUNCH(add_kernel, 1, 32, 0, first, a, 5);
        cudaMemcpyPeerAsync(b, 1, a, 0, 128, first);
        cudaEventRecord(there, first);
    }).join();
    std::thread([&] {
        cudaSetDevice(1);
        cudaStreamWaitEvent(second, there, 0);
        GPU_LAUNCH(add_kernel, 1, 32, 0, second, b, 100);
        cr_expect_eq(cudaStreamSynchronize(second), cudaSuccess);
        cr_expect_eq(host(b, 32)[31], 106);
    }).join();
}

Test(stream, a_lost_device_says_so_and_the_other_goes_on)
{
    int *y = device<int>(32);
    cudahost_lose_device(0);
    GPU_LAUNCH(add_kernel, 1, 32, 0, nullptr, y, 1);
    cr_expect_eq(cudaGetLastError(), cudaErrorDevicesUnavailable);
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorDevicesUnavailable);
    cr_expect_eq(cudaMalloc(&y, 4), cudaErrorDevicesUnavailable);
    cr_expect_eq(cudaSetDevice(1), cudaSuccess);
    y = device(std::vector<int>(32, 0));
    GPU_LAUNCH(add_kernel, 1, 32, 0, nullptr, y, 1);
    cr_expect_eq(host(y, 1)[0], 1);
}

Test(stream, a_pitched_copy)
{
    std::vector<int> x(12);
    for (int i = 0; i < 12; i++)
        x[(size_t)i] = i;
    int *y = device(std::vector<int>(8, -1));
    cr_expect_eq(cudaMemcpy2DAsync(y, 16, x.data(), 16, 8, 2, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    std::vector<int> got = host(y, 8);
    cr_expect(got[0] == 0 && got[1] == 1 && got[2] == -1 && got[4] == 4 && got[5] == 5 && got[6] == -1);
    cr_expect_eq(cudaMemcpy2DAsync(y, 16, x.data(), 16, 8, 3, cudaMemcpyHostToDevice, nullptr),
                 cudaErrorInvalidValue);
}
