/* Flight, inside: their memory, and what a flight does to sessions (session.c). Thread: the scheduler's. */
#pragma once
#include "engine/engine_impl.h"

/* One with nothing in it; flight_put_back ends that. */
int flight_take(struct engine *e, struct flight **ret_flight, char *err, size_t errlen);
void flight_put_back(struct flight *f);
/* Without its logits, which are a device's. */
void flight_free(struct flight *f);

/* Takes what row->session needs to hold n more tokens: from row->at on the flight's list says which blocks it
 * will hold then. -ENOSPC (pool) or -ENOMEM, and then nothing changed. The session itself does not change
 * until one of the two others ends it. */
int session_grow(struct flight *f, struct flight_row *row, uint32_t n);
void session_grown(struct flight *f, const struct flight_row *row);
void session_shrink_back(struct flight *f, const struct flight_row *row);
/* Of whole blocks so far: one more with n tokens, whose keys and values are still to be written. */
int session_add_block(struct session *s, uint32_t n, uint32_t *ret_block);
