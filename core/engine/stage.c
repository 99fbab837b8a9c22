/* Stage: its thread, and how flights pass from stage to stage. A stage computes one flight at a time, the one
 * that arrived first; what waits for a later stage keeps no earlier one busy. With one stage there is no
 * thread: whoever begins a window computes it, so nothing is handed over and nobody is woken.
 *
 * A failure ends the flight where it happened: later stages never see it, other flights never notice.
 * Lock: engine.lock. Must not know: sessions, what is computed. Tests: tests/unit/test_stages.c,
 * tests/unit/engine_stress.c (under TSan) */
#include "engine/stage.h"
#include "engine/compute.h"
#include "util/clock.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void list_add(struct flight_list *l, struct flight *f)
{
    f->next = NULL;
    if (l->first)
        l->last->next = f;
    else
        l->first = f;
    l->last = f;
}

static struct flight *list_take(struct flight_list *l)
{
    struct flight *f = l->first;
    if (f)
        l->first = f->next;
    return f;
}

static void compute(struct stage *st, struct flight *f)
{
    const struct engine *e = st->engine;
    char why[192] = "";
    uint64_t begin = clock_now_ns();

    f->result = compute_window(st, f, why, sizeof why);
    f->ns += clock_now_ns() - begin;
    if (f->result == 0)
        return;
    if (!*why)
        snprintf(why, sizeof why, "%s", strerror(-f->result));
    if (e->n_stages == 1)
        snprintf(f->err, sizeof f->err, "%s", why);
    else
        snprintf(f->err, sizeof f->err, "stage %u of %u (layers %u-%u): %s", st->index + 1, e->n_stages,
                 st->first, st->first + st->n_layers - 1, why);
}

/* To the next stage, or to those that finished. Under the lock: nobody may look for a finished flight between
 * its entry in the list and the call, and the watcher may not go away in between. */
static void pass_on(struct stage *st, struct flight *f)
{
    struct engine *e = st->engine;

    if (f->result == 0 && st->index + 1 < e->n_stages) {
        struct stage *next = st + 1;
        list_add(&next->queue, f);
        pthread_cond_signal(&next->changed);
        return;
    }
    f->state = FLIGHT_FINISHED;
    e->under_way--;
    list_add(&e->finished, f);
    pthread_cond_broadcast(&e->changed);
    if (e->on_finished)
        e->on_finished(e->on_finished_arg);
}

void stage_send(struct flight *f)
{
    struct engine *e = f->engine;
    struct stage *st = &e->stages[0];

    pthread_mutex_lock(&e->lock);
    f->state = FLIGHT_UNDER_WAY;
    e->under_way++;
    if (st->has_thread) {
        list_add(&st->queue, f);
        pthread_cond_signal(&st->changed);
    } else {
        pthread_mutex_unlock(&e->lock);
        compute(st, f);
        pthread_mutex_lock(&e->lock);
        pass_on(st, f);
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- the thread ---- */

static void carry_out(struct stage *st)
{
    struct engine *e = st->engine;
    struct order *o = st->order;

    st->order = NULL;
    pthread_mutex_unlock(&e->lock);
    o->result = o->fn(st, o->arg, o->err, o->errlen);
    pthread_mutex_lock(&e->lock);
    o->done = true;
    pthread_cond_broadcast(&e->changed);
}

static void *thread_main(void *arg)
{
    struct stage *st = arg;
    struct engine *e = st->engine;
    struct flight *f;

    pthread_mutex_lock(&e->lock);
    for (;;) {
        if (st->order) {
            carry_out(st);
        } else if ((f = list_take(&st->queue))) {
            pthread_mutex_unlock(&e->lock);
            compute(st, f);
            pthread_mutex_lock(&e->lock);
            pass_on(st, f);
        } else if (st->quit) {
            break;
        } else {
            pthread_cond_wait(&st->changed, &e->lock);
        }
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

int stage_call(struct stage *st, stage_fn *fn, void *arg, char *err, size_t errlen)
{
    struct engine *e = st->engine;
    struct order o = { .fn = fn, .arg = arg, .err = err, .errlen = errlen };

    if (!st->has_thread)
        return fn(st, arg, err, errlen);
    pthread_mutex_lock(&e->lock);
    st->order = &o;
    pthread_cond_signal(&st->changed);
    while (!o.done)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return o.result;
}

int stage_start(struct stage *st, char *err, size_t errlen)
{
    /* Signals belong to the event thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&st->thread, NULL, thread_main, st);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r) {
        snprintf(err, errlen, "cannot start the thread of stage %u: %s", st->index + 1, strerror(r));
        return -r;
    }
    (void)pthread_setname_np(st->thread, "berth-stage");
    st->has_thread = true;
    return 0;
}

void stage_stop(struct stage *st)
{
    if (!st->has_thread)
        return;
    pthread_mutex_lock(&st->engine->lock);
    st->quit = true;
    pthread_cond_signal(&st->changed);
    pthread_mutex_unlock(&st->engine->lock);
    pthread_join(st->thread, NULL);
    st->has_thread = false;
}
