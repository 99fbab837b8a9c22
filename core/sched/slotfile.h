/* Slot file: a conversation on disk: its tokens, what a slot remembers of it, and its keys and values.
 *
 * Format 1, all numbers little-endian: a header of SLOTFILE_HEADER bytes that ends with its own checksum; the
 * tokens (4 bytes each) and a checksum; then pieces of up to SESSION_IO_TOKENS tokens as session_io gives
 * them, each behind the other and followed by a checksum. Each checksum continues the one before, so that
 * nothing can change places. Nothing in a file is believed: what is wrong with it is told by name.
 *
 * A file is written under a name that no conversation can have, and gets its own when all of it is on disk:
 * there is never a file of that name that is not whole. Thread: any that may wait for a disk.
 * Must not know: the scheduler, slots. Tests: tests/unit/test_slotfile.c */
#pragma once
#include "engine/session_io.h"
#include "model/fingerprint.h"
#include <stdbool.h>

#define SLOTFILE_HEADER 512u
#define SLOTFILE_NAME_MAX 64u

/* What a file and a server must agree in. */
struct slotfile_kind {
    uint8_t model[FINGERPRINT_LEN], tokenizer[FINGERPRINT_LEN];
    char model_name[64]; /* for people */
    char kv_type[16], arithmetic[48];
    uint64_t token_bytes;
};

/* What a file holds. */
struct slotfile_history {
    uint32_t n_tokens, turn_tokens, turns, stop_reason, prompt_tokens, request_flags;
    bool cut;
    uint64_t salt;
    uint64_t saved_s; /* wall clock */
};

struct slotfile_limits { /* of the server that reads */
    const struct slotfile_kind *kind;
    uint32_t context, n_vocab;
};

struct slotfile;

/* Whether a name is one: letters, digits, '.', '_' and '-', at most SLOTFILE_NAME_MAX, and neither "." nor
 * "..". -EINVAL with err. */
int slotfile_check_name(const char *name, char *err, size_t errlen);

/* Begins a file in the folder `dir`. Room on the disk is taken at once where the file system can do that.
 * Errors, here and below: what the system said, err naming the file. */
int slotfile_create(int dir, const char *name, const struct slotfile_kind *kind,
                    const struct slotfile_history *h, const int32_t *tokens, struct slotfile **ret_file,
                    char *err, size_t errlen);
/* The next piece, of n tokens. */
int slotfile_write(struct slotfile *f, const void *piece, uint32_t n, char *err, size_t errlen);
/* All pieces are written: makes sure that they are on the disk, and gives the file its name, in place of one
 * that had it. */
int slotfile_finish(struct slotfile *f, uint64_t *ret_bytes, char *err, size_t errlen);

/* Opens one to be read. *ret_tokens is to be freed. -ENOENT; -EINVAL for one that is damaged or not what this
 * server can use. */
int slotfile_open(int dir, const char *name, const struct slotfile_limits *l, struct slotfile **ret_file,
                  struct slotfile_history *ret_history, int32_t **ret_tokens, char *err, size_t errlen);
/* The next piece; *ret_n is 0 behind the last one. */
int slotfile_read(struct slotfile *f, void *piece, uint32_t *ret_n, char *err, size_t errlen);
uint64_t slotfile_bytes(const struct slotfile *f);

/* One that is being written and was not finished leaves nothing behind. NULL is fine. */
void slotfile_close(struct slotfile *f);

/* Removes what processes left that were killed as they wrote; what somebody is writing stays. Returns how
 * many files that were. */
uint32_t slotfile_sweep(int dir);
