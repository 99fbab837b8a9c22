/* Jsonx: what jansson leaves open: a parse with a bound on depth and errors that say where, typed getters
 * whose errors name the field, and the nearest known name for a misspelt one. Any thread. Tests:
 * tests/unit/test_jsonx.c */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses one JSON text of `len` bytes. Duplicate keys are errors when `reject_duplicates`. Nesting deeper
 * than max_depth is refused before a tree is built. *ret_value is a new reference. Returns 0, -EINVAL with
 * err set ("line 3 column 7: ..."), -ERANGE likewise for an integer outside int64 or a real outside double
 * (good JSON, but no number here), or -ENOMEM. */
int jsonx_parse(const char *text, size_t len, unsigned max_depth, bool reject_duplicates, json_t **ret_value,
                char *err, size_t errlen);

/* The same with duplicates rejected, and tells the line of every key: `seen` is called once per key, after
 * the keys of its value; `object` is the one in the tree, `key` is valid during the call. */
int jsonx_parse_lines(const char *text, size_t len, unsigned max_depth,
                      void (*seen)(void *arg, const json_t *object, const char *key, unsigned line),
                      void *arg, json_t **ret_value, char *err, size_t errlen);

/* jansson tells of few allocations that failed: a value that could not be made is missing in its object, and
 * a parse ends with a message about the text. From jsonx_watch on (once, before there are threads) each is
 * noted. */
void jsonx_watch(void);
/* Whether one failed on this thread since the last call; without jsonx_watch always false. */
bool jsonx_starved(void);

/* A string of any bytes: those that are no UTF-8 come out as '?'. NULL: out of memory. */
json_t *jsonx_text(const char *text);

/* Getters: 1 when present and right (value stored), 0 when absent or null, -EINVAL with err like
 * "temperature: 3.5 is outside 0..2" or "stream: a string where true or false is wanted". */
int jsonx_get_bool(const json_t *object, const char *key, bool *ret_value, char *err, size_t errlen);
int jsonx_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *ret_value,
                  char *err, size_t errlen);
int jsonx_get_real(const json_t *object, const char *key, double min, double max, double *ret_value,
                   char *err, size_t errlen);
/* The string stays owned by `object`. Zero bytes inside are kept: use *ret_len. */
int jsonx_get_str(const json_t *object, const char *key, const char **ret_text, size_t *ret_len, char *err,
                  size_t errlen);

/* "a string", "an object", "true or false", ... for error texts. */
const char *jsonx_type_name(const json_t *value);

/* The name among names[0..n) nearest to `name` by edit distance, or NULL when none is within a third of its
 * length (at least 2). */
const char *jsonx_nearest(const char *name, const char *const *names, size_t n);
