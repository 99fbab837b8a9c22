/* Responses: OpenAI's POST /v1/responses, stateless: an answer is a row of items (reasoning, a message, calls
 * of functions), told by typed events that are numbered. Threads: `read` on a worker, the formatters on the
 * event thread. Tests: tests/e2e/test_responses.py */
#include "api/private.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the request says of these goes into the response as it came. */
static bool tell(struct exchange *ex, const json_t *body)
{
    static const struct {
        const char *name, *without;
    } members[] = { { "instructions", "null" },
                    { "max_output_tokens", "null" },
                    { "metadata", "{}" },
                    { "reasoning", "null" },
                    { "tools", "[]" } };
    struct buf b = { 0 };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = json_object_get(body, members[i].name);
        /* Nobody checked it, and clients take nothing else. */
        bool foreign = strcmp(members[i].name, "metadata") == 0 && !json_is_object(value);
        char *text = NULL;
        if (value && !json_is_null(value) && !foreign) {
            text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
            b.failed |= !text;
        }
        buf_printf(&b, ",\"%s\":", members[i].name);
        buf_puts(&b, text ? text : members[i].without);
        free(text);
    }
    ex->request.told = b.failed ? NULL : buf_steal(&b, NULL);
    buf_free(&b);
    if (!ex->request.told)
        api_fail_memory(ex);
    return ex->request.told != NULL;
}

static void read_responses(struct exchange *ex, json_t *body)
{
    if (responses_read(ex, body) && tell(ex, body)) {
        identity_from_body(ex, body);
        prompt_make(ex, "input");
    }
}

/* ---- items ---- */

static const char *const id_prefixes[] = { [PART_REASONING] = "rs", [PART_TEXT] = "msg", [PART_CALL] = "fc" };

static size_t index_of(const struct api_choice *c, const struct api_part *p)
{
    return (size_t)(p - c->parts);
}

/* Named after the answer. */
static void item_id(const struct exchange *ex, const struct api_choice *c, const struct api_part *p,
                    struct buf *out)
{
    buf_printf(out, "\"%s_%s_%zu\"", id_prefixes[p->kind], ex->id + strlen(ex->endpoint->id_prefix),
               index_of(c, p));
}

/* The name by which the client knows the tool, which may lie in a namespace. */
static void put_name(const struct exchange *ex, const struct api_part *p, struct buf *out)
{
    const json_t *pair = json_object_get(ex->request.namespaces, p->name);
    const char *space = json_string_value(json_array_get(pair, 0)),
               *name = json_string_value(json_array_get(pair, 1));
    name = name ? name : p->name;
    buf_puts(out, "\"name\":");
    jsonout_bytes_str(out, name, strlen(name));
    if (space) {
        buf_puts(out, ",\"namespace\":");
        jsonout_bytes_str(out, space, strlen(space));
    }
}

static void put_text(const char *type, const struct api_part *p, bool done, struct buf *out)
{
    buf_printf(out, "{\"type\":\"%s\",\"text\":", type);
    jsonout_str(out, done ? p->text.data : NULL, done ? p->text.len : 0);
    buf_puts(out, strcmp(type, "output_text") == 0 ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static void put_reasoning(const struct exchange *ex, const struct api_part *p, bool done, struct buf *out)
{
    buf_puts(out, ",\"summary\":[],\"content\":[");
    if (done)
        put_text("reasoning_text", p, true, out);
    buf_puts(out, "],\"encrypted_content\":");
    if (done && ex->request.give_reasoning) {
        buf_putc(out, '"');
        reasoning_seal(p->text.data, p->text.len, out);
        buf_putc(out, '"');
    } else {
        buf_puts(out, "null");
    }
}

/* What the limit of the answer came upon, and calls that broke. */
static bool is_cut(const struct api_choice *c, const struct api_part *p)
{
    bool last = index_of(c, p) + 1 == c->n_parts;
    return p->broken || (last && p->kind != PART_CALL && c->finished && c->stop == SCHED_STOP_LENGTH);
}

static void put_item(const struct exchange *ex, const struct api_choice *c, const struct api_part *p,
                     bool done, struct buf *out)
{
    static const char *const types[] = {
        [PART_REASONING] = "reasoning", [PART_TEXT] = "message", [PART_CALL] = "function_call"
    };
    buf_puts(out, "{\"id\":");
    item_id(ex, c, p, out);
    buf_printf(out, ",\"type\":\"%s\",\"status\":\"%s\"", types[p->kind],
               !done          ? "in_progress"
               : is_cut(c, p) ? "incomplete"
                              : "completed");
    if (p->kind == PART_REASONING) {
        put_reasoning(ex, p, done, out);
    } else if (p->kind == PART_TEXT) {
        buf_puts(out, ",\"role\":\"assistant\",\"content\":[");
        if (done)
            put_text("output_text", p, true, out);
        buf_putc(out, ']');
    } else {
        buf_printf(out, ",\"call_id\":\"%s\",", p->id);
        put_name(ex, p, out);
        buf_puts(out, ",\"arguments\":");
        jsonout_str(out, done ? p->text.data : NULL, done ? p->text.len : 0);
    }
    buf_putc(out, '}');
}

/* ---- the response ---- */

static void put_usage(const struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    size_t prompt = ex->request.prompts[0].n;
    buf_printf(out,
               "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%" PRIu32
               ",\"cache_write_tokens\":%zu},\"output_tokens\":%" PRIu32
               ",\"output_tokens_details\":{\"reasoning_tokens\":%" PRIu32 "},\"total_tokens\":%zu}",
               prompt, c->timings.cached, prompt - c->timings.cached, c->timings.generated,
               c->reasoning_tokens, prompt + c->timings.generated);
}

static const char *status_of(const struct api_choice *c)
{
    return c->stop == SCHED_STOP_LENGTH ? "incomplete" : "completed";
}

static void response_head(const struct exchange *ex, const char *status, struct buf *out)
{
    const struct api_request *q = &ex->request;
    const char *model = ex->api->o.model_name;
    buf_printf(out,
               "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRIu64
               ",\"status\":\"%s\",\"background\":false,\"model\":",
               ex->id, ex->created_s, status);
    jsonout_str(out, model, strlen(model));
    buf_printf(
        out,
        ",\"parallel_tool_calls\":%s,\"previous_response_id\":null,\"store\":false,\"temperature\":%.6g,"
        "\"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"%s\",\"top_p\":%.6g,"
        "\"truncation\":\"disabled\"",
        q->several_calls ? "true" : "false", q->temperature, q->call_tools ? "auto" : "none", q->top_p);
    buf_puts(out, q->told);
}

static void put_response(const struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    response_head(ex, status_of(c), out);
    buf_printf(out, ",\"error\":null,\"incomplete_details\":%s,\"output\":[",
               c->stop == SCHED_STOP_LENGTH ? "{\"reason\":\"max_output_tokens\"}" : "null");
    for (size_t i = 0; i < c->n_parts; i++) {
        if (i)
            buf_putc(out, ',');
        put_item(ex, c, &c->parts[i], true, out);
    }
    buf_puts(out, "],\"usage\":");
    put_usage(ex, c, out);
    buf_puts(out, ",\"timings\":");
    openai_timings(ex, out);
    buf_putc(out, '}');
}

/* ---- events ---- */

static void event(struct exchange *ex, const char *name, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRIu32, name, name,
               ex->sequence++);
}

static void put_begun(struct exchange *ex, const char *name, struct buf *out)
{
    event(ex, name, out);
    buf_puts(out, ",\"response\":");
    response_head(ex, "in_progress", out);
    buf_puts(out, ",\"error\":null,\"incomplete_details\":null,\"output\":[],\"usage\":null}}\n\n");
}

static void keep_alive(struct exchange *ex, struct buf *out)
{
    put_begun(ex, "response.in_progress", out);
}

static void open_stream(struct exchange *ex, struct buf *out)
{
    put_begun(ex, "response.created", out);
    keep_alive(ex, out);
}

static void item_event(struct exchange *ex, const struct api_choice *c, const struct api_part *p,
                       const char *name, bool done, struct buf *out)
{
    event(ex, name, out);
    buf_printf(out, ",\"output_index\":%zu,\"item\":", index_of(c, p));
    put_item(ex, c, p, done, out);
    buf_puts(out, "}\n\n");
}

/* An event about what lies in an item, up to where its own fields begin. */
static void inner_event(struct exchange *ex, const struct api_choice *c, const struct api_part *p,
                        const char *name, struct buf *out)
{
    event(ex, name, out);
    buf_puts(out, ",\"item_id\":");
    item_id(ex, c, p, out);
    buf_printf(out, ",\"output_index\":%zu", index_of(c, p));
    if (p->kind != PART_CALL)
        buf_puts(out, ",\"content_index\":0");
}

static const char *content_type(const struct api_part *p)
{
    return p->kind == PART_TEXT ? "output_text" : "reasoning_text";
}

static void content_event(struct exchange *ex, const struct api_choice *c, const struct api_part *p,
                          const char *name, bool done, struct buf *out)
{
    inner_event(ex, c, p, name, out);
    buf_puts(out, ",\"part\":");
    put_text(content_type(p), p, done, out);
    buf_puts(out, "}\n\n");
}

static void part_begin(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out)
{
    item_event(ex, c, p, "response.output_item.added", false, out);
    if (p->kind != PART_CALL)
        content_event(ex, c, p, "response.content_part.added", false, out);
}

static void part_delta(struct exchange *ex, struct api_choice *c, struct api_part *p, const char *text,
                       size_t len, struct buf *out)
{
    static const char *const names[] = { [PART_REASONING] = "response.reasoning_text.delta",
                                         [PART_TEXT] = "response.output_text.delta",
                                         [PART_CALL] = "response.function_call_arguments.delta" };
    inner_event(ex, c, p, names[p->kind], out);
    buf_puts(out, ",\"delta\":");
    jsonout_str(out, text, len);
    buf_puts(out, p->kind == PART_TEXT ? ",\"logprobs\":[]}\n\n" : "}\n\n");
}

static void part_end(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out)
{
    static const char *const names[] = { [PART_REASONING] = "response.reasoning_text.done",
                                         [PART_TEXT] = "response.output_text.done",
                                         [PART_CALL] = "response.function_call_arguments.done" };
    inner_event(ex, c, p, names[p->kind], out);
    if (p->kind == PART_CALL) {
        buf_putc(out, ',');
        put_name(ex, p, out);
    }
    buf_puts(out, p->kind == PART_CALL ? ",\"arguments\":" : ",\"text\":");
    jsonout_str(out, p->text.data, p->text.len);
    buf_puts(out, p->kind == PART_TEXT ? ",\"logprobs\":[]}\n\n" : "}\n\n");
    if (p->kind != PART_CALL)
        content_event(ex, c, p, "response.content_part.done", true, out);
    item_event(ex, c, p, "response.output_item.done", true, out);
}

static void stop(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    event(ex, c->stop == SCHED_STOP_LENGTH ? "response.incomplete" : "response.completed", out);
    buf_puts(out, ",\"response\":");
    put_response(ex, c, out);
    buf_puts(out, "}\n\n");
}

static void end(struct exchange *ex, struct buf *out)
{
    (void)ex, (void)out; /* the last event says that it is the last */
}

static void error(struct exchange *ex, const char *type, const char *message, struct buf *out)
{
    event(ex, "response.failed", out);
    buf_puts(out, ",\"response\":");
    response_head(ex, "failed", out);
    buf_printf(out, ",\"error\":{\"code\":\"%s\",\"message\":", type);
    jsonout_bytes_str(out, message, strlen(message));
    buf_puts(out, "},\"incomplete_details\":null,\"output\":[],\"usage\":null}}\n\n");
}

static void whole(struct exchange *ex, struct buf *out)
{
    put_response(ex, &ex->choices[0], out);
}

const struct endpoint api_responses = {
    .name = "responses",
    .fields = FIELDS_RESPONSES,
    .id_prefix = "resp_",
    .call_prefix = "call_",
    .read = read_responses,
    .open = open_stream,
    .part_begin = part_begin,
    .part_delta = part_delta,
    .part_end = part_end,
    .stop = stop,
    .end = end,
    .error = error,
    .keep_alive = keep_alive,
    .whole = whole,
};
