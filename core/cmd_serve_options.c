/* Cmd serve options: see cmd_serve.h. At start and at every reload the same. Tests: tests/e2e/test_serve.py,
 * tests/e2e/test_reload.py */
#include "cmd_serve.h"
#include "cmd_serve_load.h"
#include <string.h>

struct api_live serve_live(const struct config *c)
{
    return (struct api_live){
        .keepalive_s = (uint32_t)c->server.keepalive_s,
        .watchdog_s = (uint32_t)c->server.watchdog_s,
        .isolate = strcmp(c->cache.isolation, "key") == 0 ||
                   (strcmp(c->cache.isolation, "auto") == 0 && c->server.keys_file),
        .sampling = { .temperature = (float)c->sampling.temperature,
                      .top_k = (int32_t)c->sampling.top_k,
                      .top_p = (float)c->sampling.top_p,
                      .min_p = (float)c->sampling.min_p,
                      .repeat_penalty = (float)c->sampling.repeat_penalty,
                      .n_top_logprobs = -1 },
    };
}

struct sched_options serve_sched_options(const struct config *c, const struct loaded *l)
{
    return (struct sched_options){
        .context = l->context,
        .slots = l->slots,
        .groups = l->groups,
        .padded = l->padded,
        .rows = l->rows,
        .queue_max = (uint32_t)c->queue.max,
        .by_arrival = strcmp(c->queue.order, "arrival") == 0,
        .chunk_tokens = LOAD_CHUNK_TOKENS,
        .max_pause_ms = (uint32_t)c->engine.max_pause_ms,
        .turn_token = l->turn_token,
    };
}

struct http_options serve_http_options(const struct config *c, const struct http_key *keys, size_t n_keys)
{
    return (struct http_options){
        .listen = (const char *const *)c->server.listen.items,
        .n_listen = c->server.listen.n,
        .keys = keys,
        .n_keys = n_keys,
        .open = c->server.open,
        .metrics_open = c->server.metrics_open,
        .cors_origins = (const char *const *)c->server.cors_origins.items,
        .n_cors_origins = c->server.cors_origins.n,
        .max_header_bytes = (uint32_t)c->server.max_header_bytes,
        .max_connections = (uint32_t)c->server.max_connections,
        .header_timeout_s = (uint32_t)c->server.header_timeout_s,
        .idle_timeout_s = (uint32_t)c->server.idle_timeout_s,
        .max_body_bytes = (uint64_t)c->server.max_body_bytes,
        .max_unsent_bytes = (uint32_t)c->server.max_unsent_bytes,
    };
}
