/* Wrap: text for people at a terminal, in lines of at most WRAP_COLUMNS as far as its words allow. Must not
 * know: what it says. Tests: tests/unit/test_util.c */
#pragma once
#include <stdio.h>

#define WRAP_COLUMNS 80u

/* Prints the words of `text`, one space between them, and a line break at the end. The first stands at
 * `column`, up to which the caller has printed; further lines begin with `indent` spaces. */
void wrap_words(FILE *out, const char *text, unsigned column, unsigned indent);
/* Prints paragraphs: an empty line ends one. A line that begins with a space is printed as it is. */
void wrap_text(FILE *out, const char *text);
