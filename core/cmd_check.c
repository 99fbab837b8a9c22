/* Check: `berth check` loads a configuration the way `berth serve` does, tries the files it names, and prints
 * the effective values with where each came from. Changes nothing, starts nothing. Tests:
 * tests/e2e/test_check.py */
#include "cmd.h"
#include "cmd_args.h"
#include "config/config.h"

#include <stdio.h>

static int check(const char *path, const struct cmd_strings *sets)
{
    struct config *config;
    char err[1024];
    int code = cmd_args_config(path, sets, &config);

    if (code >= 0)
        return code;
    config_print(config, stdout);
    code = 0;
    if (config_check_files(config, err, sizeof err) < 0) {
        cmd_error("%s", err);
        code = 1;
    }
    config_free(config);
    return code;
}

int cmd_check(int argc, char **argv)
{
    const char *path = NULL;
    struct cmd_strings sets = { 0 };
    const struct cmd_option options[] = { CMD_OPTION_CONFIG(&path), CMD_OPTION_SET(&sets) };
    const struct cmd_spec spec = {
        .usage = "berth check [--config FILE] [--set KEY=VALUE]...",
        .about =
            "Checks a configuration and the files it names, and prints every key with its value and where\n"
            "the value came from: default, the file's line, or --set.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    int code = cmd_args_parse(&spec, argc, argv, NULL);

    if (code < 0)
        code = check(path, &sets);
    cmd_strings_free(&sets);
    return code;
}
