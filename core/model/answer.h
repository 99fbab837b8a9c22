/* Answer: the text of a generation, as it comes, to what it says: reasoning, text, tool calls.
 *
 * Reasoning stands in front, between the template's marks (reasoning.h); tool calls are written in one of the
 * formats of toolcall.h. Whatever the pieces in which the text is fed, the events joined are the same. What
 * is no well-formed call is text, byte for byte; only a call that was announced already and then goes wrong
 * cannot be taken back: ANSWER_CALL_BROKEN ends it and brings its source, so that whoever still holds the
 * call can make text of it. Pure: no threads, no time. One per generation. Must not know: any API's JSON.
 * Tests: tests/unit/test_answer.c */
#pragma once
#include "model/reasoning.h"
#include "model/toolcall.h"

struct answer;

struct answer_options {
    const struct reasoning_marks *marks; /* NULL: nothing is reasoning */
    bool thinking;                       /* the prompt has opened it already */
    struct toolcall_options calls;
};

/* Copies what it needs. -ENOMEM. */
int answer_new(const struct answer_options *o, struct answer **ret_answer);
void answer_free(struct answer *a);
/* Any bytes; events go to sink as soon as they are certain. -ENOMEM. */
int answer_feed(struct answer *a, const char *text, size_t len, answer_sink sink, void *arg);
/* No more is to come. -ENOMEM. */
int answer_finish(struct answer *a, answer_sink sink, void *arg);
/* Complete calls so far. */
uint32_t answer_calls(const struct answer *a);
