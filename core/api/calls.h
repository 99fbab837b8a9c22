/* Private to the api's files: what they call of each other, by file. Included by private.h, after the
 * structures. */
#pragma once
#include "api/private.h"

/* Fails an exchange while its body is read: status 400, invalid_request_error. param may be NULL. */
__attribute__((format(printf, 3, 4))) void api_fail(struct exchange *ex, const char *param, const char *fmt,
                                                    ...);

/* fields.c: the one table of request fields. Which endpoints know a field: */
enum { FIELDS_CHAT = 1, FIELDS_COMPLETIONS = 2, FIELDS_TEMPLATE = 4 };
/* Defaults, then the fields of `body` (an object), checked. False when one was wrong (ex->error says which).
 */
bool fields_read(struct exchange *ex, json_t *body);
/* What the scheduler is told, from the request. */
struct sampler_params fields_sampling(const struct api_request *q);
void request_clear(struct api_request *q);

/* messages.c: checks the messages and tools, and renders them. False with ex->error set. */
bool messages_render(struct exchange *ex, json_t *body, struct buf *out);
/* Tokenizes `text` as the next prompt of the request, or refuses what cannot fit. */
bool prompt_add_text(struct exchange *ex, const char *param, const char *text, size_t len, unsigned flags);
/* Takes over malloc'ed tokens. */
bool prompt_add_tokens(struct exchange *ex, const char *param, int32_t *tokens, size_t n);

/* exchange.c: the life of one. */
void exchange_begin(struct http_request *r, void *route_arg); /* the routes' handler */
void exchange_tick(struct exchange *ex, uint64_t now_ns);
void exchange_abort(struct exchange *ex, const char *reason);
/* work.c: the worker's side. */
int workers_start(struct workers *w, uint32_t n);
void workers_stop(struct workers *w);
void workers_push(struct workers *w, struct exchange *ex);
/* Has api_pump called on the event thread; the caller has set what is to be seen under ex->lock, where it
 * also asked exchange_need_post. */
bool exchange_need_post(struct exchange *ex);
void exchange_post(struct exchange *ex);
/* [scheduler] */
void exchange_on_event(void *choice, const struct sched_event *ev);

/* openai.c: what the two OpenAI dialects share. */
void openai_head(struct exchange *ex);
const char *openai_finish_reason(enum sched_stop stop);
void openai_usage(const struct exchange *ex, struct buf *out);
void openai_timings(const struct exchange *ex, struct buf *out);
void openai_stream_end(struct exchange *ex, struct buf *out);
void openai_stream_error(struct exchange *ex, const char *type, const char *message, struct buf *out);
/* A chunk's beginning up to and with `"choices":[`, and its end. `with_timings`: the last chunk of its
 * choice. */
void openai_chunk_begin(struct exchange *ex, struct buf *out);
void openai_chunk_end(struct exchange *ex, bool with_timings, struct buf *out);
void openai_token_text(const struct exchange *ex, int32_t token, struct buf *out);
double openai_logprob(float logprob);

extern const struct endpoint api_chat, api_completions, api_tokenize, api_detokenize, api_apply_template;

/* native.c, admin.c, page.c: handlers that answer at once, on the event thread. */
void api_on_props(struct http_request *r, void *api);
void api_on_slots(struct http_request *r, void *api);
void api_on_events(struct http_request *r, void *api);
const char *api_slot_state(const struct sched_slot_status *slot, uint64_t now_ns); /* "protected", ... */
double api_slot_age_s(const struct sched_slot_status *slot, uint64_t now_ns);      /* since its last use */
void api_on_models(struct http_request *r, void *api);
void api_on_model(struct http_request *r, void *api);
void api_on_health(struct http_request *r, void *api);
void api_on_live(struct http_request *r, void *api);
void api_on_ready(struct http_request *r, void *api);
void api_on_metrics(struct http_request *r, void *api);
void api_on_page(struct http_request *r, void *api);
/* Replies with `json` (taken over; NULL: out of memory) and releases the request. */
void api_reply_json(struct http_request *r, int status, json_t *json);
