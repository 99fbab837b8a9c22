/* Cmd policy, inside: the words of `berth policy`, a file each. */
#pragma once

int cmd_policy_check(int argc, char **argv);
