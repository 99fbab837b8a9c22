/* Messages: checks the messages and tools of a chat and renders them with the model's template.
 * Thread: the workers'. The body is the worker's own and is put in shape in place. Tests:
 * tests/e2e/test_chat.py */
#include "api/private.h"
#include "util/clock.h"
#include "util/jsonx.h"
#include <errno.h>
#include <string.h>

static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };

static bool check_role(struct exchange *ex, json_t *message, size_t i)
{
    const json_t *role = json_object_get(message, "role");
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].role", i);
    if (!json_is_string(role)) {
        api_fail(ex, param, "%s: %s where a string is wanted", param, jsonx_type_name(role));
        return false;
    }
    const char *text = json_string_value(role);
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        if (strcmp(text, roles[k]) != 0)
            continue;
        if (strcmp(text, "developer") == 0) /* the name newer clients have for system */
            json_object_set_new(message, "role", json_string("system"));
        return true;
    }
    api_fail(ex, param,
             "%s: \"%.40s\" is not known; allowed are system, developer, user, assistant, tool and function",
             param, text);
    return false;
}

/* A list of text parts becomes one string, joined by line breaks. */
static bool join_parts(struct exchange *ex, json_t *message, const json_t *parts, size_t i)
{
    struct buf text = { 0 };
    char param[80];
    bool ok = true;
    for (size_t k = 0; ok && k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k);
        const json_t *type = json_object_get(part, "type"), *value = json_object_get(part, "text");
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", i, k);
        if (!json_is_object(part) || !json_is_string(type)) {
            api_fail(ex, param, "%s: an object with a type is wanted", param);
            ok = false;
        } else if (strcmp(json_string_value(type), "text") != 0) {
            api_fail(ex, param, "%s.type: \"%.40s\" is not supported by this server; allowed is \"text\"",
                     param, json_string_value(type));
            ok = false;
        } else if (!json_is_string(value)) {
            api_fail(ex, param, "%s.text: %s where a string is wanted", param, jsonx_type_name(value));
            ok = false;
        } else {
            if (k)
                buf_putc(&text, '\n');
            buf_append(&text, json_string_value(value), json_string_length(value));
        }
    }
    if (ok && (text.failed || json_object_set_new(message, "content",
                                                  json_stringn(text.len ? text.data : "", text.len)) < 0)) {
        api_fail(ex, param, "out of memory");
        ok = false;
    }
    buf_free(&text);
    return ok;
}

static bool check_content(struct exchange *ex, json_t *message, size_t i)
{
    const json_t *content = json_object_get(message, "content");
    bool may_lack = json_object_get(message, "tool_calls") || json_object_get(message, "function_call");
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].content", i);
    if (json_is_string(content))
        return true;
    if (json_is_array(content))
        return join_parts(ex, message, content, i);
    if (may_lack && (!content || json_is_null(content))) {
        json_object_set_new(message, "content", json_string(""));
        return true;
    }
    api_fail(ex, param, "%s: %s where a string or a list of text parts is wanted", param,
             jsonx_type_name(content));
    return false;
}

/* Templates write arguments as JSON themselves, so a string that holds an object becomes that object. */
static void open_arguments(struct exchange *ex, json_t *function)
{
    const json_t *arguments = json_object_get(function, "arguments");
    json_t *parsed;
    char err[64];
    if (!json_is_string(arguments))
        return;
    if (jsonx_parse(json_string_value(arguments), json_string_length(arguments), ex->api->o.max_json_depth,
                    false, &parsed, err, sizeof err) < 0)
        return;
    if (json_is_object(parsed))
        json_object_set(function, "arguments", parsed);
    json_decref(parsed);
}

static bool check_tool_calls(struct exchange *ex, json_t *message, size_t i)
{
    json_t *calls = json_object_get(message, "tool_calls");
    char param[80];
    if (!calls || json_is_null(calls)) {
        json_object_del(message, "tool_calls");
        return true;
    }
    snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
    if (!json_is_array(calls)) {
        api_fail(ex, param, "%s: %s where a list is wanted", param, jsonx_type_name(calls));
        return false;
    }
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *function = json_object_get(json_array_get(calls, k), "function");
        if (!json_is_string(json_object_get(function, "name"))) {
            api_fail(ex, param, "%s[%zu].function: an object with a name is wanted", param, k);
            return false;
        }
        open_arguments(ex, function);
    }
    return true;
}

static bool check_messages(struct exchange *ex, json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        char param[48];
        snprintf(param, sizeof param, "messages[%zu]", i);
        if (!json_is_object(message)) {
            api_fail(ex, param, "%s: %s where an object is wanted", param, jsonx_type_name(message));
            return false;
        }
        if (!check_role(ex, message, i) || !check_content(ex, message, i) ||
            !check_tool_calls(ex, message, i))
            return false;
    }
    return true;
}

static bool check_tools(struct exchange *ex, const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        char param[48];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!json_is_object(tool) ||
            !json_is_string(json_object_get(json_object_get(tool, "function"), "name"))) {
            api_fail(ex, param, "%s: an object with a function that has a name is wanted", param);
            return false;
        }
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)) {
            api_fail(ex, param, "%s.type: allowed is \"function\"", param);
            return false;
        }
    }
    return true;
}

static void set_token(const struct exchange *ex, json_t *vars, const char *name, int32_t id)
{
    size_t len = 0;
    const char *text = id >= 0 ? tokenizer_piece(ex->api->o.tokenizer, id, true, &len) : "";
    json_object_set_new(vars, name, json_stringn(text, len));
}

static json_t *template_vars(const struct exchange *ex)
{
    const struct api_request *q = &ex->request;
    json_t *vars = q->template_kwargs ? json_copy(q->template_kwargs) : json_object();
    if (!vars)
        return NULL;
    json_object_set(vars, "messages", q->messages);
    if (json_array_size(q->tools))
        json_object_set(vars, "tools", q->tools);
    json_object_set_new(vars, "add_generation_prompt", json_boolean(q->add_generation_prompt));
    set_token(ex, vars, "bos_token", tokenizer_bos(ex->api->o.tokenizer));
    set_token(ex, vars, "eos_token", tokenizer_eos(ex->api->o.tokenizer));
    return vars;
}

bool messages_render(struct exchange *ex, json_t *body, struct buf *out)
{
    char err[320] = "";
    if (!fields_read(ex, body))
        return false;
    if (!ex->request.messages) {
        api_fail(ex, "messages", "messages: a list of messages is wanted");
        return false;
    }
    if (!check_messages(ex, ex->request.messages) || !check_tools(ex, ex->request.tools))
        return false;
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
    return true;
}

bool prompt_add_tokens(struct exchange *ex, const char *param, int32_t *tokens, size_t n)
{
    struct api_request *q = &ex->request;
    uint32_t context = ex->api->o.context;
    if (n < 1 || n >= context) {
        if (n)
            api_fail(ex, param,
                     "%s: the prompt has %zu tokens, the context is %u tokens (one is needed for the answer)",
                     param, n, context);
        else
            api_fail(ex, param, "%s: the prompt is empty, at least one token is wanted", param);
        ex->error.code = n ? "context_length_exceeded" : NULL;
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
        api_fail(ex, param, "%s: the prompt has at least %zu tokens, the context is %u tokens", param, least,
                 ex->api->o.context);
        ex->error.code = "context_length_exceeded";
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
