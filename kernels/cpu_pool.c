/* Cpu pool: threads that run one section of work after another with its caller.
 *
 * A decoded token is some 200 sections of a few microseconds each, so a section must cost well under one: its
 * opening is one store that spinning threads see, its end one subtraction by each thread that joined. Threads
 * spin briefly before they sleep, never long: on a machine with other busy processes a waiting thread would
 * burn the time slice that the working one needs.
 *
 * The gate is one word: number of the section, open or closed, how many pool threads are inside. A thread
 * enters by adding one to an open gate, so a closed section cannot be entered, and the caller waits for those
 * inside only: a thread that the system keeps from running, and that has not entered, holds up nobody.
 *
 * Thread: one caller at a time. Must not know: what the work is.
 * Tests: tests/kernels/test_pool.c, tests/kernels/pool_stress.c (under TSan) */
#include "cpu.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GATE_INSIDE 0x1ffu /* pool threads inside */
#define GATE_OPEN 0x200u
#define GATE_SLEEP 0x400u /* the caller sleeps until the last one leaves */
#define GATE_SECTION 0x800u
#define WORK_SLEEP 0x80000000u

/* Longer than the gaps between the sections of a token, shorter than anything a scheduler does. */
#define SPIN_NS 50000
/* With more threads than processors whoever spins takes the processor from whoever works. */
#define SPIN_CROWDED_NS 1000

struct cpu_pool {
    _Alignas(64) _Atomic uint32_t gate;
    _Atomic uint32_t most; /* of the open section */
    cpu_fn *fn;            /* fn and arg are written while the gate is closed and nobody is inside */
    void *arg;
    int64_t spin_ns;
    _Alignas(64) _Atomic uint32_t bell; /* what sleeping threads sleep on */
    _Atomic uint32_t sleepers;
    _Atomic bool quit;
    uint32_t n_started;
    pthread_t *threads;
};

struct start {
    struct cpu_pool *pool;
    uint32_t thread;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    /* Every reason to return early is fine: all callers look again. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n > INT_MAX ? INT_MAX : (int)n, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A bounded spin: `again` says whether to look once more. The clock is read seldom, it costs as much as a
 * look. */
struct spin {
    int64_t until;
    int64_t limit_ns;
    uint32_t looks;
};

static inline bool spin_again(struct spin *s)
{
    relax();
    if (++s->looks % 16)
        return true;
    int64_t now = now_ns();
    if (!s->until)
        s->until = now + s->limit_ns;
    return now < s->until;
}

/* ---- work ---- */

void cpu_work_init(struct cpu_work *w, uint32_t pieces)
{
    atomic_init(&w->next, 0);
    w->total = pieces;
    atomic_init(&w->left, pieces);
}

void cpu_work_finish(struct cpu_work *w)
{
    uint32_t before = atomic_fetch_sub_explicit(&w->left, 1, memory_order_acq_rel);
    if (before == (WORK_SLEEP | 1u))
        futex_wake(&w->left, INT_MAX);
}

void cpu_work_wait(struct cpu_work *w)
{
    struct spin spin = { .limit_ns = SPIN_NS };
    for (;;) {
        uint32_t left = atomic_load_explicit(&w->left, memory_order_acquire);
        if (!(left & ~WORK_SLEEP))
            return;
        if (spin_again(&spin))
            continue;
        if (!(left & WORK_SLEEP)) {
            /* fetch_or and not a store: a piece may be finished at this very moment. */
            left = atomic_fetch_or_explicit(&w->left, WORK_SLEEP, memory_order_acq_rel) | WORK_SLEEP;
            if (!(left & ~WORK_SLEEP))
                return;
        }
        futex_wait(&w->left, left);
    }
}

/* ---- pool threads ---- */

static bool may_enter(const struct cpu_pool *p, uint32_t gate, uint32_t seen)
{
    return (gate & GATE_OPEN) && gate / GATE_SECTION != seen &&
           (gate & GATE_INSIDE) + 1 < atomic_load_explicit(&p->most, memory_order_relaxed);
}

/* Sleeps until the bell rings, unless there is something to enter. The order matters: first be counted as a
 * sleeper, then look at the gate. The caller opens the gate first and looks for sleepers then, so one of the
 * two sees the other. */
static void sleep_at_gate(struct cpu_pool *p, uint32_t seen)
{
    uint32_t bell = atomic_load(&p->bell);
    atomic_fetch_add(&p->sleepers, 1);
    if (!may_enter(p, atomic_load(&p->gate), seen) && !atomic_load(&p->quit))
        futex_wait(&p->bell, bell);
    atomic_fetch_sub(&p->sleepers, 1);
}

/* Waits for an open section other than `seen` and enters it. False: the pool is being freed. */
static bool enter(struct cpu_pool *p, uint32_t *seen)
{
    struct spin spin = { .limit_ns = p->spin_ns };
    for (;;) {
        uint32_t gate = atomic_load_explicit(&p->gate, memory_order_acquire);
        if (may_enter(p, gate, *seen)) {
            if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acq_rel,
                                                      memory_order_relaxed)) {
                *seen = gate / GATE_SECTION;
                return true;
            }
            continue;
        }
        if (atomic_load_explicit(&p->quit, memory_order_relaxed))
            return false;
        if (!spin_again(&spin)) {
            sleep_at_gate(p, *seen);
            spin = (struct spin){ .limit_ns = p->spin_ns };
        }
    }
}

static void leave(struct cpu_pool *p)
{
    uint32_t before = atomic_fetch_sub_explicit(&p->gate, 1, memory_order_acq_rel);
    if ((before & GATE_SLEEP) && (before & GATE_INSIDE) == 1)
        futex_wake(&p->gate, INT_MAX);
}

static void *thread_main(void *arg)
{
    struct start start = *(struct start *)arg;
    free(arg);
    uint32_t seen = 0;
    while (enter(start.pool, &seen)) {
        start.pool->fn(start.pool->arg, start.thread);
        leave(start.pool);
    }
    return NULL;
}

/* ---- the caller ---- */

static void close_section(struct cpu_pool *p)
{
    uint32_t gate = atomic_fetch_and_explicit(&p->gate, ~GATE_OPEN, memory_order_acq_rel);
    struct spin spin = { .limit_ns = p->spin_ns };
    while (gate & GATE_INSIDE) {
        if (!spin_again(&spin)) {
            gate = atomic_fetch_or_explicit(&p->gate, GATE_SLEEP, memory_order_acq_rel) | GATE_SLEEP;
            if (gate & GATE_INSIDE)
                futex_wait(&p->gate, gate);
        }
        gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
}

void cpu_pool_run(struct cpu_pool *p, uint32_t most, cpu_fn *fn, void *arg)
{
    if (most <= 1 || !p->n_started) {
        fn(arg, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->most, most, memory_order_relaxed);
    uint32_t section = atomic_load_explicit(&p->gate, memory_order_relaxed) / GATE_SECTION + 1;
    atomic_store(&p->gate, section * GATE_SECTION | GATE_OPEN);
    if (atomic_load(&p->sleepers)) {
        atomic_fetch_add(&p->bell, 1);
        futex_wake(&p->bell, most - 1);
    }
    fn(arg, 0);
    close_section(p);
}

/* Signals belong to the event thread. */
static int start_thread(struct cpu_pool *p, uint32_t thread)
{
    struct start *start = malloc(sizeof *start);
    if (!start)
        return -ENOMEM;
    *start = (struct start){ .pool = p, .thread = thread };

    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&p->threads[p->n_started], NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r) {
        free(start);
        return -r;
    }
    (void)pthread_setname_np(p->threads[p->n_started], "berth-cpu");
    p->n_started++;
    return 0;
}

static bool crowded(uint32_t threads)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return false; /* more than 1024 processors */
    return threads > (uint32_t)CPU_COUNT(&set);
}

int cpu_pool_new(uint32_t threads, struct cpu_pool **ret_pool)
{
    if (threads < 1 || threads > 256)
        return -EINVAL;
    struct cpu_pool *p = cpu_alloc_aligned(sizeof *p);
    if (!p)
        return -ENOMEM;
    int r = -ENOMEM;
    p->threads = calloc(threads, sizeof *p->threads);
    if (!p->threads)
        goto fail;
    p->spin_ns = crowded(threads) ? SPIN_CROWDED_NS : SPIN_NS;
    for (uint32_t i = 1; i < threads; i++) {
        r = start_thread(p, i);
        if (r < 0)
            goto fail;
    }
    *ret_pool = p;
    return 0;

fail:
    cpu_pool_free(p);
    return r;
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    atomic_fetch_add(&p->bell, 1);
    futex_wake(&p->bell, INT_MAX);
    for (uint32_t i = 0; i < p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p);
}
