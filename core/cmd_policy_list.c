/* Policy list: `berth policy list` loads every policy of a folder, as the server would, and tells its name,
 * what it says of itself and its settings with their bounds. One thread. Must not know: what a policy
 * decides. Tests: tests/e2e/test_policy_eval.py */
#include "abi/policy_words.h"
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_policy.h"
#include "cmd_serve_policy.h"
#include "policy/loaded.h"
#include "util/jsonx.h"
#include "util/wrap.h"
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(uint32_t kind)
{
    static const char *const names[] = {
        [POLICY_INT] = "int",   [POLICY_REAL] = "real", [POLICY_SECONDS] = "seconds",
        [POLICY_BOOL] = "bool", [POLICY_TEXT] = "text", [POLICY_CHOICE] = "choice",
    };
    return kind < sizeof names / sizeof names[0] && names[kind] ? names[kind] : "unknown";
}

static bool has_bounds(const struct policy_setting *s)
{
    return s->kind == POLICY_INT || s->kind == POLICY_REAL || s->kind == POLICY_SECONDS ||
           s->kind == POLICY_TEXT;
}

/* Setting i, what an older policy's table does not have being 0. */
static struct policy_setting setting_of(const struct policy_loaded *p, uint32_t i)
{
    const struct slot_policy *e = policy_loaded_entry(p);
    struct policy_setting s = { 0 };
    uint32_t stride = e->head.size_setting;
    memcpy(&s, policy_element(e->settings, i, stride), stride < sizeof s ? stride : sizeof s);
    return s;
}

/* ---- text ---- */

static void print_allowed(const struct policy_setting *s)
{
    if (s->kind == POLICY_CHOICE)
        for (uint32_t i = 0; i < s->n_choices; i++)
            printf("%s%s", i ? " " : "", s->choices[i]);
    else if (s->kind == POLICY_BOOL)
        printf("true or false");
    else
        printf("%.15g..%.15g%s%s", s->min, s->max,
               s->kind == POLICY_TEXT ? " bytes"
               : *s->unit             ? " "
                                      : "",
               s->kind == POLICY_TEXT ? "" : s->unit);
}

static void print_setting(const struct policy_setting *s)
{
    printf("    %s = %s (", s->name, s->default_text);
    print_allowed(s);
    printf(")%s%s\n        ", s->env ? " " : "", s->env ? s->env : "");
    wrap_words(stdout, s->help, 8, 8);
}

static void print_text(const struct policy_loaded *p)
{
    const struct slot_policy *e = policy_loaded_entry(p);
    printf("%s %s  %s\n    ", e->name, e->version, policy_loaded_path(p));
    wrap_words(stdout, e->summary, 4, 4);
    for (uint32_t i = 0; i < e->n_settings; i++) {
        struct policy_setting s = setting_of(p, i);
        print_setting(&s);
    }
}

/* ---- JSON ---- */

static json_t *setting_json(const struct policy_setting *s)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?}", "name", s->name, "kind", kind_name(s->kind),
                          "default", s->default_text, "unit", s->unit, "help", s->help, "env", s->env);
    if (o && has_bounds(s)) {
        json_object_set_new(o, "min", json_real(s->min));
        json_object_set_new(o, "max", json_real(s->max));
    }
    if (o && s->kind == POLICY_CHOICE) {
        json_t *choices = json_array();
        for (uint32_t i = 0; i < s->n_choices; i++)
            json_array_append_new(choices, json_string(s->choices[i]));
        json_object_set_new(o, "choices", choices);
    }
    return o;
}

static json_t *policy_json(const struct policy_loaded *p)
{
    const struct slot_policy *e = policy_loaded_entry(p);
    json_t *settings = json_array();
    for (uint32_t i = 0; i < e->n_settings; i++) {
        struct policy_setting s = setting_of(p, i);
        json_array_append_new(settings, setting_json(&s));
    }
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:o}", "path", jsonx_text(policy_loaded_path(p)), "name",
                     e->name, "version", e->version, "summary", e->summary, "digest", policy_loaded_digest(p),
                     "settings", settings);
}

/* ---- the folder ---- */

static int tell(const char *file, json_t *list)
{
    const struct cmd_strings none = { 0 };
    struct policy_loaded *p;
    int code = cmd_policy_open(file, &none, true, &p);
    if (code >= 0)
        return code;
    code = 0;
    if (!list) {
        print_text(p);
    } else if (json_array_append_new(list, policy_json(p)) < 0) {
        cmd_error("%s: what it says of itself is not UTF-8", file);
        code = 1;
    }
    policy_loaded_unref(p);
    return code;
}

static int is_object(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return e->d_name[0] != '.' && len > 3 && strcmp(e->d_name + len - 3, ".so") == 0;
}

static int tell_folder(const char *folder, json_t *list)
{
    char path[8192];
    struct dirent **found;
    int code = 0, n = scandir(folder, &found, is_object, alphasort);
    if (n < 0) {
        cmd_error("%s: %s", folder, strerror(errno));
        return 1;
    }
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, found[i]->d_name);
        code |= tell(path, list) != 0;
        free(found[i]);
    }
    free(found);
    return code;
}

/* The built-in one and all of the folder; those that cannot be loaded are named on standard error. */
static int run(const char *folder, bool json)
{
    char installed[4096];
    json_t *list = json ? json_array() : NULL;
    int r = folder ? 0 : serve_policies_folder(installed, sizeof installed);
    int code = tell("builtin", list);
    if (r < 0)
        cmd_error("the folder of the policies is not found: %s", strerror(-r));
    code |= r < 0 ? 1 : tell_folder(folder ? folder : installed, list);
    if (list && json_dumpf(list, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15)) < 0)
        code = 1;
    if (list)
        putchar('\n');
    json_decref(list);
    return code;
}

int cmd_policy_list(int argc, char **argv)
{
    struct cmd_strings words = { 0 };
    bool json = false;
    const struct cmd_option options[] = {
        { .name = "--json", .help = "Print JSON.", .flag = &json },
    };
    const struct cmd_spec spec = {
        .usage = "berth policy list [FOLDER] [--json]",
        .about =
            "Loads the built-in policy and those in FOLDER, or where berth's own are installed, and prints "
            "for\n"
            "each its name, version, file and summary, and its settings: default, bounds, environment name.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);

    if (code < 0)
        code = run(words.n ? words.items[0] : NULL, json);
    cmd_strings_free(&words);
    return code;
}
