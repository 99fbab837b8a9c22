/* Work: the workers: threads that take bodies, parse them, have the endpoint read them, and hand jobs to the
 * scheduler. Here lies everything that takes time in proportion to what a client sent. Tests:
 * tests/e2e/test_limits.py */
#include "api/private.h"
#include "util/clock.h"
#include "util/jsonx.h"
#include "util/utf8.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of the longest Retry-After: there are clients that take a longer one for a refusal. */
#define RETRY_MOST_S 30u

static json_t *parse_body(struct exchange *ex)
{
    char err[256];
    json_t *value = NULL;
    int r;
    size_t len = ex->body ? evbuffer_get_length(ex->body) : 0;
    if (!len && ex->endpoint->may_be_empty)
        return json_object();
    if (!len) {
        api_fail(ex, NULL, "the request has no body; a JSON object is wanted");
        return NULL;
    }
    const char *text = (const char *)evbuffer_pullup(ex->body, -1);
    if (!text) {
        api_fail_memory(ex);
    } else if (!utf8_valid(text, len)) {
        api_fail(ex, NULL, "the body is not valid UTF-8");
    } else if ((r = jsonx_parse(text, len, ex->api->o.max_json_depth, false, &value, err, sizeof err)) < 0) {
        if (r == -ENOMEM)
            api_fail_memory(ex);
        else
            api_fail(ex, NULL, r == -ERANGE ? "the body: %s" : "the body is not valid JSON: %s", err);
    }
    return value;
}

/* What a client that found no room is told to wait: as long as the queue has stood by now. Agents come back a
 * handful of times and then give up; so of a queue that does not move they ask ever more rarely. */
static uint32_t retry_s(const struct exchange *ex)
{
    uint64_t s = 1 + sched_oldest_wait_ns(ex->api->o.sched) / NS_PER_S;
    return s < RETRY_MOST_S ? (uint32_t)s : RETRY_MOST_S;
}

static void submit_error(struct exchange *ex, int r, const char *err)
{
    api_fail(ex, NULL, "%s", err);
    if (r == -EAGAIN || r == -EBUSY) {
        ex->error.status = 429;
        ex->error.retry_s = retry_s(ex);
        ex->error.type = "rate_limit_error";
        ex->error.code = r == -EAGAIN ? "queue_full" : "client_share_exceeded";
    } else if (r != -EINVAL) {
        ex->error.status = 503;
        ex->error.type = "server_error";
    }
}

/* What is looked for in the answer, where it is one to a conversation. */
static bool make_answer(struct exchange *ex, struct api_choice *c)
{
    const struct api_request *q = &ex->request;
    const struct chat_traits *t = &ex->api->traits;
    size_t n = q->call_tools ? json_array_size(q->tool_names) : 0;
    struct answer_options o = { .marks = t->marks, .thinking = q->thinking };
    const char **names = calloc(n + 1, sizeof *names);
    const json_t **schemas = calloc(n + 1, sizeof *schemas);
    if (!q->messages || !names || !schemas) {
        free(names);
        free(schemas);
        return !q->messages;
    }
    for (size_t i = 0; i < n; i++) {
        names[i] = json_string_value(json_array_get(q->tool_names, i));
        schemas[i] = json_array_get(q->tool_schemas, i);
    }
    o.calls = (struct toolcall_options){ .format = n ? t->format : TOOLCALL_NONE,
                                         .gap = t->gap,
                                         .names = names,
                                         .n_names = n,
                                         .schemas = schemas,
                                         .one = !q->several_calls };
    int r = answer_new(&o, &c->answer);
    free(names);
    free(schemas);
    return r == 0;
}

/* The marks around reasoning and calls are control tokens in some vocabularies: their text must be seen. */
static size_t find_shown(const struct exchange *ex, int32_t shown[8])
{
    const struct chat_traits *t = &ex->api->traits;
    const char *marks[8] = { t->marks ? t->marks->start : NULL, t->marks ? t->marks->end : NULL };
    size_t n = 0;
    for (size_t i = 0; i < TOOLCALL_MARKS && json_array_size(ex->request.tool_names); i++)
        marks[2 + i] = toolcall_format_mark(t->format, i);
    for (size_t i = 0; i < 8 && ex->request.messages; i++) {
        int32_t id = marks[i] ? tokenizer_find(ex->api->o.tokenizer, marks[i], strlen(marks[i])) : -1;
        if (id >= 0 && tokenizer_is_control(ex->api->o.tokenizer, id))
            shown[n++] = id;
    }
    return n;
}

static uint32_t flags_of(const struct exchange *ex)
{
    return (ex->request.side ? SCHED_REQUEST_SIDE : 0) |
           (json_array_size(ex->request.tool_names) ? SCHED_REQUEST_TOOLS : 0) |
           (ex->identity.subagent ? SCHED_REQUEST_SUBAGENT : 0);
}

/* Whether the conversation holds answers: as in a sched_job. */
static int answers_of(const struct api_request *q)
{
    for (size_t i = 0; i < json_array_size(q->messages); i++) {
        const char *role = json_string_value(json_object_get(json_array_get(q->messages, i), "role"));
        if (role && strcmp(role, "assistant") == 0)
            return 1;
    }
    return q->messages ? -1 : 0;
}

static bool make_choices(struct exchange *ex)
{
    size_t n = ex->request.n_prompts * (size_t)ex->request.n;
    ex->choices = calloc(n, sizeof *ex->choices);
    if (!ex->choices)
        return false;
    ex->n_choices = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        if (!make_answer(ex, &ex->choices[i]))
            return false;
        ex->choices[i].ex = ex;
        ex->choices[i].index = i;
        ex->choices[i].prompt = i / (uint32_t)ex->request.n;
        ex->choices[i].done_message = calloc(1, sizeof(struct api_message));
        if (!ex->choices[i].done_message)
            return false;
    }
    return true;
}

/* What is asked of the scheduler for one choice. Of several answers to one prompt the first reads it and the
 * others take what it has read, whatever cache_prompt says of older ones. */
static struct sched_job job_of(struct exchange *ex, struct api_choice *c, const int32_t *shown,
                               size_t n_shown)
{
    const struct api_request *q = &ex->request;
    uint32_t sample = c->index % (uint32_t)q->n;
    struct sched_job job = {
        .tokens = q->prompts[c->prompt].tokens,
        .n_tokens = q->prompts[c->prompt].n,
        .sampling = fields_sampling(q),
        .max_new_tokens = (uint32_t)q->max_tokens,
        .stops = (const char *const *)q->stops,
        .stop_lens = q->stop_lens,
        .n_stops = q->n_stops,
        .cache_prompt = q->cache_prompt || sample,
        .id_slot = (int32_t)q->id_slot,
        .samples = (uint32_t)q->n,
        .client_key = ex->client_key,
        .session_key = ex->identity.session,
        .parent_key = ex->identity.parent,
        .line_key = ex->identity.line,
        .salt = ex->identity.salt,
        .request_flags = flags_of(ex),
        .shown = shown,
        .n_shown = n_shown,
        .request_id = http_request_id(ex->http),
        .answers = answers_of(q),
        .on_event = exchange_on_event,
        .asks_tool = exchange_asks_tool,
        .one_tool = !q->several_calls,
        .arg = c,
    };
    job.sampling.seed += sample;
    return job;
}

static bool check_choices(struct exchange *ex)
{
    const struct api_request *q = &ex->request;
    if (q->n_prompts * (size_t)q->n > API_MAX_CHOICES)
        api_fail(ex, "n", "n: %lld answers to each of %zu prompts are more than the %d that are allowed",
                 (long long)q->n, q->n_prompts, API_MAX_CHOICES);
    return !ex->error.status;
}

/* A model that is spoken to in ChatML without having been made for it ends its answers in letters. */
static bool add_end(struct exchange *ex)
{
    struct api_request *q = &ex->request;
    const char *text = ex->api->end_text;
    q->n_asked_stops = q->n_stops;
    if (!text || !q->messages || q->ignore_eos)
        return true;
    q->stops[q->n_stops] = strdup(text);
    if (!q->stops[q->n_stops])
        return false;
    q->stop_lens[q->n_stops++] = strlen(text);
    return true;
}

static void submit_all(struct exchange *ex)
{
    char err[256] = "";
    int32_t shown[8];
    size_t n_shown = find_shown(ex, shown);
    if (!check_choices(ex))
        return;
    if (!add_end(ex) || !make_choices(ex)) {
        submit_error(ex, -ENOMEM, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < ex->n_choices && !atomic_load(&ex->left); i++) {
        struct sched_job job = job_of(ex, &ex->choices[i], shown, n_shown);
        int r = sched_submit(ex->api->o.sched, &job, &ex->choices[i].job, err, sizeof err);
        if (r < 0) {
            submit_error(ex, r, err);
            break;
        }
        ex->n_submitted++;
    }
    if (ex->error.status)
        for (uint32_t i = 0; i < ex->n_submitted; i++)
            sched_cancel(ex->api->o.sched, ex->choices[i].job);
}

static void work_on(struct exchange *ex)
{
    json_t *body = atomic_load(&ex->left) ? NULL : parse_body(ex);
    (void)jsonx_starved();
    if (body) {
        ex->endpoint->read(ex, body);
        /* A message or a tool may be missing: what was made of it is no answer to this request. */
        if (jsonx_starved())
            api_fail_memory(ex);
        /* What the request borrowed from the body was used by now. */
        json_decref(body);
        if (!ex->error.status && ex->request.n_prompts)
            submit_all(ex);
        request_forget(&ex->request);
    }
    if (ex->body)
        evbuffer_free(ex->body);
    ex->body = NULL;

    pthread_mutex_lock(&ex->lock);
    ex->worker_done = true;
    bool post = exchange_need_post(ex);
    pthread_mutex_unlock(&ex->lock);
    if (post)
        exchange_post(ex);
}

static void *worker_main(void *arg)
{
    struct workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stopping)
            pthread_cond_wait(&w->wake, &w->lock);
        if (!w->first)
            break;
        struct exchange *ex = w->first;
        w->first = ex->next_work;
        if (!w->first)
            w->last = NULL;
        pthread_mutex_unlock(&w->lock);
        work_on(ex);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int workers_start(struct workers *w, uint32_t n, const char *name)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->threads = calloc(n, sizeof *w->threads);
    if (!w->threads)
        return -ENOMEM;
    for (; w->n < n; w->n++) {
        int r = pthread_create(&w->threads[w->n], NULL, worker_main, w);
        if (r)
            return -r;
        pthread_setname_np(w->threads[w->n], name);
    }
    return 0;
}

void workers_stop(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n; i++)
        pthread_join(w->threads[i], NULL);
    free(w->threads);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
}

void workers_push(struct workers *w, struct exchange *ex)
{
    /* Bounded by the number of connections: each has one request at a time. */
    pthread_mutex_lock(&w->lock);
    ex->next_work = NULL;
    if (w->last)
        w->last->next_work = ex;
    else
        w->first = ex;
    w->last = ex;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}
