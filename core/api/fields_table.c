/* Fields table: see fields.h. A new field is a row here. Tests: tests/e2e/test_fields.py,
 * test_fields_agents.py */
#include "api/fields.h"

#define CHAT FIELDS_CHAT
#define COMP FIELDS_COMPLETIONS
#define TMPL FIELDS_TEMPLATE
#define MSGS FIELDS_MESSAGES
#define COUNT FIELDS_COUNT
#define RESP FIELDS_RESPONSES
#define TOK FIELDS_TOKENIZE
#define DETOK FIELDS_DETOKENIZE
#define SAVE FIELDS_SAVE
#define REST FIELDS_RESTORE
#define GENERATE (CHAT | COMP | MSGS | RESP)
#define TO(member) offsetof(struct api_request, member)
/* clang-format off */
#define BOOL(name_, where_, member, note_) { .name = name_, .type = FIELD_BOOL, .where = where_, .offset = TO(member), .note = note_ }
#define INT(name_, where_, member, min_, max_, note_) { .name = name_, .type = FIELD_INT, .where = where_, .offset = TO(member), .imin = min_, .imax = max_, .note = note_ }
#define LIMIT(name_, where_, member, min_, max_, note_) { .name = name_, .type = FIELD_LIMIT, .where = where_, .offset = TO(member), .imin = min_, .imax = max_, .note = note_ }
#define REAL(name_, where_, member, min_, max_, note_) { .name = name_, .type = FIELD_REAL, .where = where_, .offset = TO(member), .min = min_, .max = max_, .note = note_ }
#define STR(name_, where_, note_) { .name = name_, .type = FIELD_STR, .where = where_, .note = note_ }
#define SPECIAL(name_, where_, read_, note_) { .name = name_, .type = FIELD_SPECIAL, .where = where_, .read = read_, .note = note_ }
#define IGNORED(name_, where_, note_) { .name = name_, .type = FIELD_IGNORED, .where = where_, .note = note_ }
#define REFUSED(name_, where_, note_) { .name = name_, .type = FIELD_REFUSED, .where = where_, .note = note_ }

const struct field fields_table[] = {
    /* What is asked. */
    STR("model", CHAT | COMP | MSGS | COUNT | RESP, "this server has one model"),
    SPECIAL("messages", CHAT | TMPL, field_read_messages, "content: a string, or a list of text parts; roles system and developer (anywhere), user, assistant (with tool_calls and reasoning_content), tool, function"),
    SPECIAL("messages", MSGS | COUNT, field_read_messages, "content: a string, or a list of text, tool_use, tool_result, thinking and tool_reference blocks; roles user, assistant, system (in its place)"),
    SPECIAL("system", MSGS | COUNT, field_read_system, "a string or a list of text blocks"),
    SPECIAL("input", RESP, field_read_input, "a string or a list of items: messages, function_call, function_call_output, reasoning; calls of other tools are left out; may be empty, to warm the server up"),
    SPECIAL("instructions", RESP, field_read_system, "a string: the system prompt"),
    SPECIAL("prompt", COMP, field_read_prompt, "a string, a list of strings, a list of token ids"),
    SPECIAL("tools", CHAT | TMPL, field_read_tools, "functions"),
    SPECIAL("tools", MSGS | COUNT, field_read_tools, "the client's own tools; a tool with defer_loading is shown where a tool_reference names it; tools of other types are left out"),
    SPECIAL("tools", RESP, field_read_tools, "functions, also inside namespaces; tools of other types are left out"),
    SPECIAL("tool_choice", CHAT | RESP, field_read_tool_choice, "auto or none; required and named ones are refused"),
    SPECIAL("tool_choice", MSGS | COUNT, field_read_tool_choice, "type auto or none, any and tool are refused; disable_parallel_tool_use: the first call ends the answer"),
    BOOL("parallel_tool_calls", CHAT | RESP, several_calls, "false: the first call ends the answer"),
    STR("prompt_cache_key", GENERATE, "names the session to the policy"),
    SPECIAL("metadata", MSGS | COUNT, field_read_metadata, "user_id: names the session to the policy"),
    SPECIAL("chat_template_kwargs", CHAT | TMPL | MSGS | COUNT | RESP, field_read_kwargs, "an object: variables of the chat template"),
    BOOL("add_generation_prompt", CHAT | TMPL, add_generation_prompt, NULL),
    SPECIAL("reasoning_effort", CHAT | TMPL, field_read_effort, "a string for the template; none turns reasoning off where the template can"),
    SPECIAL("reasoning", RESP, field_read_reasoning, "effort: a string for the template; none turns reasoning off where the template can"),
    SPECIAL("thinking", MSGS | COUNT, field_read_thinking, "type enabled, adaptive or disabled, where the template can; how much is the model's choice"),

    /* How long, in which form. */
    LIMIT("max_tokens", CHAT | COMP | MSGS, max_tokens, 1, INT32_MAX, "cut to what fits in the context, which is the default"),
    LIMIT("max_completion_tokens", CHAT, max_tokens, 1, INT32_MAX, "as max_tokens"),
    LIMIT("max_output_tokens", RESP, max_tokens, 1, INT32_MAX, "cut to what fits in the context, which is the default"),
    SPECIAL("stop", CHAT | COMP | RESP, field_read_stop, "a string or up to 16"),
    SPECIAL("stop_sequences", MSGS, field_read_stop, "up to 16 strings"),
    BOOL("stream", GENERATE, stream, NULL),
    SPECIAL("stream_options", CHAT | COMP, field_read_stream_options, "include_usage"),
    IGNORED("stream_options", RESP, NULL),
    SPECIAL("response_format", CHAT, field_read_response_format, "type text; json_object and json_schema are refused"),
    SPECIAL("text", RESP, field_read_text_format, "format: type text; json_object and json_schema are refused"),
    SPECIAL("output_config", MSGS, field_read_output_config, "effort is ignored; format is refused"),
    SPECIAL("include", RESP, field_read_include, "reasoning.encrypted_content; others are ignored"),
    SPECIAL("logprobs", CHAT, field_read_chat_logprobs, "true or false"),
    INT("top_logprobs", CHAT, top_logprobs, 0, SAMPLER_MAX_TOP_LOGPROBS, "with logprobs"),
    INT("logprobs", COMP, top_logprobs, 0, SAMPLER_MAX_TOP_LOGPROBS, NULL),
    INT("n", CHAT | COMP, n, 1, API_MAX_CHOICES, "answers to each prompt, which is read once; the seed of answer i is seed + i"),
    INT("best_of", COMP, best_of, 1, API_MAX_CHOICES, "as n: none is left out"),
    SPECIAL("echo", COMP, field_read_echo, "false"),
    SPECIAL("suffix", COMP, field_read_suffix, "an empty string"),

    /* Sampling. */
    REAL("temperature", GENERATE, temperature, 0, 2, NULL),
    REAL("top_p", GENERATE, top_p, 0, 1, NULL),
    INT("top_k", GENERATE, top_k, -1, INT32_MAX, NULL),
    REAL("min_p", GENERATE, min_p, 0, 1, NULL),
    REAL("repeat_penalty", GENERATE, repeat_penalty, 0.01, 10, NULL),
    REAL("repetition_penalty", GENERATE, repeat_penalty, 0.01, 10, "as repeat_penalty"),
    REAL("presence_penalty", GENERATE, presence_penalty, -2, 2, NULL),
    REAL("frequency_penalty", GENERATE, frequency_penalty, -2, 2, NULL),
    SPECIAL("logit_bias", GENERATE, field_read_bias, "an object of token ids and numbers from -100 to 100, or a list of pairs"),
    INT("seed", GENERATE, seed, -1, INT64_MAX, "-1: any"),
    BOOL("ignore_eos", GENERATE, ignore_eos, NULL),
    INT("min_tokens", GENERATE, min_tokens, 0, INT32_MAX, NULL),

    /* Where it runs. */
    BOOL("cache_prompt", GENERATE, cache_prompt, "false: reads the whole prompt again"),
    INT("id_slot", GENERATE, id_slot, -1, INT32_MAX, "-1: any; another one when it is idle and of this salt"),
    SPECIAL("cache_salt", GENERATE, field_read_salt, "a string of 1..256 bytes: prefixes are shared with requests of the same one only"),

    /* Text, tokens, files. */
    SPECIAL("content", TOK, field_read_content, "a string"),
    BOOL("add_special", TOK, add_special, "true: with the tokens that a prompt begins and ends with"),
    BOOL("parse_special", TOK, parse_special, "false: special tokens are taken literally"),
    BOOL("with_pieces", TOK, with_pieces, "true: objects of id and piece, a list of bytes where it is no text by itself"),
    SPECIAL("tokens", DETOK, field_read_tokens, "a list of token ids"),
    SPECIAL("filename", SAVE | REST, field_read_filename, "1..64 letters, digits, ., _ and -"),
    SPECIAL("cache_salt", REST, field_read_salt, "a string of 1..256 bytes: only a conversation of this one is restored"),

    /* What clients send and this server has no use for. */
    STR("user", CHAT | COMP | RESP, NULL),
    IGNORED("metadata", CHAT | RESP, NULL),
    IGNORED("store", CHAT | RESP, "nothing is stored"),
    IGNORED("service_tier", CHAT | MSGS | RESP, NULL),
    IGNORED("safety_identifier", CHAT | RESP, NULL),
    IGNORED("verbosity", CHAT, NULL),
    IGNORED("prediction", CHAT, NULL),
    IGNORED("truncation", RESP, "a prompt that is too long is refused"),
    IGNORED("max_tool_calls", RESP, NULL),
    IGNORED("top_logprobs", RESP, NULL),
    IGNORED("context_management", MSGS | COUNT | RESP, "a prompt that is too long is refused"),
    SPECIAL("cache_control", MSGS, field_read_cache, "an object, here, in a block or in a tool: usage tells how much was written; everything is kept in any case; never changes the prompt"),
    IGNORED("cache_control", COUNT, NULL),
    IGNORED("container", MSGS, NULL),
    IGNORED("inference_geo", MSGS, NULL),
    IGNORED("output_config", COUNT, NULL),

    /* What would change the answer, and is not there. */
    REFUSED("functions", CHAT, "use tools"),
    REFUSED("function_call", CHAT, "use tool_choice"),
    REFUSED("audio", CHAT, "this server answers with text"),
    REFUSED("grammar", CHAT | COMP, "answers cannot be constrained"),
    REFUSED("json_schema", CHAT | COMP, "answers cannot be constrained"),
    REFUSED("output_format", MSGS, "answers cannot be constrained"),
    REFUSED("mcp_servers", MSGS, "this server calls no other"),
    REFUSED("previous_response_id", RESP, "nothing is stored; send the whole conversation"),
    REFUSED("conversation", RESP, "nothing is stored; send the whole conversation"),
    REFUSED("background", RESP, "an answer is given while the client waits"),
    REFUSED("prompt", RESP, "nothing is stored; send the whole conversation"),
};
/* clang-format on */
const size_t fields_n = sizeof fields_table / sizeof *fields_table;
