/* Case, read: see case.h. What an object may hold is a table of fields; what no table can say is checked
 * after it. The memory of a case is kept for the next one. */
#include "policy/case.h"
#include "policy/case_words.h"
#include "util/jsonx.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BINS_LIMIT 4096u
#define SECONDS_LIMIT 9.2e9 /* of a signed 64-bit number of nanoseconds */
#define NO_INDEX UINT32_MAX

struct policy_case {
    struct policy_history *slots, main_history;
    struct policy_group *groups;
    uint32_t *shared;
    uint64_t *bins;
    size_t cap_slots, cap_bins;
    struct policy_returns returns[POLICY_STOPS];
    struct policy_request request;
    struct policy_snapshot view;
    struct policy_decision d;
};

/* Where the reader is, for error texts. */
struct reader {
    struct policy_case *c;
    const char *at; /* "snapshot.slots", "" at the top */
    uint32_t index; /* element of a list, or NO_INDEX */
    char *err;
    size_t errlen;
};

__attribute__((format(printf, 3, 4))) static int fail(struct reader *r, const char *key, const char *fmt, ...)
{
    char what[200], index[16] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (r->index != NO_INDEX)
        snprintf(index, sizeof index, "[%u]", r->index);
    snprintf(r->err, r->errlen, "%s%s%s%.80s: %s", r->at, index, *r->at && *key ? "." : "", key, what);
    return -EINVAL;
}

/* ---- fields ---- */

enum kind { U32, LENGTH, U64, S64, SECONDS, DURATION, RATE, FLAG, STATE, STOP, ELSEWHERE };

struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    uint32_t flag;
    unsigned only; /* objects that have it; 0: all that use the table */
};

enum { OF_SLOT = 1, OF_MAIN = 2 };

#define H(member) offsetof(struct policy_history, member)
static const struct field history_fields[] = {
    { "id", U32, H(id), 0, OF_SLOT },
    { "group", U32, H(group), 0, OF_SLOT },
    { "state", STATE, H(flags), POLICY_BUSY, OF_SLOT },
    { "excluded", FLAG, H(flags), POLICY_EXCLUDED, OF_SLOT },
    { "held", FLAG, H(flags), POLICY_HELD, OF_SLOT },
    { "valid", ELSEWHERE, 0, 0, OF_MAIN },
    { "busy", FLAG, H(flags), POLICY_BUSY, OF_MAIN },
    { "reliable", FLAG, H(flags), POLICY_RELIABLE, 0 },
    { "tokens", LENGTH, H(tokens), 0, 0 },
    { "turn_tokens", LENGTH, H(turn_tokens), 0, 0 },
    { "shared_prompt", LENGTH, H(shared_prompt), 0, 0 },
    { "last_use_s", SECONDS, H(last_use_ns), 0, 0 },
    { "turns", U32, H(turns), 0, 0 },
    { "stop_reason", STOP, H(stop_reason), 0, 0 },
    { "prompt_tokens", LENGTH, H(prompt_tokens), 0, 0 },
    { "client_key", U64, H(client_key), 0, 0 },
    { "session_key", U64, H(session_key), 0, 0 },
    { "parent_key", U64, H(parent_key), 0, 0 },
    { "line_key", U64, H(line_key), 0, 0 },
    { "side", FLAG, H(request_flags), POLICY_REQUEST_SIDE, 0 },
    { "tools", FLAG, H(request_flags), POLICY_REQUEST_TOOLS, 0 },
    { "subagent", FLAG, H(request_flags), POLICY_REQUEST_SUBAGENT, 0 },
    { "recompute_s", DURATION, H(recompute_ns), 0, 0 },
    { "bytes", U64, H(bytes), 0, 0 },
};

#define R(member) offsetof(struct policy_request, member)
static const struct field request_fields[] = {
    { "prompt_tokens", LENGTH, R(prompt_tokens), 0, 0 },
    { "turn_tokens", LENGTH, R(turn_tokens), 0, 0 },
    { "max_new_tokens", LENGTH, R(max_new_tokens), 0, 0 },
    { "client_key", U64, R(client_key), 0, 0 },
    { "session_key", U64, R(session_key), 0, 0 },
    { "parent_key", U64, R(parent_key), 0, 0 },
    { "line_key", U64, R(line_key), 0, 0 },
    { "side", FLAG, R(flags), POLICY_REQUEST_SIDE, 0 },
    { "tools", FLAG, R(flags), POLICY_REQUEST_TOOLS, 0 },
    { "subagent", FLAG, R(flags), POLICY_REQUEST_SUBAGENT, 0 },
};

#define S(member) offsetof(struct policy_snapshot, member)
static const struct field snapshot_fields[] = {
    { "now_s", SECONDS, S(now_ns), 0, 0 },
    { "padding_safe", FLAG, S(flags), POLICY_PADDING_SAFE, 0 },
    { "prompt_tokens_per_s", RATE, S(prompt_tokens_per_s), 0, 0 },
    { "seed", S64, S(seed), 0, 0 },
    { "slots", ELSEWHERE, 0, 0, 0 },
    { "main", ELSEWHERE, 0, 0, 0 },
    { "returns", ELSEWHERE, 0, 0, 0 },
    { "shared", ELSEWHERE, 0, 0, 0 },
};

static const struct field case_fields[] = {
    { "id", ELSEWHERE, 0, 0, 0 },      { "call", ELSEWHERE, 0, 0, 0 },     { "snapshot", ELSEWHERE, 0, 0, 0 },
    { "request", ELSEWHERE, 0, 0, 0 }, { "decision", ELSEWHERE, 0, 0, 0 },
};

static const struct field stop_fields[POLICY_STOPS] = {
    { "none", ELSEWHERE, 0, 0, 0 },   { "end_turn", ELSEWHERE, 0, 0, 0 },  { "tool_use", ELSEWHERE, 0, 0, 0 },
    { "length", ELSEWHERE, 0, 0, 0 }, { "cancelled", ELSEWHERE, 0, 0, 0 },
};

static const struct field returns_fields[] = {
    { "edges_s", ELSEWHERE, 0, 0, 0 },
    { "at_risk", ELSEWHERE, 0, 0, 0 },
    { "returned", ELSEWHERE, 0, 0, 0 },
};

#define FIELDS(table) (table), sizeof(table) / sizeof *(table)

static int fail_type(struct reader *r, const char *key, const json_t *v, const char *wanted)
{
    return fail(r, key, "%s where %s is wanted", jsonx_type_name(v), wanted);
}

static int read_whole(struct reader *r, const char *key, const json_t *v, int64_t min, int64_t max,
                      int64_t *ret)
{
    if (!json_is_integer(v))
        return fail_type(r, key, v, "a whole number");
    if (json_integer_value(v) < min || json_integer_value(v) > max)
        return fail(r, key, "%lld is outside %lld..%lld", (long long)json_integer_value(v), (long long)min,
                    (long long)max);
    *ret = json_integer_value(v);
    return 0;
}

static int read_real(struct reader *r, const char *key, const json_t *v, double min, double max, double *ret)
{
    if (!json_is_number(v))
        return fail_type(r, key, v, "a number");
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return fail(r, key, "%g is outside %g..%g", x, min, max);
    *ret = x;
    return 0;
}

/* Nearest nanosecond. */
static int read_ns(struct reader *r, const char *key, const json_t *v, double min, int64_t *ret)
{
    double s = 0;
    int e = read_real(r, key, v, min, SECONDS_LIMIT, &s);
    if (e == 0)
        *ret = llround(s * 1e9);
    return e;
}

static int read_flag(struct reader *r, const char *key, const json_t *v, uint32_t flag, uint32_t *flags)
{
    if (!json_is_boolean(v))
        return fail_type(r, key, v, "true or false");
    *flags = json_is_true(v) ? *flags | flag : *flags & ~flag;
    return 0;
}

static int read_stop(struct reader *r, const char *key, const json_t *v, uint32_t *ret)
{
    if (!json_is_string(v))
        return fail_type(r, key, v, "a string");
    for (uint32_t i = 0; i < POLICY_STOPS; i++) {
        if (strcmp(json_string_value(v), policy_stop_names[i]) == 0) {
            *ret = i;
            return 0;
        }
    }
    return fail(r, key, "\"%.40s\" is none of none, end_turn, tool_use, length, cancelled",
                json_string_value(v));
}

static int read_state(struct reader *r, const char *key, const json_t *v, uint32_t *flags)
{
    if (!json_is_string(v))
        return fail_type(r, key, v, "a string");
    if (strcmp(json_string_value(v), "busy") == 0)
        *flags |= POLICY_BUSY;
    else if (strcmp(json_string_value(v), "idle") != 0)
        return fail(r, key, "\"%.40s\" is neither idle nor busy", json_string_value(v));
    return 0;
}

static int read_field(struct reader *r, const struct field *f, const json_t *v, char *into)
{
    void *at = into + f->offset;
    int64_t n = 0;
    int e;
    switch (f->kind) {
    case U32:
    case LENGTH:
        e = read_whole(r, f->name, v, 0, f->kind == LENGTH ? INT32_MAX : UINT32_MAX, &n);
        if (e == 0)
            *(uint32_t *)at = (uint32_t)n;
        return e;
    case U64:
        return read_whole(r, f->name, v, 0, INT64_MAX, at);
    case S64:
        return read_whole(r, f->name, v, INT64_MIN, INT64_MAX, at);
    case SECONDS:
        return read_ns(r, f->name, v, -SECONDS_LIMIT, at);
    case DURATION:
        return read_ns(r, f->name, v, 0, at);
    case RATE:
        return read_real(r, f->name, v, 0, 1e300, at);
    case FLAG:
        return read_flag(r, f->name, v, f->flag, at);
    case STATE:
        return read_state(r, f->name, v, at);
    case STOP:
        return read_stop(r, f->name, v, at);
    default:
        return 0; /* whoever reads the object does it */
    }
}

static int fail_unknown(struct reader *r, const char *key, const struct field *fields, size_t n, unsigned of)
{
    const char *names[32];
    size_t known = 0;
    for (size_t i = 0; i < n && known < 32; i++)
        if (!fields[i].only || (fields[i].only & of))
            names[known++] = fields[i].name;
    const char *nearest = jsonx_nearest(key, names, known);
    return fail(r, key, "unknown key%s%s%s", nearest ? "; did you mean " : "", nearest ? nearest : "",
                nearest ? "?" : "");
}

/* Reads what the fields say into `into`; null counts as left out. */
static int read_object(struct reader *r, const json_t *o, const struct field *fields, size_t n, unsigned of,
                       void *into)
{
    const char *key;
    json_t *v;
    if (!json_is_object(o))
        return fail_type(r, "", o, "an object");
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        size_t i = 0;
        while (i < n && (strcmp(fields[i].name, key) != 0 || (fields[i].only && !(fields[i].only & of))))
            i++;
        if (i == n)
            return fail_unknown(r, key, fields, n, of);
        if (json_is_null(v))
            continue;
        int e = read_field(r, &fields[i], v, into);
        if (e < 0)
            return e;
    }
    return 0;
}

/* A member that is there and not null. */
static const json_t *member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

/* ---- the table ---- */

static int grow_slots(struct policy_case *c, size_t n)
{
    if (n <= c->cap_slots)
        return 0;
    free(c->slots);
    free(c->groups);
    free(c->shared);
    c->slots = calloc(n, sizeof *c->slots);
    c->groups = calloc(n, sizeof *c->groups);
    c->shared = calloc((n + 1) * (n + 1), sizeof *c->shared);
    c->cap_slots = c->slots && c->groups && c->shared ? n : 0;
    return c->cap_slots ? 0 : -ENOMEM;
}

static int read_history(struct reader *r, const json_t *o, unsigned of, struct policy_history *h)
{
    *h = (struct policy_history){ .flags = POLICY_RELIABLE };
    int e = read_object(r, o, FIELDS(history_fields), of, h);
    if (e < 0)
        return e;
    if (h->turn_tokens > h->tokens)
        return fail(r, "turn_tokens", "%u is above tokens, which is %u", h->turn_tokens, h->tokens);
    if (h->shared_prompt > h->tokens)
        return fail(r, "shared_prompt", "%u is above tokens, which is %u", h->shared_prompt, h->tokens);
    uint32_t most = r->c->request.prompt_tokens ? r->c->request.prompt_tokens - 1 : 0;
    if (r->c->d.request && h->shared_prompt > most)
        return fail(r, "shared_prompt", "%u is above the request's prompt_tokens - 1, which is %u",
                    h->shared_prompt, most);
    return 0;
}

static int read_slots(struct reader *r, const json_t *list)
{
    struct policy_case *c = r->c;
    r->at = "snapshot";
    if (!list)
        return fail(r, "slots", "is missing: 1..%u slots are wanted", POLICY_SLOTS_MAX);
    if (!json_is_array(list))
        return fail_type(r, "slots", list, "a list");
    size_t n = json_array_size(list);
    if (!n || n > POLICY_SLOTS_MAX)
        return fail(r, "slots", "%zu slots where 1..%u are wanted", n, POLICY_SLOTS_MAX);
    int e = grow_slots(c, n);
    r->at = "snapshot.slots";
    for (r->index = 0; e == 0 && r->index < n; r->index++) {
        e = read_history(r, json_array_get(list, r->index), OF_SLOT, &c->slots[r->index]);
        for (uint32_t k = 0; e == 0 && k < r->index; k++)
            if (c->slots[k].id == c->slots[r->index].id)
                e = fail(r, "id", "%u is the id of slot %u of the list too", c->slots[k].id, k);
    }
    r->index = NO_INDEX;
    c->view.n_slots = (uint32_t)n;
    return e;
}

static int read_main(struct reader *r, const json_t *o)
{
    r->at = "snapshot.main";
    if (!o)
        return 0;
    if (!json_is_object(o))
        return fail_type(r, "", o, "an object");
    const json_t *valid = member(o, "valid");
    if (valid && !json_is_boolean(valid))
        return fail_type(r, "valid", valid, "true or false");
    int e = read_history(r, o, OF_MAIN, &r->c->main_history);
    if (e == 0 && json_is_true(valid))
        r->c->view.main_history = &r->c->main_history;
    return e;
}

static void find_groups(struct policy_case *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->view.n_slots; i++) {
        const struct policy_history *h = &c->slots[i];
        uint32_t g = 0;
        while (g < n && c->groups[g].id != h->group)
            g++;
        if (g == n)
            c->groups[n++] = (struct policy_group){ .id = h->group };
        c->groups[g].slots++;
        c->groups[g].busy_rows += (h->flags & (POLICY_BUSY | POLICY_EXCLUDED)) != 0;
    }
    c->view.n_groups = n;
}

static int read_shared_row(struct reader *r, const json_t *row, uint32_t i, uint32_t n)
{
    uint32_t *into = r->c->shared + (size_t)i * n;
    if (!json_is_array(row))
        return fail_type(r, "", row, "a list");
    if (json_array_size(row) != n)
        return fail(r, "", "%zu numbers where %u are wanted: every slot, and main last", json_array_size(row),
                    n);
    for (uint32_t k = 0; k < n; k++) {
        int64_t v = 0;
        int e = read_whole(r, "", json_array_get(row, k), 0, INT32_MAX, &v);
        if (e < 0)
            return e;
        into[k] = (uint32_t)v;
        if (k < i && into[k] != r->c->shared[(size_t)k * n + i])
            return fail(r, "", "number %u is %u, and number %u of row %u is %u: the matrix is symmetric", k,
                        into[k], i, k, r->c->shared[(size_t)k * n + i]);
    }
    return 0;
}

static int read_shared(struct reader *r, const json_t *rows)
{
    uint32_t n = r->c->view.n_slots + 1;
    r->at = "snapshot.shared";
    r->c->view.shared = r->c->shared;
    r->c->view.shared_stride = n * (uint32_t)sizeof *r->c->shared;
    if (!rows) {
        memset(r->c->shared, 0, (size_t)n * n * sizeof *r->c->shared);
        return 0;
    }
    if (!json_is_array(rows))
        return fail_type(r, "", rows, "a list");
    if (json_array_size(rows) != n)
        return fail(r, "", "%zu rows where %u are wanted: every slot, and main last", json_array_size(rows),
                    n);
    int e = 0;
    for (r->index = 0; e == 0 && r->index < n; r->index++)
        e = read_shared_row(r, json_array_get(rows, r->index), r->index, n);
    r->index = NO_INDEX;
    return e;
}

/* ---- returns ---- */

static int read_bins(struct reader *r, const json_t *o, const char *key, bool seconds, size_t n,
                     uint64_t *into)
{
    const json_t *list = member(o, key);
    if (!json_is_array(list))
        return list ? fail_type(r, key, list, "a list") : fail(r, key, "is missing");
    if (json_array_size(list) != n)
        return fail(r, key, "%zu numbers where edges_s has %zu", json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        int64_t v = 0;
        const json_t *x = json_array_get(list, i);
        int e = seconds ? read_ns(r, key, x, 0, &v) : read_whole(r, key, x, 0, INT64_MAX, &v);
        if (e < 0)
            return e;
        if (seconds && i && (uint64_t)v <= into[i - 1])
            return fail(r, key, "number %zu is not above the one before it", i);
        into[i] = (uint64_t)v;
    }
    return 0;
}

static int read_returns_after(struct reader *r, const json_t *o, struct policy_returns *ret, uint64_t *bins)
{
    int e = read_object(r, o, FIELDS(returns_fields), 0, NULL);
    if (e < 0)
        return e;
    size_t n = json_array_size(member(o, "edges_s"));
    e = read_bins(r, o, "edges_s", true, n, bins);
    if (e == 0)
        e = read_bins(r, o, "at_risk", false, n, bins + n);
    if (e == 0)
        e = read_bins(r, o, "returned", false, n, bins + 2 * n);
    *ret = (struct policy_returns){
        .edges_ns = bins, .at_risk = bins + n, .returned = bins + 2 * n, .bins = (uint32_t)n
    };
    return e;
}

static int read_returns(struct reader *r, const json_t *o)
{
    static const char *const at[POLICY_STOPS] = { "snapshot.returns.none", "snapshot.returns.end_turn",
                                                  "snapshot.returns.tool_use", "snapshot.returns.length",
                                                  "snapshot.returns.cancelled" };
    struct policy_case *c = r->c;
    size_t n[POLICY_STOPS] = { 0 }, total = 0;
    r->at = "snapshot.returns";
    if (!o)
        return 0;
    int e = read_object(r, o, FIELDS(stop_fields), 0, NULL);
    for (uint32_t i = 0; e == 0 && i < POLICY_STOPS; i++) {
        n[i] = json_array_size(json_object_get(json_object_get(o, policy_stop_names[i]), "edges_s"));
        total += 3 * n[i];
        if (n[i] > BINS_LIMIT)
            e = fail(r, policy_stop_names[i], "%zu bins where at most %u are allowed", n[i], BINS_LIMIT);
    }
    if (e == 0 && total > c->cap_bins) {
        free(c->bins);
        c->bins = calloc(total, sizeof *c->bins);
        c->cap_bins = c->bins ? total : 0;
        e = c->bins ? 0 : -ENOMEM;
    }
    uint64_t *bins = c->bins;
    for (uint32_t i = 0; e == 0 && i < POLICY_STOPS; i++) {
        const json_t *one = member(o, policy_stop_names[i]);
        c->returns[i] = (struct policy_returns){ 0 };
        r->at = at[i];
        if (one)
            e = read_returns_after(r, one, &c->returns[i], bins);
        bins += 3 * n[i];
    }
    c->view.returns = c->returns;
    c->view.n_returns = POLICY_STOPS;
    c->view.returns_stride = sizeof c->returns[0];
    return e;
}

/* ---- the whole ---- */

static int read_snapshot(struct reader *r, const json_t *o)
{
    struct policy_case *c = r->c;
    r->at = "snapshot";
    if (!o)
        return fail(r, "", "is missing");
    c->view = (struct policy_snapshot){ .size = sizeof c->view, .flags = POLICY_PADDING_SAFE };
    int e = read_object(r, o, FIELDS(snapshot_fields), 0, &c->view);
    if (e == 0)
        e = read_slots(r, member(o, "slots"));
    if (e == 0)
        e = read_main(r, member(o, "main"));
    if (e == 0)
        e = read_shared(r, member(o, "shared"));
    if (e == 0)
        e = read_returns(r, member(o, "returns"));
    if (e < 0)
        return e;
    c->view.slots = c->slots;
    c->view.slot_stride = sizeof *c->slots;
    find_groups(c);
    c->view.groups = c->groups;
    c->view.group_stride = sizeof *c->groups;
    return 0;
}

static int read_call(struct reader *r, const json_t *v)
{
    if (!v)
        return fail(r, "call", "is missing");
    if (!json_is_string(v))
        return fail_type(r, "call", v, "a string");
    for (unsigned i = 0; i < POLICY_CALLS; i++) {
        if (strcmp(json_string_value(v), policy_call_name(i)) == 0) {
            r->c->d.call = i;
            return 0;
        }
    }
    return fail(r, "call", "\"%.40s\" is none of place, park_destination, cache_state, superseded_slots",
                json_string_value(v));
}

int policy_case_read(struct policy_case *c, const json_t *object, char *err, size_t errlen)
{
    struct reader r = { .c = c, .at = "", .index = NO_INDEX, .err = err, .errlen = errlen };
    c->d = (struct policy_decision){ .snapshot = &c->view, .placing = POLICY_NO_SLOT };
    c->request = (struct policy_request){ .size = sizeof c->request };
    if (!json_is_object(object)) {
        snprintf(err, errlen, "%s where a case, an object, is wanted", jsonx_type_name(object));
        return -EINVAL;
    }
    int e = read_object(&r, object, FIELDS(case_fields), 0, NULL);
    if (e == 0)
        e = read_call(&r, member(object, "call"));
    if (e < 0)
        return e;
    const json_t *request = member(object, "request");
    r.at = "request";
    if (request)
        e = read_object(&r, request, FIELDS(request_fields), 0, &c->request);
    if (e < 0)
        return e;
    if (c->d.call == POLICY_CALL_PLACE || c->d.call == POLICY_CALL_PARK)
        c->d.request = &c->request;
    return read_snapshot(&r, member(object, "snapshot"));
}

int policy_case_new(struct policy_case **ret_case)
{
    struct policy_case *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    *ret_case = c;
    return 0;
}

void policy_case_free(struct policy_case *c)
{
    if (!c)
        return;
    free(c->slots);
    free(c->groups);
    free(c->shared);
    free(c->bins);
    free(c);
}

const struct policy_decision *policy_case_get(const struct policy_case *c)
{
    return &c->d;
}
