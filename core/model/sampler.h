/* Sampler: logits to a token. A choice depends on (parameters, logits, tokens so far, seed, position) and on
 * nothing else, so the same seed gives the same text whatever else runs. Pure: no threads, no time. One
 * sampler per generation. Tests: tests/unit/test_sampler.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLER_MAX_TOP_LOGPROBS 32

struct sampler_bias {
    int32_t token;
    float bias; /* added to the logit; -100..100 */
};

struct sampler_params {
    float temperature;    /* 0: greedy (the lowest id among equals); 0..2 in requests */
    int32_t top_k;        /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off; llama.cpp's: logits > 0 divided, others multiplied, over the last 64
                             tokens, prompt included */
    float presence_penalty, frequency_penalty; /* 0: off; OpenAI's: over generated tokens */
    uint64_t seed;
    uint32_t min_tokens;    /* end-of-generation tokens are impossible before so many were generated */
    bool ignore_eos;        /* never stop at an end-of-generation token: they are impossible */
    int32_t n_top_logprobs; /* -1: no logprobs at all; 0..32 otherwise */
    const struct sampler_bias *bias; /* borrowed for the sampler's life */
    size_t n_bias;
};

struct sampler_logprob {
    int32_t token;
    float logprob; /* natural log of the softmax of the raw logits, before any of the above; never NaN, -inf
                      for the impossible */
};

struct sampler_choice {
    int32_t token;
    float logprob; /* 0 when no logprobs are asked for */
    uint32_t n_top;
    struct sampler_logprob top[SAMPLER_MAX_TOP_LOGPROBS]; /* best first; ties by id */
};

/* What is known of logits that lie somewhere else: the best of them, and sums over all. */
struct sampler_best {
    uint32_t n;         /* 1.. of the vocabulary */
    const uint32_t *id; /* [n]: the higher logit first, the lower id among equals; NaN counts as -infinity */
    const float *logit; /* [n] */
    float max;          /* of all; -INFINITY when there is nothing else */
    double sum;         /* over all of exp(logit - max), as model/ranking.h sums */
    float scale;
    double scaled_sum; /* over all of exp((logit - max) * scale) */
};

struct sampler;

/* is_eog(arg, id) says which tokens end a generation. Order of steps: bias, penalties, eog mask, the mask of
 * sampler_allow, then greedy;
 * or top_k, top_p, min_p on the sorted candidates (by logit, ties by id) at temperature 1, then temperature,
 * then one Philox draw by (seed, position), which walks the candidates best first. A logit that is NaN counts
 * as minus infinity; when some are plus infinity, those share everything; when none is possible the lowest id
 * that is no forbidden end is chosen. -EINVAL for parameters that are no numbers, negative where that means
 * nothing, or a bias outside the vocabulary; -ENOMEM. is_eog is asked here only. */
int sampler_new(const struct sampler_params *p, uint32_t n_vocab, bool (*is_eog)(const void *arg, int32_t id),
                const void *arg, struct sampler **ret_sampler);
void sampler_free(struct sampler *s);
/* Tells it a prompt token or a chosen token, in order (for the penalties). */
void sampler_accept(struct sampler *s, int32_t token, bool generated);
/* From now on only these tokens may be chosen, and the end among them alone: token i is bit i % 64 of word
 * i / 64. NULL: all of them. Borrowed until the next call. It is applied after everything that changes logits
 * and before a token is chosen; a mask that allows nothing has the lowest id chosen. */
void sampler_allow(struct sampler *s, const uint64_t *mask);
/* Whether the next choice needs all logits: something changes them, or a mask forbids some. */
bool sampler_wants_all(const struct sampler *s);
/* What sampler_best.scale is good for: 0 < scale < infinity. */
float sampler_scale(const struct sampler *s);
/* The choice that sampler_choose would make, from the best alone. False when they do not tell, and then
 * nothing of *ret_choice counts. */
bool sampler_choose_best(struct sampler *s, const struct sampler_best *best, uint64_t position,
                         struct sampler_choice *ret_choice);
/* logits[n_vocab] are read only. position: absolute position of the token being chosen. */
void sampler_choose(struct sampler *s, const float *logits, uint64_t position,
                    struct sampler_choice *ret_choice);
