/* Fields (private to the api): the table of request fields: name, type, bounds, where it goes, which
 * endpoints know it, and what becomes of it, in a few words for people. Constant. A field that is not in the
 * table is ignored; one that is must have the right type and an allowed value. */
#pragma once
#include "api/private.h"

enum field_type {
    FIELD_BOOL,
    FIELD_INT,
    FIELD_LIMIT, /* as INT; what is above the bound counts as the bound */
    FIELD_REAL,
    FIELD_STR,     /* checked and not used */
    FIELD_SPECIAL, /* `read` does it */
    FIELD_IGNORED, /* any value, not used */
    FIELD_REFUSED, /* none but what is empty: null, false, "", [], {} */
};

struct field {
    const char *name;
    enum field_type type;
    unsigned where;
    size_t offset; /* in struct api_request */
    int64_t imin, imax;
    double min, max;
    void (*read)(struct exchange *ex, const struct field *f, json_t *value);
    const char *note; /* what is taken, why it is refused */
};

extern const struct field fields_table[];
extern const size_t fields_n;

/* fields_read.c: the readers of FIELD_SPECIAL. */
typedef void field_reader(struct exchange *ex, const struct field *f, json_t *value);
field_reader field_read_stop, field_read_bias, field_read_stream_options, field_read_chat_logprobs,
    field_read_tool_choice, field_read_response_format, field_read_text_format, field_read_echo,
    field_read_suffix, field_read_salt, field_read_messages, field_read_tools, field_read_kwargs,
    field_read_prompt, field_read_system, field_read_input, field_read_effort, field_read_reasoning,
    field_read_thinking, field_read_output_config, field_read_include, field_read_metadata, field_read_cache,
    field_read_content, field_read_tokens, field_read_filename;
