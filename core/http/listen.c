/* Listen: addresses and the sockets bound to them.
 * Thread: the event thread alone. Must not know: requests. Tests: tests/e2e/test_http_raw.py */
#include "http/internal.h"

#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static const char *advice(int error)
{
    switch (error) {
    case EADDRINUSE:
        return "address in use; choose another with --set server.listen=ADDRESS:PORT, or stop the program "
               "that has it";
    case EACCES:
    case EPERM:
        return "no permission to listen there; take a port above 1023 (or a folder you may write to) with "
               "--set "
               "server.listen=...";
    case EADDRNOTAVAIL:
        return "no interface of this machine has that address; try 127.0.0.1 with --set server.listen=...";
    case ENOENT:
    case ENOTDIR:
        return "the folder of the socket does not exist";
    default:
        return strerror(error);
    }
}

static int fail(char *err, size_t errlen, const char *text, int error)
{
    snprintf(err, errlen, "%s: %s", text, advice(error));
    return -error;
}

static int bad_address(char *err, size_t errlen, const char *text)
{
    snprintf(err, errlen,
             "%s: not an address; wanted 127.0.0.1:8080, [::1]:8080 or unix:/path (server.listen)", text);
    return -EINVAL;
}

/* Small answers leave at once, and clients whose machine vanished are found out in about two minutes. On
 * Linux accepted sockets have these from the listening one. */
static void set_options(int fd, int family)
{
    int on = 1, idle = 60, interval = 15, count = 4;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (family == AF_INET6) /* so that [::] and 0.0.0.0 can both be listed */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
}

static bool loopback(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)sa)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr);
}

/* Splits "host:port" or "[host]:port". */
static bool split(const char *text, char *host, size_t size, char port[8])
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;

    if (n == 0 || n >= size || digits == 0 || digits > 5 || colon[1 + digits] != '\0' ||
        atoi(colon + 1) > 65535)
        return false;
    memcpy(port, colon + 1, digits + 1);
    if (text[0] == '[') {
        if (text[n - 1] != ']' || n < 3)
            return false;
        text++;
        n -= 2;
    } else if (memchr(text, ':', n)) {
        return false;
    }
    memcpy(host, text, n);
    host[n] = '\0';
    return true;
}

static void name_bound(struct http_listener *l, int fd)
{
    struct sockaddr_storage ss = { 0 };
    socklen_t len = sizeof ss;
    char host[64] = "?", port[8] = "?";

    if (getsockname(fd, (struct sockaddr *)&ss, &len) == 0)
        getnameinfo((struct sockaddr *)&ss, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(l->text, sizeof l->text, ss.ss_family == AF_INET6 ? "http://[%s]:%s" : "http://%s:%s", host,
             port);
}

/* The address of "host:port", allowed to be bound under these options. freeaddrinfo is the caller's. */
static int resolve(const struct http_options *o, const char *text, struct addrinfo **ret_ai, bool *ret_wide,
                   char *err, size_t errlen)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *ai = NULL;
    char host[256], port[8];
    int r;

    if (!split(text, host, sizeof host, port))
        return bad_address(err, errlen, text);
    r = getaddrinfo(host, port, &hints, &ai);
    if (r != 0) {
        snprintf(err, errlen, "%s: %s", text, gai_strerror(r));
        return -EINVAL;
    }
    *ret_wide = !loopback(ai->ai_addr);
    if (*ret_wide && o->n_keys == 0 && !o->open) {
        snprintf(err, errlen,
                 "%s: reachable from other machines, and no keys are set; name a key file "
                 "(server.keys_file), listen on "
                 "127.0.0.1, or say \"open\": true (server.open)",
                 text);
        freeaddrinfo(ai);
        return -EACCES;
    }
    *ret_ai = ai;
    return 0;
}

/* A socket bound to the address, which does not listen yet. */
static int bind_tcp(const struct addrinfo *ai, const char *text, int *ret_fd, char *err, size_t errlen)
{
    int r, fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0)
        set_options(fd, ai->ai_family);
    if (fd < 0 || bind(fd, ai->ai_addr, ai->ai_addrlen) < 0) {
        r = fail(err, errlen, text, errno);
        if (fd >= 0)
            close(fd);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

static int open_tcp(const struct http *h, struct http_listener *l, const char *text, int *ret_fd, char *err,
                    size_t errlen)
{
    struct addrinfo *ai;
    int fd, r = resolve(&h->o, text, &ai, &l->wide, err, errlen);

    if (r < 0)
        return r;
    r = bind_tcp(ai, text, &fd, err, errlen);
    freeaddrinfo(ai);
    if (r < 0)
        return r;
    if (listen(fd, BACKLOG) < 0) {
        r = fail(err, errlen, text, errno);
        close(fd);
        return r;
    }
    name_bound(l, fd);
    *ret_fd = fd;
    return 0;
}

/* Whether the path can be had: 0 when nothing is there, 1 when a socket file is that nobody listens on (left
 * by a process that ended badly). Anything else is an error. */
static int find_stale(const struct sockaddr_un *un, char *err, size_t errlen, const char *text)
{
    struct stat st;
    int fd, r;

    if (lstat(un->sun_path, &st) < 0)
        return 0;
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(err, errlen, "%s: a file that is no socket has that name", text);
        return -EEXIST;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(err, errlen, text, errno);
    r = connect(fd, (const struct sockaddr *)un, sizeof *un) < 0 ? errno : 0;
    close(fd);
    if (r != ECONNREFUSED)
        return fail(err, errlen, text, r == 0 || r == EAGAIN ? EADDRINUSE : r);
    return 1;
}

static int unix_address(const char *text, struct sockaddr_un *un, char *err, size_t errlen)
{
    const char *path = text + strlen("unix:");

    if (path[0] == '\0')
        return bad_address(err, errlen, text);
    if (strlen(path) >= sizeof un->sun_path) {
        snprintf(err, errlen, "%s: a socket's path has at most %zu characters", text,
                 sizeof un->sun_path - 1);
        return -ENAMETOOLONG;
    }
    *un = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(un->sun_path, path, strlen(path) + 1);
    return 0;
}

static int open_unix(struct http_listener *l, const char *text, int *ret_fd, char *err, size_t errlen)
{
    struct sockaddr_un un;
    const char *path = un.sun_path;
    struct stat st;
    int fd, r = unix_address(text, &un, err, errlen);

    if (r == 0)
        r = find_stale(&un, err, errlen, text);
    if (r < 0)
        return r;
    if (r > 0 && unlink(path) < 0 && errno != ENOENT)
        return fail(err, errlen, text, errno);
    l->unix_path = strdup(path);
    fd = l->unix_path ? socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0 || bind(fd, (struct sockaddr *)&un, sizeof un) < 0 || listen(fd, BACKLOG) < 0) {
        r = fail(err, errlen, text, errno);
        if (fd >= 0)
            close(fd);
        return r;
    }
    if (lstat(path, &st) == 0) {
        l->dev = st.st_dev;
        l->ino = st.st_ino;
    }
    snprintf(l->text, sizeof l->text, "%s", text);
    *ret_fd = fd;
    return 0;
}

/* ---- checking beforehand ---- */

static int check_unix(const char *text, bool try_bind, char *err, size_t errlen)
{
    struct sockaddr_un un;
    int r = unix_address(text, &un, err, errlen);

    if (r < 0 || !try_bind)
        return r;
    r = find_stale(&un, err, errlen, text);
    if (r < 0)
        return r;
    /* Binding would leave a file; that its folder may be written is all it needs. */
    char *slash = strrchr(un.sun_path, '/');
    if (slash)
        slash[slash == un.sun_path] = '\0';
    if (access(slash ? un.sun_path : ".", W_OK | X_OK) < 0)
        return fail(err, errlen, text, errno);
    return 0;
}

static int check_tcp(const struct http_options *o, const char *text, bool try_bind, char *err, size_t errlen)
{
    struct addrinfo *ai;
    bool wide;
    int fd = -1, r = resolve(o, text, &ai, &wide, err, errlen);

    if (r < 0)
        return r;
    if (try_bind)
        r = bind_tcp(ai, text, &fd, err, errlen);
    if (fd >= 0)
        close(fd);
    freeaddrinfo(ai);
    return r;
}

static int no_address(char *err, size_t errlen)
{
    snprintf(err, errlen, "server.listen: no address to listen on; 127.0.0.1:8080 is the default");
    return -EINVAL;
}

static bool kernel_chooses(const char *text)
{
    size_t n = strlen(text);

    return strncmp(text, "unix:", 5) != 0 && n >= 2 && strcmp(text + n - 2, ":0") == 0;
}

int http_check_listen(const struct http_options *o, bool try_bind, char *err, size_t errlen)
{
    if (o->n_listen == 0)
        return no_address(err, errlen);
    for (size_t i = 0; i < o->n_listen; i++) {
        const char *text = o->listen[i];
        int r = strncmp(text, "unix:", 5) == 0 ? check_unix(text, try_bind, err, errlen)
                                               : check_tcp(o, text, try_bind, err, errlen);

        if (r < 0)
            return r;
        for (size_t j = 0; j < i; j++) {
            if (strcmp(text, o->listen[j]) == 0 && !kernel_chooses(text)) {
                snprintf(err, errlen, "%s: listed twice (server.listen)", text);
                return -EINVAL;
            }
        }
    }
    return 0;
}

/* ---- listening ---- */

/* Out of descriptors, most likely. The listener stays readable, so without a pause the loop would spin; the
 * next tick enables it again. (`arg` is evhttp's.) */
static void on_accept_error(struct evconnlistener *ev, void *arg)
{
    (void)arg;
    evconnlistener_disable(ev);
}

static int listen_one(struct http *h, struct http_listener *l, const char *text, char *err, size_t errlen)
{
    int fd = -1;
    int r = strncmp(text, "unix:", 5) == 0 ? open_unix(l, text, &fd, err, errlen)
                                           : open_tcp(h, l, text, &fd, err, errlen);

    if (r < 0)
        return r;
    l->ev = evconnlistener_new(h->base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!l->ev) {
        close(fd);
        snprintf(err, errlen, "%s: out of memory", text);
        return -ENOMEM;
    }
    l->bound = evhttp_bind_listener(h->ev, l->ev);
    if (!l->bound) {
        evconnlistener_free(l->ev);
        snprintf(err, errlen, "%s: out of memory", text);
        return -ENOMEM;
    }
    evconnlistener_set_error_cb(l->ev, on_accept_error);
    h->wide = h->wide || l->wide;
    return 0;
}

int listen_all(struct http *h, char *err, size_t errlen)
{
    h->listeners = calloc(h->o.n_listen, sizeof *h->listeners);
    if (h->o.n_listen == 0)
        return no_address(err, errlen);
    if (!h->listeners) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    h->accepting = h->listening = true;
    for (size_t i = 0; i < h->o.n_listen; i++) {
        int r;

        h->n_listeners = i + 1;
        r = listen_one(h, &h->listeners[i], h->o.listen[i], err, errlen);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The socket file is removed only while it is the one that was made here. */
static void remove_file(struct http_listener *l)
{
    struct stat st;

    if (l->ino && lstat(l->unix_path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        unlink(l->unix_path);
    l->ino = 0;
}

void listen_close(struct http *h)
{
    h->listening = h->accepting = false;
    for (size_t i = 0; i < h->n_listeners; i++) {
        struct http_listener *l = &h->listeners[i];

        if (l->bound)
            evhttp_del_accept_socket(h->ev, l->bound);
        l->bound = NULL;
        remove_file(l);
    }
}

void listen_free(struct http *h)
{
    for (size_t i = 0; i < h->n_listeners; i++)
        free(h->listeners[i].unix_path);
    free(h->listeners);
}
