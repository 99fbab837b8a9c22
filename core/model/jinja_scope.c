/* Names of chat templates: which variable a name means, decided once, after parsing, by jinja2's rules.
 *
 * The template, loop bodies, macros and a few other blocks are scopes; `if` is not. A name that is assigned
 * anywhere in a scope is a variable of that scope, which on entry holds what the name means outside; a name
 * that is only read is the nearest scope's that has it, or else global: one of the caller's variables or a
 * function. So a `set` inside a loop is gone after the loop, and namespace() exists. Owner: one parse. Must
 * not know: values. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_parse.h"
#include <errno.h>
#include <string.h>

static const struct jname unnamed = { "", 0, 0 };

enum part { ROOT, BODY, ELSE, TEST };

struct walk {
    struct jparser *p;
    struct jscope *s;
    bool resolve;    /* second pass: the scope's variables are known */
    unsigned branch; /* inside `if` */
};

static int walk(struct walk *w, struct jnode *n);
static int analyze(struct walk *outer, struct jnode *n, enum part part, struct jscope **ret);

static int find_slot(const struct jscope *s, const struct jname *name)
{
    for (uint32_t i = 0; i < s->nslots; i++)
        if (s->slots[i].name == name)
            return (int)i;
    return -1;
}

static int find_outer(const struct jscope *s, const struct jname *name, uint16_t *ret_up, uint16_t *ret_slot)
{
    uint16_t up = 0;
    for (; s; s = s->up, up++) {
        int i = find_slot(s, name);
        if (i >= 0) {
            *ret_up = up;
            *ret_slot = (uint16_t)i;
            return 1;
        }
    }
    return 0;
}

static int global_index(struct jparser *p, const struct jname *name, uint16_t *ret)
{
    struct chat_template *t = p->t;
    for (uint32_t i = 0; i < t->nglobals; i++) {
        if (t->globals[i] == name) {
            *ret = (uint16_t)i;
            return 0;
        }
    }
    t->globals[t->nglobals] = name;
    *ret = (uint16_t)t->nglobals++;
    return 0;
}

/* First pass: the scope reads, assigns or declares a name. What the first mention is decides what the
 * variable holds before it is assigned. */
static int mention(struct walk *w, const struct jname *name, bool store, bool param)
{
    struct jscope *s = w->s;
    int at = find_slot(s, name);
    if (at < 0) {
        if (s->nslots == s->cap) {
            uint32_t cap = s->cap ? s->cap * 2 : 4;
            struct jslot *slots = jarena_alloc(&w->p->t->mem, cap * sizeof *slots);
            if (!slots)
                return jparse_nomem(w->p);
            if (s->nslots)
                memcpy(slots, s->slots, s->nslots * sizeof *slots);
            s->slots = slots;
            s->cap = cap;
        }
        at = (int)s->nslots++;
        s->slots[at] = (struct jslot){ .name = name };
        s->slots[at].load = store && w->branch == 0 ? JL_MISSING : JL_GLOBAL;
    }
    if (param)
        s->slots[at].load = JL_PARAM;
    s->slots[at].stored |= store || param;
    return 0;
}

/* Between the passes: what is only read here and known outside needs no variable of its own. */
static int settle(struct walk *w)
{
    struct jscope *s = w->s;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->nslots; i++) {
        struct jslot slot = s->slots[i];
        if (!slot.stored)
            continue;
        if (slot.load != JL_PARAM && find_outer(s->up, slot.name, &slot.up, &slot.slot)) {
            slot.load = JL_OUTER;
        } else if (slot.load == JL_GLOBAL) {
            int r = global_index(w->p, slot.name, &slot.slot);
            if (r < 0)
                return r;
        }
        s->slots[kept++] = slot;
    }
    s->nslots = kept;
    return 0;
}

/* Second pass: a name gets its place. */
static int place(struct walk *w, struct jnode *n)
{
    if (find_outer(w->s, n->name, &n->up, &n->slot))
        return 0;
    n->up = JSLOT_GLOBAL;
    return global_index(w->p, n->name, &n->slot);
}

static int walk_name(struct walk *w, struct jnode *n, bool store, bool param)
{
    return w->resolve ? place(w, n) : mention(w, n->name, store, param);
}

static int walk_target(struct walk *w, struct jnode *n, bool param)
{
    int r = 0;
    if (n->kind == JN_NSREF)
        return walk_name(w, n->a, false, false);
    if (n->kind == JN_NAME)
        return walk_name(w, n, true, param);
    for (uint32_t i = 0; r >= 0 && i < n->nkids; i++)
        r = walk_target(w, n->kids[i], param);
    return r;
}

static int walk_args(struct walk *w, const struct jargs *a)
{
    int r = 0;
    if (!a)
        return 0;
    for (uint32_t i = 0; r >= 0 && i < a->npos; i++)
        r = walk(w, a->pos[i]);
    for (uint32_t i = 0; r >= 0 && i < a->nkw; i++)
        r = walk(w, a->kw[i]);
    if (r >= 0)
        r = walk(w, a->star);
    return r < 0 ? r : walk(w, a->starstar);
}

static int walk_if(struct walk *w, struct jnode *n)
{
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < n->nkids; i++) {
        bool inner = i > 0; /* the first test runs always, the others and all bodies perhaps */
        w->branch += inner;
        r = walk(w, n->kids[i]);
        w->branch -= inner;
    }
    w->branch++;
    if (r >= 0)
        r = walk(w, n->c);
    w->branch--;
    return r;
}

static int inner_scope(struct walk *w, struct jnode *n, enum part part, struct jscope **ret)
{
    return w->resolve ? analyze(w, n, part, ret) : 0;
}

static int walk_for(struct walk *w, struct jnode *n)
{
    int r = walk(w, n->b);
    if (r >= 0)
        r = inner_scope(w, n, BODY, &n->scope);
    if (r >= 0 && n->orelse)
        r = inner_scope(w, n, ELSE, &n->scope2);
    if (r >= 0 && n->test)
        r = inner_scope(w, n, TEST, &n->scope3);
    return r;
}

/* What a statement does to the scope it stands in; scopes inside it are analyzed in the second pass. */
static int walk(struct walk *w, struct jnode *n)
{
    int r = 0;
    if (!n)
        return 0;
    switch (n->kind) {
    case JN_NAME:
        return walk_name(w, n, false, false);
    case JN_SET:
        r = walk(w, n->b);
        return r < 0 ? r : walk_target(w, n->a, false);
    case JN_IF:
        return walk_if(w, n);
    case JN_FOR:
        return walk_for(w, n);
    case JN_MACRO:
        r = w->resolve ? 0 : mention(w, n->name, true, false);
        if (r >= 0 && w->resolve)
            r = find_outer(w->s, n->name, &n->up, &n->slot) - 1;
        return r < 0 ? r : inner_scope(w, n, BODY, &n->scope);
    case JN_SETBLOCK:
        r = walk_target(w, n->a, false);
        return r < 0 ? r : inner_scope(w, n, BODY, &n->scope);
    case JN_CALLBLOCK:
    case JN_FILTERBLOCK:
    case JN_SCOPE:
        r = walk(w, n->a);
        return r < 0 ? r : inner_scope(w, n, BODY, &n->scope);
    case JN_WITH:
        for (uint32_t i = 1; r >= 0 && i < n->nkids; i += 2)
            r = walk(w, n->kids[i]);
        return r < 0 ? r : inner_scope(w, n, BODY, &n->scope);
    default:
        break;
    }
    for (uint32_t i = 0; r >= 0 && i < n->nkids; i++)
        r = walk(w, n->kids[i]);
    if (r >= 0)
        r = walk(w, n->a);
    if (r >= 0)
        r = walk(w, n->b);
    if (r >= 0)
        r = walk(w, n->c);
    return r < 0 ? r : walk_args(w, n->args);
}

/* Parameters, then the implicit ones that the body mentions, in the order jmacro_call fills them. */
static int walk_function(struct walk *w, struct jnode *n)
{
    static const struct {
        const char *name;
        unsigned bit;
    } implicit[] = { { "caller", JM_CALLER }, { "kwargs", JM_KWARGS }, { "varargs", JM_VARARGS } };
    int r = 0;
    for (int32_t i = 0; r >= 0 && i < n->index; i++)
        r = walk_target(w, n->kids[i], true);
    for (unsigned i = 0; r >= 0 && !w->resolve && i < 3; i++) {
        const struct jname *name =
            n->op & implicit[i].bit ? jparse_intern(w->p, implicit[i].name, strlen(implicit[i].name)) : NULL;
        if (name)
            r = mention(w, name, false, true);
    }
    for (uint32_t i = (uint32_t)n->index; r >= 0 && i < n->nkids; i++)
        r = walk(w, n->kids[i]);
    return r < 0 ? r : walk(w, n->body);
}

static int walk_inside(struct walk *w, struct jnode *n, enum part part)
{
    int r = 0;
    if (part == ROOT)
        return walk(w, n);
    if (part == ELSE)
        return walk(w, n->orelse);
    switch (n->kind) {
    case JN_FOR:
        /* The condition sees no `loop` of its own, but its variables must lie where those of the body do. */
        if (n->op & JM_LOOP && !w->resolve)
            r = mention(w, part == BODY ? jparse_intern(w->p, "loop", 4) : &unnamed, false, true);
        if (r >= 0)
            r = walk_target(w, n->a, true);
        return r < 0 ? r : walk(w, part == BODY ? n->body : n->test);
    case JN_MACRO:
    case JN_CALLBLOCK:
        return walk_function(w, n);
    case JN_WITH:
        for (uint32_t i = 0; r >= 0 && i < n->nkids; i += 2)
            r = walk_target(w, n->kids[i], true);
        return r < 0 ? r : walk(w, n->body);
    default: /* set block, filter block, generation */
        r = walk(w, n->body);
        return r < 0 ? r : walk(w, n->b);
    }
}

static int analyze(struct walk *outer, struct jnode *n, enum part part, struct jscope **ret)
{
    struct walk w = { .p = outer->p };
    w.s = jarena_alloc(&w.p->t->mem, sizeof *w.s);
    if (!w.s)
        return jparse_nomem(w.p);
    *w.s = (struct jscope){ .up = outer->s };
    *ret = w.s;
    int r = walk_inside(&w, n, part);
    if (r >= 0)
        r = settle(&w);
    w.resolve = true;
    return r < 0 ? r : walk_inside(&w, n, part);
}

int jscope_resolve(struct jparser *p)
{
    struct walk none = { .p = p };
    p->t->globals = jarena_alloc(&p->t->mem, (p->nnames + 1) * sizeof *p->t->globals);
    if (!p->t->globals)
        return jparse_nomem(p);
    return analyze(&none, p->t->root, ROOT, &p->t->scope);
}
