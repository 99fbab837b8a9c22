/* Evaluation of expressions.
 * Owner: one render. Every node costs a step and a level of depth while it runs; results go to *ret, which is
 * none of the operands. Must not know: HTTP, tokens. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py
 */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

static int eval_name(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    if (n->up == JSLOT_GLOBAL) {
        *ret = rt->globals[n->slot];
    } else {
        const struct jframe *f = rt->frame;
        for (unsigned i = 0; i < n->up; i++)
            f = f->up;
        *ret = f->slots[n->slot];
    }
    if (ret->type == J_MISSING)
        *ret = jundef(JU_NAME, n->name->text, n->name->len);
    return 0;
}

static int eval_seq(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval *items = jalloc(rt, n->nkids, sizeof *items);
    int r = 0;
    if (!items)
        return jnomem(rt);
    for (uint32_t i = 0; r >= 0 && i < n->nkids; i++)
        r = jeval(rt, n->kids[i], &items[i]);
    *ret = (struct jval){ .type = n->kind == JN_TUPLE ? J_TUPLE : J_LIST, .items = items, .len = n->nkids };
    return r;
}

static int eval_dict(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jdict *d;
    struct jval k, v;
    int r = jdict_new(rt, n->nkids / 2, &d);
    for (uint32_t i = 0; r >= 0 && i + 1 < n->nkids; i += 2) {
        r = jeval(rt, n->kids[i], &k);
        if (r >= 0)
            r = jeval(rt, n->kids[i + 1], &v);
        if (r >= 0)
            r = jdict_set(rt, d, &k, &v);
    }
    if (r >= 0)
        *ret = (struct jval){ .type = J_DICT, .dict = d };
    return r;
}

static int eval_item(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval v, key, part[3] = { jnone(), jnone(), jnone() };
    int r = jeval(rt, n->a, &v);
    if (r < 0)
        return r;
    if (n->b->kind == JN_SLICE) {
        for (uint32_t i = 0; r >= 0 && i < 3; i++)
            if (n->b->kids[i])
                r = jeval(rt, n->b->kids[i], &part[i]);
        rt->line = n->line;
        return r < 0 ? r : jslice(rt, &v, part, ret);
    }
    r = jeval(rt, n->b, &key);
    rt->line = n->line;
    return r < 0 ? r : jgetitem(rt, &v, &key, ret);
}

/* ---- calls */

static int star_args(struct jrt *rt, const struct jargs *args, const struct jval *star, struct jval **ret,
                     uint32_t *n)
{
    const struct jval *more;
    size_t count;
    int r = jcollect(rt, star, &more, &count);
    if (r >= 0 && count > JINJA_MAX_RANGE)
        return jfail(rt, "more than %d arguments", JINJA_MAX_RANGE);
    struct jval *v = r < 0 ? NULL : jalloc(rt, args->npos + count, sizeof *v);
    if (!v)
        return r < 0 ? r : jnomem(rt);
    for (uint32_t i = 0; i < args->npos; i++)
        v[i] = (*ret)[i];
    for (size_t i = 0; i < count; i++)
        v[args->npos + i] = more[i];
    *ret = v;
    *n = args->npos + (uint32_t)count;
    return jcharge(rt, count);
}

/* Keyword arguments of the call and of **, of which none may come twice. */
static int starstar_args(struct jrt *rt, const struct jval *more, struct jcall *call)
{
    struct jiter it;
    struct jval key, *names, *values;
    uint32_t n = call->nkw;
    if (!jis_dict(more))
        return jfail(rt, "** wants a dict, not %s", jtype_name(more));
    size_t total = n + (size_t)jlen(more);
    if (total > JINJA_MAX_RANGE)
        return jfail(rt, "more than %d arguments", JINJA_MAX_RANGE);
    names = jalloc(rt, total, sizeof *names);
    values = jalloc(rt, total, sizeof *values);
    if (!names || !values)
        return jnomem(rt);
    for (uint32_t i = 0; i < n; i++) {
        names[i] = call->kwnames[i];
        values[i] = call->kw[i];
    }
    int r = jiter_init(rt, &it, more);
    while (r >= 0 && n < total && (r = jiter_next(rt, &it, &key)) == 1) {
        if (key.type != J_STR)
            return jfail(rt, "** wants a dict with text for keys");
        for (uint32_t i = 0; i < n; i++)
            if (names[i].len == key.len && memcmp(names[i].s, key.s, key.len) == 0)
                return jfail(rt, "argument '%.*s' is given twice", (int)(key.len < 60 ? key.len : 60), key.s);
        names[n] = key;
        r = jdict_get(rt, more, &key, &values[n++]);
        if (r >= 0)
            r = jcharge(rt, n / 8);
    }
    call->kwnames = names;
    call->kw = values;
    call->nkw = n;
    return r < 0 ? r : 0;
}

int jeval_args(struct jrt *rt, const struct jargs *args, struct jcall *ret)
{
    struct jval v, *pos, *kw;
    int r = 0;
    *ret = (struct jcall){ 0 };
    if (!args || args->npos + args->nkw + (args->star != NULL) + (args->starstar != NULL) == 0)
        return 0;
    ret->npos = args->npos;
    ret->nkw = args->nkw;
    pos = jalloc(rt, args->npos + 2u * args->nkw, sizeof *pos);
    if (!pos)
        return jnomem(rt);
    kw = pos + args->npos;
    for (uint32_t i = 0; r >= 0 && i < args->npos; i++)
        r = jeval(rt, args->pos[i], &pos[i]);
    for (uint32_t i = 0; r >= 0 && i < args->nkw; i++) {
        kw[args->nkw + i] = jstr(args->kwnames[i]->text, args->kwnames[i]->len);
        r = jeval(rt, args->kw[i], &kw[i]);
    }
    ret->kw = kw;
    ret->kwnames = kw + args->nkw;
    if (r >= 0 && args->star) {
        r = jeval(rt, args->star, &v);
        if (r >= 0)
            r = star_args(rt, args, &v, &pos, &ret->npos);
    }
    ret->pos = pos;
    if (r >= 0 && args->starstar) {
        r = jeval(rt, args->starstar, &v);
        if (r >= 0)
            r = starstar_args(rt, &v, ret);
    }
    return r;
}

int jcall_value(struct jrt *rt, const struct jval *callee, const struct jcall *args, struct jval *ret)
{
    switch (callee->type) {
    case J_UNDEF:
        return jundef_fail(rt, callee);
    case J_FUNC:
        return jfunc_call(rt, callee->aux, args, ret);
    case J_METHOD:
        if (callee->self->type == J_LOOP)
            return jloop_call(rt, callee->self->loop, callee->aux, args, ret);
        return jmethod_call(rt, callee->self, callee->aux, args, ret);
    case J_MACRO:
        return jmacro_call(rt, callee->macro, args, ret);
    default:
        return jfail(rt, "a %s cannot be called", jtype_name(callee));
    }
}

static int eval_call(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval self, callee;
    struct jcall args;
    uint16_t which = 0;
    bool direct = false;
    int r;
    /* value.method(...) needs no bound method in between */
    if (n->a->kind == JN_ATTR) {
        const struct jname *name = n->a->name;
        r = jeval(rt, n->a->a, &self);
        if (r < 0)
            return r;
        direct = jmethod_find(&self, name->text, name->len, &which);
        rt->line = n->line;
        if (!direct)
            r = jgetattr(rt, &self, name->text, name->len, &callee);
    } else {
        r = jeval(rt, n->a, &callee);
    }
    if (r >= 0)
        r = jeval_args(rt, n->args, &args);
    rt->line = n->line;
    if (r < 0)
        return r;
    return direct ? jmethod_call(rt, &self, which, &args, ret) : jcall_value(rt, &callee, &args, ret);
}

static int eval_filter(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval v;
    struct jcall args;
    int r = 0;
    if (n->a)
        r = jeval(rt, n->a, &v);
    else
        v = rt->captured;
    if (r >= 0)
        r = jeval_args(rt, n->args, &args);
    rt->line = n->line;
    if (r >= 0 && n->index < 0)
        return jfail(rt, "there is no filter '%s'", n->name->text);
    return r < 0 ? r : jfilter_apply(rt, n->index, &v, &args, ret);
}

static int eval_test(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval v;
    struct jcall args;
    int r = jeval(rt, n->a, &v);
    if (r >= 0)
        r = jeval_args(rt, n->args, &args);
    rt->line = n->line;
    if (r >= 0 && n->index < 0)
        return jfail(rt, "there is no test '%s'", n->name->text);
    if (r >= 0)
        r = jtest_apply(rt, n->index, &v, &args);
    *ret = jbool(r == 1);
    return r < 0 ? r : 0;
}

/* ---- operators */

static int compare(struct jrt *rt, enum jcmp op, const struct jval *a, const struct jval *b)
{
    int r;
    switch (op) {
    case JC_EQ:
        return jequal(rt, a, b);
    case JC_NE:
        r = jequal(rt, a, b);
        return r < 0 ? r : !r;
    case JC_LT:
        return jless(rt, a, b);
    case JC_GT:
        return jless(rt, b, a);
    case JC_LE:
    case JC_GE:
        r = op == JC_LE ? jless(rt, a, b) : jless(rt, b, a);
        return r == 0 ? jequal(rt, a, b) : r;
    case JC_IN:
        return jcontains(rt, b, a);
    default:
        r = jcontains(rt, b, a);
        return r < 0 ? r : !r;
    }
}

static int eval_compare(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval left, right;
    int r = jeval(rt, n->a, &left), holds = 1;
    for (uint32_t i = 0; r >= 0 && holds == 1 && i < n->nkids; i++) {
        r = jeval(rt, n->kids[i], &right);
        rt->line = n->line;
        if (r >= 0)
            r = holds = compare(rt, n->text[i], &left, &right);
        left = right;
    }
    *ret = jbool(holds == 1);
    return r < 0 ? r : 0;
}

static int eval_concat(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval few[16], *parts = n->nkids <= 16 ? few : jalloc(rt, n->nkids, sizeof *parts), v;
    int r = 0;
    if (!parts)
        return jnomem(rt);
    for (uint32_t i = 0; r >= 0 && i < n->nkids; i++) {
        r = jeval(rt, n->kids[i], &v);
        if (r >= 0)
            r = jstr_of(rt, &v, &parts[i]);
    }
    rt->line = n->line;
    return r < 0 ? r : jstr_concat(rt, parts, n->nkids, ret);
}

static int eval_binary(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval a, b;
    int r = jeval(rt, n->a, &a);
    if (r >= 0)
        r = jeval(rt, n->b, &b);
    rt->line = n->line;
    return r < 0 ? r : jbinary(rt, n->op, &a, &b, ret);
}

static int eval_logic(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    int r = jeval(rt, n->a, ret);
    if (r < 0 || jtruth(ret) == (n->kind == JN_OR))
        return r;
    return jeval(rt, n->b, ret);
}

static int eval_cond(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    static const char text[] = "the inline if was false and has no else";
    struct jval test;
    int r = jeval(rt, n->b, &test);
    if (r < 0)
        return r;
    if (jtruth(&test))
        return jeval(rt, n->a, ret);
    if (n->c)
        return jeval(rt, n->c, ret);
    *ret = jundef(JU_TEXT, text, sizeof text - 1);
    return 0;
}

static int eval_unary(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval v;
    int r = jeval(rt, n->a, &v);
    rt->line = n->line;
    if (r < 0)
        return r;
    if (n->kind == JN_NOT) {
        *ret = jbool(!jtruth(&v));
        return 0;
    }
    return jnegate(rt, &v, n->kind == JN_POS, ret);
}

static int eval_attr(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    struct jval v;
    int r = jeval(rt, n->a, &v);
    rt->line = n->line;
    return r < 0 ? r : jgetattr(rt, &v, n->name->text, n->name->len, ret);
}

static int (*const evals[])(struct jrt *rt, const struct jnode *n, struct jval *ret) = {
    [JN_NAME] = eval_name,       [JN_TUPLE] = eval_seq, [JN_LIST] = eval_seq,  [JN_DICT] = eval_dict,
    [JN_ATTR] = eval_attr,       [JN_ITEM] = eval_item, [JN_CALL] = eval_call, [JN_FILTER] = eval_filter,
    [JN_TEST] = eval_test,       [JN_NOT] = eval_unary, [JN_NEG] = eval_unary, [JN_POS] = eval_unary,
    [JN_BINARY] = eval_binary,   [JN_AND] = eval_logic, [JN_OR] = eval_logic,  [JN_CONCAT] = eval_concat,
    [JN_COMPARE] = eval_compare, [JN_COND] = eval_cond,
};

int jeval(struct jrt *rt, const struct jnode *n, struct jval *ret)
{
    if (n->kind == JN_CONST) {
        *ret = n->value;
        return 0;
    }
    rt->line = n->line;
    int r = jenter(rt);
    if (r < 0)
        return r;
    r = evals[n->kind](rt, n, ret);
    rt->depth--;
    return r < 0 ? r : 0;
}
