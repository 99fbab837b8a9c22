/* Log: one formatted line, cleaned of control characters, in one write(2) to standard error.
 * Thread: any. Must not know: who logs or why. Tests: tests/unit/test_util.c */
#include "util/log.h"

#include "util/clock.h"
#include "util/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 8192 };

static const char *const level_names[] = { "debug", "info", "warn", "error" };
static _Atomic int current_level = LOG_INFO;

void log_level_set(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum log_level log_level_get(void)
{
    return (enum log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

int log_level_parse(const char *text, enum log_level *ret_level)
{
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

static size_t put_head(char *dst, size_t dstlen, enum log_level level, const char *event)
{
    uint64_t now = clock_wall_ns();
    time_t seconds = (time_t)(now / NS_PER_S);
    struct tm tm;
    char stamp[32];
    int n;

    gmtime_r(&seconds, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    n = snprintf(dst, dstlen, "%s.%03uZ %s %s", stamp, (unsigned)(now % NS_PER_S / NS_PER_MS),
                 level_names[level], event);
    return n < 0 ? 0 : (size_t)n < dstlen ? (size_t)n : dstlen - 1;
}

/* How a control character, or a byte that is no UTF-8, is written; NULL for a character of `len` bytes as it
 * is. */
static const char *escape_of(unsigned char c, unsigned len, char tmp[8])
{
    if (len && c >= 0x20 && c != 0x7F)
        return NULL;
    if (c == '\n')
        return "\\n";
    if (c == '\r')
        return "\\r";
    if (c == '\t')
        return "\\t";
    snprintf(tmp, 8, "\\x%02x", c);
    return tmp;
}

/* Copies src cleaned into dst, whole characters only, and closes the line. Returns its length. */
static size_t put_clean_line(char *dst, size_t dstlen, const char *src)
{
    size_t n = 0, left = strlen(src);
    char tmp[8];

    left -= utf8_incomplete_tail(src, left); /* it may have been cut */
    while (left) {
        uint32_t cp;
        unsigned len = utf8_decode(src, left, &cp);
        const char *escape = escape_of((unsigned char)*src, len, tmp);
        size_t add = escape ? strlen(escape) : len;

        if (n + add > dstlen - 1)
            break;
        memcpy(dst + n, escape ? escape : src, add);
        n += add;
        src += len ? len : 1;
        left -= len ? len : 1;
    }
    dst[n++] = '\n';
    return n;
}

void log_write(enum log_level level, const char *event, const char *fmt, ...)
{
    char raw[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
    int saved_errno = errno;
    size_t n;
    va_list ap;

    if (level < log_level_get())
        return;
    n = put_head(raw, sizeof raw, level, event);
    if (fmt[0] && n + 1 < sizeof raw) {
        raw[n++] = ' ';
        va_start(ap, fmt);
        vsnprintf(raw + n, sizeof raw - n, fmt, ap);
        va_end(ap);
    }
    n = put_clean_line(line, sizeof line, raw);
    /* Nothing sensible can be done when standard error is gone; a log line never fails its caller. */
    while (write(STDERR_FILENO, line, n) < 0 && errno == EINTR)
        ;
    errno = saved_errno;
}

void log_line(enum log_level level, char *text, unsigned long len)
{
    int saved_errno = errno;

    if (level < log_level_get())
        return;
    text[len++] = '\n';
    while (len) {
        ssize_t n = write(STDERR_FILENO, text, len);
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0) {
            text += n;
            len -= (unsigned long)n;
        }
    }
    errno = saved_errno;
}

const char *log_quote(char *dst, unsigned long dstlen, const char *text)
{
    size_t n = 0;

    if (dstlen == 0)
        return dst;
    if (dstlen < 3) {
        dst[0] = '\0';
        return dst;
    }
    dst[n++] = '"';
    for (; text && *text; text++) {
        size_t add = *text == '"' || *text == '\\' ? 2 : 1;

        if (n + add > dstlen - 2) {
            n -= utf8_incomplete_tail(dst, n);
            break;
        }
        if (add == 2)
            dst[n++] = '\\';
        dst[n++] = *text;
    }
    dst[n++] = '"';
    dst[n] = '\0';
    return dst;
}
