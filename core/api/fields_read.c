/* Fields read: the fields whose values are more than a number, a flag or a string.
 * Thread: the workers'. Tests: tests/e2e/test_fields.py, test_fields_agents.py */
#include "api/fields.h"
#include "sched/slotio.h"
#include "util/jsonx.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SALT_BYTES 256

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
        api_fail_memory(ex);
        return;
    }
    memcpy(copy, json_string_value(value), len + 1);
    q->stops[q->n_stops] = copy;
    q->stop_lens[q->n_stops++] = len;
}

void field_read_stop(struct exchange *ex, const struct field *f, json_t *value)
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
void field_read_bias(struct exchange *ex, const struct field *f, json_t *value)
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
        api_fail_memory(ex);
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

void field_read_stream_options(struct exchange *ex, const struct field *f, json_t *value)
{
    char err[160];
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else if (jsonx_get_bool(value, "include_usage", &ex->request.include_usage, err, sizeof err) < 0)
        api_fail(ex, "stream_options.include_usage", "stream_options.%s", err);
}

void field_read_chat_logprobs(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_boolean(value))
        fail_type(ex, f, value, "true or false");
    else
        ex->request.chat_logprobs = json_is_true(value);
}

/* auto and none, by their names or as objects of that type; forced choices are to come. */
void field_read_tool_choice(struct exchange *ex, const struct field *f, json_t *value)
{
    const json_t *type = json_is_object(value) ? json_object_get(value, "type") : value;
    if (json_is_string(value) ? f->where & FIELDS_MESSAGES : !json_is_object(value)) {
        fail_type(ex, f, value, f->where & FIELDS_MESSAGES ? "an object" : "a string or an object");
        return;
    }
    const json_t *single = json_object_get(value, "disable_parallel_tool_use");
    if ((f->where & FIELDS_MESSAGES) && single && !json_is_null(single) && !json_is_boolean(single))
        api_fail(ex, "tool_choice.disable_parallel_tool_use",
                 "tool_choice.disable_parallel_tool_use: %s where true or false is wanted",
                 jsonx_type_name(single));
    if (f->where & FIELDS_MESSAGES)
        ex->request.several_calls = !json_is_true(single);
    if (!json_is_string(type))
        api_fail(ex, "tool_choice.type", "tool_choice.type: %s where a string is wanted",
                 jsonx_type_name(type));
    else if (strcmp(json_string_value(type), "none") == 0)
        ex->request.call_tools = false;
    else if (strcmp(json_string_value(type), "auto") != 0)
        api_fail(ex, f->name,
                 "tool_choice: \"%.40s\" is not supported by this server; allowed are \"auto\" and \"none\"",
                 json_string_value(type));
}

/* The type of a form that answers are to have; param names it. */
static void read_format(struct exchange *ex, const char *param, const json_t *format)
{
    const json_t *type = json_object_get(format, "type");
    char name[64];
    snprintf(name, sizeof name, "%s.type", param);
    if (!json_is_object(format))
        api_fail(ex, param, "%s: %s where an object is wanted", param, jsonx_type_name(format));
    else if (!json_is_string(type))
        api_fail(ex, name, "%s: %s where a string is wanted", name, jsonx_type_name(type));
    else if (strcmp(json_string_value(type), "text") != 0)
        api_fail(ex, name, "%s: \"%.40s\" is not supported by this server; allowed is \"text\"", name,
                 json_string_value(type));
}

void field_read_response_format(struct exchange *ex, const struct field *f, json_t *value)
{
    read_format(ex, f->name, value);
}

/* responses: {"format": {"type": "text"}, "verbosity": ..} */
void field_read_text_format(struct exchange *ex, const struct field *f, json_t *value)
{
    const json_t *format = json_object_get(value, "format");
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else if (format && !json_is_null(format))
        read_format(ex, "text.format", format);
}

/* messages: {"effort": .., "format": ..} */
void field_read_output_config(struct exchange *ex, const struct field *f, json_t *value)
{
    const json_t *format = json_object_get(value, "format");
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else if (format && !json_is_null(format))
        read_format(ex, "output_config.format", format);
}

void field_read_echo(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_boolean(value))
        fail_type(ex, f, value, "true or false");
    else if (json_is_true(value))
        api_fail(ex, f->name, "echo: true is not supported by this server; allowed is false");
}

void field_read_salt(struct exchange *ex, const struct field *f, json_t *value)
{
    size_t len = json_string_length(value);
    if (!json_is_string(value))
        fail_type(ex, f, value, "a string");
    else if (!len || len > MAX_SALT_BYTES)
        api_fail(ex, f->name, "%s: %zu bytes where 1..%d are allowed", f->name, len, MAX_SALT_BYTES);
    else
        identity_add_salt(ex, json_string_value(value), len);
}

void field_read_content(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_string(value))
        fail_type(ex, f, value, "a string");
    ex->request.content = value;
}

void field_read_tokens(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value))
        fail_type(ex, f, value, "a list of token ids");
    ex->request.tokens = value;
}

void field_read_filename(struct exchange *ex, const struct field *f, json_t *value)
{
    const char *name = json_string_value(value);
    char err[200];
    if (!name)
        fail_type(ex, f, value, "a string");
    else if (strlen(name) != json_string_length(value))
        api_fail(ex, f->name, "%s: a zero byte cannot be in a name", f->name);
    else if (slotfile_check_name(name, err, sizeof err) < 0)
        api_fail(ex, f->name, "%s: %s", f->name, err);
    ex->request.filename = name;
}

void field_read_suffix(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_string(value))
        fail_type(ex, f, value, "a string");
    else if (json_string_length(value))
        api_fail(ex, f->name, "suffix: inserting text is not supported by this server; leave it out");
}

void field_read_messages(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value))
        fail_type(ex, f, value, "a list");
    else if (!json_array_size(value))
        api_fail(ex, f->name, "messages: an empty list, at least one message is wanted");
    else
        ex->request.given_messages = value;
}

/* responses: a string, or a list of items; both may be empty. */
void field_read_input(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value) && !json_is_string(value))
        fail_type(ex, f, value, "a string or a list of items");
    else
        ex->request.given_messages = value;
}

/* A string; for messages also a list of blocks. */
void field_read_system(struct exchange *ex, const struct field *f, json_t *value)
{
    bool blocks = f->where & FIELDS_MESSAGES;
    if (!json_is_string(value) && !(blocks && json_is_array(value)))
        fail_type(ex, f, value, blocks ? "a string or a list of text blocks" : "a string");
    else
        ex->request.system = value;
}

void field_read_tools(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value))
        fail_type(ex, f, value, "a list");
    else
        ex->request.given_tools = value;
}

void field_read_kwargs(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else
        json_object_update(ex->request.variables, value);
}

/* What templates with reasoning look at. The caller's own variables go first. */
static void set_thinking(struct exchange *ex, bool on)
{
    if (!json_object_get(ex->request.variables, "enable_thinking"))
        json_object_set_new(ex->request.variables, "enable_thinking", json_boolean(on));
}

void field_read_effort(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_string(value)) {
        fail_type(ex, f, value, "a string");
        return;
    }
    if (strcmp(json_string_value(value), "none") == 0)
        set_thinking(ex, false);
    else if (!json_object_get(ex->request.variables, "reasoning_effort"))
        json_object_set(ex->request.variables, "reasoning_effort", value);
}

/* responses: {"effort": .., "summary": ..} */
void field_read_reasoning(struct exchange *ex, const struct field *f, json_t *value)
{
    json_t *effort = json_object_get(value, "effort");
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else if (effort && !json_is_null(effort) && !json_is_string(effort))
        api_fail(ex, "reasoning.effort", "reasoning.effort: %s where a string is wanted",
                 jsonx_type_name(effort));
    else if (json_is_string(effort))
        field_read_effort(ex, f, effort);
}

/* messages: enabled, disabled or adaptive; how much is left to the model. */
void field_read_thinking(struct exchange *ex, const struct field *f, json_t *value)
{
    const json_t *type = json_object_get(value, "type");
    if (!json_is_object(value)) {
        fail_type(ex, f, value, "an object");
        return;
    }
    const char *text = json_is_string(type) ? json_string_value(type) : "";
    bool off = strcmp(text, "disabled") == 0;
    if (!off && strcmp(text, "enabled") != 0 && strcmp(text, "adaptive") != 0)
        api_fail_value(ex, "thinking.type", type, "\"enabled\", \"adaptive\" or \"disabled\"");
    else
        set_thinking(ex, !off);
}

/* responses: of all that could be included only the reasoning is there. */
void field_read_include(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_array(value)) {
        fail_type(ex, f, value, "a list");
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item))
            api_fail(ex, f->name, "include[%zu]: %s where a string is wanted", i, jsonx_type_name(item));
        else if (strcmp(json_string_value(item), "reasoning.encrypted_content") == 0)
            ex->request.give_reasoning = true;
    }
}

/* messages: user_id, which identity.c reads. */
void field_read_metadata(struct exchange *ex, const struct field *f, json_t *value)
{
    const json_t *user = json_object_get(value, "user_id");
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else if (user && !json_is_null(user) && !json_is_string(user))
        api_fail(ex, "metadata.user_id", "metadata.user_id: %s where a string is wanted",
                 jsonx_type_name(user));
}

void field_read_cache(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_object(value))
        fail_type(ex, f, value, "an object");
    else
        ex->request.marks_cache = true;
}

void field_read_prompt(struct exchange *ex, const struct field *f, json_t *value)
{
    if (!json_is_string(value) && !json_is_array(value))
        fail_type(ex, f, value, "a string, a list of strings or a list of token ids");
    else
        ex->request.prompt = value;
}
