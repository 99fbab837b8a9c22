/* Request: what a handler holds: the request's own copies of what it asked, and the reply or stream it gets.
 * Thread: the event thread alone. Must not know: routes, keys, how connections are bounded.
 * Tests: tests/e2e/test_http_raw.py
 *
 * evhttp frees its request when the answer is through or the connection ends, whatever the handler still
 * holds, so nothing here points into it: r->ev is used only while the exchange runs (internal.h). */
#include "http/internal.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/rng.h"

#include <event2/bufferevent.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

static void log_request(const struct http_request *r)
{
    char path[256];
    unsigned long long ms = (clock_now_ns() - r->start_ns) / NS_PER_MS;

    if (log_level_get() <= LOG_DEBUG)
        log_write(LOG_DEBUG, "http", "id=%s method=%s path=%s status=%d left=%d ms=%llu", r->id, r->method,
                  log_quote(path, sizeof path, r->path), r->status, r->left, ms);
}

/* Frees the request once nobody needs it: the handler is done, the exchange over, no call on it under way. */
static void release(struct http_request *r)
{
    struct http *h = r->h;

    if (!r->done || r->ev || r->pins)
        return;
    if (h) {
        log_request(r);
        if (r->prev)
            r->prev->next = r->next;
        else
            h->requests = r->next;
        if (r->next)
            r->next->prev = r->prev;
        h->n_requests--;
    }
    while (r->queries) {
        struct http_query *q = r->queries;

        r->queries = q->next;
        free(q);
    }
    if (r->body)
        evbuffer_free(r->body);
    free(r->headers);
    free(r->strings);
    free(r->rest);
    free(r);
    if (h)
        server_check_stop(h);
}

void request_pin(struct http_request *r)
{
    r->pins++;
}

void request_unpin(struct http_request *r)
{
    r->pins--;
    release(r);
}

/* The answer is through and evhttp is about to free its request. */
static void on_complete(struct evhttp_request *ev, void *arg)
{
    struct http_request *r = arg;
    struct http_conn *c = r->conn;

    (void)ev;
    r->ev = NULL;
    r->conn = NULL;
    conn_exchange_over(c);
    if (r->connect) /* evhttp leaves such a connection open, whatever the answer promised */
        conn_abandon(c);
    release(r);
}

void request_left(struct http_request *r)
{
    struct evhttp_request *ev = r->ev;

    r->ev = NULL;
    r->conn = NULL;
    /* When a write failed before the handler had said its last word, evhttp takes the request from its
     * connection and leaves it to us; in all other cases it frees it right after this. */
    if (!evhttp_request_get_connection(ev))
        evhttp_request_free(ev);
    request_pin(r);
    r->left = true;
    if (!r->done && r->leave) {
        void (*fn)(void *arg) = r->leave;

        r->leave = NULL;
        fn(r->leave_arg);
    }
    request_unpin(r);
}

void request_drained(struct http_request *r)
{
    if (!r->throttled || r->done)
        return;
    r->throttled = false;
    if (r->drain)
        r->drain(r->drain_arg);
}

static size_t text_size(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

static const char *keep(char **at, const char *text)
{
    const char *kept = *at;
    size_t n = text_size(text);

    if (!text)
        return NULL;
    memcpy(*at, text, n);
    *at += n;
    return kept;
}

/* One block holds all texts. */
static int copy_texts(struct http_request *r, struct evhttp_request *ev)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    const char *query = uri ? evhttp_uri_get_query(uri) : NULL;
    size_t size, n = 0;
    struct evkeyval *kv;
    char *at;

    /* "//x" and CONNECT's "host:port" have no path in the eyes of evhttp: the error shall name what was
     * asked. */
    if (!path || !*path)
        path = uri && evhttp_uri_get_scheme(uri) ? "/" : evhttp_request_get_uri(ev);
    size = text_size(path ? path : "") + text_size(query);
    for (kv = TAILQ_FIRST(evhttp_request_get_input_headers(ev)); kv; kv = TAILQ_NEXT(kv, next)) {
        size += text_size(kv->key) + text_size(kv->value);
        n++;
    }
    r->strings = at = malloc(size);
    r->headers = calloc(n + 1, sizeof *r->headers);
    if (!r->strings || !r->headers)
        return -1;
    r->path = keep(&at, path ? path : "");
    r->query = keep(&at, query);
    for (kv = TAILQ_FIRST(evhttp_request_get_input_headers(ev)); kv; kv = TAILQ_NEXT(kv, next)) {
        r->headers[r->n_headers].name = keep(&at, kv->key);
        r->headers[r->n_headers++].value = keep(&at, kv->value);
    }
    return 0;
}

static const char *method_name(enum evhttp_cmd_type type)
{
    switch (type) {
    case EVHTTP_REQ_GET:
        return "GET";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_HEAD:
        return "HEAD";
    case EVHTTP_REQ_PUT:
        return "PUT";
    case EVHTTP_REQ_DELETE:
        return "DELETE";
    case EVHTTP_REQ_OPTIONS:
        return "OPTIONS";
    case EVHTTP_REQ_TRACE:
        return "TRACE";
    case EVHTTP_REQ_CONNECT:
        return "CONNECT";
    case EVHTTP_REQ_PATCH:
        return "PATCH";
    default:
        return "?";
    }
}

static bool sane_id(const char *id)
{
    size_t n = id ? strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") : 0;

    return n > 0 && n <= HTTP_ID_MAX && id[n] == '\0';
}

void request_make_id(struct http *h, char *dst, size_t len)
{
    uint32_t w[4];

    rng_philox(h->id_seed, h->id_counter++, w);
    snprintf(dst, len, "req_%08x%08x%08x", w[0], w[1], w[2]);
}

static void choose_id(struct http_request *r)
{
    const char *theirs = http_header(r, "X-Request-Id");

    if (sane_id(theirs))
        snprintf(r->id, sizeof r->id, "%s", theirs);
    else
        request_make_id(r->h, r->id, sizeof r->id);
}

struct http_request *request_new(struct http_conn *c, struct evhttp_request *ev)
{
    struct http *h = c->h;
    struct http_request *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->body = evbuffer_new();
    if (!r->body || copy_texts(r, ev) < 0 ||
        evbuffer_add_buffer(r->body, evhttp_request_get_input_buffer(ev)) < 0) {
        if (r->body)
            evbuffer_free(r->body);
        free(r->headers);
        free(r->strings);
        free(r);
        return NULL;
    }
    r->h = h;
    r->conn = c;
    r->ev = ev;
    r->method = method_name(evhttp_request_get_command(ev));
    r->head = evhttp_request_get_command(ev) == EVHTTP_REQ_HEAD;
    r->connect = r->closing = evhttp_request_get_command(ev) == EVHTTP_REQ_CONNECT;
    r->http10 = ev->major < 1 || (ev->major == 1 && ev->minor < 1);
    r->start_ns = clock_now_ns();
    choose_id(r);
    r->next = h->requests;
    if (r->next)
        r->next->prev = r;
    h->requests = r;
    h->n_requests++;
    evhttp_request_set_on_complete_cb(ev, on_complete, r);
    conn_exchange_begin(c, r);
    return r;
}

const char *http_method(const struct http_request *r)
{
    return r->method;
}

const char *http_path(const struct http_request *r)
{
    return r->path;
}

const char *http_path_rest(const struct http_request *r)
{
    return r->rest ? r->rest : "";
}

const char *http_header(const struct http_request *r, const char *name)
{
    for (size_t i = 0; i < r->n_headers; i++)
        if (strcasecmp(r->headers[i].name, name) == 0)
            return r->headers[i].value;
    return NULL;
}

/* The raw value of a query parameter; *ret_len is its length. */
static const char *find_query(const char *query, const char *name, size_t *ret_len)
{
    size_t name_len = strlen(name);

    while (query && *query) {
        size_t n = strcspn(query, "&");

        if (strncmp(query, name, name_len) == 0 &&
            (n == name_len || (n > name_len && query[name_len] == '='))) {
            *ret_len = n > name_len ? n - name_len - 1 : 0;
            return query + n - *ret_len;
        }
        query += n + (query[n] == '&');
    }
    return NULL;
}

const char *http_query(const struct http_request *r, const char *name)
{
    /* What was asked for once is kept with the request: the cache is no part of what a caller sees of it. */
    struct http_request *own = (struct http_request *)(uintptr_t)r;
    size_t raw_len = 0, len = 0, name_len = strlen(name);
    const char *raw;
    char *copy, *value = NULL;
    struct http_query *q;

    for (q = r->queries; q; q = q->next)
        if (strcmp(q->text, name) == 0)
            return q->text + name_len + 1;
    raw = find_query(r->query, name, &raw_len);
    copy = raw ? strndup(raw, raw_len) : NULL;
    if (copy)
        value = evhttp_uridecode(copy, 1, &len);
    free(copy);
    q = value ? malloc(sizeof *q + name_len + strlen(value) + 2) : NULL;
    if (q) {
        strcpy(q->text, name);
        strcpy(q->text + name_len + 1, value);
        q->next = own->queries;
        own->queries = q;
    }
    free(value);
    return q ? q->text + name_len + 1 : NULL;
}

const char *http_request_id(const struct http_request *r)
{
    return r->id;
}

const char *http_key_name(const struct http_request *r)
{
    return r->key_name;
}

uint64_t http_client_key(const struct http_request *r)
{
    return r->client_key;
}

struct evbuffer *http_take_body(struct http_request *r)
{
    struct evbuffer *body = r->body;

    r->body = NULL;
    return body;
}

static void deliver_left(void *arg)
{
    struct http_request *r = arg;
    void (*fn)(void *arg) = r->leave;

    r->leave = NULL;
    if (fn && !r->done)
        fn(r->leave_arg);
    request_unpin(r);
}

void http_on_leave(struct http_request *r, void (*fn)(void *arg), void *arg)
{
    r->leave = fn;
    r->leave_arg = arg;
    if (!r->left || !fn || !r->h)
        return;
    /* It left before anyone asked. Not from here: the caller is still putting things in place. */
    request_pin(r);
    if (http_post(r->h, deliver_left, r) < 0)
        deliver_left(r);
}

bool http_left(const struct http_request *r)
{
    return r->left;
}

static void add_header(struct http_request *r, const char *name, const char *value)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(r->ev);

    evhttp_remove_header(headers, name);
    evhttp_add_header(headers, name, value);
}

void http_reply_header(struct http_request *r, const char *name, const char *value)
{
    if (r->ev && !r->begun)
        add_header(r, name, value);
}

static void begin(struct http_request *r, int status, const char *content_type)
{
    r->begun = true;
    r->status = status;
    add_header(r, "X-Request-Id", r->id);
    add_header(r, "X-Content-Type-Options", "nosniff");
    if (content_type)
        add_header(r, "Content-Type", content_type);
    if (r->closing || !r->h->listening)
        add_header(r, "Connection", "close");
}

void http_reply(struct http_request *r, int status, const char *content_type, const void *data, size_t len)
{
    struct evbuffer *body;
    char size[24];

    if (!r->ev || r->begun)
        return;
    begin(r, status, content_type);
    r->ended = true;
    conn_unwatch(r->conn);
    body = evbuffer_new();
    if (body && !r->head && status != 204 && status != 304)
        evbuffer_add(body, data, len);
    /* evhttp writes the length of a body; for HEAD there is none to measure, and for CONNECT it does not. */
    if (r->head || r->connect) {
        snprintf(size, sizeof size, "%zu", len);
        add_header(r, "Content-Length", size);
    }
    evhttp_send_reply(r->ev, status, status_phrase(status), body);
    if (body)
        evbuffer_free(body);
    if (r->conn)
        conn_pause_reading(r->conn);
}

static bool anthropic_path(const char *path)
{
    static const char prefix[] = "/v1/messages";

    return strncmp(path, prefix, sizeof prefix - 1) == 0;
}

void http_reply_error(struct http_request *r, int status, const char *type, const char *message,
                      const char *param, const char *code)
{
    struct buf b = { 0 };

    error_body(&b, anthropic_path(r->path), status, type, message, param, code, r->id);
    http_reply(r, status, HTTP_JSON, b.failed ? "" : b.data, b.failed ? 0 : b.len);
    buf_free(&b);
}

void http_stream_begin(struct http_request *r, int status, const char *content_type)
{
    if (!r->ev || r->begun)
        return;
    begin(r, status, content_type);
    r->stream = true;
    r->chunked = !r->http10 && !r->head && status != 204 && status != 304;
    add_header(r, "Cache-Control", "no-store");
    add_header(r, "X-Accel-Buffering", "no");
    /* With HTTP/1.0 and keep-alive evhttp would promise a Content-Length of 0: such a stream ends by closing.
     */
    if (r->http10)
        evhttp_remove_header(evhttp_request_get_input_headers(r->ev), "Connection");
    evhttp_send_reply_start(r->ev, status, status_phrase(status));
    conn_pause_reading(r->conn);
}

void http_stream_write(struct http_request *r, const void *data, size_t len)
{
    struct evbuffer *output;
    char size[24];
    int n;

    if (!r->ev || !r->stream || r->ended || r->head || len == 0)
        return;
    /* Straight into the output: evhttp_send_reply_chunk would turn reading on again, two system calls a
     * chunk. */
    output = bufferevent_get_output(r->conn->bev);
    n = r->chunked ? snprintf(size, sizeof size, "%zx\r\n", len) : 0;
    if (evbuffer_add(output, size, (size_t)n) < 0 || evbuffer_add(output, data, len) < 0 ||
        (r->chunked && evbuffer_add(output, "\r\n", 2) < 0)) {
        /* Out of memory. A stream with a hole must not look whole: it ends in mid-air. */
        r->ended = true;
        conn_abandon(r->conn);
        return;
    }
    if (evbuffer_get_length(output) > r->h->o.max_unsent_bytes)
        r->throttled = true;
}

void http_stream_end(struct http_request *r)
{
    if (!r->ev || !r->stream || r->ended)
        return;
    r->ended = true;
    conn_unwatch(r->conn);
    request_pin(r);
    evhttp_send_reply_end(r->ev); /* may be the end of the exchange and of the connection */
    if (r->conn)
        conn_pause_reading(r->conn);
    request_unpin(r);
}

bool http_stream_begun(const struct http_request *r)
{
    return r->stream;
}

size_t http_unsent(const struct http_request *r)
{
    return r->conn ? conn_unsent(r->conn) : 0;
}

void http_on_drain(struct http_request *r, void (*fn)(void *arg), void *arg)
{
    r->drain = fn;
    r->drain_arg = arg;
}

void http_done(struct http_request *r)
{
    request_pin(r);
    if (!r->begun)
        http_reply_error(r, 500, "server_error", "the request was given up without an answer", NULL, NULL);
    else
        http_stream_end(r);
    r->done = true;
    request_unpin(r);
}
