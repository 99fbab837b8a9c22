/* Cmd policy, inside: the words of `berth policy`, a file each, and what they share. */
#pragma once
#include "policy/load.h"

struct cmd_strings;

int cmd_policy_check(int argc, char **argv);
int cmd_policy_eval(int argc, char **argv);
int cmd_policy_list(int argc, char **argv);

/* Pairs NAME=VALUE, split. */
struct policy_pairs {
    struct policy_given *items;
    char **texts, **origins; /* what the items point to */
    size_t n;
};

/* `before` is what an origin begins with. What is no pair is passed over, or told with -EINVAL where
 * ret_wrong is given. -ENOMEM. Freed by the caller whatever is returned. */
int policy_pairs_make(const char *const *from, size_t n, const char *before, struct policy_pairs *p,
                      const char **ret_wrong);
void policy_pairs_free(struct policy_pairs *p);

/* Loads `file`, or takes the one that is linked in when it is "builtin", with settings NAME=VALUE and the
 * defaults for the rest: neither a configuration nor the environment is asked, so that the same command does
 * the same everywhere. probe: first in a process of its own, whose crash is an error and no more. Returns -1,
 * or the exit code after the error was printed. */
int cmd_policy_open(const char *file, const struct cmd_strings *sets, bool probe,
                    struct policy_loaded **ret_policy);
