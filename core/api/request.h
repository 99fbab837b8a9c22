/* Request (private to the api): what a body asks for, as read from any dialect. Owned by its exchange: a
 * worker's until that is done, then the event thread's. */
#pragma once
#include "model/sampler.h"
#include <jansson.h>

#define API_MAX_STOPS 16
#define API_MAX_STOP_BYTES 1024
#define API_MAX_PROMPTS 128
#define API_MAX_CHOICES 128 /* answers to one request */

struct api_error {
    int status;       /* 0: none */
    uint32_t retry_s; /* with 429: what the client is told to wait */
    const char *type, *code;
    char param[96];
    char message[480];
};

struct api_prompt {
    int32_t *tokens;
    size_t n;
};

struct api_usage { /* each prompt counts once, however many answers it has */
    uint64_t prompt, cached, read, generated, reasoning; /* prompt = cached + read once all have begun */
};

struct api_identity { /* who asks, as salted numbers; 0: not known (identity.c) */
    uint64_t session, parent, agent, line;
    uint64_t salt; /* requests of different salts share no prefix */
    bool subagent;
};

/* What to generate, as read from any dialect. */
struct api_request {
    bool stream, include_usage, cache_prompt, ignore_eos, chat_logprobs, echo, add_generation_prompt;
    bool call_tools;     /* calls are looked for in the answer */
    bool several_calls;  /* it may have more than one */
    bool marks_cache;    /* messages: cache_control stands somewhere */
    bool give_reasoning; /* responses: in a form that can be sent back */
    bool thinking;       /* the prompt opened the reasoning */
    bool prefilled;      /* messages: the last message, an assistant's, is how the answer begins */
    bool side;           /* a request beside the conversation: a title, a probe */
    bool add_special, parse_special, with_pieces; /* tokenize */
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, min_tokens, max_tokens, id_slot, top_logprobs, n, best_of;
    struct sampler_bias *bias;
    size_t n_bias;
    char *stops[API_MAX_STOPS + 1];
    size_t stop_lens[API_MAX_STOPS + 1], n_stops;
    size_t n_asked_stops; /* of those; one more is the template's own end of a turn */
    struct api_prompt *prompts;
    size_t n_prompts;
    /* The conversation in a template's terms (prompt.c), owned: messages of role system, user, assistant or
     * tool, whose content is a string, with tool_calls (arguments are objects) and reasoning_content; tools
     * as chat completions name them; further variables. */
    json_t *messages, *tools, *variables;
    json_t *tool_names;   /* strings: all that may be called, those not in `tools` included */
    json_t *tool_schemas; /* of each the schema of its arguments, or null */
    json_t *namespaces;   /* responses: name -> [namespace, name in it] */
    json_t *unshown;      /* messages: name -> the tool, until something that names it has shown it */
    /* Borrowed from the body, which lives until the worker is done. */
    json_t *given_messages, *given_tools, *system;
    const json_t *prompt, *content, *tokens; /* content: a string to tokenize; tokens: a list to detokenize */
    const char *filename;                    /* of a conversation; checked */
    char *told; /* responses: what was asked, as members of the response; owned, NULL: nothing */
};
