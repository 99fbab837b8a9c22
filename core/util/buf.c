/* Buf: a byte buffer that grows by doubling and remembers a failed allocation until it is cleared.
 * Owner: the caller, one thread at a time. Must not know: what the bytes mean.
 * Tests: tests/unit/test_util.c */
#include "util/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 64 };

/* Makes room for `more` bytes and the closing zero byte. */
static bool reserve(struct buf *b, size_t more)
{
    size_t need, cap;
    char *data;

    if (b->failed)
        return false;
    if (more >= SIZE_MAX - b->len || (b->max && (b->len > b->max || more > b->max - b->len))) {
        b->failed = true;
        return false;
    }
    need = b->len + more + 1;
    if (need <= b->cap)
        return true;
    cap = b->cap ? b->cap : FIRST_CAP;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *data, size_t len)
{
    if (!reserve(b, len))
        return;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *text)
{
    buf_append(b, text, strlen(text));
}

void buf_putc(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void buf_consume(struct buf *b, size_t n)
{
    if (n == 0)
        return;
    if (n > b->len)
        n = b->len;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

char *buf_steal(struct buf *b, size_t *ret_len)
{
    char *data = NULL;

    /* An empty buffer still hands over a string, so that NULL means failure alone. */
    if (reserve(b, 0)) {
        data = b->data;
        data[b->len] = '\0';
        if (ret_len)
            *ret_len = b->len;
    } else {
        free(b->data);
    }
    *b = (struct buf){ .max = b->max };
    return data;
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){ .max = b->max };
}
