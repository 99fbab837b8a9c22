/* Cmd args: what every subcommand's argument parsing shares: `--name value`, `--name=value`, repeated
 * options, words,
 * --help, and errors that name the nearest known option. One thread, before anything else runs.
 * Must not know: what an option does. Tests: tests/e2e/test_cli.py */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;

/* Strings of argv in order; freed by cmd_strings_free, the strings themselves stay argv's. */
struct cmd_strings {
    const char **items;
    size_t n;
};

/* One option. Exactly one of flag, text and list is set. */
struct cmd_option {
    const char *name;         /* with its dashes: "--config" */
    const char *value;        /* what its value is called in the help: "FILE"; NULL for a flag */
    const char *help;         /* one sentence */
    bool *flag;               /* becomes true */
    const char **text;        /* becomes the value; given twice is an error */
    struct cmd_strings *list; /* every value, in order */
};

#define CMD_OPTION_CONFIG(where)                                                                             \
    {                                                                                                        \
        .name = "--config", .value = "FILE", .help = "Read the configuration from FILE (JSON).",             \
        .text = (where)                                                                                      \
    }
#define CMD_OPTION_SET(where)                                                                                \
    {                                                                                                        \
        .name = "--set", .value = "KEY=VALUE",                                                               \
        .help = "Override one key, e.g. --set engine.threads=2; may be given several times; see "            \
                "berth --help-config.",                                                                      \
        .list = (where)                                                                                      \
    }

struct cmd_spec {
    const char *usage; /* "berth serve [--config FILE] [--set KEY=VALUE]..." */
    const char *about; /* what it does, a sentence or two */
    const struct cmd_option *options;
    size_t n_options;
    size_t min_words, max_words; /* how many arguments that are no options it takes */
};

/* Parses argv[1..argc). Returns -1 to go on, otherwise the exit code to return at once: 0 after --help
 * (printed on standard output), EXIT_USAGE after an error (one line on standard error), 1 when out of memory.
 * `ret_words` may be NULL when max_words is 0. Lists and words must start out zeroed and are to be freed by
 * the caller whatever is returned. */
int cmd_args_parse(const struct cmd_spec *spec, int argc, char **argv, struct cmd_strings *ret_words);
void cmd_strings_free(struct cmd_strings *s);

/* A whole number min..max from an option's text. Returns -1 when right, else EXIT_USAGE after printing what
 * is allowed. */
int cmd_args_int(const char *option, const char *text, int64_t min, int64_t max, int64_t *ret_value);

/* config_load with the error printed. Returns -1 when loaded, else the exit code: EXIT_USAGE when an override
 * was wrong, 1 when the file was. */
int cmd_args_config(const char *path, const struct cmd_strings *sets, struct config **ret_config);
