/* Cmd model, inside: the three words of `berth model`, a file each for the long one. */
#pragma once
#include <stddef.h>

int cmd_model_info(int argc, char **argv);
int cmd_model_tokenize(int argc, char **argv);
int cmd_model_render(int argc, char **argv);

/* Prints text of a file: what a terminal would act on, what turns the direction of writing and what is no
 * UTF-8 is written as \x1b or \u202e. With `quote` a backslash goes before each of that kind of quotes and
 * before backslashes, and a line break is \n; 0: nothing is quoted. */
void cmd_model_print(const char *text, size_t len, char quote);
