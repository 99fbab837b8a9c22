/* Private to the api's files: what they call of each other, by file. Included by private.h, after the
 * structures. */
#pragma once
#include "api/private.h"

/* Fails an exchange while its body is read: status 400, invalid_request_error. param may be NULL. */
__attribute__((format(printf, 3, 4))) void api_fail(struct exchange *ex, const char *param, const char *fmt,
                                                    ...);
/* 503, whatever was found wrong before: that may have come of it. */
void api_fail_memory(struct exchange *ex);
/* For what tokenizer_encode returned: no memory, or the text of `param` is at fault. */
void api_fail_tokens(struct exchange *ex, const char *param, int r);

/* fields.c: reads a body by the table of request fields. */
/* Fails for a value that is none of those allowed, which it names; NULL: it is missing. */
void api_fail_value(struct exchange *ex, const char *param, const json_t *value, const char *allowed);
/* Defaults, then the fields of `body` (an object), checked. False when one was wrong (ex->error says which).
 */
bool fields_read(struct exchange *ex, json_t *body);
/* What the scheduler is told, from the request. */
struct sampler_params fields_sampling(const struct api_request *q);
void request_clear(struct api_request *q);
/* Lets go of the conversation, once it was rendered: it can be large, and an answer takes its time. */
void request_forget(struct api_request *q);

/* read_chat.c, read_messages.c, read_responses.c: a body's conversation, tools and what else concerns the
 * prompt, in a template's terms, into the request. False with ex->error set. */
bool chat_read(struct exchange *ex, json_t *body);
bool messages_read(struct exchange *ex, json_t *body);
bool responses_read(struct exchange *ex, json_t *body);

/* talk.c: what the three readers build messages and tools with. Values are taken over; failures (memory) are
 * seen at the end, in the prompt. */
/* Text parts (objects whose type is one of types[0..n)) joined by line breaks, or a string as it is; NULL
 * with ex->error set otherwise. `result`: of a tool, and then talk_add_media takes parts too. */
json_t *talk_text(struct exchange *ex, const char *param, const json_t *content, const char *const *types,
                  size_t n, bool result);
/* Words for an image, a document or the like; false for another type. */
bool talk_add_media(const char *type, struct buf *out);
json_t *talk_message(const char *role, json_t *content);
/* The list of calls of an assistant's message, made when it has none. */
void talk_add_call(struct exchange *ex, json_t *message, const char *id, const char *name,
                   const json_t *arguments);
/* Checks the name and adds {"type": "function", ..}; false with ex->error set. parameters may be NULL. */
bool talk_add_tool(struct exchange *ex, const char *param, const char *name, const json_t *description,
                   json_t *parameters, bool shown);

/* prompt.c: the request's conversation to a prompt. */
/* Renders with the model's template. False with ex->error set. */
bool prompt_render(struct exchange *ex, struct buf *out);
/* Renders, tokenizes and adds the request's only prompt; notes what it tells about the request. */
void prompt_make(struct exchange *ex, const char *param);
/* The same without a bound, and only counts. */
bool prompt_count(struct exchange *ex, size_t *ret_tokens);
/* Tokenizes `text` as the next prompt of the request, or refuses what cannot fit. */
bool prompt_add_text(struct exchange *ex, const char *param, const char *text, size_t len, unsigned flags);
/* Takes over malloc'ed tokens. */
bool prompt_add_tokens(struct exchange *ex, const char *param, int32_t *tokens, size_t n);

/* normalize.c: what is known to change without meaning anything. */
enum { NORMALIZE_CLAUDE_BILLING = 1 };
unsigned normalize_find(const char *name); /* 0: unknown */
/* Whether a block of the system prompt is to be left out. */
bool normalize_drops(const struct api *a, const char *system_text);

/* seal.c: reasoning as a text that clients send back unread: base64 behind a mark of ours, no secret. */
void reasoning_seal(const char *text, size_t len, struct buf *out);
bool reasoning_unseal(const char *sealed, struct buf *out); /* false: not one of ours */

/* identity.c */
void identity_from_headers(struct exchange *ex);                           /* [event thread] */
void identity_add_salt(struct exchange *ex, const char *text, size_t len); /* cache_salt */
void identity_from_body(struct exchange *ex, const json_t *body);          /* once the conversation is read */

/* parts.c: what an answer says, from the scheduler to its parts. */
/* [scheduler thread] A message with the event's text in pieces; NULL without memory, and then some may be
 * lost. `finish`: no text is to come. */
struct api_message *parts_message(struct api_choice *c, const struct sched_event *ev, bool finish);
/* [event thread] Adds a message's pieces to the choice; false without memory. */
bool parts_take(struct exchange *ex, struct api_choice *c, const struct api_message *m);
void parts_close(struct api_choice *c);                      /* the last part too is at its end */
void parts_flush(struct exchange *ex, struct api_choice *c); /* tells a stream what is new */
void parts_clear(struct api_choice *c);
/* The text of all parts of a kind, escaped. */
void parts_write(const struct api_choice *c, enum api_part_kind kind, struct buf *out);
bool parts_have(const struct api_choice *c, enum api_part_kind kind);
bool parts_call(const struct api_choice *c); /* ended by calling tools */
/* Ended too early: by its length, or in the middle of a call that a stream had told of. */
bool parts_cut(const struct api_choice *c);

/* exchange.c: the life of one. */
void exchange_begin(struct http_request *r, void *route_arg); /* the routes' handler */
void exchange_start(struct api *a, const struct endpoint *endpoint, struct workers *workers,
                    struct http_request *r);
struct api_usage exchange_usage(const struct exchange *ex);
void exchange_tick(struct exchange *ex, uint64_t now_ns);
void exchange_abort(struct exchange *ex, const char *reason);
/* work.c: the worker's side. */
int workers_start(struct workers *w, uint32_t n, const char *name);
void workers_stop(struct workers *w);
void workers_push(struct workers *w, struct exchange *ex);
/* Has api_pump called on the event thread; the caller has set what is to be seen under ex->lock, where it
 * also asked exchange_need_post. */
bool exchange_need_post(struct exchange *ex);
void exchange_post(struct exchange *ex);
/* [scheduler] */
void exchange_on_event(void *choice, const struct sched_event *ev);
bool exchange_asks_tool(void *choice);

/* openai.c: what the OpenAI dialects share. */
const char *openai_finish_reason(const struct api_choice *c);
void openai_usage(const struct exchange *ex, struct buf *out);
void openai_timings(const struct exchange *ex, struct buf *out);
void openai_end(struct exchange *ex, struct buf *out);
void openai_error(struct exchange *ex, const char *type, const char *message, struct buf *out);
/* {"id":..,"object":..,"created":..,"model":.. : how every object of the answer begins. */
void openai_head(struct exchange *ex, struct buf *out);
/* A chunk up to and with `"choices":[`, and its end. with_timings: the last chunk of its choice. */
void openai_chunk_begin(struct exchange *ex, struct buf *out);
void openai_chunk_end(struct exchange *ex, bool with_timings, struct buf *out);
void openai_token_text(const struct exchange *ex, int32_t token, struct buf *out);
double openai_logprob(float logprob);

extern const struct endpoint api_chat, api_completions, api_messages, api_count_tokens, api_responses,
    api_tokenize, api_detokenize, api_apply_template;

/* native.c, admin.c, places.c, feed.c, metrics.c, page.c: they answer at once, on the event thread. */
void api_on_props(struct http_request *r, void *api);
void api_on_slots(struct http_request *r, void *api);
void api_on_slot_action(struct http_request *r, void *api); /* saved.c */
void api_on_events(struct http_request *r, void *api);
const char *api_slot_state(const struct sched_slot_status *slot, uint64_t now_ns); /* "protected", ... */
double api_slot_age_s(const struct sched_slot_status *slot, uint64_t now_ns);      /* since its last use */
void api_on_models(struct http_request *r, void *api);
void api_on_model(struct http_request *r, void *api);
void api_on_hello(struct http_request *r, void *api);
void api_on_health(struct http_request *r, void *api);
void api_on_live(struct http_request *r, void *api);
void api_on_ready(struct http_request *r, void *api);
void api_on_metrics(struct http_request *r, void *api);
void api_on_placements(struct http_request *r, void *api);
void api_on_page(struct http_request *r, void *api);
/* Replies with `json` (taken over; NULL: out of memory) and releases the request. */
void api_reply_json(struct http_request *r, int status, json_t *json);
#define API_JSON "application/json; charset=utf-8"
void api_reply_text(struct http_request *r, const char *type, struct buf *text); /* which is emptied */
