/* Feed: see feed.h. A wake may be on its way when the feed is given up, so what it points to outlives it. */
#include "api/feed.h"
#include "api/jsonout.h"
#include "api/metrics.h"
#include "sched/placement.h"
#include "util/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct listener {
    struct feed *feed;
    struct http_request *http;
    struct listener *prev, *next;
    uint64_t after; /* the last event it had */
    uint64_t last_write_ns;
};

struct wake {
    atomic_bool posted;
    struct feed *feed; /* the event thread's; NULL: given up */
    struct http *http;
};

struct feed {
    struct api *api;
    struct wake *wake;
    struct listener *listeners;
    uint32_t n;
};

static void on_wake(void *arg);

int feed_new(struct api *a, struct feed **ret_feed)
{
    struct feed *f = calloc(1, sizeof *f);
    struct wake *w = calloc(1, sizeof *w);
    if (!f || !w) {
        free(f);
        free(w);
        return -ENOMEM;
    }
    f->api = a;
    f->wake = w;
    w->feed = f;
    *ret_feed = f;
    return 0;
}

void feed_free(struct feed *f)
{
    if (!f)
        return;
    sched_placements_watch(f->api->o.sched, NULL, NULL);
    if (atomic_load(&f->wake->posted))
        f->wake->feed = NULL; /* on_wake frees it */
    else
        free(f->wake);
    free(f);
}

uint32_t feed_listeners(const struct feed *f)
{
    return f->n;
}

/* ---- events as JSON ---- */

static void put_place(struct buf *b, int32_t slot)
{
    if (slot == SCHED_MAIN)
        buf_puts(b, "\"main\"");
    else if (slot == SCHED_NONE)
        buf_puts(b, "null");
    else
        jsonout_int(b, slot);
}

void places_put_place(struct buf *b, const char *key, int32_t slot)
{
    buf_puts(b, key);
    put_place(b, slot);
}

void places_put_client(struct buf *b, uint64_t client_key)
{
    if (client_key) /* more digits than a double has */
        buf_printf(b, ",\"client\":\"%016" PRIx64 "\"", client_key);
    else
        buf_puts(b, ",\"client\":null");
}

static void put_event(struct buf *b, const struct sched_placement *e)
{
    buf_printf(b, "{\"id\":%" PRIu64 ",\"time\":%.3f,\"kind\":\"%s\"", e->id,
               (double)(e->time_ns / NS_PER_MS) / 1e3, sched_placement_name(e->kind));
    places_put_place(b, ",\"slot\":", e->slot);
    places_put_place(b, ",\"source\":", e->source);
    buf_printf(b, ",\"tokens\":%" PRIu32 ",\"reason\":\"%s\",\"job\":%" PRIu64 ",\"request\":", e->tokens,
               e->reason, e->job);
    if (*e->request_id)
        jsonout_str(b, e->request_id, strlen(e->request_id));
    else
        buf_puts(b, "null");
    places_put_client(b, e->client_key);
    buf_printf(b, ",\"generation\":%" PRIu64 ",\"us\":%" PRIu32 "}", e->generation, e->took_us);
}

static void put_events(const struct api *a, uint64_t after, struct buf *b)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(a->o.sched, after, events);
    buf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_putc(b, ',');
        put_event(b, &events[i]);
    }
    buf_putc(b, ']');
}

void feed_write_last(const struct metrics_view *v, struct buf *b)
{
    put_events(v->api, 0, b);
}

/* ---- streams ---- */

static void leave(struct listener *l)
{
    struct feed *f = l->feed;
    if (l->prev)
        l->prev->next = l->next;
    else
        f->listeners = l->next;
    if (l->next)
        l->next->prev = l->prev;
    f->n--;
    http_on_leave(l->http, NULL, NULL);
    http_done(l->http);
    free(l);
    if (!f->n)
        sched_placements_watch(f->api->o.sched, NULL, NULL);
}

static void on_leave(void *arg)
{
    leave(arg);
}

/* False when the listener is gone: it was too slow, or there is no memory to write to it. */
static bool write_out(struct listener *l, struct buf *b)
{
    bool slow = http_unsent(l->http) + b->len > l->feed->api->o.max_unsent_bytes;
    if (!slow && !b->failed)
        http_stream_write(l->http, b->data, b->len);
    l->last_write_ns = clock_now_ns();
    if (!slow && !b->failed)
        return true;
    leave(l);
    return false;
}

/* Gives a listener what it has not had. */
static bool catch_up(struct listener *l, const struct sched_placement *events, size_t n)
{
    struct buf b = { 0 };
    for (size_t i = 0; i < n; i++) {
        if (events[i].id <= l->after)
            continue;
        buf_printf(&b, "id: %" PRIu64 "-%" PRIu64 "\ndata: ", l->feed->api->started_s, events[i].id);
        put_event(&b, &events[i]);
        buf_puts(&b, "\n\n");
        l->after = events[i].id;
    }
    bool stays = !b.len || write_out(l, &b);
    buf_free(&b);
    return stays;
}

static void catch_up_all(struct feed *f)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = f->n ? sched_placements_get(f->api->o.sched, 0, events) : 0;
    for (struct listener *l = f->listeners, *next; l; l = next) {
        next = l->next;
        catch_up(l, events, n);
    }
}

static void on_wake(void *arg)
{
    struct wake *w = arg;
    if (!w->feed) {
        free(w);
        return;
    }
    atomic_store(&w->posted, false); /* before the ring is read: what comes later wakes again */
    catch_up_all(w->feed);
}

/* [scheduler] */
static void on_placement(void *arg)
{
    struct wake *w = arg;
    if (!atomic_exchange(&w->posted, true) && http_post(w->http, on_wake, w) < 0)
        atomic_store(&w->posted, false); /* the tick looks */
}

void feed_tick(struct feed *f)
{
    static const char comment[] = ": waiting\n\n";
    uint64_t now = clock_now_ns(), silence = (uint64_t)f->api->o.live.keepalive_s * NS_PER_S;
    catch_up_all(f);
    for (struct listener *l = f->listeners, *next; l; l = next) {
        next = l->next;
        if (now < l->last_write_ns + silence)
            continue;
        struct buf b = { 0 };
        buf_puts(&b, comment);
        write_out(l, &b);
        buf_free(&b);
    }
}

void feed_end(struct feed *f)
{
    while (f->listeners)
        leave(f->listeners);
}

void feed_review(struct feed *f)
{
    for (struct listener *l = f->listeners, *next; l; l = next) {
        next = l->next;
        if (!http_still_allowed(l->http))
            leave(l);
    }
}

/* ---- the request ---- */

/* The number of the last event that is not wanted again; false: it is none of ours. "" and what comes from
 * before a restart: all. */
static bool read_after(const struct feed *f, const char *text, uint64_t *ret_after)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    size_t n = sched_placements_get(f->api->o.sched, 0, events);
    uint64_t last = n ? events[n - 1].id : 0, start = f->api->started_s;
    const char *dash = strchr(text, '-'), *number = dash ? dash + 1 : text;
    char *end;
    size_t digits = strspn(number, "0123456789");
    if (!digits || digits > 19 || number[digits])
        return false;
    if (dash && ((size_t)(dash - text) != strspn(text, "0123456789") || dash == text || dash - text > 19))
        return false;
    if (dash)
        start = strtoull(text, &end, 10);
    *ret_after = strtoull(number, &end, 10);
    if (start != f->api->started_s || *ret_after > last)
        *ret_after = 0;
    return true;
}

static bool wants_json(const struct http_request *r, const char *format)
{
    const char *accept = http_header(r, "Accept");
    if (format)
        return strcmp(format, "json") == 0;
    return accept && strstr(accept, "application/json") && !strstr(accept, "text/event-stream");
}

static void refuse(struct http_request *r, int status, const char *message, const char *param)
{
    if (status == 503)
        http_reply_header(r, "Retry-After", "5");
    http_reply_error(r, status, status == 503 ? "server_error" : NULL, message, param, NULL);
    http_done(r);
}

static void listen_to(struct feed *f, struct http_request *r, uint64_t after)
{
    struct sched_placement events[SCHED_PLACEMENTS];
    struct listener *l = f->api->draining || f->n >= FEED_LISTENERS ? NULL : calloc(1, sizeof *l);
    if (!l) {
        refuse(r, 503,
               f->api->draining ? "the server is shutting down" : "too many listen to /events already", NULL);
        return;
    }
    http_stream_begin(r, 200, "text/event-stream; charset=utf-8");
    if (strcmp(http_method(r), "HEAD") == 0) {
        http_done(r);
        free(l);
        return;
    }
    *l = (struct listener){ .feed = f, .http = r, .next = f->listeners, .after = after };
    if (l->next)
        l->next->prev = l;
    f->listeners = l;
    f->wake->http = f->api->http;
    if (!f->n++)
        sched_placements_watch(f->api->o.sched, on_placement, f->wake);
    http_on_leave(r, on_leave, l);
    struct buf b = { 0 };
    buf_puts(&b, "retry: 2000\n\n"); /* and so that a reader knows that it is heard */
    if (write_out(l, &b))
        catch_up(l, events, sched_placements_get(f->api->o.sched, after, events));
    buf_free(&b);
}

void api_on_events(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    const char *format = http_query(r, "format"), *query = http_query(r, "after");
    const char *id = query ? query : http_header(r, "Last-Event-ID");
    uint64_t after = 0;
    char why[160];
    if (format && strcmp(format, "json") != 0 && strcmp(format, "sse") != 0) {
        snprintf(why, sizeof why, "format: \"%.60s\" where sse (a stream, the default) or json is allowed",
                 format);
        refuse(r, 400, why, "format");
    } else if (id && *id && !read_after(a->feed, id, &after)) {
        snprintf(why, sizeof why, "%s: \"%.60s\" where the id of an event is wanted, \"1796056035-17\" or 17",
                 query ? "after" : "Last-Event-ID", id);
        refuse(r, 400, why, query ? "after" : "Last-Event-ID");
    } else if (!wants_json(r, format)) {
        listen_to(a->feed, r, after);
    } else {
        struct buf b = { 0 };
        buf_puts(&b, "{\"events\":");
        put_events(a, after, &b);
        buf_putc(&b, '}');
        api_reply_text(r, API_JSON, &b);
    }
}
