/* Cmd serve: `berth serve`: config, model, engine, scheduler, api, http, and the way down again.
 * Arguments and wiring only; everything here runs on the main thread, which becomes the event thread.
 * Tests: tests/e2e/test_serve.py, test_drain.py */
#include "cmd_serve.h"
#include "api/api.h"
#include "cmd.h"
#include "cmd_args.h"
#include "cmd_serve_load.h"
#include "util/clock.h"
#include "util/log.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_TICK_MS 50

struct server {
    const struct config *config;
    struct loaded model;
    struct sched *sched;
    struct api *api;
    struct http *http;
    struct http_key *keys;
    size_t n_keys;
    bool draining, aborted;
    uint64_t drain_until_ns;
};

static void on_drain_tick(void *arg)
{
    struct server *s = arg;
    if (!s->draining)
        return;
    if (!s->aborted && clock_now_ns() >= s->drain_until_ns) {
        s->aborted = true;
        log_write(LOG_WARN, "drain", "state=\"time is over\" ended=%u", api_in_flight(s->api));
        api_abort(s->api, "the server is shutting down");
    }
    if (!api_in_flight(s->api))
        http_stop(s->http);
}

static void on_stop_signal(void *arg)
{
    struct server *s = arg;
    if (s->draining) {
        log_write(LOG_WARN, "exit", "reason=\"second signal\" in_flight=%u", api_in_flight(s->api));
        http_close_listeners(s->http); /* removes the socket files */
        _exit(1);
    }
    s->draining = true;
    s->drain_until_ns = clock_now_ns() + (uint64_t)s->config->server.drain_s * NS_PER_S;
    log_write(LOG_INFO, "drain", "state=started in_flight=%u seconds=%lld", api_in_flight(s->api),
              (long long)s->config->server.drain_s);
    api_drain(s->api);
    on_drain_tick(s);
}

static void on_hangup(void *arg)
{
    (void)arg;
    log_write(LOG_WARN, "hangup",
              "state=ignored reason=\"the configuration is read at start only; restart to change it\"");
}

static int start_sched(struct server *s, char *err, size_t errlen)
{
    const struct config *c = s->config;
    const struct loaded *l = &s->model;
    struct sched_options o = {
        .context = l->context,
        .slots = l->slots,
        .rows = l->rows,
        .queue_max = (uint32_t)c->queue.max,
        .chunk_tokens = LOAD_CHUNK_TOKENS,
        .max_pause_ms = (uint32_t)c->engine.max_pause_ms,
        .turn_token = l->turn_token,
    };
    return sched_start(l->engine, l->tokenizer, &o, &s->sched, err, errlen);
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
        .slots = l->slots,
        .workers = (uint32_t)c->server.workers,
        .max_json_depth = (uint32_t)c->server.max_json_depth,
        .max_unsent_bytes = (uint32_t)c->server.max_unsent_bytes,
        .live = serve_live(c),
    };
    return api_new(&o, &s->api, err, errlen);
}

static int start_http(struct server *s, char *err, size_t errlen)
{
    const struct config *c = s->config;
    int r;
    struct http_options o = serve_http_options(c, s->keys, s->n_keys);
    o.routes = api_routes(s->api, &o.n_routes);
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
        r = http_every(s->http, DRAIN_TICK_MS, on_drain_tick, s);
    if (r < 0)
        snprintf(err, errlen, "signals: %s", strerror(-r));
    return r;
}

static void log_ready(const struct server *s, uint64_t start_ns)
{
    const struct loaded *l = &s->model;
    char addresses[512] = "", name[256], device[128];
    const char *address;
    for (size_t i = 0; (address = http_address(s->http, i)); i++) {
        size_t len = strlen(addresses);
        snprintf(addresses + len, sizeof addresses - len, "%s%s", i ? "," : "", address);
    }
    log_write(LOG_INFO, "ready",
              "address=%s model=%s context=%u kv_tokens=%u kv_mb=%zu device=%s threads=%u seconds=%.2f",
              addresses, log_quote(name, sizeof name, l->name), l->context, l->kv_tokens,
              l->info.kv_bytes >> 20, log_quote(device, sizeof device, l->info.device), l->threads,
              (double)(clock_now_ns() - start_ns) / 1e9);
}

static int start_all(struct server *s, char *err, size_t errlen)
{
    int r = check_settings(s->config, true, &s->keys, &s->n_keys, err, errlen);
    if (r == 0)
        r = load_model(s->config, &s->model, err, errlen);
    if (r == 0)
        r = start_sched(s, err, errlen);
    if (r == 0)
        r = start_api(s, err, errlen);
    if (r == 0)
        r = start_http(s, err, errlen);
    return r;
}

static int serve(const struct config *c, uint64_t start_ns)
{
    struct server s = { .config = c };
    char err[1024] = "", quoted[512];
    enum log_level level = LOG_INFO;
    log_level_parse(c->log.level, &level);
    log_level_set(level);
    signal(SIGPIPE, SIG_IGN);
    /* A rotated log or a closed terminal is no reason to end; SIGHUP is answered once the loop runs. */
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);

    log_write(LOG_INFO, "start", "version=" BERTH_VERSION " model=%s",
              log_quote(quoted, sizeof quoted, c->model.path ? c->model.path : "models/*.gguf"));
    int r = start_all(&s, err, sizeof err);
    if (r < 0) {
        cmd_error("%s", err);
    } else {
        log_ready(&s, start_ns);
        r = http_run(s.http);
        log_write(LOG_INFO, "exit", "code=%d", r < 0);
    }
    /* Workers first: they use the scheduler; then the scheduler: its last events go to the api's exchanges,
     * of which none is left when http_run returns. */
    api_free(s.api);
    sched_stop(s.sched);
    http_free(s.http);
    free(s.keys);
    loaded_clear(&s.model);
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
            "SIGTERM lets running requests finish first; a second one ends at once.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    int code = cmd_args_parse(&spec, argc, argv, NULL);
    if (code < 0)
        code = cmd_args_config(path, &sets, &config);
    if (code < 0)
        code = serve(config, start_ns);
    config_free(config);
    cmd_strings_free(&sets);
    return code;
}
