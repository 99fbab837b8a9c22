/* Chat completions: OpenAI's POST /v1/chat/completions.
 * Threads: `read` on a worker, the formatters on the event thread. Tests: tests/e2e/test_chat.py,
 * test_stream.py */
#include "api/private.h"
#include <inttypes.h>
#include <string.h>

static bool starts_with_bos(const struct exchange *ex, const struct buf *text)
{
    int32_t bos = tokenizer_bos(ex->api->o.tokenizer);
    size_t len;
    if (bos < 0)
        return false;
    const char *piece = tokenizer_piece(ex->api->o.tokenizer, bos, true, &len);
    return len && len <= text->len && memcmp(piece, text->data, len) == 0;
}

static void read_chat(struct exchange *ex, json_t *body)
{
    struct buf text = { 0 };
    if (messages_render(ex, body, &text)) {
        ex->request.prompts = calloc(1, sizeof *ex->request.prompts);
        /* A template that writes the first token itself must not get a second one. */
        unsigned flags = TOKENIZER_PARSE_SPECIAL | (starts_with_bos(ex, &text) ? 0 : TOKENIZER_ADD_SPECIAL);
        if (ex->request.prompts)
            prompt_add_text(ex, "messages", text.len ? text.data : "", text.len, flags);
        else
            api_fail(ex, NULL, "out of memory");
    }
    buf_free(&text);
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

static void chat_text(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    openai_chunk_begin(ex, out);
    buf_printf(out, "{\"index\":%u,\"delta\":{\"content\":\"", c->index);
    buf_append(out, c->text.data, c->text.len);
    buf_puts(out, "\"},\"logprobs\":");
    put_logprobs(ex, c, out);
    buf_puts(out, ",\"finish_reason\":null}");
    openai_chunk_end(ex, false, out);
}

static void chat_stop(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    openai_chunk_begin(ex, out);
    buf_printf(out, "{\"index\":%u,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}", c->index,
               openai_finish_reason(c->stop));
    openai_chunk_end(ex, true, out);
}

static void chat_whole(struct exchange *ex, struct buf *out)
{
    const struct api_choice *c = &ex->choices[0];
    buf_append(out, ex->head.data, ex->head.len);
    buf_printf(out, ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
    buf_append(out, c->text.data, c->text.len);
    buf_puts(out, "\",\"refusal\":null},\"logprobs\":");
    put_logprobs(ex, c, out);
    buf_printf(out, ",\"finish_reason\":\"%s\"}],\"usage\":", openai_finish_reason(c->stop));
    openai_usage(ex, out);
    buf_printf(out, ",\"seed\":%" PRId64 ",\"timings\":", ex->request.seed);
    openai_timings(ex, out);
    buf_putc(out, '}');
}

const struct endpoint api_chat = {
    .name = "chat",
    .fields = FIELDS_CHAT,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .read = read_chat,
    .logprob = chat_logprob,
    .stream_begin = chat_begin,
    .stream_text = chat_text,
    .stream_stop = chat_stop,
    .stream_end = openai_stream_end,
    .stream_error = openai_stream_error,
    .whole = chat_whole,
};
