/* cudahost: streams, events, copies and launches: what is queued, and when it is done.
 *
 * Deferred, which is usual, work is done when something waits for it, and then only what that needs: the
 * stream's own earlier work and, through events, that of others. A copy from or to pageable memory waits as
 * CUDA's does. The default stream waits for the device's blocking streams and they for it. Thread: any, under
 * the lock. Tests: test_stream.cpp */
#include "host.h"

#include <map>
#include <time.h>

namespace
{

struct op {
    unsigned devices; /* whose memory it may touch */
    std::function<void()> run;
};

} // namespace

struct cudahost_stream {
    int device;
    bool blocking, destroyed;
    std::deque<op> queue;
    uint64_t given, done; /* pieces of work, ever */
};

struct cudahost_event {
    cudahost_stream *stream; /* recorded there, or NULL */
    uint64_t at;             /* done when that many pieces of the stream are */
    bool timing;
    std::shared_ptr<double> ms;
};

namespace
{

std::vector<std::unique_ptr<cudahost_stream>>
    streams; /* destroyed ones too: their handles are then known as such */
std::vector<std::unique_ptr<cudahost_event>> events;
cudahost_stream *defaults[HOST_DEVICES];
std::map<const void *, size_t> dynamic_limits; /* of kernels, by cudaFuncSetAttribute */

cudahost_stream *stream_new(int device, bool blocking)
{
    streams.emplace_back(new cudahost_stream{ device, blocking, false, {}, 0, 0 });
    return streams.back().get();
}

cudahost_stream *default_of(int device)
{
    if (!defaults[device])
        defaults[device] = stream_new(device, true);
    return defaults[device];
}

void do_one(cudahost_stream *s)
{
    op o = std::move(s->queue.front());
    s->queue.pop_front();
    if (!host_dev(s->device).sticky) { /* nothing runs any more on a device that is lost */
        host_expose(o.devices);
        o.run();
    }
    s->done++;
}

void run_until(cudahost_stream *s, uint64_t given)
{
    while (s->done < given && !s->queue.empty())
        do_one(s);
}

void drain(cudahost_stream *s)
{
    run_until(s, s->given);
    host_expose(0);
}

void push(cudahost_stream *s, unsigned devices, std::function<void()> run)
{
    s->queue.push_back({ devices, std::move(run) });
    s->given++;
}

void push_wait(cudahost_stream *s, cudahost_stream *other, uint64_t given)
{
    if (other != s && other->done < given)
        push(s, 0, [=] { run_until(other, given); });
}

void give(cudahost_stream *s, unsigned devices, std::function<void()> run)
{
    if (s == default_of(s->device)) {
        for (auto &other : streams)
            if (other->device == s->device && other->blocking)
                push_wait(s, other.get(), other->given);
    } else if (s->blocking)
        push_wait(s, default_of(s->device), default_of(s->device)->given);
    push(s, devices, std::move(run));
    if (!host_deferred)
        drain(s);
}

/* The stream itself, or NULL after an error: work must be given with the stream's device current. */
cudahost_stream *own(cudaStream_t s, const char *what)
{
    cudahost_stream *found = s ? s : default_of(host_current());
    if (found->destroyed)
        host_say("%s on a stream that was destroyed", what);
    else if (found->device != host_current())
        host_say("%s on a stream of device %d while device %d is current", what, found->device,
                 host_current());
    else
        return found;
    host_result(cudaErrorInvalidResourceHandle);
    return nullptr;
}

unsigned bit(const host_where &w)
{
    return w.place == PLACE_DEVICE ? 1u << w.device : 0;
}

bool kind_fits(cudaMemcpyKind kind, const host_where &to, const host_where &from)
{
    const bool to_device = to.place == PLACE_DEVICE, from_device = from.place == PLACE_DEVICE;
    return kind == cudaMemcpyDefault ||
           (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
            from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
}

struct copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
};

size_t extent(size_t pitch, const copy &c)
{
    return c.width && c.height ? pitch * (c.height - 1) + c.width : 0;
}

void copy_now(const copy &c)
{
    for (size_t y = 0; y < c.height; y++)
        memmove(c.to + y * c.to_pitch, c.from + y * c.from_pitch, c.width);
}

/* What a copy must satisfy before it is queued; says what it does not. */
bool copy_fits(const copy &c, cudaMemcpyKind kind, const host_where &to, const host_where &from)
{
    if (!kind_fits(kind, to, from))
        host_say("a copy from %s to %s memory is given as kind %d",
                 from.place == PLACE_DEVICE ? "device" : "host", to.place == PLACE_DEVICE ? "device" : "host",
                 (int)kind);
    else if (to.place != PLACE_PAGEABLE && extent(c.to_pitch, c) > to.left)
        host_say("a copy writes %zu bytes to %s", extent(c.to_pitch, c), host_describe(c.to).c_str());
    else if (from.place != PLACE_PAGEABLE && extent(c.from_pitch, c) > from.left)
        host_say("a copy reads %zu bytes from %s", extent(c.from_pitch, c), host_describe(c.from).c_str());
    else if ((to.place == PLACE_PAGEABLE && !host_describe(c.to).empty()) ||
             (from.place == PLACE_PAGEABLE && !host_describe(c.from).empty()))
        host_say("a copy from %s to %s", host_describe(c.from).c_str(), host_describe(c.to).c_str());
    else
        return true;
    return false;
}

cudaError_t copy_async(copy c, cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    if (cudaError_t e = host_alive())
        return host_result(e);
    cudahost_stream *s = own(stream, "a copy");
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (!extent(1, c))
        return cudaSuccess;
    host_where to = host_find(c.to), from = host_find(c.from);
    if (!copy_fits(c, kind, to, from))
        return host_result(cudaErrorInvalidValue);
    std::shared_ptr<std::vector<char>> staged;
    if (from.place ==
        PLACE_PAGEABLE) { /* CUDA stages it before it returns: the source may be changed afterwards */
        staged = std::make_shared<std::vector<char>>(c.from, c.from + extent(c.from_pitch, c));
        c.from = staged->data();
    }
    give(s, bit(to) | bit(from), [c, staged] { copy_now(c); });
    if (wait || to.place == PLACE_PAGEABLE)
        drain(s);
    return host_result(host_dev(s->device).sticky);
}

cudaError_t set_async(void *p, int byte, size_t bytes, cudaStream_t stream, bool wait)
{
    if (cudaError_t e = host_alive())
        return host_result(e);
    cudahost_stream *s = own(stream, "cudaMemset");
    if (!s)
        return cudaErrorInvalidResourceHandle;
    host_where at = host_find(p);
    if (bytes && (at.place == PLACE_PAGEABLE || at.left < bytes)) {
        host_say("cudaMemset of %zu bytes at %p: %s", bytes, p, host_describe(p).c_str());
        return host_result(cudaErrorInvalidValue);
    }
    give(s, bit(at), [=] { memset(p, byte, bytes); });
    if (wait)
        drain(s);
    return host_result(host_dev(s->device).sticky);
}

double now_ms()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

bool config_fits(const cudahost_launch_config &c)
{
    const dim3 &g = c.grid, &b = c.block;
    auto limit = dynamic_limits.find(c.kernel);
    const size_t dynamic = limit == dynamic_limits.end() ? HOST_SHARED_PLAIN : limit->second;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        host_say("kernel %s: a grid of (%u,%u,%u) blocks", c.name, g.x, g.y, g.z);
    else if (!b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 || b.z > 64 || b.x * b.y * b.z > 1024)
        host_say("kernel %s: a block of (%u,%u,%u) threads", c.name, b.x, b.y, b.z);
    else if (c.shared > dynamic)
        host_say("kernel %s: %zu bytes of dynamic shared memory: the limit is %zu (cudaFuncSetAttribute "
                 "raises it)",
                 c.name, c.shared, dynamic);
    else
        return true;
    return false;
}

bool pointers_fit(const cudahost_launch_config &c, const void *const *pointers, int n, int device)
{
    for (int i = 0; i < n; i++) {
        if (!pointers[i])
            continue;
        host_where w = host_find(pointers[i]);
        if (w.place == PLACE_PINNED ||
            (w.place == PLACE_DEVICE && (w.device == device || host_dev(device).peers >> w.device & 1)))
            continue;
        std::string what = host_describe(pointers[i]);
        host_say("kernel %s on device %d: pointer argument %d is %s", c.name, device, i + 1,
                 what.empty() ? "memory of the host" : what.c_str());
        return false;
    }
    return true;
}

} // namespace

void host_drain_device(int device)
{
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i]->device == device)
            drain(streams[i].get());
}

cudaError_t host_give(cudaStream_t stream, std::function<void()> work)
{
    cudahost_stream *s = own(stream, "work");
    if (!s)
        return cudaErrorInvalidResourceHandle;
    give(s, 1u << s->device, std::move(work));
    return host_alive();
}

void host_streams_reset()
{
    streams.clear();
    events.clear();
    dynamic_limits.clear();
    for (cudahost_stream *&s : defaults)
        s = nullptr;
}

void cudahost_launch(const cudahost_launch_config &c, const void *const *pointers, int n_pointers,
                     std::function<void()> body)
{
    HOST_LOCKED;
    if (cudaError_t e = host_alive()) {
        host_result(e);
        return;
    }
    cudahost_stream *s = own(c.stream, c.name);
    if (!s)
        return;
    if (!config_fits(c)) {
        host_result(cudaErrorInvalidConfiguration);
        return;
    }
    if (!pointers_fit(c, pointers, n_pointers, s->device)) {
        host_dev(s->device).sticky = cudaErrorIllegalAddress;
        return;
    }
    const int device = s->device;
    host_lose_if_told(device);
    host_launches++;
    give(s, 1u << device | host_dev(device).peers, [=] {
        host_grid g = { c.name, c.grid, c.block, c.shared, &body, host_order, host_seed };
        cudaError_t e = host_run_grid(g);
        if (!e && !host_check_edges(device)) {
            host_say("kernel %s wrote around an allocation: %s", c.name,
                     std::string(cudahost_report()).c_str());
            e = cudaErrorIllegalAddress;
        }
        host_dev(device).sticky = e;
    });
}

cudaError_t cudahost_func_attribute(const void *kernel, cudaFuncAttribute a, int value)
{
    HOST_LOCKED;
    if (a == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > (int)HOST_SHARED_MAX)
        return host_result(cudaErrorInvalidValue);
    dynamic_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    HOST_LOCKED;
    return copy_async({ (char *)to, (const char *)from, bytes, bytes, bytes, 1 }, kind, s, false);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    HOST_LOCKED;
    return copy_async({ (char *)to, (const char *)from, bytes, bytes, bytes, 1 }, kind, nullptr, true);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t s)
{
    HOST_LOCKED;
    host_where t = host_find(to), f = host_find(from);
    if (t.place != PLACE_DEVICE || t.device != to_device || f.place != PLACE_DEVICE ||
        f.device != from_device) {
        host_say("a copy between devices %d and %d: from %s to %s", from_device, to_device,
                 host_describe(from).c_str(), host_describe(to).c_str());
        return host_result(cudaErrorInvalidValue);
    }
    return copy_async({ (char *)to, (const char *)from, bytes, bytes, bytes, 1 }, cudaMemcpyDeviceToDevice, s,
                      false);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s)
{
    HOST_LOCKED;
    if (width > to_pitch || width > from_pitch)
        return host_result(cudaErrorInvalidValue);
    return copy_async({ (char *)to, (const char *)from, to_pitch, from_pitch, width, height }, kind, s,
                      false);
}

cudaError_t cudaMemset(void *p, int byte, size_t bytes)
{
    HOST_LOCKED;
    return set_async(p, byte, bytes, nullptr, true);
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s)
{
    HOST_LOCKED;
    return set_async(p, byte, bytes, s, false);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    HOST_LOCKED;
    *s = stream_new(host_current(), !(flags & cudaStreamNonBlocking));
    return host_result(host_alive());
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithFlags(s, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    HOST_LOCKED;
    if (!s || s->destroyed)
        return host_result(cudaErrorInvalidResourceHandle);
    drain(s);
    s->destroyed = true;
    return host_result(host_dev(s->device).sticky);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    HOST_LOCKED;
    cudahost_stream *found = s ? s : default_of(host_current());
    if (found->destroyed)
        return host_result(cudaErrorInvalidResourceHandle);
    if (!s)
        give(found, 0, [] {}); /* so that it waits for the blocking ones */
    drain(found);
    return host_result(host_dev(found->device).sticky);
}

cudaError_t cudaDeviceSynchronize(void)
{
    HOST_LOCKED;
    host_drain_device(host_current());
    return host_result(host_alive());
}

/* Asking makes it go on by one piece, so that a loop of questions ends. */
static cudaError_t query(cudahost_stream *s, uint64_t given)
{
    if (s->done < given) {
        do_one(s);
        host_expose(0);
        if (s->done < given)
            return cudaErrorNotReady;
    }
    return host_result(host_dev(s->device).sticky);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    HOST_LOCKED;
    cudahost_stream *found = s ? s : default_of(host_current());
    return query(found, found->given);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    HOST_LOCKED;
    cudahost_stream *s = own(stream, "cudaLaunchHostFunc");
    if (!s)
        return cudaErrorInvalidResourceHandle;
    give(s, 0, [=] { fn(arg); });
    return host_result(host_alive());
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    HOST_LOCKED;
    events.emplace_back(
        new cudahost_event{ nullptr, 0, !(flags & cudaEventDisableTiming), std::make_shared<double>(0) });
    *e = events.back().get();
    return host_result(host_alive());
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    HOST_LOCKED;
    for (size_t i = 0; i < events.size(); i++)
        if (events[i].get() == e) {
            events.erase(events.begin() + (std::ptrdiff_t)i);
            return cudaSuccess;
        }
    return host_result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    HOST_LOCKED;
    cudahost_stream *s = own(stream, "cudaEventRecord");
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (e->timing) {
        auto ms = e->ms = std::make_shared<double>(0);
        give(s, 0, [ms] { *ms = now_ms(); });
    }
    e->stream = s;
    e->at = s->given;
    return host_result(host_alive());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned)
{
    HOST_LOCKED;
    cudahost_stream *s = own(stream, "cudaStreamWaitEvent");
    if (!s)
        return cudaErrorInvalidResourceHandle;
    if (e->stream)
        push_wait(s, e->stream, e->at);
    return host_result(host_alive());
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    HOST_LOCKED;
    if (!e->stream)
        return cudaSuccess;
    run_until(e->stream, e->at);
    host_expose(0);
    return host_result(host_dev(e->stream->device).sticky);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    HOST_LOCKED;
    return e->stream ? query(e->stream, e->at) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    HOST_LOCKED;
    if (!from->stream || !to->stream || !from->timing || !to->timing)
        return host_result(cudaErrorInvalidResourceHandle);
    if (from->stream->done < from->at || to->stream->done < to->at)
        return cudaErrorNotReady;
    *ms = (float)(*to->ms - *from->ms);
    return cudaSuccess;
}
