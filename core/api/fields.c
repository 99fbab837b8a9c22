/* Fields: the one table of request fields: name, type, bounds, where it goes, which endpoints know it. A
 * field that is not in the table is ignored; one that is must have the right type and an allowed value.
 * Thread: the workers'. Tests: tests/e2e/test_fields.py walks every row with every wrong type. */
#include "api/private.h"
#include "util/jsonx.h"
#include "util/rng.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum field_type {
    FIELD_BOOL,
    FIELD_INT,
    FIELD_REAL,
    FIELD_STR,     /* checked and not used */
    FIELD_SPECIAL, /* `read` does it */
};

struct field {
    const char *name;
    enum field_type type;
    unsigned where;
    size_t offset; /* in struct api_request */
    int64_t imin, imax;
    double min, max;
    void (*read)(struct exchange *ex, const struct field *f, json_t *value);
};

void api_fail(struct exchange *ex, const char *param, const char *fmt, ...)
{
    struct api_error *e = &ex->error;
    va_list args;
    if (e->status)
        return; /* the first one is the cause */
    e->status = 400;
    e->type = "invalid_request_error";
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
}

static void fail_type(struct exchange *ex, const struct field *f, const json_t *value, const char *wanted)
{
    api_fail(ex, f->name, "%s: %s where %s is wanted", f->name, jsonx_type_name(value), wanted);
}

static void add_stop(struct exchange *ex, const struct field *f, const json_t *value)
{
    struct api_request *q = &ex->request;
    if (!json_is_string(value)) {
        fail_type(ex, f, value, "a string or a list of strings");
        return;
    }
    size_t len = json_string_length(value);
    if (!len || len > API_MAX_STOP_BYTES) {
        api_fail(ex, f->name, "%s: a string of %zu bytes, allowed are 1..%d", f->name, len,
                 API_MAX_STOP_BYTES);
        return;
    }
    char *copy = malloc(len + 1);
    if (!copy) {
        api_fail(ex, f->name, "out of memory");
        return;
    }
    memcpy(copy, json_string_value(value), len + 1);
    q->stops[q->n_stops] = copy;
    q->stop_lens[q->n_stops++] = len;
}

static void read_stop(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value)) {
        add_stop(ex, f, value);
        return;
    }
    size_t n = json_array_size(value);
    if (n > API_MAX_STOPS) {
        api_fail(ex, f->name, "%s: %zu strings, allowed are at most %d", f->name, n, API_MAX_STOPS);
        return;
    }
    for (size_t i = 0; i < n; i++)
        add_stop(ex, f, json_array_get(value, i));
}

static void add_bias(struct exchange *ex, const struct field *f, int64_t token, const json_t *bias)
{
    struct api_request *q = &ex->request;
    int64_t n_vocab = tokenizer_n_vocab(ex->api->o.tokenizer);
    if (token < 0 || token >= n_vocab) {
        api_fail(ex, f->name, "%s: token %lld is outside 0..%lld", f->name, (long long)token,
                 (long long)n_vocab - 1);
        return;
    }
    if (!json_is_number(bias)) {
        api_fail(ex, f->name, "%s: %s as the bias of token %lld, a number from -100 to 100 is wanted",
                 f->name, jsonx_type_name(bias), (long long)token);
        return;
    }
    double v = json_number_value(bias);
    if (!(v >= -100 && v <= 100)) {
        api_fail(ex, f->name, "%s: %.15g is outside -100..100 (token %lld)", f->name, v, (long long)token);
        return;
    }
    q->bias[q->n_bias++] = (struct sampler_bias){ .token = (int32_t)token, .bias = (float)v };
}

/* Only as a number is usually written: two spellings of one id would be two biases of one token. */
static bool token_of_key(const char *key, int64_t *ret_token)
{
    size_t digits = strspn(key, "0123456789");
    if (!digits || key[digits] || (key[0] == '0' && digits > 1))
        return false;
    errno = 0;
    *ret_token = strtoll(key, NULL, 10);
    return !errno;
}

/* OpenAI's {"token id": bias} and llama.cpp's [[token id, bias], ..]. */
static void read_bias(struct exchange *ex, const struct field *f, json_t *value)
{
    size_t n = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    if (!json_is_object(value) && !json_is_array(value)) {
        fail_type(ex, f, value, "an object of token ids and numbers");
        return;
    }
    if (n > tokenizer_n_vocab(ex->api->o.tokenizer)) {
        api_fail(ex, f->name, "%s: %zu entries, more than there are tokens", f->name, n);
        return;
    }
    ex->request.bias = calloc(n + 1, sizeof *ex->request.bias);
    if (!ex->request.bias) {
        api_fail(ex, f->name, "out of memory");
        return;
    }
    const char *key;
    json_t *item;
    size_t i;
    int64_t token;
    if (json_is_object(value)) {
        json_object_foreach(value, key, item)
        {
            if (token_of_key(key, &token))
                add_bias(ex, f, token, item);
            else
                api_fail(ex, f->name, "%s: \"%.40s\" is no token id (0..%u, in plain digits)", f->name, key,
                         tokenizer_n_vocab(ex->api->o.tokenizer) - 1);
        }
        return;
    }
    json_array_foreach(value, i, item)
    {
        if (json_is_array(item) && json_array_size(item) == 2 && json_is_integer(json_array_get(item, 0)))
            add_bias(ex, f, json_integer_value(json_array_get(item, 0)), json_array_get(item, 1));
        else
            api_fail(ex, f->name, "%s[%zu]: a pair of token id and number is wanted", f->name, i);
    }
}

static void read_stream_options(struct exchange *ex, const struct field *f, json_t *value)
{
    char err[160];
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else if (jsonx_get_bool(value, "include_usage", &ex->request.include_usage, err, sizeof err) < 0)
        api_fail(ex, "stream_options.include_usage", "stream_options.%s", err);
}

static void read_chat_logprobs(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_boolean(value))
        fail_type(ex, f, value, "true or false");
    else
        ex->request.chat_logprobs = json_is_true(value);
}

static void read_tool_choice(struct exchange *ex, const struct field *f, json_t *value)
{
    const char *text = json_string_value(value);
    if (!json_is_string(value) && !json_is_object(value))
        fail_type(ex, f, value, "a string or an object");
    else if (!text)
        api_fail(
            ex, f->name,
            "tool_choice: a named tool is not supported by this server; allowed are \"auto\" and \"none\"");
    else if (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0)
        api_fail(ex, f->name,
                 "tool_choice: \"%.40s\" is not supported by this server; allowed are \"auto\" and \"none\"",
                 text);
}

static void read_response_format(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_object(value)) {
        fail_type(ex, f, value, "an object");
        return;
    }
    const json_t *type = json_object_get(value, "type");
    if (!json_is_string(type))
        api_fail(ex, "response_format.type", "response_format.type: %s where a string is wanted",
                 jsonx_type_name(type));
    else if (strcmp(json_string_value(type), "text") != 0)
        api_fail(ex, "response_format.type",
                 "response_format.type: \"%.40s\" is not supported by this server; allowed is \"text\"",
                 json_string_value(type));
}

static void read_echo(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_boolean(value))
        fail_type(ex, f, value, "true or false");
    else if (json_is_true(value))
        api_fail(ex, f->name, "echo: true is not supported by this server; allowed is false");
}

static void read_suffix(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_string(value))
        fail_type(ex, f, value, "a string");
    else if (json_string_length(value))
        api_fail(ex, f->name, "suffix: inserting text is not supported by this server; leave it out");
}

static void read_one(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_number(value))
        fail_type(ex, f, value, "a whole number");
    else if (json_number_value(value) != 1)
        api_fail(ex, f->name, "%s: %.15g is not supported by this server; allowed is 1", f->name,
                 json_number_value(value));
}

static void read_messages(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value))
        fail_type(ex, f, value, "a list");
    else if (!json_array_size(value))
        api_fail(ex, f->name, "messages: an empty list, at least one message is wanted");
    else
        ex->request.messages = value;
}

static void read_tools(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value))
        fail_type(ex, f, value, "a list");
    else
        ex->request.tools = value;
}

static void read_kwargs(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else
        ex->request.template_kwargs = value;
}

static void read_prompt(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_string(value) && !json_is_array(value))
        fail_type(ex, f, value, "a string, a list of strings or a list of token ids");
    else
        ex->request.prompt = value;
}

#define CHAT FIELDS_CHAT
#define COMP FIELDS_COMPLETIONS
#define TMPL FIELDS_TEMPLATE
#define TO(member) offsetof(struct api_request, member)
#define BOOL(name, where, member)                                                                            \
    {                                                                                                        \
        name, FIELD_BOOL, where, TO(member), 0, 0, 0, 0, NULL                                                \
    }
#define INT(name, where, member, min, max)                                                                   \
    {                                                                                                        \
        name, FIELD_INT, where, TO(member), min, max, 0, 0, NULL                                             \
    }
#define REAL(name, where, member, min, max)                                                                  \
    {                                                                                                        \
        name, FIELD_REAL, where, TO(member), 0, 0, min, max, NULL                                            \
    }
#define STR(name, where)                                                                                     \
    {                                                                                                        \
        name, FIELD_STR, where, 0, 0, 0, 0, 0, NULL                                                          \
    }
#define SPECIAL(name, where, read)                                                                           \
    {                                                                                                        \
        name, FIELD_SPECIAL, where, 0, 0, 0, 0, 0, read                                                      \
    }

static const struct field table[] = {
    SPECIAL("messages", CHAT | TMPL, read_messages),
    SPECIAL("prompt", COMP, read_prompt),
    STR("model", CHAT | COMP),
    SPECIAL("tools", CHAT | TMPL, read_tools),
    SPECIAL("tool_choice", CHAT, read_tool_choice),
    { "parallel_tool_calls", FIELD_BOOL, CHAT, SIZE_MAX, 0, 0, 0, 0, NULL },
    SPECIAL("response_format", CHAT, read_response_format),
    SPECIAL("chat_template_kwargs", CHAT | TMPL, read_kwargs),
    BOOL("add_generation_prompt", CHAT | TMPL, add_generation_prompt),
    INT("max_tokens", CHAT | COMP, max_tokens, 1, INT32_MAX),
    INT("max_completion_tokens", CHAT, max_tokens, 1, INT32_MAX),
    SPECIAL("stop", CHAT | COMP, read_stop),
    REAL("temperature", CHAT | COMP, temperature, 0, 2),
    REAL("top_p", CHAT | COMP, top_p, 0, 1),
    INT("top_k", CHAT | COMP, top_k, -1, INT32_MAX),
    REAL("min_p", CHAT | COMP, min_p, 0, 1),
    REAL("repeat_penalty", CHAT | COMP, repeat_penalty, 0.01, 10),
    REAL("repetition_penalty", CHAT | COMP, repeat_penalty, 0.01, 10),
    REAL("presence_penalty", CHAT | COMP, presence_penalty, -2, 2),
    REAL("frequency_penalty", CHAT | COMP, frequency_penalty, -2, 2),
    SPECIAL("logit_bias", CHAT | COMP, read_bias),
    INT("seed", CHAT | COMP, seed, -1, INT64_MAX),
    SPECIAL("n", CHAT | COMP, read_one),
    SPECIAL("best_of", COMP, read_one),
    SPECIAL("logprobs", CHAT, read_chat_logprobs),
    INT("top_logprobs", CHAT, top_logprobs, 0, SAMPLER_MAX_TOP_LOGPROBS),
    INT("logprobs", COMP, top_logprobs, 0, SAMPLER_MAX_TOP_LOGPROBS),
    BOOL("ignore_eos", CHAT | COMP, ignore_eos),
    INT("min_tokens", CHAT | COMP, min_tokens, 0, INT32_MAX),
    BOOL("stream", CHAT | COMP, stream),
    SPECIAL("stream_options", CHAT | COMP, read_stream_options),
    BOOL("cache_prompt", CHAT | COMP, cache_prompt),
    INT("id_slot", CHAT | COMP, id_slot, -1, INT32_MAX),
    SPECIAL("echo", COMP, read_echo),
    SPECIAL("suffix", COMP, read_suffix),
    STR("user", CHAT | COMP),
    STR("prompt_cache_key", CHAT | COMP),
};

static void read_field(struct exchange *ex, const struct field *f, json_t *body, json_t *value)
{
    char err[256];
    const char *text;
    size_t len;
    bool unused;
    char *base = (char *)&ex->request;
    int r = 0;
    switch (f->type) {
    case FIELD_BOOL:
        r = jsonx_get_bool(body, f->name, f->offset == SIZE_MAX ? &unused : (bool *)(base + f->offset), err,
                           sizeof err);
        break;
    case FIELD_INT:
        r = jsonx_get_int(body, f->name, f->imin, f->imax, (int64_t *)(void *)(base + f->offset), err,
                          sizeof err);
        break;
    case FIELD_REAL:
        r = jsonx_get_real(body, f->name, f->min, f->max, (double *)(void *)(base + f->offset), err,
                           sizeof err);
        break;
    case FIELD_STR:
        r = jsonx_get_str(body, f->name, &text, &len, err, sizeof err);
        break;
    case FIELD_SPECIAL:
        f->read(ex, f, value);
        break;
    }
    if (r < 0)
        api_fail(ex, f->name, "%s", err);
}

static void defaults(struct exchange *ex)
{
    const struct sampler_params *d = &ex->sampling;
    ex->request = (struct api_request){
        .cache_prompt = true,
        .add_generation_prompt = true,
        .temperature = d->temperature,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .top_k = d->top_k,
        .repeat_penalty = d->repeat_penalty,
        .presence_penalty = d->presence_penalty,
        .frequency_penalty = d->frequency_penalty,
        .seed = -1,
        .id_slot = -1,
        .top_logprobs = -1,
    };
}

/* What no single field can say. */
static void check_together(struct exchange *ex)
{
    struct api_request *q = &ex->request;
    if (ex->endpoint->fields & FIELDS_CHAT) {
        if (q->top_logprobs > 0 && !q->chat_logprobs)
            api_fail(ex, "top_logprobs", "top_logprobs: %lld is given, but logprobs is not true",
                     (long long)q->top_logprobs);
        q->top_logprobs = !q->chat_logprobs ? -1 : q->top_logprobs < 0 ? 0 : q->top_logprobs;
    }
    if (q->id_slot >= (int64_t)ex->api->o.slots)
        api_fail(ex, "id_slot", "id_slot: %lld is outside -1..%u", (long long)q->id_slot,
                 ex->api->o.slots - 1);
    if (q->top_k < 0)
        q->top_k = 0;
    /* A seed that any JSON reader keeps exactly, so that what is returned can be sent back. */
    if (q->seed < 0)
        q->seed = (int64_t)(rng_system_seed() >> 11);
}

bool fields_read(struct exchange *ex, json_t *body)
{
    defaults(ex);
    if (!json_is_object(body)) {
        api_fail(ex, NULL, "the body is %s, a JSON object is wanted", jsonx_type_name(body));
        return false;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table && !ex->error.status; i++) {
        const struct field *f = &table[i];
        json_t *value = f->where & ex->endpoint->fields ? json_object_get(body, f->name) : NULL;
        if (value && !json_is_null(value))
            read_field(ex, f, body, value);
    }
    if (!ex->error.status)
        check_together(ex);
    return !ex->error.status;
}

struct sampler_params fields_sampling(const struct api_request *q)
{
    return (struct sampler_params){
        .temperature = (float)q->temperature,
        .top_k = (int32_t)q->top_k,
        .top_p = (float)q->top_p,
        .min_p = (float)q->min_p,
        .repeat_penalty = (float)q->repeat_penalty,
        .presence_penalty = (float)q->presence_penalty,
        .frequency_penalty = (float)q->frequency_penalty,
        .seed = (uint64_t)q->seed,
        .min_tokens = (uint32_t)q->min_tokens,
        .ignore_eos = q->ignore_eos,
        .n_top_logprobs = (int32_t)q->top_logprobs,
        .bias = q->bias,
        .n_bias = q->n_bias,
    };
}

void request_clear(struct api_request *q)
{
    for (size_t i = 0; i < q->n_stops; i++)
        free(q->stops[i]);
    for (size_t i = 0; i < q->n_prompts; i++)
        free(q->prompts[i].tokens);
    free(q->prompts);
    free(q->bias);
    *q = (struct api_request){ 0 };
}
