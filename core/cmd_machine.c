/* Cmd machine: what this process may use of the machine: memory and cores, the control group's limits
 * included. Reads /proc and /sys once, at start. Must not know: what for. Tests: tests/e2e/test_serve.py */
#include "cmd_serve_load.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CPUS ((size_t)1 << 20)

/* The number after `key` in a file of "key number" lines; the first number when key is NULL. */
static bool read_number(const char *path, const char *key, uint64_t *ret)
{
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        size_t len = key ? strlen(key) : 0;
        if (key && strncmp(line, key, len) != 0)
            continue;
        char *text = line + len, *end;
        while (isspace((unsigned char)*text))
            text++;
        *ret = strtoull(text, &end, 10);
        found = end > text;
        if (!key)
            break;
    }
    fclose(f);
    return found;
}

static uint64_t group_memory_available(void)
{
    uint64_t max, used, cache = 0;
    if (read_number("/sys/fs/cgroup/memory.max", NULL, &max) &&
        read_number("/sys/fs/cgroup/memory.current", NULL, &used)) {
        /* Pages of files count as used, but go when something else needs them. */
        read_number("/sys/fs/cgroup/memory.stat", "inactive_file", &cache);
    } else if (!read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL, &max) ||
               !read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL, &used)) {
        return UINT64_MAX;
    } else {
        read_number("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file", &cache);
    }
    used = used > cache ? used - cache : 0;
    return max > used ? max - used : 0;
}

uint64_t machine_memory_available(void)
{
    uint64_t kb;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kb))
        return 0;
    uint64_t group = group_memory_available();
    return group < kb * 1024 ? group : kb * 1024;
}

/* The kernel wants room for every CPU it can have, which may be more than a cpu_set_t knows, and says EINVAL
 * until it has it. */
static uint32_t cores_of_affinity(void)
{
    for (size_t cpus = CPU_SETSIZE; cpus <= MAX_CPUS; cpus *= 2) {
        size_t size = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = CPU_ALLOC(cpus);
        int r = set ? sched_getaffinity(0, size, set) : -1;
        int cores = r == 0 ? CPU_COUNT_S(size, set) : 0;
        bool too_small = set && r < 0 && errno == EINVAL;
        if (set)
            CPU_FREE(set);
        if (!too_small)
            return cores > 0 ? (uint32_t)cores : 1;
    }
    return 1;
}

uint32_t machine_cores(void)
{
    uint32_t cores = cores_of_affinity();
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        uint64_t quota, period;
        if (fscanf(f, "%" SCNu64 " %" SCNu64, &quota, &period) == 2 && period) {
            uint64_t allowed = (quota + period - 1) / period;
            if (allowed >= 1 && allowed < cores)
                cores = (uint32_t)allowed;
        }
        fclose(f);
    }
    return cores ? cores : 1;
}
