/* Read responses: the conversation of an OpenAI Responses body, whose items are an assistant's message, its
 * reasoning and each of its calls by themselves, in a template's terms. Thread: the workers'.
 * Tests: tests/e2e/test_responses.py */
#include "api/private.h"
#include "util/jsonx.h"
#include <string.h>

static const char *string_of(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? json_string_value(v) : NULL;
}

/* The assistant's message that the items so far belong to, and whose parts are still to come. */
struct reader {
    struct exchange *ex;
    json_t *open; /* NULL: none; borrowed from the list */
};

static json_t *open_message(struct reader *r)
{
    if (!r->open) {
        r->open = talk_message("assistant", json_string(""));
        json_array_append_new(r->ex->request.messages, r->open);
    }
    return r->open;
}

static bool read_message(struct reader *r, const char *param, const json_t *item)
{
    static const char *const types[] = { "input_text", "output_text", "text", "refusal" };
    static const char *const roles[] = { "user", "assistant", "system", "developer" };
    const char *role = string_of(item, "role");
    char name[80];
    size_t i = 0;
    while (role && i < 4 && strcmp(role, roles[i]) != 0)
        i++;
    if (!role || i == 4) {
        api_fail(r->ex, param, "%s.role: allowed are user, assistant, system and developer", param);
        return false;
    }
    snprintf(name, sizeof name, "%s.content", param);
    json_t *text = talk_text(r->ex, name, json_object_get(item, "content"), types, 4, false);
    if (!text)
        return false;
    if (i != 1) {
        r->open = NULL;
        json_array_append_new(r->ex->request.messages, talk_message(i ? "system" : "user", text));
        return true;
    }
    if (r->open &&
        (json_string_length(json_object_get(r->open, "content")) || json_object_get(r->open, "tool_calls")))
        r->open = NULL; /* a second message is one of its own */
    json_object_set_new(open_message(r), "content", text);
    return true;
}

/* A name in a namespace as the model sees it. To be freed. */
static char *full_name(const char *space, const char *name)
{
    struct buf b = { 0 };
    size_t len = space ? strlen(space) : 0;
    if (len) {
        buf_puts(&b, space);
        if (len < 2 || strcmp(space + len - 2, "__") != 0)
            buf_puts(&b, "__");
    }
    buf_puts(&b, name);
    buf_append(&b, "", 0);
    return buf_steal(&b, NULL);
}

static bool read_call(struct reader *r, const char *param, const json_t *item)
{
    const char *id = string_of(item, "call_id"), *name = string_of(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!id || !name) {
        api_fail(r->ex, param, "%s: a call_id and a name are wanted", param);
        return false;
    }
    if (arguments && !json_is_string(arguments)) {
        api_fail(r->ex, param, "%s.arguments: %s where a string is wanted", param,
                 jsonx_type_name(arguments));
        return false;
    }
    char *full = full_name(string_of(item, "namespace"), name);
    if (full)
        talk_add_call(r->ex, open_message(r), id, full, arguments);
    else
        api_fail_memory(r->ex);
    free(full);
    return true;
}

static bool read_output(struct reader *r, const char *param, const json_t *item)
{
    static const char *const types[] = { "input_text", "output_text", "text" };
    const char *id = string_of(item, "call_id");
    char name[80];
    if (!id) {
        api_fail(r->ex, param, "%s.call_id: a string is wanted", param);
        return false;
    }
    snprintf(name, sizeof name, "%s.output", param);
    json_t *text = talk_text(r->ex, name, json_object_get(item, "output"), types, 3, true);
    if (!text)
        return false;
    r->open = NULL;
    json_t *message = talk_message("tool", text);
    json_object_set_new(message, "tool_call_id", json_string(id));
    json_array_append_new(r->ex->request.messages, message);
    return true;
}

static void add_texts(const json_t *list, struct buf *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = string_of(json_array_get(list, i), "text");
        if (text && out->len)
            buf_putc(out, '\n');
        if (text)
            buf_puts(out, text);
    }
}

/* What this server gave as encrypted_content is the reasoning itself; of another's only the open text is of
 * use. */
static void read_reasoning(struct reader *r, const json_t *item)
{
    const char *sealed = string_of(item, "encrypted_content");
    struct buf text = { 0 };
    if (!sealed || !reasoning_unseal(sealed, &text))
        add_texts(json_object_get(item, "content"), &text);
    if (!text.len)
        add_texts(json_object_get(item, "summary"), &text);
    if (r->open &&
        (json_string_length(json_object_get(r->open, "content")) || json_object_get(r->open, "tool_calls")))
        r->open = NULL;
    if (text.failed)
        api_fail_memory(r->ex);
    else if (text.len)
        json_object_set_new(open_message(r), "reasoning_content", json_stringn(text.data, text.len));
    buf_free(&text);
}

/* Items of tools that other servers run themselves: ..._call, ..._call_output, ..._list_tools. */
static bool is_foreign(const char *type)
{
    static const char *const ends[] = { "_call",
                                        "_call_output",
                                        "_list_tools",
                                        "_approval_request",
                                        "_approval_response",
                                        "_tool_call_output",
                                        "compaction" };
    size_t len = strlen(type);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]);
        if (len >= n && strcmp(type + len - n, ends[i]) == 0)
            return true;
    }
    return false;
}

static bool read_item(struct reader *r, size_t i, const json_t *item)
{
    char param[48];
    snprintf(param, sizeof param, "input[%zu]", i);
    if (!json_is_object(item)) {
        api_fail(r->ex, param, "%s: %s where an object is wanted", param, jsonx_type_name(item));
        return false;
    }
    const char *type = json_object_get(item, "type") ? string_of(item, "type") : "message";
    if (!type || strcmp(type, "message") == 0)
        return read_message(r, param, item);
    if (strcmp(type, "function_call") == 0)
        return read_call(r, param, item);
    if (strcmp(type, "function_call_output") == 0)
        return read_output(r, param, item);
    if (strcmp(type, "reasoning") == 0) {
        read_reasoning(r, item);
        return true;
    }
    if (is_foreign(type))
        return true;
    api_fail(
        r->ex, param,
        "%s.type: \"%.40s\" is not supported by this server; allowed are \"message\", \"function_call\", "
        "\"function_call_output\" and \"reasoning\"",
        param, type);
    return false;
}

static bool read_tool(struct exchange *ex, const char *param, const json_t *tool, const char *space)
{
    const char *type = string_of(tool, "type"), *name = string_of(tool, "name");
    if (!json_is_object(tool) || !type) {
        api_fail(ex, param, "%s: an object with a type is wanted", param);
        return false;
    }
    if (strcmp(type, "namespace") == 0 && !space) {
        const json_t *inner = json_object_get(tool, "tools");
        bool ok = true;
        for (size_t i = 0; ok && i < json_array_size(inner); i++) {
            char deeper[96];
            snprintf(deeper, sizeof deeper, "%s.tools[%zu]", param, i);
            ok = read_tool(ex, deeper, json_array_get(inner, i), name ? name : "");
        }
        return ok;
    }
    if (strcmp(type, "function") != 0)
        return true;
    char *full = full_name(space, name ? name : "");
    bool ok = full && talk_add_tool(ex, param, name ? full : NULL, json_object_get(tool, "description"),
                                    json_object_get(tool, "parameters"), true);
    if (ok && space) {
        if (!ex->request.namespaces)
            ex->request.namespaces = json_object();
        json_object_set_new(ex->request.namespaces, full, json_pack("[s, s]", space, name));
    }
    if (!full)
        api_fail_memory(ex);
    free(full);
    return ok;
}

static bool read_input(struct exchange *ex)
{
    const json_t *input = ex->request.given_messages;
    json_t *list = ex->request.messages;
    struct reader r = { .ex = ex };
    bool ok = true;
    if (json_is_string(ex->request.system) && json_string_length(ex->request.system))
        json_array_append_new(list, talk_message("system", json_copy(ex->request.system)));
    if (json_is_string(input))
        json_array_append_new(list, talk_message("user", json_copy((json_t *)(uintptr_t)input)));
    for (size_t i = 0; ok && i < json_array_size(input); i++)
        ok = read_item(&r, i, json_array_get(input, i));
    if (ok && !json_array_size(list)) /* clients ask with nothing to warm a server up */
        json_array_append_new(list, talk_message("user", json_string("")));
    return ok;
}

bool responses_read(struct exchange *ex, json_t *body)
{
    struct api_request *q = &ex->request;
    if (!fields_read(ex, body))
        return false;
    if (!q->given_messages) {
        api_fail(ex, "input", "input: a string or a list of items is wanted");
        return false;
    }
    q->messages = json_array();
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(q->given_tools); i++) {
        char param[48];
        snprintf(param, sizeof param, "tools[%zu]", i);
        ok = read_tool(ex, param, json_array_get(q->given_tools, i), NULL);
    }
    return ok && read_input(ex);
}
