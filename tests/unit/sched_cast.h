/* Sched cast: the jobs of a test by their numbers, what they said, and their prompts. */
#pragma once
#include "sched_rig.h"

#define CAST 6

struct cast {
    struct heard h[CAST];
    int32_t *p[CAST];
    struct sched_job job[CAST];
};

/* The prompt is the cast's from now on. */
static inline void cast_job(struct cast *c, int i, int32_t *prompt, size_t n, uint32_t max_new)
{
    heard_init(&c->h[i]);
    c->p[i] = prompt;
    c->job[i] = job_of(prompt, n, max_new, &c->h[i]);
}

static inline void cast_clear(struct cast *c)
{
    for (int i = 0; i < CAST; i++) {
        if (!c->p[i])
            continue;
        heard_clear(&c->h[i]);
        free(c->p[i]);
    }
}
