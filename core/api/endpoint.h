/* Endpoint (private to the api): what a dialect is to the rest: a reader of bodies and a set of formatters. A
 * new dialect is one of these in a file of its own, a bit in the field table and a route. Threads: `read` on
 * a worker, all others on the event thread. */
#pragma once
#include "util/buf.h"
#include <jansson.h>

struct api_choice;
struct exchange;
struct sampler_choice;

struct endpoint {
    const char *name;
    unsigned fields; /* which rows of the field table it knows */
    const char *id_prefix, *object, *chunk_object;
    /* [worker] Fills ex->request (prompts included) or ex->reply; a failure goes to ex->error. */
    void (*read)(struct exchange *ex, json_t *body);
    /* [event thread] Appends what one token with its logprobs adds to choice->lp. */
    void (*logprob)(struct exchange *ex, struct api_choice *c, const struct sampler_choice *token);
    /* Pieces of a stream: each writes whole events. */
    void (*stream_begin)(struct exchange *ex, struct api_choice *c, struct buf *out);
    void (*stream_text)(struct exchange *ex, struct api_choice *c, struct buf *out);
    void (*stream_stop)(struct exchange *ex, struct api_choice *c, struct buf *out);
    void (*stream_end)(struct exchange *ex, struct buf *out);
    void (*stream_error)(struct exchange *ex, const char *type, const char *message, struct buf *out);
    /* The whole answer. */
    void (*whole)(struct exchange *ex, struct buf *out);
};
