/* Starved: makes of berth a program in which a chosen allocation fails. Linked with --wrap around malloc and
 * its kin (tests/meson.build), which takes those of berth's own code, and jansson's through jsonx_watch. How
 * many more succeed before one fails is read from the first of two numbers in the file that BERTH_STARVE
 * names, which is mapped: a test writes it while the server runs; 0 or less: none fails. The second counts
 * those that failed. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);

struct ration {
    _Atomic int64_t left, failed;
};

static struct ration unlimited, *ration = &unlimited;

__attribute__((constructor)) static void map_ration(void)
{
    const char *path = getenv("BERTH_STARVE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *m = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ration, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (m != MAP_FAILED)
        ration = m;
}

static bool fails(void)
{
    if (atomic_load(&ration->left) <= 0 || atomic_fetch_sub(&ration->left, 1) != 1)
        return false;
    atomic_fetch_add(&ration->failed, 1);
    errno = ENOMEM;
    return true;
}

/* jansson 2.14 writes past the buffer in which it reads a word, a string or a number when that cannot grow.
 * It doubles it from 16 bytes on, so blocks of such sizes are left to whoever calls malloc. */
static bool may_be_janssons_buffer(size_t n)
{
    return n >= 32 && (n & (n - 1)) == 0;
}

void *__wrap_malloc(size_t n)
{
    return !may_be_janssons_buffer(n) && fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t n)
{
    return fails() ? NULL : __real_strndup(text, n);
}
