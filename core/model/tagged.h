/* Tagged: a call whose arguments stand one by one between marks, as it comes, to the JSON object they are.
 * Its marks are those of one format (toolcall.c). Values have no types of their own. Where the tool's schema
 * allows a string, one is JSON only if it reads as a value of another type that the schema allows too; where
 * it doesn't, or is not known, if it reads as JSON at all. Otherwise it is a string. A value ends only where
 * another argument or the end of all follows: files that agents write may hold the marks too. An argument is
 * known when that is read; of several with one name the first counts. Pure. Tests: tests/unit/test_answer.c
 */
#pragma once
#include "util/buf.h"
#include <jansson.h>
#include <stdint.h>

struct tagged_marks {
    const char *name;            /* before the tool's name; NULL: nothing is */
    const char *name_end;        /* behind it; NULL: white space, or the next mark */
    const char *key, *key_end;   /* around an argument's name */
    const char *value;           /* between it and its value; NULL: nothing */
    const char *value_end, *end; /* behind the value, and behind all arguments */
    bool lines;                  /* a line break at either end of a value is no part of it */
};

struct tagged {
    const struct tagged_marks *marks;
    uint8_t state;
    bool named;                 /* the tool is known, and that this is a call of it */
    bool any;                   /* an argument was written */
    struct buf part, key, keys; /* keys: of the arguments so far */
    size_t value_len, behind;   /* of part: the value, and all that is read of what may stand behind it */
};

enum tagged_result { TAGGED_MORE, TAGGED_DONE, TAGGED_BAD };

/* t is zeroed memory, or was used before. */
void tagged_init(struct tagged *t, const struct tagged_marks *marks);
void tagged_clear(struct tagged *t);
/* Takes a byte of what follows the format's opening mark; appends to `name` and to `arguments`. strings:
 * {tool: {argument: bits, ..}, ..}, those that may be strings, with the other types that they may have; may
 * be NULL. */
enum tagged_result tagged_byte(struct tagged *t, char c, const json_t *strings, struct buf *name,
                               struct buf *arguments);
