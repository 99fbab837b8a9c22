/* Http: the server's sockets, limits and routes, over libevent's evhttp.
 *
 * Owns: listeners (TCP and Unix), every connection, request bodies, replies and streams; limits on header,
 * body, time and number of connections; keys, Host and Origin checks; X-Request-Id; CORS. Thread: the event
 * thread alone, but for http_post and http_stop, which any thread may call. Must not know: models, tokens,
 * slots, JSON of the API (its own error bodies apart). Tests: tests/e2e/test_http_*.py */
#pragma once
#include <event2/buffer.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http;
struct http_request; /* valid until http_done, even when the client has left */

enum http_access {
    HTTP_OPEN,  /* no key: /health and the like */
    HTTP_KEY,   /* a key when keys are configured */
    HTTP_WATCH, /* the admin key when keys are configured, unless metrics_open */
    HTTP_ADMIN, /* the admin key; without any keys: loopback or Unix socket only */
};

struct http_route {
    const char *method; /* "GET" (HEAD too), "POST" */
    const char *path;   /* exact, or all below one when it ends in "/" and "*"; without the query */
    enum http_access access;
    void (*handler)(struct http_request *r,
                    void *arg); /* on the event thread, under 5 ms: heavy work goes to a worker */
    void *arg;
};

struct http_key { /* an entry of the key file */
    char name[64];
    uint8_t sha256[32];
    bool admin;
};

struct http_options {
    const char *const *listen; /* "127.0.0.1:8080", "[::1]:0", "unix:/path" */
    size_t n_listen;
    const struct http_key *keys; /* copied */
    size_t n_keys;
    bool open; /* allows binding beyond loopback without keys */
    bool metrics_open;
    const char *const *cors_origins;
    size_t n_cors_origins;
    uint32_t max_header_bytes, max_connections, header_timeout_s, idle_timeout_s;
    uint64_t max_body_bytes;
    uint32_t max_unsent_bytes;       /* a stream's throttle, 1 MiB */
    const struct http_route *routes; /* borrowed */
    size_t n_routes;
};

/* Whether http_new would find the addresses right: they can be read, none is listed twice, none is beyond
 * loopback without keys unless open. With try_bind also whether they are free now, by binding and letting go
 * again, which changes nothing. Only listen, n_keys and open are looked at. Errors as http_new's. */
int http_check_listen(const struct http_options *o, bool try_bind, char *err, size_t errlen);
/* Binds and checks; ignores SIGPIPE and raises the soft limit of descriptors to what max_connections needs.
 * err names the address and what to do ("127.0.0.1:8080: address in use; choose another with --set
 * server.listen=..."). -EACCES when bound beyond loopback without keys and not open. */
int http_new(const struct http_options *o, struct http **ret_http, char *err, size_t errlen);
/* Runs what was posted and not yet run, closes everything (handlers are told that their clients left) and
 * removes socket files. Requests still held stay valid until http_done. NULL is fine. */
void http_free(struct http *h);
/* The bound addresses as text ("http://127.0.0.1:40123"), i < n; NULL past the end. */
const char *http_address(const struct http *h, size_t i);
/* Runs the loop until http_stop. */
int http_run(struct http *h);
/* [any thread] Closes the listeners and all connections without a request at once, answers what else is asked
 * on the others with 503, and ends the loop when the last open request is done and its answer taken. */
void http_stop(struct http *h);
/* Stops accepting; open connections are served, and closed after their next answer. */
void http_close_listeners(struct http *h);
uint32_t http_open_requests(const struct http *h);
/* Reads a key file: lines `name:sha256-hex[:admin]`, # for comments (keys.c). *ret_keys is freed with free().
 * -EINVAL with err naming file, line and what is wrong; -errno when it cannot be read. */
int http_keys_load(const char *path, struct http_key **ret_keys, size_t *ret_n, char *err, size_t errlen);
/* Who may ask what: the part of the options that a running server can exchange. Made beforehand, on any
 * thread, so that the exchange has nothing left to fail at but the rule below. */
struct http_rules;
/* Copies keys, metrics_open and cors_origins. -ENOMEM. */
int http_rules_new(const struct http_options *o, struct http_rules **ret_rules);
void http_rules_free(struct http_rules *rules); /* NULL is fine */
/* *rules from now on, and in return those that were. -EACCES, and nothing changed, when that would leave a
 * server beyond loopback without any key. */
int http_rules_exchange(struct http *h, struct http_rules **rules);
/* Whether the rules in force now would let this request in, for streams without an end. */
bool http_still_allowed(struct http_request *r);
/* [any thread] Runs fn(arg) on the event thread, in order of posting. -ENOSPC when the (large) queue is full.
 */
int http_post(struct http *h, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) on the event thread every `ms` until http_free. */
int http_every(struct http *h, uint32_t ms, void (*fn)(void *arg), void *arg);
/* fn(arg) on the event thread for a signal. */
int http_on_signal(struct http *h, int signo, void (*fn)(void *arg), void *arg);

const char *http_method(const struct http_request *r);
const char *http_path(const struct http_request *r);
/* What stood in place of the route's `*`, percent-decoded; "" where the route has none. */
const char *http_path_rest(const struct http_request *r);
/* A query parameter, or NULL; lives as long as the request. */
const char *http_query(const struct http_request *r, const char *name);
/* A header, or NULL; lives as long as the request. */
const char *http_header(const struct http_request *r, const char *name);
const char *http_request_id(const struct http_request *r);
/* Name of the key used, or "" ; and a salted non-zero 63-bit number for the client (socket address and key
 * name). */
const char *http_key_name(const struct http_request *r);
uint64_t http_client_key(const struct http_request *r);
/* Takes the body without copying: the caller frees the buffer, on any thread. */
struct evbuffer *http_take_body(struct http_request *r);
/* Which error shape the router's own errors use is decided by the path: /v1/messages*: Anthropic's, else
 * OpenAI's. */

/* fn(arg) once, when the client leaves (closes or half-closes, resets, or takes nothing for idle_timeout_s)
 * before http_done. Not called after http_done, nor from within this call: when the client has left already,
 * by a post. */
void http_on_leave(struct http_request *r, void (*fn)(void *arg), void *arg);
bool http_left(const struct http_request *r);

void http_reply_header(struct http_request *r, const char *name,
                       const char *value); /* before the reply starts */
/* A whole reply; the request is still to be given back with http_done. */
void http_reply(struct http_request *r, int status, const char *content_type, const void *data, size_t len);
/* An error in the dialect's shape. type: "invalid_request_error", ...; param and code may be NULL. */
void http_reply_error(struct http_request *r, int status, const char *type, const char *message,
                      const char *param, const char *code);
/* A stream: begin, writes, end. Writing to a client that left does nothing. */
void http_stream_begin(struct http_request *r, int status, const char *content_type);
void http_stream_write(struct http_request *r, const void *data, size_t len);
void http_stream_end(struct http_request *r);
bool http_stream_begun(const struct http_request *r);
/* Bytes accepted but not yet taken by the kernel; on_drain(arg) is called when a stream above
 * max_unsent_bytes falls below half of it. */
size_t http_unsent(const struct http_request *r);
void http_on_drain(struct http_request *r, void (*fn)(void *arg), void *arg);
/* The handler's last word: the request is released (exactly once, after reply/stream end or a departure). */
void http_done(struct http_request *r);
