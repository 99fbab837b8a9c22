/* Seat: see seat.h. */
#include "policy/seat.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct policy_seat {
    pthread_mutex_t lock;
    struct policy_loaded *policy;
    uint64_t generation;
};

int policy_seat_new(struct policy_loaded *first, struct policy_seat **ret_seat)
{
    struct policy_seat *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->policy = policy_loaded_ref(first);
    s->generation = 1;
    *ret_seat = s;
    return 0;
}

void policy_seat_free(struct policy_seat *s)
{
    if (!s)
        return;
    policy_loaded_unref(s->policy);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint64_t policy_seat_publish(struct policy_seat *s, struct policy_loaded *p)
{
    policy_loaded_ref(p);
    pthread_mutex_lock(&s->lock);
    struct policy_loaded *old = s->policy;
    uint64_t generation = ++s->generation;
    s->policy = p;
    pthread_mutex_unlock(&s->lock);
    policy_loaded_unref(old);
    return generation;
}

struct policy_loaded *policy_seat_take(struct policy_seat *s, uint64_t *ret_generation)
{
    pthread_mutex_lock(&s->lock);
    struct policy_loaded *p = policy_loaded_ref(s->policy);
    if (ret_generation)
        *ret_generation = s->generation;
    pthread_mutex_unlock(&s->lock);
    return p;
}
