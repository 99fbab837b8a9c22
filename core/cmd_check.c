/* Check: `berth check` loads a configuration the way `berth serve` does, prints the effective values with
 * where each came from, and checks all that serving needs but free memory and free ports, by serve's own
 * functions; one line says how that ended. Changes nothing, starts nothing. Tests: tests/e2e/test_check.py */
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_serve_load.h"
#include "cmd_serve_policy.h"
#include "policy/trace.h"
#include "util/jsonx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_trace(const struct serve_policies *p, char *err, size_t errlen)
{
    char why[1024] = "";
    int r = p->trace ? policy_trace_check(p->trace_path, why, sizeof why) : 0;

    if (r < 0)
        snprintf(err, errlen, "trace.path: %s", why);
    return r;
}

/* The policies, loaded and let go again; notes about them on standard error. */
static int check_policies(const struct config *config, char name[64], char *err, size_t errlen)
{
    struct serve_policies p;
    int r = serve_policies_load(config, true, 0, NULL, &p, err, errlen);

    if (r < 0)
        return r;
    if (*p.fallback)
        cmd_error("note: left out, as policy.fallback allows: %s", p.fallback);
    if (*p.unused)
        cmd_error("note: no policy knows these environment names: %s", p.unused);
    snprintf(name, 64, "%s", policy_loaded_name(p.policy));
    r = check_trace(&p, err, errlen);
    serve_policies_clear(&p);
    return r;
}

static int check(const char *path, const struct cmd_strings *sets)
{
    struct config *config;
    struct loaded model = { 0 };
    struct http_key *keys = NULL;
    size_t n_keys;
    char err[1400] = "", policy[64];
    int r, code = cmd_args_config(path, sets, &config);

    if (code >= 0)
        return code;
    config_print(config, stdout);
    if (jsonx_starved()) { /* some values were not printed */
        cmd_error("out of memory");
        config_free(config);
        return 1;
    }
    r = check_settings(config, false, &keys, &n_keys, err, sizeof err);
    if (r == 0)
        r = check_policies(config, policy, err, sizeof err);
    if (r == 0)
        r = check_model(config, &model, err, sizeof err);
    if (r < 0)
        cmd_error("%s", err);
    else if (r > 0)
        cmd_error("note: %s; the rest is right", err);
    else
        printf("ok: model %s, device %s, activations %s, context %u, kv_tokens %u, %u slots, policy %s\n",
               model.name, model.device, model.info.activations, model.context, model.kv_tokens, model.slots,
               policy);
    loaded_clear(&model);
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
        .about = "Prints every key with its value and where the value came from: default, the file's line, "
                 "or --set.\n"
                 "Then checks all that berth serve would: the files it names, the model but for most of its "
                 "weights,\n"
                 "the device, the policies; not whether memory and addresses are free now. \"ok: ...\" is "
                 "the last\n"
                 "line when all is right.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    int code = cmd_args_parse(&spec, argc, argv, NULL);

    if (code < 0)
        code = check(path, &sets);
    cmd_strings_free(&sets);
    return code;
}
