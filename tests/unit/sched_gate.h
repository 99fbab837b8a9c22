/* Sched gate: where windows of a scheduler wait until a test lets them through; see sched_rig.h. */
#pragma once
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

/* A gate that windows stand before when they are computed and nothing of them is noted yet, so that a test
 * knows what has arrived when the next one is planned. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool shut;
    unsigned passed, standing;
} rig_gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void rig_stand(void)
{
    pthread_mutex_lock(&rig_gate.lock);
    rig_gate.standing++;
    pthread_cond_broadcast(&rig_gate.changed);
    while (rig_gate.shut && !rig_gate.passed)
        pthread_cond_wait(&rig_gate.changed, &rig_gate.lock);
    rig_gate.passed -= rig_gate.shut;
    rig_gate.standing--;
    pthread_cond_broadcast(&rig_gate.changed);
    pthread_mutex_unlock(&rig_gate.lock);
}

/* From now on every window waits in the engine until it is let through. */
static inline void rig_shut(void)
{
    pthread_mutex_lock(&rig_gate.lock);
    rig_gate.shut = true;
    pthread_mutex_unlock(&rig_gate.lock);
}

/* Waits until so many windows stand before the gate. */
static inline void rig_await_windows(unsigned n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&rig_gate.lock);
    while (rig_gate.standing < n)
        if (pthread_cond_timedwait(&rig_gate.changed, &rig_gate.lock, &until) == ETIMEDOUT)
            break;
    unsigned standing = rig_gate.standing;
    pthread_mutex_unlock(&rig_gate.lock);
    cr_assert_geq(standing, n, "waited 60 s for %u windows, %u came", n, standing);
}

static inline void rig_await_window(void)
{
    rig_await_windows(1);
}

/* Lets n windows through, one after another. */
static inline void rig_pass(unsigned n)
{
    for (; n; n--) {
        rig_await_window();
        pthread_mutex_lock(&rig_gate.lock);
        rig_gate.passed = 1;
        pthread_cond_broadcast(&rig_gate.changed);
        while (rig_gate.passed)
            pthread_cond_wait(&rig_gate.changed, &rig_gate.lock);
        pthread_mutex_unlock(&rig_gate.lock);
    }
}

static inline void rig_open_gate(void)
{
    pthread_mutex_lock(&rig_gate.lock);
    rig_gate.shut = false;
    rig_gate.passed = 0;
    pthread_cond_broadcast(&rig_gate.changed);
    pthread_mutex_unlock(&rig_gate.lock);
}
