/* Exchange: the life of one request that a worker reads and, mostly, the scheduler answers.
 *
 * begin (event thread) -> worker -> messages from the scheduler -> pump (event thread), which writes -> gone,
 * when the worker is done, every job has said its last word and the answer is out. It never ends while
 * anybody could still send it a message. Tests: tests/e2e/test_stream.py, test_vanish.py, test_drain.py */
#include "api/private.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/rng.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A reader that takes nothing for so long is treated as gone. */
#define STALLED_S 120u

static void pump(void *arg);

bool exchange_need_post(struct exchange *ex)
{
    if (ex->posted)
        return false;
    ex->posted = true;
    return true;
}

void exchange_post(struct exchange *ex)
{
    if (http_post(ex->api->http, pump, ex) == 0)
        return;
    /* The tick finds it: nothing else of ours is on its way to this exchange. */
    pthread_mutex_lock(&ex->lock);
    ex->post_failed = true;
    pthread_mutex_unlock(&ex->lock);
}

static void send_message(struct exchange *ex, struct api_message *m)
{
    pthread_mutex_lock(&ex->lock);
    if (ex->last)
        ex->last->next = m;
    else
        ex->first = m;
    ex->last = m;
    bool post = exchange_need_post(ex);
    pthread_mutex_unlock(&ex->lock);
    if (post)
        exchange_post(ex);
}

static void fill_message(struct api_message *m, struct api_choice *c, const struct sched_event *ev)
{
    m->choice = c;
    m->kind = ev->kind;
    m->stop = ev->stop;
    m->stop_index = ev->stop_index;
    if (ev->stop == SCHED_STOP_STRING && ev->stop_index >= c->ex->request.n_asked_stops)
        m->stop = SCHED_STOP_EOG;
    m->slot = ev->slot;
    m->timings = ev->timings;
    snprintf(m->error, sizeof m->error, "%s", ev->error ? ev->error : "");
}

void exchange_on_event(void *choice, const struct sched_event *ev)
{
    struct api_choice *c = choice;
    struct exchange *ex = c->ex;
    bool done = ev->kind == SCHED_EV_DONE;
    struct api_message *m = parts_message(c, ev, done);
    if (!m) {
        atomic_store(&c->lost, true);
    } else if (!done || m->n_pieces) {
        fill_message(m, c, ev);
        m->kind = done ? SCHED_EV_TEXT : ev->kind;
        send_message(ex, m);
    } else {
        free(m);
    }
    if (done) {
        m = c->done_message;
        c->done_message = NULL;
        fill_message(m, c, ev);
        send_message(ex, m);
    }
}

bool exchange_asks_tool(void *choice)
{
    const struct api_choice *c = choice;
    return c->answer && answer_calls(c->answer) > 0;
}

static const char *outcome(const struct exchange *ex)
{
    if (!ex->seen_worker_done || ex->error.status)
        return "refused";
    if (http_left(ex->http))
        return "left";
    switch (ex->n_finished ? ex->choices[0].stop : SCHED_STOP_NONE) {
    case SCHED_STOP_EOG:
    case SCHED_STOP_STRING:
        return "stop";
    case SCHED_STOP_LENGTH:
        return "length";
    case SCHED_STOP_FAILED:
        return "failed";
    case SCHED_STOP_CANCELLED:
        return "cancelled";
    default:
        return "answered";
    }
}

/* Why it was refused, for the log: "" when it was not. The message is left out, it may quote the request. */
static const char *refusal(const struct exchange *ex, char *text, size_t size)
{
    const struct api_error *e = &ex->error;
    char code[64], param[128];
    text[0] = '\0';
    if (e->status)
        snprintf(text, size, " status=%d code=%s param=%s", e->status,
                 log_quote(code, sizeof code, e->code ? e->code : ""),
                 log_quote(param, sizeof param, e->param));
    return text;
}

/* Of a prompt that several answers share, what the one that read it found is what was cached. False as long
 * as none has begun. */
static bool cached_of(const struct exchange *ex, uint32_t prompt, uint32_t *ret)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < ex->n_choices; i++) {
        const struct api_choice *c = &ex->choices[i];
        if (c->prompt == prompt && c->started && c->timings.cached < least)
            least = c->timings.cached;
    }
    *ret = least;
    return least != UINT32_MAX;
}

struct api_usage exchange_usage(const struct exchange *ex)
{
    struct api_usage u = { 0 };
    for (uint32_t i = 0; ex->n_choices && i < ex->request.n_prompts; i++) {
        uint32_t cached;
        u.prompt += ex->request.prompts[i].n;
        if (!cached_of(ex, i, &cached))
            continue;
        u.cached += cached;
        u.read += ex->request.prompts[i].n - cached;
    }
    for (uint32_t i = 0; i < ex->n_choices; i++) {
        u.generated += ex->choices[i].timings.generated;
        u.reasoning += ex->choices[i].reasoning_tokens;
    }
    return u;
}

/* One line per request that was to generate: lengths and times, never text. */
static void log_request(const struct exchange *ex)
{
    char why[256];
    if (!ex->endpoint->whole)
        return;
    struct api_usage u = exchange_usage(ex);
    const struct sched_timings *t = ex->n_choices ? &ex->choices[0].timings : &(struct sched_timings){ 0 };
    log_write(LOG_INFO, "request",
              "id=%s endpoint=%s outcome=%s stream=%d prompt=%" PRIu64 " cached=%" PRIu64
              " generated=%" PRIu64 " queue_ms=%.0f first_token_ms=%.0f total_ms=%.0f%s",
              http_request_id(ex->http), ex->endpoint->name, outcome(ex), ex->request.stream, u.prompt,
              u.cached, u.generated, t->queue_ms, t->first_token_ms,
              (double)(clock_now_ns() - ex->begin_ns) / (double)NS_PER_MS, refusal(ex, why, sizeof why));
}

static void release(struct exchange *ex)
{
    struct api *a = ex->api;
    log_request(ex);
    if (ex->prev)
        ex->prev->next = ex->next;
    else
        a->exchanges = ex->next;
    if (ex->next)
        ex->next->prev = ex->prev;
    a->n_exchanges--;
    http_done(ex->http);
    for (uint32_t i = 0; i < ex->n_choices; i++)
        parts_clear(&ex->choices[i]);
    free(ex->choices);
    request_clear(&ex->request);
    buf_free(&ex->reply);
    buf_free(&ex->out);
    pthread_mutex_destroy(&ex->lock);
    free(ex);
}

static void cancel_jobs(struct exchange *ex)
{
    atomic_store(&ex->left, true);
    /* Before the worker is done its jobs are its own; it is asked again then. */
    if (ex->seen_worker_done)
        for (uint32_t i = 0; i < ex->n_submitted; i++)
            if (!ex->choices[i].finished)
                sched_cancel(ex->api->o.sched, ex->choices[i].job);
}

static void on_leave(void *arg)
{
    cancel_jobs(arg);
}

static void pause_jobs(struct exchange *ex, bool paused)
{
    ex->paused = paused;
    ex->paused_ns = clock_now_ns();
    for (uint32_t i = 0; i < ex->n_submitted; i++)
        if (!ex->choices[i].finished)
            sched_pause(ex->api->o.sched, ex->choices[i].job, paused);
}

static void on_drain(void *arg)
{
    struct exchange *ex = arg;
    if (ex->paused)
        pause_jobs(ex, false);
}

static void stream_write(struct exchange *ex)
{
    struct buf *out = &ex->out;
    if (!out->len)
        return;
    http_stream_write(ex->http, out->data, out->len);
    buf_clear(out);
    ex->last_write_ns = clock_now_ns();
    if (ex->seen_worker_done && !ex->paused && http_unsent(ex->http) > ex->api->o.max_unsent_bytes) {
        http_on_drain(ex->http, on_drain, ex);
        pause_jobs(ex, true);
    }
}

static void stream_open(struct exchange *ex)
{
    if (http_stream_begun(ex->http))
        return;
    http_stream_begin(ex->http, 200, "text/event-stream");
    if (ex->endpoint->open)
        ex->endpoint->open(ex, &ex->out);
}

/* The answer is an error, in whatever form is still possible. */
static void answer_error(struct exchange *ex, int status, const char *type, const char *message,
                         const char *param, const char *code)
{
    if (ex->answered)
        return;
    ex->answered = true;
    if (http_stream_begun(ex->http)) {
        ex->endpoint->error(ex, type, message, &ex->out);
        stream_write(ex);
        http_stream_end(ex->http);
    } else {
        if (status == 429 || status == 503) {
            char text[16];
            snprintf(text, sizeof text, "%" PRIu32, ex->error.retry_s ? ex->error.retry_s : 1);
            http_reply_header(ex->http, "Retry-After", text);
        }
        http_reply_error(ex->http, status, type, message, param, code);
    }
    cancel_jobs(ex);
}

static void answer_whole(struct exchange *ex)
{
    struct buf *out = &ex->out;
    char text[16];
    ex->answered = true;
    ex->endpoint->whole(ex, out);
    if (out->failed) {
        http_reply_error(ex->http, 500, "server_error", "out of memory", NULL, NULL);
        return;
    }
    snprintf(text, sizeof text, "%" PRId32, ex->choices[0].slot);
    http_reply_header(ex->http, "X-Berth-Slot", text);
    snprintf(text, sizeof text, "%u", ex->choices[0].timings.cached);
    http_reply_header(ex->http, "X-Berth-Cached", text);
    http_reply(ex->http, 200, "application/json; charset=utf-8", out->data, out->len);
}

static void take_done(struct exchange *ex, struct api_choice *c, const struct api_message *m)
{
    c->finished = true;
    c->stop = m->stop;
    c->stop_index = m->stop_index;
    ex->n_finished++;
    parts_close(c);
    if (ex->answered)
        return;
    if (m->stop == SCHED_STOP_FAILED)
        answer_error(ex, 500, "server_error", m->error, NULL, NULL);
    else if (m->stop == SCHED_STOP_CANCELLED)
        answer_error(ex, 503, "server_error",
                     ex->abort_reason ? ex->abort_reason : "the request was cancelled", NULL, NULL);
    else if (atomic_load(&c->lost) || ex->out.failed)
        answer_error(ex, 500, "server_error", "out of memory", NULL, NULL);
    else if (ex->request.stream) {
        parts_flush(ex, c);
        ex->endpoint->stop(ex, c, &ex->out);
    }
}

static void take_message(struct exchange *ex, const struct api_message *m)
{
    struct api_choice *c = m->choice;
    c->slot = m->slot;
    c->timings = m->timings;
    if (m->kind == SCHED_EV_DONE) {
        take_done(ex, c, m);
        return;
    }
    if (ex->answered)
        return;
    if (m->kind == SCHED_EV_STARTED) {
        c->started = true;
        if (ex->request.stream) {
            stream_open(ex);
            if (ex->endpoint->begin)
                ex->endpoint->begin(ex, c, &ex->out);
        }
    } else if (m->kind == SCHED_EV_TEXT) {
        for (size_t i = 0; i < m->n_tokens && ex->endpoint->logprob; i++)
            ex->endpoint->logprob(ex, c, &m->tokens[i].choice);
        if (!parts_take(ex, c, m))
            atomic_store(&c->lost, true);
    }
}

/* The answer's name and date, once there is to be one. */
static void name_answer(struct exchange *ex)
{
    ex->created_s = clock_wall_ns() / NS_PER_S;
    snprintf(ex->id, sizeof ex->id, "%s%016" PRIx64 "%08" PRIx32, ex->endpoint->id_prefix, rng_system_seed(),
             (uint32_t)rng_system_seed());
}

static void take_worker_result(struct exchange *ex)
{
    const struct api_error *e = &ex->error;
    ex->seen_worker_done = true;
    if (ex->n_choices)
        name_answer(ex);
    if (atomic_load(&ex->left)) {
        cancel_jobs(ex);
    } else if (e->status) {
        answer_error(ex, e->status, e->type, e->message, *e->param ? e->param : NULL, e->code);
    } else if (!ex->n_choices) {
        ex->answered = true;
        if (ex->reply.failed || !ex->reply.len)
            http_reply_error(ex->http, 500, "server_error", "out of memory", NULL, NULL);
        else
            http_reply(ex->http, 200, "application/json; charset=utf-8", ex->reply.data, ex->reply.len);
    }
}

/* Nothing more can come: answers what is still unanswered, and goes. */
static void finish(struct exchange *ex)
{
    if (!ex->answered && ex->n_choices && ex->n_submitted == ex->n_choices) {
        if (ex->request.stream) {
            ex->answered = true;
            ex->endpoint->end(ex, &ex->out);
            stream_write(ex);
            http_stream_end(ex->http);
        } else {
            answer_whole(ex);
        }
    }
    if (!ex->answered && !http_left(ex->http))
        answer_error(ex, 503, "server_error",
                     ex->abort_reason ? ex->abort_reason : "the request was cancelled", NULL, NULL);
    release(ex);
}

static void pump(void *arg)
{
    struct exchange *ex = arg;
    pthread_mutex_lock(&ex->lock);
    bool worker_done = ex->worker_done;
    /* Until the worker is done the jobs' messages wait: it may still refuse the whole request, and then that
     * is the answer, not what became of the jobs it ended itself. */
    struct api_message *list = worker_done ? ex->first : NULL;
    if (worker_done)
        ex->first = ex->last = NULL;
    ex->posted = ex->post_failed = false;
    pthread_mutex_unlock(&ex->lock);

    if (worker_done && !ex->seen_worker_done)
        take_worker_result(ex);
    for (struct api_message *m = list, *next; m; m = next) {
        next = m->next;
        take_message(ex, m);
        free(m);
    }
    if (!ex->answered) {
        for (uint32_t i = 0; list && ex->request.stream && i < ex->n_choices; i++)
            parts_flush(ex, &ex->choices[i]);
        stream_write(ex);
    }
    if (ex->seen_worker_done && ex->n_finished == ex->n_submitted)
        finish(ex);
}

static void keep_alive(struct exchange *ex)
{
    const struct api_choice *c = &ex->choices[0];
    stream_open(ex);
    if (ex->endpoint->keep_alive)
        ex->endpoint->keep_alive(ex, &ex->out);
    else if (!c->started)
        buf_puts(&ex->out, ": waiting for a place\n\n");
    else if (!c->timings.generated)
        buf_printf(&ex->out, ": reading the prompt, %zu of %zu tokens\n\n",
                   (size_t)c->timings.cached + (c->timings.prompt_ms > 0 ? c->timings.prompt : 0),
                   ex->request.prompts[0].n);
    else
        buf_puts(&ex->out, ": waiting\n\n");
    stream_write(ex);
}

void exchange_tick(struct exchange *ex, uint64_t now_ns)
{
    pthread_mutex_lock(&ex->lock);
    bool lost_post = ex->post_failed;
    pthread_mutex_unlock(&ex->lock);
    if (lost_post) {
        pump(ex);
        return;
    }
    if (ex->paused) {
        if (http_unsent(ex->http) <= ex->api->o.max_unsent_bytes / 2)
            pause_jobs(ex, false);
        else if (now_ns > ex->paused_ns + STALLED_S * NS_PER_S)
            cancel_jobs(ex);
        return;
    }
    uint64_t silence_ns = (uint64_t)ex->api->o.live.keepalive_s * NS_PER_S;
    if (ex->seen_worker_done && !ex->answered && ex->request.stream &&
        now_ns >= ex->last_write_ns + silence_ns)
        keep_alive(ex);
}

void exchange_abort(struct exchange *ex, const char *reason)
{
    ex->abort_reason = reason;
    cancel_jobs(ex);
}

static struct exchange *exchange_new(struct api *a, const struct endpoint *endpoint, struct http_request *r)
{
    struct exchange *ex = calloc(1, sizeof *ex);
    if (!ex)
        return NULL;
    pthread_mutex_init(&ex->lock, NULL);
    ex->api = a;
    ex->endpoint = endpoint;
    ex->http = r;
    ex->sampling = a->o.live.sampling;
    ex->client_key = http_client_key(r);
    identity_from_headers(ex);
    ex->begin_ns = ex->last_write_ns = clock_now_ns();
    ex->next = a->exchanges;
    if (ex->next)
        ex->next->prev = ex;
    a->exchanges = ex;
    a->n_exchanges++;
    return ex;
}

static void refuse(struct http_request *r, int status, const char *type, const char *message)
{
    if (status == 503)
        http_reply_header(r, "Retry-After", "5");
    http_reply_error(r, status, type, message, NULL, NULL);
    http_done(r);
}

void exchange_begin(struct http_request *r, void *route_arg)
{
    const struct route_arg *route = route_arg;
    exchange_start(route->api, route->endpoint, &route->api->workers, r);
}

void exchange_start(struct api *a, const struct endpoint *endpoint, struct workers *workers,
                    struct http_request *r)
{
    if (a->draining) {
        refuse(r, 503, "server_error", "the server is shutting down");
        return;
    }
    const char *encoding = http_header(r, "Content-Encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0) {
        refuse(r, 415, "invalid_request_error",
               "Content-Encoding: a body must be sent as it is, not compressed");
        return;
    }
    struct exchange *ex = exchange_new(a, endpoint, r);
    if (!ex) {
        refuse(r, 503, "server_error", "out of memory");
        return;
    }
    ex->body = http_take_body(r);
    http_on_leave(r, on_leave, ex);
    workers_push(workers, ex);
}
