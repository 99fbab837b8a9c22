/* Cpu attention, the kernels of cpu_attention_kernel.h compiled for baseline instructions, for processors
 * that have nothing better. */
#define KERNEL_SET cpu_attention_portable
#define KERNEL_ROWS 2
#define KERNEL_COLUMNS 1u
#include "cpu_attention_kernel.h"
