/* Chat traits: see chat_traits.h. Each question is a conversation with words in it that no template has, and
 * the answer is whether they come out. A template that refuses a conversation answers no. */
#include "model/chat_traits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_ID "\"abcDEF123\""
#define FIRST "{\"role\":\"user\",\"content\":\"zqfirst\"}"
#define REPLY "{\"role\":\"assistant\",\"content\":\"zqreply\"}"
#define SYSTEM(text) "{\"role\":\"system\",\"content\":\"" text "\"}"
#define CALLING(id, arguments)                                                                               \
    "{\"role\":\"assistant\",\"content\":\"zqtext\",\"tool_calls\":[{\"id\":" id ",\"type\":\"function\","   \
    "\"function\":{\"name\":\"zqtool\",\"arguments\":" arguments "}}]}"
#define TOOLS                                                                                                \
    "[{\"type\":\"function\",\"function\":{\"name\":\"zqtool\",\"description\":\"zqabout\","                 \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"zqkey\":{\"type\":\"string\",\"description\":"    \
    "\"zqnote\"}}}}}]"

/* The rendered messages (a JSON list), or NULL where the template refuses. To be freed. */
static char *render(const struct chat_template *t, const char *messages, const char *tools)
{
    char err[160];
    struct buf out = { 0 };
    json_t *vars = json_pack("{s:o?, s:b, s:s, s:s}", "messages", json_loads(messages, 0, NULL),
                             "add_generation_prompt", 0, "bos_token", "", "eos_token", "");
    if (vars && tools)
        json_object_set_new(vars, "tools", json_loads(tools, 0, NULL));
    int r = vars ? chat_template_render(t, vars, 0, &out, err, sizeof err) : -1;
    json_decref(vars);
    buf_append(&out, "", 0);
    char *text = buf_steal(&out, NULL);
    if (r == 0)
        return text;
    free(text);
    return NULL;
}

/* Whether all of the words come out, in this order. */
static bool writes(const struct chat_template *t, const char *messages, const char *tools,
                   const char *const *words)
{
    char *text = render(t, messages, tools);
    bool all = text != NULL;
    for (const char *at = text; all && *words; words++) {
        at = strstr(at, *words);
        all = at != NULL;
    }
    free(text);
    return all;
}
#define WRITES(t, messages, tools, ...) writes(t, messages, tools, (const char *const[]){ __VA_ARGS__, NULL })

/* <tool_call> opens calls of three formats. */
static enum toolcall_format format_behind(const char *mark)
{
    const char *at = mark + strlen("<tool_call>");
    at += strspn(at, " \n\r\t");
    return strncmp(at, "<function=", 10) == 0 ? TOOLCALL_XML
           : strstr(at, "<arg_key>")          ? TOOLCALL_GLM
                                              : TOOLCALL_HERMES;
}

/* What stands between the text of an assistant's message and its call, when that is white space and a mark,
 * tells the format and the gap. */
static void look_at_call(const char *text, struct chat_traits *r)
{
    static const struct {
        const char *mark;
        enum toolcall_format format;
    } marks[] = {
        { "<tool_call>", TOOLCALL_HERMES },
        { "[TOOL_CALLS]", TOOLCALL_MISTRAL },
        { "<|python_tag|>", TOOLCALL_LLAMA3 },
    };
    const char *name = strstr(text, "zqtool"), *said = strstr(text, "zqtext");
    r->format = strstr(text, "\"parameters\"") ? TOOLCALL_LLAMA3 : TOOLCALL_JSON;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *mark = strstr(text, marks[i].mark);
        if (!mark || !name || mark > name)
            continue;
        r->format = i ? marks[i].format : format_behind(mark);
        const char *from = said && said < mark ? said + strlen("zqtext") : mark;
        size_t n = (size_t)(mark - from);
        if (n < sizeof r->gap && strspn(from, " \n\r\t") >= n)
            memcpy(r->gap, from, n);
        return;
    }
}

/* With which form of calls the template is content. */
static void find_calls(const struct chat_template *t, struct chat_traits *r)
{
    static const char *const conversations[2][2] = {
        { "[" FIRST "," CALLING("\"call_123\"", "{\"zqkey\":\"zqvalue\"}") "]",
          "[" FIRST "," CALLING("\"call_123\"", "\"{\\\"zqkey\\\": \\\"zqvalue\\\"}\"") "]" },
        { "[" FIRST "," CALLING(CALL_ID, "{\"zqkey\":\"zqvalue\"}") "]",
          "[" FIRST "," CALLING(CALL_ID, "\"{\\\"zqkey\\\": \\\"zqvalue\\\"}\"") "]" },
    };
    for (int ids = 0; ids < 2 && !r->calls; ids++) {
        for (int text = 0; text < 2 && !r->calls; text++) {
            char *out = render(t, conversations[ids][text], r->tools ? TOOLS : NULL);
            r->calls = out && strstr(out, "zqtool") && strstr(out, "zqvalue");
            if (r->calls) {
                r->short_ids = ids;
                r->arguments_text = text;
                /* Past the list of tools, which names the tool too. */
                const char *user = strstr(out, "zqfirst");
                look_at_call(user ? user : out, r);
            }
            free(out);
        }
    }
}

static bool takes_several(const struct chat_template *t, const struct chat_traits *r)
{
    const char *id = r->short_ids ? CALL_ID : "\"call_123\"",
               *arguments = r->arguments_text ? "\"{}\"" : "{}";
    char messages[768];
    snprintf(messages, sizeof messages,
             "[" FIRST ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
             "{\"id\":%s,\"type\":\"function\",\"function\":{\"name\":\"zqtool\",\"arguments\":%s}},"
             "{\"id\":%s,\"type\":\"function\",\"function\":{\"name\":\"zqother\",\"arguments\":%s}}]}]",
             id, arguments, id, arguments);
    return WRITES(t, messages, r->tools ? TOOLS : NULL, "zqfirst", "zqtool", "zqother");
}

/* Where calls cannot be rendered, the template's own words about them may still tell the format. */
static enum toolcall_format format_in(const char *source)
{
    if (strstr(source, "<tool_call>"))
        return strstr(source, "<function=")  ? TOOLCALL_XML
               : strstr(source, "<arg_key>") ? TOOLCALL_GLM
                                             : TOOLCALL_HERMES;
    if (strstr(source, "[TOOL_CALLS]"))
        return TOOLCALL_MISTRAL;
    return strstr(source, "<|python_tag|>") ? TOOLCALL_LLAMA3 : TOOLCALL_JSON;
}

void chat_traits_find(const struct chat_template *t, const char *source, struct chat_traits *ret_traits)
{
    struct chat_traits r = { .marks = reasoning_marks_find(source) };
    r.tools = WRITES(t, "[" FIRST "]", TOOLS, "zqtool");
    r.system = WRITES(t, "[" SYSTEM("zqsystem") "," FIRST "]", NULL, "zqsystem");
    r.system_later =
        WRITES(t, "[" SYSTEM("zqsystem") "," FIRST "," REPLY "," SYSTEM("zqlater") "," FIRST "]", NULL,
               "zqsystem", "zqfirst", "zqreply", "zqlater") &&
        WRITES(t, "[" SYSTEM("zqsystem") "," SYSTEM("zqlater") "," FIRST "]", NULL, "zqsystem", "zqlater");
    r.repeats =
        WRITES(t, "[" FIRST ",{\"role\":\"user\",\"content\":\"zqsecond\"}]", NULL, "zqfirst", "zqsecond");
    r.format = format_in(source);
    find_calls(t, &r);
    r.several = r.calls && takes_several(t, &r);
    const char *id = r.short_ids ? CALL_ID : "\"call_123\"";
    char messages[512];
    snprintf(messages, sizeof messages,
             "[" FIRST
             ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":%s,\"type\":\"function\","
             "\"function\":{\"name\":\"zqtool\",\"arguments\":%s}}]},"
             "{\"role\":\"tool\",\"tool_call_id\":%s,\"name\":\"zqtool\",\"content\":\"zqresult\"}]",
             id, r.arguments_text ? "\"{}\"" : "{}", id);
    r.results = WRITES(t, messages, r.tools ? TOOLS : NULL, "zqresult");
    *ret_traits = r;
}
