/* Cpu arena: memory for weights, many in one mapping of huge pages. Decoding reads all weights once per
 * token, in order; in ordinary pages of 4 KiB that is a page walk every few hundred nanoseconds, and measured
 * 10 to 25% slower.
 *
 * What it owns: mappings ("chunks"), counted by the weights in them and by the device that still fills one;
 * the last to go unmaps. Thread: the one that drives the device. Must not know: what a weight looks like.
 * Tests: tests/kernels/test_matmul.c (all weights lie here) */
#include "cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define CHUNK_BYTES ((size_t)32 << 20)

struct cpu_chunk {
    unsigned char *at; /* of the mapping, huge page aligned */
    size_t size, used;
    uint32_t holders;
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The kernel aligns mappings to its own pages only: ask for one huge page more and give back both ends. */
static unsigned char *map_aligned(size_t size)
{
    unsigned char *got = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)got % HUGE_PAGE) % HUGE_PAGE;
    if (before)
        munmap(got, before);
    munmap(got + before + size, HUGE_PAGE - before);
    /* Where there are no huge pages the memory is as good, only slower. */
    (void)madvise(got + before, size, MADV_HUGEPAGE);
    return got + before;
}

static struct cpu_chunk *chunk_new(size_t size)
{
    struct cpu_chunk *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->at = map_aligned(size);
    if (!c->at) {
        free(c);
        return NULL;
    }
    c->size = size;
    c->holders = 1;
    return c;
}

void cpu_chunk_drop(struct cpu_chunk *c)
{
    if (!c || --c->holders)
        return;
    munmap(c->at, c->size);
    free(c);
}

void *cpu_arena_take(struct ops_dev *d, size_t bytes, struct cpu_chunk **ret_chunk)
{
    if (bytes == 0 || bytes > SIZE_MAX - 2 * HUGE_PAGE)
        return NULL;
    bytes = round_up(bytes, 64);
    struct cpu_chunk *c = d->filling;
    if (!c || bytes > c->size - c->used) {
        c = chunk_new(round_up(bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES, HUGE_PAGE));
        if (!c)
            return NULL;
        cpu_chunk_drop(d->filling);
        d->filling = c;
    }
    unsigned char *at = c->at + c->used;
    c->used += bytes;
    c->holders++;
    *ret_chunk = c;
    return at;
}
