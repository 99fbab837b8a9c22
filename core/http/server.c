/* Server: the loop, its timers and signals, and how it begins and ends.
 * Thread: the event thread alone; http_stop from any.
 * Must not know: what handlers do. Tests: tests/e2e/test_http_raw.py */
#include "http/internal.h"
#include "util/log.h"
#include "util/rng.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { FDS_BESIDE = 256, HEADER_SLACK = 65536 };

static void on_libevent(int severity, const char *text)
{
    char quoted[512];

    log_write(severity >= EVENT_LOG_ERR    ? LOG_ERROR
              : severity >= EVENT_LOG_WARN ? LOG_WARN
                                           : LOG_DEBUG,
              "libevent", "text=%s", log_quote(quoted, sizeof quoted, text));
}

/* So that the connections the operator allows find descriptors; where the hard limit forbids, accept pauses
 * instead. */
static void raise_fd_limit(uint32_t connections)
{
    rlim_t want = (rlim_t)connections + FDS_BESIDE;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= want)
        return;
    limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void on_tick(void *arg)
{
    conns_tick(arg);
    refusals_tell(arg, false);
}

static int set_up_evhttp(struct http *h)
{
    h->ev = evhttp_new(h->base);
    if (!h->ev)
        return -ENOMEM;
    /* Ours are checked first (scan.c), so that their errors are in JSON; evhttp's stand behind them. */
    evhttp_set_max_headers_size(h->ev, (ev_ssize_t)h->o.max_header_bytes + HEADER_SLACK);
    evhttp_set_max_body_size(h->ev, (ev_ssize_t)h->o.max_body_bytes);
    evhttp_set_default_content_type(h->ev, NULL);
    evhttp_set_allowed_methods(h->ev, UINT16_MAX); /* the router says 405, evhttp would say 501 */
    evhttp_set_gencb(h->ev, route_request, h);
    return 0;
}

static int set_up(struct http *h, char *err, size_t errlen)
{
    uint64_t salt[2] = { rng_system_seed(), rng_system_seed() };
    int r;

    memcpy(h->salt, salt, sizeof h->salt);
    h->id_seed = rng_system_seed();
    signal(SIGPIPE, SIG_IGN);
    raise_fd_limit(h->o.max_connections);
    event_set_log_callback(on_libevent);
    h->base = event_base_new();
    r = h->base ? set_up_evhttp(h) : -ENOMEM;
    if (r == 0)
        r = posts_new(h);
    if (r == 0)
        r = conns_new(h);
    if (r == 0)
        r = http_every(h, HTTP_TICK_MS, on_tick, h);
    if (r < 0) {
        snprintf(err, errlen, "the event loop cannot be set up: %s", strerror(-r));
        return r;
    }
    return listen_all(h, err, errlen);
}

int http_new(const struct http_options *o, struct http **ret_http, char *err, size_t errlen)
{
    struct http *h = calloc(1, sizeof *h);
    int r;

    if (!h) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    h->o = *o;
    h->watch_fd = h->posts.fd = -1;
    pthread_mutex_init(&h->posts.lock, NULL);
    r = http_rules_new(o, &h->rules);
    if (r < 0)
        snprintf(err, errlen, "out of memory");
    else
        r = set_up(h, err, errlen);
    if (r < 0) {
        http_free(h);
        return r;
    }
    *ret_http = h;
    return 0;
}

/* Requests that their handlers still hold stay theirs to give back; they only lose the server. */
static void orphan_requests(struct http *h)
{
    while (h->requests) {
        struct http_request *r = h->requests;

        h->requests = r->next;
        if (r->next)
            r->next->prev = NULL;
        r->prev = r->next = NULL;
        r->h = NULL;
    }
    h->n_requests = 0;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    if (h->post_event)
        posts_run_all(h);
    if (h->ev) {
        listen_close(h);
        evhttp_free(h->ev);
        posts_run_all(h);
    }
    orphan_requests(h);
    conns_free(h);
    refusals_tell(h, true);
    posts_free(h);
    listen_free(h);
    while (h->timers) {
        struct http_timer *t = h->timers;

        h->timers = t->next;
        event_free(t->ev);
        free(t);
    }
    if (h->base)
        event_base_free(h->base);
    http_rules_free(h->rules);
    free(h);
}

const char *http_address(const struct http *h, size_t i)
{
    return i < h->n_listeners ? h->listeners[i].text : NULL;
}

int http_run(struct http *h)
{
    if (event_base_dispatch(h->base) < 0)
        return -EIO;
    return 0;
}

void http_stop(struct http *h)
{
    atomic_store(&h->stop_wanted, true);
    posts_wake(h);
}

void server_stop(struct http *h)
{
    if (h->stopping)
        return;
    h->stopping = true;
    listen_close(h);
    conns_close_idle(h);
    server_check_stop(h);
}

void server_check_stop(struct http *h)
{
    if (h->stopping && h->n_requests == 0)
        event_base_loopexit(h->base, NULL);
}

void http_close_listeners(struct http *h)
{
    listen_close(h);
}

uint32_t http_open_requests(const struct http *h)
{
    return h->n_requests;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_timer *t = arg;

    (void)fd, (void)what;
    t->fn(t->arg);
}

static int add_timer(struct http *h, int fd, short what, const struct timeval *every, void (*fn)(void *arg),
                     void *arg)
{
    struct http_timer *t = calloc(1, sizeof *t);

    if (!t)
        return -ENOMEM;
    t->fn = fn;
    t->arg = arg;
    t->ev = event_new(h->base, fd, what, on_timer, t);
    if (!t->ev || event_add(t->ev, every) < 0) {
        if (t->ev)
            event_free(t->ev);
        free(t);
        return -ENOMEM;
    }
    t->next = h->timers;
    h->timers = t;
    return 0;
}

int http_every(struct http *h, uint32_t ms, void (*fn)(void *arg), void *arg)
{
    struct timeval every = { ms / 1000, (suseconds_t)(ms % 1000) * 1000 };

    return add_timer(h, -1, EV_PERSIST, &every, fn, arg);
}

int http_on_signal(struct http *h, int signo, void (*fn)(void *arg), void *arg)
{
    return add_timer(h, signo, EV_SIGNAL | EV_PERSIST, NULL, fn, arg);
}
