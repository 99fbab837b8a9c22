/* The CPU device and its pool of threads: what opening accepts, memory, and that a section's pieces are each
 * run once. tests/kernels/pool_stress.c does the hammering, under ThreadSanitizer too. */
#include "kernels/cpu.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

/* AddressSanitizer ends the program at an allocation no machine has, unless told that NULL is an answer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static struct ops_dev *open_threads(uint32_t threads)
{
    struct ops_open how = { .isa = "auto", .threads = threads };
    struct ops_dev *d = NULL;
    char err[200] = "";
    cr_assert_eq(ops_cpu.open(&how, &d, err, sizeof err), 0, "%s", err);
    return d;
}

Test(device, says_what_it_runs)
{
    struct ops_open how = { .isa = "portable", .threads = 1 };
    struct ops_dev *d;
    char err[200];
    cr_assert_eq(ops_cpu.open(&how, &d, err, sizeof err), 0);
    cr_expect_str_eq(ops_cpu.describe(d), "portable, 1 thread");
    ops_cpu.close(d);
    how.threads = 3;
    cr_assert_eq(ops_cpu.open(&how, &d, err, sizeof err), 0);
    cr_expect_str_eq(ops_cpu.describe(d), "portable, 3 threads");
    ops_cpu.close(d);
}

Test(device, parts_are_of_almost_equal_size_and_cover_everything)
{
    for (uint32_t n = 1; n <= 70; n++)
        for (uint32_t parts = 1; parts <= n; parts++) {
            uint32_t next = 0;
            for (uint32_t p = 0; p < parts; p++) {
                uint32_t first, count;
                cr_assert_eq((cpu_part_of(n, p, parts, &first, &count), first), next);
                cr_assert(count == n / parts || count == n / parts + 1, "%u of %u", count, n);
                next = first + count;
            }
            cr_assert_eq(next, n);
        }
}

/* In a process of its own (Criterion), whose threads may be bound at will. */
Test(device, keeps_to_its_part_of_the_processors)
{
    cpu_set_t all, own, seen;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    uint32_t n = (uint32_t)CPU_COUNT(&all);
    struct ops_open how = { .isa = "auto", .threads = 2, .parts = n };
    struct ops_dev *d;
    char err[200] = "";
    CPU_ZERO(&seen);
    for (how.part = 0; how.part < n && n > 1; how.part++) {
        cr_assert_eq(ops_cpu.open(&how, &d, err, sizeof err), 0, "%s", err);
        cr_assert_eq(sched_getaffinity(0, sizeof own, &own), 0);
        cr_expect_eq(CPU_COUNT(&own), 1);
        cr_expect(strstr(ops_cpu.describe(d), "2 threads on processor ") != NULL, "%s", ops_cpu.describe(d));
        CPU_OR(&seen, &seen, &own);
        ops_cpu.close(d);
        cr_assert_eq(sched_setaffinity(0, sizeof all, &all), 0);
    }
    cr_expect(n == 1 || CPU_EQUAL(&seen, &all), "every processor belongs to one part");
    /* More parts than processors: everybody may run everywhere. */
    how.parts = n + 1;
    how.part = 0;
    cr_assert_eq(ops_cpu.open(&how, &d, err, sizeof err), 0, "%s", err);
    cr_assert_eq(sched_getaffinity(0, sizeof own, &own), 0);
    cr_expect(CPU_EQUAL(&own, &all));
    cr_expect_null(strstr(ops_cpu.describe(d), "processor"));
    ops_cpu.close(d);
}

Test(device, refuses_what_it_does_not_know_by_name)
{
    struct ops_open how = { .isa = "sse9", .threads = 1 };
    struct ops_dev *d = NULL;
    char err[200] = "";
    cr_expect_eq(ops_cpu.open(&how, &d, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "sse9") && strstr(err, "portable"), "%s", err);
    how = (struct ops_open){ .isa = "auto", .threads = 0 };
    cr_expect_eq(ops_cpu.open(&how, &d, err, sizeof err), -EINVAL);
    how.threads = 257;
    cr_expect_eq(ops_cpu.open(&how, &d, err, sizeof err), -EINVAL);
    cr_expect(strstr(err, "257") && strstr(err, "256"), "%s", err);
    cr_expect_null(d);
}

Test(device, memory_is_zeroed_and_aligned)
{
    struct ops_dev *d = open_threads(1);
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 100000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = ops_cpu.alloc(d, sizes[i]);
        cr_assert_not_null(p);
        cr_expect_eq((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            cr_assert_eq(p[k], 0);
        ops_cpu.release(d, p);
    }
    cr_expect_null(ops_cpu.alloc(d, SIZE_MAX));
    ops_cpu.close(d);
}

Test(device, sync_reports_the_first_failure_once)
{
    struct ops_dev *d = open_threads(2);
    char err[200] = "";
    cr_expect_eq(ops_cpu.sync(d, err, sizeof err), 0);
    cr_expect_eq(cpu_scratch_reserve(d, SIZE_MAX / 2), -ENOMEM);
    cpu_fail(d, -EIO, "a later one");
    cr_expect_eq(ops_cpu.sync(d, err, sizeof err), -ENOMEM);
    cr_expect(strstr(err, "memory"), "%s", err);
    cr_expect_eq(ops_cpu.sync(d, err, sizeof err), 0);
    ops_cpu.close(d);
}

Test(device, scratch_grows_for_every_thread)
{
    struct ops_dev *d = open_threads(3);
    for (size_t bytes = 64; bytes < 1u << 20; bytes *= 8) {
        cr_assert_eq(cpu_scratch_reserve(d, bytes), 0);
        for (uint32_t t = 0; t < 3; t++) {
            cr_expect_eq((uintptr_t)cpu_scratch(d, t) % 64, 0);
            memset(cpu_scratch(d, t), 0xaa, bytes);
        }
        unsigned char *shared = cpu_shared(d, bytes);
        cr_assert_not_null(shared);
        memset(shared, 0x55, bytes);
        cr_expect_eq(*(unsigned char *)cpu_scratch(d, 2), 0xaa);
    }
    ops_cpu.close(d);
}

struct counting {
    struct cpu_work work;
    _Atomic uint32_t runs[100];
    _Atomic uint32_t threads[8]; /* times each thread ran the section */
};

static void count_pieces(void *arg, uint32_t thread)
{
    struct counting *c = arg;
    atomic_fetch_add(&c->threads[thread], 1);
    for (uint32_t piece; cpu_work_take(&c->work, &piece);)
        atomic_fetch_add(&c->runs[piece], 1);
}

Test(pool, every_piece_runs_once_and_every_thread_at_most_once)
{
    for (uint32_t threads = 1; threads <= 8; threads++) {
        struct ops_dev *d = open_threads(threads);
        for (int round = 0; round < 200; round++) {
            struct counting c = { 0 };
            cpu_work_init(&c.work, 100);
            cpu_parallel(d, 100, count_pieces, &c);
            for (int i = 0; i < 100; i++)
                cr_assert_eq(c.runs[i], 1, "piece %d", i);
            cr_assert_eq(c.threads[0], 1);
            for (uint32_t t = 1; t < 8; t++)
                cr_assert_leq(c.threads[t], t < threads ? 1 : 0);
        }
        ops_cpu.close(d);
    }
}

struct meeting {
    struct cpu_work arrive;
    _Atomic uint32_t here;
};

/* Holds its piece until a second thread has one too: ends only if the pool really joins. */
static void meet(void *arg, uint32_t thread)
{
    struct meeting *m = arg;
    (void)thread;
    for (uint32_t piece; cpu_work_take(&m->arrive, &piece);) {
        atomic_fetch_add(&m->here, 1);
        while (atomic_load(&m->here) < 2)
            ;
        cpu_work_finish(&m->arrive);
    }
    cpu_work_wait(&m->arrive);
}

Test(pool, threads_join_also_after_they_fell_asleep, .timeout = 20)
{
    struct ops_dev *d = open_threads(2);
    for (int round = 0; round < 20; round++) {
        struct meeting m = { 0 };
        cpu_work_init(&m.arrive, 2);
        cpu_parallel(d, 2, meet, &m);
        cr_expect_eq(m.here, 2);
        /* Alone, and long enough for the other thread to fall asleep. */
        struct counting c = { 0 };
        for (volatile uint32_t i = 0; i < 200000; i++)
            ;
        cpu_work_init(&c.work, 100);
        cpu_parallel(d, 1, count_pieces, &c);
        cr_expect_eq(c.runs[99], 1);
    }
    ops_cpu.close(d);
}
