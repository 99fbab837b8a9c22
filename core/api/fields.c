/* Fields: reads a body by the table of request fields, and prints the table for people.
 * Thread: the workers'. Tests: tests/e2e/test_fields.py walks every row with every wrong type. */
#include "api/fields.h"
#include "util/jsonx.h"
#include "util/rng.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void api_fail_memory(struct exchange *ex)
{
    ex->error = (struct api_error){ .status = 503, .type = "server_error", .message = "out of memory" };
}

void api_fail_tokens(struct exchange *ex, const char *param, int r)
{
    if (r == -ENOMEM)
        api_fail_memory(ex);
    else
        api_fail(ex, param, "%s: could not be tokenized: %s", param, strerror(-r));
}

void api_fail_value(struct exchange *ex, const char *param, const json_t *value, const char *allowed)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    api_fail(ex, param, "%s: %.60s where %s is allowed", param, text ? text : "missing", allowed);
    free(text);
}

static bool is_empty(const json_t *value)
{
    return json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

/* Clients ask for as much as they can think of; where they mean "all" any number is right. */
static int read_limit(const json_t *body, const struct field *f, int64_t *ret_value, char *err, size_t errlen)
{
    if (json_number_value(json_object_get(body, f->name)) >= (double)f->imax) {
        *ret_value = f->imax;
        return 1;
    }
    return jsonx_get_int(body, f->name, f->imin, f->imax, ret_value, err, errlen);
}

static void read_field(struct exchange *ex, const struct field *f, json_t *body, json_t *value)
{
    char err[256];
    const char *text;
    size_t len;
    char *base = (char *)&ex->request;
    int r = 0;
    switch (f->type) {
    case FIELD_BOOL:
        r = jsonx_get_bool(body, f->name, (bool *)(base + f->offset), err, sizeof err);
        break;
    case FIELD_INT:
        r = jsonx_get_int(body, f->name, f->imin, f->imax, (int64_t *)(void *)(base + f->offset), err,
                          sizeof err);
        break;
    case FIELD_LIMIT:
        r = read_limit(body, f, (int64_t *)(void *)(base + f->offset), err, sizeof err);
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
    case FIELD_IGNORED:
        break;
    case FIELD_REFUSED:
        if (!is_empty(value))
            api_fail(ex, f->name, "%s: not supported by this server: %s", f->name, f->note);
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
        .call_tools = true,
        .parse_special = true,
        .several_calls = true,
        .variables = json_object(),
        .temperature = d->temperature,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .top_k = d->top_k,
        .repeat_penalty = d->repeat_penalty,
        .presence_penalty = d->presence_penalty,
        .frequency_penalty = d->frequency_penalty,
        .seed = -1,
        .id_slot = -1,
        .n = 1,
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
    if (q->best_of && q->best_of != q->n)
        api_fail(ex, "best_of", "best_of: %lld is given, and n is %lld; what is allowed is the same as n",
                 (long long)q->best_of, (long long)q->n);
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
    for (size_t i = 0; i < fields_n && !ex->error.status; i++) {
        const struct field *f = &fields_table[i];
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

void request_forget(struct api_request *q)
{
    json_t **owned[] = {
        &q->messages, &q->tools, &q->variables, &q->tool_names, &q->tool_schemas, &q->unshown
    };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        json_decref(*owned[i]);
        *owned[i] = NULL;
    }
    q->given_messages = q->given_tools = q->system = NULL;
}

void request_clear(struct api_request *q)
{
    for (size_t i = 0; i < q->n_stops; i++)
        free(q->stops[i]);
    for (size_t i = 0; i < q->n_prompts; i++)
        free(q->prompts[i].tokens);
    free(q->prompts);
    free(q->told);
    free(q->bias);
    request_forget(q);
    json_decref(q->namespaces);
    *q = (struct api_request){ 0 };
}

/* ---- the table for people ---- */

static const struct {
    unsigned bit;
    const char *title;
} endpoints[] = {
    { FIELDS_CHAT, "POST /v1/chat/completions" },
    { FIELDS_MESSAGES, "POST /v1/messages" },
    { FIELDS_COUNT, "POST /v1/messages/count_tokens" },
    { FIELDS_RESPONSES, "POST /v1/responses" },
    { FIELDS_COMPLETIONS, "POST /v1/completions" },
    { FIELDS_TEMPLATE, "POST /apply-template" },
    { FIELDS_TOKENIZE, "POST /tokenize" },
    { FIELDS_DETOKENIZE, "POST /detokenize" },
    { FIELDS_SAVE, "POST /slots/ID?action=save" },
    { FIELDS_RESTORE, "POST /slots/ID?action=restore" },
};

static void print_field(const struct field *f, FILE *out)
{
    static const char *const uses[] = {
        [FIELD_BOOL] = "honoured",   [FIELD_INT] = "honoured",    [FIELD_REAL] = "honoured",
        [FIELD_LIMIT] = "honoured",  [FIELD_STR] = "ignored",     [FIELD_SPECIAL] = "honoured",
        [FIELD_IGNORED] = "ignored", [FIELD_REFUSED] = "refused",
    };
    char bounds[96] = "";
    if (f->type == FIELD_BOOL)
        snprintf(bounds, sizeof bounds, "true or false");
    else if (f->type == FIELD_INT && f->imax < INT32_MAX)
        snprintf(bounds, sizeof bounds, "%lld..%lld", (long long)f->imin, (long long)f->imax);
    else if (f->type == FIELD_INT || f->type == FIELD_LIMIT)
        snprintf(bounds, sizeof bounds, "%lld or more", (long long)f->imin);
    else if (f->type == FIELD_REAL)
        snprintf(bounds, sizeof bounds, "%g..%g", f->min, f->max);
    else if (f->type == FIELD_STR)
        snprintf(bounds, sizeof bounds, "a string");
    fprintf(out, "| `%s` | %s | %s%s%s |\n", f->name, uses[f->type], bounds, *bounds && f->note ? "; " : "",
            f->note ? f->note : "");
}

void api_print_fields(FILE *out)
{
    for (size_t e = 0; e < sizeof endpoints / sizeof *endpoints; e++) {
        fprintf(out, "### %s\n\n| field | | |\n| --- | --- | --- |\n", endpoints[e].title);
        for (size_t i = 0; i < fields_n; i++)
            if (fields_table[i].where & endpoints[e].bit)
                print_field(&fields_table[i], out);
        fputc('\n', out);
    }
}
