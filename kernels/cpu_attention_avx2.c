/* Cpu attention, the kernels of cpu_attention_kernel.h compiled for AVX2, FMA and F16C. */
#define KERNEL_SET cpu_attention_avx2
#define KERNEL_ROWS 6
#define KERNEL_COLUMNS 1u
#include "cpu_attention_kernel.h"
