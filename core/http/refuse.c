/* Refuse: errors for connections whose request never reached the router: too long, too slow, or not HTTP.
 * evhttp would answer some of them in HTML, and would close with bytes unread, which can destroy the answer
 * on its way. Thread: the event thread alone. Must not know: routes. Tests: tests/e2e/test_http_raw.py */
#include "http/internal.h"
#include "util/buf.h"
#include "util/clock.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINGER_S = 5 };

static void linger_free(struct http_linger *l)
{
    struct http *h = l->h;

    event_del(&l->ev);
    close(l->fd);
    if (l->prev)
        l->prev->next = l->next;
    else
        h->lingers = l->next;
    if (l->next)
        l->next->prev = l->prev;
    h->n_conns--;
    free(l);
    conns_resume(h);
}

static void on_linger(evutil_socket_t fd, short what, void *arg)
{
    struct http_linger *l = arg;
    char waste[16384];
    ssize_t n = what & EV_READ ? recv(fd, waste, sizeof waste, MSG_DONTWAIT) : 0;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || (uint64_t)n > l->left || clock_now_ns() > l->until_ns) {
        linger_free(l);
        return;
    }
    l->left -= (uint64_t)n;
}

/* A socket closed with bytes unread sends a reset, which can destroy the answer before the client reads it.
 * So the descriptor is doubled, and after evhttp closed its own the rest of what the client sends is thrown
 * away. The events on evhttp's must be gone by then: an epoll set forgets a closed descriptor only when it
 * was the last of its file. */
void linger(struct http_conn *c)
{
    struct timeval limit = { LINGER_S, 0 };
    struct http *h = c->h;
    struct http_linger *l = calloc(1, sizeof *l);

    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    if (!l)
        return;
    l->h = h;
    l->fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    l->until_ns = clock_now_ns() + LINGER_S * NS_PER_S;
    l->left = h->o.max_body_bytes + h->o.max_header_bytes;
    if (l->fd < 0 || event_assign(&l->ev, h->base, l->fd, EV_READ | EV_PERSIST, on_linger, l) < 0 ||
        event_add(&l->ev, &limit) < 0) {
        if (l->fd >= 0)
            close(l->fd);
        free(l);
        return;
    }
    l->next = h->lingers;
    if (l->next)
        l->next->prev = l;
    h->lingers = l;
    h->n_conns++;
}

static const char *refusal_text(const struct http *h, int status, char *text, size_t size)
{
    switch (status) {
    case 408:
        snprintf(text, size, "the request did not arrive in time (its header must within %u s)",
                 h->o.header_timeout_s);
        return text;
    case 413:
        snprintf(text, size, "the body is longer than %llu bytes (server.max_body_bytes)",
                 (unsigned long long)h->o.max_body_bytes);
        return text;
    case 431:
        snprintf(text, size, "the header is longer than %u bytes (server.max_header_bytes)",
                 h->o.max_header_bytes);
        return text;
    case 417:
        return "Expect: only 100-continue is understood";
    case 503:
        return "too many large request bodies are on their way; try again";
    default:
        return "this is not a request in HTTP/1.1";
    }
}

void refuse_now(struct http_conn *c, int status)
{
    struct buf body = { 0 };
    struct buf head = { 0 };
    char id[HTTP_ID_MAX + 1], text[160];

    request_make_id(c->h, id, sizeof id);
    refusals_note(c->h, c, id, "-", "-", status);
    error_body(&body, false, status, NULL, refusal_text(c->h, status, text, sizeof text), NULL, NULL, id);
    buf_printf(&head,
               "HTTP/1.1 %d %s\r\nContent-Type: " HTTP_JSON "\r\nContent-Length: %zu\r\nConnection: close\r\n"
               "X-Request-Id: %s\r\n%s\r\n",
               status, status_phrase(status), body.len, id, status == 503 ? "Retry-After: 1\r\n" : "");
    buf_append(&head, body.data, body.len);
    if (!head.failed && !body.failed && send(c->fd, head.data, head.len, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        linger(c);
    buf_free(&body);
    buf_free(&head);
    evhttp_connection_free(c->ev);
}

void lingers_free(struct http *h)
{
    while (h->lingers)
        linger_free(h->lingers);
}
