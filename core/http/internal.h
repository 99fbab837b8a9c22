/* Http, inside: the structures that the files of this room share.
 * Thread: the event thread alone; only post.c is entered from others.
 *
 * Lifetimes, the one thing to know here. evhttp owns its connection and its request and frees both when it
 * likes. A struct http_conn lives from accept to evhttp's close callback; a struct http_request copies what
 * it needs at once and lives until its exchange is over (answer sent, or client gone) and its handler has
 * said http_done, whichever is later. While the exchange runs the three point at each other; its end cuts
 * r->conn and r->ev, and from then on every reply function does nothing. */
#pragma once
#include "http/http.h"
#include "http/post.h"
#include "http/rules.h"
#include "http/scan.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <event2/http.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define HTTP_JSON "application/json; charset=utf-8"

enum { HTTP_ID_MAX = 128, HTTP_TICK_MS = 250 };

enum conn_phase {
    CONN_IDLE,   /* nothing of a request has arrived */
    CONN_HEADER, /* some of its header has */
    CONN_BODY,   /* its header has, its body is awaited */
    CONN_BUSY,   /* handed over; evhttp reads nothing until the answer is through */
};

enum conn_todo { TODO_SETUP = 1, TODO_DRAIN = 2, TODO_REFUSE = 4, TODO_CLOSE = 8, TODO_GONE = 16 };

struct http_conn {
    struct http *h;
    struct http_conn *prev, *next;
    struct bufferevent *bev;
    struct evhttp_connection *ev; /* NULL until set up */
    struct event todo;            /* runs right after the callback that activated it */
    unsigned todo_flags;
    int fd;
    enum conn_phase phase;
    struct http_scan scan;
    uint64_t since_ns;    /* when the phase began */
    uint64_t progress_ns; /* when the kernel last took bytes, or there were none to take */
    uint64_t body_bytes;  /* received in CONN_BODY, counted in h->body_bytes */
    int refuse_status;    /* 0, or the error that ends this connection */
    bool watched, is_unix, peer_loopback;
    uint8_t peer[32]; /* the address without its port, for the client key */
    size_t peer_len;
    struct http_request *request; /* in CONN_BUSY */
};

struct http_linger { /* a refused connection whose last bytes are thrown away so that it reads our answer */
    struct http *h;
    struct http_linger *prev, *next;
    struct event ev;
    int fd;
    uint64_t left, until_ns;
};

struct http_pair {
    const char *name, *value;
};

struct http_query {
    struct http_query *next;
    char text[]; /* name, zero, value, zero */
};

struct http_request {
    struct http *h; /* NULL once the server is freed */
    struct http_request *prev, *next;
    struct http_conn *conn;    /* NULL when the exchange is over */
    struct evhttp_request *ev; /* likewise */
    char *strings;             /* header names and values, path, query */
    struct http_pair *headers;
    size_t n_headers;
    const char *method, *path, *query;
    char *rest;                 /* decoded, for a route that ends in `*` */
    struct http_query *queries; /* those asked for */
    struct evbuffer *body;
    char id[HTTP_ID_MAX + 1];
    char key_name[64];
    enum http_access access; /* its route's */
    uint64_t client_key;
    uint64_t start_ns;
    int status, pins; /* pins: calls under way that still touch it */
    bool head, connect, http10, left, begun, stream, chunked, ended, done, throttled, closing;
    void (*leave)(void *arg);
    void *leave_arg;
    void (*drain)(void *arg);
    void *drain_arg;
};

struct http_refusals { /* how many were logged and left out in the present second */
    uint64_t second;
    unsigned logged, left_out;
};

struct http_listener {
    struct evhttp_bound_socket *bound; /* NULL when closed */
    struct evconnlistener *ev;
    char text[160];
    char *unix_path; /* NULL for TCP */
    uint64_t dev, ino;
    bool wide;
};

struct http_timer {
    struct http_timer *next;
    struct event *ev;
    void (*fn)(void *arg);
    void *arg;
};

struct http {
    struct event_base *base;
    struct evhttp *ev;
    struct http_options o; /* its keys, origins, metrics_open and listen texts are not used after http_new */
    struct http_rules *rules;
    struct http_listener *listeners;
    size_t n_listeners;
    bool accepting, wide, listening; /* wide: bound beyond loopback */
    unsigned accepted_now;
    struct event *resume; /* zero timer: accept again */
    struct event *tick;
    struct http_conn *conns;
    struct http_linger *lingers;
    uint32_t n_conns;
    struct http_conn **by_fd;
    size_t n_by_fd;
    uint64_t body_bytes;
    struct http_request *requests;
    uint32_t n_requests;
    int watch_fd; /* an epoll set of its own: see conn.c */
    struct event *watch;
    struct http_posts posts;
    struct event *post_event, *post_more;
    atomic_bool stop_wanted;
    bool stopping, running;
    struct http_timer *timers;
    uint64_t id_seed, id_counter;
    struct http_refusals refusals;
    uint8_t salt[16];
};

#include "http/calls.h"
