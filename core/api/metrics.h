/* Metrics (private to the api): one table of everything that is told in figures, and its two renderings: JSON
 * and Prometheus text. They are made from one view, gathered at once. Thread: the event thread's.
 * Tests: tests/e2e/test_metrics.py */
#pragma once
#include "api/feed.h"
#include "api/private.h"
#include "sched/placement.h"
#include <stddef.h>

/* What the scheduler's record does not hold; figures are made when the view is gathered. */
struct metrics_extra {
    const char *model, *device, *activations, *kv_type, *turn_token;
    uint64_t max_context, groups, stages;
    uint64_t requests_reading, open_requests, listeners;
    double start_time_s, uptime_s, kv_usage, read_per_s, cached_per_s, generated_per_s;
    bool yes; /* always */
    bool padding_safe;
    uint64_t busy, blank, protected, expired, superseded; /* slots in these states */
};

struct metrics_view {
    const struct api *api;
    struct sched_status *st; /* its own copy */
    json_t *policy;          /* what the process knows of policies; NULL: nothing */
    uint64_t now_ns;
    struct metrics_extra extra;
};

enum metric_kind {
    METRIC_U64, /* where the value is, by what it is */
    METRIC_U32,
    METRIC_REAL,
    METRIC_BOOL,
    METRIC_TEXT,   /* JSON alone, as the next: an array of characters, */
    METRIC_WORD,   /* or a pointer to some */
    METRIC_TIMES,  /* a struct sched_times: a histogram */
    METRIC_CALLS,  /* the histogram of call times, by call */
    METRIC_POLICY, /* an integer that the view's `policy` has by this key */
    METRIC_TRACE,  /* the same of its `trace` */
    METRIC_SHADOW, /* the same of each shadow, by call or not */
    METRIC_WRITE,  /* JSON alone, written by a function */
    METRIC_INFO,   /* Prometheus alone: 1 with labels, written by a function */
};

/* A label whose values stand in an array, first..n-1, `stride` bytes apart. */
struct metric_by {
    const char *label;
    const char *(*name)(uint32_t i);
    uint32_t first, n;
    size_t stride;
    bool inside; /* in JSON: section.VALUE.key, and not section.key.VALUE */
};

struct metric {
    const char *section, *key;   /* in JSON; key NULL: not there */
    const char *name;            /* berth_NAME; NULL: not in Prometheus */
    const char *vllm, *llamacpp; /* the same under others' names */
    const char *type, *help;     /* "counter", "gauge", "histogram" */
    enum metric_kind kind;
    bool extra; /* the offset is one in the view's `extra`, not in the record */
    size_t offset;
    const struct metric_by *by;
    const char *fixed; /* a label of this row: rows of one name make one family */
    void (*write)(const struct metrics_view *v, struct buf *b);
};

extern const struct metric metrics_table[];
extern const size_t metrics_n;

/* False when out of memory; then there is nothing to clear. */
bool metrics_gather(const struct api *a, struct metrics_view *v);
void metrics_clear(struct metrics_view *v);
/* Where row m's value is; i: which one of m->by. */
const void *metrics_at(const struct metric *m, const struct metrics_view *v, uint32_t i);
/* Members of a shadow's or the policy's object; 0 where they are not. */
uint64_t metrics_policy_count(const json_t *object, const char *key, const char *call);
size_t metrics_shadows(const struct metrics_view *v);
const json_t *metrics_shadow(const struct metrics_view *v, size_t i);

/* A label's value, quoted. */
void metrics_label(struct buf *b, const char *text);
/* Upper edges of bins, in seconds. */
double metrics_time_edge(uint32_t i);
double metrics_call_edge(uint32_t i);

void metrics_json(const struct metrics_view *v, struct buf *b);
void metrics_text(const struct metrics_view *v, struct buf *b);

/* places.c, feed.c: lists that are part of the JSON. */
void places_write_slots(const struct metrics_view *v, struct buf *b);
void places_write_solo(const struct metrics_view *v, struct buf *b);
void feed_write_last(const struct metrics_view *v, struct buf *b);
/* "main", null or the slot's number, and a client's key, as members of an object. */
void places_put_place(struct buf *b, const char *key, int32_t slot);
void places_put_client(struct buf *b, uint64_t client_key);
