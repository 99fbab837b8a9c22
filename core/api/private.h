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
#include "api/history.h"
#include "api/jsonout.h"
#include "api/request.h"
#include "model/answer.h"
#include "model/chat_traits.h"
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define API_LP_LISTS 4 /* a dialect may keep up to so many lists per choice */

struct api_message { /* from the scheduler, about one choice */
    struct api_message *next;
    struct api_choice *choice;
    enum sched_event_kind kind;
    enum sched_stop stop;
    size_t stop_index;
    int32_t slot;
    struct sched_timings timings;
    char error[200];
    size_t n_tokens, n_pieces;
    struct sched_token *tokens; /* inside the same allocation, as are pieces and text */
    struct api_piece *pieces;
    char *text;
};

struct api_piece { /* of a message's text */
    enum answer_kind kind;
    size_t len;
};

enum api_part_kind { PART_REASONING, PART_TEXT, PART_CALL };

struct api_part { /* of an answer: see endpoint.h */
    enum api_part_kind kind;
    bool begun, closed,
        told;        /* begun and told: what a stream said of it; closed: nothing is added any more */
    bool broken;     /* a call that ended in the middle */
    uint32_t index;  /* among the calls of the choice */
    char id[40];     /* of the call */
    char *name;      /* of the tool */
    struct buf text; /* of calls: the arguments */
    size_t written;  /* of text, into a stream */
};

struct api_choice {
    struct exchange *ex;
    uint32_t index, prompt; /* prompt: which of the request's it answers */
    uint64_t job;
    struct api_message *done_message; /* kept ready: the last word is never lost to a lack of memory */
    atomic_bool lost;                 /* a message was */
    struct answer *answer;            /* the scheduler's; NULL: all is text */
    /* The event thread's. */
    bool started, finished;
    enum sched_stop stop;
    int32_t slot; /* or SCHED_MAIN, the solo session */
    struct sched_timings timings;
    struct api_part *parts;
    size_t stop_index, n_parts, n_told;
    uint32_t n_calls, n_complete; /* announced, and come to their end */
    uint32_t reasoning_tokens;
    struct buf lp[API_LP_LISTS]; /* the dialect's lists of logprobs: all, or for a stream those not written */
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
    struct api_identity identity;
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
    char id[40];        /* of the answer */
    uint64_t created_s; /* wall clock */
    uint32_t sequence;  /* responses: of the next event */
    uint64_t begin_ns, last_write_ns, paused_ns;
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
    struct workers workers, files; /* files: one, which waits for the disk */
    struct http_route *routes;
    struct route_arg *route_args;
    size_t n_routes, longest_piece;
    const char *end_text; /* ends the answer to a chat though it is no token; or NULL */
    bool draining;
    struct exchange *exchanges;
    uint32_t n_exchanges;
    struct chat_traits traits;
    struct chat_template *to_json; /* writes a value as templates do */
    unsigned normalize;            /* bits of normalize.c */
    uint8_t salt[16];              /* of identities */
    uint64_t started_s;            /* wall clock */
    struct feed *feed;
    struct history history;
    char fingerprint[64];
};

#include "api/calls.h"
