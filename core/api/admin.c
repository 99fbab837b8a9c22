/* Admin: how the server is: health, readiness, models. All of it is read from the scheduler's
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
    const bool not_ready = a->draining || p.stuck || st->device_lost;
    json_t *json =
        json_pack("{s:s, s:s, s:i, s:i, s:f}", "status",
                  a->draining       ? "draining"
                  : st->device_lost ? "device lost"
                  : p.stuck         ? "stuck"
                                    : "ready",
                  "doing", p.held_up ? p.inside : st->doing, "running", (int)st->running, "waiting",
                  (int)st->waiting, "seconds_since_step", (double)(p.idle_ns / NS_PER_MS) / 1e3);
    if (not_ready)
        http_reply_header(r, "Retry-After", "5");
    api_reply_json(r, not_ready ? 503 : 200, json);
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
    /* What clients are told to call any model of this server. */
    if (strcmp(id, a->o.model_name) == 0 || strcmp(id, "berth") == 0) {
        api_reply_json(r, 200, model_json(a));
        return;
    }
    snprintf(text, sizeof text, "model: \"%.100s\" is not here; this server has \"%.100s\"", id,
             a->o.model_name);
    http_reply_error(r, 404, "invalid_request_error", text, "model", "model_not_found");
    http_done(r);
}
