/* Read messages: the conversation of an Anthropic Messages body, whose messages are lists of blocks, in a
 * template's terms. `cache_control` is told to the usage and to nothing else, and a string is the same
 * as one text block: a client moves both about from turn to turn. Thread: the workers'. Tests:
 * tests/e2e/test_messages.py */
#include "api/private.h"
#include "util/jsonx.h"
#include <string.h>

/* What the blocks of one message come to. */
struct gathered {
    struct buf text, thinking;
    bool has_text;
    json_t *calling; /* an assistant's message with its calls, or NULL */
    json_t *results; /* messages of role tool */
};

static const char *type_of(const json_t *block)
{
    const json_t *type = json_object_get(block, "type");
    return json_is_string(type) ? json_string_value(type) : "";
}

static const char *string_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? json_string_value(v) : NULL;
}

static void note_cache(struct exchange *ex, const json_t *object)
{
    if (json_is_object(json_object_get(object, "cache_control")))
        ex->request.marks_cache = true;
}

static bool add_text(struct exchange *ex, const char *param, const json_t *block, const char *key,
                     struct buf *out)
{
    const json_t *v = json_object_get(block, key);
    if (!json_is_string(v)) {
        api_fail(ex, param, "%s.%s: %s where a string is wanted", param, key, jsonx_type_name(v));
        return false;
    }
    buf_append(out, json_string_value(v), json_string_length(v));
    return true;
}

/* The definition of a tool that was not shown before: it stands where it is named first, so nothing before
 * changes, and what is named again is not longer than the naming. */
static void add_reference(struct exchange *ex, const json_t *block, struct buf *out)
{
    const char *name = string_of(block, "tool_name");
    const json_t *tool = name ? json_object_get(ex->request.unshown, name) : NULL;
    if (!tool) {
        buf_puts(out, name ? name : "");
        return;
    }
    json_t *shown =
        json_pack("{s:s, s:s*, s:O*}", "name", name, "description", string_of(tool, "description"),
                  "parameters", json_object_get(tool, "input_schema"));
    char *text = json_dumps(shown, 0);
    if (text)
        buf_puts(out, text);
    else
        api_fail_memory(ex);
    free(text);
    json_decref(shown);
    json_object_del(ex->request.unshown, name);
}

static json_t *result_text(struct exchange *ex, const char *param, const json_t *content)
{
    struct buf text = { 0 };
    char name[128];
    bool ok = true;
    if (!content || json_is_null(content))
        return json_string("");
    if (json_is_string(content))
        return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content)) {
        api_fail(ex, param, "%s.content: %s where a string or a list of blocks is wanted", param,
                 jsonx_type_name(content));
        return NULL;
    }
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        snprintf(name, sizeof name, "%s.content[%zu]", param, i);
        note_cache(ex, block);
        if (i)
            buf_putc(&text, '\n');
        if (strcmp(type_of(block), "text") == 0) {
            ok = add_text(ex, name, block, "text", &text);
        } else if (strcmp(type_of(block), "tool_reference") == 0) {
            add_reference(ex, block, &text);
        } else if (!talk_add_media(type_of(block), &text)) {
            api_fail(ex, name,
                     "%s.type: \"%.40s\" is not supported by this server; allowed are \"text\" and "
                     "\"tool_reference\", and \"image\" and \"document\", which are left out",
                     name, type_of(block));
            ok = false;
        }
    }
    json_t *joined = ok && !text.failed ? json_stringn(text.len ? text.data : "", text.len) : NULL;
    if (ok && !joined)
        api_fail_memory(ex);
    buf_free(&text);
    return joined;
}

static bool take_result(struct exchange *ex, const char *param, const json_t *block, struct gathered *g)
{
    const char *id = string_of(block, "tool_use_id");
    if (!id) {
        api_fail(ex, param, "%s.tool_use_id: %s where a string is wanted", param,
                 jsonx_type_name(json_object_get(block, "tool_use_id")));
        return false;
    }
    json_t *text = result_text(ex, param, json_object_get(block, "content"));
    if (!text)
        return false;
    json_t *message = talk_message("tool", text);
    json_object_set_new(message, "tool_call_id", json_string(id));
    if (!g->results)
        g->results = json_array();
    json_array_append_new(g->results, message);
    return true;
}

static bool take_call(struct exchange *ex, const char *param, const json_t *block, struct gathered *g)
{
    const char *id = string_of(block, "id"), *name = string_of(block, "name");
    const json_t *input = json_object_get(block, "input");
    if (!id || !name) {
        api_fail(ex, param, "%s: an object with an id and a name is wanted", param);
        return false;
    }
    if (input && !json_is_null(input) && !json_is_object(input)) {
        api_fail(ex, param, "%s.input: %s where an object is wanted", param, jsonx_type_name(input));
        return false;
    }
    if (!g->calling)
        g->calling = json_object();
    talk_add_call(ex, g->calling, id, name, input);
    return true;
}

/* Blocks of tools that other servers run themselves. */
static bool is_foreign(const char *type)
{
    static const char *const types[] = { "server_tool_use", "redacted_thinking", "mcp_tool_use",
                                         "mcp_tool_result", "container_upload",  "compaction",
                                         "connector_text" };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    const char *end = strstr(type, "_tool_result");
    return end && !strcmp(end, "_tool_result");
}

static bool take_block(struct exchange *ex, const char *param, const json_t *block, struct gathered *g)
{
    const char *type = type_of(block);
    if (!json_is_object(block) || !*type) {
        api_fail(ex, param, "%s: an object with a type is wanted", param);
        return false;
    }
    note_cache(ex, block);
    if (strcmp(type, "text") == 0) {
        if (g->has_text)
            buf_putc(&g->text, '\n');
        g->has_text = true;
        return add_text(ex, param, block, "text", &g->text);
    }
    if (strcmp(type, "thinking") == 0)
        return add_text(ex, param, block, "thinking", &g->thinking);
    if (strcmp(type, "tool_use") == 0)
        return take_call(ex, param, block, g);
    if (strcmp(type, "tool_result") == 0)
        return take_result(ex, param, block, g);
    if (is_foreign(type))
        return true;
    api_fail(ex, param,
             "%s.type: \"%.40s\" is not supported by this server; allowed are \"text\", \"tool_use\", "
             "\"tool_result\" and \"thinking\"",
             param, type);
    return false;
}

/* Results of tools go before what the user says with them. */
static void put_message(struct exchange *ex, const char *role, struct gathered *g)
{
    json_t *list = ex->request.messages;
    if (g->results)
        json_array_extend(list, g->results);
    if (g->results && !g->has_text)
        return;
    json_t *message = talk_message(role, json_stringn(g->text.len ? g->text.data : "", g->text.len));
    if (g->thinking.len)
        json_object_set_new(message, "reasoning_content", json_stringn(g->thinking.data, g->thinking.len));
    if (g->calling)
        json_object_update(message, g->calling);
    json_array_append_new(list, message);
}

static bool read_message(struct exchange *ex, size_t i, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *role = string_of(message, "role");
    struct gathered g = { 0 };
    char param[96];
    snprintf(param, sizeof param, "messages[%zu]", i);
    if (!json_is_object(message)) {
        api_fail(ex, param, "%s: %s where an object is wanted", param, jsonx_type_name(message));
        return false;
    }
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system"))) {
        snprintf(param, sizeof param, "messages[%zu].role", i);
        api_fail_value(ex, param, json_object_get(message, "role"), "\"user\", \"assistant\" or \"system\"");
        return false;
    }
    bool ok = true;
    if (json_is_string(content)) {
        buf_append(&g.text, json_string_value(content), json_string_length(content));
        g.has_text = true;
    } else if (json_is_array(content)) {
        for (size_t k = 0; ok && k < json_array_size(content); k++) {
            snprintf(param, sizeof param, "messages[%zu].content[%zu]", i, k);
            ok = take_block(ex, param, json_array_get(content, k), &g);
        }
    } else {
        api_fail(ex, param, "%s.content: %s where a string or a list of blocks is wanted", param,
                 jsonx_type_name(content));
        ok = false;
    }
    if (ok && (g.text.failed || g.thinking.failed))
        api_fail_memory(ex);
    else if (ok)
        put_message(ex, role, &g);
    buf_free(&g.text);
    buf_free(&g.thinking);
    json_decref(g.calling);
    json_decref(g.results);
    return ok;
}

static bool read_system(struct exchange *ex)
{
    const json_t *system = ex->request.system;
    struct buf text = { 0 };
    char param[48];
    bool ok = true, any = false;
    if (json_is_string(system)) {
        any = !normalize_drops(ex->api, json_string_value(system));
        if (any)
            buf_append(&text, json_string_value(system), json_string_length(system));
    }
    for (size_t i = 0; ok && i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i);
        snprintf(param, sizeof param, "system[%zu]", i);
        note_cache(ex, block);
        if (strcmp(type_of(block), "text") != 0 || !string_of(block, "text")) {
            api_fail(ex, param, "%s: a block of type \"text\" with a text is wanted", param);
            ok = false;
        } else if (!normalize_drops(ex->api, string_of(block, "text"))) {
            if (any)
                buf_putc(&text, '\n');
            any = true;
            ok = add_text(ex, param, block, "text", &text);
        }
    }
    if (text.failed) {
        api_fail_memory(ex);
        ok = false;
    }
    if (ok && any)
        json_array_append_new(ex->request.messages,
                              talk_message("system", json_stringn(text.len ? text.data : "", text.len)));
    buf_free(&text);
    return ok;
}

/* Tools with a type of their own are run by other servers; those with a schema are the client's. */
static bool read_tool(struct exchange *ex, size_t i, json_t *tool)
{
    const json_t *type = json_object_get(tool, "type");
    char param[48];
    snprintf(param, sizeof param, "tools[%zu]", i);
    if (!json_is_object(tool)) {
        api_fail(ex, param, "%s: %s where an object is wanted", param, jsonx_type_name(tool));
        return false;
    }
    note_cache(ex, tool);
    if (json_is_string(type) && strcmp(json_string_value(type), "custom") != 0)
        return true;
    const char *name = string_of(tool, "name");
    json_t *schema = json_object_get(tool, "input_schema");
    if (!name || !*name) {
        api_fail(ex, param, "%s.name: %s where a string is wanted", param,
                 name ? "an empty string" : jsonx_type_name(json_object_get(tool, "name")));
        return false;
    }
    if (schema && !json_is_null(schema) && !json_is_object(schema)) {
        api_fail(ex, param, "%s.input_schema: %s where an object is wanted", param, jsonx_type_name(schema));
        return false;
    }
    if (!talk_add_tool(ex, param, name, json_object_get(tool, "description"), schema,
                       !json_is_true(json_object_get(tool, "defer_loading"))))
        return false;
    if (!ex->request.unshown)
        ex->request.unshown = json_object();
    json_object_set(ex->request.unshown, name, tool);
    return true;
}

bool messages_read(struct exchange *ex, json_t *body)
{
    struct api_request *q = &ex->request;
    if (!fields_read(ex, body))
        return false;
    if (!q->given_messages) {
        api_fail(ex, "messages", "messages: a list of messages is wanted");
        return false;
    }
    q->messages = json_array();
    bool ok = read_system(ex);
    for (size_t i = 0; ok && i < json_array_size(q->given_tools); i++)
        ok = read_tool(ex, i, json_array_get(q->given_tools, i));
    for (size_t i = 0; ok && i < json_array_size(q->given_messages); i++)
        ok = read_message(ex, i, json_array_get(q->given_messages, i));
    const json_t *last = json_array_get(q->messages, json_array_size(q->messages) - 1);
    const char *role = ok ? string_of(last, "role") : NULL;
    q->prefilled = role && strcmp(role, "assistant") == 0 && !json_object_get(last, "tool_calls") &&
                   json_string_length(json_object_get(last, "content"));
    return ok;
}
