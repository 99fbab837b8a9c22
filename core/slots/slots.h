/* Slot table: which history lies in which slot, and what any two histories share.
 *
 * A history is the tokens whose keys and values the engine still has. There are n_slots + 1 of them, named by
 * index: slot i is i, main (the solo session) is n_slots. The scheduler keeps one engine session per index
 * and does to it what it does here: tokens are noted when the engine has taken them, so a history is at any
 * moment what was really computed, whether its request stopped, was cut off, cancelled or failed.
 *
 * Shared lengths between all pairs are kept up to date by every operation (slots_shared); prompts are
 * compared through hashes of blocks (slots/prompt.h).
 *
 * Thread: the scheduler's alone; data and arithmetic only. Must not know: policies (only their words), HTTP,
 * the engine, the time (callers pass now_ns). Functions that return int fail with -EINVAL (no such index or
 * length), -EBUSY (a request runs there) or -ENOMEM, and then nothing has changed.
 * Tests: tests/unit/test_slots.c, tests/property/slots_model.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct slots;

#define SLOTS_NONE UINT32_MAX /* no history */
#define SLOTS_MAX 1024u

struct slots_options {
    uint32_t n_slots;      /* 1..SLOTS_MAX */
    uint32_t group_slots;  /* slots of one group, a divisor of n_slots; slot i is in group i / group_slots */
    uint32_t block_tokens; /* of the hashes: a multiple of 4, 4..64; 0: 64 */
    int32_t turn_token;    /* starts a turn in this model's template; -1: it has none */
    uint64_t key[2];       /* secret of this process: no client can construct two blocks of equal hash */
};

/* What is remembered of the requests a history comes from: goes with it when it is copied, moved or parked.
 */
struct slots_label {
    int64_t last_use_ns; /* end of the last actual use */
    uint32_t turns;
    uint32_t stop_reason; /* POLICY_STOP_* */
    uint32_t prompt_tokens;
    uint32_t request_flags; /* POLICY_REQUEST_* */
    uint64_t client_key, session_key, parent_key, line_key;
    uint64_t request_key; /* the request itself; 0: unknown */
    uint32_t cached;      /* tokens it began with */
};

struct slots_history { /* to be read */
    int32_t *tokens;
    uint32_t n, turn_tokens;   /* turn_tokens: policy.h's word, the rule of a cut by the host included */
    bool busy, excluded, held; /* policy.h says what they mean */
    bool reliable;
    bool cut;                 /* the host gave up its end, and nothing was added since */
    uint64_t salt;            /* histories of different salts share nothing */
    struct slots_label label; /* while busy: the running request's */
    /* The table's own. */
    struct slots_label before; /* while busy: what it was before; last_use_ns as in label */
    uint32_t cap, turn_at;     /* position of the last turn token; 0: none, or at 0 only */
    uint32_t fed;              /* tokens noted since the request began */
    bool kept_known;
    uint32_t kept;         /* what slots_kept said */
    uint64_t version;      /* changes with every change but an append; unique over the table */
    uint64_t (*hashes)[2]; /* [n / block_tokens]: of everything up to each block's end */
};

struct slots_request {
    uint64_t client_key, session_key, parent_key, line_key, request_key, salt;
    uint32_t prompt_tokens, flags; /* POLICY_REQUEST_* */
    bool resumed;                  /* runs again after a requeue: not another turn */
};

/* A history from elsewhere, complete. */
struct slots_given {
    const int32_t *tokens;
    uint32_t n, turn_tokens; /* turn_tokens <= n */
    bool cut;
    uint64_t salt;
    struct slots_label label;
};

enum slots_end { /* how a request ends */
                 SLOTS_END_STOP,
                 SLOTS_END_STRING, /* a stop string */
                 SLOTS_END_TOOL_USE,
                 SLOTS_END_LENGTH,
                 SLOTS_END_CANCEL,
                 SLOTS_END_FAIL,
                 SLOTS_END_REQUEUE,
};

int slots_new(const struct slots_options *o, struct slots **ret_slots);
void slots_free(struct slots *s);

const struct slots_options *slots_options(const struct slots *s);
const struct slots_history *slots_at(const struct slots *s, uint32_t i); /* i <= n_slots */
/* Common prefix of two histories: of i with itself its length, of different salts 0. */
uint32_t slots_shared(const struct slots *s, uint32_t i, uint32_t j);
/* Row i: n_slots + 1 lengths. */
const uint32_t *slots_shared_row(const struct slots *s, uint32_t i);
/* The longest prefix of history i that another one, still there, holds too: the rest is lost with it. */
uint32_t slots_kept(struct slots *s, uint32_t i);
bool slots_any_busy(const struct slots *s);
/* Tokens before the last turn boundary of any sequence: the word `turn_tokens` of policy.h. */
uint32_t slots_turn_tokens(const struct slots *s, const int32_t *tokens, uint32_t n);

/* A request begins at `at`: it becomes the first n tokens of `source` (which may be busy, or `at` itself; n
 * is 0 with SLOTS_NONE), busy, neither excluded nor held. The source must be reliable and of the request's
 * salt when n > 0. */
int slots_begin(struct slots *s, uint32_t at, uint32_t source, uint32_t n, const struct slots_request *r);
/* Makes room, so that slots_append of as many tokens cannot fail. */
int slots_reserve(struct slots *s, uint32_t at, uint32_t n);
/* Notes tokens that the engine has taken; `at` is busy. */
int slots_append(struct slots *s, uint32_t at, const int32_t *tokens, uint32_t n);
/* The request at `at` ends and its history stays. One that fed nothing leaves no trace: label and last use
 * are those of before. */
int slots_end(struct slots *s, uint32_t at, enum slots_end how, int64_t now_ns);
/* The request goes on at `to` (idle): promotion with from = main, back to solo with to = main. `from` keeps
 * the same history, idle, its last use this moment. */
int slots_hand_over(struct slots *s, uint32_t from, uint32_t to, int64_t now_ns);

/* Main's history is kept in slot `to` too (idle), last use and label included. */
int slots_park(struct slots *s, uint32_t to);
/* `to` (idle) becomes the first n tokens of `from`, label included. A cut as slots_cut when n is less. */
int slots_copy(struct slots *s, uint32_t from, uint32_t to, uint32_t n);
/* `to` (idle) becomes `from` (idle), which is then empty. */
int slots_move(struct slots *s, uint32_t from, uint32_t to);
/* Exchanges two histories, requests running there included. Excluded and held stay where they are. */
int slots_swap(struct slots *s, uint32_t a, uint32_t b);
/* `at` (idle) becomes what was given. */
int slots_put(struct slots *s, uint32_t at, const struct slots_given *g);
/* The host gives up what lies after n tokens of an idle history. */
int slots_cut(struct slots *s, uint32_t at, uint32_t n);
/* Forgets an idle history. */
int slots_clear(struct slots *s, uint32_t at);

void slots_set_reliable(struct slots *s, uint32_t at, bool reliable);
void slots_set_excluded(struct slots *s, uint32_t at, bool excluded);
void slots_set_held(struct slots *s, uint32_t at, bool held);
