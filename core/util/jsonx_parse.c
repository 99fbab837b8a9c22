/* Jsonx, the parser: RFC 8259 text to a jansson tree.
 * A parser of our own because jansson's refuses integers beyond int64, has no bound on depth below its
 * built-in one, and does not tell where a key stands. Linear in the length of the text: depth is checked by
 * one scan before a tree is built, line and column are counted when an error is worded, keys go into
 * jansson's hash table. Any thread. Must not know: what the text is for. Tests: tests/unit/test_util.c
 * (against jansson's own parser) */
#include "util/buf.h"
#include "util/jsonx.h"
#include "util/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    const char *text;
    size_t len, pos;
    bool reject_duplicates;
    struct buf scratch; /* the string or number read last */
    void (*seen)(void *arg, const json_t *object, const char *key, unsigned line);
    void *seen_arg;
    size_t line_pos; /* `line` is the line of this position */
    unsigned line;
    char *err;
    size_t errlen;
};

static int parse_value(struct parser *p, json_t **ret_value);

/* Words an error at byte `at`; returns -EINVAL. */
__attribute__((format(printf, 3, 4))) static int fail_at(struct parser *p, size_t at, const char *fmt, ...)
{
    unsigned long line = 1, column = 1;
    va_list ap;
    int n;

    for (size_t i = 0; i < at; i++) {
        column++;
        if (p->text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    n = snprintf(p->err, p->errlen, "line %lu column %lu: ", line, column);
    if (n > 0 && (size_t)n < p->errlen) {
        va_start(ap, fmt);
        vsnprintf(p->err + n, p->errlen - (size_t)n, fmt, ap);
        va_end(ap);
    }
    return -EINVAL;
}

static int fail_unexpected(struct parser *p, const char *wanted)
{
    unsigned char c;

    if (p->pos >= p->len)
        return fail_at(p, p->len, "the text ends where %s is wanted", wanted);
    c = (unsigned char)p->text[p->pos];
    if (c > 0x20 && c < 0x7F)
        return fail_at(p, p->pos, "'%c' where %s is wanted", c, wanted);
    return fail_at(p, p->pos, "byte 0x%02x where %s is wanted", c, wanted);
}

static void skip_space(struct parser *p)
{
    while (p->pos < p->len && (p->text[p->pos] == ' ' || p->text[p->pos] == '\n' || p->text[p->pos] == '\t' ||
                               p->text[p->pos] == '\r'))
        p->pos++;
}

static bool next_is(const struct parser *p, char c)
{
    return p->pos < p->len && p->text[p->pos] == c;
}

static bool next_is_digit(const struct parser *p)
{
    return p->pos < p->len && p->text[p->pos] >= '0' && p->text[p->pos] <= '9';
}

/* Where nesting first exceeds max_depth, or len. Reads strings the way parse_string does, so both see the
 * same brackets. */
static size_t find_too_deep(const char *text, size_t len, unsigned max_depth)
{
    unsigned depth = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (c == '"') {
            for (i++; i < len && text[i] != '"'; i++)
                if (text[i] == '\\')
                    i++;
        } else if (c == '{' || c == '[') {
            if (depth++ == max_depth)
                return i;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return len;
}

/* Four hex digits at pos; -1 when they are not. */
static int32_t read_hex4(struct parser *p)
{
    int32_t v = 0;

    if (p->len - p->pos < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p->text[p->pos + (size_t)i];

        v <<= 4;
        if (c >= '0' && c <= '9')
            v |= c - '0';
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            v |= (c | 0x20) - 'a' + 10;
        else
            return -1;
    }
    p->pos += 4;
    return v;
}

/* What follows "\u", both halves of a surrogate pair included. */
static int parse_unicode_escape(struct parser *p, size_t start)
{
    int32_t hi = read_hex4(p), lo;
    uint32_t cp;
    char utf8[4];

    if (hi < 0)
        return fail_at(p, start, "\\u must be followed by four hexadecimal digits");
    cp = (uint32_t)hi;
    if (cp >= 0xD800 && cp <= 0xDFFF) {
        lo = -1;
        if (cp <= 0xDBFF && p->len - p->pos >= 6 && p->text[p->pos] == '\\' && p->text[p->pos + 1] == 'u') {
            p->pos += 2;
            lo = read_hex4(p);
        }
        if (lo < 0xDC00 || lo > 0xDFFF)
            return fail_at(p, start, "\\u%04x is half of a surrogate pair without the other half", cp);
        cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)lo - 0xDC00);
    }
    buf_append(&p->scratch, utf8, utf8_encode(cp, utf8));
    return 0;
}

static int parse_escape(struct parser *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t start = p->pos++;
    const char *found;
    char c;

    if (p->pos >= p->len)
        return fail_unexpected(p, "an escape");
    c = p->text[p->pos];
    if (c == 'u') {
        p->pos++;
        return parse_unicode_escape(p, start);
    }
    found = c ? strchr(from, c) : NULL;
    if (!found)
        return fail_at(p, start, "a backslash in a string must be followed by one of \" \\ / b f n r t u");
    buf_putc(&p->scratch, to[found - from]);
    p->pos++;
    return 0;
}

/* Appends the bytes up to the next quote, backslash or control character, which must be valid UTF-8. */
static int parse_run(struct parser *p)
{
    size_t start = p->pos, i = start;
    uint32_t cp;

    while (i < p->len) {
        unsigned char c = (unsigned char)p->text[i];
        unsigned n = 1;

        if (c == '"' || c == '\\' || c < 0x20)
            break;
        if (c >= 0x80)
            n = utf8_decode(p->text + i, p->len - i, &cp);
        if (n == 0)
            return fail_at(p, i, "byte 0x%02x is not valid UTF-8", c);
        i += n;
    }
    buf_append(&p->scratch, p->text + start, i - start);
    p->pos = i;
    return 0;
}

/* Reads the string whose opening quote is at pos into scratch. */
static int parse_string(struct parser *p)
{
    size_t start = p->pos++;
    int r;

    buf_clear(&p->scratch);
    for (;;) {
        r = parse_run(p);
        if (r < 0)
            return r;
        if (p->pos >= p->len)
            return fail_at(p, start, "this string never ends");
        if (p->text[p->pos] == '"')
            break;
        if (p->text[p->pos] != '\\')
            return fail_at(p, p->pos, "control character 0x%02x in a string must be escaped",
                           (unsigned char)p->text[p->pos]);
        r = parse_escape(p);
        if (r < 0)
            return r;
    }
    p->pos++;
    return p->scratch.failed ? -ENOMEM : 0;
}

/* Moves past one number in JSON's grammar; *ret_whole when it has neither fraction nor exponent. */
static int scan_number(struct parser *p, bool *ret_whole)
{
    *ret_whole = true;
    if (next_is(p, '-'))
        p->pos++;
    if (!next_is_digit(p))
        return fail_unexpected(p, "a digit");
    if (next_is(p, '0')) {
        p->pos++;
        if (next_is_digit(p))
            return fail_at(p, p->pos, "a number must not start with a zero");
    }
    while (next_is_digit(p))
        p->pos++;
    if (next_is(p, '.')) {
        *ret_whole = false;
        p->pos++;
        if (!next_is_digit(p))
            return fail_unexpected(p, "a digit");
        while (next_is_digit(p))
            p->pos++;
    }
    if (next_is(p, 'e') || next_is(p, 'E')) {
        *ret_whole = false;
        p->pos++;
        if (next_is(p, '+') || next_is(p, '-'))
            p->pos++;
        if (!next_is_digit(p))
            return fail_unexpected(p, "a digit");
        while (next_is_digit(p))
            p->pos++;
    }
    return 0;
}

static int parse_number(struct parser *p, json_t **ret_value)
{
    size_t start = p->pos;
    bool whole;
    double real;
    int r = scan_number(p, &whole);

    if (r < 0)
        return r;
    /* strtoll and strtod want a closing zero byte, which the text need not have. */
    buf_clear(&p->scratch);
    buf_append(&p->scratch, p->text + start, p->pos - start);
    if (p->scratch.failed)
        return -ENOMEM;
    if (whole) {
        long long v;

        errno = 0;
        v = strtoll(p->scratch.data, NULL, 10);
        if (errno == 0) {
            *ret_value = json_integer(v);
            return *ret_value ? 0 : -ENOMEM;
        }
    }
    real = strtod(p->scratch.data, NULL);
    if (!isfinite(real))
        return fail_at(p, start, "this number is too large");
    *ret_value = json_real(real);
    return *ret_value ? 0 : -ENOMEM;
}

static int parse_literal(struct parser *p, const char *word, json_t *value, json_t **ret_value)
{
    size_t n = strlen(word);

    if (p->len - p->pos < n || memcmp(p->text + p->pos, word, n) != 0)
        return fail_unexpected(p, "a value");
    p->pos += n;
    *ret_value = value;
    return 0;
}

static unsigned line_of(struct parser *p, size_t at)
{
    for (; p->line_pos < at; p->line_pos++)
        if (p->text[p->line_pos] == '\n')
            p->line++;
    return p->line;
}

/* Reads `"key" : value` and adds it. */
static int parse_member(struct parser *p, json_t *object)
{
    size_t start = p->pos;
    unsigned line = p->seen ? line_of(p, start) : 0;
    json_t *value;
    char *key;
    int r;

    if (!next_is(p, '"'))
        return fail_unexpected(p, "a key in quotes");
    r = parse_string(p);
    if (r < 0)
        return r;
    if (memchr(p->scratch.data, '\0', p->scratch.len))
        return fail_at(p, start, "a key must not hold a zero byte");
    if (p->reject_duplicates && json_object_get(object, p->scratch.data)) {
        size_t n = p->scratch.len < 64 ? p->scratch.len : 64;

        n -= utf8_incomplete_tail(p->scratch.data, n);
        return fail_at(p, start, "duplicate key \"%.*s\"", (int)n, p->scratch.data);
    }
    key = strdup(p->scratch.data);
    if (!key)
        return -ENOMEM;
    skip_space(p);
    if (!next_is(p, ':')) {
        r = fail_unexpected(p, "':'");
        goto out;
    }
    p->pos++;
    r = parse_value(p, &value);
    if (r < 0)
        goto out;
    if (p->seen)
        p->seen(p->seen_arg, object, key, line);
    r = json_object_set_new_nocheck(object, key, value) < 0 ? -ENOMEM : 0;
out:
    free(key);
    return r;
}

static int parse_element(struct parser *p, json_t *array)
{
    json_t *value;
    int r = parse_value(p, &value);

    if (r < 0)
        return r;
    return json_array_append_new(array, value) < 0 ? -ENOMEM : 0;
}

/* What objects and arrays share: an opening bracket, parts between commas, `close`. */
static int parse_parts(struct parser *p, json_t *whole, char close,
                       int (*parse_part)(struct parser *p, json_t *whole))
{
    p->pos++;
    skip_space(p);
    if (next_is(p, close)) {
        p->pos++;
        return 0;
    }
    for (;;) {
        int r;

        skip_space(p);
        r = parse_part(p, whole);
        if (r < 0)
            return r;
        skip_space(p);
        if (next_is(p, close)) {
            p->pos++;
            return 0;
        }
        if (!next_is(p, ','))
            return fail_unexpected(p, close == '}' ? "',' or '}'" : "',' or ']'");
        p->pos++;
    }
}

static int parse_nested(struct parser *p, json_t **ret_value)
{
    bool is_object = p->text[p->pos] == '{';
    json_t *whole = is_object ? json_object() : json_array();
    int r;

    if (!whole)
        return -ENOMEM;
    r = is_object ? parse_parts(p, whole, '}', parse_member) : parse_parts(p, whole, ']', parse_element);
    if (r < 0)
        json_decref(whole);
    else
        *ret_value = whole;
    return r;
}

/* Recursion is as deep as the text, which find_too_deep has bounded. */
static int parse_value(struct parser *p, json_t **ret_value)
{
    int r;

    skip_space(p);
    if (p->pos >= p->len)
        return fail_unexpected(p, "a value");
    switch (p->text[p->pos]) {
    case '{':
    case '[':
        return parse_nested(p, ret_value);
    case '"':
        r = parse_string(p);
        if (r < 0)
            return r;
        *ret_value = json_stringn_nocheck(p->scratch.data ? p->scratch.data : "", p->scratch.len);
        return *ret_value ? 0 : -ENOMEM;
    case 't':
        return parse_literal(p, "true", json_true(), ret_value);
    case 'f':
        return parse_literal(p, "false", json_false(), ret_value);
    case 'n':
        return parse_literal(p, "null", json_null(), ret_value);
    default:
        if (!next_is(p, '-') && !next_is_digit(p))
            return fail_unexpected(p, "a value");
        return parse_number(p, ret_value);
    }
}

static int parse_text(struct parser *p, unsigned max_depth, json_t **ret_value)
{
    size_t deep = find_too_deep(p->text, p->len, max_depth);
    json_t *value;
    int r;

    if (p->errlen)
        p->err[0] = '\0';
    if (deep < p->len)
        return fail_at(p, deep, "nested deeper than %u", max_depth);
    r = parse_value(p, &value);
    if (r < 0)
        goto out;
    skip_space(p);
    if (p->pos < p->len) {
        json_decref(value);
        r = fail_unexpected(p, "the end of the text");
        goto out;
    }
    *ret_value = value;
out:
    if (r == -ENOMEM)
        snprintf(p->err, p->errlen, "out of memory");
    buf_free(&p->scratch);
    return r;
}

int jsonx_parse(const char *text, size_t len, unsigned max_depth, bool reject_duplicates, json_t **ret_value,
                char *err, size_t errlen)
{
    struct parser p = {
        .text = text, .len = len, .reject_duplicates = reject_duplicates, .err = err, .errlen = errlen
    };

    return parse_text(&p, max_depth, ret_value);
}

int jsonx_parse_lines(const char *text, size_t len, unsigned max_depth,
                      void (*seen)(void *arg, const json_t *object, const char *key, unsigned line),
                      void *arg, json_t **ret_value, char *err, size_t errlen)
{
    struct parser p = { .text = text,
                        .len = len,
                        .reject_duplicates = true,
                        .seen = seen,
                        .seen_arg = arg,
                        .line = 1,
                        .err = err,
                        .errlen = errlen };

    return parse_text(&p, max_depth, ret_value);
}
