/* Slot io: a slot's conversation to a file and back, and out. These calls wait, for the disk and for the
 * scheduler, who hands keys and values out and takes them in piece by piece between windows and never waits
 * for a disk: streams go on meanwhile.
 *
 * Thread: any that may wait; not the event thread, not the scheduler. One conversation is saved or restored
 * at a time; another call gets -EBUSY. Must not know: HTTP. Tests: tests/unit/test_slotio.c,
 * tests/e2e/test_slot_files.py */
#pragma once
#include "sched/sched.h"
#include "sched/slotfile.h"

struct sched_slot_call {
    int32_t slot; /* or SCHED_MAIN */
    int dir;      /* folder, an open descriptor */
    const char *name;
    const struct slotfile_kind *kind;
    const uint64_t *salt; /* restore only a conversation of this salt; NULL: of any, which it keeps */
    /* Asked between pieces: true ends it, with -ECANCELED. */
    bool (*stop)(void *arg);
    void *arg;
};

struct sched_slot_done {
    uint32_t tokens, turn_tokens, turns;
    uint64_t bytes; /* of the file */
    double ms;
};

/* What a file of this engine's says of itself beside the model's and the tokenizer's fingerprints. */
void sched_slot_kind(const struct engine *e, const char *model_name, struct slotfile_kind *ret_kind);

/* Errors, with err: -EBUSY: a request runs there, or needed its memory meanwhile, or another call is at work;
 * -ENODATA: there is nothing to save; -ENOMEM: the pool has no room; -ECANCELED; and those of slotfile.h.
 * After each the slot is as it was, and no file has changed. All must have returned before sched_stop. */
int sched_slot_erase(struct sched *s, int32_t slot, uint32_t *ret_tokens, char *err, size_t errlen);
/* The slot, or main, is kept from other requests until it is saved. */
int sched_slot_save(struct sched *s, const struct sched_slot_call *c, struct sched_slot_done *ret, char *err,
                    size_t errlen);
/* The slot keeps what it has until all of the file is there and right; then the next prompt finds it. */
int sched_slot_restore(struct sched *s, const struct sched_slot_call *c, struct sched_slot_done *ret,
                       char *err, size_t errlen);
