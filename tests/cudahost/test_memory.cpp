/* Memory: what is around it, what is in it, who may touch it, and which mistakes of a kernel are found. */
#include "testing.h"

#include <sys/wait.h>
#include <unistd.h>

static void init(void)
{
    cudahost_reset(2, 8u << 20);
}
TestSuite(memory, .init = init);

__global__ static void fill_kernel(float *y, int from, int to)
{
    int i = from + (int)threadIdx.x;
    if (i < to)
        y[i] = 1;
}

static cudaError_t fill(float *y, int from, int to)
{
    GPU_LAUNCH(fill_kernel, 1, 128, 0, nullptr, y, from, to);
    return cudaDeviceSynchronize();
}

Test(memory, a_store_past_the_end_stops_the_kernel_and_loses_the_device)
{
    float *y = device<float>(64);
    cr_expect_eq(fill(y, 0, 64), cudaSuccess);
    cr_expect_eq(fill(y, 0, 65), cudaErrorIllegalAddress);
    expect_said("kernel fill_kernel, block (0,0,0), thread (64,0,0): touches memory of device 0 0 bytes past "
                "the end of "
                "an allocation of 256");
    float out;
    cr_expect_eq(cudaMemcpy(&out, y, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress,
                 "the device is lost");
    cudahost_reset(1, 1 << 20);
    y = device<float>(64);
    cr_expect_eq(fill(y, 0, 64), cudaSuccess);
}

Test(memory, a_store_into_the_bytes_left_over_is_found_too)
{
    cr_expect_eq(fill(device<float>(50), 0, 51), cudaErrorIllegalAddress);
    expect_said("something wrote to memory of device 0 0 bytes past the end of an allocation of 200");
    cudahost_reset(1, 1 << 20);
    cr_expect_eq(fill(device<float>(64), -1, 3), cudaErrorIllegalAddress);
    expect_said("4 bytes before an allocation of 256");
}

Test(memory, what_is_not_written_is_nan)
{
    float *y = device<float>(64);
    fill(y, 0, 63);
    std::vector<float> got = host(y, 64);
    cr_expect(got[62] == 1 && got[63] != got[63]);
}

Test(memory, freed_memory_is_out_of_reach_for_good)
{
    float *y = device<float>(64);
    cr_expect_eq(cudaFree(y), cudaSuccess);
    for (int i = 0; i < 8; i++)
        device<float>(64);
    cr_expect_eq(cudaFree(y), cudaErrorInvalidValue);
    fill(y, 0, 64);
    expect_said("pointer argument 1 is freed memory of device 0, byte 0 of an allocation of 256");
}

/* What a kernel takes by a structure is seen when it is touched. */
struct inside {
    const float *x;
    float *y;
};

__global__ static void copy_kernel(inside p)
{
    p.y[threadIdx.x] = p.x[threadIdx.x];
}

Test(memory, another_device_is_out_of_reach_unless_it_is_a_peer)
{
    float *y = device<float>(32);
    cudaSetDevice(1);
    float *x = device(std::vector<float>(32, 3));
    cudaSetDevice(0);
    int can = 0;
    cr_expect_eq(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
    cr_expect(can);
    cr_expect_eq(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
    GPU_LAUNCH(copy_kernel, 1, 32, 0, nullptr, inside{ x, y });
    cr_expect_eq(cudaDeviceSynchronize(), cudaSuccess);
    cr_expect_eq(host(y, 32)[31], 3);
    cudaSetDevice(1);
    GPU_LAUNCH(copy_kernel, 1, 32, 0, nullptr, inside{ y, x });
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_said("touches memory of device 0, byte 0 of an allocation of 128");
}

Test(memory, memory_of_the_host_is_no_argument)
{
    float here[128] = {};
    cr_expect_eq(fill(here, 0, 1), cudaErrorIllegalAddress);
    expect_said("pointer argument 1 is memory of the host");
}

Test(memory, pinned_memory_is_both_sides)
{
    float *p;
    cr_assert_eq(cudaMallocHost(&p, 256), cudaSuccess);
    p[0] = 5;
    cr_expect_eq(fill(p, 1, 64), cudaSuccess);
    cr_expect(p[0] == 5 && p[63] == 1);
    cr_expect_eq(fill(p, 0, 65), cudaErrorIllegalAddress);
    float here;
    cr_expect_eq(cudaFreeHost(&here), cudaErrorInvalidValue);
}

Test(memory, host_code_that_reads_device_memory_dies)
{
    volatile float *y = device(std::vector<float>(1, 1));
    GPU_LAUNCH(fill_kernel, 1, 32, 0, nullptr, (float *)y, 0, 1);
    cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(y[0] == 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

Test(memory, there_is_as_much_as_the_test_says)
{
    size_t unused, all;
    cr_assert_eq(cudaMemGetInfo(&unused, &all), cudaSuccess);
    cr_expect(unused == all && all == 8u << 20);
    float *p = device<float>(1u << 20), *q = nullptr;
    cr_expect_eq(cudaMalloc(&q, (4u << 20) + 1), cudaErrorMemoryAllocation);
    cr_expect_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    cr_expect_eq(cudaGetLastError(), cudaSuccess, "running out is no lasting error");
    cr_expect_eq(cudaFree(p), cudaSuccess);
    cr_expect_eq(cudaMalloc(&q, 8u << 20), cudaSuccess);
}

/* ---- shared memory */

__global__ static void shared_kernel(int *y, int at)
{
    GPU_SHARED(int, s, [48]);
    int *plain = &s[0]; /* past what the compiler's own check of arrays sees */
    if (threadIdx.x == 0)
        plain[at] = 1;
    y[threadIdx.x] = at ? 0 : s[threadIdx.x];
}

__global__ static void dynamic_kernel(float *y, int n)
{
    GPU_SHARED_DYNAMIC(float, s);
    s[threadIdx.x] = y[threadIdx.x];
    if ((int)threadIdx.x < n)
        s[threadIdx.x + 1] = 0;
}

__global__ static void index_kernel(int *y, int at)
{
    GPU_SHARED(int, s, [48]);
    s[at] = 1;
    y[0] = s[at];
}

Test(memory, shared_memory_has_an_exact_end)
{
    int *y = device<int>(32);
    GPU_LAUNCH(shared_kernel, 1, 32, 0, nullptr, y, 48);
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_said("touches memory 192 bytes from the start of a shared variable of 192");

    init();
    GPU_LAUNCH(dynamic_kernel, 1, 32, 33 * sizeof(float), nullptr, device<float>(32), 32);
    cr_expect_eq(cudaDeviceSynchronize(), cudaSuccess);
    GPU_LAUNCH(dynamic_kernel, 1, 32, 32 * sizeof(float), nullptr, device<float>(32), 32);
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_said("128 bytes from the start of a shared variable of 128");
}

Test(memory, a_store_into_what_is_left_over_of_shared_memory_is_found)
{
    GPU_LAUNCH(dynamic_kernel, 1, 30, 30 * sizeof(float), nullptr, device<float>(32), 30);
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    expect_said("wrote 120 bytes from the start of a shared variable of 120");
}

Test(memory, shared_memory_starts_as_garbage_in_every_block)
{
    int *y = device<int>(32);
    GPU_LAUNCH(shared_kernel, 2, 32, 0, nullptr, y, 0);
    std::vector<int> got = host(y, 32);
    cr_expect_eq(got[0], 1);
    cr_expect_eq(got[31], -1);
}

Test(memory, a_block_cannot_have_more_shared_memory_than_there_is)
{
    float *y = device<float>(32);
    GPU_LAUNCH(dynamic_kernel, 1, 32, 48 * 1024 + 4, nullptr, y, 0);
    cr_expect_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
    cr_expect_eq(cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024),
                 cudaSuccess);
    GPU_LAUNCH(dynamic_kernel, 1, 32, 48 * 1024 + 4, nullptr, y, 0);
    cr_expect_eq(cudaGetLastError(), cudaSuccess);
    cr_expect_eq(
        cudaFuncSetAttribute(dynamic_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 * 1024),
        cudaErrorInvalidValue);
    GPU_LAUNCH(dynamic_kernel, 1, 1025, 4, nullptr, y, 0);
    cr_expect_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
}

/* ---- alignment and indexes */

__global__ static void vector_kernel(float *y, const float *x)
{
    *(float4 *)(y + 4 * threadIdx.x) = *(const float4 *)(x + 4 * threadIdx.x);
}

Test(memory, a_misaligned_vector_is_found)
{
    float *x = device(ramp(40)), *y = device<float>(40);
    GPU_LAUNCH(vector_kernel, 1, 8, 0, nullptr, y + 4, x + 4);
    cr_expect_eq(cudaDeviceSynchronize(), cudaSuccess);
    GPU_LAUNCH(vector_kernel, 1, 8, 0, nullptr, y, x + 2);
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorMisalignedAddress);
    expect_said("a misaligned address");
}

Test(memory, an_index_past_an_array_is_found)
{
    GPU_LAUNCH(index_kernel, 1, 1, 0, nullptr, device<int>(1), 48);
    cr_expect_eq(cudaDeviceSynchronize(), cudaErrorMisalignedAddress);
    expect_said("an index past an array's end");
}

/* ---- copies */

Test(memory, a_copy_must_fit_and_be_of_its_kind)
{
    float *y = device<float>(64), here[100] = {};
    cr_expect_eq(cudaMemcpy(y + 1, here, 256, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    expect_said("a copy writes 256 bytes to memory of device 0, byte 4 of an allocation of 256");
    cr_expect_eq(cudaMemcpy(here, y, 260, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    expect_said("a copy reads 260 bytes from");
    cr_expect_eq(cudaMemcpy(here, y, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    expect_said("a copy from device to host memory is given as kind 1");
    cr_expect_eq(cudaMemsetAsync(y, 0, 257), cudaErrorInvalidValue);
    cr_expect_eq(cudaMemcpy(y, here, 256, cudaMemcpyDefault), cudaSuccess);
    cr_expect_eq(cudaGetLastError(), cudaErrorInvalidValue);
}
