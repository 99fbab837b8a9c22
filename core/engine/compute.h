/* Compute: what a stage computes of a window: its share of the layers, before them the embedding on the first
 * stage, behind them the norm and the output head on the last. Operations are queued and not waited for.
 * Thread: the stage's. Must not know: threads, queues, sessions. Tests: tests/unit/test_stages.c,
 * tests/unit/test_logits.c */
#pragma once
#include "engine/engine_impl.h"

/* All of it, and waits. The residual stream comes from f->x and goes there, but where the stage is the first
 * or the last. A negative errno: what the device said, or -ENOMEM for the logits. */
int compute_window(struct stage *st, struct flight *f, char *err, size_t errlen);

/* Parts of it. */
void compute_embed(struct stage *st, const struct flight *f);
void compute_layer(struct stage *st, const struct flight *f, uint32_t layer);
void compute_head(struct stage *st, const struct flight *f); /* of the rows in scratch.picked */
/* Logits first .. first + n - 1 of the window from the last stage's device to the host; then sync. */
void compute_fetch_logits(struct stage *st, struct flight *f, uint32_t first, uint32_t n);
/* Room for the logits that the flight wants, on the last stage. */
int compute_reserve_logits(struct stage *st, struct flight *f, char *err, size_t errlen);
