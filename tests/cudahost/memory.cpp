/* cudahost: device and pinned memory: where it lies, what is around it, who may touch it.
 *
 * Each device has a range of addresses of its own, handed out upwards and never twice, so that what was freed
 * stays out of reach. An allocation ends at a page that nobody may touch, as closely as an alignment of 64
 * bytes lets it; the bytes left over hold a pattern that is looked at after every piece of work. Memory of a
 * device is out of reach of host code, and of other devices' kernels unless they are peers. Thread: whoever
 * holds the lock. Tests: test_memory.cpp */
#include "host.h"

#include <algorithm>
#include <map>
#include <stdio.h>
#include <sys/mman.h>

namespace
{

const size_t PAGE = 4096, RANGE = (size_t)1 << 37, ALIGN = 64, EDGE = 64;
/* A NaN as a float, and as a half every other time. */
const unsigned char PATTERN[4] = { 0x5a, 0x5a, 0xfa, 0xff };

struct allocation {
    char *base, *p;
    size_t body, bytes;
    bool freed;
};

struct range {
    char *from = nullptr, *next = nullptr;
    bool exposed = false;
    std::map<const char *, allocation> all; /* by base, freed ones too: a late touch is then told as such */
    std::vector<const allocation *> live;
};
range ranges[HOST_DEVICES + 1]; /* the last one: pinned host memory */
const int PINNED = HOST_DEVICES;

range *range_of(const void *p)
{
    for (range &r : ranges)
        if (r.from && (const char *)p >= r.from && (const char *)p < r.from + RANGE)
            return &r;
    return nullptr;
}

/* The allocation whose pages hold p, or the last one before it. */
allocation *near(range &r, const void *p)
{
    auto i = r.all.upper_bound((const char *)p);
    return i == r.all.begin() ? nullptr : &std::prev(i)->second;
}

unsigned char pattern(const char *at)
{
    return PATTERN[(uintptr_t)at % 4];
}

size_t body_of(size_t bytes, size_t align)
{
    return ((bytes + align - 1) / align * align + PAGE - 1) / PAGE * PAGE;
}

bool take(range &r, size_t bytes, char **ret_p)
{
    if (!r.from) {
        void *m = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED)
            return false;
        r.from = (char *)m;
        r.next = r.from + PAGE;
        r.exposed = &r == &ranges[PINNED];
    }
    const size_t body = body_of(bytes, ALIGN);
    if (bytes > RANGE / 2 || (size_t)(r.from + RANGE - r.next) < body + PAGE)
        return false;
    if (mprotect(r.next, body, PROT_READ | PROT_WRITE))
        return false;
    allocation a = { r.next, r.next + body - (bytes + ALIGN - 1) / ALIGN * ALIGN, body, bytes, false };
    host_fill(a.base, a.body, a.p, a.bytes);
    if (!r.exposed)
        mprotect(a.base, a.body, PROT_NONE);
    r.live.push_back(&(r.all[a.base] = a));
    r.next += body + PAGE;
    *ret_p = a.p;
    return true;
}

bool give_back(range &r, void *p)
{
    allocation *a = near(r, p);
    if (!a || a->p != p || a->freed)
        return false;
    mmap(a->base, a->body, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    a->freed = true;
    r.live.erase(std::find(r.live.begin(), r.live.end(), a));
    return true;
}

} // namespace

void host_fill(char *base, size_t body, char *p, size_t bytes)
{
    for (char *c = p - base > (std::ptrdiff_t)EDGE ? p - EDGE : base; c < p; c++)
        *c = (char)pattern(c);
    memset(p, 0xff, bytes);
    for (char *c = p + bytes; c < base + body; c++)
        *c = (char)pattern(c);
}

bool host_intact(const char *base, size_t body, const char *p, size_t bytes, const char **ret_at)
{
    for (const char *c = p - base > (std::ptrdiff_t)EDGE ? p - EDGE : base; c < base + body; c++) {
        if (c == p)
            c += bytes;
        if (c < base + body && (unsigned char)*c != pattern(c)) {
            *ret_at = c;
            return false;
        }
    }
    return true;
}

bool host_guarded(size_t bytes, size_t align, char **ret_p, char **ret_base, size_t *ret_body)
{
    const size_t body = body_of(bytes, align);
    void *m = mmap(nullptr, body + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED || mprotect((char *)m + PAGE, body, PROT_READ | PROT_WRITE))
        return false;
    *ret_base = (char *)m + PAGE;
    *ret_body = body;
    *ret_p = *ret_base + body - (bytes + align - 1) / align * align;
    return true;
}

host_where host_find(const void *p)
{
    range *r = range_of(p);
    allocation *a = r ? near(*r, p) : nullptr;
    if (!a || a->freed || (const char *)p < a->p || (const char *)p > a->p + a->bytes)
        return { PLACE_PAGEABLE, -1, 0 };
    host_where w = { PLACE_DEVICE, (int)(r - ranges), (size_t)(a->p + a->bytes - (const char *)p) };
    if (w.device == PINNED)
        w = { PLACE_PINNED, -1, w.left };
    return w;
}

std::string host_describe(const void *p)
{
    range *r = range_of(p);
    if (!r)
        return "";
    const int device = (int)(r - ranges);
    std::string whose = device == PINNED ? "pinned memory" : "memory of device " + std::to_string(device);
    allocation *a = near(*r, p);
    if (!a)
        return whose + " before its first allocation";
    std::ptrdiff_t at = (const char *)p - a->p;
    std::string what = a->freed ? "freed " : "";
    if (at >= (std::ptrdiff_t)a->bytes)
        return what + whose + " " + std::to_string(at - (std::ptrdiff_t)a->bytes) +
               " bytes past the end of an allocation of " + std::to_string(a->bytes);
    if (at < 0)
        return what + whose + " " + std::to_string(-at) + " bytes before an allocation of " +
               std::to_string(a->bytes);
    return what + whose + ", byte " + std::to_string(at) + " of an allocation of " + std::to_string(a->bytes);
}

void host_expose(unsigned devices)
{
    for (int d = 0; d < HOST_DEVICES; d++) {
        range &r = ranges[d];
        const bool want = devices >> d & 1;
        if (!r.from || r.exposed == want)
            continue;
        r.exposed = want;
        for (const allocation *a : r.live)
            mprotect(a->base, a->body, want ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
}

bool host_check_edges(int device)
{
    const char *at;
    for (const allocation *a : ranges[device].live)
        if (!host_intact(a->base, a->body, a->p, a->bytes, &at)) {
            host_say("something wrote to %s", host_describe(at).c_str());
            return false;
        }
    return true;
}

void host_memory_reset()
{
    for (range &r : ranges) {
        if (r.from)
            munmap(r.from, RANGE);
        r = range();
    }
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    HOST_LOCKED;
    if (cudaError_t e = host_alive())
        return host_result(e);
    host_device &d = host_dev(host_current());
    char *got;
    if (bytes > d.total - d.used || !take(ranges[host_current()], bytes, &got))
        return host_result(cudaErrorMemoryAllocation);
    d.used += bytes;
    *p = bytes ? got : nullptr;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    HOST_LOCKED;
    if (!p)
        return cudaSuccess;
    host_where w = host_find(p);
    if (w.place != PLACE_DEVICE) {
        host_say("cudaFree of %p, which is not device memory", p);
        return host_result(cudaErrorInvalidValue);
    }
    host_drain_device(w.device);
    if (!give_back(ranges[w.device], p)) {
        host_say("cudaFree of %s", host_describe(p).c_str());
        return host_result(cudaErrorInvalidValue);
    }
    host_dev(w.device).used -= w.left;
    return host_result(host_dev(w.device).sticky);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    HOST_LOCKED;
    char *got;
    if (!take(ranges[PINNED], bytes, &got))
        return host_result(cudaErrorMemoryAllocation);
    *p = got;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes, unsigned flags)
{
    return cudaHostAlloc(p, bytes, flags);
}

cudaError_t cudaFreeHost(void *p)
{
    HOST_LOCKED;
    if (!p)
        return cudaSuccess;
    for (int d = 0; d < host_devices(); d++)
        host_drain_device(d);
    return host_result(host_find(p).place == PLACE_PINNED && give_back(ranges[PINNED], p)
                           ? cudaSuccess
                           : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    HOST_LOCKED;
    const host_device &d = host_dev(host_current());
    *free_bytes = d.total - d.used;
    *total = d.total;
    return host_result(d.sticky);
}
