/* Hammers the pool of threads: sections of few and many pieces, phases, fewer threads than there are, idle
 * gaps, opening and freeing; every piece must run exactly once and be seen by who waits for it. A plain
 * program, because Criterion does not start under ThreadSanitizer. Exit 0: well; prints what went wrong
 * otherwise. With an argument it measures instead: pool_stress bench [threads] */
#include "kernels/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECES_MOST = 64 };

struct section {
    struct cpu_work first, second;
    uint32_t written[PIECES_MOST]; /* plain memory: the pool must order it */
    uint32_t sums[PIECES_MOST];
    uint32_t value;
    _Atomic uint32_t inside, most_inside, bad;
};

static void count_inside(struct section *s)
{
    uint32_t now = atomic_fetch_add(&s->inside, 1) + 1, most = atomic_load(&s->most_inside);
    while (now > most && !atomic_compare_exchange_weak(&s->most_inside, &most, now))
        ;
}

/* Second phase: each piece adds up everything the first phase wrote. */
static void two_phases(void *arg, uint32_t thread)
{
    struct section *s = arg;
    (void)thread;
    count_inside(s);
    uint32_t piece;
    while (cpu_work_take(&s->first, &piece)) {
        s->written[piece] += s->value + piece;
        cpu_work_finish(&s->first);
    }
    cpu_work_wait(&s->first);
    while (cpu_work_take(&s->second, &piece)) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < s->first.total; i++)
            sum += s->written[i];
        s->sums[piece] = sum;
    }
    atomic_fetch_sub(&s->inside, 1);
}

static bool run_section(struct cpu_pool *p, uint32_t n, uint32_t most, uint32_t value)
{
    struct section s = { .value = value };
    cpu_work_init(&s.first, n);
    cpu_work_init(&s.second, n);
    cpu_pool_run(p, most, two_phases, &s);
    uint32_t expected = value * n + n * (n - 1) / 2;
    for (uint32_t i = 0; i < n; i++)
        if (s.written[i] != value + i || s.sums[i] != expected) {
            printf("piece %u of %u: wrote %u for %u, summed %u for %u\n", i, n, s.written[i], value + i,
                   s.sums[i], expected);
            return false;
        }
    if (s.inside || s.most_inside > (most ? most : 1)) {
        printf("%u threads inside at the end, %u at most, allowed %u\n", s.inside, s.most_inside, most);
        return false;
    }
    return true;
}

static void idle(long ns)
{
    struct timespec gap = { .tv_nsec = ns };
    nanosleep(&gap, NULL);
}

static bool stress(uint32_t threads, uint32_t sections)
{
    struct cpu_pool *p;
    if (cpu_pool_new(threads, &p) < 0) {
        printf("no pool of %u threads\n", threads);
        return false;
    }
    bool well = true;
    uint32_t state = threads;
    for (uint32_t i = 0; well && i < sections; i++) {
        state = state * 1664525u + 1013904223u;
        well = run_section(p, 1 + (state >> 16) % PIECES_MOST, (state >> 8) % (threads + 2), i);
        /* Long enough for the threads to fall asleep, and about as long as they spin. */
        if (state >> 24 < 3)
            idle(state >> 24 == 0 ? 200000 : 45000);
    }
    cpu_pool_free(p);
    return well;
}

/* ---- measuring ---- */

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

struct load {
    struct cpu_work work;
    uint32_t turns;
    _Atomic uint64_t by_thread[256];
};

static void spin_pieces(void *arg, uint32_t thread)
{
    struct load *l = arg;
    for (uint32_t piece; cpu_work_take(&l->work, &piece);) {
        for (volatile uint32_t i = 0; i < l->turns; i++)
            ;
        atomic_fetch_add_explicit(&l->by_thread[thread], 1, memory_order_relaxed);
    }
}

/* Sections of `pieces` pieces for about `seconds`; prints what a section takes. */
static double measure(struct cpu_pool *p, uint32_t threads, uint32_t pieces, uint32_t turns, double seconds)
{
    static struct load l;
    memset(&l, 0, sizeof l);
    l.turns = turns;
    double start = now_ns(), end = start;
    uint64_t sections = 0;
    while (end - start < seconds * 1e9) {
        for (int i = 0; i < 50; i++, sections++) {
            cpu_work_init(&l.work, pieces);
            cpu_pool_run(p, threads, spin_pieces, &l);
        }
        end = now_ns();
    }
    double each = (end - start) / (double)sections;
    printf("%u threads, %3u pieces of %6u turns: %9.0f ns a section, caller did %2.0f%% of the pieces\n",
           threads, pieces, turns, each, 100.0 * (double)l.by_thread[0] / (double)(sections * pieces));
    return each;
}

static int bench(uint32_t threads)
{
    struct cpu_pool *p;
    if (cpu_pool_new(threads, &p) < 0)
        return 1;
    measure(p, threads, 2, 0, 0.3);
    measure(p, 1, 2, 0, 0.3);
    static const uint32_t turns[] = { 1000, 10000, 100000 };
    for (int i = 0; i < 3; i++) {
        double one = measure(p, 1, 16, turns[i] / 16, 1), all = measure(p, threads, 16, turns[i] / 16, 2);
        printf("  %.2f times one thread\n", one / all);
    }
    cpu_pool_free(p);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "bench"))
        return bench(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2);
    bool well = true;
    for (uint32_t threads = 1; threads <= 5; threads++)
        well = stress(threads, 4000) && well;
    for (uint32_t i = 0; i < 50; i++)
        well = stress(1 + i % 4, i % 3) && well;
    return well ? 0 : 1;
}
