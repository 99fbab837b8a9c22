/* Auth: who may ask what: keys, the Host header against DNS rebinding, the Origin header against other
 * people's pages. Thread: the event thread alone. Must not know: how errors are worded or sent. Tests:
 * tests/e2e/test_http_raw.py */
#include "http/internal.h"
#include "util/buf.h"
#include "util/digest.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *presented_key(const struct http_request *r)
{
    const char *value = http_header(r, "Authorization");

    if (value && strncasecmp(value, "Bearer ", 7) == 0)
        return value + 7 + strspn(value + 7, " ");
    return http_header(r, "x-api-key");
}

/* Every entry is compared, whatever the outcome, and each comparison takes the same time. */
static const struct http_key *find_key(const struct http *h, const char *key)
{
    const struct http_key *found = NULL;
    uint8_t digest[DIGEST_LEN];

    digest_sha256(key, strlen(key), digest);
    for (size_t i = 0; i < h->rules->n_keys; i++) {
        bool equal = digest_equal(digest, h->rules->keys[i].sha256);

        found = equal ? &h->rules->keys[i] : found;
    }
    return found;
}

enum auth_result auth_check(struct http_request *r, enum http_access access)
{
    const struct http *h = r->h;
    const char *text;
    const struct http_key *key = NULL;

    if (h->rules->n_keys == 0) {
        if (access == HTTP_ADMIN && !r->conn->is_unix && !r->conn->peer_loopback)
            return AUTH_NOT_LOCAL;
        return AUTH_OK;
    }
    text = presented_key(r);
    if (text)
        key = find_key(h, text);
    if (key)
        memcpy(r->key_name, key->name, sizeof r->key_name);
    if (access == HTTP_OPEN || (access == HTTP_WATCH && h->rules->metrics_open))
        return AUTH_OK;
    if (!key)
        return text ? AUTH_WRONG : AUTH_MISSING;
    if (access != HTTP_KEY && !key->admin)
        return AUTH_NOT_ADMIN;
    return AUTH_OK;
}

/* "name:port", "[address]:port", "name": copies the name; *ret_port is 0 when there is none, -1 when it is no
 * port. */
static void split_host(const char *host, char *name, size_t size, int *ret_port)
{
    const char *end = host + strcspn(host, ":");
    size_t n;

    if (host[0] == '[') {
        end = strchr(host, ']');
        end = end ? end + 1 : host + strlen(host);
    }
    n = (size_t)(end - host);
    if (n >= size)
        n = size - 1;
    memcpy(name, host, n);
    name[n] = '\0';
    *ret_port = 0;
    if (*end == ':') {
        char *stop;
        long port = strtol(end + 1, &stop, 10);

        *ret_port =
            end[1] >= '0' && end[1] <= '9' && *stop == '\0' && port > 0 && port < 65536 ? (int)port : -1;
    } else if (*end != '\0') {
        *ret_port = -1;
    }
}

static bool loopback_name(const char *name)
{
    struct in_addr in;

    if (strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0)
        return true;
    return inet_pton(AF_INET, name, &in) == 1 && ntohl(in.s_addr) >> 24 == 127;
}

/* A page of evil.example whose name was made to mean 127.0.0.1 sends its own name as Host. Where nothing but
 * the address guards the server, only names of this machine are answered. */
bool auth_host_ok(const struct http_request *r)
{
    const char *host = http_header(r, "Host");
    char name[256];
    int port;

    if (r->h->rules->n_keys > 0 || r->h->wide || r->conn->is_unix || !host)
        return true;
    split_host(host, name, sizeof name, &port);
    return loopback_name(name) && port >= 0; /* any port: a forwarded one (ssh -L) is another */
}

static bool same_host(const char *origin, const char *host)
{
    const char *at = strstr(origin, "://");
    char a[256], b[256];
    int port_a, port_b, usual = strncasecmp(origin, "https:", 6) == 0 ? 443 : 80;

    if (!at || !host || (strncasecmp(origin, "http:", 5) != 0 && strncasecmp(origin, "https:", 6) != 0))
        return false;
    split_host(at + 3, a, sizeof a, &port_a);
    split_host(host, b, sizeof b, &port_b);
    return strcasecmp(a, b) == 0 && port_a >= 0 && (port_a ? port_a : usual) == (port_b ? port_b : usual);
}

const char *auth_origin(const struct http_request *r, bool *ret_refuse)
{
    const struct http_rules *rules = r->h->rules;
    const char *origin = http_header(r, "Origin");

    *ret_refuse = false;
    if (!origin)
        return NULL;
    for (size_t i = 0; i < rules->n_origins; i++)
        if (strcmp(rules->origins[i], "*") == 0 || strcasecmp(rules->origins[i], origin) == 0)
            return origin;
    *ret_refuse = !same_host(origin, http_header(r, "Host"));
    return NULL;
}

bool http_still_allowed(struct http_request *r)
{
    bool foreign;

    if (!r->conn) /* whoever it was has left */
        return false;
    auth_origin(r, &foreign);
    return !foreign && auth_host_ok(r) && auth_check(r, r->access) == AUTH_OK;
}

uint64_t auth_client_key(const struct http_request *r)
{
    const struct http_conn *c = r->conn;
    struct buf b = { 0 };
    uint8_t digest[DIGEST_LEN] = { 0 };
    uint64_t key;

    buf_append(&b, r->h->salt, sizeof r->h->salt);
    buf_putc(&b, c->is_unix ? 'u' : 't');
    buf_append(&b, c->peer, c->peer_len);
    buf_putc(&b, '\0');
    buf_puts(&b, r->key_name);
    if (!b.failed)
        digest_sha256(b.data, b.len, digest);
    buf_free(&b);
    memcpy(&key, digest, sizeof key);
    key >>= 1; /* 63 bits: every reader of JSON has a number for them */
    return key ? key : 1;
}
