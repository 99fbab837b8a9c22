/* Policy check: `berth policy check FILE` loads a policy the way the server would, in a process of its own
 * first, and prints what it found. With --probe it is that process (policy/probe.h). One thread.
 * Must not know: how a policy is loaded. Tests: tests/e2e/test_policy_faults.py, tests/abi/test_load.c */
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_policy.h"
#include "policy/load.h"
#include "policy/probe.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

extern char **environ;

/* ---- what was found ---- */

static void print_settings(const struct policy_loaded *p)
{
    const struct slot_policy *e = policy_loaded_entry(p);
    for (uint32_t i = 0; i < e->n_settings; i++) {
        const struct policy_setting *s =
            (const void *)((const char *)e->settings + (size_t)i * e->head.size_setting);
        struct policy_loaded_setting v = policy_loaded_setting_get(p, i);
        printf("%s %s = %s%s%s (%s", i ? "        " : "settings", v.name, v.text, *s->unit ? " " : "",
               s->unit, v.origin);
        if (s->kind == POLICY_INT || s->kind == POLICY_REAL || s->kind == POLICY_SECONDS)
            printf("; %.17g..%.17g", s->min, s->max);
        if (s->env)
            printf("; or %s", s->env);
        printf(")\n           %s\n", s->help);
    }
}

static void print_policy(const struct policy_loaded *p)
{
    const struct slot_policy *e = policy_loaded_entry(p);
    printf("policy   %s %s\nsummary  %s\nabi      %u.%u, needs %u.%u\nsha256   %s\n", e->name, e->version,
           e->summary, e->head.abi_major, e->head.abi_minor, e->head.abi_major, e->head.needs_minor,
           policy_loaded_digest(p));
    print_settings(p);
    printf("self-test passed\n");
}

/* ---- the word ---- */

/* As the probe: nobody is left a core file of it, and it does not outlive who asked. */
static void become_probe(void)
{
    const struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static int fail(const char *path, int r, const char *err, bool probe)
{
    if (!probe) {
        cmd_error("%s: %s", path, err);
        return 1;
    }
    fprintf(stderr, "\n%s\n", err);
    return r == -EDOM ? POLICY_PROBE_SETTINGS : POLICY_PROBE_REFUSED;
}

static int check(const char *path, const struct policy_pairs *sets, const struct policy_pairs *env,
                 bool probe)
{
    char err[1024] = "";
    struct policy_loaded *p;
    const struct policy_load_options o = {
        .path = path,
        .settings = sets->items,
        .n_settings = sets->n,
        .env = env->items,
        .n_env = env->n,
        .probe_program = probe ? NULL : "/proc/self/exe",
    };
    if (probe)
        become_probe();
    int r = policy_load(&o, &p, err, sizeof err);
    if (r < 0)
        return fail(path, r, err, probe);
    if (!probe)
        print_policy(p);
    policy_loaded_unref(p);
    if (probe)
        printf("\n%s\n", POLICY_PROBE_PASSED);
    return 0;
}

static int check_with(const char *path, const struct cmd_strings *sets, bool probe)
{
    struct policy_pairs given = { 0 }, env = { 0 };
    const char *wrong = NULL;
    size_t n = 0;
    int code = EXIT_USAGE;
    while (environ && environ[n])
        n++;
    int r = policy_pairs_make(sets->items, sets->n, "--set", &given, &wrong);
    if (r == 0)
        r = policy_pairs_make((const char *const *)environ, n, "environment", &env, NULL);
    if (r == -EINVAL)
        cmd_error("--set %.80s: NAME=VALUE is wanted", wrong);
    else if (r < 0)
        cmd_error("out of memory");
    else
        code = check(path, &given, &env, probe);
    policy_pairs_free(&given);
    policy_pairs_free(&env);
    return code;
}

int cmd_policy_check(int argc, char **argv)
{
    struct cmd_strings words = { 0 }, sets = { 0 };
    bool probe = false;
    const struct cmd_option options[] = {
        { .name = "--set",
          .value = "NAME=VALUE",
          .help = "A setting of the policy, e.g. --set ttl_max_s=60; may be given several times.",
          .list = &sets },
        { .name = "--probe",
          .help = "Load it in this process, say nothing but how it went, and exit with 3 when it "
                  "is the settings: how the server asks before it loads a file itself.",
          .flag = &probe },
    };
    const struct cmd_spec spec = {
        .usage = "berth policy check FILE [--set NAME=VALUE]...",
        .about =
            "Loads a policy as the server would, in a process of its own first, and prints what it found:\n"
            "name, settings with their values and bounds. Settings are also taken from the environment\n"
            "by the names the policy accepts.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = 1,
    };
    int code = cmd_args_parse(&spec, argc, argv, &words);
    if (code < 0)
        code = check_with(words.items[0], &sets, probe);
    cmd_strings_free(&words);
    cmd_strings_free(&sets);
    return code;
}
