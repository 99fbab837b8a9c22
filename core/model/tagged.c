/* Tagged: see tagged.h. A machine over bytes; `part` is what was read of a mark, a name or a value. */
#include "model/tagged.h"
#include "model/jsonscan.h"
#include "util/jsonx.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MARK, NAME, ITEM, KEY, VALUE_MARK, VALUE, BEHIND_VALUE };

static void go(struct tagged *t, int state)
{
    t->state = (uint8_t)state;
    t->behind = 0;
    buf_clear(&t->part);
}

void tagged_init(struct tagged *t, const struct tagged_marks *marks)
{
    t->marks = marks;
    t->named = t->any = false;
    buf_clear(&t->keys);
    go(t, marks->name ? NAME_MARK : NAME);
    buf_clear(&t->key);
}

void tagged_clear(struct tagged *t)
{
    buf_free(&t->part);
    buf_free(&t->key);
    buf_free(&t->keys);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_-.:", c));
}

/* Whether `mark` begins with what there is from `behind` on, and whether that is all of it. */
static bool begins(const struct tagged *t, const char *mark, bool *ret_whole)
{
    size_t len = t->part.len - t->behind;
    bool same = len <= strlen(mark) && memcmp(mark, t->part.data + t->behind, len) == 0;
    *ret_whole = same && len == strlen(mark);
    return same;
}

/* White space, then one mark. */
static enum tagged_result step_mark(struct tagged *t, char c, const char *mark, int next)
{
    bool whole;
    if (!t->part.len && jsonscan_is_space(c))
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

/* ---- values ---- */

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

/* Notes the argument's name; false where an earlier one had it. The mark behind names is in none of them. */
static bool is_new(struct tagged *t, bool *ret_failed)
{
    const char *mark = t->marks->key_end;
    struct buf name = { 0 };
    buf_puts(&name, mark);
    buf_append(&name, t->key.data, t->key.len);
    buf_puts(&name, mark);
    *ret_failed = name.failed;
    bool known = !name.failed && t->keys.len && memmem(t->keys.data, t->keys.len, name.data, name.len);
    if (!known && !name.failed)
        buf_append(&t->keys, name.data, name.len);
    *ret_failed |= t->keys.failed;
    buf_free(&name);
    return !known;
}

static bool put_argument(struct tagged *t, const json_t *strings, const struct buf *name,
                         struct buf *arguments)
{
    const char *text = t->part.data;
    size_t len = t->value_len, before = arguments->len;
    bool failed = false;
    /* Two members of one name are read by each client in its own way, or not at all; and the first was told
     * already. */
    if (!is_new(t, &failed) || failed)
        return !failed;
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

/* White space, then the mark of another argument or of the end of all. Behind what may be a value anything
 * else shows that the value goes on. */
static enum tagged_result step_item(struct tagged *t, char c, const json_t *strings, const struct buf *name,
                                    struct buf *arguments)
{
    bool whole_key, whole_end, value = t->state == BEHIND_VALUE;
    bool space = t->behind == t->part.len && jsonscan_is_space(c);
    buf_putc(&t->part, c);
    if (t->part.failed)
        return TAGGED_BAD;
    if (space) {
        t->behind++;
        return TAGGED_MORE;
    }
    bool key = begins(t, t->marks->key, &whole_key), end = begins(t, t->marks->end, &whole_end);
    if (!key && !end) {
        if (!value)
            return TAGGED_BAD;
        t->state = VALUE;
        return look_for_end(t);
    }
    if (!whole_key && !whole_end)
        return TAGGED_MORE;
    t->named = true;
    if (value && !put_argument(t, strings, name, arguments))
        return TAGGED_BAD;
    go(t, KEY);
    if (whole_key)
        return TAGGED_MORE;
    end_arguments(t, arguments);
    return TAGGED_DONE;
}

static enum tagged_result step_name(struct tagged *t, char c, const json_t *strings, struct buf *name,
                                    struct buf *arguments)
{
    const char *end = t->marks->name_end;
    if (end ? c == *end : (jsonscan_is_space(c) && name->len) || c == *t->marks->key) {
        if (!name->len)
            return TAGGED_BAD;
        go(t, ITEM);
        return end || jsonscan_is_space(c) ? TAGGED_MORE : step_item(t, c, strings, name, arguments);
    }
    if (!is_name(c))
        return TAGGED_BAD;
    buf_putc(name, c);
    return TAGGED_MORE;
}

enum tagged_result tagged_byte(struct tagged *t, char c, const json_t *strings, struct buf *name,
                               struct buf *arguments)
{
    switch (t->state) {
    case NAME_MARK:
        return step_mark(t, c, t->marks->name, NAME);
    case NAME:
        return step_name(t, c, strings, name, arguments);
    case ITEM:
    case BEHIND_VALUE:
        return step_item(t, c, strings, name, arguments);
    case KEY:
        return step_key(t, c);
    case VALUE_MARK:
        return step_mark(t, c, t->marks->value, VALUE);
    default:
        buf_putc(&t->part, c);
        return look_for_end(t);
    }
}
