/* Job: one generation's own state: its tokens, sampler and text, and the events that tell about it.
 * Thread: made on the submitter's, everything else on the scheduler's. Must not know: slots, blocks, other
 * jobs. Tests: tests/unit/test_sched.c */
#include "sched/parts.h"
#include "util/clock.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_eog(const void *tokenizer, int32_t id)
{
    return tokenizer_is_eog(tokenizer, id);
}

static int check_prompt(const struct sched *s, const struct sched_job *from, char *err, size_t errlen)
{
    if (from->n_tokens < 1 || from->n_tokens >= s->o.context) {
        snprintf(err, errlen, "the prompt has %zu tokens, allowed are 1..%u (the context is %u)",
                 from->n_tokens, s->o.context - 1, s->o.context);
        return -EINVAL;
    }
    for (size_t i = 0; i < from->n_tokens; i++) {
        if (from->tokens[i] < 0 || (uint32_t)from->tokens[i] >= s->n_vocab) {
            snprintf(err, errlen, "token %zu of the prompt is %d, allowed are 0..%u", i, from->tokens[i],
                     s->n_vocab - 1);
            return -EINVAL;
        }
    }
    return 0;
}

static int make_sampler(const struct sched *s, struct job *j, const struct sched_job *from)
{
    struct sampler_params p = from->sampling;
    if (p.n_bias) {
        j->bias = malloc(p.n_bias * sizeof *j->bias);
        if (!j->bias)
            return -ENOMEM;
        memcpy(j->bias, p.bias, p.n_bias * sizeof *j->bias);
    }
    p.bias = j->bias;
    int r = sampler_new(&p, s->n_vocab, is_eog, s->tokenizer, &j->sampler);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < j->n_prompt; i++)
        sampler_accept(j->sampler, j->seq[i], false);
    return 0;
}

int job_new(const struct sched *s, const struct sched_job *from, struct job **ret_job, char *err,
            size_t errlen)
{
    int r = check_prompt(s, from, err, errlen);
    if (r < 0)
        return r;
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return -ENOMEM;

    uint32_t fits = s->o.context - (uint32_t)from->n_tokens;
    j->n_prompt = j->n_seq = (uint32_t)from->n_tokens;
    j->max_new = from->max_new_tokens && from->max_new_tokens < fits ? from->max_new_tokens : fits;
    j->cache_prompt = from->cache_prompt;
    j->id_slot = from->id_slot;
    j->one_of_several = from->samples > 1;
    j->client_key = from->client_key;
    j->session_key = from->session_key;
    j->parent_key = from->parent_key;
    j->line_key = from->line_key;
    j->request_flags = from->request_flags;
    j->salt = from->salt;
    j->answers = from->answers;
    snprintf(j->request_id, sizeof j->request_id, "%s", from->request_id ? from->request_id : "");
    j->slot = SCHED_NONE;
    j->want_tokens = from->sampling.n_top_logprobs >= 0;
    j->on_event = from->on_event;
    j->asks_tool = from->asks_tool;
    j->one_tool = from->one_tool;
    j->arg = from->arg;
    j->submit_ns = j->wait_ns = s->o.now_ns();
    j->cap_seq = j->n_seq + (j->max_new < 64 ? j->max_new : 64);
    j->seq = malloc(j->cap_seq * sizeof *j->seq);
    if (!j->seq) {
        r = -ENOMEM;
        goto fail;
    }
    memcpy(j->seq, from->tokens, j->n_seq * sizeof *j->seq);
    r = slots_prompt_new(s->h.table, j->seq, j->n_seq, j->salt, &j->prompt);
    if (r < 0)
        goto fail;
    r = make_sampler(s, j, from);
    if (r < 0)
        goto fail;
    r = textout_new(s->tokenizer, from->stops, from->stop_lens, from->n_stops, &j->textout);
    if (r < 0)
        goto fail;
    textout_show(j->textout, from->shown, from->n_shown);
    *ret_job = j;
    return 0;

fail:
    snprintf(err, errlen, r == -ENOMEM ? "out of memory" : "the sampling parameters are not valid");
    job_free(j);
    return r;
}

void job_free(struct job *j)
{
    if (!j)
        return;
    slots_prompt_free(j->prompt);
    sampler_free(j->sampler);
    textout_free(j->textout);
    free(j->bias);
    free(j->pending);
    free(j->seq);
    free(j);
}

static double ms_between(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) / (double)NS_PER_MS : 0;
}

static struct sched_timings timings_of(const struct job *j)
{
    struct sched_timings t = {
        .cached = j->cached, .generated = j->generated, .drafted = j->drafted, .accepted = j->accepted
    };
    if (!j->was_started) {
        t.queue_ms = ms_between(j->submit_ns, j->last_ns);
        return t;
    }
    t.queue_ms = ms_between(j->submit_ns, j->start_ns);
    t.prompt = j->n_prompt - j->cached;
    t.prompt_ms = ms_between(j->start_ns, j->first_ns ? j->first_ns : j->last_ns);
    t.generate_ms = ms_between(j->first_ns, j->last_ns);
    t.first_token_ms = ms_between(j->submit_ns, j->first_ns);
    return t;
}

static void emit(struct job *j, struct sched_event ev)
{
    ev.job = j->id;
    ev.slot = j->slot;
    j->on_event(j->arg, &ev);
}

void job_started(struct job *j, uint64_t now_ns)
{
    j->was_started = true;
    j->start_ns = j->last_ns = now_ns;
    emit(j, (struct sched_event){ .kind = SCHED_EV_STARTED, .timings = timings_of(j) });
}

void job_progress(struct job *j, uint32_t read, uint64_t now_ns)
{
    if (j->first_ns)
        return; /* a requeued job reads its own answer again: nobody else's affair */
    j->last_ns = now_ns;
    struct sched_timings t = timings_of(j);
    t.prompt = read - j->cached;
    emit(j, (struct sched_event){ .kind = SCHED_EV_PROGRESS, .timings = t });
}

/* Hands out text and the first n pending tokens. */
static void emit_text(struct job *j, const char *text, size_t len, size_t n_tokens)
{
    if (!j->want_tokens)
        n_tokens = 0;
    else if (n_tokens > j->n_pending)
        n_tokens = j->n_pending;
    if (!len && !n_tokens)
        return;
    emit(j, (struct sched_event){ .kind = SCHED_EV_TEXT,
                                  .text = text,
                                  .text_len = len,
                                  .tokens = j->pending,
                                  .n_tokens = n_tokens,
                                  .timings = timings_of(j) });
    j->n_pending -= n_tokens;
    if (j->n_pending)
        memmove(j->pending, j->pending + n_tokens, j->n_pending * sizeof *j->pending);
}

/* Makes room for one more token before it is chosen, so that nothing fails half way. */
static int make_room(struct job *j)
{
    if (j->n_seq == j->cap_seq) {
        uint32_t cap = j->cap_seq + j->cap_seq / 2 + 64;
        int32_t *seq = realloc(j->seq, cap * sizeof *seq);
        if (!seq)
            return -ENOMEM;
        j->seq = seq;
        j->prompt->tokens = seq;
        j->cap_seq = cap;
    }
    if (j->want_tokens && j->n_pending == j->cap_pending) {
        size_t cap = j->cap_pending * 2 + 4;
        struct sched_token *pending = realloc(j->pending, cap * sizeof *pending);
        if (!pending)
            return -ENOMEM;
        j->pending = pending;
        j->cap_pending = cap;
    }
    return 0;
}

void job_finish_text(struct job *j)
{
    const char *text = NULL;
    size_t len = 0, n_tokens = 0;
    if (textout_finish(j->textout, &text, &len, &n_tokens) == 0)
        emit_text(j, text, len, n_tokens);
}

/* From the best where they tell. Returns NULL, or why nothing could be chosen. */
static const char *choose(const struct sched *s, struct job *j, const struct job_logits *from,
                          struct sampler_choice *ret)
{
    struct sampler_best best;
    if (flight_best(from->flight, from->row, from->i, &best) &&
        sampler_choose_best(j->sampler, &best, j->n_seq, ret))
        return NULL;
    const float *logits = flight_logits(from->flight, from->row);
    if (!logits)
        return "the device failed";
    logits += (size_t)from->i * s->n_vocab;
    sampler_choose(j->sampler, logits, j->n_seq, ret);
    /* Weights as they were trained never lead here; an empty answer would hide what is wrong. */
    if (!isfinite(logits[ret->token]))
        return "the model computes no numbers (its logits are not finite): is its file damaged?";
    return NULL;
}

enum sched_stop job_choose(const struct sched *s, struct job *j, const struct job_logits *from,
                           const char **ret_error)
{
    struct sampler_choice choice;
    if (make_room(j) < 0)
        goto out_of_memory;
    *ret_error = choose(s, j, from, &choice);
    if (*ret_error)
        return SCHED_STOP_FAILED;
    j->last_ns = s->now_ns;
    if (!j->first_ns)
        j->first_ns = j->last_ns;
    j->generated++;
    if (tokenizer_is_eog(s->tokenizer, choice.token))
        return SCHED_STOP_EOG;

    sampler_accept(j->sampler, choice.token, true);
    j->seq[j->n_seq++] = choice.token;
    if (j->want_tokens)
        j->pending[j->n_pending++].choice = choice;
    const char *text = NULL;
    size_t len = 0, n_tokens = 0;
    int r = textout_add(j->textout, choice.token, &text, &len, &n_tokens, &j->stop_index);
    if (r < 0)
        goto out_of_memory;
    emit_text(j, text, len, n_tokens);
    if (r == 1)
        return SCHED_STOP_STRING;
    if (j->one_tool && len && j->asks_tool(j->arg))
        return SCHED_STOP_EOG;
    return j->generated >= j->max_new ? SCHED_STOP_LENGTH : SCHED_STOP_NONE;

out_of_memory:
    *ret_error = "out of memory";
    return SCHED_STOP_FAILED;
}

void job_wait_again(const struct sched *s, struct job *j)
{
    struct slots_prompt *all = NULL;
    if (slots_prompt_new(s->h.table, j->seq, j->n_seq, j->salt, &all) < 0)
        return; /* what it had is shorter and still true */
    slots_prompt_free(j->prompt);
    j->prompt = all;
}

void job_done(struct job *j, enum sched_stop stop, const char *error, uint64_t now_ns)
{
    if (!j->was_started)
        j->last_ns = now_ns;
    emit(j, (struct sched_event){ .kind = SCHED_EV_DONE,
                                  .stop = stop,
                                  .stop_index = j->stop_index,
                                  .error = error,
                                  .timings = timings_of(j) });
}
