/* Jsonscan: checks one JSON value as it comes, byte by byte, and mends in its strings what models get wrong:
 * raw control characters are escaped, a backslash before a letter that is no escape is doubled. Any result
 * is valid JSON but for duplicate keys and the size of numbers. Pure. Tests: tests/unit/test_answer.c */
#pragma once
#include "util/buf.h"
#include <stdint.h>

#define JSONSCAN_DEPTH 100u /* deepest nesting; deeper is malformed */

struct jsonscan {
    uint8_t state;
    bool is_key;                   /* the string is a key */
    uint8_t number;                /* where in a number */
    uint8_t digits;                /* of an escape that are still to come */
    uint16_t unit, high;           /* UTF-16: the unit that is read, and the first of a pair */
    const char *literal;           /* what is left of true, false or null */
    uint8_t depth;                 /* containers open */
    uint8_t stack[JSONSCAN_DEPTH]; /* '{' or '[' */
};

enum jsonscan_result {
    JSONSCAN_MORE,
    JSONSCAN_DONE,   /* the byte ended the value */
    JSONSCAN_BEFORE, /* the value ended before this byte, which is not taken: a number on the outside */
    JSONSCAN_BAD,
};

void jsonscan_init(struct jsonscan *s);
/* Takes a byte and appends what it becomes to out. */
enum jsonscan_result jsonscan_byte(struct jsonscan *s, char c, struct buf *out);
/* What the next byte that is not white space begins. */
enum jsonscan_place { JSONSCAN_INSIDE, JSONSCAN_KEY, JSONSCAN_COLON, JSONSCAN_VALUE, JSONSCAN_NEXT };
enum jsonscan_place jsonscan_place(const struct jsonscan *s);
static inline bool jsonscan_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
