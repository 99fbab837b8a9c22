/* Cmd args: see cmd_args.h. Owner: the subcommand that calls it, one thread.
 * Must not know: what an option does. Tests: tests/e2e/test_cli.py */
#include "cmd_args.h"

#include "cmd.h"
#include "config/config.h"
#include "util/jsonx.h"
#include "util/wrap.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 32, HELP_COLUMN = 26 };

static void print_option(const char *name, const char *value, const char *help)
{
    char head[64];

    snprintf(head, sizeof head, "  %s%s%s", name, value ? " " : "", value ? value : "");
    int n = printf("%-*s ", HELP_COLUMN, head);
    wrap_words(stdout, help, n > 0 ? (unsigned)n : 0, HELP_COLUMN + 1);
}

/* Each way to call it on a line of its own. */
static void print_usage(const char *usage)
{
    const char *before = "usage: ", *next;

    for (; (next = strstr(usage, " | berth ")); usage = next + strlen(" | ")) {
        printf("%s%.*s\n", before, (int)(next - usage), usage);
        before = "       ";
    }
    fputs(before, stdout);
    wrap_words(stdout, usage, (unsigned)strlen(before), 11);
}

static void print_help(const struct cmd_spec *spec)
{
    print_usage(spec->usage);
    putchar('\n');
    wrap_text(stdout, spec->about);
    putchar('\n');
    for (size_t i = 0; i < spec->n_options; i++)
        print_option(spec->options[i].name, spec->options[i].value, spec->options[i].help);
    print_option("--help", NULL, "Print this and exit.");
}

static int push(struct cmd_strings *s, int argc, const char *item)
{
    if (!s->items) {
        s->items = calloc((size_t)argc, sizeof *s->items);
        if (!s->items) {
            cmd_error("out of memory");
            return 1;
        }
    }
    s->items[s->n++] = item;
    return -1;
}

void cmd_strings_free(struct cmd_strings *s)
{
    free(s->items);
    *s = (struct cmd_strings){ 0 };
}

/* What other servers call it, as an override here. */
static const struct {
    const char *option, *set;
} foreign[] = {
    { "--port", "server.listen=127.0.0.1:PORT" },
    { "--host", "server.listen=HOST:PORT" },
    { "--model", "model.path=FILE" },
    { "-m", "model.path=FILE" },
    { "--alias", "model.name=NAME" },
    { "--served-model-name", "model.name=NAME" },
    { "--ctx-size", "model.context=TOKENS" },
    { "-c", "model.context=TOKENS" },
    { "--max-model-len", "model.context=TOKENS" },
    { "-t", "engine.threads=N" },
    { "--parallel", "engine.rows=N" },
    { "-np", "engine.rows=N" },
    { "--api-key", "server.keys_file=FILE" },
};

/* Whether `name` is a setting by another server's name, or by the last word of ours: then as an override. */
static bool is_setting(const char *name, char *text, size_t size)
{
    const char *key;

    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (strcmp(name, foreign[i].option) == 0) {
            snprintf(text, size, "%s", foreign[i].set);
            return true;
        }
    }
    key = strncmp(name, "--", 2) == 0 ? config_key_by_word(name + 2) : NULL;
    if (key)
        snprintf(text, size, "%s=VALUE", key);
    return key != NULL;
}

static const struct cmd_option *find_option(const struct cmd_spec *spec, const char *arg, size_t len)
{
    for (size_t i = 0; i < spec->n_options; i++) {
        const char *name = spec->options[i].name;

        if (strlen(name) == len && memcmp(name, arg, len) == 0)
            return &spec->options[i];
    }
    return NULL;
}

static bool has_set(const struct cmd_spec *spec)
{
    return find_option(spec, "--set", strlen("--set")) != NULL;
}

static int fail_unknown(const struct cmd_spec *spec, const char *arg, size_t len)
{
    char set[128];
    const char *names[MAX_OPTIONS] = { "--help" }, *nearest;
    char name[80];
    size_t n = 1;

    snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), arg);
    for (size_t i = 0; i < spec->n_options && n < MAX_OPTIONS; i++)
        names[n++] = spec->options[i].name;
    nearest = jsonx_nearest(name, names, n);
    if (has_set(spec) && is_setting(name, set, sizeof set))
        cmd_error("unknown option %s; did you mean --set %s? (usage: %s)", name, set, spec->usage);
    else if (nearest)
        cmd_error("unknown option %s; did you mean %s? (usage: %s)", name, nearest, spec->usage);
    else
        cmd_error("unknown option %s (usage: %s)", name, spec->usage);
    return EXIT_USAGE;
}

/* Takes the option at argv[*i], and its value where it has one; *i ends on the last argument used. */
static int take_option(const struct cmd_spec *spec, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *equals = strchr(arg, '=');
    size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
    const struct cmd_option *option = find_option(spec, arg, len);
    const char *value;

    if (!option)
        return fail_unknown(spec, arg, len);
    if (option->flag) {
        if (equals) {
            cmd_error("%s takes no value", option->name);
            return EXIT_USAGE;
        }
        *option->flag = true;
        return -1;
    }
    value = equals ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    /* A value that looks like an option is nearly always a forgotten value; --name=--value still says it. */
    if (!value || !*value || (!equals && strncmp(value, "--", 2) == 0)) {
        cmd_error("%s wants a value: %s %s", option->name, option->name, option->value);
        return EXIT_USAGE;
    }
    if (option->list)
        return push(option->list, argc, value);
    if (*option->text) {
        cmd_error("%s is given twice", option->name);
        return EXIT_USAGE;
    }
    *option->text = value;
    return -1;
}

static const char *before_word(const struct cmd_spec *spec, const char *word)
{
    size_t len = strlen(word);

    if (!has_set(spec) || spec->max_words)
        return NULL;
    if (len > 5 && strcmp(word + len - 5, ".json") == 0)
        return "--config ";
    return strchr(word, '=') ? "--set " : "--set model.path=";
}

static int take_word(const struct cmd_spec *spec, int argc, const char *word, struct cmd_strings *words)
{
    if (!words || words->n >= spec->max_words) {
        const char *before = before_word(spec, word);

        cmd_error("unexpected argument \"%s\"%s%s%s%s (usage: %s)", word, before ? "; did you mean " : "",
                  before ? before : "", before ? word : "", before ? "?" : "", spec->usage);
        return EXIT_USAGE;
    }
    return push(words, argc, word);
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int cmd_args_parse(const struct cmd_spec *spec, int argc, char **argv, struct cmd_strings *ret_words)
{
    bool only_words = false;

    if (asks_for_help(argc, argv)) {
        print_help(spec);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        int r;

        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
            continue;
        }
        if (!only_words && argv[i][0] == '-' && argv[i][1] != '\0')
            r = take_option(spec, argc, argv, &i);
        else
            r = take_word(spec, argc, argv[i], ret_words);
        if (r >= 0)
            return r;
    }
    if (ret_words ? ret_words->n < spec->min_words : spec->min_words > 0) {
        cmd_error("an argument is missing (usage: %s)", spec->usage);
        return EXIT_USAGE;
    }
    return -1;
}

int cmd_args_int(const char *option, const char *text, int64_t min, int64_t max, int64_t *ret_value)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < min || v > max) {
        cmd_error("%s: \"%s\" is not a whole number %" PRId64 "..%" PRId64, option, text, min, max);
        return EXIT_USAGE;
    }
    *ret_value = v;
    return -1;
}

int cmd_args_config(const char *path, const struct cmd_strings *sets, struct config **ret_config)
{
    char err[1024];

    int r = config_load(path, sets ? sets->items : NULL, sets ? sets->n : 0, ret_config, err, sizeof err);
    if (r < 0) {
        cmd_error("%s", err);
        return r == CONFIG_BAD_SET ? EXIT_USAGE : 1;
    }
    return -1;
}
