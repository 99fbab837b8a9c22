/* Utf8: decoding that never believes its input. Pure; any thread. Tests: tests/unit/test_util.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the code point at text[0..len). Returns its length 1..4, or 0 where the bytes there are not valid
 * UTF-8 (overlong, surrogate, above U+10FFFF, truncated, stray); len must be > 0. */
unsigned utf8_decode(const char *text, size_t len, uint32_t *ret_cp);
/* Writes cp (<= U+10FFFF) to dst[4]; returns 1..4. */
unsigned utf8_encode(uint32_t cp, char dst[4]);
/* Puts '?' in the place of each byte that is no part of valid UTF-8. */
void utf8_mend(char *text);
bool utf8_valid(const char *text, size_t len);
/* How many trailing bytes (0..3) of text are the start of a code point that more bytes could still complete.
 */
size_t utf8_incomplete_tail(const char *text, size_t len);
