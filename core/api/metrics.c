/* Metrics: gathers the view that both renderings tell, and answers GET /metrics. */
#include "api/metrics.h"
#include "util/clock.h"
#include <stdlib.h>
#include <string.h>

double metrics_time_edge(uint32_t i)
{
    return sched_time_edges_s[i];
}

double metrics_call_edge(uint32_t i)
{
    return (double)policy_time_edges_ns[i] / 1e9;
}

const void *metrics_at(const struct metric *m, const struct metrics_view *v, uint32_t i)
{
    const char *base = m->extra ? (const char *)&v->extra : (const char *)v->st;
    return base + m->offset + (m->by ? i * m->by->stride : 0);
}

uint64_t metrics_policy_count(const json_t *object, const char *key, const char *call)
{
    const json_t *value = json_object_get(object, key);
    if (call)
        value = json_object_get(value, call);
    return (uint64_t)json_integer_value(value);
}

size_t metrics_shadows(const struct metrics_view *v)
{
    return json_array_size(json_object_get(v->policy, "shadows"));
}

const json_t *metrics_shadow(const struct metrics_view *v, size_t i)
{
    return json_array_get(json_object_get(v->policy, "shadows"), i);
}

static void count_states(struct metrics_view *v)
{
    struct metrics_extra *e = &v->extra;
    for (uint32_t i = 0; i < v->st->slots; i++) {
        const struct sched_slot_status *slot = &v->st->slot[i];
        const char *state = api_slot_state(slot, v->now_ns);
        e->superseded += slot->superseded;
        if (slot->busy)
            e->busy++;
        else if (strcmp(state, "protected") == 0)
            e->protected ++;
        else if (strcmp(state, "expired") == 0)
            e->expired++;
        else
            e->blank++;
    }
}

/* The scheduler's record tells of the policy it asked last: when nothing ran since a reload, another one. */
static void take_policy(struct metrics_view *v)
{
    struct policy_host_status *p = &v->st->policy;
    uint64_t generation = metrics_policy_count(v->policy, "generation", NULL);
    if (!generation || generation == p->generation)
        return;
    const struct {
        const char *key;
        char *text;
        size_t size;
    } fields[] = {
        { "name", p->name, sizeof p->name },
        { "version", p->version, sizeof p->version },
        { "digest", p->digest, sizeof p->digest },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *text = json_string_value(json_object_get(v->policy, fields[i].key));
        snprintf(fields[i].text, fields[i].size, "%s", text ? text : "");
    }
    p->generation = generation;
    p->quarantined = false;
}

static uint64_t count_reading(const struct api *a)
{
    uint64_t n = 0;
    for (const struct exchange *ex = a->exchanges; ex; ex = ex->next)
        n += !ex->seen_worker_done;
    return n;
}

bool metrics_gather(const struct api *a, struct metrics_view *v)
{
    const struct api_options *o = &a->o;
    *v = (struct metrics_view){ .api = a, .st = sched_status_get(o->sched), .now_ns = clock_now_ns() };
    if (!v->st)
        return false;
    v->policy = o->policy_json ? o->policy_json(o->policy_arg) : NULL;
    v->extra = (struct metrics_extra){
        .model = o->model_name,
        .device = o->device,
        .activations = o->activations,
        .kv_type = o->kv_type,
        .turn_token = a->history.turn_token,
        .max_context = o->context,
        .groups = o->groups,
        .padding_safe = !o->padded,
        .stages = o->stages,
        .requests_reading = count_reading(a),
        .open_requests = a->http ? http_open_requests(a->http) : 0,
        .listeners = feed_listeners(a->feed),
        .start_time_s = (double)a->started_s,
        .uptime_s = (double)((v->now_ns - a->history.started_ns) / NS_PER_MS) / 1e3,
        .kv_usage = v->st->kv_blocks ? (double)v->st->kv_blocks_used / v->st->kv_blocks : 0,
        .yes = true,
    };
    history_rates(a, &v->extra);
    count_states(v);
    take_policy(v);
    return true;
}

void metrics_clear(struct metrics_view *v)
{
    json_decref(v->policy);
    free(v->st);
}

static bool wants_prometheus(const struct http_request *r, const char *format)
{
    const char *accept = http_header(r, "Accept");
    if (format)
        return strcmp(format, "prometheus") == 0;
    return accept && (strstr(accept, "text/plain") || strstr(accept, "openmetrics"));
}

void api_reply_text(struct http_request *r, const char *type, struct buf *text)
{
    if (text->failed)
        http_reply_error(r, 500, "server_error", "out of memory", NULL, NULL);
    else
        http_reply(r, 200, type, text->data, text->len);
    http_done(r);
    buf_free(text);
}

void api_on_metrics(struct http_request *r, void *arg)
{
    const char *format = http_query(r, "format");
    struct metrics_view v;
    struct buf text = { 0 };
    if (format && strcmp(format, "prometheus") != 0 && strcmp(format, "json") != 0) {
        char why[120];
        snprintf(why, sizeof why, "format: \"%.60s\" where json or prometheus is allowed", format);
        http_reply_error(r, 400, NULL, why, "format", NULL);
        http_done(r);
        return;
    }
    if (!metrics_gather(arg, &v)) {
        api_reply_json(r, 500, NULL);
        return;
    }
    bool prometheus = wants_prometheus(r, format);
    if (prometheus)
        metrics_text(&v, &text);
    else
        metrics_json(&v, &text);
    metrics_clear(&v);
    api_reply_text(r, prometheus ? "text/plain; version=0.0.4; charset=utf-8" : API_JSON, &text);
}
