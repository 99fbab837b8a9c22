/* Toolcall: finds the tool calls in the text of an answer, as it comes. See answer.h for what comes out.
 *
 *   hermes   <tool_call>{"name": .., "arguments": {..}}</tool_call>, any number, text between (Hermes, Qwen)
 *   mistral  [TOOL_CALLS][{"name": .., "arguments": {..}}, ..] or [TOOL_CALLS]name{..} or name[ARGS]{..} or
 *            name[CALL_ID]id[ARGS]{..}
 *   llama3   {"name": .., "parameters": {..}} as the whole answer or after <|python_tag|>; several after one
 *            another, by ; or white space
 *   json     such an object, or a list of them, as the whole answer
 *   xml      <tool_call><function=name><parameter=key>value</parameter></function></tool_call> (Qwen Coder)
 *   glm      <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call> (GLM)
 *
 * Arguments may be named arguments or parameters, be an object, or a string that holds one; none are {}.
 * xml may hold JSON as hermes does. Where no mark tells a call from an answer in JSON (llama3, json) only an
 * offered tool's name makes it one. Pure; one per generation. Tests: tests/unit/test_answer.c */
#pragma once
#include "model/answer_event.h"
#include "model/jsonscan.h"
#include "model/tagged.h"
#include <stdint.h>

enum toolcall_format {
    TOOLCALL_NONE,
    TOOLCALL_HERMES,
    TOOLCALL_MISTRAL,
    TOOLCALL_LLAMA3,
    TOOLCALL_JSON,
    TOOLCALL_XML,
    TOOLCALL_GLM,
};
#define TOOLCALL_FORMATS 7
#define TOOLCALL_MARKS 6 /* at most */

const char *toolcall_format_name(enum toolcall_format f); /* "none", "hermes", ... */
/* -EINVAL for a name that is none of these. */
int toolcall_format_find(const char *name, enum toolcall_format *ret_format);
/* The texts that a model may write as control tokens and that must be seen all the same; NULL past the end.
 */
const char *toolcall_format_mark(enum toolcall_format f, size_t i);

struct toolcall_options {
    enum toolcall_format format;
    const char *gap;          /* white space that the template writes between text and a call; NULL: "" */
    const char *const *names; /* of the offered tools */
    size_t n_names;
    /* Of each the JSON schema of its arguments, whose strings are told by it (tagged.h); NULL, or NULLs in
     * it: not known. */
    const json_t *const *schemas;
    bool one; /* what follows the first complete call is dropped */
};

struct toolcall;

/* Copies what it needs. -ENOMEM. */
int toolcall_new(const struct toolcall_options *o, struct toolcall **ret_parser);
void toolcall_free(struct toolcall *t);
/* -ENOMEM. */
int toolcall_feed(struct toolcall *t, const char *text, size_t len, answer_sink sink, void *arg);
int toolcall_finish(struct toolcall *t, answer_sink sink, void *arg);
uint32_t toolcall_complete(const struct toolcall *t); /* complete calls so far */
