/* Completions: OpenAI's older POST /v1/completions: plain text or token ids in, text out, several prompts in
 * one request. Threads: `read` on a worker, the formatters on the event thread. Tests:
 * tests/e2e/test_completions.py */
#include "api/private.h"
#include "util/jsonx.h"
#include "util/utf8.h"
#include <inttypes.h>
#include <string.h>

enum { LP_TOKENS, LP_LOGPROBS, LP_TOP, LP_OFFSETS };

static void add_ids(struct exchange *ex, const char *param, const json_t *ids)
{
    size_t n = json_array_size(ids);
    int64_t n_vocab = tokenizer_n_vocab(ex->api->o.tokenizer);
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    if (!tokens) {
        api_fail(ex, param, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t v = json_integer_value(id);
        if (!json_is_integer(id))
            api_fail(ex, param, "%s[%zu]: %s where a token id is wanted", param, i, jsonx_type_name(id));
        else if (v < 0 || v >= n_vocab)
            api_fail(ex, param, "%s[%zu]: token %lld is outside 0..%lld", param, i, (long long)v,
                     (long long)n_vocab - 1);
        if (ex->error.status) {
            free(tokens);
            return;
        }
        tokens[i] = (int32_t)v;
    }
    prompt_add_tokens(ex, param, tokens, n);
}

static void add_prompt(struct exchange *ex, const char *param, const json_t *prompt)
{
    if (json_is_string(prompt))
        prompt_add_text(ex, param, json_string_value(prompt), json_string_length(prompt),
                        TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL);
    else if (json_is_array(prompt))
        add_ids(ex, param, prompt);
    else
        api_fail(ex, param, "%s: %s where a string or a list of token ids is wanted", param,
                 jsonx_type_name(prompt));
}

static void read_completions(struct exchange *ex, json_t *body)
{
    if (!fields_read(ex, body))
        return;
    const json_t *prompt = ex->request.prompt;
    if (!prompt) {
        api_fail(ex, "prompt", "prompt: a string, a list of strings or a list of token ids is wanted");
        return;
    }
    bool several = json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0));
    size_t n = several ? json_array_size(prompt) : 1;
    if (n < 1 || n > API_MAX_PROMPTS) {
        api_fail(ex, "prompt", "prompt: %zu prompts, allowed are 1..%d", n, API_MAX_PROMPTS);
        return;
    }
    ex->request.prompts = calloc(n, sizeof *ex->request.prompts);
    if (!ex->request.prompts) {
        api_fail(ex, NULL, "out of memory");
        return;
    }
    char param[32] = "prompt";
    for (size_t i = 0; i < n && !ex->error.status; i++) {
        if (several)
            snprintf(param, sizeof param, "prompt[%zu]", i);
        add_prompt(ex, param, several ? json_array_get(prompt, i) : prompt);
    }
}

static uint64_t characters(const char *text, size_t len)
{
    uint64_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static void completions_logprob(struct exchange *ex, struct api_choice *c, const struct sampler_choice *t)
{
    size_t len;
    const char *piece = tokenizer_piece(ex->api->o.tokenizer, t->token, true, &len);
    for (int k = 0; k < API_LP_LISTS; k++)
        if (c->lp[k].len)
            buf_putc(&c->lp[k], ',');
    openai_token_text(ex, t->token, &c->lp[LP_TOKENS]);
    jsonout_real(&c->lp[LP_LOGPROBS], openai_logprob(t->logprob), 7);
    jsonout_int(&c->lp[LP_OFFSETS], (int64_t)c->n_chars);
    c->n_chars += characters(piece, len);
    struct buf *top = &c->lp[LP_TOP];
    if (!ex->request.top_logprobs) {
        buf_puts(top, "null");
        return;
    }
    buf_putc(top, '{');
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i)
            buf_putc(top, ',');
        openai_token_text(ex, t->top[i].token, top);
        buf_putc(top, ':');
        jsonout_real(top, openai_logprob(t->top[i].logprob), 7);
    }
    buf_putc(top, '}');
}

static void put_logprobs(const struct exchange *ex, const struct api_choice *c, struct buf *out)
{
    static const char *const names[API_LP_LISTS] = { "tokens", "token_logprobs", "top_logprobs",
                                                     "text_offset" };
    if (ex->request.top_logprobs < 0) {
        buf_puts(out, "null");
        return;
    }
    for (int k = 0; k < API_LP_LISTS; k++) {
        buf_printf(out, "%c\"%s\":[", k ? ',' : '{', names[k]);
        buf_append(out, c->lp[k].data, c->lp[k].len);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void put_choice(const struct exchange *ex, const struct api_choice *c, const char *finish,
                       struct buf *out)
{
    buf_printf(out, "{\"index\":%u,\"text\":\"", c->index);
    buf_append(out, c->text.data, c->text.len);
    buf_puts(out, "\",\"logprobs\":");
    put_logprobs(ex, c, out);
    if (finish)
        buf_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    else
        buf_puts(out, ",\"finish_reason\":null}");
}

static void completions_begin(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    (void)ex, (void)c, (void)out; /* nothing is said before the first text */
}

static void completions_text(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    openai_chunk_begin(ex, out);
    put_choice(ex, c, NULL, out);
    openai_chunk_end(ex, false, out);
}

static void completions_stop(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    openai_chunk_begin(ex, out);
    buf_printf(out, "{\"index\":%u,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"%s\"}", c->index,
               openai_finish_reason(c->stop));
    openai_chunk_end(ex, true, out);
}

static void completions_whole(struct exchange *ex, struct buf *out)
{
    buf_append(out, ex->head.data, ex->head.len);
    buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < ex->n_choices; i++) {
        if (i)
            buf_putc(out, ',');
        put_choice(ex, &ex->choices[i], openai_finish_reason(ex->choices[i].stop), out);
    }
    buf_puts(out, "],\"usage\":");
    openai_usage(ex, out);
    buf_printf(out, ",\"seed\":%" PRId64 ",\"timings\":", ex->request.seed);
    openai_timings(ex, out);
    buf_putc(out, '}');
}

const struct endpoint api_completions = {
    .name = "completions",
    .fields = FIELDS_COMPLETIONS,
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .read = read_completions,
    .logprob = completions_logprob,
    .stream_begin = completions_begin,
    .stream_text = completions_text,
    .stream_stop = completions_stop,
    .stream_end = openai_stream_end,
    .stream_error = openai_stream_error,
    .whole = completions_whole,
};
