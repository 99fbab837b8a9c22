/* cudahost's own tests: short ways to bring memory to a device and back, and every test in all three orders.
 */
#pragma once
#include "cudahost.h"
#include "kernels/cuda_spelling.cuh"

#include <criterion/criterion.h>
#include <string.h>
#include <string>
#include <vector>

#define ALL_LANES 0xffffffffu
#define EACH_ORDER(order) for (cudahost_order order : { CUDAHOST_FORWARD, CUDAHOST_REVERSE, CUDAHOST_RANDOM })

static inline bool said(const char *words)
{
    return strstr(cudahost_report(), words) != nullptr;
}
#define expect_said(words) cr_expect(said(words), "it said: %s", cudahost_report())

template <class T> static T *device(size_t n)
{
    T *p = nullptr;
    cr_assert_eq(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
    return p;
}

template <class T> static T *device(const std::vector<T> &v)
{
    T *p = device<T>(v.size());
    cr_assert_eq(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    return p;
}

template <class T> static std::vector<T> host(const T *p, size_t n)
{
    std::vector<T> v(n);
    cr_assert_eq(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return v;
}

static inline std::vector<float> ramp(int n)
{
    std::vector<float> v((size_t)n);
    for (int i = 0; i < n; i++)
        v[(size_t)i] = (float)(i % 97 - 48);
    return v;
}
