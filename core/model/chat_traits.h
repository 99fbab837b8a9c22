/* Chat traits: what a chat template can do, found by rendering small conversations with it and looking at
 * what comes out: whether it lists tools, writes calls and results, takes a second system message, and in
 * which format calls are written. Found once, at start; pure. Must not know: any API.
 * Tests: tests/unit/test_traits.c */
#pragma once
#include "model/chat.h"
#include "model/reasoning.h"
#include "model/toolcall.h"

struct chat_traits {
    bool tools;          /* lists the tools it is given */
    bool calls;          /* writes the calls of an assistant's message */
    bool several;        /* takes a message with more than one call */
    bool results;        /* writes messages of role tool */
    bool arguments_text; /* wants arguments as JSON text, not as an object */
    bool short_ids;      /* refuses ids of calls that are not nine letters and digits */
    bool system;         /* writes a system message in front */
    bool system_later;   /* and one later on, at its place */
    bool repeats;        /* takes two messages of one role in a row */
    enum toolcall_format format;
    char gap[8]; /* white space between text and a call */
    const struct reasoning_marks *marks;
};

/* `source` is the text that `t` was parsed from. */
void chat_traits_find(const struct chat_template *t, const char *source, struct chat_traits *ret_traits);
