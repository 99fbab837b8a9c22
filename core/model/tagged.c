/* Tagged: see tagged.h. A machine over bytes; `part` is what was read of a mark, a name or a value. */
#include "model/tagged.h"
#include "model/jsonscan.h"
#include "util/jsonx.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MARK, NAME, ITEM, KEY, VALUE_MARK, VALUE, BEHIND_VALUE };

void tagged_init(struct tagged *t, const struct tagged_marks *marks)
{
    t->marks = marks;
    t->state = marks->name ? NAME_MARK : NAME;
    t->named = t->any = false;
    buf_clear(&t->part);
    buf_clear(&t->key);
}

void tagged_clear(struct tagged *t)
{
    buf_free(&t->part);
    buf_free(&t->key);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-.:", c));
}

static void go(struct tagged *t, int state)
{
    t->state = (uint8_t)state;
    buf_clear(&t->part);
}

/* Whether `mark` begins with what there is from `at` on, and whether it is whole. */
static bool begins(const struct tagged *t, size_t at, const char *mark, bool *ret_whole)
{
    size_t len = t->part.len - at;
    *ret_whole = strlen(mark) == len;
    return len <= strlen(mark) && memcmp(mark, t->part.data + at, len) == 0;
}

/* White space, then one mark. */
static enum tagged_result step_mark(struct tagged *t, char c, const char *mark, int next)
{
    bool whole;
    if (!t->part.len && is_space(c))
        return TAGGED_MORE;
    buf_putc(&t->part, c);
    if (t->part.failed || !begins(t, 0, mark, &whole))
        return TAGGED_BAD;
    if (whole)
        go(t, next);
    return TAGGED_MORE;
}

static void end_arguments(const struct tagged *t, struct buf *arguments)
{
    buf_puts(arguments, t->any ? "}" : "{}");
}

/* Between arguments: the mark of another one, or the end of all. */
static enum tagged_result step_item(struct tagged *t, char c, struct buf *arguments)
{
    bool whole_key, whole_end;
    if (!t->part.len && is_space(c))
        return TAGGED_MORE;
    buf_putc(&t->part, c);
    if (t->part.failed)
        return TAGGED_BAD;
    bool key = begins(t, 0, t->marks->key, &whole_key), end = begins(t, 0, t->marks->end, &whole_end);
    if (!key && !end)
        return TAGGED_BAD;
    t->named = t->named || (key && whole_key) || (end && whole_end);
    if (key && whole_key)
        go(t, KEY);
    if (!end || !whole_end)
        return TAGGED_MORE;
    end_arguments(t, arguments);
    return TAGGED_DONE;
}

static enum tagged_result step_name(struct tagged *t, char c, struct buf *name, struct buf *arguments)
{
    const char *end = t->marks->name_end;
    if (end ? c == *end : (is_space(c) && name->len) || c == *t->marks->key) {
        if (!name->len)
            return TAGGED_BAD;
        go(t, ITEM);
        return end || is_space(c) ? TAGGED_MORE : step_item(t, c, arguments);
    }
    if (!is_name(c))
        return TAGGED_BAD;
    buf_putc(name, c);
    return TAGGED_MORE;
}

static bool ends_with(const struct buf *b, const char *mark)
{
    size_t len = strlen(mark);
    return b->len >= len && memcmp(b->data + b->len - len, mark, len) == 0;
}

static enum tagged_result step_key(struct tagged *t, char c)
{
    buf_putc(&t->part, c);
    if (!ends_with(&t->part, t->marks->key_end))
        return t->part.failed ? TAGGED_BAD : TAGGED_MORE;
    buf_clear(&t->key);
    buf_append(&t->key, t->part.data, t->part.len - strlen(t->marks->key_end));
    if (t->key.failed || !t->key.len)
        return TAGGED_BAD;
    go(t, t->marks->value ? VALUE_MARK : VALUE);
    return TAGGED_MORE;
}

/* ---- the types of values ---- */

static unsigned bits_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        { "string", 1u << JSON_STRING },
        { "integer", 1u << JSON_INTEGER },
        { "number", 1u << JSON_INTEGER | 1u << JSON_REAL },
        { "boolean", 1u << JSON_TRUE | 1u << JSON_FALSE },
        { "null", 1u << JSON_NULL },
        { "array", 1u << JSON_ARRAY },
        { "object", 1u << JSON_OBJECT },
    };
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].bits;
    return 0;
}

unsigned tagged_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf");
    const json_t *values = json_object_get(schema, "enum");
    unsigned all = bits_named(json_string_value(type)), bits = 1;
    if (!any)
        any = json_object_get(schema, "oneOf");
    for (size_t i = 0; i < json_array_size(type); i++)
        all |= bits_named(json_string_value(json_array_get(type, i)));
    for (size_t i = 0; !type && bits && i < json_array_size(any); i++) {
        bits = tagged_types(json_array_get(any, i));
        all = bits ? all | bits : 0;
    }
    for (size_t i = 0; !type && !any && i < json_array_size(values); i++)
        all |= 1u << json_typeof(json_array_get(values, i));
    return all;
}

/* Whether a text is to be taken as the JSON that it is. */
static bool is_json(const struct tagged *t, const json_t *strings, const struct buf *name, const char *text,
                    size_t len)
{
    const json_t *others = json_object_get(json_object_get(strings, name->data), t->key.data);
    unsigned bits = others ? (unsigned)json_integer_value(others) : UINT_MAX;
    json_t *value = NULL;
    char err[8];
    if (bits && jsonx_parse(text, len, JSONSCAN_DEPTH, false, &value, err, sizeof err) < 0)
        value = NULL;
    bool ok = value && bits >> json_typeof(value) & 1;
    json_decref(value);
    return ok;
}

/* As a JSON string. False for bytes that are no text, or without memory. */
static bool put_string(struct buf *out, const char *text, size_t len)
{
    json_t *value = json_stringn(text, len);
    char *written = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (written)
        buf_puts(out, written);
    free(written);
    json_decref(value);
    return written;
}

static bool put_argument(struct tagged *t, const json_t *strings, const struct buf *name,
                         struct buf *arguments)
{
    const char *text = t->part.data;
    size_t len = t->value_len, before = arguments->len;
    if (t->marks->lines && len && text[0] == '\n') {
        text++;
        len--;
    }
    if (t->marks->lines && len && text[len - 1] == '\n')
        len--;
    buf_puts(arguments, t->any ? ", " : "{");
    bool ok = put_string(arguments, t->key.data, t->key.len);
    buf_puts(arguments, ": ");
    if (is_json(t, strings, name, text, len))
        buf_append(arguments, text, len);
    else
        ok = ok && put_string(arguments, text, len);
    if (!ok && !arguments->failed)
        arguments->len = before;
    t->any = t->any || ok;
    return ok;
}

/* Whether the mark that ends a value was just read: it is one if what follows says so. */
static enum tagged_result look_for_end(struct tagged *t)
{
    if (ends_with(&t->part, t->marks->value_end)) {
        t->value_len = t->part.len - strlen(t->marks->value_end);
        t->behind = t->part.len;
        t->state = BEHIND_VALUE;
    }
    return t->part.failed ? TAGGED_BAD : TAGGED_MORE;
}

static enum tagged_result step_behind(struct tagged *t, char c, const json_t *strings, const struct buf *name,
                                      struct buf *arguments)
{
    bool whole_key, whole_end;
    if (t->behind == t->part.len && is_space(c)) {
        buf_putc(&t->part, c);
        t->behind = t->part.len;
        return t->part.failed ? TAGGED_BAD : TAGGED_MORE;
    }
    buf_putc(&t->part, c);
    if (t->part.failed)
        return TAGGED_BAD;
    bool key = begins(t, t->behind, t->marks->key, &whole_key);
    bool end = begins(t, t->behind, t->marks->end, &whole_end);
    if (!key && !end) {
        t->state = VALUE;
        return look_for_end(t);
    }
    whole_key = whole_key && key;
    whole_end = whole_end && end;
    if (!whole_key && !whole_end)
        return TAGGED_MORE;
    if (!put_argument(t, strings, name, arguments))
        return TAGGED_BAD;
    go(t, KEY);
    if (whole_key)
        return TAGGED_MORE;
    end_arguments(t, arguments);
    return TAGGED_DONE;
}

enum tagged_result tagged_byte(struct tagged *t, char c, const json_t *strings, struct buf *name,
                               struct buf *arguments)
{
    switch (t->state) {
    case NAME_MARK:
        return step_mark(t, c, t->marks->name, NAME);
    case NAME:
        return step_name(t, c, name, arguments);
    case ITEM:
        return step_item(t, c, arguments);
    case KEY:
        return step_key(t, c);
    case VALUE_MARK:
        return step_mark(t, c, t->marks->value, VALUE);
    case BEHIND_VALUE:
        return step_behind(t, c, strings, name, arguments);
    default:
        buf_putc(&t->part, c);
        return look_for_end(t);
    }
}
