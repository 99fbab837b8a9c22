/* Private to the api's files.
 *
 * An exchange is one HTTP request being answered. Its endpoint reads the body on a worker into either a
 * finished reply or an api_request, which says what to generate and knows no dialect; the endpoint's
 * formatters turn what the scheduler tells into the dialect's JSON on the event thread.
 *
 * Who may touch an exchange: first the event thread, then one worker (from hand-over until `worker_done` is
 * set), then the event thread alone. Only what lies under `lock` is shared: the scheduler and the worker
 * leave messages there and have api_pump called on the event thread. Locks: exchange.lock and workers.lock
 * are leaves. */
#pragma once
#include "api/api.h"
#include "api/endpoint.h"
#include "api/jsonout.h"
#include "util/buf.h"
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define API_MAX_STOPS 16
#define API_MAX_STOP_BYTES 1024
#define API_MAX_PROMPTS 128
#define API_LP_LISTS 4 /* a dialect may keep up to so many lists per choice */

struct api_error {
    int status; /* 0: none */
    const char *type, *code;
    char param[96];
    char message[480];
};

struct api_prompt {
    int32_t *tokens;
    size_t n;
};

/* What to generate, as read from any dialect. */
struct api_request {
    bool stream, include_usage, cache_prompt, ignore_eos, chat_logprobs, echo, add_generation_prompt;
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, min_tokens, max_tokens, id_slot, top_logprobs, n, best_of;
    struct sampler_bias *bias;
    size_t n_bias;
    char *stops[API_MAX_STOPS];
    size_t stop_lens[API_MAX_STOPS], n_stops;
    struct api_prompt *prompts;
    size_t n_prompts;
    /* Borrowed from the body, which lives until the worker is done. */
    json_t *messages, *tools, *template_kwargs;
    const json_t *prompt;
};

struct api_message { /* from the scheduler, about one choice */
    struct api_message *next;
    struct api_choice *choice;
    enum sched_event_kind kind;
    enum sched_stop stop;
    int32_t slot;
    struct sched_timings timings;
    char error[200];
    size_t text_len, n_tokens;
    struct sched_token *tokens; /* inside the same allocation, as is text */
    char *text;
};

struct api_choice {
    struct exchange *ex;
    uint32_t index;
    uint64_t job;
    struct api_message *done_message; /* kept ready: the last word is never lost to a lack of memory */
    atomic_bool lost;                 /* a message was */
    /* The event thread's. */
    bool started, finished;
    enum sched_stop stop;
    int32_t slot; /* or SCHED_MAIN, the solo session */
    struct sched_timings timings;
    struct buf text;             /* escaped JSON; all of it, or for a stream what is not written yet */
    struct buf lp[API_LP_LISTS]; /* the dialect's lists of logprobs, likewise */
    uint64_t n_chars;            /* whole characters of the text that the tokens with logprobs so far make */
    char char_start[4];          /* and what they have of one more */
    unsigned n_char_start;
};

struct exchange {
    struct api *api;
    struct http_request *http;
    const struct endpoint *endpoint;
    struct exchange *prev, *next; /* the event thread's list */
    struct exchange *next_work;   /* workers.lock */
    struct evbuffer *body;        /* the worker's */
    uint64_t client_key;
    struct sampler_params sampling; /* the defaults when it came */
    atomic_bool left;               /* the client is gone, or nobody wants the answer: start nothing */

    pthread_mutex_t lock;
    bool posted, post_failed, worker_done;
    struct api_message *first, *last;

    /* Written by the worker, read by the event thread after worker_done. */
    struct api_request request;
    struct api_error error;
    struct buf reply;
    struct api_choice *choices;
    uint32_t n_choices, n_submitted;

    /* The event thread's. */
    bool seen_worker_done, answered, paused;
    uint32_t n_finished;
    const char *abort_reason;
    uint64_t begin_ns, last_write_ns, paused_ns;
    struct buf
        head; /* {"id":..,"object":..,"created":..,"model":.. : how every object of the answer begins */
    struct buf out;
};

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct exchange *first, *last;
    bool stopping;
    pthread_t *threads;
    uint32_t n;
};

struct route_arg {
    struct api *api;
    const struct endpoint *endpoint;
};

struct api {
    struct api_options o;
    struct http *http;
    struct workers workers;
    struct http_route *routes;
    struct route_arg *route_args;
    size_t n_routes, longest_piece;
    bool draining;
    struct exchange *exchanges;
    uint32_t n_exchanges;
    uint64_t started_s; /* wall clock */
    char fingerprint[64];
};

#include "api/calls.h"
