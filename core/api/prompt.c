/* Prompt: a conversation to the tokens that the model reads. Where the model's template lacks something (it
 * lists no tools, takes no second system message, ...; model/chat_traits.h) the conversation is put in terms
 * that it has: always the same way, so that what was rendered for one turn begins what is rendered for the
 * next. Thread: the workers'. Tests: tests/e2e/test_chat.py, test_tools.py, test_prefixes.py */
#include "api/private.h"
#include "util/clock.h"
#include "util/digest.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *message, const char *key)
{
    const char *text = json_string_value(json_object_get(message, key));
    return text ? text : "";
}

static bool is_role(const json_t *message, const char *role)
{
    return strcmp(text_of(message, "role"), role) == 0;
}

/* A value as templates write it. */
static void put_json(const struct exchange *ex, json_t *value, struct buf *out)
{
    char err[160];
    json_t *vars = json_pack("{s:O}", "value", value);
    if (!vars || chat_template_render(ex->api->to_json, vars, 0, out, err, sizeof err) < 0)
        out->failed = true;
    json_decref(vars);
}

static void set_text(json_t *message, const char *key, const struct buf *text)
{
    json_object_set_new(message, key,
                        text->failed ? NULL : json_stringn(text->len ? text->data : "", text->len));
}

/* ---- tools for a template that knows none ---- */

/* What a model is told that was not trained with a form of its own; it is Hermes', which many have seen. */
static void put_tools(const struct exchange *ex, struct buf *out)
{
    buf_puts(
        out,
        "You can call functions. Each is described by a line of JSON between <tools> and </tools>:\n<tools>");
    for (size_t i = 0; i < json_array_size(ex->request.tools); i++) {
        buf_putc(out, '\n');
        put_json(ex, json_array_get(ex->request.tools, i), out);
    }
    buf_puts(out, "\n</tools>\nTo call one, write its name and arguments like this, once for each call:\n"
                  "<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>");
}

static void describe_tools(const struct exchange *ex, json_t *messages)
{
    json_t *first = json_array_get(messages, 0);
    struct buf text = { 0 };
    if (is_role(first, "system")) {
        buf_puts(&text, text_of(first, "content"));
        buf_puts(&text, "\n\n");
    } else {
        first = talk_message("system", json_string(""));
        json_array_insert_new(messages, 0, first);
    }
    put_tools(ex, &text);
    set_text(first, "content", &text);
    buf_free(&text);
}

/* An assistant's calls as the text they were. */
static void write_calls(const struct exchange *ex, json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    struct buf text = { 0 };
    buf_puts(&text, text_of(message, "content"));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        json_t *call = json_pack("{s:O, s:O}", "name", json_object_get(function, "name"), "arguments",
                                 json_object_get(function, "arguments"));
        buf_puts(&text, text.len ? "\n<tool_call>\n" : "<tool_call>\n");
        put_json(ex, call, &text);
        buf_puts(&text, "\n</tool_call>");
        json_decref(call);
    }
    set_text(message, "content", &text);
    json_object_del(message, "tool_calls");
    buf_free(&text);
}

static void write_result(json_t *message)
{
    struct buf text = { 0 };
    buf_puts(&text, "<tool_response>\n");
    buf_puts(&text, text_of(message, "content"));
    buf_puts(&text, "\n</tool_response>");
    json_object_set_new(message, "role", json_string("user"));
    set_text(message, "content", &text);
    buf_free(&text);
}

/* ---- calls in the form that the template wants ---- */

static void shorten_id(json_t *object, const char *key)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const char *id = text_of(object, key);
    uint8_t digest[DIGEST_LEN];
    char text[10] = "";
    if (strlen(id) == 9 && strspn(id, letters) == 9)
        return;
    digest_sha256(id, strlen(id), digest);
    for (int i = 0; i < 9; i++)
        text[i] = letters[digest[i] % 62];
    json_object_set_new(object, key, json_string(text));
}

static void fit_calls(const struct exchange *ex, json_t *message)
{
    const struct chat_traits *t = &ex->api->traits;
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        if (t->short_ids)
            shorten_id(call, "id");
        if (!t->arguments_text || json_is_string(json_object_get(function, "arguments")))
            continue;
        struct buf text = { 0 };
        put_json(ex, json_object_get(function, "arguments"), &text);
        set_text(function, "arguments", &text);
        buf_free(&text);
    }
}

static void fit_message(const struct exchange *ex, json_t *message, size_t i)
{
    const struct chat_traits *t = &ex->api->traits;
    if (json_object_get(message, "tool_calls")) {
        if (t->calls)
            fit_calls(ex, message);
        else
            write_calls(ex, message);
    }
    if (is_role(message, "tool") || is_role(message, "function")) {
        if (!t->results)
            write_result(message);
        else if (t->short_ids)
            shorten_id(message, "tool_call_id");
    }
    if (i && is_role(message, "system") && !t->system_later)
        json_object_set_new(message, "role", json_string("user"));
}

/* ---- messages that a template has no place for ---- */

/* Appends those of the results messages[from..to) that belong to the call with this id. */
static void take_results(const json_t *messages, size_t from, size_t to, const char *id, json_t *out)
{
    for (size_t i = from; i < to; i++)
        if (strcmp(text_of(json_array_get(messages, i), "tool_call_id"), id) == 0)
            json_array_append(out, json_array_get(messages, i));
}

/* The calls of message i become messages of their own, each followed by its result. */
static void split_calls(json_t *messages, size_t i)
{
    json_t *message = json_array_get(messages, i), *out = json_array();
    json_t *calls = json_incref(json_object_get(message, "tool_calls"));
    size_t end = i + 1;
    while (is_role(json_array_get(messages, end), "tool"))
        end++;
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *call = json_array_get(calls, k);
        json_t *one = k ? talk_message("assistant", json_string("")) : json_incref(message);
        json_object_set_new(one, "tool_calls", json_pack("[O]", call));
        json_array_append_new(out, one);
        take_results(messages, i + 1, end, text_of(call, "id"), out);
    }
    json_incref(message);
    for (size_t k = i; k < end; k++)
        json_array_remove(messages, i);
    for (size_t k = 0; k < json_array_size(out); k++)
        json_array_insert(messages, i + k, json_array_get(out, k));
    json_decref(message);
    json_decref(calls);
    json_decref(out);
}

/* Message i becomes part of the one before it. */
static void join(json_t *messages, size_t i)
{
    json_t *before = json_array_get(messages, i - 1);
    struct buf text = { 0 };
    buf_puts(&text, text_of(before, "content"));
    if (text.len && *text_of(json_array_get(messages, i), "content"))
        buf_puts(&text, "\n\n");
    buf_puts(&text, text_of(json_array_get(messages, i), "content"));
    set_text(before, "content", &text);
    buf_free(&text);
    json_array_remove(messages, i);
}

static bool repeats(const json_t *messages, size_t i)
{
    const json_t *a = json_array_get(messages, i - 1), *b = json_array_get(messages, i);
    return (is_role(b, "user") || is_role(b, "assistant")) && is_role(a, text_of(b, "role")) &&
           !json_object_get(a, "tool_calls") && !json_object_get(b, "tool_calls");
}

static void fit_system(const struct exchange *ex, json_t *messages)
{
    const struct chat_traits *t = &ex->api->traits;
    while (!t->system_later && is_role(json_array_get(messages, 0), "system") &&
           is_role(json_array_get(messages, 1), "system"))
        join(messages, 1);
    if (!t->system && is_role(json_array_get(messages, 0), "system")) {
        json_object_set_new(json_array_get(messages, 0), "role", json_string("user"));
        if (is_role(json_array_get(messages, 1), "user"))
            join(messages, 1);
    }
}

static void fit(struct exchange *ex)
{
    const struct chat_traits *t = &ex->api->traits;
    json_t *messages = ex->request.messages;
    if (json_array_size(ex->request.tools) && !t->tools)
        describe_tools(ex, messages);
    fit_system(ex, messages);
    for (size_t i = json_array_size(messages); t->calls && !t->several && i-- > 0;)
        if (json_array_size(json_object_get(json_array_get(messages, i), "tool_calls")) > 1)
            split_calls(messages, i);
    for (size_t i = 0; i < json_array_size(messages); i++)
        fit_message(ex, json_array_get(messages, i), i);
    for (size_t i = json_array_size(messages); !t->repeats && i-- > 1;)
        if (repeats(messages, i))
            join(messages, i);
}

/* ---- rendering ---- */

static void set_token(const struct exchange *ex, json_t *vars, const char *name, int32_t id)
{
    size_t len = 0;
    const char *text = id >= 0 ? tokenizer_piece(ex->api->o.tokenizer, id, true, &len) : "";
    json_object_set_new(vars, name, json_stringn(text, len));
}

static json_t *template_vars(const struct exchange *ex)
{
    const struct api_request *q = &ex->request;
    json_t *vars = json_copy(q->variables);
    if (!vars)
        return NULL;
    json_object_set(vars, "messages", q->messages);
    if (json_array_size(q->tools) && ex->api->traits.tools)
        json_object_set(vars, "tools", q->tools);
    json_object_set_new(vars, "add_generation_prompt", json_boolean(q->add_generation_prompt));
    set_token(ex, vars, "bos_token", tokenizer_bos(ex->api->o.tokenizer));
    set_token(ex, vars, "eos_token", tokenizer_eos(ex->api->o.tokenizer));
    return vars;
}

bool prompt_render(struct exchange *ex, struct buf *out)
{
    char err[320] = "";
    fit(ex);
    json_t *vars = template_vars(ex);
    int r = vars ? chat_template_render(ex->api->o.chat, vars, (int64_t)(clock_wall_ns() / NS_PER_S), out,
                                        err, sizeof err)
                 : -ENOMEM;
    json_decref(vars);
    if (r < 0 || out->failed) {
        api_fail(ex, "messages", "messages: the chat template could not render them: %s",
                 *err ? err : "out of memory");
        return false;
    }
    ex->request.thinking = reasoning_is_open(ex->api->traits.marks, out->len ? out->data : "", out->len);
    return true;
}

static bool starts_with_bos(const struct exchange *ex, const struct buf *text)
{
    int32_t bos = tokenizer_bos(ex->api->o.tokenizer);
    size_t len;
    if (bos < 0)
        return false;
    const char *piece = tokenizer_piece(ex->api->o.tokenizer, bos, true, &len);
    return len && len <= text->len && memcmp(piece, text->data, len) == 0;
}

/* A template that writes the first token itself must not get a second one. */
static unsigned flags_for(const struct exchange *ex, const struct buf *text)
{
    return TOKENIZER_PARSE_SPECIAL | (starts_with_bos(ex, text) ? 0 : TOKENIZER_ADD_SPECIAL);
}

void prompt_make(struct exchange *ex, const char *param)
{
    struct buf text = { 0 };
    if (prompt_render(ex, &text)) {
        ex->request.prompts = calloc(1, sizeof *ex->request.prompts);
        if (ex->request.prompts)
            prompt_add_text(ex, param, text.len ? text.data : "", text.len, flags_for(ex, &text));
        else
            api_fail(ex, NULL, "out of memory");
    }
    buf_free(&text);
}

bool prompt_count(struct exchange *ex, size_t *ret_tokens)
{
    struct buf text = { 0 };
    int32_t *tokens = NULL;
    bool ok = prompt_render(ex, &text);
    if (ok && tokenizer_encode(ex->api->o.tokenizer, text.len ? text.data : "", text.len,
                               flags_for(ex, &text), &tokens, ret_tokens) < 0) {
        api_fail(ex, "messages", "messages: could not be tokenized");
        ok = false;
    }
    free(tokens);
    buf_free(&text);
    return ok;
}

/* Clients look for these very words, and for nothing else, to know that asking again is of no use. */
static void fail_long(struct exchange *ex, const char *param, const char *at_least, size_t n)
{
    uint32_t context = ex->api->o.context;
    api_fail(
        ex, param,
        "%s: prompt is too long: %s%zu tokens > %u maximum (the context is %u tokens, and one is needed for "
        "the answer)",
        param, at_least, n, context - 1, context);
    ex->error.code = "context_length_exceeded";
}

bool prompt_add_tokens(struct exchange *ex, const char *param, int32_t *tokens, size_t n)
{
    struct api_request *q = &ex->request;
    if (n < 1 || n >= ex->api->o.context) {
        if (n)
            fail_long(ex, param, "", n);
        else
            api_fail(ex, param, "%s: the prompt is empty, at least one token is wanted", param);
        free(tokens);
        return false;
    }
    q->prompts[q->n_prompts++] = (struct api_prompt){ .tokens = tokens, .n = n };
    return true;
}

bool prompt_add_text(struct exchange *ex, const char *param, const char *text, size_t len, unsigned flags)
{
    /* No token stands for more bytes than the longest one, so what cannot fit is known without being
     * tokenized. */
    size_t least = len / ex->api->longest_piece;
    if (least >= ex->api->o.context) {
        fail_long(ex, param, "at least ", least);
        return false;
    }
    int32_t *tokens;
    size_t n;
    int r = tokenizer_encode(ex->api->o.tokenizer, text, len, flags, &tokens, &n);
    if (r < 0) {
        api_fail(ex, param, "%s: could not be tokenized: %s", param, strerror(-r));
        return false;
    }
    return prompt_add_tokens(ex, param, tokens, n);
}
