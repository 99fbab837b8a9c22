/* Bench over HTTP, the wire: one request on one connection, its reply taken apart: head, chunks, server-sent
 * events. No more of HTTP than a reply to our own POST can hold. One thread, inside the event loop.
 * Must not know: what the events say, what is measured. Tests: tests/e2e/test_bench_http.py */
#include "cmd_bench_http.h"
#include "util/buf.h"
#include <ctype.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_HEAD (64u << 10)
#define MAX_EVENT (16u << 20)
#define MAX_ERROR_BODY 1024u
#define MAX_CHUNK_DIGITS 8u

enum state { HEAD, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, LENGTH, UNTIL_CLOSE, DONE };

struct bench_call {
    const struct bench_target *target;
    const struct bench_call_events *events;
    void *arg;
    struct bufferevent *bev;
    struct buf in;    /* bytes not taken apart yet */
    struct buf lines; /* of the body: an unfinished line */
    struct buf data;  /* the event that is being read */
    struct buf other; /* the body of a reply that is no stream */
    enum state state;
    unsigned status;
    bool is_stream, ended;
    uint64_t left; /* bytes of this chunk or body */
};

static int fail_url(const char *url, const char *why, char *err, size_t errlen)
{
    snprintf(err, errlen, "\"%s\" %s; wanted is http://HOST:PORT", url, why);
    return -EINVAL;
}

static int take_host(const char *url, const char *host, struct bench_target *t, char *err, size_t errlen)
{
    size_t len = host ? strlen(host) : 0;
    if (len > 1 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    if (len == 0)
        return fail_url(url, "names no host", err, errlen);
    if (len >= sizeof t->host)
        return fail_url(url, "has too long a host name", err, errlen);
    memcpy(t->host, host, len);
    t->host[len] = '\0';
    return 0;
}

static int take_path(const char *url, const char *path, struct bench_target *t, char *err, size_t errlen)
{
    size_t len = path ? strlen(path) : 0;
    while (len && path[len - 1] == '/')
        len--;
    if (len >= 3 && memcmp(path + len - 3, "/v1", 3) == 0)
        len -= 3;
    if (len >= sizeof t->path)
        return fail_url(url, "has too long a path", err, errlen);
    memcpy(t->path, path ? path : "", len);
    t->path[len] = '\0';
    return 0;
}

int bench_target_parse(const char *url, struct bench_target *ret_target, char *err, size_t errlen)
{
    struct evhttp_uri *uri = evhttp_uri_parse(url);
    const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL;
    int port = uri ? evhttp_uri_get_port(uri) : -1, r;

    *ret_target = (struct bench_target){ .url = url };
    if (!uri)
        r = fail_url(url, "is not an address", err, errlen);
    else if (scheme && strcasecmp(scheme, "https") == 0)
        r = fail_url(url, "wants TLS, which is not spoken here", err, errlen);
    else if (!scheme || strcasecmp(scheme, "http") != 0)
        r = fail_url(url, "does not begin with http://", err, errlen);
    else if (evhttp_uri_get_query(uri) || evhttp_uri_get_fragment(uri) || evhttp_uri_get_userinfo(uri))
        r = fail_url(url, "holds more than an address and a path", err, errlen);
    else if (port == 0 || port > 65535)
        r = fail_url(url, "has a port outside 1..65535", err, errlen);
    else
        r = take_host(url, evhttp_uri_get_host(uri), ret_target, err, errlen);
    if (r == 0)
        r = take_path(url, evhttp_uri_get_path(uri), ret_target, err, errlen);
    snprintf(ret_target->port, sizeof ret_target->port, "%d", port < 0 ? 80 : port);
    if (uri)
        evhttp_uri_free(uri);
    return r;
}

static void finish(struct bench_call *c, const char *err)
{
    if (c->ended)
        return;
    c->ended = true;
    c->state = DONE;
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    c->events->on_end(c->arg, err);
}

/* The reply is whole. One that is no stream is the server's refusal, in its own words. */
static void complete(struct bench_call *c)
{
    char err[MAX_ERROR_BODY + 64];

    if (c->status == 200 && c->is_stream) {
        finish(c, NULL);
        return;
    }
    if (c->status == 200)
        snprintf(err, sizeof err, "no stream of events came, but: %.*s", (int)c->other.len,
                 c->other.data ? c->other.data : "");
    else
        snprintf(err, sizeof err, "HTTP %u: %.*s", c->status, (int)c->other.len,
                 c->other.data ? c->other.data : "");
    for (char *at = err; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = ' ';
    for (size_t len = strlen(err); len && err[len - 1] == ' '; len--)
        err[len - 1] = '\0';
    finish(c, err);
}

static void take_line(struct bench_call *c, const char *line, size_t len)
{
    if (len && line[len - 1] == '\r')
        len--;
    if (len == 0) {
        if (c->data.len)
            c->events->on_event(c->arg, c->data.data, c->data.len);
        buf_clear(&c->data);
    } else if (len >= 5 && memcmp(line, "data:", 5) == 0) {
        size_t skip = len > 5 && line[5] == ' ' ? 6 : 5;
        if (c->data.len)
            buf_putc(&c->data, '\n');
        buf_append(&c->data, line + skip, len - skip);
    }
}

static void take_body(struct bench_call *c, const char *text, size_t len)
{
    const char *end;
    size_t used = 0;

    if (c->status != 200 || !c->is_stream) {
        size_t room = MAX_ERROR_BODY - c->other.len;
        buf_append(&c->other, text, len < room ? len : room);
        return;
    }
    buf_append(&c->lines, text, len);
    while (!c->ended && c->lines.data &&
           (end = memchr(c->lines.data + used, '\n', c->lines.len - used)) != NULL) {
        size_t line_len = (size_t)(end - c->lines.data) - used;
        take_line(c, c->lines.data + used, line_len);
        used += line_len + 1;
    }
    buf_consume(&c->lines, used);
    if (c->lines.failed || c->data.failed)
        finish(c, "an event is longer than 16 MiB, or memory is out");
}

/* The value of a header when the line is one of that name. */
static const char *header_value(const char *line, const char *name)
{
    size_t len = strlen(name);
    if (strncasecmp(line, name, len) != 0 || line[len] != ':')
        return NULL;
    return line + len + 1 + strspn(line + len + 1, " \t");
}

static void take_header(struct bench_call *c, const char *line)
{
    const char *value;
    if ((value = header_value(line, "Transfer-Encoding")) != NULL) {
        if (strcasestr(value, "chunked"))
            c->state = CHUNK_SIZE;
    } else if ((value = header_value(line, "Content-Length")) != NULL) {
        if (c->state == UNTIL_CLOSE) {
            c->state = LENGTH;
            c->left = strtoull(value, NULL, 10);
        }
    } else if ((value = header_value(line, "Content-Type")) != NULL) {
        c->is_stream = strncasecmp(value, "text/event-stream", 17) == 0;
    }
}

/* Each step_ function takes what it needs from text[0..len) and returns how much; 0: more must come. */
static size_t step_head(struct bench_call *c, char *text, size_t len)
{
    const char *end = memmem(text, len, "\r\n\r\n", 4);
    char *rest = text, *line;
    size_t used;

    if (!end) {
        if (len > MAX_HEAD)
            finish(c, "the reply's head is longer than 64 KiB");
        return 0;
    }
    used = (size_t)(end - text) + 4;
    text[used - 1] = '\0';
    line = strsep(&rest, "\r");
    if (sscanf(line, "HTTP/1.%*1[01] %3u", &c->status) != 1) {
        finish(c, "what answers there does not speak HTTP/1.1");
        return 0;
    }
    c->state = UNTIL_CLOSE;
    while ((line = strsep(&rest, "\r")) != NULL)
        take_header(c, line + (line[0] == '\n'));
    if (c->status < 200)
        c->state = HEAD; /* an interim reply: the real one follows */
    return used;
}

static size_t step_chunk_size(struct bench_call *c, const char *text, size_t len)
{
    const char *end = memchr(text, '\n', len);
    size_t digits = 0;

    if (!end && len < MAX_HEAD)
        return 0;
    while (end && isxdigit((unsigned char)text[digits]))
        digits++;
    if (!end || digits == 0 || digits > MAX_CHUNK_DIGITS) {
        finish(c, "the reply is not chunked as HTTP/1.1 wants it");
        return 0;
    }
    c->left = strtoull(text, NULL, 16);
    c->state = c->left ? CHUNK : TRAILER;
    return (size_t)(end - text) + 1;
}

static size_t step_bytes(struct bench_call *c, const char *text, size_t len)
{
    size_t n = len;
    if (c->state != UNTIL_CLOSE) {
        n = c->left < len ? (size_t)c->left : len;
        c->left -= n;
    }
    if (c->state == CHUNK && c->left == 0)
        c->state = CHUNK_END;
    take_body(c, text, n);
    return n;
}

static size_t step_empty_line(struct bench_call *c, const char *text, size_t len)
{
    const char *end = memchr(text, '\n', len);
    size_t used = end ? (size_t)(end - text) + 1 : 0;
    if (!end && len > MAX_HEAD)
        finish(c, "the reply is not chunked as HTTP/1.1 wants it");
    if (!end)
        return 0;
    if (c->state == CHUNK_END)
        c->state = CHUNK_SIZE;
    else if (used <= 2) /* after the last chunk headers may follow, and then an empty line */
        complete(c);
    return used;
}

static size_t step(struct bench_call *c, char *text, size_t len)
{
    switch (c->state) {
    case HEAD:
        return step_head(c, text, len);
    case CHUNK_SIZE:
        return step_chunk_size(c, text, len);
    case CHUNK_END:
    case TRAILER:
        return step_empty_line(c, text, len);
    case CHUNK:
    case LENGTH:
    case UNTIL_CLOSE:
        return step_bytes(c, text, len);
    case DONE:
        break;
    }
    return len;
}

static void on_readable(struct bufferevent *bev, void *arg)
{
    struct bench_call *c = arg;
    struct evbuffer *input = bufferevent_get_input(bev);
    size_t len = evbuffer_get_length(input), used = 0, n = 1;

    buf_append(&c->in, evbuffer_pullup(input, -1), len);
    evbuffer_drain(input, len);
    if (c->in.failed) {
        finish(c, "out of memory");
        return;
    }
    while (!c->ended && used < c->in.len && n) {
        n = step(c, c->in.data + used, c->in.len - used);
        used += n;
    }
    buf_consume(&c->in, used);
    if (c->state == LENGTH && c->left == 0)
        complete(c);
}

static void on_happening(struct bufferevent *bev, short what, void *arg)
{
    struct bench_call *c = arg;
    char err[160];
    (void)bev;
    if (what & BEV_EVENT_TIMEOUT) {
        snprintf(err, sizeof err, "nothing came for %" PRIu32 " s", c->target->timeout_s);
        finish(c, err);
    } else if (what & BEV_EVENT_ERROR) {
        snprintf(err, sizeof err, "the connection broke: %s", strerror(errno));
        finish(c, err);
    } else if (what & BEV_EVENT_EOF) {
        if (c->state == UNTIL_CLOSE)
            complete(c);
        else
            finish(c, c->state == HEAD ? "the server closed the connection without an answer"
                                       : "the server closed the connection in the middle of its reply");
    }
}

static int connect_one(const struct addrinfo *a, uint32_t timeout_s)
{
    const struct timeval wait = { .tv_sec = (time_t)timeout_s };
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol), r = 0, one = 1;
    if (fd < 0)
        return -errno;
    /* connect(2) gives up after the time for sending. */
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) < 0 ||
        connect(fd, a->ai_addr, a->ai_addrlen) < 0)
        r = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
    if (r == 0 && (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0 ||
                   evutil_make_socket_nonblocking(fd) < 0))
        r = -errno;
    if (r < 0) {
        close(fd);
        return r;
    }
    return fd;
}

static int connect_to(const struct bench_target *t, char *err, size_t errlen)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    int e = getaddrinfo(t->host, t->port, &hints, &found), fd = -EIO;
    if (e != 0) {
        snprintf(err, errlen, "%s: %s", t->url, gai_strerror(e));
        return -EIO;
    }
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
        fd = connect_one(a, t->timeout_s);
    freeaddrinfo(found);
    if (fd < 0)
        snprintf(err, errlen, "%s: cannot connect: %s", t->url, strerror(-fd));
    return fd;
}

int bench_call_open(struct event_base *base, const struct bench_target *target,
                    const struct bench_call_events *events, void *arg, struct bench_call **ret_call,
                    char *err, size_t errlen)
{
    const struct timeval wait = { .tv_sec = (time_t)target->timeout_s };
    struct bench_call *c;
    int fd = connect_to(target, err, errlen);
    if (fd < 0)
        return fd;
    c = calloc(1, sizeof *c);
    if (c)
        c->bev = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c || !c->bev) {
        snprintf(err, errlen, "out of memory");
        free(c);
        close(fd);
        return -ENOMEM;
    }
    c->target = target;
    c->events = events;
    c->arg = arg;
    c->lines.max = c->data.max = MAX_EVENT;
    bufferevent_setcb(c->bev, on_readable, NULL, on_happening, c);
    bufferevent_set_timeouts(c->bev, &wait, &wait);
    *ret_call = c;
    return 0;
}

int bench_call_send(struct bench_call *c, const char *body, size_t len)
{
    const struct bench_target *t = c->target;
    struct evbuffer *out = bufferevent_get_output(c->bev);
    bool six = strchr(t->host, ':') != NULL;
    int r = evbuffer_add_printf(out,
                                "POST %s/v1/completions HTTP/1.1\r\nHost: %s%s%s:%s\r\n"
                                "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
                                "Connection: close\r\nContent-Length: %zu\r\n",
                                t->path, six ? "[" : "", t->host, six ? "]" : "", t->port, len);
    if (r >= 0 && t->key)
        r = evbuffer_add_printf(out, "Authorization: Bearer %s\r\n", t->key);
    if (r >= 0)
        r = evbuffer_add(out, "\r\n", 2);
    if (r >= 0)
        r = evbuffer_add(out, body, len);
    if (r >= 0)
        r = bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    return r < 0 ? -ENOMEM : 0;
}

void bench_call_close(struct bench_call *c)
{
    if (!c)
        return;
    bufferevent_free(c->bev);
    buf_free(&c->in);
    buf_free(&c->lines);
    buf_free(&c->data);
    buf_free(&c->other);
    free(c);
}
