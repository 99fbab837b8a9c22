/* Calls: what the files of this room call of each other, by file. Included by internal.h alone. */
#pragma once
#include "http/internal.h"

struct buf;

/* server.c */
void server_stop(struct http *h);
/* Ends the loop when it was asked to stop and the last request is over. */
void server_check_stop(struct http *h);

/* post.c */
int posts_new(struct http *h);
void posts_free(struct http *h);
void posts_run_all(struct http *h);
void posts_wake(struct http *h);

/* listen.c */
int listen_all(struct http *h, char *err, size_t errlen);
void listen_close(struct http *h);
void listen_free(struct http *h);

/* refuse.c */
/* Answers in place of evhttp and ends the connection. */
void refuse_now(struct http_conn *c, int status);
/* Before the connection is closed: lets the client read what was sent although it is still sending itself. */
void linger(struct http_conn *c);
void lingers_free(struct http *h);

/* conn.c */
int conns_new(struct http *h);
void conns_free(struct http *h);
void conns_tick(struct http *h);
void conns_close_idle(struct http *h);
void conns_resume(struct http *h);
struct http_conn *conn_of(struct http *h, struct evhttp_request *ev);
void conn_exchange_begin(struct http_conn *c, struct http_request *r);
void conn_exchange_over(struct http_conn *c);
void conn_watch(struct http_conn *c);
void conn_unwatch(struct http_conn *c);
void conn_pause_reading(struct http_conn *c);
size_t conn_unsent(const struct http_conn *c);
/* Closes the connection soon, as if the client had left. */
void conn_abandon(struct http_conn *c);

/* request.c */
struct http_request *request_new(struct http_conn *c, struct evhttp_request *ev);
void request_pin(struct http_request *r);
void request_unpin(struct http_request *r);
/* The client went away, or evhttp gave up on it; `ev` is no longer ours to touch. */
void request_left(struct http_request *r);
void request_drained(struct http_request *r);
void request_make_id(struct http *h, char *dst, size_t len);

/* error.c */
const char *status_phrase(int status);
void error_body(struct buf *b, bool anthropic, int status, const char *type, const char *message,
                const char *param, const char *code, const char *id);

/* refusals.c */
/* A line in the log, or one more in the count of those left out. */
void refusals_note(struct http *h, const struct http_conn *c, const char *id, const char *method,
                   const char *path, int status);
/* Tells the count, when its second is over or `always`. */
void refusals_tell(struct http *h, bool always);

/* route.c */
void route_request(struct evhttp_request *ev, void *h);

/* auth.c */
enum auth_result { AUTH_OK, AUTH_MISSING, AUTH_WRONG, AUTH_NOT_ADMIN, AUTH_NOT_LOCAL };
enum auth_result auth_check(struct http_request *r, enum http_access access);
bool auth_host_ok(const struct http_request *r);
/* The Origin to allow in the reply's CORS headers: NULL when there is none to. *ret_refuse: 403. */
const char *auth_origin(const struct http_request *r, bool *ret_refuse);
uint64_t auth_client_key(const struct http_request *r);
