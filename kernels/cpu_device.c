/* Cpu device: opening, what the processor can do, plain memory, and the table ops_cpu.
 *
 * Operations run at once, so sync() has nothing to wait for; it reports the first failure (memory that could
 * not be had). Thread: one device is driven by one thread at a time. Must not know: requests, sessions, model
 * names, config keys. Tests: tests/kernels/test_pool.c */
#include "cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const isa_names[] = {
    [CPU_PORTABLE] = "portable", [CPU_AVX2] = "avx2", [CPU_AVX512] = "avx512", [CPU_AMX] = "amx"
};
static const char *const isa_texts[] = {
    [CPU_PORTABLE] = "portable", [CPU_AVX2] = "avx2", [CPU_AVX512] = "avx512 vnni", [CPU_AMX] = "amx int8"
};

#if defined(__x86_64__)
/* Tiles need the system's leave: their 8 KiB of state are not saved for processes that did not ask. */
static bool amx_allowed(void)
{
    const long ask_permission = 0x1023, tile_data = 18;
    uint32_t a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    const uint32_t tile_and_int8 = 1u << 24 | 1u << 25;
    return (d & tile_and_int8) == tile_and_int8 && syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}

/* Not among the names that clang's __builtin_cpu_supports knows. */
static bool has_f16c(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
}

static enum cpu_isa best_isa(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return CPU_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vnni"))
        return CPU_AVX2;
    return amx_allowed() ? CPU_AMX : CPU_AVX512;
}

static bool has_avx_vnni(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
#else
static enum cpu_isa best_isa(void)
{
    return CPU_PORTABLE;
}

static bool has_avx_vnni(void)
{
    return false;
}
#endif

static int choose_isa(const char *name, enum cpu_isa *ret_isa, char *err, size_t errlen)
{
    enum cpu_isa best = best_isa();
    if (!name || !strcmp(name, "auto")) {
        *ret_isa = best;
        return 0;
    }
    for (enum cpu_isa i = CPU_PORTABLE; i <= CPU_AMX; i++) {
        if (strcmp(name, isa_names[i]))
            continue;
        if (i > best) {
            snprintf(err, errlen, "instruction set %s: this processor has no more than %s", name,
                     isa_names[best]);
            return -ENOTSUP;
        }
        *ret_isa = i;
        return 0;
    }
    snprintf(err, errlen, "instruction set \"%s\" is none of auto, avx512, avx2, portable, amx", name);
    return -EINVAL;
}

static void cpu_close(struct ops_dev *d)
{
    if (!d)
        return;
    cpu_pool_free(d->pool);
    for (uint32_t i = 0; d->scratch && i < d->threads; i++)
        free(d->scratch[i].at);
    free(d->scratch);
    free(d->shared.at);
    cpu_chunk_drop(d->filling);
    free(d);
}

static int cpu_open(const struct ops_open *how, struct ops_dev **ret_dev, char *err, size_t errlen)
{
    if (how->threads < 1 || how->threads > 256) {
        snprintf(err, errlen, "%u threads: allowed are 1 to 256", how->threads);
        return -EINVAL;
    }
    enum cpu_isa isa;
    int r = choose_isa(how->isa, &isa, err, errlen);
    if (r < 0)
        return r;

    struct ops_dev *d = calloc(1, sizeof *d);
    if (!d)
        goto no_memory;
    d->isa = isa;
    d->avx_vnni = has_avx_vnni();
    d->activations = how->activations;
    d->threads = how->threads;
    char on[80];
    cpu_part_keep(how->part, how->parts, on, sizeof on);
    snprintf(d->describe, sizeof d->describe, "%s, %u thread%s%s", isa_texts[isa], d->threads,
             d->threads == 1 ? "" : "s", on);
    d->scratch = calloc(d->threads, sizeof *d->scratch);
    if (!d->scratch)
        goto no_memory;
    r = cpu_pool_new(d->threads, &d->pool);
    if (r < 0) {
        snprintf(err, errlen, "cannot start %u threads: %s", d->threads, strerror(-r));
        cpu_close(d);
        return r;
    }
    *ret_dev = d;
    return 0;

no_memory:
    snprintf(err, errlen, "no memory for the CPU device");
    cpu_close(d);
    return -ENOMEM;
}

static const char *cpu_describe(const struct ops_dev *d)
{
    return d->describe;
}

static const char *cpu_arithmetic(const struct ops_dev *d)
{
    static const char *const texts[2][3] = {
        { "vector, int8 activations", "vector, int16 activations", "vector, f32 activations" },
        { "portable, int8 activations", "portable, int16 activations", "portable, f32 activations" },
    };
    return texts[d->isa == CPU_PORTABLE][d->activations];
}

/* ---- memory ---- */

void *cpu_alloc_aligned(size_t bytes)
{
    if (bytes > SIZE_MAX - 63)
        return NULL;
    size_t rounded = bytes ? (bytes + 63) / 64 * 64 : 64;
    void *at = aligned_alloc(64, rounded);
    if (at)
        memset(at, 0, rounded);
    return at;
}

/* A quarter more than asked, so that a growing context does not ask at every token. */
static int memory_grow(struct ops_dev *d, struct cpu_memory *m, size_t bytes)
{
    if (bytes <= m->size)
        return 0;
    size_t more = bytes <= SIZE_MAX / 2 ? bytes + bytes / 4 : bytes;
    void *at = cpu_alloc_aligned(more);
    if (!at) {
        cpu_fail(d, -ENOMEM, "no memory for working space");
        return -ENOMEM;
    }
    free(m->at);
    *m = (struct cpu_memory){ .at = at, .size = more };
    return 0;
}

int cpu_scratch_reserve(struct ops_dev *d, size_t bytes)
{
    for (uint32_t i = 0; i < d->threads; i++)
        if (memory_grow(d, &d->scratch[i], bytes) < 0)
            return -ENOMEM;
    return 0;
}

void *cpu_shared(struct ops_dev *d, size_t bytes)
{
    return memory_grow(d, &d->shared, bytes) < 0 ? NULL : d->shared.at;
}

void cpu_fail(struct ops_dev *d, int error, const char *what)
{
    if (d->error)
        return;
    d->error = error;
    snprintf(d->error_text, sizeof d->error_text, "%s", what);
}

static void *cpu_alloc(struct ops_dev *d, size_t bytes)
{
    (void)d;
    return cpu_alloc_aligned(bytes);
}

static void cpu_release(struct ops_dev *d, void *memory)
{
    (void)d;
    free(memory);
}

static size_t cpu_memory_free(struct ops_dev *d)
{
    (void)d;
    return (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

static void cpu_copy(struct ops_dev *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    if (bytes)
        memcpy(to, from, bytes);
}

static int cpu_sync(struct ops_dev *d, char *err, size_t errlen)
{
    int r = d->error;
    if (r < 0)
        snprintf(err, errlen, "%s", d->error_text);
    d->error = 0;
    return r;
}

const struct ops ops_cpu = {
    .name = "cpu",
    .plain_memory = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .arithmetic = cpu_arithmetic,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .memory_free = cpu_memory_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .sync = cpu_sync,
    .weight_new = cpu_weight_new,
    .weight_free = cpu_weight_free,
    .weight_bytes = cpu_weight_bytes,
    .kv_new = cpu_kv_new,
    .kv_free = cpu_kv_free,
    .kv_block_bytes = cpu_kv_block_bytes,
    .kv_copy = cpu_kv_copy,
    .kv_get = cpu_kv_get,
    .kv_put = cpu_kv_put,
    .embed = cpu_embed,
    .matmul = cpu_matmul,
    .attention = cpu_attention,
    .gather = cpu_gather,
    .norm_add = cpu_norm_add,
};
