/* Check: `berth check` loads a configuration the way `berth serve` does, prints the effective values with
 * where each came from, and checks all that serving needs but memory and free ports, by serve's own
 * functions. Changes nothing, starts nothing. Tests: tests/e2e/test_check.py */
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_serve_load.h"
#include "cmd_serve_policy.h"

#include <stdio.h>
#include <stdlib.h>

/* The policies, loaded and let go again; notes about them on standard error. */
static int check_policies(const struct config *config, char *err, size_t errlen)
{
    struct serve_policies p;
    int r = serve_policies_load(config, true, 0, NULL, &p, err, errlen);

    if (r < 0)
        return r;
    if (*p.fallback)
        cmd_error("note: left out, as policy.fallback allows: %s", p.fallback);
    if (*p.unused)
        cmd_error("note: no policy knows these environment names: %s", p.unused);
    serve_policies_clear(&p);
    return 0;
}

static int check(const char *path, const struct cmd_strings *sets)
{
    struct config *config;
    struct http_key *keys = NULL;
    size_t n_keys;
    char err[1400] = "";
    int r, code = cmd_args_config(path, sets, &config);

    if (code >= 0)
        return code;
    config_print(config, stdout);
    r = check_settings(config, false, &keys, &n_keys, err, sizeof err);
    if (r == 0)
        r = check_policies(config, err, sizeof err);
    if (r == 0)
        r = check_model(config, err, sizeof err);
    if (r < 0)
        cmd_error("%s", err);
    else if (r > 0)
        cmd_error("note: %s; the rest is right", err);
    free(keys);
    config_free(config);
    return r < 0 ? 1 : 0;
}

int cmd_check(int argc, char **argv)
{
    const char *path = NULL;
    struct cmd_strings sets = { 0 };
    const struct cmd_option options[] = { CMD_OPTION_CONFIG(&path), CMD_OPTION_SET(&sets) };
    const struct cmd_spec spec = {
        .usage = "berth check [--config FILE] [--set KEY=VALUE]...",
        .about =
            "Checks a configuration and the files it names, the model but for its weights, and prints every\n"
            "key with its value and where the value came from: default, the file's line, or --set.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    int code = cmd_args_parse(&spec, argc, argv, NULL);

    if (code < 0)
        code = check(path, &sets);
    cmd_strings_free(&sets);
    return code;
}
