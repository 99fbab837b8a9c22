/* Cpu attention, the kernels of cpu_attention_kernel.h compiled for AVX-512. */
#define KERNEL_SET cpu_attention_avx512
#define KERNEL_ROWS 6
#define KERNEL_COLUMNS 4u
#include "cpu_attention_kernel.h"
