/* Wrap: see wrap.h. */
#include "util/wrap.h"
#include <string.h>

/* Columns of UTF-8 text whose characters are one wide. */
static unsigned width(const char *text, size_t len)
{
    unsigned n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* The words of text[0..len), from `column` on, behind a word of this line where `go_on`; returns the column.
 */
static unsigned put_words(FILE *out, const char *text, size_t len, unsigned column, unsigned indent,
                          int go_on)
{
    const char *end = text + len;

    for (text += strspn(text, " \n"); text < end; text += strspn(text, " \n")) {
        size_t n = strcspn(text, " \n");
        unsigned wide;

        if (n > (size_t)(end - text))
            n = (size_t)(end - text);
        wide = width(text, n);
        if (go_on && column + 1 + wide > WRAP_COLUMNS) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (go_on) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, n, out);
        column += wide;
        go_on = 1;
        text += n;
    }
    return column;
}

void wrap_words(FILE *out, const char *text, unsigned column, unsigned indent)
{
    put_words(out, text, strlen(text), column, indent, 0);
    fputc('\n', out);
}

void wrap_text(FILE *out, const char *text)
{
    unsigned column = 0;

    while (*text) {
        size_t len = strcspn(text, "\n");

        if (*text == ' ' || !len) {
            fprintf(out, "%s%.*s\n", column ? "\n" : "", (int)len, text);
            column = 0;
        } else {
            column = put_words(out, text, len, column, 0, column > 0);
        }
        text += len + (text[len] == '\n');
    }
    if (column)
        fputc('\n', out);
}
