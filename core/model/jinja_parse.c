/* Parser of chat templates, statements: from tokens to the tree. Expressions are in jinja_expr.c.
 * Owner: one parse. Must not know: values, rendering. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py
 */
#include "model/jinja_parse.h"
#include "model/jinja_calls.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- shared by both halves of the parser */

int jparse_nomem(struct jparser *p)
{
    if (!p->t->mem.full)
        return -ENOMEM;
    return jlex_fail(&p->lex, p->cur.pos, "the template needs more than %u MiB", JINJA_MAX_TREE_MEMORY >> 20);
}

int jparse_advance(struct jparser *p)
{
    if (p->has_ahead) {
        p->cur = p->ahead;
        p->has_ahead = false;
        return 0;
    }
    int r = jlex_next(&p->lex, &p->cur);
    return r == -ENOMEM ? jparse_nomem(p) : r;
}

int jparse_peek(struct jparser *p, struct jtok *tok)
{
    if (!p->has_ahead) {
        int r = jlex_next(&p->lex, &p->ahead);
        if (r < 0)
            return r == -ENOMEM ? jparse_nomem(p) : r;
        p->has_ahead = true;
    }
    *tok = p->ahead;
    return 0;
}

bool jtok_op(const struct jtok *t, unsigned op)
{
    return t->type == JT_OP && t->op == op;
}

bool jtok_name(const struct jtok *t, const char *name)
{
    return t->type == JT_NAME && strlen(name) == t->len && memcmp(t->s, name, t->len) == 0;
}

/* "expected X, got Y" at the current token. */
int jparse_expected(struct jparser *p, const char *what)
{
    static const char *const types[] = { "the end of the template", "text", "{%", "%}", "{{", "}}" };
    static const char *const pairs[] = { "//", "**", "==", "!=", ">=", "<=" };
    const struct jtok *t = &p->cur;
    if (t->type <= JT_VAR_END)
        return jlex_fail(&p->lex, t->pos, "expected %s, got %s", what, types[t->type]);
    if (t->type == JT_OP && t->op >= 128)
        return jlex_fail(&p->lex, t->pos, "expected %s, got '%s'", what, pairs[t->op - 128]);
    if (t->type == JT_OP)
        return jlex_fail(&p->lex, t->pos, "expected %s, got '%c'", what, t->op);
    if (t->type == JT_NAME)
        return jlex_fail(&p->lex, t->pos, "expected %s, got '%.*s'", what, (int)(t->len < 60 ? t->len : 60),
                         t->s);
    return jlex_fail(&p->lex, t->pos, "expected %s, got a %s", what,
                     t->type == JT_STRING ? "string" : "number");
}

int jparse_expect_op(struct jparser *p, unsigned op)
{
    const char what[] = { '\'', (char)op, '\'', '\0' };
    return jtok_op(&p->cur, op) ? jparse_advance(p) : jparse_expected(p, what);
}

struct jnode *jparse_node(struct jparser *p, enum jkind kind, uint32_t line)
{
    struct jnode *n = jarena_alloc(&p->t->mem, sizeof *n);
    if (!n)
        return NULL;
    *n = (struct jnode){ .kind = (uint8_t)kind, .line = line, .height = 1 };
    return n;
}

/* n stands above kid in the tree. */
int jparse_raise(struct jparser *p, struct jnode *n, const struct jnode *kid)
{
    if (!kid || kid->height < n->height)
        return 0;
    if (kid->height >= JINJA_MAX_TREE)
        return jlex_fail(&p->lex, p->cur.pos, "more than %u operators and blocks on top of one another",
                         JINJA_MAX_TREE);
    n->height = (uint16_t)(kid->height + 1);
    return 0;
}

int jparse_push(struct jparser *p, struct jlist *l, struct jnode *n)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        struct jnode **v = jarena_alloc(&p->t->mem, cap * sizeof *v);
        if (!v)
            return jparse_nomem(p);
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return 0;
}

int jparse_take(struct jparser *p, struct jlist *l, struct jnode *into)
{
    into->kids = l->v;
    into->nkids = l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        int r = jparse_raise(p, into, l->v[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

#define HASH_SLOTS (JINJA_MAX_NAMES * 2)

const struct jname *jparse_intern(struct jparser *p, const char *s, size_t len)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    h %= HASH_SLOTS;
    for (; p->name_hash[h]; h = (h + 1) % HASH_SLOTS) {
        const struct jname *n = p->names[p->name_hash[h] - 1];
        if (n->len == len && memcmp(n->text, s, len) == 0)
            return n;
    }
    if (p->nnames == JINJA_MAX_NAMES) {
        jlex_fail(&p->lex, p->cur.pos, "more than %u different names", JINJA_MAX_NAMES);
        return NULL;
    }
    struct jname *n = jarena_alloc(&p->t->mem, sizeof *n);
    char *text = n ? jarena_strndup(&p->t->mem, s, len) : NULL;
    if (!text) {
        jparse_nomem(p);
        return NULL;
    }
    *n = (struct jname){ text, len, p->nnames };
    p->names[p->nnames++] = n;
    p->name_hash[h] = p->nnames;
    return n;
}

/* ---- statements */

static int parse_body(struct jparser *p, const char *const *ends, struct jnode **ret);

static int expect_block_end(struct jparser *p)
{
    return p->cur.type == JT_BLOCK_END ? jparse_advance(p) : jparse_expected(p, "%}");
}

/* Body up to one of `ends`, which is left as the current token. */
static int parse_statements(struct jparser *p, const char *const *ends, struct jnode **ret)
{
    int r = jtok_op(&p->cur, ':') ? jparse_advance(p) : 0;
    if (r >= 0)
        r = expect_block_end(p);
    return r < 0 ? r : parse_body(p, ends, ret);
}

/* The same, and past the end tag's name. */
static int parse_until(struct jparser *p, const char *end, struct jnode **ret)
{
    const char *const ends[] = { end, NULL };
    int r = parse_statements(p, ends, ret);
    return r < 0 ? r : jparse_advance(p);
}

static int parse_if(struct jparser *p, struct jnode *n)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct jlist l = { 0 };
    int r;
    p->soft++;
    for (;;) {
        struct jnode *test, *body;
        r = jparse_tuple(p, false, false, &test);
        if (r >= 0)
            r = parse_statements(p, ends, &body);
        if (r >= 0)
            r = jparse_push(p, &l, test);
        if (r >= 0)
            r = jparse_push(p, &l, body);
        if (r < 0)
            return r;
        bool more = jtok_name(&p->cur, "elif"), other = jtok_name(&p->cur, "else");
        r = jparse_advance(p);
        if (r < 0)
            return r;
        if (more)
            continue;
        if (other)
            r = parse_until(p, "endif", &n->c);
        break;
    }
    p->soft--;
    if (r >= 0)
        r = jparse_raise(p, n, n->c);
    return r < 0 ? r : jparse_take(p, &l, n);
}

static int loop_header(struct jparser *p, struct jnode *n)
{
    int r = jparse_target(p, false, &n->a);
    if (r < 0)
        return r;
    if (!jtok_name(&p->cur, "in"))
        return jparse_expected(p, "'in'");
    r = jparse_advance(p);
    if (r >= 0)
        r = jparse_tuple(p, false, false, &n->b);
    if (r >= 0 && jtok_name(&p->cur, "if")) {
        r = jparse_advance(p);
        if (r >= 0)
            r = jparse_expr(p, true, &n->test);
    }
    if (r >= 0 && jtok_name(&p->cur, "recursive"))
        r = jlex_fail(&p->lex, p->cur.pos, "recursive loops are not read by this build");
    return r;
}

static int parse_for(struct jparser *p, struct jnode *n)
{
    static const char *const ends[] = { "endfor", "else", NULL };
    unsigned soft = p->soft;
    int r = loop_header(p, n);
    if (r < 0)
        return r;
    unsigned seen = p->mentions;
    p->mentions = 0;
    p->soft = 0;
    p->loops++;
    r = parse_statements(p, ends, &n->body);
    p->loops--;
    if (r < 0)
        return r;
    n->op = (uint8_t)p->mentions;
    p->mentions |= seen;
    bool other = jtok_name(&p->cur, "else");
    r = jparse_advance(p);
    if (r >= 0 && other)
        r = parse_until(p, "endfor", &n->orelse);
    p->soft = soft;
    const struct jnode *parts[] = { n->a, n->b, n->test, n->body, n->orelse };
    for (unsigned i = 0; r >= 0 && i < 5; i++)
        r = jparse_raise(p, n, parts[i]);
    return r;
}

static int parse_set(struct jparser *p, struct jnode *n)
{
    int r = jparse_target(p, true, &n->a);
    if (r < 0)
        return r;
    if (jtok_op(&p->cur, '=')) {
        n->kind = JN_SET;
        r = jparse_advance(p);
        if (r >= 0)
            r = jparse_tuple(p, true, false, &n->b);
        if (r >= 0)
            r = jparse_raise(p, n, n->b);
        return r < 0 ? r : jparse_raise(p, n, n->a);
    }
    n->kind = JN_SETBLOCK;
    unsigned soft = p->soft;
    p->soft = 0;
    r = jparse_filter_chain(p, NULL, false, &n->b);
    if (r >= 0)
        r = parse_until(p, "endset", &n->body);
    p->soft = soft;
    if (r >= 0)
        r = jparse_raise(p, n, n->b);
    return r < 0 ? r : jparse_raise(p, n, n->body);
}

/* (a, b=1): kids hold the names, then the defaults. */
static int parse_signature(struct jparser *p, struct jnode *n)
{
    struct jlist names = { 0 }, defaults = { 0 };
    bool optional = false;
    int r = jparse_expect_op(p, '(');
    while (r >= 0 && !jtok_op(&p->cur, ')')) {
        if (names.n > 0 && (r = jparse_expect_op(p, ',')) < 0)
            return r;
        if (p->cur.type != JT_NAME)
            return jparse_expected(p, "the name of a parameter");
        struct jnode *name = jparse_node(p, JN_NAME, p->cur.line), *dflt = NULL;
        if (!name)
            return jparse_nomem(p);
        name->name = jparse_intern(p, p->cur.s, p->cur.len);
        if (!name->name)
            return -EINVAL;
        r = jparse_advance(p);
        if (r >= 0 && jtok_op(&p->cur, '=')) {
            optional = true;
            r = jparse_advance(p);
            if (r >= 0)
                r = jparse_expr(p, true, &dflt);
        } else if (r >= 0 && optional) {
            return jlex_fail(&p->lex, p->cur.pos, "a parameter without a default follows one that has one");
        }
        if (r >= 0)
            r = jparse_push(p, &names, name);
        if (r >= 0)
            r = jparse_push(p, &defaults, dflt);
    }
    n->index = (int32_t)names.n;
    for (uint32_t i = 0; r >= 0 && i < defaults.n; i++)
        r = jparse_push(p, &names, defaults.v[i]);
    if (r >= 0)
        r = jparse_expect_op(p, ')');
    return r < 0 ? r : jparse_take(p, &names, n);
}

/* Body of a macro or call block: a function of its own, so loops around it cannot be left from inside. */
static int parse_function_body(struct jparser *p, const char *end, struct jnode *n)
{
    unsigned seen = p->mentions, soft = p->soft, loops = p->loops;
    p->mentions = p->soft = p->loops = 0;
    int r = parse_until(p, end, &n->body);
    n->op = (uint8_t)p->mentions;
    p->mentions |= seen;
    p->soft = soft;
    p->loops = loops;
    return r < 0 ? r : jparse_raise(p, n, n->body);
}

static int parse_macro(struct jparser *p, struct jnode *n)
{
    if (p->cur.type != JT_NAME)
        return jparse_expected(p, "the name of the macro");
    n->name = jparse_intern(p, p->cur.s, p->cur.len);
    if (!n->name)
        return -EINVAL;
    int r = jparse_advance(p);
    if (r >= 0)
        r = parse_signature(p, n);
    return r < 0 ? r : parse_function_body(p, "endmacro", n);
}

static int parse_call_block(struct jparser *p, struct jnode *n)
{
    int r = jtok_op(&p->cur, '(') ? parse_signature(p, n) : 0;
    if (r >= 0)
        r = jparse_expr(p, true, &n->a);
    if (r < 0)
        return r;
    if (n->a->kind != JN_CALL)
        return jlex_fail(&p->lex, p->cur.pos, "{%% call %%} wants a call");
    r = jparse_raise(p, n, n->a);
    return r < 0 ? r : parse_function_body(p, "endcall", n);
}

static int parse_with(struct jparser *p, struct jnode *n)
{
    struct jlist l = { 0 };
    int r = 0;
    while (p->cur.type != JT_BLOCK_END) {
        struct jnode *target, *value;
        if (l.n > 0 && (r = jparse_expect_op(p, ',')) < 0)
            return r;
        r = jparse_target(p, false, &target);
        if (r >= 0)
            r = jparse_expect_op(p, '=');
        if (r >= 0)
            r = jparse_expr(p, true, &value);
        if (r >= 0)
            r = jparse_push(p, &l, target);
        if (r >= 0)
            r = jparse_push(p, &l, value);
        if (r < 0)
            return r;
    }
    unsigned soft = p->soft;
    p->soft = 0;
    r = parse_until(p, "endwith", &n->body);
    p->soft = soft;
    if (r >= 0)
        r = jparse_raise(p, n, n->body);
    return r < 0 ? r : jparse_take(p, &l, n);
}

static int parse_filter_block(struct jparser *p, struct jnode *n)
{
    unsigned soft = p->soft;
    int r = jparse_filter_chain(p, NULL, true, &n->b);
    p->soft = 0;
    if (r >= 0)
        r = parse_until(p, "endfilter", &n->body);
    p->soft = soft;
    if (r >= 0)
        r = jparse_raise(p, n, n->b);
    return r < 0 ? r : jparse_raise(p, n, n->body);
}

static int parse_generation(struct jparser *p, struct jnode *n)
{
    return parse_function_body(p, "endgeneration", n);
}

static int parse_jump(struct jparser *p, struct jnode *n)
{
    if (p->loops == 0)
        return jlex_fail(&p->lex, p->cur.pos, "{%% %s %%} outside of a loop",
                         n->kind == JN_BREAK ? "break" : "continue");
    return 0;
}

static int parse_print(struct jparser *p, struct jnode *n)
{
    struct jlist l = { 0 };
    int r = 0;
    while (r >= 0 && p->cur.type != JT_BLOCK_END) {
        struct jnode *out = jparse_node(p, JN_OUTPUT, p->cur.line);
        if (!out)
            return jparse_nomem(p);
        if (l.n > 0 && (r = jparse_expect_op(p, ',')) < 0)
            return r;
        r = jparse_expr(p, true, &out->a);
        if (r >= 0)
            r = jparse_raise(p, out, out->a);
        if (r >= 0)
            r = jparse_push(p, &l, out);
    }
    return r < 0 ? r : jparse_take(p, &l, n);
}

static const struct {
    const char *tag;
    enum jkind kind;
    int (*parse)(struct jparser *p, struct jnode *n);
} statements[] = {
    { "if", JN_IF, parse_if },
    { "for", JN_FOR, parse_for },
    { "set", JN_SET, parse_set },
    { "macro", JN_MACRO, parse_macro },
    { "call", JN_CALLBLOCK, parse_call_block },
    { "filter", JN_FILTERBLOCK, parse_filter_block },
    { "with", JN_WITH, parse_with },
    { "generation", JN_SCOPE, parse_generation },
    { "break", JN_BREAK, parse_jump },
    { "continue", JN_CONTINUE, parse_jump },
    { "print", JN_BODY, parse_print },
};

static int parse_statement(struct jparser *p, const char *const *ends, struct jnode **ret)
{
    static const char *const refused[] = { "block", "extends", "include", "import", "from", "autoescape" };
    if (p->cur.type != JT_NAME)
        return jparse_expected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!jtok_name(&p->cur, statements[i].tag))
            continue;
        struct jnode *n = jparse_node(p, statements[i].kind, p->cur.line);
        if (!n)
            return jparse_nomem(p);
        int r = jparse_advance(p);
        *ret = n;
        return r < 0 ? r : statements[i].parse(p, n);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (jtok_name(&p->cur, refused[i]))
            return jlex_fail(&p->lex, p->cur.pos, "{%% %s %%} is not read by this build", refused[i]);
    const char *wanted = ends ? ends[0] : NULL;
    return jlex_fail(&p->lex, p->cur.pos, "unknown tag '%.*s'%s%s%s",
                     (int)(p->cur.len < 60 ? p->cur.len : 60), p->cur.s,
                     wanted ? "; the block that is open wants {% " : "",
                     wanted ? (ends[1] && ends[2] ? ends[2] : wanted) : "", wanted ? " %}" : "");
}

static int parse_data(struct jparser *p, struct jlist *l)
{
    struct jnode *n = jparse_node(p, JN_DATA, p->cur.line);
    if (!n)
        return jparse_nomem(p);
    n->value = jstr(p->cur.s, p->cur.len);
    int r = jparse_push(p, l, n);
    return r < 0 ? r : jparse_advance(p);
}

static int parse_output(struct jparser *p, struct jlist *l)
{
    struct jnode *n = jparse_node(p, JN_OUTPUT, p->cur.line);
    if (!n)
        return jparse_nomem(p);
    int r = jparse_advance(p);
    if (r >= 0)
        r = jparse_tuple(p, true, false, &n->a);
    if (r >= 0)
        r = jparse_raise(p, n, n->a);
    if (r >= 0)
        r = jparse_push(p, l, n);
    if (r < 0)
        return r;
    return p->cur.type == JT_VAR_END ? jparse_advance(p) : jparse_expected(p, "}}");
}

static bool is_end(const struct jtok *t, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jtok_name(t, *ends))
            return true;
    return false;
}

/* One {% ... %}. Returns 1 when it was an end tag. */
static int parse_tag(struct jparser *p, const char *const *ends, struct jlist *l)
{
    int r = jparse_advance(p);
    if (r < 0)
        return r;
    if (is_end(&p->cur, ends))
        return 1;
    struct jnode *n = NULL;
    r = parse_statement(p, ends, &n);
    if (r >= 0)
        r = jparse_push(p, l, n);
    return r < 0 ? r : expect_block_end(p);
}

static int parse_body(struct jparser *p, const char *const *ends, struct jnode **ret)
{
    struct jlist l = { 0 };
    size_t pos = p->cur.pos;
    struct jnode *body = jparse_node(p, JN_BODY, p->cur.line);
    if (!body)
        return jparse_nomem(p);
    if (++p->depth > JINJA_MAX_NEST)
        return jlex_fail(&p->lex, pos, "blocks and brackets inside one another: at most %u", JINJA_MAX_NEST);
    int r = 0;
    while (r == 0 && p->cur.type != JT_EOF) {
        if (p->cur.type == JT_DATA)
            r = parse_data(p, &l);
        else if (p->cur.type == JT_VAR_BEGIN)
            r = parse_output(p, &l);
        else
            r = parse_tag(p, ends, &l);
        if (r >= 0 && p->unknown)
            r = jlex_fail(&p->lex, p->unknown_pos, "there is no %s '%s'", p->unknown_kind, p->unknown->text);
    }
    if (r < 0)
        return r;
    if (r == 0 && ends)
        return jlex_fail(&p->lex, pos, "the block that starts here has no {%% %s %%}",
                         ends[1] && ends[2] ? ends[2] : ends[0]);
    p->depth--;
    *ret = body;
    return jparse_take(p, &l, body);
}

int jparse_template(struct jparser *p)
{
    p->names = calloc(JINJA_MAX_NAMES, sizeof *p->names);
    p->name_hash = calloc(HASH_SLOTS, sizeof *p->name_hash);
    int r = p->names && p->name_hash ? jparse_advance(p) : -ENOMEM;
    if (r >= 0)
        r = parse_body(p, NULL, &p->t->root);
    if (r >= 0)
        r = jscope_resolve(p);
    free(p->names);
    free(p->name_hash);
    return r;
}
