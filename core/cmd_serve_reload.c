/* Cmd serve reload: see cmd_serve_reload.h. A reload is prepared whole (prepare), which may fail and is then
 * only thrown away; putting it in force (put_in_force) comes last. */
#include "cmd_serve_reload.h"
#include "cmd_serve.h"
#include "cmd_serve_load.h"
#include "cmd_serve_notify.h"
#include "cmd_serve_policy.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/utf8.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define RETRY_MS 10  /* until the event thread has room for a message */
#define STOP_MS 5000 /* for what is under way when the server ends */

/* For the event thread: settings to put in force, or how a reload ended. */
struct message {
    struct reload *reload;
    bool seen;                   /* lock */
    const struct config *config; /* NULL: it ended */
    struct http_rules *rules;
    uint64_t ticket;
    struct reload_outcome outcome;
};

struct reload {
    struct reload_options o;
    struct reload_hooks hooks;
    struct http *http;
    const struct config *config; /* in force; the loader's once it runs */
    struct config *own_config;   /* the same when it is not the one at start */
    bool tracing;
    int stop_fd; /* readable once the server ends, for what is waited for outside of `lock` */
    struct policy_graveyard *graveyard;
    struct policy_seat *seat;
    struct policy_listeners *listeners;
    struct policy_shadows *shadows;
    struct policy_trace *trace;
    struct message put, done; /* here, since the event thread may come to them after the loader has ended */
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* of what follows; never held while anything else is called */
    pthread_cond_t wake;  /* both on the monotonic clock */
    pthread_cond_t end;
    bool stopping, ended, bury;
    uint64_t asked, served; /* tickets */
    struct reload_status status;
};

/* What a reload brings. */
struct change {
    struct config *config;
    struct serve_policies policies;
    struct http_rules *rules;
    int trace_fd; /* -1: none */
};

/* ---- asking ---- */

uint64_t reload_ask(struct reload *r)
{
    pthread_mutex_lock(&r->lock);
    uint64_t ticket = ++r->asked;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    return ticket;
}

static void on_dead(void *arg)
{
    struct reload *r = arg;
    pthread_mutex_lock(&r->lock);
    r->bury = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

/* [the trace's thread] */
static void on_trace_failure(void *arg, int error)
{
    (void)arg;
    log_write(LOG_WARN, "trace",
              "state=failing reason=\"%s\" lines=\"those that cannot be written are counted\"",
              strerror(error));
}

struct reload_status reload_status_get(struct reload *r)
{
    pthread_mutex_lock(&r->lock);
    struct reload_status status = r->status;
    pthread_mutex_unlock(&r->lock);
    return status;
}

struct policy_trace_status reload_trace_status(struct reload *r)
{
    return policy_trace_status(r->trace);
}

size_t reload_shadow_status(struct reload *r, struct policy_shadow_status ret[POLICY_SHADOWS_MAX])
{
    return policy_shadows_status(r->shadows, ret);
}

struct policy_seat *reload_seat(struct reload *r)
{
    return r->seat;
}

struct policy_listeners *reload_listeners(struct reload *r)
{
    return r->listeners;
}

/* ---- the event thread ---- */

static struct timespec after_ms(uint64_t ms)
{
    uint64_t at = clock_now_ns() + ms * NS_PER_MS;
    return (struct timespec){ (time_t)(at / NS_PER_S), (long)(at % NS_PER_S) };
}

static void on_message(void *arg)
{
    struct message *m = arg;
    struct reload *r = m->reload;
    pthread_mutex_lock(&r->lock);
    bool late = r->stopping; /* who would be told is gone */
    pthread_mutex_unlock(&r->lock);
    if (late)
        return;
    if (m->config)
        r->hooks.put(r->hooks.arg, m->config, &m->rules);
    else
        r->hooks.done(r->hooks.arg, m->ticket, &m->outcome);
    pthread_mutex_lock(&r->lock);
    m->seen = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

/* Hands a message over and waits until it was seen, or the server stops. */
static void tell_event_thread(struct reload *r, struct message *m)
{
    bool posted = false;
    m->reload = r;
    pthread_mutex_lock(&r->lock);
    m->seen = false;
    while (!m->seen && !r->stopping) {
        if (posted) {
            pthread_cond_wait(&r->wake, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        posted = http_post(r->http, on_message, m) == 0;
        pthread_mutex_lock(&r->lock);
        struct timespec until = after_ms(RETRY_MS);
        if (!posted && !r->stopping)
            pthread_cond_timedwait(&r->wake, &r->lock, &until);
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- preparing ---- */

static void add_restart(void *arg, const char *key)
{
    struct reload_outcome *o = arg;
    size_t n = strlen(o->restart);
    snprintf(o->restart + n, sizeof o->restart - n, "%s%s", n ? "," : "", key);
}

static void change_clear(struct change *c)
{
    config_free(c->config);
    serve_policies_clear(&c->policies);
    http_rules_free(c->rules);
    if (c->trace_fd > STDERR_FILENO)
        close(c->trace_fd);
}

static int open_trace(const char *path, int *ret_fd, char *err, size_t errlen)
{
    char why[512] = "";
    int n = policy_trace_open(path, ret_fd, why, sizeof why);
    if (n < 0)
        snprintf(err, errlen, "trace.path: %s", *why ? why : strerror(-n));
    return n;
}

/* All that can fail, and nothing that shows. */
static int prepare(const struct reload *r, struct change *c, struct reload_outcome *o)
{
    struct http_key *keys = NULL;
    size_t n_keys = 0;
    int n = config_load(r->o.path, r->o.sets, r->o.n_sets, &c->config, o->error, sizeof o->error);
    if (n == 0)
        n = config_keep_fixed(c->config, r->config, add_restart, o);
    if (n == 0)
        n = check_keys(c->config, false, &keys, &n_keys, o->error, sizeof o->error);
    if (n == 0) {
        struct http_options h = serve_http_options(c->config, keys, n_keys);
        n = http_rules_new(&h, &c->rules);
    }
    if (n == 0)
        n = serve_policies_load(c->config, false, r->stop_fd, r->graveyard, &c->policies, o->error,
                                sizeof o->error);
    if (n == 0 && c->policies.trace)
        n = open_trace(c->policies.trace_path, &c->trace_fd, o->error, sizeof o->error);
    free(keys);
    return n;
}

/* ---- in force ---- */

/* Shadows and the trace begin threads, which can fail: so they come first, and a trace that was begun is
 * taken back when the shadows cannot be. */
static int exchange_listeners(struct reload *r, struct change *c, char *err, size_t errlen)
{
    int fd = c->trace_fd;
    c->trace_fd = -1;
    int n = policy_trace_use(r->trace, fd);
    if (n < 0) {
        snprintf(err, errlen, "trace: %s", strerror(-n));
        return n;
    }
    n = policy_shadows_replace(r->shadows, c->policies.shadow, c->policies.n_shadows, err, errlen);
    if (n < 0) {
        char ignored[512];
        fd = -1;
        if (r->tracing)
            (void)open_trace(r->config->trace.path, &fd, ignored, sizeof ignored);
        (void)policy_trace_use(r->trace, fd);
        return n;
    }
    if (n > 0)
        log_write(
            LOG_WARN, "policy",
            "state=left_behind shadows=%d reason=\"they do not return from a call, and compute until the "
            "server ends\"",
            n);
    return 0;
}

static void put_in_force(struct reload *r, struct change *c)
{
    enum log_level level;
    if (log_level_parse(c->config->log.level, &level) == 0)
        log_level_set(level);
    policy_seat_publish(r->seat, c->policies.policy);
    r->put.config = c->config;
    r->put.rules = c->rules;
    tell_event_thread(r, &r->put);
    c->rules = r->put.rules; /* which are the old ones now */
    r->put.rules = NULL;

    struct config *old = r->own_config;
    r->config = r->own_config = c->config;
    c->config = old;
    r->tracing = c->policies.trace;
}

static void note_policy(struct reload *r, struct reload_outcome *o)
{
    struct policy_loaded *p = policy_seat_take(r->seat, &o->generation);
    snprintf(o->policy, sizeof o->policy, "%s", policy_loaded_name(p));
    snprintf(o->digest, sizeof o->digest, "%s", policy_loaded_digest(p));
    policy_loaded_unref(p);
}

static void log_notes(const struct serve_policies *p)
{
    char quoted[2100];
    if (*p->fallback)
        log_write(LOG_WARN, "policy", "state=fallback reason=%s using=%s",
                  log_quote(quoted, sizeof quoted, p->fallback), policy_loaded_name(p->policy));
    if (*p->unused)
        log_write(LOG_WARN, "policy", "state=unused names=%s reason=\"set, but no setting of this policy\"",
                  log_quote(quoted, sizeof quoted, p->unused));
}

static void log_outcome(const struct reload_outcome *o)
{
    char quoted[2100];
    if (o->ok)
        log_write(LOG_INFO, "reload", "state=done policy=%s/%" PRIu64 " digest=%.16s seconds=%.3f", o->policy,
                  o->generation, o->digest, o->seconds);
    else
        log_write(LOG_ERROR, "reload", "state=failed reason=%s kept=%s/%" PRIu64,
                  log_quote(quoted, sizeof quoted, o->error), o->policy, o->generation);
    if (o->ok && *o->restart)
        log_write(LOG_WARN, "reload", "state=waiting keys=%s reason=\"these change with a restart only\"",
                  o->restart);
}

static void count(struct reload *r, const struct reload_outcome *o)
{
    pthread_mutex_lock(&r->lock);
    r->status.reloads++;
    r->status.failures += !o->ok;
    if (!o->ok)
        snprintf(r->status.last_error, sizeof r->status.last_error, "%s", o->error);
    pthread_mutex_unlock(&r->lock);
}

static void run_once(struct reload *r, uint64_t ticket)
{
    struct change c = { .trace_fd = -1 };
    struct reload_outcome *o = &r->done.outcome;
    uint64_t begin_ns = clock_now_ns();
    *o = (struct reload_outcome){ 0 };
    serve_notify("RELOADING=1\nMONOTONIC_USEC=%" PRIu64 "\nSTATUS=Reloading", begin_ns / 1000);
    log_write(LOG_INFO, "reload", "state=started");
    int n = prepare(r, &c, o);
    if (n == 0)
        n = exchange_listeners(r, &c, o->error, sizeof o->error);
    if (n == 0)
        put_in_force(r, &c);
    else if (!*o->error)
        snprintf(o->error, sizeof o->error, "%s", strerror(-n));
    utf8_mend(o->error); /* what it quotes may be cut within a character */
    o->ok = n == 0;
    o->seconds = (double)(clock_now_ns() - begin_ns) / 1e9;
    note_policy(r, o);
    count(r, o);
    log_outcome(o);
    if (o->ok)
        log_notes(&c.policies);
    serve_notify("READY=1\nSTATUS=%s", o->ok ? "Serving" : "Serving; the last reload failed, see the log");
    r->done.ticket = ticket;
    tell_event_thread(r, &r->done);
    change_clear(&c);
}

/* ---- the loader thread ---- */

static void *thread_main(void *arg)
{
    struct reload *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        bool bury = r->bury;
        uint64_t ticket = r->asked;
        if (!bury && ticket == r->served) {
            pthread_cond_wait(&r->wake, &r->lock);
            continue;
        }
        r->bury = false;
        pthread_mutex_unlock(&r->lock);
        policy_graveyard_bury(r->graveyard);
        if (ticket != r->served)
            run_once(r, ticket);
        pthread_mutex_lock(&r->lock);
        r->served = ticket;
    }
    r->ended = true;
    pthread_cond_signal(&r->end);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int reload_start(struct reload *r, struct http *h, const struct reload_hooks *hooks)
{
    r->http = h;
    r->hooks = *hooks;
    int n = -pthread_create(&r->thread, NULL, thread_main, r);
    r->started = n == 0;
    return n;
}

bool reload_stop(struct reload *r)
{
    if (!r || !r->started)
        return true;
    (void)eventfd_write(r->stop_fd, 1);
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_signal(&r->wake);
    struct timespec until = after_ms(STOP_MS);
    while (!r->ended && pthread_cond_timedwait(&r->end, &r->lock, &until) == 0) {
    }
    bool ended = r->ended;
    pthread_mutex_unlock(&r->lock);
    if (ended)
        pthread_join(r->thread, NULL);
    r->started = !ended;
    return ended;
}

/* ---- the first load ---- */

static int load_first(struct reload *r, char *err, size_t errlen)
{
    struct serve_policies p;
    int fd = -1, n = serve_policies_load(r->config, true, 0, r->graveyard, &p, err, errlen);
    if (n < 0)
        return n;
    if (p.trace)
        n = open_trace(p.trace_path, &fd, err, errlen);
    if (n == 0 && fd >= 0)
        n = policy_trace_use(r->trace, fd);
    r->tracing = p.trace;
    if (n == 0)
        n = policy_shadows_replace(r->shadows, p.shadow, p.n_shadows, err, errlen);
    if (n == 0)
        n = policy_seat_new(p.policy, &r->seat);
    if (n == 0) {
        char path[1100];
        log_write(LOG_INFO, "policy", "state=loaded name=%s version=%s digest=%.16s path=%s shadows=%zu",
                  policy_loaded_name(p.policy), policy_loaded_version(p.policy),
                  policy_loaded_digest(p.policy), log_quote(path, sizeof path, policy_loaded_path(p.policy)),
                  p.n_shadows);
        log_notes(&p);
    }
    serve_policies_clear(&p);
    return n;
}

static void init_conditions(struct reload *r)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &attr);
    pthread_cond_init(&r->end, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&r->lock, NULL);
}

int reload_new(const struct reload_options *o, struct reload **ret_reload, char *err, size_t errlen)
{
    struct reload *r = calloc(1, sizeof *r);
    if (!r) {
        snprintf(err, errlen, "out of memory");
        return -ENOMEM;
    }
    r->o = *o;
    r->config = o->config;
    init_conditions(r);
    r->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int n = r->stop_fd < 0 ? -errno : policy_graveyard_new(on_dead, r, &r->graveyard);
    if (n == 0)
        n = policy_listeners_new(&r->listeners);
    if (n == 0)
        n = policy_shadows_new(r->listeners, &r->shadows);
    if (n == 0)
        n = policy_trace_new(r->listeners, on_trace_failure, NULL, &r->trace);
    if (n == 0)
        n = load_first(r, err, errlen);
    if (n < 0) {
        if (!*err)
            snprintf(err, errlen, "policy: %s", strerror(-n));
        reload_free(r);
        return n;
    }
    *ret_reload = r;
    return 0;
}

void reload_free(struct reload *r)
{
    if (!r)
        return;
    policy_shadows_free(r->shadows);
    policy_trace_free(r->trace);
    policy_listeners_free(r->listeners);
    policy_seat_free(r->seat);
    policy_graveyard_free(r->graveyard);
    config_free(r->own_config);
    if (r->stop_fd >= 0)
        close(r->stop_fd);
    pthread_cond_destroy(&r->wake);
    pthread_cond_destroy(&r->end);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
