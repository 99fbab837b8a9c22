/* Cmd: the subcommands. Each takes its own arguments (argv[0] is the subcommand's name) and returns the exit
 * code: 0 ok, 1 failed, 2 usage. They print results on standard output and errors, one line, on standard
 * error. Arguments and wiring only. */
#pragma once

#define EXIT_USAGE 2

int cmd_serve(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_policy(int argc, char **argv); /* check, eval, list */
int cmd_model(int argc, char **argv);  /* info, tokenize, render */

/* Prints "berth: ..." to standard error. */
__attribute__((format(printf, 1, 2))) void cmd_error(const char *fmt, ...);
