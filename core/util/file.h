/* File: reads a small file whole, without trusting it to be one: what a path names may have become a pipe
 * that nobody writes to, or a device without end. Blocks for FILE_WAIT_MS at most. Any thread. Tests:
 * tests/unit/test_util.c */
#pragma once
#include "util/buf.h"
#include <stddef.h>

/* A pipe's writer has this long to be done (`--config <(...)`). */
#define FILE_WAIT_MS 5000u

/* Appends all of it to *ret_text: at most `max` bytes. -EISDIR, -EFBIG, -ETIMEDOUT, -ENOMEM or what the
 * system said, with err: the path and why. */
int file_read(const char *path, size_t max, struct buf *ret_text, char *err, size_t errlen);
