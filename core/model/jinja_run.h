/* Jinja run: the state of one render and what drives it: bounds and errors, evaluation, execution, scopes,
 * loops. Private to core/model/jinja_*.c and chat.c. One render, one thread. */
#pragma once
#include "model/jinja_calls.h"
#include "model/jinja_tree.h"
#include "util/buf.h"

struct jframe { /* a scope that has been entered */
    struct jframe *up;
    struct jval slots[];
};

struct jmacro {
    const struct jnode *node; /* JN_MACRO or JN_CALLBLOCK */
    struct jframe *frame;     /* where it was defined */
};

struct jloop {
    struct jiter it;
    bool has_after, after_end, known;
    size_t index0, length;
    struct jval before, current, after;
    struct jval changed;
    bool has_changed;
};

struct jrt {
    const struct chat_template *t;
    const json_t *vars;
    int64_t now_s;
    struct buf out;
    struct jarena mem;
    size_t max;       /* bytes that the tree, the values and the text may take together */
    uint64_t steps;   /* left */
    uint64_t escapes; /* times something older came to point at newer memory: forbids releasing to a mark */
    unsigned depth;
    uint32_t line;
    struct jframe *frame;
    const struct jval *globals;
    struct jval captured; /* text of the block whose filters are applied */
    char *err;
    size_t errlen;
};

/* jinja_run.c: errors and bounds */
__attribute__((format(printf, 2, 3))) int jfail(struct jrt *rt, const char *fmt,
                                                ...); /* "line 3: ..."; -EINVAL */
int jcharge(struct jrt *rt, size_t steps);            /* -E2BIG when the budget is spent */
int jenter(struct jrt *rt); /* one level deeper; pair with rt->depth-- when it returned 0 */
void *jalloc(struct jrt *rt, size_t n, size_t size); /* NULL: none is left */
int jnomem(struct jrt *rt);                          /* ... which is this error */
int jout(struct jrt *rt, const char *s, size_t len);
void jout_hex(struct jrt *rt, const char *prefix, uint32_t value, unsigned digits, bool upper);
int jout_check(struct jrt *rt);
/* Text written to rt->out since `start` becomes a string value and leaves rt->out. */
int jcapture(struct jrt *rt, size_t start, struct jval *ret);
void jdiscard(struct jrt *rt, size_t start);

/* jinja_eval.c, jinja_exec.c */
int jeval(struct jrt *rt, const struct jnode *n, struct jval *ret);
int jeval_args(struct jrt *rt, const struct jargs *args, struct jcall *ret);
int jcall_value(struct jrt *rt, const struct jval *callee, const struct jcall *args, struct jval *ret);
enum { JFLOW_NORMAL, JFLOW_BREAK, JFLOW_CONTINUE };
int jexec(struct jrt *rt, const struct jnode *n); /* a JFLOW_* or an error */
int jmacro_call(struct jrt *rt, const struct jmacro *m, const struct jcall *args, struct jval *ret);
int jassign(struct jrt *rt, const struct jnode *target, const struct jval *v, struct jframe *frame);
int jscope_enter(struct jrt *rt, const struct jscope *s, struct jframe *up, struct jframe **ret);
void jscope_load(const struct jscope *s, struct jframe *f, const struct jval *globals);
int jloop_attr(struct jrt *rt, const struct jval *loop, const char *name, size_t len,
               struct jval *ret); /* 1 found */
int jloop_next(struct jrt *rt, struct jloop *l, struct jval *ret);
int jloop_call(struct jrt *rt, struct jloop *l, uint16_t which, const struct jcall *args, struct jval *ret);
