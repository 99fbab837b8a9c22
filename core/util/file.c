/* File: see file.h. */
#include "util/file.h"
#include "util/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether there is something to read, an end included, before the time is over. */
static bool wait_readable(int fd, uint64_t until_ns)
{
    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        uint64_t now = clock_now_ns();
        if (now >= until_ns)
            return false;
        int n = poll(&p, 1, (int)((until_ns - now) / NS_PER_MS + 1));
        if (n > 0 || (n < 0 && errno != EINTR))
            return true; /* what is wrong with it, read tells */
    }
}

/* 0 at the end of the file. */
static int read_all(int fd, size_t max, struct buf *text)
{
    uint64_t until = clock_now_ns() + FILE_WAIT_MS * NS_PER_MS;
    char part[4096];
    for (;;) {
        ssize_t n = read(fd, part, sizeof part);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        if (n < 0 && errno == EAGAIN && !wait_readable(fd, until))
            return -ETIMEDOUT;
        if (n < 0)
            continue;
        if ((size_t)n > max)
            return -EFBIG;
        max -= (size_t)n;
        buf_append(text, part, (size_t)n);
        if (text->failed)
            return -ENOMEM;
    }
}

int file_read(const char *path, size_t max, struct buf *ret_text, char *err, size_t errlen)
{
    struct stat st;
    /* Opening does not wait for somebody to write to a pipe of that name, either. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r = 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        r = -errno;
    else if (S_ISDIR(st.st_mode))
        r = -EISDIR;
    else
        r = read_all(fd, max, ret_text);
    if (fd >= 0)
        close(fd);
    if (r == -EFBIG)
        snprintf(err, errlen, "%s: longer than %zu bytes", path, max);
    else if (r == -EISDIR)
        snprintf(err, errlen, "%s: is a directory where a file is wanted", path);
    else if (r == -ETIMEDOUT)
        snprintf(err, errlen, "%s: a pipe whose writer was not done within %u s", path, FILE_WAIT_MS / 1000);
    else if (r < 0)
        snprintf(err, errlen, "%s: %s", path, r == -ENOMEM ? "out of memory" : strerror(-r));
    return r;
}
