/* Parse: a file and overrides to a whole config, or an error that says where and what is allowed.
 * Owner: the caller; any thread, one load at a time per result. Must not know: what a setting does.
 * Tests: tests/unit/test_config.c, tests/e2e/test_check.py */
#include "config/config.h"
#include "config/keys.h"
#include "util/buf.h"
#include "util/file.h"
#include "util/jsonx.h"
#include "util/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 1 << 20, MAX_DEPTH = 16, NAME_BYTES = 128 };

struct spot { /* the line of one key of one object */
    const json_t *object;
    char *key;
    unsigned line;
};

struct load {
    struct config_whole *whole;
    const char *path, *dir;
    struct spot *spots;
    size_t n_spots, spots_cap;
    char *err;
    size_t errlen;
};

/* ---- the file ---- */

/* Directory part of path, for relative paths in it; NULL when it has none or memory is short. */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return NULL;
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

/* ---- lines of keys ---- */

static void remember_line(void *arg, const json_t *object, const char *key, unsigned line)
{
    struct load *l = arg;

    if (l->n_spots == l->spots_cap) {
        size_t cap = l->spots_cap ? l->spots_cap * 2 : 64;
        struct spot *spots = reallocarray(l->spots, cap, sizeof *spots);

        /* A line that is not remembered is only missing from an error text. */
        if (!spots)
            return;
        l->spots = spots;
        l->spots_cap = cap;
    }
    l->spots[l->n_spots] = (struct spot){ object, strdup(key), line };
    if (l->spots[l->n_spots].key)
        l->n_spots++;
}

static unsigned line_of(const struct load *l, const json_t *object, const char *key)
{
    for (size_t i = 0; i < l->n_spots; i++)
        if (l->spots[i].object == object && strcmp(l->spots[i].key, key) == 0)
            return l->spots[i].line;
    return 0;
}

static void free_spots(struct load *l)
{
    for (size_t i = 0; i < l->n_spots; i++)
        free(l->spots[i].key);
    free(l->spots);
}

/* ---- errors ---- */

/* Adds where a value stands to the text already in err. */
static void append_where(const char *path, struct config_origin origin, char *err, size_t errlen)
{
    size_t n = strnlen(err, errlen);

    if (n >= errlen)
        return;
    if (origin.source == CONFIG_FROM_SET)
        snprintf(err + n, errlen - n, " (--set)");
    else if (origin.source == CONFIG_FROM_FILE)
        snprintf(err + n, errlen - n, " (%s line %u)", path, origin.line);
}

static int add_where(const struct load *l, struct config_origin origin, int r)
{
    if (r == -ENOMEM)
        snprintf(l->err, l->errlen, "out of memory");
    else
        append_where(l->path, origin, l->err, l->errlen);
    return r;
}

static int fail_unknown(const struct load *l, const char *name)
{
    const char *nearest = config_key_nearest(name);

    if (config_key_is_section(name))
        snprintf(l->err, l->errlen, "%s: a section, not a key; berth --help-config lists its keys", name);
    else if (nearest)
        snprintf(l->err, l->errlen, "%s: unknown key; did you mean %s?", name, nearest);
    else
        snprintf(l->err, l->errlen, "%s: unknown key; berth --help-config lists all", name);
    return -EINVAL;
}

/* ---- walking ---- */

static void where_in_file(void *arg, const json_t *object, const char *name, char *dst, size_t dstlen)
{
    const struct load *l = arg;

    snprintf(dst, dstlen, "%s line %u", l->path, line_of(l, object, name));
}

static void where_in_set(void *arg, const json_t *object, const char *name, char *dst, size_t dstlen)
{
    (void)arg, (void)object, (void)name;
    snprintf(dst, dstlen, "--set");
}

static int set_key(struct load *l, const char *name, const json_t *value, struct config_origin origin)
{
    const struct config_key *key = config_key_find(name);
    bool in_file = origin.source == CONFIG_FROM_FILE;
    struct config_stand stand = { .dir = in_file ? l->dir : NULL,
                                  .where = in_file ? where_in_file : where_in_set,
                                  .arg = l };
    int r;

    if (!key)
        return add_where(l, origin, fail_unknown(l, name));
    r = config_key_set(key, &l->whole->config, value, &stand, l->err, l->errlen);
    if (r < 0)
        return add_where(l, origin, r);
    l->whole->origins[key - config_keys] = origin;
    return 0;
}

/* "section" + "key", cut to what an error text should hold. */
static void join_name(char dst[NAME_BYTES], const char *prefix, const char *key)
{
    int n = snprintf(dst, NAME_BYTES, "%s%s%s", prefix, *prefix ? "." : "", key);

    if (n >= NAME_BYTES)
        dst[NAME_BYTES - 1 - utf8_incomplete_tail(dst, NAME_BYTES - 1)] = '\0';
}

/* A dotted name would be a second way to say a key, and both could stand in a file. */
static int fail_dotted(const struct load *l, const char *key)
{
    const char *dot = strchr(key, '.');

    if (!config_key_find(key))
        return fail_unknown(l, key);
    snprintf(l->err, l->errlen, "%s: unknown key; \"%s\" belongs in \"%.*s\"", key, dot + 1, (int)(dot - key),
             key);
    return -EINVAL;
}

/* Sets everything below `object`, whose own path is `prefix`. Recursion: sections have no sections. */
static int set_object(struct load *l, const char *prefix, json_t *object)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        struct config_origin origin = { CONFIG_FROM_FILE, line_of(l, object, key) };
        char name[NAME_BYTES];
        int r;

        join_name(name, prefix, key);
        if (strchr(key, '.')) {
            r = add_where(l, origin, *prefix ? fail_unknown(l, name) : fail_dotted(l, name));
        } else if (!config_key_is_section(name)) {
            r = set_key(l, name, value, origin);
        } else if (json_is_object(value)) {
            r = set_object(l, name, value);
        } else {
            snprintf(l->err, l->errlen, "%s: %s where an object is wanted", name, jsonx_type_name(value));
            r = add_where(l, origin, -EINVAL);
        }
        if (r < 0)
            return r;
    }
    return 0;
}

static int load_file(struct load *l)
{
    struct buf text = { 0 };
    char *dir = directory_of(l->path), parse_err[256];
    json_t *root = NULL;
    int r = file_read(l->path, MAX_FILE_BYTES, &text, l->err, l->errlen);

    if (r < 0)
        goto out;
    l->dir = dir;
    r = jsonx_parse_lines(text.data ? text.data : "", text.len, MAX_DEPTH, remember_line, l, &root, parse_err,
                          sizeof parse_err);
    if (r < 0) {
        snprintf(l->err, l->errlen, "%s %s", l->path, parse_err);
        r = r == -ENOMEM ? r : -EINVAL;
        goto out;
    }
    if (!json_is_object(root)) {
        snprintf(l->err, l->errlen, "%s: %s where an object is wanted", l->path, jsonx_type_name(root));
        r = -EINVAL;
        goto out;
    }
    r = set_object(l, "", root);
out:
    json_decref(root);
    buf_free(&text);
    free(dir);
    return r;
}

/* ---- defaults and overrides ---- */

static int load_defaults(struct load *l)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const char *text = config_keys[i].fallback;
        json_t *value;
        int r = jsonx_parse(text, strlen(text), MAX_DEPTH, true, &value, l->err, l->errlen);

        if (r < 0)
            return r;
        r = set_key(l, config_keys[i].name, value, (struct config_origin){ CONFIG_FROM_DEFAULT, 0 });
        json_decref(value);
        if (r < 0)
            return r;
    }
    return 0;
}

/* "a,b" as a list of strings, or of the policies at these paths; "" as an empty one. */
static json_t *split_list(const char *text, bool policies)
{
    json_t *array = json_array();

    while (array && *text) {
        size_t n = strcspn(text, ",");
        json_t *item = json_stringn(text, n);

        if (policies)
            item = json_pack("{s:o}", "path", item);
        if (json_array_append_new(array, item) < 0) {
            json_decref(array);
            return NULL;
        }
        text += n;
        text += *text == ',';
    }
    return array;
}

/* What an operator typed after "=", as JSON: strings need no quotes there, lists no brackets. NULL: out of
 * memory or not UTF-8. */
static json_t *value_of_override(const struct config_key *key, const char *text)
{
    bool is_text = key->type == KEY_TEXT || key->type == KEY_PATH || key->type == KEY_CHOICE;
    char ignored[64];
    json_t *value;

    if ((key->type == KEY_LIST || key->type == KEY_POLICIES) && *text != '[')
        return split_list(text, key->type == KEY_POLICIES);
    if (!is_text || strcmp(text, "null") == 0) {
        int r = jsonx_parse(text, strlen(text), MAX_DEPTH, true, &value, ignored, sizeof ignored);
        if (r == 0)
            return value;
        if (r == -ENOMEM)
            return NULL;
    }
    return json_string(text);
}

/* One entry of an object, which leaves the others as they are. */
static int put_entry(struct load *l, const struct config_key *key, const char *entry, const char *text)
{
    struct config_origin origin = { CONFIG_FROM_SET, 0 };
    struct config_settings *settings = (void *)((char *)&l->whole->config + key->offset);
    int r =
        config_settings_put(settings, key->name, (size_t)key->max, entry, text, "--set", l->err, l->errlen);

    if (r < 0)
        return add_where(l, origin, r);
    l->whole->origins[key - config_keys] = origin;
    return 0;
}

static int apply_override(struct load *l, const char *set)
{
    struct config_origin origin = { CONFIG_FROM_SET, 0 };
    const char *equals = strchr(set, '='), *entry;
    char name[NAME_BYTES];
    const struct config_key *key;
    json_t *value;
    int r;

    if (!utf8_valid(set, strlen(set))) {
        snprintf(l->err, l->errlen, "an override is not valid UTF-8 (--set)");
        return -EINVAL;
    }
    join_name(name, "", set);
    if (!equals || equals == set) {
        snprintf(l->err, l->errlen, "\"%s\": an override is KEY=VALUE, and the %s is missing (--set)", name,
                 equals ? "key" : "\"=\" and the value");
        return -EINVAL;
    }
    if ((size_t)(equals - set) >= sizeof name)
        return add_where(l, origin, fail_unknown(l, name));
    name[equals - set] = '\0';
    key = config_key_of_entry(name, &entry);
    if (key)
        return put_entry(l, key, entry, equals + 1);
    key = config_key_find(name);
    if (!key)
        return add_where(l, origin, fail_unknown(l, name));
    value = value_of_override(key, equals + 1);
    if (!value)
        return add_where(l, origin, -ENOMEM);
    r = set_key(l, name, value, origin);
    json_decref(value);
    return r;
}

/* A name or a value may have held anything. */
static void make_one_line(char *err)
{
    for (; *err; err++)
        if ((unsigned char)*err < 0x20 || *err == 0x7f)
            *err = ' ';
}

int config_load(const char *path, const char *const *sets, size_t n_sets, struct config **ret_config,
                char *err, size_t errlen)
{
    struct load l = { .path = path, .err = err, .errlen = errlen };
    int r = -ENOMEM;

    if (errlen)
        err[0] = '\0';
    l.whole = calloc(1, sizeof *l.whole + config_n_keys * sizeof l.whole->origins[0]);
    if (!l.whole || (path && !(l.whole->path = strdup(path)))) {
        snprintf(err, errlen, "out of memory");
        goto out;
    }
    r = load_defaults(&l);
    if (r == 0 && path)
        r = load_file(&l);
    for (size_t i = 0; r == 0 && i < n_sets; i++) {
        r = apply_override(&l, sets[i]);
        r = r == -EINVAL ? CONFIG_BAD_SET : r;
    }
out:
    free_spots(&l);
    if (r == 0)
        *ret_config = &l.whole->config;
    else if (l.whole)
        config_free(&l.whole->config);
    if (r < 0 && errlen)
        make_one_line(err);
    return r;
}

bool config_is_default(const struct config *c, const char *key)
{
    const struct config_whole *whole = (const struct config_whole *)c;
    return whole->origins[config_key_find(key) - config_keys].source == CONFIG_FROM_DEFAULT;
}

static void append_origin(const struct config *c, const char *key, char *err, size_t errlen)
{
    const struct config_whole *whole = (const struct config_whole *)c;
    append_where(whole->path, whole->origins[config_key_find(key) - config_keys], err, errlen);
}

static int check_pool(const struct config *c, char *err, size_t errlen)
{
    if (c->model.context == CONFIG_AUTO || c->engine.kv_tokens == CONFIG_AUTO ||
        c->engine.kv_tokens >= c->model.context)
        return 0;
    snprintf(
        err, errlen,
        "engine.kv_tokens: %lld is below model.context, %lld tokens; raise it, or lower the context with "
        "--set model.context=%lld",
        (long long)c->engine.kv_tokens, (long long)c->model.context, (long long)c->engine.kv_tokens);
    append_origin(c, "engine.kv_tokens", err, errlen);
    return -EINVAL;
}

static int check_groups(const struct config *c, char *err, size_t errlen)
{
    if (c->engine.groups == CONFIG_AUTO || c->engine.slots % c->engine.groups == 0)
        return 0;
    snprintf(
        err, errlen,
        "engine.groups: %lld groups do not divide the %lld slots of engine.slots: each has as many slots",
        (long long)c->engine.groups, (long long)c->engine.slots);
    append_origin(c, "engine.groups", err, errlen);
    return -EINVAL;
}

int config_check_rules(const struct config *c, char *err, size_t errlen)
{
    int r = check_pool(c, err, errlen);

    return r < 0 ? r : check_groups(c, err, errlen);
}

int config_check_files(const struct config *c, char *err, size_t errlen)
{
    const struct config_whole *whole = (const struct config_whole *)c;

    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        const char *path;
        struct stat st;

        if (key->type != KEY_PATH || key->tried_later)
            continue;
        path = *(char *const *)((const char *)c + key->offset);
        if (!path)
            continue;
        if (access(path, R_OK) < 0 || stat(path, &st) < 0)
            snprintf(err, errlen, "%s: %s: %s", key->name, path, strerror(errno));
        else if (S_ISDIR(st.st_mode))
            snprintf(err, errlen, "%s: %s is a directory where a file is wanted", key->name, path);
        else
            continue;
        append_where(whole->path, whole->origins[i], err, errlen);
        return -EINVAL;
    }
    return 0;
}

int config_keep_fixed(struct config *next, const struct config *running,
                      void (*changed)(void *arg, const char *key), void *arg)
{
    static const struct config_stand nowhere = { 0 };
    char ignored[256];

    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];

        if (key->reloadable)
            continue;

        json_t *was = config_key_get(key, running), *is = config_key_get(key, next);
        bool differs = !json_equal(was, is);
        int r = was && is ? 0 : -ENOMEM;

        if (r == 0 && differs)
            r = config_key_set(key, next, was, &nowhere, ignored, sizeof ignored);
        json_decref(was);
        json_decref(is);
        if (r < 0)
            return -ENOMEM;
        if (differs)
            changed(arg, key->name);
    }
    return 0;
}

void config_free(struct config *c)
{
    struct config_whole *whole = (struct config_whole *)c;

    if (!c)
        return;
    for (size_t i = 0; i < config_n_keys; i++)
        config_key_clear(&config_keys[i], c);
    free(whole->path);
    free(whole);
}
