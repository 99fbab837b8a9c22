/* Policy: picks the word of `berth policy`, and loads policies for those that ask them. One thread. Must not
 * know: what a policy decides. Tests: tests/e2e/test_policy_eval.py, test_policy_faults.py */
#include "cmd_policy.h"
#include "cmd.h"
#include "cmd_args.h"
#include "util/jsonx.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} words[] = {
    { "check", cmd_policy_check, "whether the server would load a file, and what it found in it" },
    { "eval", cmd_policy_eval, "what a policy answers to cases, one JSON object a line" },
    { "list", cmd_policy_list, "the policies there are, and their settings" },
};
#define N_WORDS (sizeof words / sizeof words[0])

static void print_usage(FILE *out)
{
    fprintf(out, "usage: berth policy WORD ...\n\n"
                 "Looks into placement policies: what decides which conversations are kept.\n\n");
    for (size_t i = 0; i < N_WORDS; i++)
        fprintf(out, "  %-10s %s\n", words[i].name, words[i].about);
    fprintf(out, "\nberth policy WORD --help tells more.\n");
}

int cmd_policy(int argc, char **argv)
{
    const char *names[N_WORDS + 1] = { [N_WORDS] = "--help" }, *nearest;

    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < N_WORDS; i++) {
        if (strcmp(argv[1], words[i].name) == 0)
            return words[i].run(argc - 1, argv + 1);
        names[i] = words[i].name;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return 0;
    }
    nearest = jsonx_nearest(argv[1], names, N_WORDS + 1);
    cmd_error("unknown word \"%.80s\" after policy%s%s (berth policy --help lists all)", argv[1],
              nearest ? "; did you mean " : "", nearest ? nearest : "");
    return EXIT_USAGE;
}

/* ---- settings from the command line ---- */

void policy_pairs_free(struct policy_pairs *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->texts[i]);
        free(p->origins[i]);
    }
    free(p->items);
    free(p->texts);
    free(p->origins);
}

int policy_pairs_make(const char *const *from, size_t n, const char *before, struct policy_pairs *p,
                      const char **ret_wrong)
{
    p->items = calloc(n + 1, sizeof *p->items);
    p->texts = calloc(n + 1, sizeof *p->texts);
    p->origins = calloc(n + 1, sizeof *p->origins);
    if (!p->items || !p->texts || !p->origins)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t len = strcspn(from[i], "=");
        if (!len || !from[i][len]) {
            if (!ret_wrong)
                continue;
            *ret_wrong = from[i];
            return -EINVAL;
        }
        char *text = strdup(from[i]), *origin = NULL;
        if (text)
            text[len] = '\0';
        if (!text || asprintf(&origin, "%s %s", before, text) < 0) {
            free(text);
            return -ENOMEM;
        }
        p->texts[p->n] = text;
        p->origins[p->n] = origin;
        p->items[p->n++] = (struct policy_given){ .name = text, .text = text + len + 1, .origin = origin };
    }
    return 0;
}

/* ---- loading ---- */

static int load(const char *file, const struct policy_pairs *sets, bool probe,
                struct policy_loaded **ret_policy)
{
    char err[1024];
    const struct policy_load_options o = {
        .path = file,
        .settings = sets->items,
        .n_settings = sets->n,
        .probe_program = probe ? "/proc/self/exe" : NULL,
    };
    int r = policy_load(&o, ret_policy, err, sizeof err);
    if (r == 0)
        return -1;
    cmd_error("%s: %s", file, err);
    return r == -EDOM ? EXIT_USAGE : 1;
}

int cmd_policy_open(const char *file, const struct cmd_strings *sets, bool probe,
                    struct policy_loaded **ret_policy)
{
    struct policy_pairs pairs = { 0 };
    const char *wrong = NULL;
    int code = EXIT_USAGE, r = policy_pairs_make(sets->items, sets->n, "--set", &pairs, &wrong);
    if (r == -EINVAL) {
        cmd_error("--set %.80s: NAME=VALUE is wanted", wrong);
    } else if (r < 0) {
        cmd_error("out of memory");
        code = 1;
    } else if (strcmp(file, "builtin") != 0) {
        code = load(file, &pairs, probe, ret_policy);
    } else if (sets->n) {
        cmd_error("--set %s: the built-in policy has no settings", sets->items[0]);
    } else {
        *ret_policy = policy_loaded_ref(policy_loaded_builtin());
        code = -1;
    }
    policy_pairs_free(&pairs);
    return code;
}
