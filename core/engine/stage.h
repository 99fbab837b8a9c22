/* Stage: its thread, and how flights pass from stage to stage; see stage.c. Thread: the scheduler's, or
 * whoever opens and closes the engine. Tests: tests/unit/test_stages.c, tests/unit/engine_stress.c */
#pragma once
#include "engine/engine_impl.h"

int stage_start(struct stage *st, char *err, size_t errlen); /* its thread */
void stage_stop(struct stage *st);                           /* when its queue is empty */
/* Runs fn on the stage's thread, or here where it has none, and waits for it. */
int stage_call(struct stage *st, stage_fn *fn, void *arg, char *err, size_t errlen);
/* Sends a planned flight through all stages. */
void stage_send(struct flight *f);
