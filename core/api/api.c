/* Api: the routes, and the start and end of everything behind them; see api.h.
 *
 * Files: exchange.c (the life of a request), parts.c (what an answer says), work.c (workers), fields*.c (the
 * tables of request fields), read_*.c, talk.c, normalize.c (bodies to conversations), prompt.c (conversations
 * to prompts), identity.c, openai.c, seal.c, api_*.c (dialects), native.c (llama.cpp's
 * endpoints), saved.c (conversations to files), places.c (slots, why requests ran where they did), feed.c
 * (placement events as they happen), metrics*.c, history.c (figures), admin.c (health), page.c (the help
 * page), jsonout.c (JSON text). */
#include "api/metrics.h"
#include "util/clock.h"
#include "util/rng.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 1000

struct route_row {
    const char *method, *path;
    enum http_access access;
    void (*handler)(struct http_request *r, void *api);
    const struct endpoint *endpoint; /* with it the handler is exchange_begin */
};

static const struct route_row rows[] = {
    { "POST", "/v1/chat/completions", HTTP_KEY, NULL, &api_chat },
    { "POST", "/v1/completions", HTTP_KEY, NULL, &api_completions },
    { "POST", "/v1/messages", HTTP_KEY, NULL, &api_messages },
    { "POST", "/v1/messages/count_tokens", HTTP_KEY, NULL, &api_count_tokens },
    { "POST", "/v1/responses", HTTP_KEY, NULL, &api_responses },
    { "POST", "/tokenize", HTTP_KEY, NULL, &api_tokenize },
    { "POST", "/detokenize", HTTP_KEY, NULL, &api_detokenize },
    { "POST", "/apply-template", HTTP_KEY, NULL, &api_apply_template },
    { "GET", "/v1/models", HTTP_KEY, api_on_models, NULL },
    { "GET", "/models", HTTP_KEY, api_on_models, NULL },
    { "GET", "/v1/models/*", HTTP_KEY, api_on_model, NULL },
    { "GET", "/models/*", HTTP_KEY, api_on_model, NULL },
    { "GET", "/props", HTTP_KEY, api_on_props, NULL },
    { "GET", "/slots", HTTP_WATCH, api_on_slots, NULL },
    { "POST", "/slots/*", HTTP_ADMIN, api_on_slot_action, NULL },
    { "GET", "/events", HTTP_WATCH, api_on_events, NULL },
    { "GET", "/placements/*", HTTP_WATCH, api_on_placements, NULL },
    { "GET", "/metrics", HTTP_WATCH, api_on_metrics, NULL },
    { "GET", "/api/hello", HTTP_OPEN, api_on_hello, NULL },
    { "GET", "/health", HTTP_OPEN, api_on_health, NULL },
    { "GET", "/live", HTTP_OPEN, api_on_live, NULL },
    { "GET", "/ready", HTTP_OPEN, api_on_ready, NULL },
    { "GET", "/", HTTP_OPEN, api_on_page, NULL },
};
#define N_ROWS (sizeof rows / sizeof *rows)

static int make_routes(struct api *a)
{
    a->routes = calloc(N_ROWS, sizeof *a->routes);
    a->route_args = calloc(N_ROWS, sizeof *a->route_args);
    if (!a->routes || !a->route_args)
        return -ENOMEM;
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct route_row *row = &rows[i];
        a->route_args[i] = (struct route_arg){ .api = a, .endpoint = row->endpoint };
        a->routes[i] = (struct http_route){
            .method = row->method,
            .path = row->path,
            .access = row->access,
            .handler = row->endpoint ? exchange_begin : row->handler,
            .arg = row->endpoint ? (void *)&a->route_args[i] : a,
        };
    }
    a->n_routes = N_ROWS;
    return 0;
}

static size_t longest_piece(const struct tokenizer *t)
{
    size_t longest = 1;
    for (uint32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        size_t len;
        tokenizer_piece(t, (int32_t)id, true, &len);
        if (len > longest)
            longest = len;
    }
    return longest;
}

/* What of the model's template and of the configuration is found out once. */
static int read_options(struct api *a, char *err, size_t errlen)
{
    static const char to_json[] = "{{ value | tojson }}";
    *err = '\0';
    for (size_t i = 0; i < sizeof a->salt / 8; i++)
        memcpy(a->salt + 8 * i, &(uint64_t){ rng_system_seed() }, 8);
    chat_traits_find(a->o.chat, a->o.chat_source, &a->traits);
    if (strstr(a->o.chat_source, CHAT_CHATML_END) &&
        tokenizer_find(a->o.tokenizer, CHAT_CHATML_END, strlen(CHAT_CHATML_END)) < 0)
        a->end_text = CHAT_CHATML_END;
    /* A model whose template lists no tools is told of them in words, and of Hermes' form of calls
     * (prompt.c): then calls are rendered so as well. */
    if (!a->traits.tools && a->traits.format != TOOLCALL_HERMES)
        a->traits.calls = false;
    if (!a->traits.calls) {
        a->traits.format = TOOLCALL_HERMES;
        strcpy(a->traits.gap, "\n");
    }
    if (strcmp(a->o.tool_format, "auto") != 0 &&
        toolcall_format_find(a->o.tool_format, &a->traits.format) < 0) {
        snprintf(err, errlen, "model.tool_format: %s is not known", a->o.tool_format);
        return -EINVAL;
    }
    for (size_t i = 0; i < a->o.n_normalize; i++) {
        unsigned bit = normalize_find(a->o.normalize[i]);
        if (!bit) {
            snprintf(err, errlen, "api.normalize: %s is not known; allowed is claude_billing",
                     a->o.normalize[i]);
            return -EINVAL;
        }
        a->normalize |= bit;
    }
    return chat_template_parse(to_json, sizeof to_json - 1, &a->to_json, err, errlen);
}

static int copy_turn_token(struct api *a)
{
    size_t len = 0;
    if (a->o.turn_token < 0)
        return 0;
    const char *piece = tokenizer_piece(a->o.tokenizer, a->o.turn_token, true, &len);
    a->history.turn_token = strndup(piece, len);
    return a->history.turn_token ? 0 : -ENOMEM;
}

int api_new(const struct api_options *o, struct api **ret_api, char *err, size_t errlen)
{
    struct api *a = calloc(1, sizeof *a);
    if (!a) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    a->o = *o;
    a->started_s = clock_wall_ns() / NS_PER_S;
    a->history.started_ns = clock_now_ns();
    a->longest_piece = longest_piece(o->tokenizer);
    snprintf(a->fingerprint, sizeof a->fingerprint, "berth-%s", BERTH_VERSION);
    json_object_seed(0); /* before several threads could want it */
    int r = read_options(a, err, errlen);
    if (r == 0)
        r = make_routes(a);
    if (r == 0)
        r = copy_turn_token(a);
    if (r == 0)
        r = feed_new(a, &a->feed);
    if (r == 0)
        r = workers_start(&a->workers, o->workers, "berth-worker");
    if (r == 0)
        r = workers_start(&a->files, 1, "berth-files");
    if (r < 0) {
        if (!*err)
            snprintf(err, errlen, "api: %s", strerror(-r));
        api_free(a);
        return r;
    }
    *ret_api = a;
    return 0;
}

const struct http_route *api_routes(struct api *a, size_t *ret_n)
{
    *ret_n = a->n_routes;
    return a->routes;
}

static void on_tick(void *arg)
{
    struct api *a = arg;
    uint64_t now = clock_now_ns();
    for (struct exchange *ex = a->exchanges, *next; ex; ex = next) {
        next = ex->next;
        exchange_tick(ex, now);
    }
    feed_tick(a->feed);
    history_tick(a);
}

void api_attach(struct api *a, struct http *h)
{
    a->http = h;
    history_tick(a);
    http_every(h, TICK_MS, on_tick, a);
}

void api_set_live(struct api *a, const struct api_live *live)
{
    a->o.live = *live;
    feed_review(a->feed);
}

void api_drain(struct api *a)
{
    a->draining = true;
    feed_end(a->feed);
}

uint32_t api_in_flight(const struct api *a)
{
    return a->n_exchanges;
}

void api_abort(struct api *a, const char *reason)
{
    a->draining = true;
    for (struct exchange *ex = a->exchanges; ex; ex = ex->next)
        exchange_abort(ex, reason);
}

void api_free(struct api *a)
{
    if (!a)
        return;
    workers_stop(&a->workers);
    workers_stop(&a->files);
    chat_template_free(a->to_json);
    feed_free(a->feed);
    free(a->history.turn_token);
    free(a->routes);
    free(a->route_args);
    free(a);
}
