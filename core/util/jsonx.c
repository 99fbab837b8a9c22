/* Jsonx, the getters: typed reading of one field with errors that name the field, what was found and what is
 * allowed; and the nearest known name for a misspelt one. Any thread. Must not know: whose fields they are.
 * Tests: tests/unit/test_util.c */
#include "util/jsonx.h"
#include "util/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *jsonx_type_name(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "an unknown value";
}

json_t *jsonx_text(const char *text)
{
    json_t *value = json_string(text);
    char *copy = value ? NULL : strdup(text);

    if (copy) {
        utf8_mend(copy);
        value = json_string(copy);
    }
    free(copy);
    return value;
}

/* The field's value, or NULL where the field is absent or null, which mean the same in every dialect we
 * speak. */
static const json_t *field(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

static int fail_type(const char *key, const json_t *value, const char *wanted, char *err, size_t errlen)
{
    snprintf(err, errlen, "%s: %s where %s is wanted", key, jsonx_type_name(value), wanted);
    return -EINVAL;
}

int jsonx_get_bool(const json_t *object, const char *key, bool *ret_value, char *err, size_t errlen)
{
    const json_t *value = field(object, key);

    if (!value)
        return 0;
    if (!json_is_boolean(value))
        return fail_type(key, value, "true or false", err, errlen);
    *ret_value = json_is_true(value);
    return 1;
}

/* 2.0 is taken for 2: several clients write every number as a real. */
int jsonx_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *ret_value,
                  char *err, size_t errlen)
{
    const json_t *value = field(object, key);
    double real;
    int64_t v;

    if (!value)
        return 0;
    if (json_is_integer(value)) {
        v = json_integer_value(value);
    } else if (json_is_real(value)) {
        real = json_real_value(value);
        if (!(fabs(real) < 0x1p63)) {
            snprintf(err, errlen, "%s: %.15g is outside %" PRId64 "..%" PRId64, key, real, min, max);
            return -EINVAL;
        }
        if ((double)(int64_t)real != real) {
            snprintf(err, errlen, "%s: %.15g where a whole number is wanted", key, real);
            return -EINVAL;
        }
        v = (int64_t)real;
    } else {
        return fail_type(key, value, "a whole number", err, errlen);
    }
    if (v < min || v > max) {
        snprintf(err, errlen, "%s: %" PRId64 " is outside %" PRId64 "..%" PRId64, key, v, min, max);
        return -EINVAL;
    }
    *ret_value = v;
    return 1;
}

int jsonx_get_real(const json_t *object, const char *key, double min, double max, double *ret_value,
                   char *err, size_t errlen)
{
    const json_t *value = field(object, key);
    double v;

    if (!value)
        return 0;
    if (!json_is_number(value))
        return fail_type(key, value, "a number", err, errlen);
    v = json_number_value(value);
    if (!(v >= min && v <= max)) {
        snprintf(err, errlen, "%s: %.15g is outside %.15g..%.15g", key, v, min, max);
        return -EINVAL;
    }
    *ret_value = v;
    return 1;
}

int jsonx_get_str(const json_t *object, const char *key, const char **ret_text, size_t *ret_len, char *err,
                  size_t errlen)
{
    const json_t *value = field(object, key);

    if (!value)
        return 0;
    if (!json_is_string(value))
        return fail_type(key, value, "a string", err, errlen);
    *ret_text = json_string_value(value);
    *ret_len = json_string_length(value);
    return 1;
}

enum { NAME_MAX_LEN = 64 };

static unsigned min_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) that make b of a; both at most NAME_MAX_LEN long. */
static unsigned edit_distance(const char *a, size_t la, const char *b, size_t lb)
{
    unsigned rows[3][NAME_MAX_LEN + 1];

    for (size_t j = 0; j <= lb; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned *now = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];

        now[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            now[j] = min_of(above[j - 1] + (a[i - 1] != b[j - 1]), min_of(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = min_of(now[j], two_above[j - 2] + 1);
        }
    }
    return rows[la % 3][lb];
}

const char *jsonx_nearest(const char *name, const char *const *names, size_t n)
{
    size_t len = strnlen(name, NAME_MAX_LEN + 1);
    /* Of a name of three letters two edits leave one: that is another name. */
    unsigned best = len <= 3 ? 1 : len / 3 > 2 ? (unsigned)(len / 3) : 2;
    const char *found = NULL;

    if (len == 0 || len > NAME_MAX_LEN)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t other = strnlen(names[i], NAME_MAX_LEN + 1);
        unsigned d;

        if (other > NAME_MAX_LEN)
            continue;
        d = edit_distance(name, len, names[i], other);
        if (d < best || (d == best && !found)) {
            best = d;
            found = names[i];
        }
    }
    return found;
}
