/* Route: from a request that evhttp has read to its handler, or to the error it deserves.
 * Order: framing, Host, Origin, preflight, path, method, key, content type; then the handler.
 * Thread: the event thread alone. Must not know: what handlers do. Tests: tests/e2e/test_http_raw.py */
#include "http/internal.h"
#include "util/jsonx.h"

#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

enum { MAX_PATHS = 256, MAX_METHODS = 8 };

/* How much of the path comes before the `*` of the route; 0 for one without. */
static size_t prefix_len(const struct http_route *route)
{
    size_t n = strlen(route->path);

    return n >= 2 && strcmp(route->path + n - 2, "/*") == 0 ? n - 1 : 0;
}

static bool fits(const struct http_route *route, const char *path)
{
    size_t n = prefix_len(route);

    return n ? strncmp(route->path, path, n) == 0 && path[n] : strcmp(route->path, path) == 0;
}

/* The methods of a path as an Allow header has them; empty when the path is unknown. */
static void allowed_methods(const struct http *h, const char *path, char *dst, size_t size)
{
    size_t n = 0;

    dst[0] = '\0';
    for (size_t i = 0; i < h->o.n_routes && n < size; i++) {
        const struct http_route *route = &h->o.routes[i];

        if (fits(route, path))
            n += (size_t)snprintf(dst + n, size - n, "%s%s%s", n ? ", " : "", route->method,
                                  strcmp(route->method, "GET") == 0 ? ", HEAD" : "");
    }
    if (n > 0 && n < size)
        snprintf(dst + n, size - n, ", OPTIONS");
}

static const struct http_route *find_route(const struct http *h, const struct http_request *r)
{
    const char *method = r->head ? "GET" : r->method;

    const struct http_route *found = NULL;

    /* The longest prefix, and an exact path before any. */
    for (size_t i = 0; i < h->o.n_routes; i++) {
        const struct http_route *route = &h->o.routes[i];

        if (!fits(route, r->path) || strcmp(route->method, method) != 0)
            continue;
        if (!prefix_len(route))
            return route;
        if (!found || prefix_len(route) > prefix_len(found))
            found = route;
    }
    return found;
}

static void answer_unknown_path(struct http_request *r)
{
    const struct http *h = r->h;
    const char *paths[MAX_PATHS];
    const char *nearest;
    char text[512];
    size_t n = 0;

    for (size_t i = 0; i < h->o.n_routes && n < MAX_PATHS; i++)
        if (!prefix_len(&h->o.routes[i]))
            paths[n++] = h->o.routes[i].path;
    nearest = jsonx_nearest(r->path, paths, n);
    snprintf(text, sizeof text, "%.200s: no such path%s%s%s", r->path, nearest ? "; did you mean " : "",
             nearest ? nearest : "", nearest ? "?" : "");
    http_reply_error(r, 404, NULL, text, NULL, NULL);
}

static void answer_wrong_method(struct http_request *r, const char *allow)
{
    char text[320];

    http_reply_header(r, "Allow", allow);
    snprintf(text, sizeof text, "%.100s takes %s, not %s", r->path, allow, r->method);
    http_reply_error(r, 405, NULL, text, NULL, NULL);
}

static void answer_denied(struct http_request *r, enum auth_result why)
{
    switch (why) {
    case AUTH_MISSING:
    case AUTH_WRONG:
        http_reply_header(r, "WWW-Authenticate", "Bearer realm=\"berth\"");
        /* Claude Code takes a 401 for a key that is being renewed, and asks for minutes unless told so. */
        http_reply_header(r, "X-Should-Retry", "false");
        http_reply_error(r, 401, NULL,
                         why == AUTH_MISSING
                             ? "this server wants an API key: Authorization: Bearer KEY, or x-api-key: KEY"
                             : "the API key is not one of this server's",
                         NULL, "invalid_api_key");
        break;
    case AUTH_NOT_ADMIN:
        http_reply_error(r, 403, NULL,
                         "this path wants an admin key, and the key that was sent is not one: its line in "
                         "server.keys_file does not end in :admin",
                         NULL, NULL);
        break;
    default:
        http_reply_error(
            r, 403, NULL,
            "without keys this path answers on loopback or the Unix socket only (server.keys_file)", NULL,
            NULL);
    }
}

static bool sane_list(const char *text)
{
    return text && strlen(text) < 1024 &&
           text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ")] == '\0';
}

static void answer_options(struct http_request *r, const char *origin)
{
    const char *wanted = http_header(r, "Access-Control-Request-Headers");
    char allow[128];

    allowed_methods(r->h, r->path, allow, sizeof allow);
    if (!allow[0]) {
        answer_unknown_path(r);
        return;
    }
    http_reply_header(r, "Allow", allow);
    if (origin && http_header(r, "Access-Control-Request-Method")) {
        http_reply_header(r, "Access-Control-Allow-Methods", allow);
        http_reply_header(r, "Access-Control-Allow-Headers",
                          sane_list(wanted) ? wanted
                                            : "Authorization, Content-Type, X-Api-Key, X-Request-Id");
        http_reply_header(r, "Access-Control-Max-Age", "600");
        if (http_header(r, "Access-Control-Request-Private-Network"))
            http_reply_header(r, "Access-Control-Allow-Private-Network", "true");
    }
    http_reply(r, 204, NULL, NULL, 0);
}

static bool json_or_nothing(const struct http_request *r)
{
    const char *type = http_header(r, "Content-Type");
    size_t n;

    if (!type || evbuffer_get_length(r->body) == 0)
        return true;
    n = strcspn(type, "; \t");
    return n == strlen("application/json") && strncasecmp(type, "application/json", n) == 0;
}

static void answer_wrong_type(struct http_request *r)
{
    char text[240];

    snprintf(
        text, sizeof text,
        "Content-Type: %.80s where application/json is wanted (curl: -H 'Content-Type: application/json')",
        http_header(r, "Content-Type"));
    http_reply_error(r, 415, NULL, text, NULL, NULL);
}

static unsigned count_headers(struct evhttp_request *ev, const char *name)
{
    const struct evkeyval *kv;
    unsigned n = 0;

    for (kv = TAILQ_FIRST(evhttp_request_get_input_headers(ev)); kv; kv = TAILQ_NEXT(kv, next))
        n += strcasecmp(kv->key, name) == 0;
    return n;
}

/* Requests of which two readers could see different ends (libevent itself refuses them only from late in
 * its 2.1.12 packages on). */
static bool framing_ok(struct http_request *r)
{
    unsigned lengths = count_headers(r->ev, "Content-Length");
    unsigned codings = count_headers(r->ev, "Transfer-Encoding");

    if (lengths + codings > 1 || r->ev->major != 1 || r->ev->minor < 0)
        return false;
    /* Of these methods evhttp reads no body, whatever was announced: what follows must not pass for a
     * request. */
    if (lengths + codings > 0 && strcmp(r->method, "GET") != 0 && strcmp(r->method, "POST") != 0)
        r->closing = true;
    return codings == 0 || strcasecmp(http_header(r, "Transfer-Encoding"), "chunked") == 0;
}

static void refuse(struct http_request *r, int status, const char *message)
{
    r->closing = true;
    http_reply_error(r, status, NULL, message, NULL, NULL);
}

static bool answer_before_route(struct http_request *r, const struct http_conn *c)
{
    bool foreign;
    const char *origin = auth_origin(r, &foreign);

    if (origin) {
        http_reply_header(r, "Access-Control-Allow-Origin", origin);
        http_reply_header(r, "Access-Control-Expose-Headers",
                          "X-Request-Id, X-Berth-Slot, X-Berth-Cached, Retry-After");
    }
    if (r->h->rules->n_origins) /* with another Origin, or none, the same answer has other headers */
        http_reply_header(r, "Vary", "Origin");
    if (c->refuse_status)
        refuse(r, c->refuse_status, "the request is beyond this server's limits");
    else if (!framing_ok(r))
        refuse(r, 400,
               "Content-Length, Transfer-Encoding or the HTTP version of this request are not understood");
    else if (count_headers(r->ev, "Host") > 1)
        refuse(r, 400, "Host: one is wanted, there are several");
    else if (r->h->stopping)
        refuse(r, 503, "the server is stopping");
    else if (!auth_host_ok(r))
        refuse(r, 403,
               "Host: this server answers to localhost, 127.0.0.1 or [::1], with any port; for other names "
               "set keys (server.keys_file)");
    else if (foreign)
        refuse(r, 403, "Origin: pages of other hosts are let in by server.cors_origins only");
    else if (strcmp(r->method, "OPTIONS") == 0)
        answer_options(r, origin);
    else
        return false;
    return true;
}

static void note_refusal(const struct http_request *r)
{
    if (r->conn && r->status >= 400 && r->status < 500)
        refusals_note(r->h, r->conn, r->id, r->method, r->path, r->status);
}

/* False when out of memory. */
static bool keep_rest(struct http_request *r, const struct http_route *route)
{
    size_t n = prefix_len(route), len;

    if (!n)
        return true;
    r->rest = evhttp_uridecode(r->path + n, 0, &len);
    if (r->rest && strlen(r->rest) != len)
        r->rest[0] =
            '\0'; /* a zero byte inside: no name has one, and its start must not pass for the whole */
    return r->rest != NULL;
}

static void call_handler(struct http_request *r, const struct http_route *route)
{
    request_pin(r);
    route->handler(r, route->arg);
    /* What comes later is told by whoever worked on it. */
    note_refusal(r);
    /* An answer given at once needs no watch; one that is to come does. */
    if (r->conn && !r->ended)
        conn_watch(r->conn);
    request_unpin(r);
}

void route_request(struct evhttp_request *ev, void *arg)
{
    struct http *h = arg;
    struct http_conn *c = conn_of(h, ev);
    struct http_request *r = c && !c->request ? request_new(c, ev) : NULL;
    const struct http_route *route;
    enum auth_result may;
    char allow[128];

    if (!r) {
        evhttp_send_error(ev, 503, NULL);
        return;
    }
    route = find_route(h, r);
    allowed_methods(h, r->path, allow, sizeof allow);
    r->access = route ? route->access : HTTP_OPEN;
    may = auth_check(r, r->access);
    r->client_key = auth_client_key(r);
    if (answer_before_route(r, c)) {
        note_refusal(r);
        http_done(r);
        return;
    }
    if (!allow[0])
        answer_unknown_path(r);
    else if (!route)
        answer_wrong_method(r, allow);
    else if (may != AUTH_OK)
        answer_denied(r, may);
    else if (strcmp(r->method, "POST") == 0 && !json_or_nothing(r))
        answer_wrong_type(r);
    else if (!keep_rest(r, route))
        http_reply_error(r, 503, NULL, "out of memory", NULL, NULL);
    else {
        call_handler(r, route);
        return;
    }
    note_refusal(r);
    http_done(r);
}
