/* Cmd model, inside: the three words of `berth model`, a file each for the long one. */
#pragma once

int cmd_model_info(int argc, char **argv);
int cmd_model_tokenize(int argc, char **argv);
int cmd_model_render(int argc, char **argv);
