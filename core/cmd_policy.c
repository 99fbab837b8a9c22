/* Policy: picks the word of `berth policy`. One thread. Must not know: what a policy decides. Tests:
 * tests/e2e/test_policy_cli.py */
#include "cmd_policy.h"
#include "cmd.h"
#include "util/jsonx.h"
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} words[] = {
    { "check", cmd_policy_check, "whether the server would load a file, and what it found in it" },
};
#define N_WORDS (sizeof words / sizeof words[0])

static void print_usage(FILE *out)
{
    fprintf(out,
            "usage: berth policy WORD ...\n\n"
            "Looks into placement policies: shared objects that decide which conversations are kept.\n\n");
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
