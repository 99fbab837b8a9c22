/* Cmd serve admin: see cmd_serve_admin.h. */
#include "cmd_serve_admin.h"
#include "util/jsonx.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct waiting { /* a request that asked for a reload */
    struct waiting *next;
    struct admin *admin;
    struct http_request *http;
    uint64_t ticket;
};

struct admin {
    struct reload *reload;
    struct waiting *waiting;
};

static void reply(struct http_request *r, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (text)
        http_reply(r, 200, "application/json; charset=utf-8", text, strlen(text));
    else
        http_reply_error(r, 500, "server_error", "out of memory", NULL, NULL);
    free(text);
    json_decref(json);
}

/* ---- reload ---- */

static void forget(struct waiting *w)
{
    struct waiting **at = &w->admin->waiting;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    http_done(w->http);
    free(w);
}

static void on_leave(void *arg)
{
    forget(arg);
}

static void on_reload(struct http_request *r, void *arg)
{
    struct admin *a = arg;
    struct waiting *w = calloc(1, sizeof *w);
    if (!w) {
        reply(r, NULL);
        http_done(r);
        return;
    }
    *w = (struct waiting){ .next = a->waiting, .admin = a, .http = r, .ticket = reload_ask(a->reload) };
    a->waiting = w;
    http_on_leave(r, on_leave, w);
}

static json_t *restart_json(const char *keys)
{
    json_t *list = json_array();
    for (size_t n; list && *keys; keys += n + (keys[n] == ',')) {
        n = strcspn(keys, ",");
        json_array_append_new(list, json_stringn(keys, n));
    }
    return list;
}

static void tell(struct http_request *r, const struct reload_outcome *o)
{
    char text[1200];
    if (o->ok) {
        reply(r, json_pack("{s:b, s:s, s:I, s:s, s:f, s:o}", "ok", 1, "policy", o->policy, "generation",
                           (json_int_t)o->generation, "digest", o->digest, "seconds", o->seconds, "restart",
                           restart_json(o->restart)));
        return;
    }
    snprintf(text, sizeof text, "%s (kept: %s/%llu and all settings)", o->error, o->policy,
             (unsigned long long)o->generation);
    http_reply_error(r, 422, "reload_failed", text, NULL, NULL);
}

void admin_answer(struct admin *a, uint64_t ticket, const struct reload_outcome *o)
{
    for (struct waiting *w = a->waiting, *next; w; w = next) {
        next = w->next;
        if (w->ticket > ticket)
            continue;
        tell(w->http, o);
        forget(w);
    }
}

void admin_abort(struct admin *a)
{
    for (struct waiting *w = a->waiting, *next; w; w = next) {
        next = w->next;
        http_reply_error(w->http, 503, NULL, "the server is shutting down", NULL, NULL);
        forget(w);
    }
}

/* ---- policy ---- */

static json_t *settings_json(const struct policy_loaded *p)
{
    json_t *object = json_object();
    uint32_t n = policy_loaded_entry(p)->n_settings;
    for (uint32_t i = 0; object && i < n; i++) {
        struct policy_loaded_setting s = policy_loaded_setting_get(p, i);
        json_object_set_new(
            object, s.name,
            json_pack("{s:o, s:o}", "value", jsonx_text(s.text), "origin", jsonx_text(s.origin)));
    }
    return object;
}

static json_t *calls_json(const uint64_t count[POLICY_CALLS])
{
    json_t *object = json_object();
    for (int call = 0; object && call < POLICY_CALLS; call++)
        json_object_set_new(object, policy_call_name((enum policy_call)call),
                            json_integer((json_int_t)count[call]));
    return object;
}

static json_t *shadows_json(struct reload *r)
{
    struct policy_shadow_status shadow[POLICY_SHADOWS_MAX];
    json_t *list = json_array();
    size_t n = reload_shadow_status(r, shadow);
    for (size_t i = 0; list && i < n; i++) {
        const struct policy_shadow_status *s = &shadow[i];
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:I, s:b}", "name", s->name, "version",
                            s->version, "digest", s->digest, "asked", calls_json(s->asked), "agreed",
                            calls_json(s->agreed), "disagreed", calls_json(s->disagreed), "breaches",
                            calls_json(s->breaches), "dropped", (json_int_t)s->dropped, "stuck", s->stuck));
    }
    return list;
}

static json_t *trace_json(struct reload *r)
{
    struct policy_trace_status t = reload_trace_status(r);
    return json_pack("{s:b, s:I, s:I, s:I}", "on", t.on, "lines", (json_int_t)t.lines, "dropped",
                     (json_int_t)t.dropped, "failed", (json_int_t)t.failed);
}

json_t *admin_policy_json(struct reload *r)
{
    struct reload_status status = reload_status_get(r);
    uint64_t generation;
    struct policy_loaded *p = policy_seat_take(reload_seat(r), &generation);
    json_t *json = json_pack("{s:s, s:s, s:s, s:o, s:s, s:I, s:o, s:o, s:o, s:I, s:I, s:s?}", "name",
                             policy_loaded_name(p), "version", policy_loaded_version(p), "summary",
                             policy_loaded_summary(p), "path", jsonx_text(policy_loaded_path(p)), "digest",
                             policy_loaded_digest(p), "generation", (json_int_t)generation, "settings",
                             settings_json(p), "shadows", shadows_json(r), "trace", trace_json(r), "reloads",
                             (json_int_t)status.reloads, "reload_failures", (json_int_t)status.failures,
                             "last_reload_error", *status.last_error ? status.last_error : NULL);
    policy_loaded_unref(p);
    return json;
}

static void on_policy(struct http_request *r, void *arg)
{
    const struct admin *a = arg;
    reply(r, admin_policy_json(a->reload));
    http_done(r);
}

/* ---- the whole ---- */

int admin_new(struct reload *r, struct admin **ret_admin)
{
    struct admin *a = calloc(1, sizeof *a);
    if (!a)
        return -ENOMEM;
    a->reload = r;
    *ret_admin = a;
    return 0;
}

void admin_routes(struct admin *a, struct http_route ret_routes[ADMIN_ROUTES])
{
    ret_routes[0] = (struct http_route){ "POST", "/admin/reload", HTTP_ADMIN, on_reload, a };
    ret_routes[1] = (struct http_route){ "GET", "/admin/policy", HTTP_ADMIN, on_policy, a };
}

void admin_free(struct admin *a)
{
    free(a);
}
