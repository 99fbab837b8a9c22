/* Tagged: see tagged.h. A machine over bytes; `part` is what was read of a mark, a name or a value. */
#include "model/tagged.h"
#include <stdlib.h>
#include <string.h>

enum { NAME_MARK, NAME, ITEM, KEY, VALUE_MARK, VALUE };

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

/* Whether `mark` begins with what there is of it, and whether it is whole. */
static bool begins(const struct tagged *t, const char *mark, bool *ret_whole)
{
    *ret_whole = strlen(mark) == t->part.len;
    return t->part.len <= strlen(mark) && memcmp(mark, t->part.data, t->part.len) == 0;
}

/* White space, then one mark. */
static enum tagged_result step_mark(struct tagged *t, char c, const char *mark, int next)
{
    bool whole;
    if (!t->part.len && is_space(c))
        return TAGGED_MORE;
    buf_putc(&t->part, c);
    if (t->part.failed || !begins(t, mark, &whole))
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
    bool key = begins(t, t->marks->key, &whole_key), end = begins(t, t->marks->end, &whole_end);
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

/* New; NULL for bytes that are no text. */
static json_t *value_of(const struct tagged *t, const json_t *strings, const char *text, size_t len,
                        const struct buf *name)
{
    const json_t *of_tool = json_object_get(strings, name->data);
    json_t *value = NULL;
    if (!json_object_get(of_tool, t->key.data))
        value = json_loadb(text, len, JSON_DECODE_ANY, NULL);
    return value ? value : json_stringn(text, len);
}

static bool put_argument(struct tagged *t, const json_t *strings, const struct buf *name,
                         struct buf *arguments)
{
    const char *text = t->part.data;
    size_t len = t->part.len - strlen(t->marks->value_end);
    if (t->marks->lines && len && text[0] == '\n') {
        text++;
        len--;
    }
    if (t->marks->lines && len && text[len - 1] == '\n')
        len--;
    json_t *key = json_stringn(t->key.data, t->key.len), *value = value_of(t, strings, text, len, name);
    char *key_text = key ? json_dumps(key, JSON_ENCODE_ANY) : NULL;
    char *value_text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    bool ok = key_text && value_text;
    if (ok)
        buf_printf(arguments, "%s%s: %s", t->any ? ", " : "{", key_text, value_text);
    t->any = t->any || ok;
    free(key_text);
    free(value_text);
    json_decref(key);
    json_decref(value);
    return ok;
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
    default:
        buf_putc(&t->part, c);
        if (!ends_with(&t->part, t->marks->value_end))
            return t->part.failed ? TAGGED_BAD : TAGGED_MORE;
        if (!put_argument(t, strings, name, arguments))
            return TAGGED_BAD;
        go(t, ITEM);
        return TAGGED_MORE;
    }
}
