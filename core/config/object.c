/* Object: settings that have entries: names the config does not know, with values kept as text for whoever
 * does; and lists of policies, each with such settings. Any thread; the caller owns them. Must not know: what
 * an entry means. Tests: tests/unit/test_config.c */
#include "config/keys.h"
#include "util/jsonx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_BYTES = 512, EXCERPT = 60 };

char *config_path_copy(const char *path, const char *dir)
{
    char *copy;

    if (!dir || *path == '/')
        return strdup(path);
    return asprintf(&copy, "%s/%s", dir, path) < 0 ? NULL : copy;
}

static bool is_plain_string(const json_t *value)
{
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

static void entry_clear(struct config_setting *s)
{
    free(s->name);
    free(s->text);
    free(s->where);
}

void config_settings_clear(struct config_settings *s)
{
    for (size_t i = 0; i < s->n; i++)
        entry_clear(&s->items[i]);
    free(s->items);
    *s = (struct config_settings){ 0 };
}

static struct config_setting *find_entry(struct config_settings *s, const char *entry)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].name, entry) == 0)
            return &s->items[i];
    return NULL;
}

int config_settings_put(struct config_settings *s, const char *name, size_t max, const char *entry,
                        const char *text, const char *where, char *err, size_t errlen)
{
    struct config_setting *at = find_entry(s, entry), made;

    if (!at && s->n >= max) {
        snprintf(err, errlen, "%s: more than %zu entries", name, max);
        return -EINVAL;
    }
    if (!at) {
        struct config_setting *items = reallocarray(s->items, s->n + 1, sizeof *items);

        if (!items)
            return -ENOMEM;
        s->items = items;
    }
    made = (struct config_setting){ strdup(entry), strdup(text), strdup(where) };
    if (!made.name || !made.text || !made.where) {
        entry_clear(&made);
        return -ENOMEM;
    }
    if (at)
        entry_clear(at);
    else
        at = &s->items[s->n++];
    *at = made;
    return 0;
}

/* The shortest text that reads back as the same number. */
static void write_real(double v, char *dst, size_t dstlen)
{
    snprintf(dst, dstlen, "%.15g", v);
    if (strtod(dst, NULL) != v)
        snprintf(dst, dstlen, "%.17g", v);
}

/* *ret_text lies in `value` or in `scratch`. */
static int text_of(const json_t *value, char scratch[64], const char **ret_text)
{
    *ret_text = scratch;
    if (json_is_integer(value))
        snprintf(scratch, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        write_real(json_real_value(value), scratch, 64);
    else if (json_is_boolean(value))
        snprintf(scratch, 64, "%s", json_is_true(value) ? "true" : "false");
    else if (is_plain_string(value))
        *ret_text = json_string_value(value);
    else
        return -EINVAL;
    return 0;
}

int config_settings_set(struct config_settings *s, const char *name, size_t max, const json_t *value,
                        const struct config_stand *stand, char *err, size_t errlen)
{
    struct config_settings made = { 0 };
    const char *entry, *text;
    json_t *item;
    int r = 0;

    json_object_foreach((json_t *)value, entry, item)
    {
        char where[WHERE_BYTES], scratch[64];

        if (!*entry || text_of(item, scratch, &text) < 0) {
            snprintf(err, errlen, "%s.%.*s: %s where %s", name, EXCERPT, entry,
                     *entry ? jsonx_type_name(item) : "an empty name",
                     *entry ? "a string without zero bytes, a number, true or false is wanted"
                            : "a setting's is wanted");
            r = -EINVAL;
            break;
        }
        stand->where(stand->arg, value, entry, where, sizeof where);
        r = config_settings_put(&made, name, max, entry, text, where, err, errlen);
        if (r < 0)
            break;
    }
    if (r < 0) {
        config_settings_clear(&made);
        return r;
    }
    config_settings_clear(s);
    *s = made;
    return 0;
}

json_t *config_settings_get(const struct config_settings *s)
{
    json_t *object = json_object();

    for (size_t i = 0; object && i < s->n; i++) {
        if (json_object_set_new(object, s->items[i].name, json_string(s->items[i].text)) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* ---- policies ---- */

static void policy_clear(struct config_policy *p)
{
    free(p->path);
    config_settings_clear(&p->settings);
}

void config_policies_clear(struct config_policies *p)
{
    for (size_t i = 0; i < p->n; i++)
        policy_clear(&p->items[i]);
    free(p->items);
    *p = (struct config_policies){ 0 };
}

static int fail_item(char *err, size_t errlen, const char *name, size_t i, const char *key,
                     const json_t *value, const char *wanted)
{
    snprintf(err, errlen, "%s: item %zu%s%.*s: %s where %s is wanted", name, i + 1, *key ? ": " : "", EXCERPT,
             key, value ? jsonx_type_name(value) : "nothing", wanted);
    return -EINVAL;
}

static int set_policy(struct config_policy *p, const char *name, size_t i, const json_t *item,
                      const struct config_stand *stand, char *err, size_t errlen)
{
    json_t *path = json_object_get(item, "path"), *settings = json_object_get(item, "settings"), *value;
    const char *key;
    char inner[64];

    if (!json_is_object(item))
        return fail_item(err, errlen, name, i, "", item, "an object {\"path\", \"settings\"}");
    json_object_foreach((json_t *)item, key, value)
    {
        if (strcmp(key, "path") != 0 && strcmp(key, "settings") != 0) {
            snprintf(err, errlen, "%s: item %zu: %.*s: unknown key; \"path\" and \"settings\" are known",
                     name, i + 1, EXCERPT, key);
            return -EINVAL;
        }
    }
    if (!is_plain_string(path) || !json_string_length(path))
        return fail_item(err, errlen, name, i, "path", path, "the path of a policy");
    if (settings && !json_is_object(settings))
        return fail_item(err, errlen, name, i, "settings", settings, "an object");
    p->path = config_path_copy(json_string_value(path), stand->dir);
    if (!p->path)
        return -ENOMEM;
    snprintf(inner, sizeof inner, "%s: item %zu: settings", name, i + 1);
    return settings
               ? config_settings_set(&p->settings, inner, CONFIG_MAX_ENTRIES, settings, stand, err, errlen)
               : 0;
}

int config_policies_set(struct config_policies *p, const char *name, size_t max, const json_t *value,
                        const struct config_stand *stand, char *err, size_t errlen)
{
    struct config_policies made = { 0 };
    size_t n = json_array_size(value);
    int r = 0;

    if (n > max) {
        snprintf(err, errlen, "%s: a list of %zu where at most %zu are allowed", name, n, max);
        return -EINVAL;
    }
    made.items = calloc(n ? n : 1, sizeof *made.items);
    if (!made.items)
        return -ENOMEM;
    for (; r == 0 && made.n < n; made.n++)
        r = set_policy(&made.items[made.n], name, made.n, json_array_get(value, made.n), stand, err, errlen);
    if (r < 0) {
        config_policies_clear(&made);
        return r;
    }
    config_policies_clear(p);
    *p = made;
    return 0;
}

json_t *config_policies_get(const struct config_policies *p)
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < p->n; i++) {
        json_t *item = json_pack("{s:s, s:o}", "path", p->items[i].path, "settings",
                                 config_settings_get(&p->items[i].settings));

        if (json_array_append_new(array, item) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}
