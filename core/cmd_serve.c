/* Cmd serve: `berth serve`: config, model, engine, scheduler, api, http, and the way down again.
 * Arguments and wiring only; everything here runs on the main thread, which becomes the event thread.
 * Tests: tests/e2e/test_serve.py, test_drain.py */
#include "cmd_serve.h"
#include "api/api.h"
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_serve_admin.h"
#include "cmd_serve_load.h"
#include "cmd_serve_notify.h"
#include "cmd_serve_reload.h"
#include "sched/placement.h"
#include "sched/slotfile.h"
#include "sched/slotio.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/utf8.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 50

struct server {
    const struct config *config; /* as at start */
    struct reload *reload;
    struct admin *admin;
    struct loaded model;
    int save_dir;
    struct slotfile_kind slot_kind;
    char device[1024]; /* of all stages */
    struct sched *sched;
    struct api *api;
    struct http *http;
    struct http_route *routes;
    struct http_key *keys;
    size_t n_keys;
    bool draining, aborted;
    uint64_t drain_until_ns;
    int64_t drain_s;
    uint64_t watchdog_ns, watchdog_told_ns;
};

/* The service manager hears of us twice as often as it must, as long as there is progress. */
static void feed_watchdog(struct server *s)
{
    uint64_t now = clock_now_ns();
    if (!s->watchdog_ns || now - s->watchdog_told_ns < s->watchdog_ns / 2 || api_stuck(s->api))
        return;
    serve_notify("WATCHDOG=1");
    s->watchdog_told_ns = now;
}

/* Without joining anything: what is left does not end. */
__attribute__((noreturn)) static void end_at_once(struct server *s, const char *reason)
{
    log_write(LOG_WARN, "exit", "reason=\"%s\" in_flight=%u", reason, api_in_flight(s->api));
    http_close_listeners(s->http); /* removes the socket files */
    _exit(1);
}

/* The scheduler is in a call of a policy that should have returned long ago. */
static bool policy_hangs(const struct server *s)
{
    struct sched_inside in;
    return sched_inside_policy(s->sched, &in) && clock_now_ns() > in.since_ns + NS_PER_S;
}

static void on_tick(void *arg)
{
    struct server *s = arg;
    feed_watchdog(s);
    if (!s->draining)
        return;
    if (s->aborted && policy_hangs(s))
        end_at_once(s, "a policy does not return");
    if (!s->aborted && clock_now_ns() >= s->drain_until_ns) {
        s->aborted = true;
        log_write(LOG_WARN, "drain", "state=\"time is over\" ended=%u", api_in_flight(s->api));
        api_abort(s->api, "the server is shutting down");
        admin_abort(s->admin);
    }
    if (!api_in_flight(s->api))
        http_stop(s->http);
}

static void on_stop_signal(void *arg)
{
    struct server *s = arg;
    if (s->draining)
        end_at_once(s, "second signal");
    s->draining = true;
    s->drain_until_ns = clock_now_ns() + (uint64_t)s->drain_s * NS_PER_S;
    log_write(LOG_INFO, "drain", "state=started in_flight=%u seconds=%lld", api_in_flight(s->api),
              (long long)s->drain_s);
    serve_notify("STOPPING=1\nSTATUS=Finishing what runs");
    api_drain(s->api);
    on_tick(s);
}

static void on_hangup(void *arg)
{
    struct server *s = arg;
    reload_ask(s->reload);
}

/* What a reload changes here and in the rooms that run on this thread. */
static void put_settings(void *arg, const struct config *c, struct http_rules **rules)
{
    struct server *s = arg;
    struct api_live live = serve_live(c);
    /* Refused only without any key beyond loopback, and that was looked at before anything was changed. */
    if (http_rules_exchange(s->http, rules) < 0)
        log_write(LOG_ERROR, "reload", "state=partial kept=\"the keys and web origins that were\"");
    api_set_live(s->api, &live);
    sched_set_max_pause(s->sched, (uint32_t)c->engine.max_pause_ms);
    sched_wake(s->sched);
    s->drain_s = c->server.drain_s;
}

static void on_reloaded(void *arg, uint64_t ticket, const struct reload_outcome *o)
{
    struct server *s = arg;
    sched_placements_reloaded(s->sched, o->ok, o->policy, o->generation);
    admin_answer(s->admin, ticket, o);
}

static int start_sched(struct server *s, char *err, size_t errlen)
{
    const struct config *c = s->config;
    const struct loaded *l = &s->model;
    struct sched_options o = serve_sched_options(c, l);
    o.seat = reload_seat(s->reload);
    o.listeners = reload_listeners(s->reload);
    return sched_start(l->engine, l->tokenizer, &o, &s->sched, err, errlen);
}

/* What saved conversations are compared with. */
static int open_save_dir(struct server *s, char *err, size_t errlen)
{
    const struct loaded *l = &s->model;
    sched_slot_kind(l->engine, l->name, &s->slot_kind);
    memcpy(s->slot_kind.model, l->model_print, sizeof s->slot_kind.model);
    memcpy(s->slot_kind.tokenizer, l->tokenizer_print, sizeof s->slot_kind.tokenizer);
    int r = check_save_dir(s->config, &s->save_dir, err, errlen);
    uint32_t n = r == 0 && s->save_dir >= 0 ? slotfile_sweep(s->save_dir) : 0;
    if (n)
        log_write(LOG_WARN, "save_dir", "removed=%u reason=\"left by saves that were killed\"", n);
    return r;
}

/* Where it is computed: each stage's device, one after the other. */
static void name_device(const struct engine_info *info, char *dst, size_t size)
{
    size_t len = 0;
    for (uint32_t i = 0; i < info->n_stages && len < size; i++)
        len += (size_t)snprintf(dst + len, size - len, "%s%s", i ? "; " : "", info->stages[i].device);
    utf8_mend(dst); /* it may have been cut */
}

static json_t *policy_json(void *reload)
{
    return admin_policy_json(reload);
}

static int start_api(struct server *s, char *err, size_t errlen)
{
    const struct config *c = s->config;
    const struct loaded *l = &s->model;
    struct api_options o = {
        .tokenizer = l->tokenizer,
        .chat = l->chat,
        .chat_source = l->chat_source,
        .sched = s->sched,
        .model_name = l->name,
        .model_path = l->path,
        .model_arch = l->arch,
        .model_params = l->n_params,
        .model_bytes = l->file_bytes,
        .context = l->context,
        .context_train = l->context_train,
        .n_embd = l->n_embd,
        .device = s->device,
        .activations = l->info.activations,
        .kv_type = l->info.kv_type,
        .turn_token = l->turn_token,
        .stages = l->info.n_stages,
        .groups = l->groups,
        .padded = l->padded,
        .slots = l->slots,
        .save_dir = s->save_dir,
        .slot_kind = &s->slot_kind,
        .workers = (uint32_t)c->server.workers,
        .max_json_depth = (uint32_t)c->server.max_json_depth,
        .max_unsent_bytes = (uint32_t)c->server.max_unsent_bytes,
        .tool_format = c->model.tool_format,
        .normalize = (const char *const *)c->api.normalize.items,
        .n_normalize = c->api.normalize.n,
        .live = serve_live(c),
        .policy_json = policy_json,
        .policy_arg = s->reload,
    };
    return api_new(&o, &s->api, err, errlen);
}

static int collect_routes(struct server *s, struct http_options *o)
{
    size_t n;
    const struct http_route *routes = api_routes(s->api, &n);
    s->routes = calloc(n + ADMIN_ROUTES, sizeof *s->routes);
    if (!s->routes)
        return -ENOMEM;
    memcpy(s->routes, routes, n * sizeof *routes);
    admin_routes(s->admin, s->routes + n);
    o->routes = s->routes;
    o->n_routes = n + ADMIN_ROUTES;
    return 0;
}

static int start_http(struct server *s, char *err, size_t errlen)
{
    const struct config *c = s->config;
    int r;
    struct http_options o = serve_http_options(c, s->keys, s->n_keys);
    r = collect_routes(s, &o);
    if (r == 0)
        r = http_new(&o, &s->http, err, errlen);
    if (r < 0)
        return r;
    api_attach(s->api, s->http);
    r = http_on_signal(s->http, SIGTERM, on_stop_signal, s);
    if (r == 0)
        r = http_on_signal(s->http, SIGINT, on_stop_signal, s);
    if (r == 0)
        r = http_on_signal(s->http, SIGHUP, on_hangup, s);
    if (r == 0)
        r = http_every(s->http, TICK_MS, on_tick, s);
    if (r < 0)
        snprintf(err, errlen, "signals: %s", strerror(-r));
    return r;
}

static int start_reload(struct server *s, char *err, size_t errlen)
{
    struct reload_hooks hooks = { .put = put_settings, .done = on_reloaded, .arg = s };
    int r = reload_start(s->reload, s->http, &hooks);
    if (r < 0)
        snprintf(err, errlen, "the loader thread: %s", strerror(-r));
    return r;
}

/* Who computes what, where there are several. */
static void log_stages(const struct engine_info *info)
{
    char device[256];
    for (uint32_t i = 0; info->n_stages > 1 && i < info->n_stages; i++) {
        const struct engine_stage_info *st = &info->stages[i];
        log_write(LOG_INFO, "stage", "number=%u layers=%u-%u weights_mb=%zu device=%s", i + 1,
                  st->first_layer, st->first_layer + st->n_layers - 1, st->weight_bytes >> 20,
                  log_quote(device, sizeof device, st->device));
    }
}

static void log_ready(const struct server *s, uint64_t start_ns)
{
    const struct loaded *l = &s->model;
    char addresses[512] = "", name[256], device[sizeof s->device + 64];
    const char *address;
    log_stages(&l->info);
    for (size_t i = 0; (address = http_address(s->http, i)); i++) {
        size_t len = strlen(addresses);
        snprintf(addresses + len, sizeof addresses - len, "%s%s", i ? "," : "", address);
    }
    log_write(LOG_INFO, "ready",
              "address=%s model=%s context=%u kv_tokens=%u kv_mb=%zu kv_type=%s activations=%s device=%s "
              "threads=%u stages=%u groups=%u seconds=%.2f",
              addresses, log_quote(name, sizeof name, l->name), l->context, l->kv_tokens,
              l->info.kv_bytes >> 20, l->info.kv_type, l->info.activations,
              log_quote(device, sizeof device, s->device), l->threads, l->info.n_stages, l->groups,
              (double)(clock_now_ns() - start_ns) / 1e9);
}

static int start_all(struct server *s, const struct reload_options *o, char *err, size_t errlen)
{
    int r = check_settings(s->config, true, &s->keys, &s->n_keys, err, errlen);
    s->drain_s = s->config->server.drain_s;
    s->watchdog_ns = serve_notify_watchdog_ns();
    if (r == 0)
        r = reload_new(o, &s->reload, err, errlen);
    if (r == 0)
        r = load_model(s->config, &s->model, err, errlen);
    if (r == 0) {
        name_device(&s->model.info, s->device, sizeof s->device);
        r = open_save_dir(s, err, errlen);
    }
    if (r == 0)
        r = start_sched(s, err, errlen);
    if (r == 0)
        r = start_api(s, err, errlen);
    if (r == 0)
        r = admin_new(s->reload, &s->admin);
    if (r == 0)
        r = start_http(s, err, errlen);
    if (r == 0)
        r = start_reload(s, err, errlen);
    return r;
}

/* Workers before the scheduler, which they use; the loader before both, which it changes; then the scheduler:
 * its last events go to the api's exchanges, of which none is left when http_run returns. */
static void stop_all(struct server *s)
{
    if (!reload_stop(s->reload))
        end_at_once(s, "a policy that is being loaded does not return");
    if (s->sched && policy_hangs(s))
        end_at_once(s, "a policy does not return");
    api_free(s->api);
    sched_stop(s->sched);
    http_free(s->http);
    admin_free(s->admin);
    reload_free(s->reload);
    free(s->routes);
    free(s->keys);
    if (s->save_dir >= 0)
        close(s->save_dir);
    loaded_clear(&s->model);
}

static int serve(const struct reload_options *o, uint64_t start_ns)
{
    struct server s = { .config = o->config, .save_dir = -1 };
    char err[1400] = "", quoted[512];
    enum log_level level = LOG_INFO;
    log_level_parse(s.config->log.level, &level);
    log_level_set(level);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow any further is an error, not the end */
    /* A rotated log or a closed terminal is no reason to end; SIGHUP is answered once the loop runs. */
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);

    log_write(
        LOG_INFO, "start", "version=" BERTH_VERSION " model=%s",
        log_quote(quoted, sizeof quoted, s.config->model.path ? s.config->model.path : "models/*.gguf"));
    int r = start_all(&s, o, err, sizeof err);
    if (r < 0) {
        cmd_error("%s", err);
    } else {
        log_ready(&s, start_ns);
        serve_notify("READY=1\nSTATUS=Serving\nMAINPID=%d", (int)getpid());
        r = http_run(s.http);
        log_write(LOG_INFO, "exit", "code=%d", r < 0);
    }
    stop_all(&s);
    return r < 0 ? 1 : 0;
}

int cmd_serve(int argc, char **argv)
{
    uint64_t start_ns = clock_now_ns();
    const char *path = NULL;
    struct cmd_strings sets = { 0 };
    struct config *config = NULL;
    const struct cmd_option options[] = { CMD_OPTION_CONFIG(&path), CMD_OPTION_SET(&sets) };
    const struct cmd_spec spec = {
        .usage = "berth serve [--config FILE] [--set KEY=VALUE]...",
        .about =
            "Serves a model over HTTP. Without a configuration: the first models/*.gguf on 127.0.0.1:8080.\n"
            "SIGTERM lets running requests finish first; a second one ends at once. SIGHUP reads the\n"
            "configuration again and exchanges the policy and what else conf/README.md calls reloadable.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    int code = cmd_args_parse(&spec, argc, argv, NULL);
    if (code < 0)
        code = cmd_args_config(path, &sets, &config);
    if (code < 0) {
        struct reload_options o = { .config = config, .path = path, .sets = sets.items, .n_sets = sets.n };
        code = serve(&o, start_ns);
    }
    config_free(config);
    cmd_strings_free(&sets);
    return code;
}
