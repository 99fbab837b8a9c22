/* Conn: what evhttp does not do for its connections: counting and bounding them, time limits, noticing that a
 * client left, and answering in our words what evhttp refuses in HTML. Thread: the event thread alone. Must
 * not know: routes, handlers. Tests: tests/e2e/test_http_raw.py
 *
 * How we get at a connection. evhttp asks us for the bufferevent of each one it accepts; there we put
 * callbacks on its two buffers and activate `todo`, which runs before anything can arrive and finds evhttp's
 * connection as the bufferevent's callback argument. evhttp's close callback is the one end of a struct
 * http_conn.
 *
 * Reading. From the moment a request is handed to us until its answer is through, reading is off: evhttp ends
 * the process when a byte arrives before the answer begins, and gathers bytes without bound after.
 *
 * Departure. libevent reports a reset connection as readable and writable, never as closed, so an event that
 * asks for EV_CLOSED alone misses it and the loop spins. So departures have an epoll set of their own, itself
 * one descriptor of the loop: EPOLLRDHUP, with resets included, and blind to bytes that the client sends
 * ahead. */
#include "http/internal.h"
#include "util/clock.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    ACCEPT_BATCH = 64,       /* connections taken before others have their turn */
    BODY_BYTES_PER_S = 8192, /* a body slower than this, after the idle time, is given up */
    EVICT_AFTER_MS = 1000,   /* how long a connection must have been idle to give way to a new one */
    BODIES_AT_ONCE = 8,      /* so many bodies of the largest size may be on their way */
    MIN_BODY_BUDGET = 256 << 20,
    STOP_FLUSH_S = 5,
    WATCH_BATCH = 64,
};

static void later(struct http_conn *c, enum conn_todo what)
{
    c->todo_flags |= what;
    event_active(&c->todo, 0, 0);
}

static void set_phase(struct http_conn *c, enum conn_phase phase)
{
    c->phase = phase;
    c->since_ns = clock_now_ns();
}

/* The first reason counts: what evhttp makes of the same bytes comes after and says less. */
static void refuse(struct http_conn *c, int status)
{
    if (c->refuse_status)
        return;
    c->refuse_status = status;
    later(c, TODO_REFUSE);
}

/* Feeds bytes [from, end of input) to the scanner. */
static void scan_input(struct http_conn *c, struct evbuffer *input, size_t from)
{
    size_t len = evbuffer_get_length(input);
    struct evbuffer_ptr at;
    struct evbuffer_iovec v[8];

    from += http_scan_skip(&c->scan, len - from);
    while (from < len && !c->refuse_status) {
        int n;

        if (evbuffer_ptr_set(input, &at, from, EVBUFFER_PTR_SET) < 0)
            return;
        n = evbuffer_peek(input, -1, &at, v, 8);
        for (int i = 0; i < n && i < 8; i++) {
            int status = http_scan_feed(&c->scan, v[i].iov_base, v[i].iov_len, c->h->o.max_header_bytes,
                                        c->h->o.max_body_bytes);

            if (status) {
                refuse(c, status);
                return;
            }
            from += v[i].iov_len;
        }
        if (n <= 0)
            return;
    }
}

static uint64_t body_budget(const struct http *h)
{
    uint64_t budget = h->o.max_body_bytes * BODIES_AT_ONCE;

    return budget < MIN_BODY_BUDGET ? MIN_BODY_BUDGET : budget;
}

static void count_body(struct http_conn *c, size_t n)
{
    c->body_bytes += n;
    c->h->body_bytes += n;
    if (c->h->body_bytes > body_budget(c->h))
        refuse(c, 503);
}

static void forget_body(struct http_conn *c)
{
    c->h->body_bytes -= c->body_bytes;
    c->body_bytes = 0;
}

/* Bytes of a request came in; evhttp sees them right after. */
static void on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *arg)
{
    struct http_conn *c = arg;

    if (info->n_added == 0 || c->phase == CONN_BUSY || c->refuse_status)
        return;
    if (c->phase == CONN_IDLE)
        set_phase(c, CONN_HEADER);
    scan_input(c, input, evbuffer_get_length(input) - info->n_added);
    if (c->phase == CONN_HEADER && c->scan.state != SCAN_HEADER)
        set_phase(c, CONN_BODY);
    else if (c->phase == CONN_BODY)
        count_body(c, info->n_added);
}

/* Status of the page that evhttp wrote by itself, 0 for "100 Continue" and what is none. (evbuffer_copyout
 * would fail: the start of an output buffer is frozen.) */
static int page_status(struct evbuffer *output)
{
    struct evbuffer_iovec v[4];
    int n = evbuffer_peek(output, sizeof "HTTP/1.1 400", NULL, v, 4);
    char line[16];
    size_t len = 0;
    int status = 0;

    for (int i = 0; i < n && i < 4 && len < sizeof line - 1; i++) {
        size_t part = v[i].iov_len < sizeof line - 1 - len ? v[i].iov_len : sizeof line - 1 - len;

        memcpy(line + len, v[i].iov_base, part);
        len += part;
    }
    line[len] = '\0';
    if (sscanf(line, "HTTP/%*c.%*c %3d", &status) != 1 || status < 400)
        return 0;
    return status;
}

static void on_output(struct evbuffer *output, const struct evbuffer_cb_info *info, void *arg)
{
    struct http_conn *c = arg;
    struct http_request *r = c->request;

    if (!r) {
        int status = info->n_added ? page_status(output) : 0;

        if (status)
            refuse(c, status);
        return;
    }
    if (info->n_deleted || info->orig_size == 0)
        c->progress_ns = clock_now_ns();
    if (info->n_deleted && r->throttled && evbuffer_get_length(output) < c->h->o.max_unsent_bytes / 2)
        later(c, TODO_DRAIN);
}

static void link_conn(struct http *h, struct http_conn *c)
{
    c->next = h->conns;
    if (c->next)
        c->next->prev = c;
    h->conns = c;
    h->n_conns++;
}

static void free_conn(struct http_conn *c)
{
    struct http *h = c->h;

    event_del(&c->todo);
    forget_body(c);
    if (c->fd >= 0 && (size_t)c->fd < h->n_by_fd && h->by_fd[c->fd] == c)
        h->by_fd[c->fd] = NULL;
    if (c->prev)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    h->n_conns--;
    free(c);
    conns_resume(h);
}

/* Whether something lies in the socket that nobody will read any more. */
static bool unread(const struct http_conn *c)
{
    int n = 0;

    return c->fd >= 0 && ioctl(c->fd, FIONREAD, &n) == 0 && n > 0;
}

/* evhttp is about to free its connection, for whatever reason. */
static void on_close(struct evhttp_connection *ev, void *arg)
{
    struct http_conn *c = arg;
    struct http_request *r = c->request;

    (void)ev;
    conn_unwatch(c);
    if (!r && unread(c))
        linger(c);
    evbuffer_remove_cb(bufferevent_get_input(c->bev), on_input, c);
    evbuffer_remove_cb(bufferevent_get_output(c->bev), on_output, c);
    c->request = NULL;
    free_conn(c);
    if (r)
        request_left(r);
}

static void read_peer(struct http_conn *c)
{
    struct sockaddr_storage ss = { 0 };
    socklen_t len = sizeof ss;
    const void *address = NULL;

    c->is_unix = getsockname(c->fd, (struct sockaddr *)&ss, &len) == 0 && ss.ss_family == AF_UNIX;
    len = sizeof ss;
    if (c->is_unix) {
        struct ucred cred = { 0 };
        socklen_t cred_len = sizeof cred;

        getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_len);
        c->peer_len = sizeof cred.uid;
        memcpy(c->peer, &cred.uid, c->peer_len);
        return;
    }
    if (getpeername(c->fd, (struct sockaddr *)&ss, &len) < 0)
        return;
    if (ss.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)&ss;

        address = &in->sin_addr;
        c->peer_len = sizeof in->sin_addr;
        c->peer_loopback = ntohl(in->sin_addr.s_addr) >> 24 == 127;
    } else if (ss.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)&ss;

        address = &in6->sin6_addr;
        c->peer_len = sizeof in6->sin6_addr;
        c->peer_loopback = IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    }
    if (address)
        memcpy(c->peer, address, c->peer_len);
}

static int remember_fd(struct http *h, struct http_conn *c)
{
    if ((size_t)c->fd >= h->n_by_fd) {
        size_t n = (size_t)c->fd + 64;
        struct http_conn **by_fd = realloc(h->by_fd, n * sizeof(struct http_conn *));

        if (!by_fd)
            return -ENOMEM;
        memset(by_fd + h->n_by_fd, 0, (n - h->n_by_fd) * sizeof(struct http_conn *));
        h->by_fd = by_fd;
        h->n_by_fd = n;
    }
    h->by_fd[c->fd] = c;
    return 0;
}

/* False when the connection is gone. */
static bool set_up(struct http_conn *c)
{
    void *ev = NULL;
    bool ok;

    bufferevent_getcb(c->bev, NULL, NULL, NULL, &ev);
    bufferevent_decref(c->bev);
    if (!ev) { /* evhttp ran out of memory after it had asked us, and has freed everything */
        free_conn(c);
        return false;
    }
    c->ev = ev;
    c->fd = bufferevent_getfd(c->bev);
    evhttp_connection_set_closecb(c->ev, on_close, c);
    ok = c->fd >= 0 && remember_fd(c->h, c) == 0;
    if (!ok) {
        evhttp_connection_free(c->ev);
        return false;
    }
    read_peer(c);
    return true;
}

static void on_todo(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    unsigned flags = c->todo_flags;

    (void)fd, (void)what;
    c->todo_flags = 0;
    if (flags & TODO_SETUP && !set_up(c))
        return;
    if (flags & TODO_GONE ||
        (flags & TODO_CLOSE && (c->phase == CONN_IDLE || (c->h->stopping && !c->request)))) {
        evhttp_connection_free(c->ev);
        return;
    }
    if (flags & TODO_REFUSE &&
        !c->request) { /* with a request complete all the same, the router answers it */
        refuse_now(c, c->refuse_status);
        return;
    }
    if (flags & TODO_DRAIN && c->request)
        request_drained(c->request);
}

static void set_accepting(struct http *h, bool on)
{
    h->accepting = on;
    for (size_t i = 0; i < h->n_listeners; i++) {
        if (!h->listeners[i].bound)
            continue;
        if (on)
            evconnlistener_enable(h->listeners[i].ev);
        else
            evconnlistener_disable(h->listeners[i].ev);
    }
}

void conns_resume(struct http *h)
{
    if (h->listening && h->n_conns < h->o.max_connections && !event_pending(h->resume, EV_TIMEOUT, NULL))
        set_accepting(h, true);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    struct http *h = arg;

    (void)fd, (void)what;
    h->accepted_now = 0;
    conns_resume(h);
}

/* The connection that has been idle longest gives way to a new one. */
static bool evict_idle(struct http *h)
{
    uint64_t now = clock_now_ns();
    struct http_conn *oldest = NULL;

    for (struct http_conn *c = h->conns; c; c = c->next)
        if (c->ev && c->phase == CONN_IDLE && !(c->todo_flags & (TODO_CLOSE | TODO_REFUSE)) &&
            now - c->since_ns > EVICT_AFTER_MS * NS_PER_MS && (!oldest || c->since_ns < oldest->since_ns))
            oldest = c;
    if (oldest)
        later(oldest, TODO_CLOSE);
    return oldest != NULL;
}

static struct bufferevent *on_accept(struct event_base *base, void *arg)
{
    static const struct timeval now = { 0, 0 };
    struct http *h = arg;
    struct http_conn *c = calloc(1, sizeof *c);
    struct bufferevent *bev = bufferevent_socket_new(base, -1, 0);

    if (!c || !bev || event_assign(&c->todo, base, -1, 0, on_todo, c) < 0) {
        free(c);
        return bev; /* untracked: the router refuses its requests */
    }
    c->h = h;
    c->bev = bev;
    c->fd = -1;
    http_scan_reset(&c->scan);
    set_phase(c, CONN_IDLE);
    link_conn(h, c);
    evbuffer_add_cb(bufferevent_get_input(bev), on_input, c);
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, c);
    bufferevent_incref(bev);
    later(c, TODO_SETUP);
    if (h->n_conns >= h->o.max_connections && !evict_idle(h))
        set_accepting(h, false);
    if (++h->accepted_now >= ACCEPT_BATCH) {
        set_accepting(h, false);
        event_add(h->resume, &now);
    }
    return bev;
}

struct http_conn *conn_of(struct http *h, struct evhttp_request *ev)
{
    struct evhttp_connection *conn = evhttp_request_get_connection(ev);
    int fd = conn ? bufferevent_getfd(evhttp_connection_get_bufferevent(conn)) : -1;

    return fd >= 0 && (size_t)fd < h->n_by_fd ? h->by_fd[fd] : NULL;
}

void conn_exchange_begin(struct http_conn *c, struct http_request *r)
{
    forget_body(c);
    set_phase(c, CONN_BUSY);
    c->progress_ns = c->since_ns;
    c->request = r;
}

/* The answer is through. What the client sent ahead may be waiting already. */
void conn_exchange_over(struct http_conn *c)
{
    struct evbuffer *input = bufferevent_get_input(c->bev);

    conn_unwatch(c);
    c->request = NULL;
    http_scan_reset(&c->scan);
    set_phase(c, CONN_IDLE);
    if (c->h->stopping) {
        later(c, TODO_CLOSE);
        return;
    }
    if (evbuffer_get_length(input) == 0)
        return;
    set_phase(c, CONN_HEADER);
    scan_input(c, input, 0);
    if (c->scan.state != SCAN_HEADER)
        set_phase(c, CONN_BODY);
}

void conn_pause_reading(struct http_conn *c)
{
    bufferevent_disable(c->bev, EV_READ);
}

void conn_abandon(struct http_conn *c)
{
    later(c, TODO_GONE);
}

size_t conn_unsent(const struct http_conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

void conn_watch(struct http_conn *c)
{
    struct epoll_event e = { .events = EPOLLRDHUP | EPOLLONESHOT, .data.fd = c->fd };

    if (!c->watched && epoll_ctl(c->h->watch_fd, EPOLL_CTL_ADD, c->fd, &e) == 0)
        c->watched = true;
}

void conn_unwatch(struct http_conn *c)
{
    struct epoll_event e = { 0 };

    if (c->watched)
        epoll_ctl(c->h->watch_fd, EPOLL_CTL_DEL, c->fd, &e);
    c->watched = false;
}

static void on_departures(evutil_socket_t fd, short what, void *arg)
{
    struct http *h = arg;
    struct epoll_event e[WATCH_BATCH];
    int n = epoll_wait(fd, e, WATCH_BATCH, 0);

    (void)what;
    for (int i = 0; i < n; i++) {
        struct http_conn *c = (size_t)e[i].data.fd < h->n_by_fd ? h->by_fd[e[i].data.fd] : NULL;

        if (c && c->watched)
            later(c, TODO_GONE);
    }
}

static void tick_conn(struct http_conn *c, uint64_t now)
{
    const struct http_options *o = &c->h->o;
    uint64_t idle_ns = o->idle_timeout_s * NS_PER_S;
    uint64_t age = now - c->since_ns;

    switch (c->phase) {
    case CONN_IDLE:
        if (age > idle_ns)
            later(c, TODO_CLOSE);
        break;
    case CONN_HEADER:
        if (age > o->header_timeout_s * NS_PER_S)
            refuse(c, 408);
        break;
    case CONN_BODY:
        if (age > idle_ns + c->body_bytes / BODY_BYTES_PER_S * NS_PER_S)
            refuse(c, 408);
        break;
    case CONN_BUSY:
        /* A client that takes nothing of what lies ready for it has left in all but name. */
        if (conn_unsent(c) == 0)
            c->progress_ns = now;
        else if (now - c->progress_ns > (c->h->stopping ? STOP_FLUSH_S * NS_PER_S : idle_ns))
            later(c, TODO_GONE);
        break;
    }
}

void conns_tick(struct http *h)
{
    uint64_t now = clock_now_ns();

    /* Nothing is closed here, only marked: a close calls handlers, and those may end other connections. */
    for (struct http_conn *c = h->conns; c; c = c->next)
        if (c->ev)
            tick_conn(c, now);
    if (h->n_conns >= h->o.max_connections)
        evict_idle(h);
    else
        conns_resume(h); /* a listener may have stopped for want of descriptors */
}

void conns_close_idle(struct http *h)
{
    for (struct http_conn *c = h->conns; c; c = c->next)
        if (c->phase != CONN_BUSY)
            later(c, TODO_CLOSE);
}

int conns_new(struct http *h)
{
    h->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->watch_fd < 0)
        return -errno;
    h->watch = event_new(h->base, h->watch_fd, EV_READ | EV_PERSIST, on_departures, h);
    h->resume = event_new(h->base, -1, 0, on_resume, h);
    if (!h->watch || !h->resume || event_add(h->watch, NULL) < 0)
        return -ENOMEM;
    evhttp_set_bevcb(h->ev, on_accept, h);
    return 0;
}

/* After evhttp has freed its connections. */
void conns_free(struct http *h)
{
    lingers_free(h);
    if (h->watch)
        event_free(h->watch);
    if (h->resume)
        event_free(h->resume);
    if (h->watch_fd >= 0)
        close(h->watch_fd);
    free(h->by_fd);
}
