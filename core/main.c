/* Main: picks the subcommand and prints what belongs to none. Arguments and wiring only.
 * Must not know: what a subcommand does with its arguments. Tests: tests/e2e/test_cli.py */
#include "api/api.h"
#include "cmd.h"
#include "cmd_crash.h"
#include "config/config.h"
#include "util/jsonx.h"
#include "util/wrap.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    { "serve", cmd_serve, "serve a model over HTTP" },
    { "check", cmd_check, "check a configuration and print the effective one" },
    { "bench", cmd_bench, "measure prompt reading and decoding, or a policy" },
    { "policy", cmd_policy, "look into placement policies: check, eval, list" },
    { "model", cmd_model, "look into a model file: info, tokenize, render" },
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

void cmd_error(const char *fmt, ...)
{
    char text[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* One line whatever an argument held. */
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = ' ';
    fflush(stdout); /* where both go to one place what was printed before stands before it */
    fprintf(stderr, "berth: %s\n", text);
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: berth COMMAND [OPTION]...\n\n"
                 "Serves a language model over HTTP.\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-15s %s\n", commands[i].name, commands[i].about);
    fprintf(out, "\n  %-15s %s\n  %-15s %s\n  %-15s %s\n  %-15s %s\n  %-15s %s\n\n", "--help",
            "print this; berth COMMAND --help tells more", "--help-config", "print every configuration key",
            "--help-api", "print every request field of every endpoint", "--help-metrics",
            "print every figure of /metrics", "--version", "print the version");
    wrap_text(out,
              "Exit codes: 0 ok, 1 failed, 2 for a command line that cannot be meant: an unknown option or "
              "key, a value out of its bounds, in --set too; what only turns out when it is tried, a file "
              "that is not there for one, is 1.");
}

static int fail_unknown(const char *name)
{
    const char *names[N_COMMANDS + 5] = { "--help", "--help-config", "--help-api", "--help-metrics",
                                          "--version" },
                                   *nearest;

    for (int i = 0; i < N_COMMANDS; i++)
        names[5 + i] = commands[i].name;
    nearest = jsonx_nearest(name, names, N_COMMANDS + 5);
    if (nearest)
        cmd_error("unknown command \"%.80s\"; did you mean %s? (berth --help lists all)", name, nearest);
    else
        cmd_error("unknown command \"%.80s\" (berth --help lists all)", name);
    return EXIT_USAGE;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        print_usage(stdout);
    else if (strcmp(argv[1], "--version") == 0)
        printf("berth %s\n", BERTH_VERSION);
    else if (strcmp(argv[1], "--help-config") == 0)
        config_print_keys(stdout, argc > 2 && strcmp(argv[2], "--markdown") == 0);
    else if (strcmp(argv[1], "--help-api") == 0)
        api_print_fields(stdout);
    else if (strcmp(argv[1], "--help-metrics") == 0)
        api_metrics_help(stdout, argc > 2 && strcmp(argv[2], "--markdown") == 0);
    else
        return fail_unknown(argv[1]);
    return 0;
}

/* Where a standard stream is closed, the first file opened would take its number, and an error message would
 * go into a socket or a model's cache. What takes its place is open for reading only, so that writing fails
 * as it would have. */
static void fill_standard_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    crash_install();
    jsonx_watch();
    /* Whoever started this may have left it ignored, and then no child could be waited for. */
    signal(SIGCHLD, SIG_DFL);

    int code = run(argc, argv);

    /* A full disk or a closed pipe must not look like success. */
    if ((fflush(stdout) == EOF || ferror(stdout)) && code == 0) {
        cmd_error("could not write to standard output");
        code = 1;
    }
    return code;
}
