/* Chat: renders the model's own chat template, a Jinja2 subset: lexer, parser to a tree, evaluator over JSON
 * values. Byte for byte what Python's jinja2 gives with trim_blocks and lstrip_blocks and Hugging Face's
 * additions. Bounded: a template that recurses, loops or writes without end fails with an error in 100 ms and
 * 16 MiB. Pure and immutable after parsing: any number of threads. Must not know: HTTP, tokens, files, clocks
 * (the date is an argument). Tests: tests/unit/test_chat.c, tests/e2e/test_render.py (against jinja2) */
#pragma once
#include "util/buf.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* Copies what it needs. -EINVAL with "line 3 column 9: ..." for a template that cannot be parsed; -ENOMEM. */
int chat_template_parse(const char *text, size_t len, struct chat_template **ret_template, char *err,
                        size_t errlen);
void chat_template_free(struct chat_template *t);

/* Renders with the variables of `vars` (an object: messages, tools, add_generation_prompt, bos_token, ...),
 * whose values are only read. now_s: wall-clock seconds for strftime_now (UTC). Appends to out. -EINVAL with
 * the template's own message for raise_exception and with line and what was wrong otherwise; -E2BIG past a
 * bound; -ENOMEM. */
int chat_template_render(const struct chat_template *t, const json_t *vars, int64_t now_s, struct buf *out,
                         char *err, size_t errlen);

/* The template used when a model brings none: ChatML, and the text by which it ends a turn. */
extern const char chat_template_chatml[];
#define CHAT_CHATML_END "<|im_end|>"
