/* Placement policies: the contract between berth and a shared object that decides about idle conversations.
 *
 * The server keeps conversations ("histories") in slots and asks a policy four questions: where a request
 * runs, which slot keeps what the solo session held, what each history is worth, and which slots hold an
 * older copy. A policy sees lengths, ages and keys; never tokens, text, sockets or the engine.
 *
 * A policy includes this header, and policy_words.h if it likes, and nothing else of ours. It exports one
 * data symbol, slot_policy_entry, and hides everything else: what is hidden cannot collide with another
 * policy's, and a data symbol can be read and judged before any code of the policy runs. Both headers are
 * clean C11 and C++11; for other languages the assertions at the end are the layout. How to build, try and
 * load a policy: plugins/README.md.
 *
 * Threads. Functions are tagged: [loader] one thread at a time, before the first question or after the last;
 * [any] any thread, several at once, for shadows and tests ask beside the server. `self` does not change
 * after `create`: that is what makes the second possible without locks.
 *
 * Purity. An answer depends on (settings, snapshot, request) alone: no clock, no allocation, no I/O, no lock,
 * no written global, no state from call to call. So a decision never waits, can be replayed from its trace,
 * and asked twice: the loader does that with tables of its own and refuses a policy that answers differently.
 * Build with -ffp-contract=off and without fast-math: the same table then
 * gives the same decision with the same C library (pow and its like differ between libraries in the last
 * bit).
 *
 * Lifetimes. Whatever a call is given, `create` included, is valid until it returns and must not be written,
 * except the answer: the host uses the same memory for the next table. Strings and tables of the entry live
 * as long as the object is loaded; the host copies what it keeps longer.
 *
 * Leaving. After `destroy` the object is closed and its code is gone. So it must leave nothing behind that
 * could run: no thread, no atexit, no thread-local destructor. No exception, panic or longjmp may leave a
 * function: the caller is C. A library it needs must be found by the system; it is opened from memory and
 * has no folder of its own.
 *
 * Growth. A struct only grows at its end. The entry says how large each struct was when the policy was built;
 * the host lays out every struct, arrays included, at the larger of its own size and the policy's, extra
 * bytes zero (none may exceed 4,096 bytes). So a policy may read every field its header has, and in every
 * field 0 means unknown: an old policy runs in a new server and a new one in an old. Elements of an array
 * lie `stride` bytes apart: never index with [] (policy_words.h has the accessors). `size` at the head of a
 * struct is what the host laid out. Fields called `reserved` are 0, and to be left alone in answers.
 *
 * Units. Times are nanoseconds of one clock that never goes back, unless a name ends in _s (seconds). Lengths
 * are tokens, below 2^31. Keys have 63 bits, are salted per process and never 0 when known: compare them,
 * never store them.
 *
 * Trust. The host checks every answer and answers itself, with its built-in policy, where one is not legal,
 * so that a mistake costs a decision and not a conversation; three such breaches within a minute put the
 * policy out of use until the next reload. A call should take under 1 ms: requests wait for it. A policy is
 * trusted code all the same: one that never returns stops the server. */
#ifndef BERTH_ABI_POLICY_H
#define BERTH_ABI_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POLICY_ABI_MAJOR 1u                       /* another one is refused */
#define POLICY_ABI_MINOR 0u                       /* counts what was added since */
#define POLICY_MAGIC UINT64_C(0x796c6f7068747262) /* "brthpoly" */
#define POLICY_SLOTS_MAX 1024u /* of a snapshot: an array of so many may lie on the stack */

/* ---- what exists: histories in slots, and main -------------------------------------------------------- */

/* policy_history.flags. A slot is free when it has none of the first three. */
#define POLICY_BUSY 1u /* a request runs there */
#define POLICY_EXCLUDED                                                                                      \
    2u /* reserved: a request is about to run there, or it is the request's own source                       \
          during a park. Counts as busy everywhere, and keeps serving as a source */
#define POLICY_HELD                                                                                          \
    4u                     /* idle, may be a source, may not be chosen, is no row: a waiting request         \
                              continues it */
#define POLICY_RELIABLE 8u /* the engine still holds what this record says */

/* policy_history.stop_reason: how the last request there ended. */
#define POLICY_STOP_NONE 0u      /* none did */
#define POLICY_STOP_END_TURN 1u  /* the model's own end, or a stop string */
#define POLICY_STOP_TOOL_USE 2u  /* a tool call: the client is about to come back */
#define POLICY_STOP_LENGTH 3u    /* cut off by a limit */
#define POLICY_STOP_CANCELLED 4u /* cancelled, failed, or put back into the queue */
#define POLICY_STOPS 5u          /* how many there are; later headers may have more */

/* request_flags */
#define POLICY_REQUEST_SIDE 1u     /* a side request: a title, a summary, a probe */
#define POLICY_REQUEST_TOOLS 2u    /* tools were offered */
#define POLICY_REQUEST_SUBAGENT 4u /* sent by an agent that another one started */

#define POLICY_TIER_POOL 0u /* where a history lies: in the engine's pool; others are to come */

/* One history: a slot's or main's. */
struct policy_history {
    uint32_t id;            /* slots: unique, any number; used for order and in logs alone. main: 0 */
    uint32_t group;         /* the id of its group; slots of one group run in one window. main: 0 */
    uint32_t flags;         /* POLICY_BUSY ... POLICY_RELIABLE */
    uint32_t tokens;        /* its length; 0: empty */
    uint32_t turn_tokens;   /* tokens before its last turn boundary, 0..tokens. Equal to tokens where there
                               is no boundary, and at most tokens after the host cut it */
    uint32_t shared_prompt; /* common prefix with the request's prompt, 0..min(tokens, prompt_tokens - 1) */
    int64_t last_use_ns;    /* end of the last actual use. Copying, moving and parking never renew it. May
                               lie after now_ns: take such an age as 0 */
    uint32_t turns;         /* requests this conversation has had here */
    uint32_t stop_reason;   /* POLICY_STOP_* */
    uint32_t prompt_tokens; /* of the last request there */
    uint32_t request_flags; /* of the last request there */
    uint64_t client_key;    /* who sent it */
    uint64_t session_key;   /* the client's own name for the conversation */
    uint64_t parent_key;    /* the session that started this one */
    uint64_t line_key;      /* hash of session, agent and first user message */
    uint64_t recompute_ns;  /* measured cost to read from the longest prefix any other history shares to the
                               end: what is lost with it */
    uint64_t bytes;         /* memory that would be freed if it alone went */
    uint32_t tier;          /* POLICY_TIER_* */
    uint32_t reserved;
};

struct policy_group {
    uint32_t id;
    uint32_t slots;
    uint32_t busy_rows; /* slots that are busy or excluded; held ones never count */
    uint32_t reserved;
};

/* How soon conversations come back after one stop reason. Bin i covers waits from edges_ns[i] to
 * edges_ns[i + 1], the last one everything above. at_risk: histories that were still waiting when the bin
 * began; returned: those of them continued within it. One that was overwritten counts until then. */
struct policy_returns {
    const uint64_t *edges_ns; /* ascending; all three have `bins` elements and are plain arrays */
    const uint64_t *at_risk;
    const uint64_t *returned;
    uint32_t bins; /* 0: nothing known */
    uint32_t reserved;
};

/* policy_snapshot.flags */
#define POLICY_PADDING_SAFE                                                                                  \
    1u /* a window covers active rows only. Without it, starting a row destroys the                          \
          idle histories below it in its group (policy_words.h: collateral) */

/* The table at one moment. A slot is named by its index in `slots`, 0..n_slots-1, everywhere in this
 * interface; main's index, where one is needed, is n_slots. */
struct policy_snapshot {
    uint32_t size;
    uint32_t flags;
    int64_t now_ns;
    const struct policy_history *slots; /* n_slots of them, 1..POLICY_SLOTS_MAX, slot_stride bytes apart */
    uint32_t n_slots;
    uint32_t slot_stride;
    const struct policy_history *main_history; /* the solo session's; NULL: there is none */
    const struct policy_group *groups;
    uint32_t n_groups;
    uint32_t group_stride;
    const uint32_t *shared; /* [n_slots + 1][n_slots + 1], main last: common prefix of two histories,
                               symmetric, the diagonal is without meaning. NULL: nothing known */
    uint32_t shared_stride; /* bytes from row to row */
    uint32_t n_returns;
    const struct policy_returns *returns; /* by stop reason, returns_stride bytes apart */
    uint32_t returns_stride;
    uint32_t reserved;
    double prompt_tokens_per_s; /* measured speed of reading prompts; 0: not yet */
    uint64_t seed;              /* for a policy that wants chance: the same for the same decision */
};

/* The request in question. */
struct policy_request {
    uint32_t size;
    uint32_t flags;          /* POLICY_REQUEST_* */
    uint32_t prompt_tokens;  /* >= 1 */
    uint32_t turn_tokens;    /* as in policy_history, of the prompt */
    uint32_t max_new_tokens; /* 0: not limited by the client */
    uint32_t reserved;
    uint64_t client_key;
    uint64_t session_key;
    uint64_t parent_key;
    uint64_t line_key;
};

/* ---- answers: laid out by the host, zero but for what is said here --------------------------------------
 */

#define POLICY_NO_SLOT UINT32_MAX

/* policy_place.source_kind */
#define POLICY_SOURCE_NONE 0u
#define POLICY_SOURCE_SLOT 1u
#define POLICY_SOURCE_MAIN 2u
#define POLICY_SOURCE_TIER 3u

struct policy_place {
    uint32_t size;
    uint32_t slot;        /* index of a free slot; the host presets POLICY_NO_SLOT */
    uint32_t source_kind; /* whose prefix the request takes: that history is reliable and shares > 0 */
    uint32_t source;      /* index, with POLICY_SOURCE_SLOT */
    uint32_t reason;      /* index into the reason table */
    uint32_t n_candidates;
    double loss; /* what is lost by this choice, in the policy's own measure, at least 0; not NaN */
    uint64_t tokens_lost;
    double *candidate_loss; /* NULL, or n_candidates == n_slots doubles, preset to NaN: the loss of each slot
                               that was considered */
};

struct policy_park {
    uint32_t size;
    uint32_t slot;   /* index of a free slot; the host presets POLICY_NO_SLOT */
    uint32_t reason; /* index into the reason table; a refusal has one too */
    uint32_t reserved;
};

/* policy_worth.state: the order in which memory is given up is blank, expired, protected. */
#define POLICY_STATE_UNKNOWN 0u /* what the host presets: not an answer */
#define POLICY_STATE_BLANK 1u
#define POLICY_STATE_EXPIRED 2u
#define POLICY_STATE_PROTECTED 3u

struct policy_worth {
    uint32_t state;
    uint32_t reserved;
    double retention; /* worth while protected; for people, 0 or more */
    double value;     /* worth once expired */
    double age_s;
    double ttl_s;   /* age at which protection ends */
    double give_up; /* within a state the lowest is given up first, from its end: a worth per token. NaN: the
                       host takes retention (protected) or value (expired) per token. No other may be NaN */
};

struct policy_state {
    uint32_t size;
    uint32_t stride;              /* of worth */
    struct policy_worth *worth;   /* n_slots of them */
    struct policy_worth *of_main; /* NULL when the snapshot has no main */
};

struct policy_set {
    uint32_t size;
    uint32_t n_words;
    uint64_t *words; /* slot i is bit i % 64 of word i / 64; zero at first, bits from n_slots on stay so */
};

/* ---- what a policy declares -----------------------------------------------------------------------------
 */

/* Answers carry an index into a table of these, so that no string crosses the border in a decision. */
struct policy_reason {
    const char *name;     /* [a-z0-9_]{1,31} */
    const char *sentence; /* why, for people */
};

/* policy_setting.kind */
#define POLICY_INT 1u
#define POLICY_REAL 2u
#define POLICY_SECONDS 3u /* a real number of seconds */
#define POLICY_BOOL 4u
#define POLICY_TEXT 5u
#define POLICY_CHOICE 6u

/* One row of the table of settings. The host parses, checks bounds and tells operators what was wrong and
 * where it was written, so that no policy has to. */
struct policy_setting {
    const char *name; /* [a-z0-9_]{1,63} */
    uint32_t kind;
    uint32_t n_choices;
    double min, max;            /* bounds, both allowed, of int, real and seconds; of text: of its length */
    const char *default_text;   /* as an operator would write it, within the bounds; bool: "true", "false" */
    const char *unit;           /* "s", "tokens", "" */
    const char *help;           /* one sentence */
    const char *env;            /* an environment name that is accepted too; NULL: none */
    const char *const *choices; /* n_choices names, 1..256, of a choice */
};

/* One value, parsed and within bounds. number and real are both set for int, real, seconds; bool: 0 or 1;
 * choice: the index. text: as it was written. */
struct policy_value {
    int64_t number;
    double real;
    const char *text; /* gone when create returns: copy it */
};

struct policy_create_args {
    uint32_t size;
    uint32_t n_values;     /* as many as the settings table has rows, in its order */
    uint32_t value_stride; /* bytes */
    uint32_t error_size;   /* bytes at `error`, 256 or more */
    const struct policy_value *values;
    char *error; /* why create returned NULL, for people: one line, ends with a zero byte */
};

/* Head of the entry: read before any code of the policy runs. */
struct policy_head {
    uint64_t magic;
    uint32_t abi_major;
    uint32_t abi_minor;   /* of the header it was built with */
    uint32_t needs_minor; /* the least the host must have; 0: any */
    uint32_t size;        /* of struct slot_policy; a shorter one lacks functions, the host's own answer */
    uint32_t size_snapshot, size_history, size_group, size_returns, size_request;
    uint32_t size_place, size_park, size_state, size_worth, size_set;
    uint32_t size_reason, size_setting, size_value, size_create_args;
    uint32_t reserved[8]; /* zero: sizes of structs to come, for the head cannot grow */
};

#define POLICY_HEAD(needs_minor)                                                                             \
    {                                                                                                        \
        POLICY_MAGIC, POLICY_ABI_MAJOR, POLICY_ABI_MINOR, (needs_minor), sizeof(struct slot_policy),         \
            sizeof(struct policy_snapshot), sizeof(struct policy_history), sizeof(struct policy_group),      \
            sizeof(struct policy_returns), sizeof(struct policy_request), sizeof(struct policy_place),       \
            sizeof(struct policy_park), sizeof(struct policy_state), sizeof(struct policy_worth),            \
            sizeof(struct policy_set), sizeof(struct policy_reason), sizeof(struct policy_setting),          \
            sizeof(struct policy_value), sizeof(struct policy_create_args),                                  \
        {                                                                                                    \
            0, 0, 0, 0, 0, 0, 0, 0                                                                           \
        }                                                                                                    \
    }

/* What the four functions return; a negative errno: the policy itself failed, and the host answers. */
#define POLICY_DECIDED 0
#define POLICY_NONE 1

struct slot_policy {
    struct policy_head head;
    const char *name;                    /* [a-z0-9_-]{1,31} */
    const char *version;                 /* for people */
    const char *summary;                 /* one sentence */
    const struct policy_reason *reasons; /* 1..256 of them */
    const struct policy_setting *settings;
    uint32_t n_reasons;
    uint32_t n_settings; /* 0..64 */

    /* `create` is due; any other may be NULL. Where one of the four is, the built-in policy answers. */

    /* [loader] What the four are called with from now on, or NULL and args->error filled. A policy without
     * settings or state returns any address but NULL. May allocate. */
    void *(*create)(const struct policy_create_args *args);
    /* [loader] No call runs and none will. */
    void (*destroy)(void *self);

    /* [any, several at once] Where does this request run, and from which history is its prefix taken?
     * POLICY_DECIDED and answer->slot, a free one; POLICY_NONE only when no slot is free, and then the
     * request waits. The histories' shared_prompt is of this request. Any free slot is a legal choice, and
     * any reliable history with shared_prompt > 0 a legal source, busy ones too: a prefix is shared, not
     * moved. */
    int (*place)(const void *self, const struct policy_snapshot *snapshot,
                 const struct policy_request *request, struct policy_place *answer);

    /* [any, several at once] A request is about to replace what main holds: which free slot keeps that?
     * POLICY_DECIDED and a free slot, or POLICY_NONE: main's history is not kept, or is already. The slot
     * inherits main's last use; that is the host's affair. */
    int (*park_destination)(const void *self, const struct policy_snapshot *snapshot,
                            const struct policy_request *request, struct policy_park *answer);

    /* [any, several at once] What is each history worth now? Fills every worth and returns POLICY_DECIDED.
     * No request is meant: shared_prompt says nothing here. */
    int (*cache_state)(const void *self, const struct policy_snapshot *snapshot, struct policy_state *answer);

    /* [any, several at once] Which idle slots hold an older copy of what another slot or main holds? They are
     * given up like blank ones. Asked after each request and before memory is given up. POLICY_DECIDED. */
    int (*superseded_slots)(const void *self, const struct policy_snapshot *snapshot,
                            struct policy_set *answer);
};

/* The one exported symbol. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const struct slot_policy slot_policy_entry;

#ifdef __cplusplus
}
#endif

/* ---- the layout, said twice so that a change cannot go unseen --------------------------------------------
 */

#ifdef __cplusplus
#define POLICY_ASSERT(what) static_assert(what, #what)
#else
#define POLICY_ASSERT(what) _Static_assert(what, #what)
#endif
#define POLICY_AT(type, field, offset) POLICY_ASSERT(offsetof(struct type, field) == (offset))
#define POLICY_SIZE(type, bytes) POLICY_ASSERT(sizeof(struct type) == (bytes))

POLICY_ASSERT(sizeof(void *) == 8);
/* clang-format off */
POLICY_SIZE(policy_history, 104); POLICY_AT(policy_history, id, 0); POLICY_AT(policy_history, group, 4);
POLICY_AT(policy_history, flags, 8); POLICY_AT(policy_history, tokens, 12);
POLICY_AT(policy_history, turn_tokens, 16); POLICY_AT(policy_history, shared_prompt, 20);
POLICY_AT(policy_history, last_use_ns, 24); POLICY_AT(policy_history, turns, 32);
POLICY_AT(policy_history, stop_reason, 36); POLICY_AT(policy_history, prompt_tokens, 40);
POLICY_AT(policy_history, request_flags, 44); POLICY_AT(policy_history, client_key, 48);
POLICY_AT(policy_history, session_key, 56); POLICY_AT(policy_history, parent_key, 64);
POLICY_AT(policy_history, line_key, 72); POLICY_AT(policy_history, recompute_ns, 80);
POLICY_AT(policy_history, bytes, 88); POLICY_AT(policy_history, tier, 96);
POLICY_AT(policy_history, reserved, 100);
POLICY_SIZE(policy_group, 16); POLICY_AT(policy_group, id, 0); POLICY_AT(policy_group, slots, 4);
POLICY_AT(policy_group, busy_rows, 8); POLICY_AT(policy_group, reserved, 12);
POLICY_SIZE(policy_returns, 32); POLICY_AT(policy_returns, edges_ns, 0);
POLICY_AT(policy_returns, at_risk, 8); POLICY_AT(policy_returns, returned, 16);
POLICY_AT(policy_returns, bins, 24); POLICY_AT(policy_returns, reserved, 28);
POLICY_SIZE(policy_snapshot, 104); POLICY_AT(policy_snapshot, size, 0); POLICY_AT(policy_snapshot, flags, 4);
POLICY_AT(policy_snapshot, now_ns, 8); POLICY_AT(policy_snapshot, slots, 16);
POLICY_AT(policy_snapshot, n_slots, 24); POLICY_AT(policy_snapshot, slot_stride, 28);
POLICY_AT(policy_snapshot, main_history, 32); POLICY_AT(policy_snapshot, groups, 40);
POLICY_AT(policy_snapshot, n_groups, 48); POLICY_AT(policy_snapshot, group_stride, 52);
POLICY_AT(policy_snapshot, shared, 56); POLICY_AT(policy_snapshot, shared_stride, 64);
POLICY_AT(policy_snapshot, n_returns, 68); POLICY_AT(policy_snapshot, returns, 72);
POLICY_AT(policy_snapshot, returns_stride, 80); POLICY_AT(policy_snapshot, reserved, 84);
POLICY_AT(policy_snapshot, prompt_tokens_per_s, 88); POLICY_AT(policy_snapshot, seed, 96);
POLICY_SIZE(policy_request, 56); POLICY_AT(policy_request, size, 0); POLICY_AT(policy_request, flags, 4);
POLICY_AT(policy_request, prompt_tokens, 8); POLICY_AT(policy_request, turn_tokens, 12);
POLICY_AT(policy_request, max_new_tokens, 16); POLICY_AT(policy_request, reserved, 20);
POLICY_AT(policy_request, client_key, 24); POLICY_AT(policy_request, session_key, 32);
POLICY_AT(policy_request, parent_key, 40); POLICY_AT(policy_request, line_key, 48);
POLICY_SIZE(policy_place, 48); POLICY_AT(policy_place, size, 0); POLICY_AT(policy_place, slot, 4);
POLICY_AT(policy_place, source_kind, 8); POLICY_AT(policy_place, source, 12);
POLICY_AT(policy_place, reason, 16); POLICY_AT(policy_place, n_candidates, 20);
POLICY_AT(policy_place, loss, 24); POLICY_AT(policy_place, tokens_lost, 32);
POLICY_AT(policy_place, candidate_loss, 40);
POLICY_SIZE(policy_park, 16); POLICY_AT(policy_park, size, 0); POLICY_AT(policy_park, slot, 4);
POLICY_AT(policy_park, reason, 8); POLICY_AT(policy_park, reserved, 12);
POLICY_SIZE(policy_worth, 48); POLICY_AT(policy_worth, state, 0); POLICY_AT(policy_worth, reserved, 4);
POLICY_AT(policy_worth, retention, 8); POLICY_AT(policy_worth, value, 16); POLICY_AT(policy_worth, age_s, 24);
POLICY_AT(policy_worth, ttl_s, 32); POLICY_AT(policy_worth, give_up, 40);
POLICY_SIZE(policy_state, 24); POLICY_AT(policy_state, size, 0); POLICY_AT(policy_state, stride, 4);
POLICY_AT(policy_state, worth, 8); POLICY_AT(policy_state, of_main, 16);
POLICY_SIZE(policy_set, 16); POLICY_AT(policy_set, size, 0); POLICY_AT(policy_set, n_words, 4);
POLICY_AT(policy_set, words, 8);
POLICY_SIZE(policy_reason, 16); POLICY_AT(policy_reason, name, 0); POLICY_AT(policy_reason, sentence, 8);
POLICY_SIZE(policy_setting, 72); POLICY_AT(policy_setting, name, 0); POLICY_AT(policy_setting, kind, 8);
POLICY_AT(policy_setting, n_choices, 12); POLICY_AT(policy_setting, min, 16);
POLICY_AT(policy_setting, max, 24); POLICY_AT(policy_setting, default_text, 32);
POLICY_AT(policy_setting, unit, 40); POLICY_AT(policy_setting, help, 48); POLICY_AT(policy_setting, env, 56);
POLICY_AT(policy_setting, choices, 64);
POLICY_SIZE(policy_value, 24); POLICY_AT(policy_value, number, 0); POLICY_AT(policy_value, real, 8);
POLICY_AT(policy_value, text, 16);
POLICY_SIZE(policy_create_args, 32); POLICY_AT(policy_create_args, size, 0);
POLICY_AT(policy_create_args, n_values, 4); POLICY_AT(policy_create_args, value_stride, 8);
POLICY_AT(policy_create_args, error_size, 12); POLICY_AT(policy_create_args, values, 16);
POLICY_AT(policy_create_args, error, 24);
POLICY_SIZE(policy_head, 112); POLICY_AT(policy_head, magic, 0); POLICY_AT(policy_head, abi_major, 8);
POLICY_AT(policy_head, abi_minor, 12); POLICY_AT(policy_head, needs_minor, 16);
POLICY_AT(policy_head, size, 20); POLICY_AT(policy_head, size_snapshot, 24);
POLICY_AT(policy_head, size_history, 28); POLICY_AT(policy_head, size_group, 32);
POLICY_AT(policy_head, size_returns, 36); POLICY_AT(policy_head, size_request, 40);
POLICY_AT(policy_head, size_place, 44); POLICY_AT(policy_head, size_park, 48);
POLICY_AT(policy_head, size_state, 52); POLICY_AT(policy_head, size_worth, 56);
POLICY_AT(policy_head, size_set, 60); POLICY_AT(policy_head, size_reason, 64);
POLICY_AT(policy_head, size_setting, 68); POLICY_AT(policy_head, size_value, 72);
POLICY_AT(policy_head, size_create_args, 76); POLICY_AT(policy_head, reserved, 80);
POLICY_SIZE(slot_policy, 208); POLICY_AT(slot_policy, head, 0); POLICY_AT(slot_policy, name, 112);
POLICY_AT(slot_policy, version, 120); POLICY_AT(slot_policy, summary, 128);
POLICY_AT(slot_policy, reasons, 136); POLICY_AT(slot_policy, settings, 144);
POLICY_AT(slot_policy, n_reasons, 152); POLICY_AT(slot_policy, n_settings, 156);
POLICY_AT(slot_policy, create, 160); POLICY_AT(slot_policy, destroy, 168); POLICY_AT(slot_policy, place, 176);
POLICY_AT(slot_policy, park_destination, 184); POLICY_AT(slot_policy, cache_state, 192);
POLICY_AT(slot_policy, superseded_slots, 200);
/* clang-format on */
#undef POLICY_ASSERT
#undef POLICY_AT
#undef POLICY_SIZE

#endif
