/* Answer event: what the parsers of an answer tell; answer.h says how they fit together. */
#pragma once
#include <stddef.h>

enum answer_kind {
    ANSWER_REASONING,   /* more of it */
    ANSWER_TEXT,        /* more of it */
    ANSWER_CALL,        /* a call begins: the name of the tool */
    ANSWER_ARGUMENTS,   /* more of its arguments: joined they are a JSON object */
    ANSWER_CALL_END,    /* it is complete */
    ANSWER_CALL_BROKEN, /* it ends in the middle: the text it was read from */
};

/* len is 0 for an end only. */
typedef void (*answer_sink)(void *arg, enum answer_kind kind, const char *text, size_t len);
