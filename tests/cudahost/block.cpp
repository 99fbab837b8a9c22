/* cudahost: the threads of one block as fibers on one OS thread, their barriers, collectives, faults, shared
 * memory.
 *
 * Blocks run one after another, so that a run repeats exactly for a given order and seed. A fiber runs until
 * it waits: the forward and the reverse order take threads and blocks by number, the random one draws. A
 * block that fails is abandoned where it stands: its fibers are made anew for the next one. Thread: whoever
 * holds the lock. Tests: test_block.cpp */
#include "host.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

const size_t STACK = 64 * 1024, STACK_GUARD = 256 * 1024, GUARD = 4096;

enum state : uint8_t { READY, AT_BARRIER, AT_WARP, DONE };

struct async_copy {
    void *to;
    const void *from;
    size_t bytes, zeros;
    unsigned group;
};

struct fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    void *fake_stack; /* AddressSanitizer's */
    char *stack;
    uint3 tid;
    state st;
    cudahost_site at; /* where it waits, */
    const char *what; /* in what, */
    unsigned mask;    /* for whom, */
    cudahost_op op;
    void *brought; /* with what */
    int vote;
    std::vector<async_copy> copies;
    unsigned groups; /* of copies, committed so far */
};

struct warp {
    unsigned live, ready, waiting;
};

struct shared_variable {
    const void *key;
    char *p, *base;
    size_t bytes, align, body;
    bool used; /* by this block */
};

struct {
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    fiber main;
    int cur = -1, n = 0, live = 0, at_barrier = 0, vote = 0;
    const host_grid *grid = nullptr;
    uint64_t rng = 1;
    cudaError_t error = cudaSuccess;
    const void *main_bottom = nullptr; /* the OS thread's stack, for AddressSanitizer */
    size_t main_size = 0;
    std::vector<shared_variable> shared;
} run;

const char DYNAMIC = 0; /* the key of the dynamic shared memory */

#if defined(__x86_64__)
extern "C" void cudahost_switch(void **save, void *load);
asm(".text\n.globl cudahost_switch\n.type cudahost_switch,@function\ncudahost_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size cudahost_switch,.-cudahost_switch\n");
#endif

uint64_t draw()
{
    run.rng ^= run.rng << 13;
    run.rng ^= run.rng >> 7;
    run.rng ^= run.rng << 17;
    return run.rng;
}

int draw_bit(unsigned m)
{
    for (uint64_t k = draw() % (uint64_t)__builtin_popcount(m); k; k--)
        m &= m - 1;
    return __builtin_ctz(m);
}

/* The fiber to run next, or -1 when all wait or are done. Forward it stays in its warp while it can: those
 * stacks are the warm ones. */
int next_ready()
{
    const int n = (int)run.warps.size();
    const cudahost_order order = run.grid->order;
    int w = run.cur >= 0 ? run.cur / 32 : order == CUDAHOST_REVERSE ? n - 1 : 0;
    if (order == CUDAHOST_FORWARD && run.cur >= 0 && run.warps[w].ready) {
        unsigned m = run.warps[w].ready, after = run.cur % 32 < 31 ? m & ~((2u << run.cur % 32) - 1) : 0;
        return w * 32 + __builtin_ctz(after ? after : m);
    }
    if (order == CUDAHOST_RANDOM &&
        (run.cur < 0 || draw() % 16 == 0)) /* in bursts: some warps get far ahead */
        w = (int)(draw() % (uint64_t)n);
    for (int k = 0; k < n; k++) {
        unsigned m = run.warps[w].ready;
        if (m)
            return w * 32 + (order == CUDAHOST_FORWARD   ? __builtin_ctz(m)
                             : order == CUDAHOST_REVERSE ? 31 - __builtin_clz(m)
                                                         : draw_bit(m));
        w = order == CUDAHOST_REVERSE ? (w ? w - 1 : n - 1) : (w + 1) % n;
    }
    return -1;
}

/* to: a fiber, or -1 for the OS thread's own stack. */
void jump(fiber &from, int to)
{
    fiber &t = to < 0 ? run.main : run.fibers[(size_t)to];
    run.cur = to;
    host_switches++;
    if (to >= 0)
        threadIdx = t.tid;
    if (&from == &t)
        return;
#if defined(__SANITIZE_ADDRESS__)
    void **keep = &from != &run.main && (from.st == DONE || run.error) ? nullptr : &from.fake_stack;
    if (to < 0)
        __sanitizer_start_switch_fiber(keep, run.main_bottom, run.main_size);
    else
        __sanitizer_start_switch_fiber(keep, t.stack, STACK);
#endif
#if defined(__x86_64__)
    cudahost_switch(&from.sp, t.sp);
#else
    swapcontext(&from.context, &t.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void wait_turn()
{
    jump(run.fibers[(size_t)run.cur], next_ready());
}

void wake(int i)
{
    run.fibers[(size_t)i].st = READY;
    run.warps[(size_t)i / 32].ready |= 1u << i % 32;
}

void say_where(const char *what)
{
    if (run.cur >= 0)
        host_say("kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s", run.grid->name, blockIdx.x, blockIdx.y,
                 blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
    else
        host_say("kernel %s, block (%u,%u,%u): %s", run.grid->name, blockIdx.x, blockIdx.y, blockIdx.z, what);
}

void fail_in_fiber(cudaError_t e, const char *what)
{
    say_where(what);
    run.error = e;
    jump(run.fibers[(size_t)run.cur], -1);
    abort();
}

void release_barrier()
{
    const fiber *first = nullptr;
    run.vote = 0;
    for (int i = 0; i < run.n; i++) {
        fiber &f = run.fibers[(size_t)i];
        if (f.st != AT_BARRIER)
            continue;
        if (first && (first->at.line != f.at.line || strcmp(first->at.file, f.at.file)))
            cudahost_fail("threads wait at two barriers: thread %u at %s:%d and thread %u at %s:%d",
                          first->tid.x, first->at.file, first->at.line, f.tid.x, f.at.file, f.at.line);
        if (!first)
            first = &f;
        run.vote |= f.vote;
        wake(i);
    }
    run.at_barrier = 0;
}

int barrier(int vote, cudahost_site at)
{
    const int i = run.cur;
    fiber &me = run.fibers[(size_t)i];
    me.st = AT_BARRIER;
    me.at = at;
    me.vote = vote;
    run.warps[(size_t)i / 32].ready &= ~(1u << i % 32);
    run.at_barrier++;
    if (run.at_barrier == run.live)
        release_barrier();
    wait_turn();
    return run.vote;
}

/* All lanes that a collective waits for are there, want the same lanes, and call the same function. */
bool all_came(int base, unsigned want, const fiber &me)
{
    if ((run.warps[(size_t)base / 32].waiting & want) != want)
        return false;
    for (unsigned m = want; m; m &= m - 1) {
        const fiber &f = run.fibers[(size_t)(base + __builtin_ctz(m))];
        if (f.mask != me.mask)
            return false;
        if (f.what != me.what && strcmp(f.what, me.what))
            cudahost_fail(
                "lanes of a warp are in different calls: lane %u in %s at %s:%d, this one in %s at %s:%d",
                (unsigned)__builtin_ctz(m), f.what, f.at.file, f.at.line, me.what, me.at.file, me.at.line);
    }
    return true;
}

void thread_main()
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!run.main_bottom) {
        run.main_bottom = bottom;
        run.main_size = size;
    }
#endif
    (*run.grid->body)();
    const int i = run.cur;
    fiber &me = run.fibers[(size_t)i];
    if (!me.copies.empty())
        cudahost_fail("ends with an asynchronous copy that nothing waited for");
    warp &w = run.warps[(size_t)i / 32];
    me.st = DONE;
    w.live &= ~(1u << i % 32);
    w.ready &= ~(1u << i % 32);
    run.live--;
    if (run.live && run.at_barrier == run.live)
        release_barrier();
    jump(me, next_ready());
    abort();
}

void prepare(fiber &f)
{
    if (!f.stack) {
        void *m =
            mmap(nullptr, STACK + STACK_GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        f.stack = (char *)m + STACK_GUARD;
        if (m == MAP_FAILED || mprotect(f.stack, STACK, PROT_READ | PROT_WRITE))
            abort();
    }
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(f.stack, STACK); /* what an abandoned thread left */
#endif
#if defined(__x86_64__)
    void **sp = (void **)(f.stack + STACK);
    *--sp = nullptr; /* the stack is aligned at entry as after a call */
    *--sp = (void *)thread_main;
    for (int k = 0; k < 6; k++)
        *--sp = nullptr;
    f.sp = sp;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, thread_main, 0);
#endif
    f.st = READY;
    f.copies.clear();
    f.groups = 0;
}

/* What keeps the block from going on: the first thread at a barrier and the first in a collective. */
void say_deadlock()
{
    int at_barrier = 0;
    const fiber *b = nullptr, *w = nullptr;
    int w_index = 0;
    for (int i = 0; i < run.n; i++) {
        const fiber &f = run.fibers[(size_t)i];
        at_barrier += f.st == AT_BARRIER;
        if (f.st == AT_BARRIER && !b)
            b = &f;
        if (f.st == AT_WARP && !w) {
            w = &f;
            w_index = i;
        }
    }
    char text[600];
    int n = snprintf(text, sizeof text, "deadlock:");
    if (b)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      " %d threads wait in __syncthreads, first (%u,%u,%u) at %s:%d;", at_barrier, b->tid.x,
                      b->tid.y, b->tid.z, b->at.file, b->at.line);
    if (w && n < (int)sizeof text)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      " thread (%u,%u,%u) waits in %s at %s:%d for lanes %08x, of which %08x are not there;",
                      w->tid.x, w->tid.y, w->tid.z, w->what, w->at.file, w->at.line, w->mask,
                      w->mask & ~run.warps[(size_t)w_index / 32].waiting);
    if (n < (int)sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, " %d of %d threads ended", run.n - run.live, run.n);
    say_where(text);
}

/* ---- faults: a touched guard page, a misaligned or impossible access (the build traps those) */

struct sigaction old_action[NSIG];
const int FAULTS[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE };

void on_fault(int sig, siginfo_t *info, void *)
{
    if (run.cur < 0) { /* not ours: the test itself, or host code that reads device memory */
        std::string where = host_describe(info->si_addr);
        if (sig == SIGSEGV && !where.empty())
            host_say("host code touched %s", where.c_str());
        sigaction(sig, &old_action[sig], nullptr);
        return;
    }
    fiber &me = run.fibers[(size_t)run.cur];
    char text[300];
    cudaError_t e = cudaErrorIllegalAddress;
    const char *at = (const char *)info->si_addr;
    if (sig == SIGILL) {
        snprintf(text, sizeof text, "a misaligned address or an index past an array's end");
        e = cudaErrorMisalignedAddress;
    } else if (sig == SIGSEGV && info->si_code == SI_KERNEL) {
        /* The processor's own refusal, which names no address: where the compiler traps no misaligned vector.
         */
        snprintf(text, sizeof text, "a misaligned address, or one that no memory can have");
        e = cudaErrorMisalignedAddress;
    } else if (sig == SIGFPE)
        snprintf(text, sizeof text, "an integer division by zero");
    else if (at >= me.stack - STACK_GUARD && at < me.stack)
        snprintf(text, sizeof text, "more than %zu bytes of stack", STACK);
    else {
        std::string where = host_describe(at);
        for (const shared_variable &v : run.shared)
            if (at >= v.base - GUARD && at < v.base + v.body + GUARD)
                where = "memory " + std::to_string(at - v.p) +
                        " bytes from the start of a shared variable of " + std::to_string(v.bytes);
        snprintf(text, sizeof text, "touches %s",
                 where.empty() ? "memory that is not the device's" : where.c_str());
    }
    fail_in_fiber(e, text);
}

/* A handler of somebody else's (a test runner's) may have come between: ours is put back for every grid. */
struct fault_guard {
    fault_guard()
    {
        static thread_local struct own_stack {
            void *m = nullptr;
            ~own_stack()
            {
                if (!m)
                    return;
                stack_t off = {};
                off.ss_flags = SS_DISABLE;
                sigaltstack(&off, nullptr);
                munmap(m, STACK);
            }
        } own;
        stack_t now;
        if (!sigaltstack(nullptr, &now) && (now.ss_flags & SS_DISABLE)) {
            own.m = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            stack_t mine = {};
            mine.ss_sp = own.m;
            mine.ss_size = STACK;
            if (own.m == MAP_FAILED || sigaltstack(&mine, nullptr))
                abort();
        }
        struct sigaction a = {};
        a.sa_sigaction = on_fault;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int sig : FAULTS) {
            struct sigaction was;
            sigaction(sig, &a, &was);
            if (was.sa_sigaction != on_fault)
                old_action[sig] = was;
        }
    }
};

/* ---- one block */

bool shared_intact()
{
    for (const shared_variable &v : run.shared) {
        const char *at;
        if (v.used && !host_intact(v.base, v.body, v.p, v.bytes, &at)) {
            char text[160];
            snprintf(text, sizeof text, "wrote %td bytes from the start of a shared variable of %zu",
                     at - v.p, v.bytes);
            say_where(text);
            return false;
        }
    }
    return true;
}

cudaError_t run_block(const host_grid &g, uint64_t id)
{
    run.grid = &g;
    run.n = run.live = (int)(g.block.x * g.block.y * g.block.z);
    run.at_barrier = 0;
    run.error = cudaSuccess;
    run.cur = -1;
    run.rng = (g.seed * 0x9E3779B97F4A7C15ull ^ (id + 1) * 0xD1B54A32D192ED03ull) | 1;
    if ((int)run.fibers.size() < run.n)
        run.fibers.resize((size_t)run.n);
    run.warps.assign((size_t)(run.n + 31) / 32, warp{ 0, 0, 0 });
    gridDim = { g.grid.x, g.grid.y, g.grid.z };
    blockDim = { g.block.x, g.block.y, g.block.z };
    blockIdx = { (unsigned)(id % g.grid.x), (unsigned)(id / g.grid.x % g.grid.y),
                 (unsigned)(id / g.grid.x / g.grid.y) };
    for (shared_variable &v : run.shared)
        v.used = false;
    for (int i = 0; i < run.n; i++) {
        fiber &f = run.fibers[(size_t)i];
        prepare(f);
        unsigned u = (unsigned)i;
        f.tid = { u % g.block.x, u / g.block.x % g.block.y, u / g.block.x / g.block.y };
        run.warps[u / 32].live |= 1u << u % 32;
        run.warps[u / 32].ready |= 1u << u % 32;
    }
    jump(run.main, next_ready());
    if (!run.error && run.live) {
        say_deadlock();
        run.error = cudaErrorLaunchFailure;
    }
    if (!run.error && !shared_intact())
        run.error = cudaErrorIllegalAddress;
    return run.error;
}

shared_variable &shared_find(const void *key, size_t bytes, size_t align)
{
    for (shared_variable &v : run.shared)
        if (v.key == key && v.bytes == bytes)
            return v;
    shared_variable v = { key, nullptr, nullptr, bytes, align < 16 ? 16 : align, 0, false };
    if (!host_guarded(bytes, v.align, &v.p, &v.base, &v.body))
        abort();
    run.shared.push_back(v);
    return run.shared.back();
}

} // namespace

bool host_in_kernel()
{
    return run.cur >= 0;
}

cudaError_t host_run_grid(const host_grid &g)
{
    fault_guard guard;
    run.main_bottom = nullptr; /* another OS thread may have been here last */
    const uint64_t n = (uint64_t)g.grid.x * g.grid.y * g.grid.z;
    cudaError_t e = cudaSuccess;
    for (uint64_t i = 0; i < n && !e; i++)
        e = run_block(g, g.order == CUDAHOST_REVERSE ? n - 1 - i : i);
    return e;
}

void *cudahost_shared(const void *key, size_t bytes, size_t align)
{
    size_t sum = run.grid->shared;
    shared_variable &v = shared_find(key, bytes, align);
    if (!v.used) {
        v.used = true;
        host_fill(v.base, v.body, v.p, v.bytes);
        for (const shared_variable &o : run.shared)
            sum += o.used && o.key != &DYNAMIC ? (o.bytes + 15) / 16 * 16 : 0;
        if (sum - run.grid->shared > HOST_SHARED_PLAIN || sum > HOST_SHARED_MAX)
            cudahost_fail("%zu bytes of shared memory, of which %zu dynamic: more than a block can have", sum,
                          run.grid->shared);
    }
    return v.p;
}

void *cudahost_shared_dynamic(void)
{
    if (!run.grid->shared)
        cudahost_fail("uses dynamic shared memory, but was launched with none");
    return cudahost_shared(&DYNAMIC, run.grid->shared, 16);
}

int cudahost_lane(void)
{
    return run.cur & 31;
}

void cudahost_atomic(void)
{
    if (run.grid->order == CUDAHOST_RANDOM)
        wait_turn();
}

void cudahost_fail(const char *fmt, ...)
{
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fail_in_fiber(cudaErrorLaunchFailure, text);
    abort();
}

void cudahost_block_barrier(cudahost_site at)
{
    barrier(0, at);
}

int __syncthreads_or(int p, cudahost_site at)
{
    return barrier(p != 0, at);
}

void cudahost_warp(unsigned mask, const char *name, cudahost_op op, void *brought, cudahost_site at)
{
    const int i = run.cur, lane = i & 31, base = i & ~31;
    fiber &me = run.fibers[(size_t)i];
    warp &w = run.warps[(size_t)i / 32];
    if (!(mask >> lane & 1))
        cudahost_fail("lane %d calls %s at %s:%d for lanes %08x, which do not include it", lane, name,
                      at.file, at.line, mask);
    me.mask = mask;
    me.what = name;
    me.at = at;
    me.op = op;
    me.brought = brought;
    me.st = AT_WARP;
    w.ready &= ~(1u << lane);
    w.waiting |= 1u << lane;
    unsigned want = mask & w.live;
    if (all_came(base, want, me)) {
        void *lanes[32] = {};
        for (unsigned m = want; m; m &= m - 1)
            lanes[__builtin_ctz(m)] = run.fibers[(size_t)(base + __builtin_ctz(m))].brought;
        op(lanes, want);
        w.waiting &= ~want;
        for (unsigned m = want; m; m &= m - 1)
            wake(base + __builtin_ctz(m));
    }
    wait_turn();
}

void cudahost_shuffle_op(void *const brought[32], unsigned mask)
{
    for (unsigned m = mask; m; m &= m - 1) {
        cudahost_shuffle *s = (cudahost_shuffle *)brought[__builtin_ctz(m)];
        if (!(mask >> (s->from & 31) & 1))
            cudahost_fail("lane %d reads from lane %d, which is not in the call (lanes %08x)",
                          __builtin_ctz(m), s->from & 31, mask);
        s->out = ((cudahost_shuffle *)brought[s->from & 31])->in;
    }
}

template <class F> static void vote(void *const brought[32], unsigned mask, F fold)
{
    int64_t sum = ((cudahost_vote *)brought[__builtin_ctz(mask)])->in;
    for (unsigned m = mask & (mask - 1); m; m &= m - 1)
        sum = fold(sum, ((cudahost_vote *)brought[__builtin_ctz(m)])->in);
    for (unsigned m = mask; m; m &= m - 1)
        ((cudahost_vote *)brought[__builtin_ctz(m)])->out = sum;
}

void cudahost_ballot_op(void *const brought[32], unsigned mask)
{
    unsigned votes = 0;
    for (unsigned m = mask; m; m &= m - 1)
        if (((cudahost_vote *)brought[__builtin_ctz(m)])->in)
            votes |= 1u << __builtin_ctz(m);
    for (unsigned m = mask; m; m &= m - 1)
        ((cudahost_vote *)brought[__builtin_ctz(m)])->out = votes;
}

void cudahost_add_op(void *const brought[32], unsigned mask)
{
    vote(brought, mask, [](int64_t a, int64_t b) { return a + b; });
}

void cudahost_min_op(void *const brought[32], unsigned mask)
{
    vote(brought, mask, [](int64_t a, int64_t b) { return a < b ? a : b; });
}

void cudahost_max_op(void *const brought[32], unsigned mask)
{
    vote(brought, mask, [](int64_t a, int64_t b) { return a > b ? a : b; });
}

struct mma_lane {
    int *c;
    const int *a, *b;
};

/* Where the PTX manual says that a warp's lanes hold the elements: lane 4 r + k / 4 % 4 has columns k of row
 * r. */
static void mma_op(void *const brought[32], unsigned mask)
{
    int8_t a[16][32], b[8][32];
    if (mask != 0xffffffffu)
        cudahost_fail("a matrix product is of all 32 lanes, this one of %08x", mask);
    for (unsigned lane = 0; lane < 32; lane++) {
        const mma_lane *l = (const mma_lane *)brought[lane];
        const unsigned group = lane / 4, column = lane % 4 * 4;
        for (unsigned half = 0; half < 2; half++) {
            memcpy(&a[group][column + 16 * half], &l->a[2 * half], 4);
            memcpy(&a[group + 8][column + 16 * half], &l->a[2 * half + 1], 4);
            memcpy(&b[group][column + 16 * half], &l->b[half], 4);
        }
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
            int sum = 0;
            for (unsigned k = 0; k < 32; k++)
                sum += a[row][k] * b[column][k];
            ((mma_lane *)brought[lane])->c[i] = sum;
        }
}

void cudahost_mma_16x8x32(int c[4], const int a[4], const int b[2], cudahost_site at)
{
    mma_lane mine = { c, a, b };
    cudahost_warp(0xffffffffu, "mma", mma_op, &mine, at);
}

void cudahost_copy_later(void *shared, const void *global, size_t bytes, size_t zero_fill)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zero_fill > bytes)
        cudahost_fail("an asynchronous copy of %zu bytes, %zu of them zeros: 4, 8 or 16 can be", bytes,
                      zero_fill);
    if ((uintptr_t)shared % bytes || (uintptr_t)global % bytes)
        cudahost_fail("an asynchronous copy of %zu bytes between %p and %p: both are aligned to the size",
                      bytes, shared, global);
    fiber &me = run.fibers[(size_t)run.cur];
    me.copies.push_back({ shared, global, bytes, zero_fill, me.groups });
}

void cudahost_copy_commit(void)
{
    run.fibers[(size_t)run.cur].groups++;
}

void cudahost_copy_wait(size_t newest_left)
{
    fiber &me = run.fibers[(size_t)run.cur];
    size_t done = 0;
    for (; done < me.copies.size() && me.copies[done].group + newest_left < me.groups; done++) {
        const async_copy &c = me.copies[done];
        memcpy(c.to, c.from, c.bytes - c.zeros);
        memset((char *)c.to + (c.bytes - c.zeros), 0, c.zeros);
    }
    me.copies.erase(me.copies.begin(), me.copies.begin() + (std::ptrdiff_t)done);
}
