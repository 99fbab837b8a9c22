/* Print: the config and the table of keys for people: `berth check`, --help-config, conf/README.md.
 * Any thread. Must not know: what a setting does. Tests: tests/unit/test_config.c, tests/e2e/test_check.py */
#include "config/config.h"
#include "config/keys.h"
#include "util/wrap.h"

#include <stdlib.h>
#include <string.h>

enum { VALUE_COLUMN = 60 };

static size_t section_len(const char *name)
{
    return strcspn(name, ".");
}

static bool starts_section(size_t i)
{
    const char *name = config_keys[i].name;

    return i == 0 || strncmp(config_keys[i - 1].name, name, section_len(name) + 1) != 0;
}

/* Takes the reference to `value`. */
static void print_value(FILE *out, const char *name, const char *entry, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
    int n = fprintf(out, "%s%s%s = %s", name, *entry ? "." : "", entry, text ? text : "(out of memory)");

    fprintf(out, "%*s # ", n < VALUE_COLUMN ? VALUE_COLUMN - n : 0, "");
    free(text);
    json_decref(value);
}

void config_print(const struct config *c, FILE *out)
{
    const struct config_whole *whole = (const struct config_whole *)c;

    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        const struct config_origin *origin = &whole->origins[i];
        const struct config_settings *s = (const void *)((const char *)c + key->offset);

        if (key->type == KEY_SETTINGS && s->n) {
            for (size_t k = 0; k < s->n; k++) {
                print_value(out, key->name, s->items[k].name, json_string_nocheck(s->items[k].text));
                fprintf(out, "%s\n", s->items[k].where);
            }
            continue;
        }
        print_value(out, key->name, "", config_key_get(key, c));
        if (origin->source == CONFIG_FROM_FILE)
            fprintf(out, "%s line %u\n", whole->path, origin->line);
        else
            fprintf(out, "%s\n", origin->source == CONFIG_FROM_SET ? "--set" : "default");
    }
}

static void print_text(FILE *out, size_t i, const char *allowed)
{
    const struct config_key *key = &config_keys[i];
    char text[512];
    int n;

    if (starts_section(i))
        fprintf(out, "%s[%.*s]\n", i ? "\n" : "", (int)section_len(key->name), key->name);
    n = fprintf(out, "  %s  ", key->name);
    snprintf(text, sizeof text, "(default %s; %s%s%s; %s)", key->fallback, allowed, *key->unit ? " " : "",
             key->unit, key->reloadable ? "reloadable" : "restart");
    wrap_words(out, text, n > 0 ? (unsigned)n : 0, 6);
    fprintf(out, "%6s", "");
    wrap_words(out, key->help, 6, 6);
}

static void print_markdown(FILE *out, size_t i, const char *allowed)
{
    const struct config_key *key = &config_keys[i];

    if (starts_section(i))
        fprintf(out,
                "%s## %.*s\n\n| key | default | unit | allowed | reloadable | what it is |\n"
                "| --- | --- | --- | --- | --- | --- |\n",
                i ? "\n" : "", (int)section_len(key->name), key->name);
    fprintf(out, "| `%s` | `%s` | %s | %s | %s | %s |\n", key->name, key->fallback,
            *key->unit ? key->unit : "-", allowed, key->reloadable ? "yes" : "no", key->help);
}

void config_print_keys(FILE *out, bool markdown)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        char allowed[160];

        config_key_allowed(&config_keys[i], allowed, sizeof allowed);
        if (markdown)
            print_markdown(out, i, allowed);
        else
            print_text(out, i, allowed);
    }
}
