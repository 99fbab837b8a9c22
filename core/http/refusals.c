/* Refusals: a line in the log for each request that never got past this room, so that a wrong key can be
 * seen; so many a second and then a count, so that nobody fills the disk. Thread: the event thread alone.
 * Must not know: why a request was refused. Tests: tests/e2e/test_http_rules.py */
#include "http/internal.h"
#include "util/clock.h"
#include "util/log.h"

#include <arpa/inet.h>
#include <string.h>

enum { LINES_PER_S = 10 };

static const char *peer_text(const struct http_conn *c, char *text, size_t size)
{
    if (c->is_unix)
        return "unix";
    if (c->peer_len == 0 || !inet_ntop(c->peer_len == 4 ? AF_INET : AF_INET6, c->peer, text, (socklen_t)size))
        return "unknown";
    return text;
}

void refusals_tell(struct http *h, bool always)
{
    struct http_refusals *s = &h->refusals;

    if (!s->left_out || (!always && clock_now_ns() / NS_PER_S == s->second))
        return;
    log_write(LOG_INFO, "refused", "more=%u", s->left_out);
    s->left_out = 0;
}

void refusals_note(struct http *h, const struct http_conn *c, const char *id, const char *method,
                   const char *path, int status)
{
    struct http_refusals *s = &h->refusals;
    uint64_t second = clock_now_ns() / NS_PER_S;
    char quoted[128], peer[INET6_ADDRSTRLEN];

    if (second != s->second) {
        refusals_tell(h, true);
        s->second = second;
        s->logged = 0;
    }
    if (s->logged >= LINES_PER_S) {
        s->left_out++;
        return;
    }
    s->logged++;
    log_write(LOG_INFO, "refused", "id=%s status=%d method=%s path=%s from=%s", id, status, method,
              log_quote(quoted, sizeof quoted, path), peer_text(c, peer, sizeof peer));
}
