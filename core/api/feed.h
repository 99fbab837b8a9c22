/* Feed (private to the api): GET /events: placement events as they happen, to however many listen.
 *
 * The scheduler's ring holds the last events; the feed wakes on the event thread and gives each listener what
 * it has not had. A listener that takes nothing loses its stream, and finds in its next one what the ring
 * still holds. Ids begin with the time of the server's start, so that one from before a restart is known.
 * Thread: the event thread's, but for the wake. Tests: tests/e2e/test_events.py */
#pragma once
#include "api/private.h"

struct feed;

#define FEED_LISTENERS 64u

int feed_new(struct api *a, struct feed **ret_feed);
/* After http_run; the streams have ended by then. */
void feed_free(struct feed *f);
/* Comments for silent streams, and whatever a lost wake left behind. */
void feed_tick(struct feed *f);
/* Ends all streams: the server drains. */
void feed_end(struct feed *f);
/* Ends the streams of those who may not listen any more: rules have changed. */
void feed_review(struct feed *f);
uint32_t feed_listeners(const struct feed *f);
