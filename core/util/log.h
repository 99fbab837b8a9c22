/* Log: one line per event on standard error, `key=value`, made for grep.
 * Thread: any; a line is written with one write(2), so lines never mix.
 * Library code does not log: it returns errors as text, and the layer that decides logs once.
 * Tests: tests/unit/test_util.c */
#pragma once

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* The only mutable global of the program. Set it before threads start. */
void log_level_set(enum log_level level);
enum log_level log_level_get(void);

/* Parses "debug", "info", "warn" or "error". Returns 0, or -EINVAL for any other text. */
int log_level_parse(const char *text, enum log_level *ret_level);

/* Writes `2026-01-31T12:00:00.123Z level event key=value ...`. `fmt` holds the pairs: "port=%d model=%s".
 * Text from outside must be passed through log_quote. Line breaks, control characters and bytes that are
 * no UTF-8 are written as \n, \x1b and so on in the finished line, which is cut at 8,192 bytes. */
__attribute__((format(printf, 3, 4))) void log_write(enum log_level level, const char *event, const char *fmt,
                                                     ...);

/* Writes one line as it is and of any length, for what is a form of its own (JSON) and has no line breaks.
 * `text` has room for a byte more, where the line break goes. */
void log_line(enum log_level level, char *text, unsigned long len);

/* Writes `text` as a quoted value ("..." with \" and \\ escaped) into dst, cut to dstlen; returns dst. */
const char *log_quote(char *dst, unsigned long dstlen, const char *text);
