/* Cpu: what the files of the CPU device share: the device, its pool of threads, scratch memory, and the
 * functions the table ops_cpu is made of. Private to kernels/: nobody else includes this.
 *
 * Thread: the stage thread drives the device. Between cpu_parallel's start and end the pool's threads run the
 * function they were given; they touch nothing of the device but what that function hands them. Must not
 * know: sessions, model names, files.
 *
 * Sections are dynamic, and that is a rule, not an optimisation: a pool thread joins a section when it gets
 * to it, or not at all when the caller finished first. So no piece of work belongs to a thread, no thread may
 * wait for another to arrive, and a thread that the system keeps from running holds up at most the one piece
 * it has in hand. Phases inside a section are separated by cpu_work_wait: it waits for pieces to be complete,
 * not for threads. Tests: tests/kernels/test_pool.c, tests/kernels/pool_stress.c (under TSan) */
#pragma once
#include "ops.h"

#include <stdatomic.h>

/* Ordered: an instruction set includes those before it, so `isa >= CPU_AVX512` asks for AVX-512. */
enum cpu_isa {
    CPU_PORTABLE,
    CPU_AVX2,   /* avx2, fma, f16c */
    CPU_AVX512, /* f, bw, dq, vl and vnni */
    CPU_AMX,    /* tile and int8, allowed by the system to this process */
};

struct cpu_pool;
struct cpu_chunk;

struct cpu_memory {
    void *at;
    size_t size;
};

struct ops_dev {
    enum cpu_isa isa;
    bool avx_vnni; /* 256-bit vpdpbusd without AVX-512 */
    enum ops_activations activations;
    uint32_t threads; /* the caller included */
    struct cpu_pool *pool;
    struct cpu_memory *scratch; /* one per thread */
    struct cpu_memory shared;
    struct cpu_chunk *filling; /* where the next weight goes */
    int error;                 /* the first failure since the last sync */
    char error_text[160];
    char describe[128];
};

/* ---- processors (cpu_part.c) ---- */

/* Part `part` of n things in `parts` parts of almost equal size: which comes first, and how many. */
void cpu_part_of(uint32_t n, uint32_t part, uint32_t parts, uint32_t *ret_first, uint32_t *ret_count);
/* Keeps the calling thread, and those it starts from now on, to its part of the processors it may use. text
 * says which (" on processors 0-1,4"); empty, and nothing done, when there are fewer processors than parts or
 * the system does not let us. */
void cpu_part_keep(uint32_t part, uint32_t parts, char *text, size_t len);

/* ---- pool (cpu_pool.c) ---- */

/* thread: 0 (the caller) .. d->threads - 1; each thread runs a section at most once. */
typedef void cpu_fn(void *arg, uint32_t thread);

int cpu_pool_new(uint32_t threads, struct cpu_pool **ret_pool);
void cpu_pool_free(struct cpu_pool *p);
/* Runs fn on the calling thread and on those pool threads that arrive before it is done, together at most
 * `most`. Returns when all that entered have left. most <= 1 is a plain call. Not nested. */
void cpu_pool_run(struct cpu_pool *p, uint32_t most, cpu_fn *fn, void *arg);

/* The same for a device; `most` is usually the number of pieces. */
static inline void cpu_parallel(struct ops_dev *d, uint32_t most, cpu_fn *fn, void *arg)
{
    cpu_pool_run(d->pool, most, fn, arg);
}

/* Pieces 0 .. total-1 of one phase, taken in order by whoever is free. Lives in the section's arg. */
struct cpu_work {
    _Alignas(64) _Atomic uint32_t next;
    uint32_t total;
    _Alignas(64) _Atomic uint32_t left; /* pieces not complete; the top bit: somebody sleeps on it */
};

void cpu_work_init(struct cpu_work *w, uint32_t pieces);
static inline bool cpu_work_take(struct cpu_work *w, uint32_t *ret_piece)
{
    /* Looking first keeps `next` from running on (and around) when it is asked again and again. */
    if (atomic_load_explicit(&w->next, memory_order_relaxed) >= w->total)
        return false;
    *ret_piece = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
    return *ret_piece < w->total;
}
/* Only where somebody waits: one per piece taken, after its results are written. */
void cpu_work_finish(struct cpu_work *w);
/* Until every piece is complete; their results are then visible here. Take all that is left before waiting.
 */
void cpu_work_wait(struct cpu_work *w);

/* ---- memory (cpu_device.c); all 64-byte aligned, contents not kept when it grows ---- */

/* Makes every thread's scratch at least `bytes`, before a section. -ENOMEM is also recorded for sync(). */
int cpu_scratch_reserve(struct ops_dev *d, size_t bytes);
static inline void *cpu_scratch(const struct ops_dev *d, uint32_t thread)
{
    return d->scratch[thread].at;
}
/* One piece of memory for the operation that runs; NULL (and recorded) when there is none. */
void *cpu_shared(struct ops_dev *d, size_t bytes);
/* Records the first failure for sync(). */
void cpu_fail(struct ops_dev *d, int error, const char *what);
/* For what outlives an operation: zeroed, freed with free(). NULL when there is none. */
void *cpu_alloc_aligned(size_t bytes);

/* ---- weights' memory (cpu_arena.c): zeroed, 64-byte aligned, NULL when there is none ---- */

void *cpu_arena_take(struct ops_dev *d, size_t bytes, struct cpu_chunk **ret_chunk);
/* One holder less: a weight that goes, or the device. */
void cpu_chunk_drop(struct cpu_chunk *c);

/* ---- the table's functions ---- */

/* cpu_weight.c, cpu_matmul.c, cpu_embed.c */
int cpu_weight_new(struct ops_dev *d, const struct ops_tensor *t, struct ops_weight **ret_weight, char *err,
                   size_t errlen);
void cpu_weight_free(struct ops_weight *w);
size_t cpu_weight_bytes(const struct ops_weight *w);
void cpu_matmul(struct ops_dev *d, const struct ops_matmul *m);
void cpu_norm_add(struct ops_dev *d, const float *x, const float *norm, float eps, uint32_t n, uint32_t cols,
                  float *out);
void cpu_embed(struct ops_dev *d, const struct ops_weight *w, const int32_t *ids, uint32_t n, float scale,
               float *out);
void cpu_gather(struct ops_dev *d, const float *x, const uint32_t *idx, uint32_t n, uint32_t cols,
                float *out);

/* cpu_kv.c, cpu_attention.c */
int cpu_kv_new(struct ops_dev *d, const struct ops_kv_shape *shape, struct ops_kv **ret_kv, char *err,
               size_t errlen);
void cpu_kv_free(struct ops_kv *kv);
size_t cpu_kv_block_bytes(const struct ops_kv_shape *shape);
void cpu_kv_copy(struct ops_kv *kv, uint32_t to, uint32_t from, uint32_t tokens);
void cpu_kv_get(struct ops_kv *kv, uint32_t block, uint32_t tokens, void *to);
void cpu_kv_put(struct ops_kv *kv, uint32_t block, uint32_t tokens, const void *from);
void cpu_attention(struct ops_dev *d, const struct ops_attention *a);
