/* Reasoning: splits a generation's text into what the model thinks, in front and between two marks, and what
 * it says. White space around the marks belongs to neither. Pure; one per generation.
 * Tests: tests/unit/test_answer.c */
#pragma once
#include "util/buf.h"

struct reasoning_marks {
    const char *start, *end;
};

/* The marks that a template's text has in it, or NULL. Constant. */
const struct reasoning_marks *reasoning_marks_find(const char *template_text);
/* Whether a prompt ends by opening the reasoning, so that the answer begins inside. */
bool reasoning_is_open(const struct reasoning_marks *m, const char *prompt, size_t len);

enum reasoning_state {
    REASONING_BEFORE, /* the start mark may still come */
    REASONING_OPENED, /* nothing but white space after it so far */
    REASONING_INSIDE,
    REASONING_CLOSED, /* nothing but white space after the end mark so far */
    REASONING_OVER,
};

struct reasoning {
    const struct reasoning_marks *marks;
    enum reasoning_state state;
    struct buf held; /* white space that may be dropped, then what may become a mark */
    size_t n_mark;   /* bytes of held that are the start of a mark */
};

typedef void (*reasoning_sink)(void *arg, bool thinks, const char *text, size_t len);

/* r is zeroed memory. marks may be NULL. */
void reasoning_init(struct reasoning *r, const struct reasoning_marks *marks, bool opened);
void reasoning_clear(struct reasoning *r);
/* -ENOMEM. */
int reasoning_feed(struct reasoning *r, const char *text, size_t len, reasoning_sink sink, void *arg);
int reasoning_finish(struct reasoning *r, reasoning_sink sink, void *arg);
