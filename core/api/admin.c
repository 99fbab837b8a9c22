/* Admin: how the server is: health, readiness, models, metrics. All of it is read from the scheduler's
 * published record, so it answers at once whatever runs. Thread: the event thread's. Tests:
 * tests/e2e/test_admin.py */
#include "api/private.h"
#include "util/clock.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void api_reply_json(struct http_request *r, int status, json_t *json)
{
    /* 15 digits: what a double keeps of a decimal number, so that 0.7 is written 0.7. */
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text)
        http_reply(r, status, "application/json; charset=utf-8", text, strlen(text));
    else
        http_reply_error(r, 500, "server_error", "out of memory", NULL, NULL);
    free(text);
    json_decref(json);
    http_done(r);
}

void api_on_health(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    api_reply_json(r, 200, json_pack("{s:s}", "status", a->draining ? "draining" : "ok"));
}

/* Claude Code asks whether anybody is there. */
void api_on_hello(struct http_request *r, void *arg)
{
    (void)arg;
    api_reply_json(r, 200, json_pack("{s:s}", "message", "hello"));
}

void api_on_live(struct http_request *r, void *arg)
{
    (void)arg;
    api_reply_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

/* In a call of a policy for as long as that; says in which. */
static bool is_held_up(const struct api *a, uint64_t now_ns, char *text, size_t size)
{
    struct sched_inside in;
    if (!sched_inside_policy(a->o.sched, &in) || now_ns < in.since_ns ||
        now_ns - in.since_ns <= a->o.live.watchdog_s * NS_PER_S)
        return false;
    snprintf(text, size, "inside policy %s, function %s", in.policy, in.function);
    return true;
}

struct progress {
    uint64_t idle_ns;
    bool held_up, stuck;
    char inside[96]; /* held up: in what */
};

static struct progress progress_of(const struct api *a, const struct sched_status *st)
{
    uint64_t now = clock_now_ns();
    struct progress p = { .idle_ns = now > st->last_step_ns ? now - st->last_step_ns : 0 };
    p.held_up = is_held_up(a, now, p.inside, sizeof p.inside);
    p.stuck = p.held_up || (st->running + st->waiting && p.idle_ns > a->o.live.watchdog_s * NS_PER_S);
    return p;
}

bool api_stuck(const struct api *a)
{
    struct sched_status *st = sched_status_get(a->o.sched);
    bool stuck = st && progress_of(a, st).stuck;
    free(st);
    return stuck;
}

void api_on_ready(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    struct sched_status *st = sched_status_get(a->o.sched);
    if (!st) {
        api_reply_json(r, 500, NULL);
        return;
    }
    struct progress p = progress_of(a, st);
    json_t *json =
        json_pack("{s:s, s:s, s:i, s:i, s:f}", "status",
                  a->draining ? "draining"
                  : p.stuck   ? "stuck"
                              : "ready",
                  "doing", p.held_up ? p.inside : st->doing, "running", (int)st->running, "waiting",
                  (int)st->waiting, "seconds_since_step", (double)(p.idle_ns / NS_PER_MS) / 1e3);
    if (a->draining || p.stuck)
        http_reply_header(r, "Retry-After", "5");
    api_reply_json(r, a->draining || p.stuck ? 503 : 200, json);
    free(st);
}

static json_t *model_json(const struct api *a)
{
    const struct api_options *o = &a->o;
    json_t *meta =
        json_pack("{s:s, s:s, s:I, s:i, s:i, s:i, s:I, s:I}", "architecture", o->model_arch, "vocab_type",
                  tokenizer_kind(o->tokenizer), "n_vocab", (json_int_t)tokenizer_n_vocab(o->tokenizer),
                  "n_ctx", (int)o->context, "n_ctx_train", (int)o->context_train, "n_embd", (int)o->n_embd,
                  "n_params", (json_int_t)o->model_params, "size", (json_int_t)o->model_bytes);
    char date[32] = "";
    time_t started = (time_t)a->started_s;
    struct tm utc;
    if (gmtime_r(&started, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    /* OpenAI's keys and Anthropic's: both kinds of client ask here. */
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:s, s:s, s:s, s:o}", "id", o->model_name, "object", "model",
                     "created", (json_int_t)a->started_s, "owned_by", "berth", "max_model_len",
                     (int)o->context, "type", "model", "display_name", o->model_name, "created_at", date,
                     "meta", meta);
}

void api_on_models(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    const char *id = a->o.model_name;
    api_reply_json(r, 200,
                   json_pack("{s:s, s:[o], s:b, s:s, s:s}", "object", "list", "data", model_json(a),
                             "has_more", 0, "first_id", id, "last_id", id));
}

void api_on_model(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    const char *id = http_path_rest(r);
    char text[320];
    if (strcmp(id, a->o.model_name) == 0) {
        api_reply_json(r, 200, model_json(a));
        return;
    }
    snprintf(text, sizeof text, "model: \"%.100s\" is not here; this server has \"%.100s\"", id,
             a->o.model_name);
    http_reply_error(r, 404, "invalid_request_error", text, "model", "model_not_found");
    http_done(r);
}

static json_t *metrics_json(const struct api *a, const struct sched_status *st)
{
    const struct sched_slot_status *solo = &st->slot[st->slots];
    uint64_t now = clock_now_ns();
    json_t *policy = a->o.policy_json ? a->o.policy_json(a->o.policy_arg) : NULL;
    json_t *json = json_pack(
        "{s:{s:s, s:i, s:i, s:i, s:i}, s:{s:s}, s:{s:s, s:i, s:i, s:i, s:f, s:f, s:s},"
        " s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}}",
        "engine", "model", a->o.model_name, "max_context", (int)a->o.context, "slots", (int)st->slots,
        "kv_blocks", (int)st->kv_blocks, "kv_blocks_used", (int)st->kv_blocks_used, "policy", "name",
        st->policy.name, "live", "state", st->doing, "waiting", (int)st->waiting, "running", (int)st->running,
        "solo_tokens", (int)solo->tokens, "solo_age_s", solo->busy ? 0.0 : api_slot_age_s(solo, now),
        "solo_value", solo->value, "solo_state", api_slot_state(solo, now), "totals", "steps",
        (json_int_t)st->step, "started", (json_int_t)st->started, "completed", (json_int_t)st->completed,
        "cancelled", (json_int_t)st->cancelled, "failed", (json_int_t)st->failed, "prompt_tokens",
        (json_int_t)st->prompt_tokens, "cached_tokens", (json_int_t)st->cached_tokens, "generated_tokens",
        (json_int_t)st->generated_tokens, "drafted_tokens", (json_int_t)st->drafted_tokens, "accepted_tokens",
        (json_int_t)st->accepted_tokens);
    json_object_update(json_object_get(json, "policy"), policy);
    json_decref(policy);
    return json;
}

static void put_metric(struct buf *b, const char *name, const char *type, const char *help, uint64_t value)
{
    buf_printf(b, "# HELP berth_%s %s\n# TYPE berth_%s %s\nberth_%s %" PRIu64 "\n", name, help, name, type,
               name, value);
}

static void metrics_text(const struct sched_status *st, struct buf *b)
{
    put_metric(b, "steps_total", "counter", "Windows run.", st->step);
    put_metric(b, "requests_started_total", "counter", "Requests taken in.", st->started);
    put_metric(b, "requests_completed_total", "counter", "Requests that ended by themselves.", st->completed);
    put_metric(b, "requests_cancelled_total", "counter",
               "Requests whose client left, or that the server ended.", st->cancelled);
    put_metric(b, "requests_failed_total", "counter", "Requests that ended with an error of the server.",
               st->failed);
    put_metric(b, "requests_running", "gauge", "Requests that have a slot.", st->running);
    put_metric(b, "requests_waiting", "gauge", "Requests in the queue.", st->waiting);
    put_metric(b, "prompt_tokens_total", "counter",
               "Prompt tokens of started requests, cached ones included.", st->prompt_tokens);
    put_metric(b, "cached_tokens_total", "counter", "Prompt tokens that were not read again.",
               st->cached_tokens);
    put_metric(b, "generated_tokens_total", "counter", "Tokens generated.", st->generated_tokens);
    put_metric(b, "drafted_tokens_total", "counter", "Tokens guessed ahead of a single stream.",
               st->drafted_tokens);
    put_metric(b, "accepted_tokens_total", "counter", "Guessed tokens that were right.", st->accepted_tokens);
    put_metric(b, "slots", "gauge", "Conversations that can be kept.", st->slots);
    put_metric(b, "kv_blocks", "gauge", "Blocks of the key-value pool.", st->kv_blocks);
    put_metric(b, "kv_blocks_used", "gauge", "Blocks in use.", st->kv_blocks_used);
}

static bool wants_prometheus(const struct http_request *r, const char *format)
{
    const char *accept = http_header(r, "Accept");
    if (format)
        return strcmp(format, "prometheus") == 0;
    return accept && (strstr(accept, "text/plain") || strstr(accept, "openmetrics"));
}

void api_on_metrics(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    const char *format = http_query(r, "format");
    if (format && strcmp(format, "prometheus") != 0 && strcmp(format, "json") != 0) {
        http_reply_error(r, 400, NULL, "format: allowed are \"json\" and \"prometheus\"", "format", NULL);
        http_done(r);
        return;
    }
    struct sched_status *st = sched_status_get(a->o.sched);
    if (!st || !wants_prometheus(r, format)) {
        api_reply_json(r, 200, st ? metrics_json(a, st) : NULL);
        free(st);
        return;
    }
    struct buf text = { 0 };
    metrics_text(st, &text);
    if (text.failed)
        http_reply_error(r, 500, "server_error", "out of memory", NULL, NULL);
    else
        http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
    http_done(r);
    buf_free(&text);
    free(st);
}
