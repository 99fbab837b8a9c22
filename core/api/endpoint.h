/* Endpoint (private to the api): what a dialect is to the rest: a reader of bodies and a set of formatters. A
 * new dialect is one of these in a file of its own, a bit in the field table and a route.
 *
 * An answer is a row of parts (reasoning, text, calls of tools), one open at a time. A stream tells of each
 * its beginning, what it grows by, and its end; a whole answer is written from all of them. Threads: `read`
 * on a worker, all others on the event thread. Functions that a dialect does not need are NULL, but for
 * `read`, and, where it generates, `whole`, `stop`, `end` and `error`. */
#pragma once
#include "util/buf.h"
#include <jansson.h>

struct api_choice;
struct api_part;
struct exchange;
struct sampler_choice;

/* Rows of the field table: who knows which. */
enum {
    FIELDS_CHAT = 1,
    FIELDS_COMPLETIONS = 2,
    FIELDS_TEMPLATE = 4,
    FIELDS_MESSAGES = 8,
    FIELDS_COUNT = 16,
    FIELDS_RESPONSES = 32,
    FIELDS_TOKENIZE = 64,
    FIELDS_DETOKENIZE = 128,
    FIELDS_SAVE = 256,
    FIELDS_RESTORE = 512,
};

struct endpoint {
    const char *name;
    bool may_be_empty; /* the body */
    unsigned fields;   /* which rows of the field table it knows */
    const char *id_prefix, *call_prefix, *object, *chunk_object;
    /* [worker] Fills ex->request (prompts included) or ex->reply; a failure goes to ex->error. */
    void (*read)(struct exchange *ex, json_t *body);
    /* Appends what one token with its logprobs adds to choice->lp. */
    void (*logprob)(struct exchange *ex, struct api_choice *c, const struct sampler_choice *token);
    /* Pieces of a stream: each writes whole events. `open`: before all others, once. `begin`: the choice has
     * a place, how much of its prompt was cached is known. `stop`: it said its last; `end`: all have. */
    void (*open)(struct exchange *ex, struct buf *out);
    void (*begin)(struct exchange *ex, struct api_choice *c, struct buf *out);
    void (*part_begin)(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out);
    void (*part_delta)(struct exchange *ex, struct api_choice *c, struct api_part *p, const char *text,
                       size_t len, struct buf *out);
    void (*part_end)(struct exchange *ex, struct api_choice *c, struct api_part *p, struct buf *out);
    void (*stop)(struct exchange *ex, struct api_choice *c, struct buf *out);
    void (*end)(struct exchange *ex, struct buf *out);
    void (*error)(struct exchange *ex, const char *type, const char *message, struct buf *out);
    /* Nothing was said for a while; NULL: a comment that says what is waited for. */
    void (*keep_alive)(struct exchange *ex, struct buf *out);
    /* The whole answer. */
    void (*whole)(struct exchange *ex, struct buf *out);
};
