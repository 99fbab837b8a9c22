/* Jsonx, parsing: jansson reads; this adds the bound on depth, checked by one scan before a tree is built,
 * errors that start with line and column, and the lines of keys, found by a second walk over a text that
 * jansson has accepted. Any thread. Must not know: what the text is for. Tests: tests/unit/test_jsonx.c */
#include "util/jsonx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local bool starved;

static void *watched_malloc(size_t n)
{
    void *p = malloc(n);

    if (!p)
        starved = true;
    return p;
}

void jsonx_watch(void)
{
    json_set_alloc_funcs(watched_malloc, free);
}

bool jsonx_starved(void)
{
    bool was = starved;

    starved = false;
    return was;
}

static size_t end_of_string(const char *text, size_t len, size_t at)
{
    for (at++; at < len && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at; /* the closing quote, or past the end */
}

/* Where nesting goes beyond max_depth, or len. */
static size_t too_deep_at(const char *text, size_t len, unsigned max_depth)
{
    unsigned depth = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (c == '"')
            i = end_of_string(text, len, i);
        else if ((c == '[' || c == '{') && ++depth > max_depth)
            return i;
        else if ((c == ']' || c == '}') && depth)
            depth--;
    }
    return len;
}

static void say_place(const char *text, size_t at, char *dst, size_t dstlen)
{
    unsigned long line = 1, column = 1;

    for (size_t i = 0; i < at; i++) {
        column++;
        if (text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    snprintf(dst, dstlen, "line %lu column %lu", line, column);
}

static int parse(const char *text, size_t len, unsigned max_depth, size_t flags, json_t **ret_value,
                 char *err, size_t errlen)
{
    json_error_t e;
    size_t deep = too_deep_at(text, len, max_depth);

    if (deep < len) {
        char place[64];

        say_place(text, deep, place, sizeof place);
        snprintf(err, errlen, "%s: nested deeper than %u", place, max_depth);
        return -EINVAL;
    }
    bool before = jsonx_starved();
    json_t *value = json_loadb(text, len, flags | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);

    if (starved || (!value && json_error_code(&e) == json_error_out_of_memory)) {
        json_decref(value);
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    starved = before;
    if (value) {
        *ret_value = value;
        return 0;
    }
    bool range = json_error_code(&e) == json_error_numeric_overflow;
    const char *what = !range                      ? e.text
                       : strstr(e.text, "integer") ? "a whole number outside -2^63..2^63-1"
                                                   : "a number outside -1.8e308..1.8e308";
    /* An empty text has no column for jansson. */
    snprintf(err, errlen, "line %d column %d: %s", e.line, e.column > 0 ? e.column : 1, what);
    return range ? -ERANGE : -EINVAL;
}

int jsonx_parse(const char *text, size_t len, unsigned max_depth, bool reject_duplicates, json_t **ret_value,
                char *err, size_t errlen)
{
    return parse(text, len, max_depth, reject_duplicates ? JSON_REJECT_DUPLICATES : 0, ret_value, err,
                 errlen);
}

/* ---- lines of keys ---- */

struct walk {
    const char *text;
    size_t len, at;
    unsigned line;
    void (*seen)(void *arg, const json_t *object, const char *key, unsigned line);
    void *arg;
};

/* On to the next of the characters, none of which stands in numbers or words. */
static char next_of(struct walk *w, const char *wanted)
{
    for (; w->at < w->len && !strchr(wanted, w->text[w->at]); w->at++)
        w->line += w->text[w->at] == '\n';
    return w->at < w->len ? w->text[w->at++] : '\0';
}

/* w->at is behind the opening quote of a key. NULL only when out of memory. */
static json_t *read_key(struct walk *w)
{
    size_t start = w->at - 1, end = end_of_string(w->text, w->len, start);

    w->at = end + 1;
    return json_loadb(w->text + start, end + 1 - start, JSON_DECODE_ANY, NULL);
}

static void walk_value(struct walk *w, const json_t *value);

static void walk_object(struct walk *w, const json_t *object)
{
    for (size_t i = json_object_size(object); i > 0; i--) {
        next_of(w, "\"");
        unsigned line = w->line;
        json_t *key = read_key(w);

        next_of(w, ":");
        walk_value(w, key ? json_object_get(object, json_string_value(key)) : NULL);
        if (key)
            w->seen(w->arg, object, json_string_value(key), line);
        json_decref(key);
    }
    next_of(w, "}");
}

/* Strings, numbers and words have no lines inside and are passed over by whoever looks for the next sign; a
 * string is passed here, since signs may stand in it. Recursion is bounded by the parse's max_depth. */
static void walk_value(struct walk *w, const json_t *value)
{
    size_t i;
    const json_t *item;

    if (json_is_string(value)) {
        next_of(w, "\"");
        w->at = end_of_string(w->text, w->len, w->at - 1) + 1;
    } else if (json_is_object(value)) {
        next_of(w, "{");
        walk_object(w, value);
    } else if (json_is_array(value)) {
        next_of(w, "[");
        json_array_foreach(value, i, item)
        {
            walk_value(w, item);
            if (i + 1 < json_array_size(value))
                next_of(w, ",");
        }
        next_of(w, "]");
    }
}

int jsonx_parse_lines(const char *text, size_t len, unsigned max_depth,
                      void (*seen)(void *arg, const json_t *object, const char *key, unsigned line),
                      void *arg, json_t **ret_value, char *err, size_t errlen)
{
    struct walk w = { .text = text, .len = len, .line = 1, .seen = seen, .arg = arg };
    int r = parse(text, len, max_depth, JSON_REJECT_DUPLICATES, ret_value, err, errlen);

    if (r == 0)
        walk_value(&w, *ret_value);
    return r;
}
