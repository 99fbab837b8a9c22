/* Buf: a byte buffer that grows. The caller owns it; one thread at a time.
 * A failed allocation is remembered in `failed` and makes every later append do nothing, so a builder checks
 * once, at the end. Tests: tests/unit/test_util.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* NULL while empty; always followed by a zero byte otherwise */
    size_t len;
    size_t cap;
    size_t max; /* 0: no bound; otherwise an append beyond it fails */
    bool failed;
};

void buf_append(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *text);
void buf_putc(struct buf *b, char c);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *b, const char *fmt, ...);
/* Drops the first n bytes (n <= len). */
void buf_consume(struct buf *b, size_t n);
/* Empties, keeps the memory, and clears `failed`. */
void buf_clear(struct buf *b);
/* Hands the bytes to the caller, to be freed with free(); NULL when the buffer had failed. b is empty after.
 */
char *buf_steal(struct buf *b, size_t *ret_len);
void buf_free(struct buf *b);
