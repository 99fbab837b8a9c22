/* Identity: which conversation a request says it belongs to, whose sub-agent sends it, and whether it is a
 * request beside a conversation. Policies are told of these; what is shared between requests is decided by
 * their tokens and their salt alone, which says who may share. Names become numbers here and are forgotten.
 * Tests: tests/e2e/test_identity.py */
#include "api/private.h"
#include "util/digest.h"
#include "util/jsonx.h"
#include "util/rng.h"
#include <string.h>
#include <strings.h>

#define SIDE_TOKENS 64u   /* an answer so short is no turn of a conversation */
#define SIDE_BYTES 8192u  /* and a prompt so long is one */
#define FIRST_BYTES 4096u /* of the first message: enough to tell conversations apart */
#define TITLE_BYTES 400u  /* where a request for a title says so */

/* Whom a request shares prefixes with. No secret of this process is in it: conversations that were saved to
 * files are found again by another one. */
static uint64_t salt_of(const char *kind, uint64_t within, const char *text, size_t len)
{
    uint8_t digest[DIGEST_LEN];
    uint64_t salt;
    struct buf b = { 0 };
    buf_append(&b, kind, strlen(kind) + 1);
    buf_append(&b, &within, sizeof within);
    buf_append(&b, text, len);
    digest_sha256(b.data, b.len, digest);
    memcpy(&salt, digest, sizeof salt);
    if (b.failed || !salt)
        salt = rng_system_seed() | 1; /* shared with nobody */
    buf_free(&b);
    return salt;
}

void identity_add_salt(struct exchange *ex, const char *text, size_t len)
{
    struct api_identity *id = &ex->identity;
    id->salt = salt_of("cache_salt", id->salt, text, len);
}

/* 0 for an empty text. */
static uint64_t key_of(const struct api *a, const char *kind, const char *text, size_t len)
{
    uint8_t digest[DIGEST_LEN];
    uint64_t key;
    struct buf b = { 0 };
    if (!len)
        return 0;
    buf_append(&b, a->salt, sizeof a->salt);
    buf_append(&b, kind, strlen(kind) + 1);
    buf_append(&b, text, len);
    digest_sha256(b.data, b.len, digest);
    memcpy(&key, digest, sizeof key);
    key >>= 1; /* policies are promised 63 bits, which every reader of JSON has a number for */
    key = b.failed ? 0 : key ? key : 1;
    buf_free(&b);
    return key;
}

static uint64_t key_of_header(const struct exchange *ex, const char *kind, const char *const *names)
{
    for (; *names; names++) {
        const char *value = http_header(ex->http, *names);
        if (value && *value)
            return key_of(ex->api, kind, value, strlen(value));
    }
    return 0;
}

void identity_from_headers(struct exchange *ex)
{
    static const char *const session[] = {
        "X-Claude-Code-Session-Id", "session-id",         "session_id",   "thread-id",
        "conversation_id",          "x-opencode-session", "X-Session-Id", NULL
    };
    static const char *const parent[] = { "X-Claude-Code-Parent-Session-Id", "x-codex-parent-thread-id",
                                          "x-opencode-parent-session", "X-Parent-Session-Id", NULL };
    static const char *const agent[] = { "x-claude-code-agent-id", "x-openai-subagent", "x-opencode-agent",
                                         "X-Agent-Id", NULL };
    struct api_identity *id = &ex->identity;
    const char *name = http_key_name(ex->http);
    if (ex->api->o.live.isolate)
        id->salt = salt_of("key", 0, name, strlen(name));
    id->session = key_of_header(ex, "session", session);
    id->parent = key_of_header(ex, "session", parent);
    id->agent = key_of_header(ex, "agent", agent);
    id->subagent = id->parent || http_header(ex->http, "x-openai-subagent") ||
                   http_header(ex->http, "x-claude-code-agent-id");
}

/* Claude Code's user_id: JSON with a session_id, in older versions a text that ends in _session_ID. */
static uint64_t key_of_user(const struct api *a, const char *user)
{
    static const char mark[] = "_session_";
    char err[32];
    json_t *v = NULL;
    uint64_t key = 0;
    if (*user == '{' && jsonx_parse(user, strlen(user), 8, false, &v, err, sizeof err) == 0) {
        const json_t *session = json_object_get(v, "session_id");
        if (json_is_string(session))
            key = key_of(a, "session", json_string_value(session), json_string_length(session));
        json_decref(v);
        return key;
    }
    const char *at = strstr(user, mark);
    at = at ? at + sizeof mark - 1 : user;
    return key_of(a, "session", at, strlen(at));
}

static const char *first_text(const json_t *messages, const char *role, bool last, size_t *ret_len)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(messages) && (!found || last); i++) {
        const json_t *message = json_array_get(messages, i), *is = json_object_get(message, "role");
        if (json_is_string(is) && strcmp(json_string_value(is), role) == 0)
            found = json_object_get(message, "content");
    }
    *ret_len = json_string_length(found);
    return json_is_string(found) ? json_string_value(found) : "";
}

static bool asks_title(const char *text, size_t len)
{
    char start[TITLE_BYTES + 1];
    size_t n = len < TITLE_BYTES ? len : TITLE_BYTES;
    memcpy(start, text, n);
    start[n] = '\0';
    return strcasestr(start, " title") != NULL;
}

/* Short, without tools, and either a very short answer is wanted or it asks for a title. */
static bool is_side(const struct exchange *ex)
{
    const struct api_request *q = &ex->request;
    size_t bytes = 0, len;
    if (json_array_size(q->tool_names))
        return false;
    for (size_t i = 0; i < json_array_size(q->messages); i++)
        bytes += json_string_length(json_object_get(json_array_get(q->messages, i), "content"));
    if (bytes > SIDE_BYTES)
        return false;
    if (q->max_tokens && q->max_tokens <= SIDE_TOKENS)
        return true;
    const char *text = first_text(q->messages, "system", false, &len);
    if (asks_title(text, len))
        return true;
    text = first_text(q->messages, "user", true, &len);
    return json_array_size(q->messages) <= 2 && asks_title(text, len);
}

void identity_from_body(struct exchange *ex, const json_t *body)
{
    struct api_identity *id = &ex->identity;
    const json_t *cache = json_object_get(body, "prompt_cache_key");
    const json_t *user = json_object_get(json_object_get(body, "metadata"), "user_id");
    size_t len;
    if (!id->session && json_is_string(cache))
        id->session = key_of(ex->api, "session", json_string_value(cache), json_string_length(cache));
    if (!id->session && json_is_string(user))
        id->session = key_of_user(ex->api, json_string_value(user));
    ex->request.side = is_side(ex);

    const char *text = first_text(ex->request.messages, "user", false, &len);
    struct {
        uint64_t session, agent, first;
    } line = { id->session, id->agent,
               key_of(ex->api, "first", text, len < FIRST_BYTES ? len : FIRST_BYTES) };
    id->line = line.first ? key_of(ex->api, "line", (const char *)&line, sizeof line) : 0;
}
