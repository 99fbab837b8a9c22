/* Cpu part: devices side by side in one process, each on processors of its own, so that none takes the time
 * of another's threads. A part is a run of processor numbers, which are mostly given out node by node. With
 * fewer processors than parts nobody is kept anywhere: two devices bound to one processor would be half as
 * fast as a third that has one for itself, while the system gives all three the same.
 *
 * Thread: each device's own, when it is opened. Must not know: what the devices do.
 * Tests: tests/kernels/test_pool.c */
#include "cpu.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

void cpu_part_of(uint32_t n, uint32_t part, uint32_t parts, uint32_t *ret_first, uint32_t *ret_count)
{
    uint64_t first = (uint64_t)n * part / parts;
    *ret_first = (uint32_t)first;
    *ret_count = (uint32_t)((uint64_t)n * (part + 1) / parts - first);
}

/* "0-3,8"; as much of it as there is room for. */
static void list_processors(const cpu_set_t *set, char *text, size_t len)
{
    size_t used = 0;
    for (size_t i = 0; i < CPU_SETSIZE && used < len; i++) {
        size_t end = i;
        if (!CPU_ISSET(i, set))
            continue;
        while (end + 1 < CPU_SETSIZE && CPU_ISSET(end + 1, set))
            end++;
        int n = snprintf(text + used, len - used, end > i ? "%s%zu-%zu" : "%s%zu", used ? "," : "", i, end);
        used += (size_t)n;
        i = end;
    }
}

void cpu_part_keep(uint32_t part, uint32_t parts, char *text, size_t len)
{
    cpu_set_t all, own;
    uint32_t first, count, seen = 0;
    char numbers[64] = "";

    *text = 0;
    /* More processors than a cpu_set_t knows make this fail. */
    if (parts < 2 || sched_getaffinity(0, sizeof all, &all) || (uint32_t)CPU_COUNT(&all) < parts)
        return;
    cpu_part_of((uint32_t)CPU_COUNT(&all), part, parts, &first, &count);
    CPU_ZERO(&own);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            if (seen >= first && seen - first < count)
                CPU_SET(i, &own);
            seen++;
        }
    if (sched_setaffinity(0, sizeof own, &own))
        return;
    list_processors(&own, numbers, sizeof numbers);
    snprintf(text, len, " on processor%s %s", count == 1 ? "" : "s", numbers);
}
