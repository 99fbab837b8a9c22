/* Openai: what chat completions and completions write alike: heads of objects, usage, timings, chunks.
 * Thread: the event thread's. Tests: tests/e2e/test_chat.py, test_completions.py, test_stream.py */
#include "api/private.h"
#include "util/clock.h"
#include "util/rng.h"
#include <inttypes.h>
#include <string.h>

void openai_head(struct exchange *ex, struct buf *b)
{
    const struct api_options *o = &ex->api->o;
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRIu64 ",\"model\":", ex->id,
               ex->request.stream ? ex->endpoint->chunk_object : ex->endpoint->object, ex->created_s);
    jsonout_str(b, o->model_name, strlen(o->model_name));
    buf_printf(b, ",\"system_fingerprint\":\"%s\"", ex->api->fingerprint);
}

const char *openai_finish_reason(const struct api_choice *c)
{
    return parts_cut(c) ? "length" : parts_call(c) ? "tool_calls" : "stop";
}

void openai_usage(const struct exchange *ex, struct buf *out)
{
    struct api_usage u = exchange_usage(ex);
    buf_printf(out,
               "{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64
               ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64
               "},\"completion_tokens_details\":{\"reasoning_tokens\":%" PRIu64 "}}",
               u.prompt, u.generated, u.prompt + u.generated, u.cached, u.reasoning);
}

static double per(double n, double d)
{
    return d > 0 ? n / d : 0;
}

void openai_timings(const struct exchange *ex, struct buf *out)
{
    const struct api_usage u = exchange_usage(ex);
    double prompt = (double)u.read, generated = 0, prompt_ms = 0, generate_ms = 0, queue_ms = 0;
    uint64_t drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < ex->n_choices; i++) {
        const struct sched_timings *t = &ex->choices[i].timings;
        generated += t->generated;
        prompt_ms += t->prompt_ms;
        generate_ms += t->generate_ms;
        queue_ms += t->queue_ms;
        drafted += t->drafted;
        accepted += t->accepted;
    }
    /* The first token of a choice belongs to the reading of its prompt, so the speed of generating is without
     * it. */
    double steps = generated - ex->n_choices;
    buf_printf(out,
               "{\"cache_n\":%.0f,\"prompt_n\":%.0f,\"prompt_ms\":%.3f,\"prompt_per_token_ms\":%.3f,"
               "\"prompt_per_second\":%.2f,\"predicted_n\":%.0f,\"predicted_ms\":%.3f,\"predicted_per_token_"
               "ms\":%.3f,"
               "\"predicted_per_second\":%.2f,\"queue_ms\":%.3f,\"slot\":%" PRId32,
               (double)u.cached, prompt, prompt_ms, per(prompt_ms, prompt), per(prompt * 1e3, prompt_ms),
               generated, generate_ms, steps > 0 ? per(generate_ms, steps) : 0,
               steps > 0 ? per(steps * 1e3, generate_ms) : 0, queue_ms, ex->choices[0].slot);
    if (drafted)
        buf_printf(out, ",\"draft_n\":%" PRIu64 ",\"draft_n_accepted\":%" PRIu64, drafted, accepted);
    buf_putc(out, '}');
}

void openai_chunk_begin(struct exchange *ex, struct buf *out)
{
    buf_puts(out, "data: ");
    openai_head(ex, out);
    buf_puts(out, ",\"choices\":[");
}

void openai_chunk_end(struct exchange *ex, bool with_timings, struct buf *out)
{
    buf_putc(out, ']');
    if (ex->request.include_usage)
        buf_puts(out, ",\"usage\":null");
    if (with_timings) {
        buf_printf(out, ",\"seed\":%" PRId64 ",\"timings\":", ex->request.seed);
        openai_timings(ex, out);
    }
    buf_puts(out, "}\n\n");
}

void openai_end(struct exchange *ex, struct buf *out)
{
    if (ex->request.include_usage) {
        openai_chunk_begin(ex, out);
        buf_puts(out, "],\"usage\":");
        openai_usage(ex, out);
        buf_puts(out, ",\"timings\":");
        openai_timings(ex, out);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

void openai_error(struct exchange *ex, const char *type, const char *message, struct buf *out)
{
    (void)ex;
    buf_printf(out, "data: {\"error\":{\"message\":");
    jsonout_bytes_str(out, message, strlen(message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":null,\"code\":null}}\n\n", type);
    buf_puts(out, "data: [DONE]\n\n");
}

void openai_token_text(const struct exchange *ex, int32_t token, struct buf *out)
{
    size_t len;
    const char *piece = tokenizer_piece(ex->api->o.tokenizer, token, true, &len);
    jsonout_bytes_str(out, piece, len);
}

/* JSON has no infinity; OpenAI writes this number for what is impossible. */
double openai_logprob(float logprob)
{
    return logprob < -9999 ? -9999 : (double)logprob;
}
