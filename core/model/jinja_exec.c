/* Execution of statements: output, assignment, loops, macros and blocks that capture text.
 *
 * Memory: what an iteration or an output leaves in the arena is dead when it ends, unless something older was
 * made to point at it; rt->escapes counts such events, and where none happened the arena goes back to where
 * it was. Owner: one render. Must not know: HTTP, tokens. Tests: tests/unit/test_chat.c,
 * tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

/* ---- scopes */

void jscope_load(const struct jscope *s, struct jframe *f, const struct jval *globals)
{
    for (uint32_t i = 0; i < s->nslots; i++) {
        const struct jslot *slot = &s->slots[i];
        const struct jframe *from = f->up;
        switch (slot->load) {
        case JL_OUTER:
            for (unsigned k = 0; k < slot->up; k++)
                from = from->up;
            f->slots[i] = from->slots[slot->slot];
            break;
        case JL_GLOBAL:
            f->slots[i] = globals[slot->slot];
            break;
        default:
            f->slots[i] = (struct jval){ .type = J_MISSING };
            break;
        }
    }
}

int jscope_enter(struct jrt *rt, const struct jscope *s, struct jframe *up, struct jframe **ret)
{
    struct jframe *f = jalloc(rt, 1, sizeof *f + s->nslots * sizeof f->slots[0]);
    if (!f)
        return jnomem(rt);
    f->up = up;
    jscope_load(s, f, rt->globals);
    *ret = f;
    return jcharge(rt, s->nslots / 4);
}

/* ---- assignment */

static struct jval *slot_of(const struct jnode *n, struct jframe *f)
{
    for (unsigned i = 0; i < n->up; i++)
        f = f->up;
    return &f->slots[n->slot];
}

static int assign_attr(struct jrt *rt, const struct jnode *n, const struct jval *v, struct jframe *frame)
{
    static const struct jval missing = { .type = J_MISSING };
    const struct jval *ns = n->a->up == JSLOT_GLOBAL ? &missing : slot_of(n->a, frame);
    struct jval key = jstr(n->name->text, n->name->len);
    if (ns->type != J_NS)
        return jfail(rt, "only the attributes of a namespace() can be set, '%s' is none", n->a->name->text);
    if (jin_arena(v))
        rt->escapes++;
    return jdict_set(rt, ns->dict, &key, v);
}

int jassign(struct jrt *rt, const struct jnode *target, const struct jval *v, struct jframe *frame)
{
    const struct jval *items;
    size_t n;
    if (target->kind == JN_NAME) {
        *slot_of(target, frame) = *v;
        return 0;
    }
    if (target->kind == JN_NSREF)
        return assign_attr(rt, target, v, frame);
    if (v->type == J_UNDEF && v->aux == JU_NAME)
        return jundef_fail(rt, v);
    int r = jcollect(rt, v, &items, &n);
    if (r >= 0 && n != target->nkids)
        return jfail(rt, "%s values to unpack: %u wanted, %zu given",
                     n > target->nkids ? "too many" : "not enough", target->nkids, n);
    for (uint32_t i = 0; r >= 0 && i < target->nkids; i++)
        r = jassign(rt, target->kids[i], &items[i], frame);
    return r;
}

static int exec_set(struct jrt *rt, const struct jnode *n)
{
    struct jval v;
    int r = jeval(rt, n->b, &v);
    rt->line = n->line;
    return r < 0 ? r : jassign(rt, n->a, &v, rt->frame);
}

/* ---- output */

static int exec_output(struct jrt *rt, const struct jnode *n)
{
    struct jmark mark = jarena_mark(&rt->mem);
    uint64_t escapes = rt->escapes;
    struct jval v;
    int r = jeval(rt, n->a, &v);
    if (r >= 0)
        r = jwrite_str(rt, &v);
    if (r >= 0 && escapes == rt->escapes)
        jarena_release(&rt->mem, mark);
    return r;
}

/* ---- blocks that capture their text */

/* Runs body in a scope of its own; what it writes goes to rt->captured and not out. Jumps leave it, text
 * lost. */
static int capture(struct jrt *rt, const struct jnode *n)
{
    struct jframe *frame = rt->frame;
    size_t start = rt->out.len;
    int flow = jscope_enter(rt, n->scope, frame, &rt->frame);
    if (flow >= 0)
        flow = jexec(rt, n->body);
    if (flow == JFLOW_NORMAL) {
        int r = jcapture(rt, start, &rt->captured);
        if (r >= 0 && n->b) {
            struct jval v;
            r = jeval(rt, n->b, &v);
            rt->captured = v;
        }
        flow = r < 0 ? r : flow;
    } else if (flow > 0) {
        jdiscard(rt, start);
    }
    rt->frame = frame;
    return flow;
}

static int exec_set_block(struct jrt *rt, const struct jnode *n)
{
    int flow = capture(rt, n);
    rt->line = n->line;
    if (flow != JFLOW_NORMAL)
        return flow;
    struct jval v = rt->captured;
    return jassign(rt, n->a, &v, rt->frame);
}

static int exec_filter_block(struct jrt *rt, const struct jnode *n)
{
    int flow = capture(rt, n);
    rt->line = n->line;
    if (flow != JFLOW_NORMAL)
        return flow;
    struct jval v = rt->captured;
    return jwrite_str(rt, &v);
}

static int exec_scope(struct jrt *rt, const struct jnode *n)
{
    struct jframe *frame = rt->frame, *inner;
    int flow = jscope_enter(rt, n->scope, frame, &inner);
    for (uint32_t i = 0; flow >= 0 && i + 1 < n->nkids; i += 2) {
        struct jval v;
        flow = jeval(rt, n->kids[i + 1], &v); /* in the outer scope */
        if (flow >= 0)
            flow = jassign(rt, n->kids[i], &v, inner);
    }
    rt->frame = inner;
    if (flow >= 0)
        flow = jexec(rt, n->body);
    rt->frame = frame;
    return flow;
}

/* ---- macros */

static int exec_macro(struct jrt *rt, const struct jnode *n)
{
    struct jmacro *m = jalloc(rt, 1, sizeof *m);
    if (!m)
        return jnomem(rt);
    *m = (struct jmacro){ n, rt->frame };
    *slot_of(n, rt->frame) = (struct jval){ .type = J_MACRO, .macro = m };
    return 0;
}

static const char *macro_name(const struct jmacro *m)
{
    return m->node->name ? m->node->name->text : "caller";
}

static int find_kw(const struct jcall *args, const char *name, size_t len)
{
    for (uint32_t i = 0; i < args->nkw; i++)
        if (args->kwnames[i].len == len && memcmp(args->kwnames[i].s, name, len) == 0)
            return (int)i;
    return -1;
}

static struct jval *implicit_slot(const struct jnode *n, struct jframe *f, const char *name)
{
    for (uint32_t i = 0; i < n->scope->nslots; i++)
        if (strcmp(n->scope->slots[i].name->text, name) == 0)
            return &f->slots[i];
    return NULL;
}

static bool has_param(const struct jnode *n, const char *name)
{
    for (int32_t i = 0; i < n->index; i++)
        if (strcmp(n->kids[i]->name->text, name) == 0)
            return true;
    return false;
}

/* caller, kwargs and varargs, where the body reads them. `used` of the keyword arguments went to parameters.
 */
static int bind_rest(struct jrt *rt, const struct jmacro *m, const struct jcall *args, bool *taken,
                     struct jframe *f)
{
    const struct jnode *n = m->node;
    uint32_t params = (uint32_t)n->index;
    if (n->op & JM_CALLER && !has_param(n, "caller")) {
        int k = find_kw(args, "caller", 6);
        if (k >= 0) {
            *implicit_slot(n, f, "caller") = args->kw[k];
            taken[k] = true;
        } else {
            static const char text[] = "no caller: the macro is not called by {% call %}";
            *implicit_slot(n, f, "caller") = jundef(JU_TEXT, text, sizeof text - 1);
        }
    }
    if (n->op & JM_KWARGS && !has_param(n, "kwargs")) {
        struct jdict *d;
        int r = jdict_new(rt, args->nkw, &d);
        for (uint32_t i = 0; r >= 0 && i < args->nkw; i++)
            if (!taken[i])
                r = jdict_set(rt, d, &args->kwnames[i], &args->kw[i]);
        if (r < 0)
            return r;
        *implicit_slot(n, f, "kwargs") = (struct jval){ .type = J_DICT, .dict = d };
    } else {
        for (uint32_t i = 0; i < args->nkw; i++)
            if (!taken[i])
                return jfail(rt, "macro '%s' takes no keyword argument '%.*s'", macro_name(m),
                             (int)(args->kwnames[i].len < 60 ? args->kwnames[i].len : 60),
                             args->kwnames[i].s);
    }
    if (n->op & JM_VARARGS && !has_param(n, "varargs")) {
        struct jval rest = { .type = J_TUPLE };
        rest.items = args->npos > params ? args->pos + params : NULL;
        rest.len = args->npos > params ? args->npos - params : 0;
        *implicit_slot(n, f, "varargs") = rest;
    } else if (args->npos > params) {
        return jfail(rt, "macro '%s' takes at most %u arguments, got %u", macro_name(m), params, args->npos);
    }
    return 0;
}

static int bind_params(struct jrt *rt, const struct jmacro *m, const struct jcall *args, struct jframe *f)
{
    const struct jnode *n = m->node;
    bool *taken = jalloc(rt, args->nkw, sizeof *taken);
    if (!taken)
        return jnomem(rt);
    if (args->nkw > 0)
        memset(taken, 0, args->nkw * sizeof *taken);
    int r = jcharge(rt, args->nkw * (size_t)n->index / 8);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < (uint32_t)n->index; i++) {
        const struct jnode *p = n->kids[i];
        int k = i < args->npos ? -1 : find_kw(args, p->name->text, p->name->len);
        if (i < args->npos)
            f->slots[p->slot] = args->pos[i];
        if (k >= 0) {
            f->slots[p->slot] = args->kw[k];
            taken[k] = true;
        }
    }
    r = bind_rest(rt, m, args, taken, f);
    /* defaults last and in order: they may read the parameters before them */
    for (uint32_t i = 0; r >= 0 && i < (uint32_t)n->index; i++) {
        struct jval *slot = &f->slots[n->kids[i]->slot], v;
        const struct jnode *dflt = n->kids[(uint32_t)n->index + i];
        if (slot->type != J_MISSING)
            continue;
        if (!dflt) {
            *slot = jundef(JU_NAME, n->kids[i]->name->text, n->kids[i]->name->len);
            continue;
        }
        r = jeval(rt, dflt, &v);
        *slot = v;
    }
    return r;
}

int jmacro_call(struct jrt *rt, const struct jmacro *m, const struct jcall *args, struct jval *ret)
{
    struct jframe *frame = rt->frame;
    struct jmark mark = jarena_mark(&rt->mem);
    uint64_t escapes = rt->escapes;
    size_t start = rt->out.len;
    int r = jenter(rt);
    if (r < 0)
        return r;
    r = jscope_enter(rt, m->node->scope, m->frame, &rt->frame);
    if (r >= 0)
        r = bind_params(rt, m, args, rt->frame);
    if (r >= 0)
        r = jexec(rt, m->node->body);
    rt->frame = frame;
    rt->depth--;
    if (r >= 0 && escapes == rt->escapes)
        jarena_release(&rt->mem, mark);
    return r < 0 ? r : jcapture(rt, start, ret);
}

static int exec_call_block(struct jrt *rt, const struct jnode *n)
{
    struct jval callee, *kw, *names;
    struct jcall args;
    struct jmacro *m = jalloc(rt, 1, sizeof *m);
    if (!m)
        return jnomem(rt);
    *m = (struct jmacro){ n, rt->frame };
    int r = jeval(rt, n->a->a, &callee);
    if (r >= 0)
        r = jeval_args(rt, n->a->args, &args);
    if (r < 0)
        return r;
    kw = jalloc(rt, args.nkw + 1, sizeof *kw);
    names = jalloc(rt, args.nkw + 1, sizeof *names);
    if (!kw || !names)
        return jnomem(rt);
    for (uint32_t i = 0; i < args.nkw; i++) {
        kw[i] = args.kw[i];
        names[i] = args.kwnames[i];
    }
    kw[args.nkw] = (struct jval){ .type = J_MACRO, .macro = m };
    names[args.nkw++] = jstrz("caller");
    args.kw = kw;
    args.kwnames = names;
    rt->line = n->line;
    r = jcall_value(rt, &callee, &args, &callee);
    return r < 0 ? r : jwrite_str(rt, &callee);
}

/* ---- loops */

static int loop_source(struct jrt *rt, const struct jnode *n, struct jiter *it)
{
    struct jval v;
    int r = jeval(rt, n->b, &v);
    rt->line = n->line;
    if (r < 0 || !n->test)
        return r < 0 ? r : jiter_init(rt, it, &v);
    struct jgen *g = jalloc(rt, 1, sizeof *g);
    if (!g)
        return jnomem(rt);
    *g = (struct jgen){ .kind = JG_LOOP, .loop = n };
    r = jscope_enter(rt, n->scope3, rt->frame, &g->frame);
    if (r >= 0)
        r = jiter_init(rt, &g->it, &v);
    struct jval gen = { .type = J_GEN, .gen = g };
    return r < 0 ? r : jiter_init(rt, it, &gen);
}

/* One round: the scope as on entry, the variables set, the body. */
static int iterate(struct jrt *rt, const struct jnode *n, struct jframe *f, const struct jval *item,
                   const struct jval *loop)
{
    struct jframe *frame = rt->frame;
    struct jmark mark = jarena_mark(&rt->mem);
    uint64_t escapes = rt->escapes;
    jscope_load(n->scope, f, rt->globals);
    if (n->op & JM_LOOP)
        f->slots[0] = *loop;
    int flow = jcharge(rt, n->scope->nslots / 4);
    if (flow >= 0)
        flow = jassign(rt, n->a, item, f);
    rt->frame = f;
    if (flow >= 0)
        flow = jexec(rt, n->body);
    rt->frame = frame;
    if (flow >= 0 && escapes == rt->escapes)
        jarena_release(&rt->mem, mark);
    return flow;
}

static int run_loop(struct jrt *rt, const struct jnode *n, struct jloop *l, bool *ran)
{
    struct jframe *f;
    struct jval item, loop = { .type = J_LOOP, .loop = l };
    int r = jscope_enter(rt, n->scope, rt->frame, &f);
    while (r >= 0 && (r = jloop_next(rt, l, &item)) == 1) {
        r = iterate(rt, n, f, &item, &loop);
        /* jinja2 runs the `else` unless a round came to its end: break and continue do not */
        *ran |= r == JFLOW_NORMAL;
        rt->line = n->line;
        if (r == JFLOW_BREAK)
            return 0;
    }
    return r < 0 ? r : 0;
}

static int exec_for(struct jrt *rt, const struct jnode *n)
{
    struct jmark mark = jarena_mark(&rt->mem);
    uint64_t escapes = rt->escapes;
    bool ran = false;
    struct jloop *l = jalloc(rt, 1, sizeof *l);
    if (!l)
        return jnomem(rt);
    *l = (struct jloop){ .index0 = SIZE_MAX };
    int r = loop_source(rt, n, &l->it);
    if (r >= 0)
        r = run_loop(rt, n, l, &ran);
    if (r >= 0 && escapes == rt->escapes)
        jarena_release(&rt->mem, mark);
    if (r < 0 || ran || !n->orelse)
        return r;
    struct jframe *frame = rt->frame;
    r = jscope_enter(rt, n->scope2, frame, &rt->frame);
    if (r >= 0)
        r = jexec(rt, n->orelse);
    rt->frame = frame;
    return r;
}

/* ---- the rest */

static int exec_if(struct jrt *rt, const struct jnode *n)
{
    for (uint32_t i = 0; i + 1 < n->nkids; i += 2) {
        struct jval test;
        int r = jeval(rt, n->kids[i], &test);
        if (r < 0)
            return r;
        if (jtruth(&test))
            return jexec(rt, n->kids[i + 1]);
    }
    return n->c ? jexec(rt, n->c) : JFLOW_NORMAL;
}

static int exec_body(struct jrt *rt, const struct jnode *n)
{
    int flow = JFLOW_NORMAL;
    for (uint32_t i = 0; flow == JFLOW_NORMAL && i < n->nkids; i++)
        flow = jexec(rt, n->kids[i]);
    return flow;
}

static int exec_data(struct jrt *rt, const struct jnode *n)
{
    return jout(rt, n->value.s, n->value.len);
}

static int exec_break(struct jrt *rt, const struct jnode *n)
{
    (void)rt;
    return n->kind == JN_BREAK ? JFLOW_BREAK : JFLOW_CONTINUE;
}

static int (*const execs[])(struct jrt *rt, const struct jnode *n) = {
    [JN_DATA] = exec_data,
    [JN_OUTPUT] = exec_output,
    [JN_SET] = exec_set,
    [JN_SETBLOCK] = exec_set_block,
    [JN_FOR] = exec_for,
    [JN_IF] = exec_if,
    [JN_MACRO] = exec_macro,
    [JN_CALLBLOCK] = exec_call_block,
    [JN_FILTERBLOCK] = exec_filter_block,
    [JN_WITH] = exec_scope,
    [JN_SCOPE] = exec_scope,
    [JN_BREAK] = exec_break,
    [JN_CONTINUE] = exec_break,
    [JN_BODY] = exec_body,
};

int jexec(struct jrt *rt, const struct jnode *n)
{
    rt->line = n->line;
    int r = jenter(rt);
    if (r < 0)
        return r;
    r = execs[n->kind](rt, n);
    rt->depth--;
    return r;
}
