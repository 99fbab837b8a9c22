/* Api: the dialects: a request's JSON to a job, a job's events to JSON and SSE.
 * Threads: handlers run on the event thread and hand the body to a worker, which parses, renders and
 * tokenizes and submits the job; the scheduler's events come back to the event thread, which formats and
 * writes them. Must not know: sockets, tensors, which policy runs. Tests: tests/e2e/test_*.py */
#pragma once
#include "http/http.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "sched/sched.h"
#include <stdio.h>

struct api;
struct slotfile_kind;

struct api_live { /* what can change while it runs */
    uint32_t keepalive_s, watchdog_s;
    bool isolate;                   /* requests of different keys share no prefix */
    struct sampler_params sampling; /* defaults */
};

struct api_options {
    const struct tokenizer *tokenizer; /* borrowed, as all below */
    const struct chat_template *chat;  /* never NULL */
    const char *chat_source;           /* its text, for /props */
    struct sched *sched;
    const char *model_name, *model_path, *model_arch;
    uint64_t model_params, model_bytes;
    uint32_t context, context_train, n_embd, slots;
    uint32_t workers, max_json_depth, max_unsent_bytes;
    const char *tool_format;      /* "auto" or a name of model/toolcall.h */
    const char *const *normalize; /* names of normalizers */
    size_t n_normalize;
    const char *device;                /* what computes, in words */
    const char *activations, *kv_type; /* of the engine: what they are kept in */
    int32_t turn_token;                /* -1: none */
    uint32_t stages, groups;
    int save_dir;                          /* folder of saved conversations, an open descriptor; -1: none */
    const struct slotfile_kind *slot_kind; /* what they must agree in; NULL without a folder */
    bool padded;                           /* windows */
    struct api_live live;
    /* [event thread] What /metrics tells of the policy beside what the scheduler knows; may be NULL. */
    struct json_t *(*policy_json)(void *arg);
    void *policy_arg;
};

/* The tables of request fields of all endpoints, for people, as markdown. */
void api_print_fields(FILE *out);
/* Starts the workers. The http server is made after it, from api_routes; api_attach tells it which one. */
int api_new(const struct api_options *o, struct api **ret_api, char *err, size_t errlen);
const struct http_route *api_routes(struct api *a, size_t *ret_n);
void api_attach(struct api *a, struct http *h);
/* For all that is asked from now on; event streams of those whom the rules of http let in no more end. Event
 * thread. */
void api_set_live(struct api *a, const struct api_live *live);
/* From now on new requests get 503 with Retry-After, and /ready says draining. Event thread. */
void api_drain(struct api *a);
/* Whether /ready says that the scheduler is stuck. Event thread. */
bool api_stuck(const struct api *a);
/* Requests in flight (workers and jobs). Event thread. */
uint32_t api_in_flight(const struct api *a);
/* Ends what still runs with an error event. Event thread. */
void api_abort(struct api *a, const char *reason);
/* After http_run returned: joins the workers. */
void api_free(struct api *a);
/* Every figure of /metrics, its names and its meaning. */
void api_metrics_help(FILE *out, bool markdown);
