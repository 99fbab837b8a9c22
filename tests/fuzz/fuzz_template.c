/* Fuzz, templates: any bytes as a chat template, rendered over a conversation: text or an error, within the
 * renderer's bounds. Run by tools/fuzz. */
#include "model/chat.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be short.\"}, {\"role\": \"user\", \"content\": "
    "\"caf\u00e9?\"},"
    " {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"id\": \"1\","
    " \"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}}]},"
    " {\"role\": \"tool\", \"content\": \"3\"}], \"tools\": [{\"type\": \"function\", \"function\": "
    "{\"name\": \"f\","
    " \"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": "
    "\"array\"}}}}}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"n\": -7, \"r\": "
    "0.1}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static json_t *vars;
    struct chat_template *t;
    struct buf out = { 0 };
    char err[512] = "";
    if (!vars && !(vars = json_loads(conversation, 0, NULL)))
        abort();
    if (chat_template_parse((const char *)data, len, &t, err, sizeof err) < 0) {
        if (!*err)
            abort();
        return 0;
    }
    if (chat_template_render(t, vars, 1700000000, &out, err, sizeof err) < 0 && !*err)
        abort();
    chat_template_free(t);
    buf_free(&out);
    return 0;
}
