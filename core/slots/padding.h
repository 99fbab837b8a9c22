/* Padding: what a padded window destroys.
 *
 * A padded window has a row for every slot of its group from the first to the last active one, as layouts
 * have that give each slot a fixed place in the batch. An idle slot among them is fed a token all the same,
 * which is written over what it holds. So a history is lost with the first window of its group that begins
 * after it went idle and has a higher active slot. A window under way when it went idle had its own row for
 * it, or none, and does it no harm.
 *
 * Pure; the scheduler's thread. Must not know: windows, the engine. Tests: tests/property/padding_model.c,
 * against one that replays all windows */
#pragma once
#include "slots/slots.h"

/* A window begins with rows for these slots, all of one group. The idle slots whose reliable histories it
 * destroys, ascending, into ret_lost [slots of a group]; returns how many. */
uint32_t padding_lost(const struct slots *s, const uint32_t *active, uint32_t n_active, uint32_t *ret_lost);
