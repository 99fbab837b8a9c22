/* Queue: the bounded queue between threads, many producers and one consumer, with an eventfd that becomes
 * readable when something waits. Items are pointers; what they point to is the users' affair.
 * Lock: one mutex of its own, a leaf: nothing is called while it is held. Tests: tests/unit/test_util.c */
#pragma once
#include <stddef.h>

struct queue;

/* capacity >= 1. Fails with -ENOMEM or what eventfd(2) said. */
int queue_new(size_t capacity, struct queue **ret_queue);
/* The consumer must have emptied it: items still inside are not freed. */
void queue_free(struct queue *q);
/* [any thread] Returns 0, or -ENOSPC when full; never waits. */
int queue_push(struct queue *q, void *item);
/* [consumer] Takes the oldest item; NULL when empty, and then the eventfd is no longer readable. */
void *queue_pop(struct queue *q);
/* [consumer] Waits until something is there or timeout_ms passed (-1: for ever); returns 1 when something is.
 */
int queue_wait(struct queue *q, int timeout_ms);
size_t queue_len(struct queue *q);
/* The eventfd, for an event loop. Owned by the queue. */
int queue_fd(const struct queue *q);
