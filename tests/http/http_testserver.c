/* A server made of core/http alone, for tests/e2e/test_http_raw.py: it echoes, streams from another thread,
 * streams for ever, answers late, and says what became of the requests whose clients left. http_testserver
 * [key=value]...   listen= (repeatable) keys_file= cors= (repeatable) open= metrics_open= max_header=
 * max_body= max_connections= header_timeout= idle_timeout= max_unsent= Prints one line `address ...` per
 * listener, then `ready`. SIGTERM stops, SIGHUP reads the keys again, SIGUSR1 closes the listeners, SIGUSR2
 * ends the open streams. Threads: the event loop in main, and one that produces what the streams send, as a
 * scheduler would. */
#include "http/http.h"
#include "util/clock.h"
#include "util/log.h"

#include <event2/buffer.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LIST = 8 };

struct stream {
    struct server *s;
    struct stream *next; /* of the producer's list, under its lock */
    struct http_request *r;
    long count; /* chunks to send; -1: for ever */
    size_t size;
    unsigned every_us;
    uint64_t next_ns;
    long made, sent;
    bool paused_once, waiting;
    _Atomic bool paused, over; /* set by the event thread, seen by the producer */
    atomic_int in_flight;      /* posts not yet run */
};

struct server {
    struct http *h;
    const char *keys_file;
    const struct http_options *options;
    struct stream *streams;
    pthread_mutex_t lock; /* of `streams`; a leaf */
    pthread_t producer;
    atomic_bool quit;
    /* event thread alone */
    unsigned left_calls, drains, paused, max_post_lag_us;
    uint64_t left_ns;
    uint64_t posts;
};

static long number(const struct http_request *r, const char *name, long fallback)
{
    const char *text = http_query(r, name);

    return text ? strtol(text, NULL, 10) : fallback;
}

static void finish_stream(struct stream *st)
{
    if (st->r) {
        if (!http_stream_begun(st->r))
            http_reply(st->r, 200, "text/plain", "late\n", 5);
        http_stream_end(st->r);
        http_done(st->r);
        st->r = NULL;
    }
    atomic_store(&st->over, true); /* the producer frees it, when no post is under way */
}

struct note { /* a post: one chunk of a stream, or its end */
    struct stream *st;
    uint64_t at_ns;
    bool last;
};

static void on_note(void *arg)
{
    struct note *n = arg;
    struct stream *st = n->st;
    unsigned lag = (unsigned)((clock_now_ns() - n->at_ns) / 1000);
    char *chunk;

    if (lag > st->s->max_post_lag_us)
        st->s->max_post_lag_us = lag;
    st->s->posts++;
    if (n->last) {
        finish_stream(st);
    } else if (st->r) {
        chunk = malloc(st->size + 1);
        if (chunk) {
            memset(chunk, 'a' + (int)(st->sent % 26), st->size);
            http_stream_write(st->r, chunk, st->size);
            st->sent++;
        }
        free(chunk);
        if (!atomic_load(&st->paused) && http_unsent(st->r) > 1 << 20) {
            atomic_store(&st->paused, true);
            st->s->paused++;
        }
    }
    atomic_fetch_sub(&st->in_flight, 1);
    free(n);
}

static void produce_one(struct stream *st, uint64_t now)
{
    bool last = st->count >= 0 && st->made >= st->count;
    struct note *n;

    if (atomic_load(&st->over) || atomic_load(&st->paused) || now < st->next_ns || st->waiting)
        return;
    if (st->count < 0 && atomic_load(&st->in_flight) > 64)
        return;
    n = malloc(sizeof *n);
    if (!n)
        return;
    *n = (struct note){ st, now, last };
    atomic_fetch_add(&st->in_flight, 1);
    if (http_post(st->s->h, on_note, n) < 0) {
        atomic_fetch_sub(&st->in_flight, 1);
        free(n);
        return;
    }
    st->made++;
    st->waiting = last;
    st->next_ns = now + st->every_us * 1000ull;
}

static void *produce(void *arg)
{
    struct server *s = arg;

    while (!atomic_load(&s->quit)) {
        struct timespec pause = { 0, 200000 };
        uint64_t now = clock_now_ns();

        pthread_mutex_lock(&s->lock);
        for (struct stream **at = &s->streams; *at;) {
            struct stream *st = *at;

            if (atomic_load(&st->over) && atomic_load(&st->in_flight) == 0) {
                *at = st->next;
                free(st);
                continue;
            }
            for (int i = 0; i < 32; i++)
                produce_one(st, now);
            at = &st->next;
        }
        pthread_mutex_unlock(&s->lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void on_left(void *arg)
{
    struct stream *st = arg;

    st->s->left_calls++;
    st->s->left_ns = clock_now_ns();
    finish_stream(st);
}

static void on_drain(void *arg)
{
    struct stream *st = arg;

    st->s->drains++;
    atomic_store(&st->paused, false);
}

static void start_stream(struct server *s, struct http_request *r, long count, bool stream)
{
    struct stream *st = calloc(1, sizeof *st);

    if (!st) {
        http_done(r);
        return;
    }
    st->s = s;
    st->r = r;
    st->count = count;
    st->size = (size_t)number(r, "size", 16);
    st->every_us = (unsigned)number(r, "every_us", 0);
    st->next_ns = clock_now_ns() + (uint64_t)number(r, "after_ms", 0) * NS_PER_MS;
    http_on_leave(r, on_left, st);
    http_on_drain(r, on_drain, st);
    if (stream)
        http_stream_begin(r, 200, "text/event-stream");
    atomic_store(&st->paused, count < 0 && !stream);
    pthread_mutex_lock(&s->lock);
    st->next = s->streams;
    s->streams = st;
    pthread_mutex_unlock(&s->lock);
}

static void handle_stream(struct http_request *r, void *arg)
{
    start_stream(arg, r, number(r, "n", 10), true);
}

static void handle_forever(struct http_request *r, void *arg)
{
    start_stream(arg, r, -1, true);
}

/* A plain reply that comes from the producer's side, after_ms later. */
static void handle_late(struct http_request *r, void *arg)
{
    start_stream(arg, r, 0, false);
}

/* Accepts and never answers, unless the client leaves. */
static void handle_never(struct http_request *r, void *arg)
{
    start_stream(arg, r, -1, false);
}

static void handle_health(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply(r, 200, "application/json", "{\"status\":\"ok\"}\n", 16);
    http_done(r);
}

static void handle_echo(struct http_request *r, void *arg)
{
    struct evbuffer *body = http_take_body(r);
    size_t len = evbuffer_get_length(body);

    (void)arg;
    http_reply(r, 200, "application/octet-stream", len ? evbuffer_pullup(body, -1) : NULL, len);
    evbuffer_free(body);
    http_done(r);
}

/* What the request looked like, one `name=value` a line. */
static void handle_who(struct http_request *r, void *arg)
{
    char text[1024];
    const char *q = http_query(r, "q"), *agent = http_header(r, "user-agent");
    int n = snprintf(text, sizeof text, "method=%s\npath=%s\nq=%s\nagent=%s\nid=%s\nkey=%s\nclient=%llu\n",
                     http_method(r), http_path(r), q ? q : "(none)", agent ? agent : "(none)",
                     http_request_id(r), http_key_name(r), (unsigned long long)http_client_key(r));

    (void)arg;
    http_reply_header(r, "X-Sane", "yes");
    http_reply_header(r, "X-Evil", "a\r\nX-Injected: yes");
    http_reply(r, 200, "text/plain", text, n < 0 || n >= (int)sizeof text ? 0 : (size_t)n);
    http_done(r);
}

static void handle_big(struct http_request *r, void *arg)
{
    size_t size = (size_t)number(r, "size", 1 << 20);
    char *data = malloc(size + 1);

    (void)arg;
    if (data) {
        memset(data, 'x', size);
        http_reply(r, 200, "text/plain", data, size);
    }
    free(data);
    http_done(r);
}

static void handle_thing(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply(r, 200, "text/plain", http_path_rest(r), strlen(http_path_rest(r)));
    http_done(r);
}

static void handle_silent(struct http_request *r, void *arg)
{
    (void)arg;
    http_done(r);
}

static void handle_stats(struct http_request *r, void *arg)
{
    struct server *s = arg;
    char text[512];
    int n =
        snprintf(text, sizeof text,
                 "{\"left\":%u,\"left_ns\":%llu,\"drains\":%u,\"paused\":%u,\"requests\":%u,\"posts\":%llu,"
                 "\"max_post_lag_us\":%u}\n",
                 s->left_calls, (unsigned long long)s->left_ns, s->drains, s->paused,
                 http_open_requests(s->h), (unsigned long long)s->posts, s->max_post_lag_us);

    http_reply(r, 200, "application/json", text, (size_t)n);
    http_done(r);
}

static void on_term(void *arg)
{
    struct server *s = arg;

    http_stop(s->h);
}

/* What a drain's deadline does: streams still open end now. */
static void on_abort(void *arg)
{
    struct server *s = arg;

    pthread_mutex_lock(&s->lock);
    for (struct stream *st = s->streams; st; st = st->next)
        if (st->r) {
            http_stream_write(st->r, "aborted\n", 8);
            finish_stream(st);
        }
    pthread_mutex_unlock(&s->lock);
}

static void on_close_listeners(void *arg)
{
    struct server *s = arg;

    http_close_listeners(s->h);
}

static void on_reload(void *arg)
{
    struct server *s = arg;
    struct http_options o = *s->options;
    struct http_key *keys = NULL;
    struct http_rules *rules = NULL;
    char err[256];
    int r = http_keys_load(s->keys_file, &keys, &o.n_keys, err, sizeof err);

    o.keys = keys;
    if (r == 0)
        r = http_rules_new(&o, &rules);
    if (r == 0)
        r = http_rules_exchange(s->h, &rules);
    printf(r == 0 ? "reloaded\n" : "kept\n");
    fflush(stdout);
    http_rules_free(rules);
    free(keys);
}

static bool option(const char *arg, const char *name, const char **ret_value)
{
    size_t n = strlen(name);

    if (strncmp(arg, name, n) != 0 || arg[n] != '=')
        return false;
    *ret_value = arg + n + 1;
    return true;
}

struct settings {
    struct http_options o;
    const char *listen[MAX_LIST], *cors[MAX_LIST];
};

static int parse(int argc, char **argv, struct settings *set, struct server *s)
{
    const char *v;

    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];

        if (option(a, "listen", &v) && set->o.n_listen < MAX_LIST)
            set->listen[set->o.n_listen++] = v;
        else if (option(a, "cors", &v) && set->o.n_cors_origins < MAX_LIST)
            set->cors[set->o.n_cors_origins++] = v;
        else if (option(a, "keys_file", &v))
            s->keys_file = v;
        else if (option(a, "open", &v))
            set->o.open = atoi(v);
        else if (option(a, "metrics_open", &v))
            set->o.metrics_open = atoi(v);
        else if (option(a, "max_header", &v))
            set->o.max_header_bytes = (uint32_t)atol(v);
        else if (option(a, "max_body", &v))
            set->o.max_body_bytes = (uint64_t)atol(v);
        else if (option(a, "max_connections", &v))
            set->o.max_connections = (uint32_t)atol(v);
        else if (option(a, "header_timeout", &v))
            set->o.header_timeout_s = (uint32_t)atol(v);
        else if (option(a, "idle_timeout", &v))
            set->o.idle_timeout_s = (uint32_t)atol(v);
        else if (option(a, "max_unsent", &v))
            set->o.max_unsent_bytes = (uint32_t)atol(v);
        else if (strcmp(a, "debug") == 0)
            log_level_set(LOG_DEBUG);
        else
            return -1;
    }
    set->o.listen = set->listen;
    set->o.cors_origins = set->cors;
    return 0;
}

static void free_streams(struct server *s)
{
    while (s->streams) {
        struct stream *st = s->streams;

        s->streams = st->next;
        free(st);
    }
}

static int serve(struct settings *set, struct server *s)
{
    struct http_key *keys = NULL;
    char err[512];
    struct http_route routes[] = {
        { "GET", "/health", HTTP_OPEN, handle_health, s },
        { "GET", "/who", HTTP_KEY, handle_who, s },
        { "POST", "/who", HTTP_KEY, handle_who, s },
        { "POST", "/echo", HTTP_KEY, handle_echo, s },
        { "POST", "/v1/messages", HTTP_KEY, handle_echo, s },
        { "GET", "/stream", HTTP_KEY, handle_stream, s },
        { "POST", "/stream", HTTP_KEY, handle_stream, s },
        { "GET", "/forever", HTTP_KEY, handle_forever, s },
        { "POST", "/late", HTTP_KEY, handle_late, s },
        { "GET", "/never", HTTP_KEY, handle_never, s },
        { "GET", "/big", HTTP_KEY, handle_big, s },
        { "GET", "/things/*", HTTP_KEY, handle_thing, s },
        { "GET", "/things/own", HTTP_KEY, handle_who, s },
        { "GET", "/silent", HTTP_KEY, handle_silent, s },
        { "GET", "/stats", HTTP_OPEN, handle_stats, s },
        { "GET", "/metrics", HTTP_WATCH, handle_health, s },
        { "POST", "/admin", HTTP_ADMIN, handle_health, s },
    };
    int r = 0;

    s->options = &set->o;
    set->o.routes = routes;
    set->o.n_routes = sizeof routes / sizeof routes[0];
    if (s->keys_file) {
        r = http_keys_load(s->keys_file, &keys, &set->o.n_keys, err, sizeof err);
        set->o.keys = keys;
    }
    if (r == 0)
        r = http_new(&set->o, &s->h, err, sizeof err);
    free(keys);
    if (r < 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    http_on_signal(s->h, SIGTERM, on_term, s);
    http_on_signal(s->h, SIGHUP, on_reload, s);
    http_on_signal(s->h, SIGUSR1, on_close_listeners, s);
    http_on_signal(s->h, SIGUSR2, on_abort, s);
    pthread_create(&s->producer, NULL, produce, s);
    for (size_t i = 0; http_address(s->h, i); i++)
        printf("address %s\n", http_address(s->h, i));
    printf("ready\n");
    fflush(stdout);
    r = http_run(s->h);
    atomic_store(&s->quit, true);
    pthread_join(s->producer, NULL);
    http_free(s->h);
    free_streams(s);
    return r < 0;
}

int main(int argc, char **argv)
{
    struct server s = { 0 };
    struct settings set = { .o = {
                                .max_header_bytes = 65536,
                                .max_connections = 1024,
                                .header_timeout_s = 10,
                                .idle_timeout_s = 75,
                                .max_body_bytes = 32 << 20,
                                .max_unsent_bytes = 1 << 20,
                            } };

    if (parse(argc, argv, &set, &s) < 0) {
        fprintf(stderr, "usage: http_testserver [key=value]... (see the source)\n");
        return 2;
    }
    pthread_mutex_init(&s.lock, NULL);
    return serve(&set, &s);
}
