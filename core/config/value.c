/* Value: one setting between JSON and struct config: checked and stored once per type, read back, freed.
 * Any thread; the caller owns the config. Must not know: where a value stands, what a setting does.
 * Tests: tests/unit/test_config.c */
#include "config/keys.h"
#include "util/jsonx.h"
#include "util/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXCERPT = 60 };

static void *field_of(const struct config_key *key, struct config *c)
{
    return (char *)c + key->offset;
}

static const void *const_field_of(const struct config_key *key, const struct config *c)
{
    return (const char *)c + key->offset;
}

void config_key_allowed(const struct config_key *key, char *dst, size_t dstlen)
{
    const char *either = key->type == KEY_INT_AUTO ? "auto or " : "";
    size_t n = 0;

    switch (key->type) {
    case KEY_BOOL:
        snprintf(dst, dstlen, "true or false");
        break;
    case KEY_INT:
    case KEY_INT_AUTO:
    case KEY_REAL:
        snprintf(dst, dstlen, "%s%.15g..%.15g", either, key->min, key->max);
        break;
    case KEY_TEXT:
        snprintf(dst, dstlen, "a string or null");
        break;
    case KEY_PATH:
        snprintf(dst, dstlen, "a path or null");
        break;
    case KEY_LIST:
        snprintf(dst, dstlen, "a list of strings, at most %.15g", key->max);
        break;
    case KEY_SETTINGS:
        snprintf(dst, dstlen, "an object of strings, numbers, true and false, at most %.15g", key->max);
        break;
    case KEY_POLICIES:
        snprintf(dst, dstlen, "a list of objects {\"path\", \"settings\"}, at most %.15g", key->max);
        break;
    case KEY_CHOICE:
        for (const char *p = key->choices; *p && n + 3 < dstlen; p++) {
            if (*p == ' ')
                dst[n++] = ',';
            dst[n++] = *p;
        }
        dst[n] = '\0';
        break;
    }
}

/* The beginning of a string as JSON writes it, so that a byte that does not print is seen. */
static void write_excerpt(const json_t *value, char dst[EXCERPT * 6 + 1])
{
    const char *text = json_string_value(value);
    size_t n = json_string_length(value) < EXCERPT ? json_string_length(value) : EXCERPT, at = 0;

    n -= utf8_incomplete_tail(text, n);
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)text[i];

        if (ch < 0x20 || ch == 0x7F)
            at += (size_t)sprintf(dst + at, "\\u%04x", ch);
        else
            dst[at++] = (char)ch;
    }
    dst[at] = '\0';
}

/* "engine.slots: 5000 where 1..1024 conversations is allowed". */
static int fail_value(const struct config_key *key, const json_t *value, char *err, size_t errlen)
{
    char range[160], allowed[192], excerpt[EXCERPT * 6 + 1];

    config_key_allowed(key, range, sizeof range);
    snprintf(allowed, sizeof allowed, "%s%s%s", range, *key->unit ? " " : "", key->unit);
    if (json_is_integer(value)) {
        snprintf(err, errlen, "%s: %" JSON_INTEGER_FORMAT " where %s is allowed", key->name,
                 json_integer_value(value), allowed);
    } else if (json_is_real(value)) {
        snprintf(err, errlen, "%s: %.15g where %s is allowed", key->name, json_real_value(value), allowed);
    } else if (json_is_string(value)) {
        write_excerpt(value, excerpt);
        snprintf(err, errlen, "%s: \"%s\" where %s is allowed", key->name, excerpt, allowed);
    } else if (json_is_boolean(value)) {
        snprintf(err, errlen, "%s: %s where %s is allowed", key->name, json_is_true(value) ? "true" : "false",
                 allowed);
    } else {
        snprintf(err, errlen, "%s: %s where %s is allowed", key->name, jsonx_type_name(value), allowed);
    }
    return -EINVAL;
}

static bool is_plain_string(const json_t *value)
{
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

static int set_number(const struct config_key *key, struct config *c, const json_t *value, char *err,
                      size_t errlen)
{
    double v = json_number_value(value);

    if (key->type == KEY_INT_AUTO && json_is_string(value) && strcmp(json_string_value(value), "auto") == 0) {
        *(int64_t *)field_of(key, c) = CONFIG_AUTO;
        return 0;
    }
    if (!json_is_number(value) || !(v >= key->min && v <= key->max))
        return fail_value(key, value, err, errlen);
    if (key->type == KEY_REAL) {
        *(double *)field_of(key, c) = v;
        return 0;
    }
    if (v != floor(v)) {
        snprintf(err, errlen, "%s: %.15g where a whole number is wanted", key->name, v);
        return -EINVAL;
    }
    *(int64_t *)field_of(key, c) = (int64_t)v;
    return 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *p = choices; *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");

        if (n == len && memcmp(p, text, n) == 0)
            return true;
        p += n;
    }
    return false;
}

static int set_text(const struct config_key *key, struct config *c, const json_t *value, const char *dir,
                    char *err, size_t errlen)
{
    char **field = field_of(key, c), *copy = NULL;
    const char *text = json_string_value(value);

    if (json_is_null(value) && key->type != KEY_CHOICE) {
        free(*field);
        *field = NULL;
        return 0;
    }
    if (!is_plain_string(value) || !*text || (key->type == KEY_CHOICE && !is_choice(key->choices, text)))
        return fail_value(key, value, err, errlen);
    copy = key->type == KEY_PATH ? config_path_copy(text, dir) : strdup(text);
    if (!copy)
        return -ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

static void free_list(struct config_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct config_list){ 0 };
}

/* A copy of an item, a path in it made relative to `dir`; NULL: out of memory. */
static char *copy_item(const struct config_key *key, const char *text, const char *dir)
{
    size_t mark = key->path_mark ? strlen(key->path_mark) : 0;
    char *copy;

    if (!dir || !mark || strncmp(text, key->path_mark, mark) != 0 || text[mark] == '/' || !text[mark])
        return strdup(text);
    return asprintf(&copy, "%s%s/%s", key->path_mark, dir, text + mark) < 0 ? NULL : copy;
}

static int set_list(const struct config_key *key, struct config *c, const json_t *value, const char *dir,
                    char *err, size_t errlen)
{
    struct config_list list = { 0 };
    size_t n = json_array_size(value);

    if (!json_is_array(value) || (double)n > key->max)
        return fail_value(key, value, err, errlen);
    list.items = calloc(n ? n : 1, sizeof *list.items);
    if (!list.items)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);

        if (!is_plain_string(item) || json_string_length(item) == 0) {
            snprintf(err, errlen, "%s: item %zu is %s where a string is wanted", key->name, i + 1,
                     json_is_string(item) ? "an empty string" : jsonx_type_name(item));
            free_list(&list);
            return -EINVAL;
        }
        if (key->choices && !is_choice(key->choices, json_string_value(item))) {
            snprintf(err, errlen, "%s: \"%.40s\" is not known; allowed are %s", key->name,
                     json_string_value(item), key->choices);
            free_list(&list);
            return -EINVAL;
        }
        list.items[i] = copy_item(key, json_string_value(item), dir);
        if (!list.items[i]) {
            free_list(&list);
            return -ENOMEM;
        }
        list.n++;
    }
    config_key_clear(key, c);
    *(struct config_list *)field_of(key, c) = list;
    return 0;
}

int config_key_set(const struct config_key *key, struct config *c, const json_t *value,
                   const struct config_stand *stand, char *err, size_t errlen)
{
    void *field = field_of(key, c);
    size_t max = (size_t)key->max;

    switch (key->type) {
    case KEY_BOOL:
        if (!json_is_boolean(value))
            return fail_value(key, value, err, errlen);
        *(bool *)field = json_is_true(value);
        return 0;
    case KEY_INT:
    case KEY_INT_AUTO:
    case KEY_REAL:
        return set_number(key, c, value, err, errlen);
    case KEY_TEXT:
    case KEY_PATH:
    case KEY_CHOICE:
        return set_text(key, c, value, stand->dir, err, errlen);
    case KEY_LIST:
        return set_list(key, c, value, stand->dir, err, errlen);
    case KEY_SETTINGS:
        if (!json_is_object(value))
            return fail_value(key, value, err, errlen);
        return config_settings_set(field, key->name, max, value, stand, err, errlen);
    case KEY_POLICIES:
        if (!json_is_array(value))
            return fail_value(key, value, err, errlen);
        return config_policies_set(field, key->name, max, value, stand, err, errlen);
    }
    return -EINVAL;
}

static json_t *get_list(const struct config_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < list->n; i++) {
        if (json_array_append_new(array, json_string_nocheck(list->items[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *config_key_get(const struct config_key *key, const struct config *c)
{
    const void *field = const_field_of(key, c);
    const char *text;
    int64_t v;

    switch (key->type) {
    case KEY_BOOL:
        return json_boolean(*(const bool *)field);
    case KEY_INT:
    case KEY_INT_AUTO:
        v = *(const int64_t *)field;
        return v == CONFIG_AUTO && key->type == KEY_INT_AUTO ? json_string("auto") : json_integer(v);
    case KEY_REAL:
        return json_real(*(const double *)field);
    case KEY_TEXT:
    case KEY_PATH:
    case KEY_CHOICE:
        text = *(char *const *)field;
        return text ? json_string_nocheck(text) : json_null();
    case KEY_LIST:
        return get_list(field);
    case KEY_SETTINGS:
        return config_settings_get(field);
    case KEY_POLICIES:
        return config_policies_get(field);
    }
    return NULL;
}

void config_key_clear(const struct config_key *key, struct config *c)
{
    char **text;

    switch (key->type) {
    case KEY_BOOL:
    case KEY_INT:
    case KEY_INT_AUTO:
    case KEY_REAL:
        break;
    case KEY_TEXT:
    case KEY_PATH:
    case KEY_CHOICE:
        text = field_of(key, c);
        free(*text);
        *text = NULL;
        break;
    case KEY_LIST:
        free_list(field_of(key, c));
        break;
    case KEY_SETTINGS:
        config_settings_clear(field_of(key, c));
        break;
    case KEY_POLICIES:
        config_policies_clear(field_of(key, c));
        break;
    }
}
