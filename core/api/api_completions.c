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
        api_fail_memory(ex);
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
        api_fail_memory(ex);
        return;
    }
    char param[32] = "prompt";
    for (size_t i = 0; i < n && !ex->error.status; i++) {
        if (several)
            snprintf(param, sizeof param, "prompt[%zu]", i);
        add_prompt(ex, param, several ? json_array_get(prompt, i) : prompt);
    }
}

/* One more byte of the text, counted as it is written there: what cannot become a character is U+FFFD, one
 * for each stretch that could have begun one. Returns the number of the character that the byte belongs to.
 */
static uint64_t count_byte(struct api_choice *c, char byte)
{
    uint32_t cp;
    if (c->n_char_start) {
        c->char_start[c->n_char_start] = byte;
        bool whole = utf8_decode(c->char_start, c->n_char_start + 1, &cp) > 0;
        if (whole || utf8_incomplete_tail(c->char_start, c->n_char_start + 1) == c->n_char_start + 1) {
            c->n_char_start = whole ? 0 : c->n_char_start + 1;
            c->n_chars += whole;
            return c->n_chars - whole;
        }
        c->n_char_start = 0;
        c->n_chars++;
    }
    if (utf8_incomplete_tail(&byte, 1)) {
        c->char_start[c->n_char_start++] = byte;
        return c->n_chars;
    }
    return c->n_chars++;
}

/* Where the token starts in the text, in characters. */
static uint64_t text_offset(struct exchange *ex, struct api_choice *c, int32_t token)
{
    size_t len;
    const char *bytes = tokenizer_piece(ex->api->o.tokenizer, token, false, &len);
    uint64_t at = len ? count_byte(c, bytes[0]) : c->n_chars;
    for (size_t i = 1; i < len; i++)
        count_byte(c, bytes[i]);
    return at;
}

/* A token's name: its text, or `bytes:\xf0\x9f` where that is none. */
static void put_name(const struct exchange *ex, int32_t token, struct buf *out)
{
    size_t len;
    const char *piece = tokenizer_piece(ex->api->o.tokenizer, token, true, &len);
    if (utf8_valid(piece, len)) {
        jsonout_str(out, piece, len);
        return;
    }
    buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < len; i++)
        buf_printf(out, "\\\\x%02x", (unsigned char)piece[i]);
    buf_putc(out, '"');
}

static bool same_bytes(const struct exchange *ex, int32_t a, int32_t b)
{
    size_t len_a, len_b;
    const char *piece_a = tokenizer_piece(ex->api->o.tokenizer, a, true, &len_a);
    const char *piece_b = tokenizer_piece(ex->api->o.tokenizer, b, true, &len_b);
    return len_a == len_b && memcmp(piece_a, piece_b, len_a) == 0;
}

static void put_top(const struct exchange *ex, const struct sampler_choice *t, struct buf *out)
{
    buf_putc(out, '{');
    for (uint32_t i = 0; i < t->n_top; i++) {
        bool taken = false;
        for (uint32_t k = 0; k < i; k++)
            taken = taken || same_bytes(ex, t->top[k].token, t->top[i].token);
        if (i)
            buf_putc(out, ',');
        /* Vocabularies exist in which a byte has a token of its own beside the character's. */
        if (taken)
            buf_printf(out, "\"token:%d\"", t->top[i].token);
        else
            put_name(ex, t->top[i].token, out);
        buf_putc(out, ':');
        jsonout_real(out, openai_logprob(t->top[i].logprob), 7);
    }
    buf_putc(out, '}');
}

static void completions_logprob(struct exchange *ex, struct api_choice *c, const struct sampler_choice *t)
{
    for (int k = 0; k < API_LP_LISTS; k++)
        if (c->lp[k].len)
            buf_putc(&c->lp[k], ',');
    put_name(ex, t->token, &c->lp[LP_TOKENS]);
    jsonout_real(&c->lp[LP_LOGPROBS], openai_logprob(t->logprob), 7);
    jsonout_int(&c->lp[LP_OFFSETS], (int64_t)text_offset(ex, c, t->token));
    if (ex->request.top_logprobs)
        put_top(ex, t, &c->lp[LP_TOP]);
    else
        buf_puts(&c->lp[LP_TOP], "null");
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
        out->failed |= c->lp[k].failed;
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void put_choice(const struct exchange *ex, const struct api_choice *c, const char *text, size_t len,
                       const char *finish, struct buf *out)
{
    buf_printf(out, "{\"index\":%u,\"text\":\"", c->index);
    jsonout_escape(out, text, len);
    buf_puts(out, "\",\"logprobs\":");
    put_logprobs(ex, c, out);
    if (finish)
        buf_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    else
        buf_puts(out, ",\"finish_reason\":null}");
}

/* A chunk with new text, and the logprobs there are by now. */
static void put_chunk(struct exchange *ex, struct api_choice *c, const char *text, size_t len,
                      struct buf *out)
{
    openai_chunk_begin(ex, out);
    put_choice(ex, c, text, len, NULL, out);
    openai_chunk_end(ex, false, out);
    for (int k = 0; k < API_LP_LISTS; k++)
        buf_clear(&c->lp[k]);
}

static void completions_delta(struct exchange *ex, struct api_choice *c, struct api_part *p, const char *text,
                              size_t len, struct buf *out)
{
    (void)p;
    put_chunk(ex, c, text, len, out);
}

static void completions_stop(struct exchange *ex, struct api_choice *c, struct buf *out)
{
    if (c->lp[LP_TOKENS].len) /* of tokens without text */
        put_chunk(ex, c, NULL, 0, out);
    openai_chunk_begin(ex, out);
    buf_printf(out, "{\"index\":%u,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"%s\"}", c->index,
               openai_finish_reason(c));
    openai_chunk_end(ex, true, out);
}

static void completions_whole(struct exchange *ex, struct buf *out)
{
    openai_head(ex, out);
    buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < ex->n_choices; i++) {
        if (i)
            buf_putc(out, ',');
        const struct api_choice *c = &ex->choices[i];
        const struct buf *text = c->n_parts ? &c->parts[0].text : &(struct buf){ 0 };
        put_choice(ex, c, text->data, text->len, openai_finish_reason(c), out);
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
    .part_delta = completions_delta,
    .stop = completions_stop,
    .end = openai_end,
    .error = openai_error,
    .whole = completions_whole,
};
