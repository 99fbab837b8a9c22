/* Answer: see answer.h. Reasoning is taken out first; what is left is looked through for tool calls. */
#include "model/answer.h"
#include <errno.h>
#include <stdlib.h>

struct answer {
    struct reasoning reasoning;
    struct toolcall *calls; /* NULL: none are looked for */
    answer_sink sink;       /* of the call that runs */
    void *arg;
    int failed;
};

int answer_new(const struct answer_options *o, struct answer **ret_answer)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return -ENOMEM;
    reasoning_init(&a->reasoning, o->marks, o->thinking);
    if (o->calls.format != TOOLCALL_NONE && toolcall_new(&o->calls, &a->calls) < 0) {
        free(a);
        return -ENOMEM;
    }
    *ret_answer = a;
    return 0;
}

void answer_free(struct answer *a)
{
    if (!a)
        return;
    reasoning_clear(&a->reasoning);
    toolcall_free(a->calls);
    free(a);
}

static void on_part(void *arg, bool thinks, const char *text, size_t len)
{
    struct answer *a = arg;
    if (thinks)
        a->sink(a->arg, ANSWER_REASONING, text, len);
    else if (!a->calls)
        a->sink(a->arg, ANSWER_TEXT, text, len);
    else if (!a->failed)
        a->failed = toolcall_feed(a->calls, text, len, a->sink, a->arg);
}

int answer_feed(struct answer *a, const char *text, size_t len, answer_sink sink, void *arg)
{
    a->sink = sink;
    a->arg = arg;
    int r = reasoning_feed(&a->reasoning, text, len, on_part, a);
    return a->failed ? a->failed : r;
}

int answer_finish(struct answer *a, answer_sink sink, void *arg)
{
    a->sink = sink;
    a->arg = arg;
    int r = reasoning_finish(&a->reasoning, on_part, a);
    if (r == 0 && a->calls && !a->failed)
        a->failed = toolcall_finish(a->calls, sink, arg);
    return a->failed ? a->failed : r;
}

uint32_t answer_calls(const struct answer *a)
{
    return a->calls ? toolcall_complete(a->calls) : 0;
}
