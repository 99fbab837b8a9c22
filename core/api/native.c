/* Native: llama.cpp's own endpoints, in its shapes, so that its tools and pages work: /tokenize, /detokenize,
 * /apply-template (on workers), /props and /slots (at once). Tests: tests/e2e/test_native.py */
#include "api/private.h"
#include "util/jsonx.h"
#include "util/utf8.h"
#include <stdlib.h>
#include <string.h>

/* A piece as text, or as a list of bytes where it is no valid UTF-8 by itself. */
static void put_piece(const struct tokenizer *t, int32_t id, struct buf *b)
{
    size_t len;
    const char *piece = tokenizer_piece(t, id, true, &len);
    if (utf8_valid(piece, len)) {
        jsonout_str(b, piece, len);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        buf_putc(b, i ? ',' : '[');
        jsonout_int(b, (unsigned char)piece[i]);
    }
    buf_putc(b, ']');
}

static void put_token(const struct tokenizer *t, int32_t id, bool with_piece, struct buf *b)
{
    if (with_piece)
        buf_puts(b, "{\"id\":");
    jsonout_int(b, id);
    if (with_piece) {
        buf_puts(b, ",\"piece\":");
        put_piece(t, id, b);
        buf_putc(b, '}');
    }
}

static void read_tokenize(struct exchange *ex, json_t *body)
{
    const struct api_request *q = &ex->request;
    const struct tokenizer *t = ex->api->o.tokenizer;
    int32_t *ids;
    size_t n;
    if (!fields_read(ex, body))
        return;
    if (!q->content) {
        api_fail(ex, "content", "content: a string is wanted");
        return;
    }
    unsigned flags = (q->parse_special ? TOKENIZER_PARSE_SPECIAL : 0) |
                     (q->add_special ? TOKENIZER_ADD_SPECIAL | TOKENIZER_ADD_END : 0);
    int r =
        tokenizer_encode(t, json_string_value(q->content), json_string_length(q->content), flags, &ids, &n);
    if (r < 0) {
        api_fail_tokens(ex, "content", r);
        return;
    }
    buf_puts(&ex->reply, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_putc(&ex->reply, ',');
        put_token(t, ids[i], q->with_pieces, &ex->reply);
    }
    buf_puts(&ex->reply, "]}");
    free(ids);
}

static void add_piece(struct exchange *ex, size_t i, const json_t *id, struct buf *text)
{
    const struct tokenizer *t = ex->api->o.tokenizer;
    json_int_t v = json_integer_value(id);
    size_t len;
    if (!json_is_integer(id)) {
        api_fail(ex, "tokens", "tokens[%zu]: %s where a token id is wanted", i, jsonx_type_name(id));
    } else if (v < 0 || v >= (json_int_t)tokenizer_n_vocab(t)) {
        api_fail(ex, "tokens", "tokens[%zu]: %lld is outside 0..%u", i, (long long)v,
                 tokenizer_n_vocab(t) - 1);
    } else {
        const char *piece = tokenizer_piece(t, (int32_t)v, true, &len);
        buf_append(text, piece, len);
    }
}

static void read_detokenize(struct exchange *ex, json_t *body)
{
    const struct tokenizer *t = ex->api->o.tokenizer;
    if (!fields_read(ex, body))
        return;
    const json_t *tokens = ex->request.tokens, *first = json_array_get(tokens, 0);
    if (!tokens) {
        api_fail(ex, "tokens", "tokens: a list of token ids is wanted");
        return;
    }
    struct buf text = { 0 };
    for (size_t i = 0; i < json_array_size(tokens) && !ex->error.status; i++)
        add_piece(ex, i, json_array_get(tokens, i), &text);
    size_t added = !ex->error.status && first && tokenizer_added_space(t, (int32_t)json_integer_value(first));
    buf_puts(&ex->reply, "{\"content\":");
    jsonout_bytes_str(&ex->reply, added ? text.data + added : text.data, text.len - added);
    buf_putc(&ex->reply, '}');
    if (text.failed)
        ex->reply.failed = true;
    buf_free(&text);
}

static void read_apply_template(struct exchange *ex, json_t *body)
{
    struct buf text = { 0 };
    if (chat_read(ex, body) && prompt_render(ex, &text)) {
        buf_puts(&ex->reply, "{\"prompt\":");
        jsonout_bytes_str(&ex->reply, text.data, text.len);
        buf_putc(&ex->reply, '}');
    }
    buf_free(&text);
}

const struct endpoint api_tokenize = { .name = "tokenize", .fields = FIELDS_TOKENIZE, .read = read_tokenize };
const struct endpoint api_detokenize = {
    .name = "detokenize",
    .fields = FIELDS_DETOKENIZE,
    .read = read_detokenize,
};
const struct endpoint api_apply_template = {
    .name = "apply-template",
    .fields = FIELDS_TEMPLATE,
    .read = read_apply_template,
};

static json_t *token_json(const struct tokenizer *t, int32_t id)
{
    size_t len = 0;
    const char *piece = id >= 0 ? tokenizer_piece(t, id, true, &len) : "";
    return json_stringn(piece, len);
}

/* A float as people wrote it: 0.7, not 0.69999998807907104; api_reply_json writes it so. */
static json_t *short_real(float v)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", (double)v);
    return json_real(strtod(text, NULL));
}

static json_t *sampling_json(const struct sampler_params *p)
{
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:o, s:o}", "temperature", short_real(p->temperature),
                     "top_k", (int)p->top_k, "top_p", short_real(p->top_p), "min_p", short_real(p->min_p),
                     "repeat_penalty", short_real(p->repeat_penalty), "presence_penalty",
                     short_real(p->presence_penalty), "frequency_penalty", short_real(p->frequency_penalty));
}

void api_on_props(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    const struct api_options *o = &a->o;
    json_t *props = json_pack(
        "{s:{s:o, s:i}, s:i, s:s, s:o, s:{s:b, s:b}, s:s, s:o, s:o, s:s}", "default_generation_settings",
        "params", sampling_json(&o->live.sampling), "n_ctx", (int)o->context, "total_slots", (int)o->slots,
        "model_alias", o->model_name, "model_path", jsonx_text(o->model_path), "modalities", "vision", 0,
        "audio", 0, "chat_template", o->chat_source, "bos_token",
        token_json(o->tokenizer, tokenizer_bos(o->tokenizer)), "eos_token",
        token_json(o->tokenizer, tokenizer_eos(o->tokenizer)), "build_info", "berth " BERTH_VERSION);
    api_reply_json(r, 200, props);
}
