/* Object: see object.h. */
#include "policy/object.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif
#define NAME "berth-policy"
#define TRIES 64 /* of descriptors whose name the dynamic linker still knows */

struct policy_object {
    int fd;
    void *handle;
};

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

/* Whether the system lets code run from this file: a page of it is mapped and let go. */
static bool may_execute(int fd)
{
    void *page = mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (page == MAP_FAILED)
        return false;
    munmap(page, 1);
    return true;
}

/* A descriptor, or a negative errno. */
static int memory_file(const void *bytes, size_t len)
{
    int fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* a kernel from before there was MFD_EXEC */
        fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    int r = write_all(fd, bytes, len);
    if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        r = -errno;
    if (r == 0 && !may_execute(fd))
        r = -EACCES;
    if (r < 0) {
        close(fd);
        return r;
    }
    return fd;
}

/* The same without sealing: a file that has no name any more, open for reading only. */
static int private_file(const char *dir, const void *bytes, size_t len)
{
    char path[4096], link[64];
    if (!dir)
        dir = getenv("TMPDIR");
    if (!dir || !*dir)
        dir = "/tmp";
    if ((size_t)snprintf(path, sizeof path, "%s/" NAME "-XXXXXX", dir) >= sizeof path)
        return -ENAMETOOLONG;
    int writer = mkostemp(path, O_CLOEXEC);
    if (writer < 0)
        return -errno;
    unlink(path);
    int fd = write_all(writer, bytes, len);
    if (fd == 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", writer);
        fd = open(link, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            fd = -errno;
    }
    close(writer);
    if (fd >= 0 && !may_execute(fd)) {
        close(fd);
        return -EACCES;
    }
    return fd;
}

int policy_object_new(const void *bytes, size_t len, const struct policy_object_options *options,
                      struct policy_object **ret_object, char *err, size_t errlen)
{
    int fd = options->no_memfd ? -EACCES : memory_file(bytes, len), first = fd;
    if (fd < 0)
        fd = private_file(options->private_dir, bytes, len);
    if (fd < 0) {
        snprintf(err, errlen, "no file that code may run from: in memory: %s; in %s: %s", strerror(-first),
                 options->private_dir ? options->private_dir : "$TMPDIR or /tmp", strerror(-fd));
        return fd;
    }
    struct policy_object *o = calloc(1, sizeof *o);
    if (!o) {
        snprintf(err, errlen, "out of memory");
        close(fd);
        return -ENOMEM;
    }
    o->fd = fd;
    *ret_object = o;
    return 0;
}

void policy_object_free(struct policy_object *o)
{
    if (!o)
        return;
    if (o->handle)
        dlclose(o->handle);
    close(o->fd);
    free(o);
}

int policy_object_fd(const struct policy_object *o)
{
    return o->fd;
}

/* An object that cannot be unloaded keeps its name: a descriptor that has such a number is exchanged. */
static int take_fresh_name(struct policy_object *o, char name[64])
{
    for (int i = 0; i < TRIES; i++) {
        snprintf(name, 64, "/proc/self/fd/%d", o->fd);
        void *old = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
        if (!old)
            return 0;
        dlclose(old);
        int fd = fcntl(o->fd, F_DUPFD_CLOEXEC, o->fd + 1);
        if (fd < 0)
            return -errno;
        close(o->fd);
        o->fd = fd;
    }
    return -EMFILE;
}

int policy_object_open(struct policy_object *o, char *err, size_t errlen)
{
    char name[64];
    if (take_fresh_name(o, name) < 0) {
        snprintf(err, errlen, "no descriptor is left for it");
        return -ENOEXEC;
    }
    o->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (o->handle)
        return 0;
    const char *text = dlerror();
    size_t len = strlen(name);
    if (!text)
        text = "dlopen failed";
    if (strncmp(text, name, len) == 0 && strncmp(text + len, ": ", 2) == 0)
        text += len + 2;
    snprintf(err, errlen, "%s", text);
    return -ENOEXEC;
}

const void *policy_object_symbol(const struct policy_object *o, const char *name)
{
    return dlsym(o->handle, name);
}
