/* cudahost's controls where there is a real device: nothing to be turned. tests/gpu/run leaves out the tests
 * that need more than a fresh device. */
#include "cudahost.h"

void cudahost_reset(int devices, size_t bytes)
{
    (void)devices;
    (void)bytes;
}

void cudahost_set_order(enum cudahost_order order, uint64_t seed)
{
    (void)order;
    (void)seed;
}

void cudahost_lose_device(int device)
{
    (void)device;
}
