/* Parser of chat templates, expressions: jinja2's precedence, from `a if b else c` down to literals.
 * Owner: one parse. Must not know: values beyond constants, rendering.
 * Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_calls.h"
#include "model/jinja_parse.h"
#include <errno.h>
#include <string.h>

static int parse_unary(struct jparser *p, bool with_filter, struct jnode **ret);
static int parse_postfix(struct jparser *p, struct jnode **n);

static int enter(struct jparser *p)
{
    if (++p->depth > JINJA_MAX_NEST)
        return jlex_fail(&p->lex, p->cur.pos, "blocks and brackets inside one another: at most %u",
                         JINJA_MAX_NEST);
    return 0;
}

/* A node over up to two others. */
static int make(struct jparser *p, enum jkind kind, uint32_t line, struct jnode *a, struct jnode *b,
                struct jnode **ret)
{
    struct jnode *n = jparse_node(p, kind, line);
    if (!n)
        return jparse_nomem(p);
    n->a = a;
    n->b = b;
    *ret = n;
    int r = jparse_raise(p, n, a);
    return r < 0 ? r : jparse_raise(p, n, b);
}

/* ---- operators */

static unsigned binary_op(const struct jtok *t, const char *ops)
{
    if (t->type != JT_OP)
        return 0;
    for (; *ops; ops++)
        if (t->op == (unsigned char)*ops)
            return t->op;
    return 0;
}

static enum jop op_of(unsigned op)
{
    switch (op) {
    case '+':
        return JO_ADD;
    case '-':
        return JO_SUB;
    case '*':
        return JO_MUL;
    case '/':
        return JO_DIV;
    case '%':
        return JO_MOD;
    case JT2_POW:
        return JO_POW;
    default:
        return JO_FLOORDIV;
    }
}

typedef int parse_fn(struct jparser *p, struct jnode **ret);

/* left op right op right ..., left to right */
static int parse_chain(struct jparser *p, const char *ops, parse_fn *next, struct jnode **ret)
{
    int r = next(p, ret);
    unsigned op;
    while (r >= 0 && (op = binary_op(&p->cur, ops)) != 0) {
        struct jnode *right;
        uint32_t line = p->cur.line;
        r = jparse_advance(p);
        if (r >= 0)
            r = next(p, &right);
        if (r >= 0)
            r = make(p, JN_BINARY, line, *ret, right, ret);
        if (r >= 0)
            (*ret)->op = (uint8_t)op_of(op);
    }
    return r;
}

static int parse_factor(struct jparser *p, struct jnode **ret)
{
    return parse_unary(p, true, ret);
}

static int parse_pow(struct jparser *p, struct jnode **ret)
{
    static const char ops[] = { (char)JT2_POW, 0 };
    return parse_chain(p, ops, parse_factor, ret);
}

static int parse_product(struct jparser *p, struct jnode **ret)
{
    static const char ops[] = { '*', '/', '%', (char)JT2_FLOORDIV, 0 };
    return parse_chain(p, ops, parse_pow, ret);
}

static int parse_concat(struct jparser *p, struct jnode **ret)
{
    struct jlist l = { 0 };
    int r = parse_product(p, ret);
    if (r < 0 || !jtok_op(&p->cur, '~'))
        return r;
    struct jnode *n = jparse_node(p, JN_CONCAT, p->cur.line), *part = *ret;
    if (!n)
        return jparse_nomem(p);
    r = jparse_push(p, &l, part);
    while (r >= 0 && jtok_op(&p->cur, '~')) {
        r = jparse_advance(p);
        if (r >= 0)
            r = parse_product(p, &part);
        if (r >= 0)
            r = jparse_push(p, &l, part);
    }
    *ret = n;
    return r < 0 ? r : jparse_take(p, &l, n);
}

static int parse_sum(struct jparser *p, struct jnode **ret)
{
    return parse_chain(p, "+-", parse_concat, ret);
}

/* Which comparison starts at the current token; its tokens are skipped. -1: none. */
static int take_comparison(struct jparser *p, int *ret)
{
    const struct jtok *t = &p->cur;
    *ret = -1;
    if (t->type == JT_OP) {
        static const struct {
            uint8_t op, cmp;
        } ops[] = { { JT2_EQ, JC_EQ }, { JT2_NE, JC_NE }, { '<', JC_LT },
                    { JT2_LE, JC_LE }, { '>', JC_GT },    { JT2_GE, JC_GE } };
        for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++)
            if (t->op == ops[i].op)
                *ret = ops[i].cmp;
    } else if (jtok_name(t, "in")) {
        *ret = JC_IN;
    } else if (jtok_name(t, "not")) {
        struct jtok next;
        int r = jparse_peek(p, &next);
        if (r < 0 || !jtok_name(&next, "in"))
            return r;
        *ret = JC_NOTIN;
        r = jparse_advance(p);
        if (r < 0)
            return r;
    }
    return *ret < 0 ? 0 : jparse_advance(p);
}

static int parse_compare(struct jparser *p, struct jnode **ret)
{
    struct jlist l = { 0 };
    uint8_t ops[JINJA_MAX_NEST];
    struct jnode *n = NULL, *right;
    int cmp, r = parse_sum(p, ret);
    while (r >= 0) {
        uint32_t line = p->cur.line;
        r = take_comparison(p, &cmp);
        if (r < 0 || cmp < 0)
            break;
        if (!n) {
            r = make(p, JN_COMPARE, line, *ret, NULL, &n);
            if (r < 0)
                return r;
        }
        if (l.n == JINJA_MAX_NEST)
            return jlex_fail(&p->lex, p->cur.pos, "more than %u comparisons in one chain", JINJA_MAX_NEST);
        ops[l.n] = (uint8_t)cmp;
        r = parse_sum(p, &right);
        if (r >= 0)
            r = jparse_push(p, &l, right);
    }
    if (r < 0 || !n)
        return r;
    n->text = (const uint8_t *)jarena_strndup(&p->t->mem, (const char *)ops, l.n);
    *ret = n;
    return n->text ? jparse_take(p, &l, n) : jparse_nomem(p);
}

static int parse_not(struct jparser *p, struct jnode **ret)
{
    if (!jtok_name(&p->cur, "not"))
        return parse_compare(p, ret);
    uint32_t line = p->cur.line;
    int r = enter(p);
    if (r >= 0)
        r = jparse_advance(p);
    if (r >= 0)
        r = parse_not(p, ret);
    p->depth--;
    return r < 0 ? r : make(p, JN_NOT, line, *ret, NULL, ret);
}

static int parse_logic(struct jparser *p, const char *word, enum jkind kind, parse_fn *next,
                       struct jnode **ret)
{
    int r = next(p, ret);
    while (r >= 0 && jtok_name(&p->cur, word)) {
        struct jnode *right;
        uint32_t line = p->cur.line;
        r = jparse_advance(p);
        if (r >= 0)
            r = next(p, &right);
        if (r >= 0)
            r = make(p, kind, line, *ret, right, ret);
    }
    return r;
}

static int parse_and(struct jparser *p, struct jnode **ret)
{
    return parse_logic(p, "and", JN_AND, parse_not, ret);
}

static int parse_or(struct jparser *p, struct jnode **ret)
{
    return parse_logic(p, "or", JN_OR, parse_and, ret);
}

static int parse_cond(struct jparser *p, struct jnode **ret)
{
    /* A filter that does not exist is forgiven inside a conditional until it is reached; that what stands
     * before `if` is one shows only behind it. */
    const struct jname *unknown = p->unknown;
    int r = parse_or(p, ret);
    while (r >= 0 && jtok_name(&p->cur, "if")) {
        struct jnode *test, *other = NULL, *n = NULL;
        uint32_t line = p->cur.line;
        r = jparse_advance(p);
        if (r >= 0)
            r = parse_or(p, &test);
        if (r >= 0 && jtok_name(&p->cur, "else")) {
            r = enter(p);
            if (r >= 0)
                r = jparse_advance(p);
            if (r >= 0)
                r = parse_cond(p, &other);
            p->depth--;
        }
        if (r >= 0)
            r = make(p, JN_COND, line, *ret, test, &n);
        if (r < 0)
            return r;
        n->c = other;
        *ret = n;
        p->unknown = unknown;
        r = jparse_raise(p, n, other);
    }
    return r;
}

int jparse_expr(struct jparser *p, bool with_cond, struct jnode **ret)
{
    int r = enter(p);
    if (r >= 0)
        r = with_cond ? parse_cond(p, ret) : parse_or(p, ret);
    p->depth--;
    return r;
}

/* ---- unary operators, filters, tests */

static int parse_sign(struct jparser *p, struct jnode **ret)
{
    bool minus = jtok_op(&p->cur, '-');
    uint32_t line = p->cur.line;
    int r = enter(p);
    if (r >= 0)
        r = jparse_advance(p);
    if (r >= 0)
        r = parse_unary(p, false, ret);
    p->depth--;
    return r < 0 ? r : make(p, minus ? JN_NEG : JN_POS, line, *ret, NULL, ret);
}

static int parse_call(struct jparser *p, struct jnode **n)
{
    struct jnode *call = NULL;
    int r = make(p, JN_CALL, p->cur.line, *n, NULL, &call);
    if (r >= 0)
        r = jparse_call_args(p, &call->args);
    *n = call;
    return r;
}

/* The height of a node with arguments. */
static int raise_args(struct jparser *p, struct jnode *n)
{
    const struct jargs *a = n->args;
    int r = 0;
    if (!a)
        return 0;
    for (uint32_t i = 0; r >= 0 && i < a->npos; i++)
        r = jparse_raise(p, n, a->pos[i]);
    for (uint32_t i = 0; r >= 0 && i < a->nkw; i++)
        r = jparse_raise(p, n, a->kw[i]);
    if (r >= 0)
        r = jparse_raise(p, n, a->star);
    return r < 0 ? r : jparse_raise(p, n, a->starstar);
}

/* name or name.name, as filters and tests are called */
static int dotted_name(struct jparser *p, const char *what, struct jnode *n)
{
    char text[128];
    size_t len = 0;
    int r = 0;
    for (;;) {
        if (p->cur.type != JT_NAME)
            return jparse_expected(p, what);
        if (len + p->cur.len + 2 > sizeof text)
            return jlex_fail(&p->lex, p->cur.pos, "%s of more than %zu bytes", what, sizeof text - 2);
        memcpy(text + len, p->cur.s, p->cur.len);
        len += p->cur.len;
        r = jparse_advance(p);
        if (r < 0 || !jtok_op(&p->cur, '.'))
            break;
        text[len++] = '.';
        r = jparse_advance(p);
        if (r < 0)
            break;
    }
    if (r >= 0) {
        n->name = jparse_intern(p, text, len);
        r = n->name ? 0 : -EINVAL;
    }
    return r;
}

static void note_unknown(struct jparser *p, const struct jnode *n, size_t pos)
{
    if (n->index >= 0 || p->soft > 0 || p->unknown)
        return;
    p->unknown = n->name;
    p->unknown_pos = pos;
    p->unknown_kind = n->kind == JN_FILTER ? "filter" : "test";
}

int jparse_filter_chain(struct jparser *p, struct jnode *on, bool first_is_name, struct jnode **ret)
{
    int r = 0;
    while (first_is_name || jtok_op(&p->cur, '|')) {
        if (!first_is_name && (r = jparse_advance(p)) < 0)
            return r;
        first_is_name = false;
        struct jnode *n = NULL;
        size_t pos = p->cur.pos;
        r = make(p, JN_FILTER, p->cur.line, on, NULL, &n);
        if (r >= 0)
            r = dotted_name(p, "the name of a filter", n);
        if (r < 0)
            return r;
        n->index = jfilter_find(n->name->text, n->name->len);
        note_unknown(p, n, pos);
        if (jtok_op(&p->cur, '('))
            r = jparse_call_args(p, &n->args);
        if (r >= 0)
            r = raise_args(p, n);
        if (r < 0)
            return r;
        on = n;
    }
    *ret = on;
    return 0;
}

/* `is divisibleby 3`: an argument without brackets */
static int bare_argument(struct jparser *p, struct jnode *n)
{
    struct jargs *args = jarena_alloc(&p->t->mem, sizeof *args);
    struct jnode **pos = jarena_alloc(&p->t->mem, sizeof *pos);
    if (!args || !pos)
        return jparse_nomem(p);
    if (jtok_name(&p->cur, "is"))
        return jlex_fail(&p->lex, p->cur.pos, "tests with `is` cannot be chained");
    int r = enter(p);
    if (r >= 0)
        r = jparse_primary(p, false, pos);
    if (r >= 0)
        r = parse_postfix(p, pos);
    p->depth--;
    *args = (struct jargs){ .pos = pos, .npos = 1 };
    n->args = args;
    return r;
}

static bool starts_argument(const struct jtok *t)
{
    if (t->type == JT_NAME)
        return !jtok_name(t, "else") && !jtok_name(t, "or") && !jtok_name(t, "and");
    return t->type == JT_STRING || t->type == JT_INT || t->type == JT_FLOAT || jtok_op(t, '[') ||
           jtok_op(t, '{');
}

static int parse_test(struct jparser *p, struct jnode **ret)
{
    uint32_t line = p->cur.line;
    bool negated = false;
    struct jnode *n = NULL;
    int r = jparse_advance(p);
    if (r >= 0 && jtok_name(&p->cur, "not")) {
        negated = true;
        r = jparse_advance(p);
    }
    size_t pos = p->cur.pos;
    if (r >= 0)
        r = make(p, JN_TEST, line, *ret, NULL, &n);
    if (r >= 0)
        r = dotted_name(p, "the name of a test", n);
    if (r < 0)
        return r;
    n->index = jtest_find(n->name->text, n->name->len);
    note_unknown(p, n, pos);
    if (jtok_op(&p->cur, '('))
        r = jparse_call_args(p, &n->args);
    else if (starts_argument(&p->cur))
        r = bare_argument(p, n);
    if (r >= 0)
        r = raise_args(p, n);
    *ret = n;
    return r < 0 || !negated ? r : make(p, JN_NOT, line, n, NULL, ret);
}

static int parse_filter_expr(struct jparser *p, struct jnode **n)
{
    int r = 0;
    while (r >= 0) {
        if (jtok_op(&p->cur, '|')) {
            r = jparse_filter_chain(p, *n, false, n);
        } else if (jtok_name(&p->cur, "is")) {
            r = parse_test(p, n);
        } else if (jtok_op(&p->cur, '(')) {
            r = parse_call(p, n);
            if (r >= 0)
                r = raise_args(p, *n);
        } else {
            break;
        }
    }
    return r;
}

static int parse_unary(struct jparser *p, bool with_filter, struct jnode **ret)
{
    int r =
        jtok_op(&p->cur, '-') || jtok_op(&p->cur, '+') ? parse_sign(p, ret) : jparse_primary(p, false, ret);
    if (r >= 0)
        r = parse_postfix(p, ret);
    if (r >= 0 && with_filter)
        r = parse_filter_expr(p, ret);
    return r;
}

/* ---- postfix: .name, [item], (call) */

static int parse_attribute(struct jparser *p, struct jnode **n)
{
    uint32_t line = p->cur.line;
    int r = jparse_advance(p);
    if (r < 0)
        return r;
    struct jnode *get = NULL, *key = NULL;
    if (p->cur.type == JT_NAME) {
        r = make(p, JN_ATTR, line, *n, NULL, &get);
        if (r < 0)
            return r;
        get->name = jparse_intern(p, p->cur.s, p->cur.len);
        if (!get->name)
            return -EINVAL;
    } else if (p->cur.type == JT_INT) {
        r = make(p, JN_CONST, line, NULL, NULL, &key);
        if (r >= 0)
            r = make(p, JN_ITEM, line, *n, key, &get);
        if (r < 0)
            return r;
        key->value = jint(p->cur.i);
    } else {
        return jparse_expected(p, "a name or a number");
    }
    *n = get;
    return jparse_advance(p);
}

/* One of a, a:b, :b, a:b:c ... between square brackets. */
static int parse_subscript_part(struct jparser *p, struct jnode **ret)
{
    struct jlist parts = { 0 };
    struct jnode *part = NULL, *n = NULL;
    uint32_t line = p->cur.line;
    int r = 0;
    if (!jtok_op(&p->cur, ':')) {
        r = jparse_expr(p, true, ret);
        if (r < 0 || !jtok_op(&p->cur, ':'))
            return r;
        part = *ret;
    }
    for (unsigned i = 0; r >= 0 && i < 3; i++) {
        r = jparse_push(p, &parts, part);
        part = NULL;
        if (r < 0 || i == 2 || !jtok_op(&p->cur, ':'))
            continue;
        r = jparse_advance(p);
        if (r >= 0 && !jtok_op(&p->cur, ':') && !jtok_op(&p->cur, ']') && !jtok_op(&p->cur, ','))
            r = jparse_expr(p, true, &part);
    }
    if (r < 0)
        return r;
    n = jparse_node(p, JN_SLICE, line);
    *ret = n;
    return n ? jparse_take(p, &parts, n) : jparse_nomem(p);
}

static int parse_subscript(struct jparser *p, struct jnode **n)
{
    struct jlist l = { 0 };
    struct jnode *part, *get = NULL;
    uint32_t line = p->cur.line;
    int r = jparse_advance(p);
    while (r >= 0 && !jtok_op(&p->cur, ']')) {
        if (l.n > 0 && (r = jparse_expect_op(p, ',')) < 0)
            return r;
        r = parse_subscript_part(p, &part);
        if (r >= 0)
            r = jparse_push(p, &l, part);
    }
    if (r >= 0)
        r = jparse_advance(p);
    if (r < 0)
        return r;
    if (l.n != 1) {
        for (uint32_t i = 0; i < l.n; i++)
            if (l.v[i]->kind == JN_SLICE)
                return jlex_fail(&p->lex, p->cur.pos, "a slice among several subscripts");
        part = jparse_node(p, JN_TUPLE, line);
        r = part ? jparse_take(p, &l, part) : jparse_nomem(p);
    }
    if (r >= 0)
        r = make(p, JN_ITEM, line, *n, part, &get);
    if (r >= 0)
        *n = get;
    return r;
}

static int parse_postfix(struct jparser *p, struct jnode **n)
{
    int r = 0;
    while (r >= 0) {
        if (jtok_op(&p->cur, '.')) {
            r = parse_attribute(p, n);
        } else if (jtok_op(&p->cur, '[')) {
            r = parse_subscript(p, n);
        } else if (jtok_op(&p->cur, '(')) {
            r = parse_call(p, n);
            if (r >= 0)
                r = raise_args(p, *n);
        } else {
            break;
        }
    }
    return r;
}

/* ---- calls */

static int keyword(struct jparser *p, struct jargs *a, struct jlist *names, struct jlist *values)
{
    struct jnode *name = jparse_node(p, JN_NAME, p->cur.line), *value;
    if (!name)
        return jparse_nomem(p);
    name->name = jparse_intern(p, p->cur.s, p->cur.len);
    if (!name->name)
        return -EINVAL;
    if (a->starstar)
        return jlex_fail(&p->lex, p->cur.pos, "an argument after **");
    for (uint32_t i = 0; i < names->n; i++)
        if (names->v[i]->name == name->name)
            return jlex_fail(&p->lex, p->cur.pos, "argument '%s' is given twice", name->name->text);
    int r = jparse_advance(p);
    if (r >= 0)
        r = jparse_advance(p);
    if (r >= 0)
        r = jparse_expr(p, true, &value);
    if (r >= 0)
        r = jparse_push(p, names, name);
    return r < 0 ? r : jparse_push(p, values, value);
}

static int one_argument(struct jparser *p, struct jargs *a, struct jlist *pos, struct jlist *names,
                        struct jlist *values)
{
    struct jtok next = { 0 };
    struct jnode *value;
    bool star = jtok_op(&p->cur, '*'), starstar = jtok_op(&p->cur, JT2_POW);
    size_t at = p->cur.pos;
    int r = p->cur.type == JT_NAME ? jparse_peek(p, &next) : 0;
    if (r < 0)
        return r;
    if (jtok_op(&next, '='))
        return keyword(p, a, names, values);
    if (a->starstar || (a->star && !starstar) || (names->n > 0 && !star && !starstar))
        return jlex_fail(&p->lex, at, "a positional argument after keyword arguments, * or **");
    if (star || starstar)
        r = jparse_advance(p);
    if (r >= 0)
        r = jparse_expr(p, true, &value);
    if (r < 0)
        return r;
    if (star)
        a->star = value;
    else if (starstar)
        a->starstar = value;
    return star || starstar ? 0 : jparse_push(p, pos, value);
}

int jparse_call_args(struct jparser *p, const struct jargs **ret)
{
    struct jlist pos = { 0 }, names = { 0 }, values = { 0 };
    struct jargs *a = jarena_alloc(&p->t->mem, sizeof *a);
    if (!a)
        return jparse_nomem(p);
    *a = (struct jargs){ 0 };
    int r = jparse_expect_op(p, '(');
    while (r >= 0 && !jtok_op(&p->cur, ')')) {
        r = one_argument(p, a, &pos, &names, &values);
        if (r < 0)
            return r;
        if (!jtok_op(&p->cur, ')'))
            r = jparse_expect_op(p, ',');
    }
    if (r < 0)
        return r;
    a->kwnames = names.n ? jarena_alloc(&p->t->mem, names.n * sizeof *a->kwnames) : NULL;
    if (names.n && !a->kwnames)
        return jparse_nomem(p);
    for (uint32_t i = 0; i < names.n; i++)
        a->kwnames[i] = names.v[i]->name;
    a->pos = pos.v;
    a->npos = pos.n;
    a->kw = values.v;
    a->nkw = values.n;
    *ret = a;
    return jparse_advance(p);
}
