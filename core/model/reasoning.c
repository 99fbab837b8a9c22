/* Reasoning: see reasoning.h. A machine over bytes: in front of the start mark and at the end mark it holds
 * back white space and what may become the mark, and hands it out when it does not. */
#include "model/reasoning.h"
#include "model/jsonscan.h"
#include <errno.h>
#include <string.h>

/* By the end mark: some templates write the start mark in pieces, or only the model does. */
static const struct reasoning_marks known[] = {
    { "<think>", "</think>" },
    { "<thinking>", "</thinking>" },
    { "<seed:think>", "</seed:think>" },
    { "<reasoning>", "</reasoning>" },
    { "[THINK]", "[/THINK]" },
    { "<|START_THINKING|>", "<|END_THINKING|>" },
    { "<|inner_thoughts_begin|>", "<|inner_thoughts_end|>" },
};

const struct reasoning_marks *reasoning_marks_find(const char *template_text)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(template_text, known[i].end))
            return &known[i];
    return NULL;
}

bool reasoning_is_open(const struct reasoning_marks *m, const char *prompt, size_t len)
{
    size_t n = m ? strlen(m->start) : 0;
    while (len && jsonscan_is_space(prompt[len - 1]))
        len--;
    return n && len >= n && memcmp(prompt + len - n, m->start, n) == 0;
}

void reasoning_init(struct reasoning *r, const struct reasoning_marks *marks, bool opened)
{
    *r = (struct reasoning){ .marks = marks };
    r->state = !marks ? REASONING_OVER : opened ? REASONING_OPENED : REASONING_BEFORE;
}

void reasoning_clear(struct reasoning *r)
{
    buf_free(&r->held);
}

static bool thinks(const struct reasoning *r)
{
    return r->state == REASONING_OPENED || r->state == REASONING_INSIDE;
}

static void hand_out_held(struct reasoning *r, reasoning_sink sink, void *arg)
{
    if (r->held.len)
        sink(arg, thinks(r), r->held.data, r->held.len);
    buf_clear(&r->held);
    r->n_mark = 0;
}

/* The mark that would change the state, and the state then. */
static const char *next_mark(const struct reasoning *r, enum reasoning_state *ret_state)
{
    if (r->state == REASONING_BEFORE) {
        *ret_state = REASONING_OPENED;
        return r->marks->start;
    }
    *ret_state = REASONING_CLOSED;
    return r->marks->end;
}

/* One byte goes on with the mark, or what looked like one is none. A mark's first byte occurs in it only
 * once ('<' or '['), so a failed one can begin anew at the failing byte alone. */
static bool take_mark(struct reasoning *r, char c)
{
    enum reasoning_state next;
    const char *mark = next_mark(r, &next);
    if (mark[r->n_mark] != c)
        return false;
    buf_putc(&r->held, c);
    if (!mark[++r->n_mark]) {
        buf_clear(&r->held); /* with the white space before it */
        r->n_mark = 0;
        r->state = next;
    }
    return true;
}

/* Returns how many bytes from text on are plain and stay in this state. */
static size_t plain_run(const struct reasoning *r, const char *text, size_t len)
{
    enum reasoning_state next;
    char first = next_mark(r, &next)[0];
    size_t n = 0;
    while (n < len && text[n] != first && !jsonscan_is_space(text[n]))
        n++;
    return n;
}

static size_t step(struct reasoning *r, const char *text, size_t len, reasoning_sink sink, void *arg)
{
    if (r->state == REASONING_OVER) {
        hand_out_held(r, sink, arg);
        sink(arg, false, text, len);
        return len;
    }
    if (r->state == REASONING_CLOSED) {
        r->state = jsonscan_is_space(*text) ? REASONING_CLOSED : REASONING_OVER;
        return jsonscan_is_space(*text);
    }
    if (take_mark(r, *text))
        return 1;
    if (r->n_mark) { /* it was none: what is held is plain, and this byte is looked at again */
        r->state = r->state == REASONING_BEFORE ? REASONING_OVER : REASONING_INSIDE;
        hand_out_held(r, sink, arg);
        return 0;
    }
    if (jsonscan_is_space(*text)) {
        if (r->state != REASONING_OPENED)
            buf_putc(&r->held, *text);
        return 1;
    }
    if (r->state == REASONING_BEFORE) {
        r->state = REASONING_OVER;
        return 0;
    }
    r->state = REASONING_INSIDE;
    hand_out_held(r, sink, arg);
    size_t n = plain_run(r, text, len);
    sink(arg, true, text, n);
    return n;
}

int reasoning_feed(struct reasoning *r, const char *text, size_t len, reasoning_sink sink, void *arg)
{
    while (len && !r->held.failed) {
        size_t n = step(r, text, len, sink, arg);
        text += n;
        len -= n;
    }
    return r->held.failed ? -ENOMEM : 0;
}

int reasoning_finish(struct reasoning *r, reasoning_sink sink, void *arg)
{
    if (r->held.failed)
        return -ENOMEM;
    if (thinks(r) && !r->n_mark) /* white space at the end of the reasoning */
        buf_clear(&r->held);
    hand_out_held(r, sink, arg);
    return 0;
}
