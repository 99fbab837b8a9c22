/* Talk: what the readers of the dialects build a conversation with: messages, calls and tools in the terms of
 * chat templates. Thread: the workers'. Tests: tests/e2e/test_tools.py, test_messages.py, test_responses.py
 */
#include "api/private.h"
#include "util/jsonx.h"
#include <stdio.h>
#include <string.h>

static bool is_one_of(const json_t *type, const char *const *types, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(json_string_value(type), types[i]) == 0)
            return true;
    return false;
}

static void fail_part(struct exchange *ex, const char *param, const json_t *type, const char *const *types,
                      size_t n)
{
    char allowed[120] = "";
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(allowed);
        snprintf(allowed + len, sizeof allowed - len, "%s\"%s\"", i ? ", " : "", types[i]);
    }
    api_fail(ex, param, "%s.type: \"%.40s\" is not supported by this server; allowed %s %s", param,
             json_string_value(type), n > 1 ? "are" : "is", allowed);
}

/* What a model of texts cannot read. In the result of a tool, where the user may not even know of it and
 * where it stays for the rest of the conversation, words stand for it. */
bool talk_add_media(const char *type, struct buf *out)
{
    static const struct {
        const char *type, *name;
    } media[] = {
        { "image", "an image" },       { "image_url", "an image" },
        { "input_image", "an image" }, { "document", "a document" },
        { "file", "a file" },          { "input_file", "a file" },
        { "audio", "a recording" },    { "input_audio", "a recording" },
    };
    for (size_t i = 0; i < sizeof media / sizeof *media; i++) {
        if (strcmp(type, media[i].type) != 0)
            continue;
        buf_printf(out, "[%s was left out: this model reads text only]", media[i].name);
        return true;
    }
    return false;
}

/* Appends one part; false with ex->error set. */
static bool add_part(struct exchange *ex, const char *param, const json_t *part, const char *const *types,
                     size_t n, bool result, struct buf *text)
{
    const json_t *type = json_object_get(part, "type");
    const json_t *value = json_object_get(part, "text");
    if (!json_is_object(part) || !json_is_string(type)) {
        api_fail(ex, param, "%s: an object with a type is wanted", param);
        return false;
    }
    if (result && talk_add_media(json_string_value(type), text))
        return true;
    if (!is_one_of(type, types, n)) {
        fail_part(ex, param, type, types, n);
        return false;
    }
    if (!value && strcmp(json_string_value(type), "refusal") == 0)
        value = json_object_get(part, "refusal");
    if (!json_is_string(value)) {
        api_fail(ex, param, "%s.text: %s where a string is wanted", param, jsonx_type_name(value));
        return false;
    }
    buf_append(text, json_string_value(value), json_string_length(value));
    return true;
}

json_t *talk_text(struct exchange *ex, const char *param, const json_t *content, const char *const *types,
                  size_t n, bool result)
{
    struct buf text = { 0 };
    char name[128];
    bool ok = true;
    if (json_is_string(content))
        return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content)) {
        api_fail(ex, param, "%s: %s where a string or a list of text parts is wanted", param,
                 jsonx_type_name(content));
        return NULL;
    }
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        snprintf(name, sizeof name, "%s[%zu]", param, i);
        if (i)
            buf_putc(&text, '\n');
        ok = add_part(ex, name, json_array_get(content, i), types, n, result, &text);
    }
    json_t *joined = ok && !text.failed ? json_stringn(text.len ? text.data : "", text.len) : NULL;
    if (ok && !joined)
        api_fail_memory(ex);
    buf_free(&text);
    return joined;
}

json_t *talk_message(const char *role, json_t *content)
{
    return json_pack("{s:s, s:o}", "role", role, "content", content);
}

/* Templates write arguments as JSON themselves, so text that holds an object becomes that object: written
 * anew in one form, whatever the spaces a client put there. What is no object, as the arguments of a call
 * that was cut off, is put into one: many templates go through the members and refuse anything else, and then
 * the conversation could not go on. */
static json_t *opened(const struct exchange *ex, const json_t *arguments)
{
    char err[64];
    json_t *parsed;
    if (!arguments || json_is_null(arguments))
        return json_object();
    if (json_is_object(arguments))
        return json_deep_copy(arguments);
    if (json_is_string(arguments)) {
        size_t len = json_string_length(arguments);
        if (!len)
            return json_object();
        if (jsonx_parse(json_string_value(arguments), len, ex->api->o.max_json_depth, false, &parsed, err,
                        sizeof err) == 0) {
            if (json_is_object(parsed))
                return parsed;
            json_decref(parsed);
        }
    }
    return json_pack("{s:o}", "arguments", json_deep_copy(arguments));
}

void talk_add_call(struct exchange *ex, json_t *message, const char *id, const char *name,
                   const json_t *arguments)
{
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function",
                                           "function", "name", name, "arguments", opened(ex, arguments)));
}

bool talk_add_tool(struct exchange *ex, const char *param, const char *name, const json_t *description,
                   json_t *parameters, bool shown)
{
    struct api_request *q = &ex->request;
    if (!name || !*name) {
        api_fail(ex, param, "%s: an object with a function that has a name is wanted", param);
        return false;
    }
    if (description && !json_is_null(description) && !json_is_string(description)) {
        api_fail(ex, param, "%s.description: %s where a string is wanted", param,
                 jsonx_type_name(description));
        return false;
    }
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters)) {
        api_fail(ex, param, "%s.parameters: %s where an object is wanted", param,
                 jsonx_type_name(parameters));
        return false;
    }
    if (!q->tool_names) {
        q->tool_names = json_array();
        q->tool_schemas = json_array();
    }
    json_array_append_new(q->tool_schemas,
                          json_is_object(parameters) ? json_incref(parameters) : json_null());
    json_array_append_new(q->tool_names, json_string(name));
    if (!shown)
        return true;
    json_t *function = json_pack("{s:s}", "name", name);
    if (json_is_string(description))
        json_object_set_new(function, "description", json_copy((json_t *)(uintptr_t)description));
    json_object_set_new(function, "parameters",
                        json_is_object(parameters)
                            ? json_incref(parameters)
                            : json_pack("{s:s, s:{}}", "type", "object", "properties"));
    if (!q->tools)
        q->tools = json_array();
    json_array_append_new(q->tools, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return true;
}
