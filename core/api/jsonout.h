/* Jsonout (private to the api): writes JSON text straight into a buffer, for what is written once per token.
 * The caller places commas and braces. Pure; any thread. */
#pragma once
#include "util/buf.h"
#include <stdint.h>

/* "text" with quotes; text must be valid UTF-8. */
void jsonout_str(struct buf *b, const char *text, size_t len);
/* The same without quotes, for strings that grow. */
void jsonout_escape(struct buf *b, const char *text, size_t len);
/* Bytes that may be no UTF-8: what is invalid becomes U+FFFD. */
void jsonout_bytes_str(struct buf *b, const char *bytes, size_t len);
void jsonout_int(struct buf *b, int64_t v);
/* With up to `digits` significant digits; not a number and infinities become null. */
void jsonout_real(struct buf *b, double v, int digits);
/* As people write it: up to six decimals, of small ones six digits. */
void jsonout_short(struct buf *b, double v);
