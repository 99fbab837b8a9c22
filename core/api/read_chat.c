/* Read chat: the messages and tools of a chat completions body. They are what templates take already, so they
 * are checked and put in shape in place. Thread: the workers'. Tests: tests/e2e/test_chat.py, test_tools.py
 */
#include "api/private.h"
#include "util/jsonx.h"
#include <string.h>

static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
static const char *const part_types[] = { "text", "refusal" };

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

static bool check_content(struct exchange *ex, json_t *message, size_t i)
{
    const json_t *content = json_object_get(message, "content");
    bool may_lack = json_object_get(message, "tool_calls") || json_object_get(message, "function_call") ||
                    json_is_string(json_object_get(message, "reasoning_content"));
    const char *role = json_string_value(json_object_get(message, "role"));
    bool result = strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].content", i);
    if (json_is_string(content))
        return true;
    json_t *text = may_lack && (!content || json_is_null(content))
                       ? json_string("")
                       : talk_text(ex, param, content, part_types, 2, result);
    if (!text)
        return false;
    json_object_set_new(message, "content", text);
    return true;
}

static bool check_calls(struct exchange *ex, json_t *message, size_t i)
{
    json_t *calls = json_object_get(message, "tool_calls");
    char param[80];
    if (!calls || json_is_null(calls) || (json_is_array(calls) && !json_array_size(calls))) {
        json_object_del(message, "tool_calls");
        return true;
    }
    snprintf(param, sizeof param, "messages[%zu].tool_calls", i);
    if (!json_is_array(calls)) {
        api_fail(ex, param, "%s: %s where a list is wanted", param, jsonx_type_name(calls));
        return false;
    }
    json_incref(calls);
    json_object_del(message, "tool_calls");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k), *function = json_object_get(call, "function");
        const json_t *name = json_object_get(function, "name"), *id = json_object_get(call, "id");
        if (!json_is_string(name)) {
            api_fail(ex, param, "%s[%zu].function: an object with a name is wanted", param, k);
            break;
        }
        talk_add_call(ex, message, json_is_string(id) ? json_string_value(id) : "", json_string_value(name),
                      json_object_get(function, "arguments"));
    }
    json_decref(calls);
    return !ex->error.status;
}

/* Reasoning has two names among clients. */
static void take_reasoning(json_t *message)
{
    json_t *reasoning = json_object_get(message, "reasoning_content");
    if (!json_is_string(reasoning))
        reasoning = json_object_get(message, "reasoning");
    if (json_is_string(reasoning) && json_string_length(reasoning))
        json_object_set(message, "reasoning_content", reasoning);
    else
        json_object_del(message, "reasoning_content");
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
        take_reasoning(message);
        if (!check_role(ex, message, i) || !check_content(ex, message, i) || !check_calls(ex, message, i))
            return false;
    }
    return true;
}

static bool read_tools(struct exchange *ex, const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        const json_t *function = json_object_get(tool, "function"), *name = json_object_get(function, "name");
        char param[48];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!json_is_object(tool) || !json_is_string(name)) {
            api_fail(ex, param, "%s: an object with a function that has a name is wanted", param);
            return false;
        }
        if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)) {
            snprintf(param, sizeof param, "tools[%zu].type", i);
            api_fail_value(ex, param, type, "\"function\"");
            return false;
        }
        if (!talk_add_tool(ex, param, json_string_value(name), json_object_get(function, "description"),
                           json_object_get(function, "parameters"), false))
            return false;
        /* As it was given: this is the form that templates know. */
        if (!ex->request.tools)
            ex->request.tools = json_array();
        json_array_append(ex->request.tools, tool);
    }
    return true;
}

bool chat_read(struct exchange *ex, json_t *body)
{
    struct api_request *q = &ex->request;
    if (!fields_read(ex, body))
        return false;
    if (!q->given_messages) {
        api_fail(ex, "messages", "messages: a list of messages is wanted");
        return false;
    }
    q->messages = json_incref(q->given_messages);
    return check_messages(ex, q->messages) && read_tools(ex, q->given_tools);
}
