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
static void put_json(struct exchange *ex, json_t *value, struct buf *out)
{
    char err[160] = "";
    json_t *vars = json_pack("{s:O}", "value", value);
    int r = vars ? chat_template_render(ex->api->to_json, vars, 0, out, err, sizeof err) : -ENOMEM;
    if (r == -ENOMEM)
        api_fail_memory(ex);
    else if (r < 0)
        api_fail(ex, NULL, "tools: one, or a call of one, could not be written as JSON: %s", err);
    json_decref(vars);
}

static void set_text(struct exchange *ex, json_t *message, const char *key, const struct buf *text)
{
    json_t *value = text->failed ? NULL : json_stringn(text->len ? text->data : "", text->len);
    if (json_object_set_new(message, key, value) < 0)
        api_fail_memory(ex);
}

/* ---- tools for a template that knows none ---- */

/* What a model is told that was not trained with a form of its own; it is Hermes', which many have seen. */
static void put_tools(struct exchange *ex, struct buf *out)
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

static void describe_tools(struct exchange *ex, json_t *messages)
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
    set_text(ex, first, "content", &text);
    buf_free(&text);
}

/* An assistant's calls as the text they were. */
static void write_calls(struct exchange *ex, json_t *message)
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
    set_text(ex, message, "content", &text);
    json_object_del(message, "tool_calls");
    buf_free(&text);
}

static void write_result(struct exchange *ex, json_t *message)
{
    struct buf text = { 0 };
    buf_puts(&text, "<tool_response>\n");
    buf_puts(&text, text_of(message, "content"));
    buf_puts(&text, "\n</tool_response>");
    json_object_set_new(message, "role", json_string("user"));
    set_text(ex, message, "content", &text);
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

static void fit_calls(struct exchange *ex, json_t *message)
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
        set_text(ex, function, "arguments", &text);
        buf_free(&text);
    }
}

static void fit_message(struct exchange *ex, json_t *message, size_t i)
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
            write_result(ex, message);
        else if (t->short_ids)
            shorten_id(message, "tool_call_id");
    }
    if (i && is_role(message, "system") && !t->system_later)
        json_object_set_new(message, "role", json_string("user"));
}

/* ---- messages that a template has no place for ----
 *
 * All of these go through the list once: a body has room for a million messages. */

/* The results messages[from..to) by the id of their call, those of one id from the last to the first. */
static json_t *results_by_id(const json_t *messages, size_t from, size_t to)
{
    json_t *found = json_object();
    while (to-- > from) {
        json_t *result = json_array_get(messages, to);
        const char *id = text_of(result, "tool_call_id");
        json_t *list = json_object_get(found, id);
        if (!list && json_object_set_new(found, id, list = json_array()) < 0)
            break;
        json_array_append(list, result);
    }
    return found;
}

static void take_result(const json_t *found, const char *id, json_t *out)
{
    json_t *list = json_object_get(found, id);
    size_t n = json_array_size(list);
    if (!n)
        return;
    json_array_append(out, json_array_get(list, n - 1));
    json_array_remove(list, n - 1);
}

/* The calls of messages[i] become messages of their own, each followed by its result; what is left of the
 * results messages[i + 1..end) comes last. */
static void split_calls(const json_t *messages, size_t i, size_t end, json_t *out)
{
    json_t *message = json_array_get(messages, i), *found = results_by_id(messages, i + 1, end);
    json_t *calls = json_incref(json_object_get(message, "tool_calls"));
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *call = json_array_get(calls, k);
        json_t *one = k ? talk_message("assistant", json_string("")) : json_incref(message);
        json_object_set_new(one, "tool_calls", json_pack("[O]", call));
        json_array_append_new(out, one);
        take_result(found, text_of(call, "id"), out);
    }
    for (size_t k = i + 1; k < end; k++)
        take_result(found, text_of(json_array_get(messages, k), "tool_call_id"), out);
    json_decref(calls);
    json_decref(found);
}

static void split_all(json_t *messages)
{
    json_t *old = json_copy(messages);
    size_t n = json_array_size(old), end;
    if (!old)
        return;
    json_array_clear(messages);
    for (size_t i = 0; i < n; i = end) {
        end = i + 1;
        if (json_array_size(json_object_get(json_array_get(old, i), "tool_calls")) < 2) {
            json_array_append(messages, json_array_get(old, i));
            continue;
        }
        while (is_role(json_array_get(old, end), "tool"))
            end++;
        split_calls(old, i, end, messages);
    }
    json_decref(old);
}

static void join(struct exchange *ex, const json_t *messages, size_t from, size_t to)
{
    struct buf text = { 0 };
    if (to - from < 2)
        return;
    for (size_t i = from; i < to; i++) {
        const char *more = text_of(json_array_get(messages, i), "content");
        buf_puts(&text, text.len && *more ? "\n\n" : "");
        buf_puts(&text, more);
    }
    set_text(ex, json_array_get(messages, from), "content", &text);
    buf_free(&text);
}

static bool repeats(const json_t *messages, size_t i)
{
    const json_t *a = json_array_get(messages, i - 1), *b = json_array_get(messages, i);
    return !is_role(b, "tool") && !is_role(b, "function") && is_role(a, text_of(b, "role")) &&
           !json_object_get(a, "tool_calls") && !json_object_get(b, "tool_calls");
}

/* Of the first `n` messages, those of one role in a row become one. */
static void join_runs(struct exchange *ex, json_t *messages, size_t n)
{
    json_t *old = json_copy(messages);
    size_t size = json_array_size(old), end;
    if (!old)
        return;
    json_array_clear(messages);
    for (size_t i = 0; i < size; i = end) {
        for (end = i + 1; end < n && repeats(old, end);)
            end++;
        join(ex, old, i, end);
        json_array_append(messages, json_array_get(old, i));
    }
    json_decref(old);
}

static void fit_system(struct exchange *ex, json_t *messages)
{
    const struct chat_traits *t = &ex->api->traits;
    size_t n = 0;
    while (is_role(json_array_get(messages, n), "system"))
        n++;
    if (!t->system_later)
        join_runs(ex, messages, n);
    if (!t->system && n) {
        json_object_set_new(json_array_get(messages, 0), "role", json_string("user"));
        join_runs(ex, messages, 2);
    }
}

static void fit(struct exchange *ex)
{
    const struct chat_traits *t = &ex->api->traits;
    json_t *messages = ex->request.messages;
    if (json_array_size(ex->request.tools) && !t->tools)
        describe_tools(ex, messages);
    fit_system(ex, messages);
    if (t->calls && !t->several)
        split_all(messages);
    for (size_t i = 0; i < json_array_size(messages); i++)
        fit_message(ex, json_array_get(messages, i), i);
    if (!t->repeats)
        join_runs(ex, messages, json_array_size(messages));
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

/* What is too much for the template is mostly too much for the context as well; then that is the cause. */
static bool fail_large(struct exchange *ex)
{
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(ex->request.messages); i++)
        bytes += json_string_length(json_object_get(json_array_get(ex->request.messages, i), "content"));
    size_t least = bytes / ex->api->longest_piece;
    if (least >= ex->api->o.context)
        fail_long(ex, "messages", "at least ", least);
    return least >= ex->api->o.context;
}

static int render(struct exchange *ex, struct buf *out, char *err, size_t errlen)
{
    json_t *vars = template_vars(ex);
    int r = vars ? chat_template_render(ex->api->o.chat, vars, (int64_t)(clock_wall_ns() / NS_PER_S), out,
                                        err, errlen)
                 : -ENOMEM;
    json_decref(vars);
    return r;
}

static const char *last_mark(const struct buf *text, const char *mark)
{
    const char *found = NULL, *at = text->data;
    size_t len = strlen(mark);
    for (; at && (at = memmem(at, text->len - (size_t)(at - text->data), mark, len)); at++)
        found = at;
    return found;
}

/* The answer begins with the last message: the prompt ends where that one's text does, which a mark behind
 * the text shows. 1: the template does not write the message so that it could be gone on with. */
static int render_prefilled(struct exchange *ex, struct buf *out, char *err, size_t errlen)
{
    static const char mark[] = "\x02"
                               "here the answer goes on\x02";
    json_t *messages = ex->request.messages, *last = json_array_get(messages, json_array_size(messages) - 1);
    struct buf text = { 0 };
    json_t *whole = json_incref(json_object_get(last, "content"));
    buf_append(&text, json_string_value(whole), json_string_length(whole));
    buf_puts(&text, mark);
    set_text(ex, last, "content", &text);
    buf_free(&text);
    ex->request.add_generation_prompt = false;
    int r = ex->error.status ? -ENOMEM : render(ex, out, err, errlen);
    ex->request.add_generation_prompt = true;
    json_object_set_new(last, "content", whole);
    const char *end = r == 0 && !out->failed ? last_mark(out, mark) : NULL;
    if (end)
        out->len = (size_t)(end - out->data);
    else if (r == 0)
        buf_clear(out);
    return r < 0 ? r : !end;
}

bool prompt_render(struct exchange *ex, struct buf *out)
{
    char err[320] = "";
    fit(ex);
    if (ex->error.status)
        return false;
    int r = ex->request.prefilled ? render_prefilled(ex, out, err, sizeof err) : 1;
    if (r == 1)
        r = render(ex, out, err, sizeof err);
    if (r == -E2BIG && fail_large(ex))
        return false;
    if (r == -ENOMEM || out->failed) {
        api_fail_memory(ex);
        return false;
    }
    if (r < 0) {
        api_fail(ex, "messages", "messages: the chat template could not render them: %s", err);
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
            api_fail_memory(ex);
    }
    buf_free(&text);
}

bool prompt_count(struct exchange *ex, size_t *ret_tokens)
{
    struct buf text = { 0 };
    int32_t *tokens = NULL;
    bool ok = prompt_render(ex, &text);
    int r = ok ? tokenizer_encode(ex->api->o.tokenizer, text.len ? text.data : "", text.len,
                                  flags_for(ex, &text), &tokens, ret_tokens)
               : 0;
    if (r < 0) {
        api_fail_tokens(ex, "messages", r);
        ok = false;
    }
    free(tokens);
    buf_free(&text);
    return ok;
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
        api_fail_tokens(ex, param, r);
        return false;
    }
    return prompt_add_tokens(ex, param, tokens, n);
}
