/* Parser of chat templates, the leaves of expressions: literals, names, tuples and what can be assigned to.
 * Owner: one parse. Must not know: values beyond constants, rendering.
 * Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_calls.h"
#include "model/jinja_parse.h"
#include <errno.h>
#include <string.h>

/* ---- literals */

static int parse_string(struct jparser *p, struct jnode *n)
{
    n->value = jstr(p->cur.s, p->cur.len);
    int r = jparse_advance(p);
    while (r >= 0 && p->cur.type == JT_STRING) {
        size_t len = n->value.len + p->cur.len;
        char *text = jarena_alloc(&p->t->mem, len + 1);
        if (!text)
            return jparse_nomem(p);
        memcpy(text, n->value.s, n->value.len);
        memcpy(text + n->value.len, p->cur.s, p->cur.len);
        n->value = jstr(text, len);
        r = jparse_advance(p);
    }
    return r;
}

static int parse_list(struct jparser *p, struct jnode *n)
{
    struct jlist l = { 0 };
    int r = jparse_advance(p);
    while (r >= 0 && !jtok_op(&p->cur, ']')) {
        struct jnode *item;
        r = jparse_expr(p, true, &item);
        if (r >= 0)
            r = jparse_push(p, &l, item);
        if (r >= 0 && !jtok_op(&p->cur, ']'))
            r = jparse_expect_op(p, ',');
    }
    if (r >= 0)
        r = jparse_take(p, &l, n);
    return r < 0 ? r : jparse_advance(p);
}

static int parse_dict(struct jparser *p, struct jnode *n)
{
    struct jlist l = { 0 };
    int r = jparse_advance(p);
    while (r >= 0 && !jtok_op(&p->cur, '}')) {
        struct jnode *key, *value;
        r = jparse_expr(p, true, &key);
        if (r >= 0)
            r = jparse_expect_op(p, ':');
        if (r >= 0)
            r = jparse_expr(p, true, &value);
        if (r >= 0)
            r = jparse_push(p, &l, key);
        if (r >= 0)
            r = jparse_push(p, &l, value);
        if (r >= 0 && !jtok_op(&p->cur, '}'))
            r = jparse_expect_op(p, ',');
    }
    if (r >= 0)
        r = jparse_take(p, &l, n);
    return r < 0 ? r : jparse_advance(p);
}

static void note_mention(struct jparser *p)
{
    static const struct {
        const char *name;
        unsigned bit;
    } special[] = {
        { "caller", JM_CALLER }, { "kwargs", JM_KWARGS }, { "varargs", JM_VARARGS }, { "loop", JM_LOOP }
    };
    for (unsigned i = 0; i < sizeof special / sizeof special[0]; i++)
        if (jtok_name(&p->cur, special[i].name))
            p->mentions |= special[i].bit;
}

static int parse_name(struct jparser *p, bool with_namespace, struct jnode *n)
{
    bool yes = jtok_name(&p->cur, "true") || jtok_name(&p->cur, "True");
    if (yes || jtok_name(&p->cur, "false") || jtok_name(&p->cur, "False")) {
        n->value = jbool(yes);
        return jparse_advance(p);
    }
    if (jtok_name(&p->cur, "none") || jtok_name(&p->cur, "None")) {
        n->value = jnone();
        return jparse_advance(p);
    }
    note_mention(p);
    n->kind = JN_NAME;
    n->name = jparse_intern(p, p->cur.s, p->cur.len);
    int r = n->name ? jparse_advance(p) : -EINVAL;
    if (r < 0 || !with_namespace || !jtok_op(&p->cur, '.'))
        return r;
    struct jnode *of = jparse_node(p, JN_NAME, n->line);
    if (!of)
        return jparse_nomem(p);
    of->name = n->name;
    n->kind = JN_NSREF;
    n->a = of;
    r = jparse_advance(p);
    if (r < 0 || p->cur.type != JT_NAME)
        return r < 0 ? r : jparse_expected(p, "the name of an attribute");
    n->name = jparse_intern(p, p->cur.s, p->cur.len);
    return n->name ? jparse_advance(p) : -EINVAL;
}

int jparse_primary(struct jparser *p, bool with_namespace, struct jnode **ret)
{
    int r;
    if (jtok_op(&p->cur, '(')) {
        r = jparse_advance(p);
        if (r >= 0)
            r = jparse_tuple(p, true, true, ret);
        return r < 0 ? r : jparse_expect_op(p, ')');
    }
    struct jnode *n = jparse_node(p, JN_CONST, p->cur.line);
    if (!n)
        return jparse_nomem(p);
    *ret = n;
    switch (p->cur.type) {
    case JT_NAME:
        return parse_name(p, with_namespace, n);
    case JT_STRING:
        return parse_string(p, n);
    case JT_INT:
        n->value = jint(p->cur.i);
        return jparse_advance(p);
    case JT_FLOAT:
        n->value = jfloat(p->cur.f);
        return jparse_advance(p);
    default:
        break;
    }
    if (jtok_op(&p->cur, '[')) {
        n->kind = JN_LIST;
        return parse_list(p, n);
    }
    if (jtok_op(&p->cur, '{')) {
        n->kind = JN_DICT;
        return parse_dict(p, n);
    }
    return jparse_expected(p, "an expression");
}

/* ---- tuples and assignment targets */

static bool tuple_ends(const struct jtok *t, bool target)
{
    return t->type == JT_VAR_END || t->type == JT_BLOCK_END || jtok_op(t, ')') ||
           (target && jtok_name(t, "in"));
}

enum tuple_mode { PLAIN, NO_COND, TARGET, NS_TARGET };

static int read_tuple(struct jparser *p, enum tuple_mode mode, bool parens, struct jnode **ret)
{
    struct jlist l = { 0 };
    bool tuple = false, target = mode >= TARGET;
    uint32_t line = p->cur.line;
    int r = 0;
    while (r >= 0 && !tuple_ends(&p->cur, target)) {
        struct jnode *item;
        r = target ? jparse_primary(p, mode == NS_TARGET, &item) : jparse_expr(p, mode != NO_COND, &item);
        if (r >= 0)
            r = jparse_push(p, &l, item);
        if (r < 0 || !jtok_op(&p->cur, ','))
            break;
        tuple = true;
        r = jparse_advance(p);
    }
    if (r < 0)
        return r;
    if (!tuple && l.n > 0) {
        *ret = l.v[0];
        return 0;
    }
    if (!tuple && !parens)
        return jparse_expected(p, "an expression");
    *ret = jparse_node(p, JN_TUPLE, line);
    return *ret ? jparse_take(p, &l, *ret) : jparse_nomem(p);
}

int jparse_tuple(struct jparser *p, bool with_cond, bool parens, struct jnode **ret)
{
    return read_tuple(p, with_cond ? PLAIN : NO_COND, parens, ret);
}

static int check_target(struct jparser *p, const struct jnode *n, size_t pos, bool in_loop)
{
    if (n->kind == JN_TUPLE) {
        int r = 0;
        for (uint32_t i = 0; r >= 0 && i < n->nkids; i++)
            r = check_target(p, n->kids[i], pos, in_loop);
        return r;
    }
    if (n->kind != JN_NAME && n->kind != JN_NSREF)
        return jlex_fail(&p->lex, pos, "this cannot be assigned to: a name or several are wanted");
    if (in_loop && n->kind == JN_NAME && strcmp(n->name->text, "loop") == 0)
        return jlex_fail(&p->lex, pos, "'loop' belongs to the loop and cannot be assigned to");
    return 0;
}

int jparse_target(struct jparser *p, bool with_namespace, struct jnode **ret)
{
    size_t pos = p->cur.pos;
    unsigned seen = p->mentions;
    int r = read_tuple(p, with_namespace ? NS_TARGET : TARGET, false, ret);
    if (r < 0)
        return r;
    p->mentions = seen; /* assigning is not reading */
    return check_target(p, *ret, pos, !with_namespace || p->loops > 0);
}
