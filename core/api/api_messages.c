/* Messages: Anthropic's POST /v1/messages and /v1/messages/count_tokens: blocks of text, thinking and
 * tool_use, named events. Threads: `read` on a worker, the formatters on the event thread. Tests:
 * tests/e2e/test_messages.py */
#include "api/private.h"
#include <inttypes.h>
#include <string.h>

static void read_messages(struct exchange *ex, json_t *body)
{
    if (messages_read(ex, body)) {
        identity_from_body(ex, body);
        prompt_make(ex, "messages");
    }
}

static const char *stop_reason(const struct api_choice *c)
{
    return parts_cut(c)                   ? "max_tokens"
           : parts_call(c)                ? "tool_use"
           : c->stop == SCHED_STOP_STRING ? "stop_sequence"
                                          : "end_turn";
}

static void put_stop(const struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c));
    if (c->stop == SCHED_STOP_STRING && !parts_call(c))
        jsonout_str(out, ex->request.stops[c->stop_index], ex->request.stop_lens[c->stop_index]);
    else
        buf_puts(out, "null");
}

/* The three kinds of input add up to the prompt. What was read now is kept in any case; it counts as written
 * for those who asked that something be kept, as the others do not look there. */
static void put_usage(const struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    size_t read = ex->request.prompts[0].n - c->timings.cached;
    size_t written = ex->request.marks_cache ? read : 0;
    buf_printf(
        out,
        "{\"input_tokens\":%zu,\"cache_creation_input_tokens\":%zu,\"cache_read_input_tokens\":%" PRIu32
        ",\"output_tokens\":%" PRIu32 "}",
        read - written, written, c->timings.cached, c->timings.generated);
}

static void message_head(const struct exchange *ex, struct buf *out)
{
    const char *model = ex->api->o.model_name;
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", ex->id);
    jsonout_str(out, model, strlen(model));
}

static void event(const char *name, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void begin(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    event("message_start", out);
    buf_puts(out, ",\"message\":");
    message_head(ex, out);
    buf_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(ex, c, out);
    buf_puts(out, "}}\n\n");
}

static size_t index_of(const struct api_choice *c, const struct api_part *p)
{
    return (size_t)(p - c->parts);
}

/* Signed so that clients keep it and send it back: this server trusts the text. */
#define SIGNATURE "\"signature\":\"berth\""

static void call_head(const struct api_part *p, struct buf *out)
{
    buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", p->id);
    jsonout_bytes_str(out, p->name, strlen(p->name));
    buf_puts(out, ",\"input\":");
}

static void part_begin(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out)
{
    (void)ex;
    event("content_block_start", out);
    buf_printf(out, ",\"index\":%zu,\"content_block\":", index_of(c, p));
    if (p->kind == PART_CALL) {
        call_head(p, out);
        buf_puts(out, "{}}");
    } else {
        buf_puts(out, p->kind == PART_TEXT ? "{\"type\":\"text\",\"text\":\"\"}"
                                           : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    }
    buf_puts(out, "}\n\n");
}

static void part_delta(struct exchange *ex, struct api_choice *c, struct api_part *p, const char *text,
                       size_t len, struct buf *out)
{
    static const char *const deltas[] = {
        [PART_REASONING] = "{\"type\":\"thinking_delta\",\"thinking\":",
        [PART_TEXT] = "{\"type\":\"text_delta\",\"text\":",
        [PART_CALL] = "{\"type\":\"input_json_delta\",\"partial_json\":",
    };
    (void)ex;
    event("content_block_delta", out);
    buf_printf(out, ",\"index\":%zu,\"delta\":%s", index_of(c, p), deltas[p->kind]);
    jsonout_str(out, text, len);
    buf_puts(out, "}}\n\n");
}

static void part_end(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out)
{
    (void)ex;
    if (p->kind == PART_REASONING) {
        event("content_block_delta", out);
        buf_printf(out, ",\"index\":%zu,\"delta\":{\"type\":\"signature_delta\"," SIGNATURE "}}\n\n",
                   index_of(c, p));
    }
    event("content_block_stop", out);
    buf_printf(out, ",\"index\":%zu}\n\n", index_of(c, p));
}

static void stop(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    event("message_delta", out);
    buf_puts(out, ",\"delta\":{");
    put_stop(ex, c, out);
    buf_puts(out, "},\"usage\":");
    put_usage(ex, c, out);
    buf_puts(out, ",\"timings\":");
    openai_timings(ex, out);
    buf_puts(out, "}\n\n");
}

static void end(struct exchange *ex, struct buf *out)
{
    (void)ex;
    event("message_stop", out);
    buf_puts(out, "}\n\n");
}

static void error(struct exchange *ex, const char *type, const char *message, struct buf *out)
{
    (void)ex;
    event("error", out);
    buf_printf(out,
               ",\"error\":{\"type\":\"%s\",\"message\":", strcmp(type, "server_error") ? type : "api_error");
    jsonout_bytes_str(out, message, strlen(message));
    buf_puts(out, "}}\n\n");
}

static void keep_alive(struct exchange *ex, struct buf *out)
{
    (void)ex;
    event("ping", out);
    buf_puts(out, "}\n\n");
}

static void put_block(const struct api_part *p, struct buf *out)
{
    if (p->kind == PART_CALL) {
        call_head(p, out);
        buf_append(out, p->text.data, p->text.len);
        buf_putc(out, '}');
        return;
    }
    buf_puts(out,
             p->kind == PART_TEXT ? "{\"type\":\"text\",\"text\":" : "{\"type\":\"thinking\",\"thinking\":");
    jsonout_str(out, p->text.data, p->text.len);
    buf_puts(out, p->kind == PART_TEXT ? "}" : "," SIGNATURE "}");
}

static void whole(struct exchange *ex, struct buf *out)
{
    const struct api_choice *c = &ex->choices[0];
    message_head(ex, out);
    buf_puts(out, ",\"content\":[");
    for (size_t i = 0; i < c->n_parts; i++) {
        if (i)
            buf_putc(out, ',');
        put_block(&c->parts[i], out);
    }
    buf_puts(out, "],");
    put_stop(ex, c, out);
    buf_puts(out, ",\"usage\":");
    put_usage(ex, c, out);
    buf_puts(out, ",\"timings\":");
    openai_timings(ex, out);
    buf_putc(out, '}');
}

const struct endpoint api_messages = {
    .name = "messages",
    .fields = FIELDS_MESSAGES,
    .id_prefix = "msg_",
    .call_prefix = "toolu_",
    .read = read_messages,
    .begin = begin,
    .part_begin = part_begin,
    .part_delta = part_delta,
    .part_end = part_end,
    .stop = stop,
    .end = end,
    .error = error,
    .keep_alive = keep_alive,
    .whole = whole,
};

static void read_count(struct exchange *ex, json_t *body)
{
    size_t n;
    if (messages_read(ex, body) && prompt_count(ex, &n))
        buf_printf(&ex->reply, "{\"input_tokens\":%zu}", n);
}

const struct endpoint api_count_tokens = {
    .name = "count_tokens",
    .fields = FIELDS_COUNT,
    .read = read_count,
};
