/* Case: decisions as JSON, one a line: what `berth policy eval` reads and answers, what a trace holds.
 *
 *   {"id": any, "call": "place" | "park_destination" | "cache_state" | "superseded_slots",
 *    "snapshot": {"now_s", "padding_safe", "prompt_tokens_per_s", "seed",
 *      "slots": [{"id", "group", "state": "idle" | "busy", "excluded", "held", "reliable", "tokens",
 *                 "turn_tokens", "shared_prompt", "last_use_s", "turns", "stop_reason", "prompt_tokens",
 *                 "client_key", "session_key", "parent_key", "line_key", "side", "tools", "subagent",
 *                 "recompute_s", "bytes"}],
 *      "main": {"valid", "busy", and of a slot's fields from "reliable" on},
 *      "returns": {STOP_REASON: {"edges_s", "at_risk", "returned"}}: lists of one length,
 *      "shared": [[...]]: (slots + 1) x (slots + 1), main last, symmetric, the diagonal without meaning},
 *    "request": {"prompt_tokens", "turn_tokens", "max_new_tokens", the keys and flags of a slot},
 *    "decision": anything; not read}
 *
 * What is left out has its default: false, 0, "idle", "none"; `padding_safe` and `reliable` true; `shared`
 * all 0. Seconds are taken to the nearest nanosecond. Groups are those the slots name. The answer names slots
 * by their ids:
 *
 *   {"id", "ok": true, "slot": 3 | null, "source": 1 | "main" | null, "reason", "loss", "tokens_lost"}
 *   {"id", "ok": true, "slot": 3 | null, "reason"}
 *   {"id", "ok": true, "slots": [{"state", "retention", "value", "age_s", "ttl_s", "give_up"}],
 *    "main": the same | null}
 *   {"id", "ok": true, "slots": [1, 4]}
 *   {"id", "ok": false, "error": "text"}
 *
 * Numbers have 17 significant digits, and whole ones none too many; what JSON has no number for is null.
 * Pure; any thread. Must not know: where a case comes from. Tests: tests/unit/test_case.c */
#pragma once
#include "policy/decision.h"
#include <stddef.h>

struct buf;
struct json_t;

#define POLICY_CASE_DEPTH 16u /* of nesting, for the parser */

struct policy_case; /* one that was read, with all its memory: to be used for the next one again */

int policy_case_new(struct policy_case **ret_case);
void policy_case_free(struct policy_case *c);
/* Reads a whole case. Refused, with err naming the field ("snapshot.slots[3].turn_tokens: 9 is above tokens,
 * which is 5"): unknown keys, wrong types, numbers that do not fit, turn_tokens or shared_prompt above
 * tokens, shared_prompt above prompt_tokens - 1 (in calls that have a request), turn_tokens above
 * prompt_tokens, a matrix of another size or not symmetric, two slots of one id, no slot or more than 1,024.
 * 0, -EINVAL with err, or -ENOMEM. */
int policy_case_read(struct policy_case *c, const struct json_t *object, char *err, size_t errlen);
/* What was read, without an answer; valid until the next read. */
const struct policy_decision *policy_case_get(const struct policy_case *c);

/* Appends the case as one JSON object without a line break. d needs no answer: a breach is told this way.
 * Times beyond 2^50 ns (13 days) are told less a multiple of that, so that a double holds every nanosecond
 * of them: ages stay what they are. */
void policy_case_write(struct buf *b, const struct policy_decision *d);
/* The same with the answer and where it comes from in "decision": a line of a trace. */
void policy_case_write_decided(struct buf *b, const struct policy_decision *d);

/* Appends the members that answer a case ("slot": 3, ... without braces). `d` has the answer. */
void policy_answer_write(struct buf *b, const struct policy_decision *d);
