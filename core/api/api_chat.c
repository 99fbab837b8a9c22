/* Chat completions: OpenAI's POST /v1/chat/completions.
 * Threads: `read` on a worker, the formatters on the event thread. Tests: tests/e2e/test_chat.py,
 * test_stream.py */
#include "api/private.h"
#include <inttypes.h>
#include <string.h>

static void read_chat(struct exchange *ex, json_t *body)
{
    if (chat_read(ex, body)) {
        identity_from_body(ex, body);
        prompt_make(ex, "messages");
    }
}

static void token_fields(const struct exchange *ex, int32_t token, float logprob, struct buf *b)
{
    size_t len;
    const char *piece = tokenizer_piece(ex->api->o.tokenizer, token, true, &len);
    buf_puts(b, "{\"token\":");
    openai_token_text(ex, token, b);
    buf_puts(b, ",\"logprob\":");
    jsonout_real(b, openai_logprob(logprob), 7);
    buf_puts(b, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++) {
        if (i)
            buf_putc(b, ',');
        jsonout_int(b, (unsigned char)piece[i]);
    }
    buf_putc(b, ']');
}

static void chat_logprob(struct exchange *ex, struct api_choice *c, const struct sampler_choice *t)
{
    struct buf *b = &c->lp[0];
    if (b->len)
        buf_putc(b, ',');
    token_fields(ex, t->token, t->logprob, b);
    buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i)
            buf_putc(b, ',');
        token_fields(ex, t->top[i].token, t->top[i].logprob, b);
        buf_putc(b, '}');
    }
    buf_puts(b, "]}");
}

static void put_logprobs(const struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    if (ex->request.top_logprobs < 0) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "{\"content\":[");
    buf_append(out, c->lp[0].data, c->lp[0].len);
    out->failed |= c->lp[0].failed;
    buf_puts(out, "],\"refusal\":null}");
}

static void chat_begin(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    openai_chunk_begin(ex, out);
    buf_printf(out,
               "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
               "reason\":null}",
               c->index);
    openai_chunk_end(ex, false, out);
}

/* A chunk around a delta: its beginning, and its end with the logprobs there are by now. */
static void delta_begin(struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    openai_chunk_begin(ex, out);
    buf_printf(out, "{\"index\":%u,\"delta\":{", c->index);
}

static void delta_end(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    buf_puts(out, "},\"logprobs\":");
    put_logprobs(ex, c, out);
    buf_puts(out, ",\"finish_reason\":null}");
    openai_chunk_end(ex, false, out);
    buf_clear(&c->lp[0]);
}

static void call_head(const struct api_part *p, struct buf *out)
{
    buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", p->id);
    jsonout_bytes_str(out, p->name, strlen(p->name));
    buf_puts(out, ",\"arguments\":\"");
}

static void chat_part_begin(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out)
{
    if (p->kind != PART_CALL)
        return;
    delta_begin(ex, c, out);
    buf_printf(out, "\"tool_calls\":[{\"index\":%u,", p->index);
    call_head(p, out);
    buf_puts(out, "\"}}]");
    delta_end(ex, c, out);
}

static void chat_delta(struct exchange *ex, struct api_choice *c, struct api_part *p, const char *text,
                       size_t len, struct buf *out)
{
    delta_begin(ex, c, out);
    if (p->kind == PART_CALL)
        buf_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":\"", p->index);
    else
        buf_puts(out, p->kind == PART_TEXT ? "\"content\":\"" : "\"reasoning_content\":\"");
    jsonout_escape(out, text, len);
    buf_puts(out, p->kind == PART_CALL ? "\"}}]" : "\"");
    delta_end(ex, c, out);
}

static void chat_stop(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    if (c->lp[0].len) { /* of tokens without text */
        delta_begin(ex, c, out);
        delta_end(ex, c, out);
    }
    openai_chunk_begin(ex, out);
    buf_printf(out, "{\"index\":%u,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}", c->index,
               openai_finish_reason(c));
    openai_chunk_end(ex, true, out);
}

static void put_calls(const struct api_choice *c, struct buf *out)
{
    bool first = true;
    for (size_t i = 0; i < c->n_parts; i++) {
        const struct api_part *p = &c->parts[i];
        if (p->kind != PART_CALL)
            continue;
        buf_puts(out, first ? ",\"tool_calls\":[{" : ",{");
        first = false;
        call_head(p, out);
        jsonout_escape(out, p->text.data, p->text.len);
        buf_puts(out, "\"}}");
    }
    if (!first)
        buf_putc(out, ']');
}

static void put_message(const struct api_choice *c, struct buf *out)
{
    buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (c->n_calls && !parts_have(c, PART_TEXT)) {
        buf_puts(out, "null");
    } else {
        buf_putc(out, '"');
        parts_write(c, PART_TEXT, out);
        buf_putc(out, '"');
    }
    if (parts_have(c, PART_REASONING)) {
        buf_puts(out, ",\"reasoning_content\":\"");
        parts_write(c, PART_REASONING, out);
        buf_putc(out, '"');
    }
    put_calls(c, out);
    buf_puts(out, ",\"refusal\":null}");
}

static void chat_whole(struct exchange *ex, struct buf *out)
{
    openai_head(ex, out);
    buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < ex->n_choices; i++) {
        const struct api_choice *c = &ex->choices[i];
        buf_printf(out, "%s{\"index\":%u,\"message\":", i ? "," : "", c->index);
        put_message(c, out);
        buf_puts(out, ",\"logprobs\":");
        put_logprobs(ex, c, out);
        buf_printf(out, ",\"finish_reason\":\"%s\"}", openai_finish_reason(c));
    }
    buf_puts(out, "],\"usage\":");
    openai_usage(ex, out);
    buf_printf(out, ",\"seed\":%" PRId64 ",\"timings\":", ex->request.seed);
    openai_timings(ex, out);
    buf_putc(out, '}');
}

const struct endpoint api_chat = {
    .name = "chat",
    .fields = FIELDS_CHAT,
    .id_prefix = "chatcmpl-",
    .call_prefix = "call_",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .read = read_chat,
    .logprob = chat_logprob,
    .begin = chat_begin,
    .part_begin = chat_part_begin,
    .part_delta = chat_delta,
    .stop = chat_stop,
    .end = openai_end,
    .error = openai_error,
    .whole = chat_whole,
};
