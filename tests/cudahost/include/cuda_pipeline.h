/* cudahost: cp.async by its C primitives. A copy is made when it is waited for and not before, so a missing
 * wait reads what was there; 4, 8 or 16 bytes, aligned to their size. See cuda_runtime.h. */
#pragma once
#include "cuda_runtime.h"

void cudahost_copy_later(void *shared, const void *global, size_t bytes, size_t zero_fill);
void cudahost_copy_commit(void);
void cudahost_copy_wait(size_t newest_left);
static inline void __pipeline_memcpy_async(void *shared, const void *global, size_t bytes,
                                           size_t zero_fill = 0)
{
    cudahost_copy_later(shared, global, bytes, zero_fill);
}
static inline void __pipeline_commit(void)
{
    cudahost_copy_commit();
}
static inline void __pipeline_wait_prior(size_t n)
{
    cudahost_copy_wait(n);
}
