/* Jinja parser: tokens, lexer, and what its files share (jinja_lex.c, jinja_parse.c, jinja_expr.c,
 * jinja_literal.c, jinja_scope.c). One parse, one thread. Private to core/model/jinja_*.c and chat.c. */
#pragma once
#include "model/jinja_tree.h"

enum jtok_type {
    JT_EOF,
    JT_DATA,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP, /* `op` holds one of the characters or JT2_* */
};
enum { JT2_FLOORDIV = 128, JT2_POW, JT2_EQ, JT2_NE, JT2_GE, JT2_LE };

struct jtok {
    uint8_t type, op;
    uint32_t line;
    size_t pos;
    const char *s;
    size_t len;
    int64_t i;
    double f;
};

struct jlex {
    const char *src;
    size_t len, pos, tag;
    uint32_t line;
    uint8_t state; /* 0 text, 1 block, 2 variable */
    bool at_tag, line_starting;
    unsigned nbrackets;
    char brackets[JINJA_MAX_NEST];
    struct jarena *mem;
    char *err;
    size_t errlen;
};

void jlex_init(struct jlex *lx, const char *src, size_t len, struct jarena *mem, char *err, size_t errlen);
int jlex_next(struct jlex *lx, struct jtok *tok);
/* Writes "line 3 column 9: ..." for the byte at pos; returns -EINVAL. */
__attribute__((format(printf, 3, 4))) int jlex_fail(struct jlex *lx, size_t pos, const char *fmt, ...);

struct jparser {
    struct jlex lex;
    struct jtok cur, ahead;
    bool has_ahead;
    struct chat_template *t;
    unsigned depth;              /* blocks and brackets around the current token */
    unsigned soft;               /* inside an `if`: unknown filters fail only when reached */
    unsigned loops;              /* loops of the current macro around the current token */
    unsigned mentions;           /* JM_* names read so far */
    const struct jname *unknown; /* a filter or test that does not exist */
    const char *unknown_kind;
    size_t unknown_pos;
    struct jname **names;
    uint32_t *name_hash;
    uint32_t nnames;
};

struct jlist {
    struct jnode **v;
    uint32_t n, cap;
};

int jparse_template(struct jparser *p);
int jparse_advance(struct jparser *p);
int jparse_peek(struct jparser *p, struct jtok *tok);
bool jtok_op(const struct jtok *t, unsigned op);
bool jtok_name(const struct jtok *t, const char *name);
int jparse_expect_op(struct jparser *p, unsigned op);
int jparse_expected(struct jparser *p, const char *what);
struct jnode *jparse_node(struct jparser *p, enum jkind kind, uint32_t line); /* NULL: error is set */
int jparse_push(struct jparser *p, struct jlist *l, struct jnode *n);
int jparse_take(struct jparser *p, struct jlist *l, struct jnode *into);
int jparse_raise(struct jparser *p, struct jnode *n, const struct jnode *kid);
const struct jname *jparse_intern(struct jparser *p, const char *s, size_t len);
int jparse_nomem(struct jparser *p);

int jparse_expr(struct jparser *p, bool with_cond, struct jnode **ret);
/* Expressions separated by commas make a tuple; none at all only between brackets. */
int jparse_tuple(struct jparser *p, bool with_cond, bool parens, struct jnode **ret);
int jparse_primary(struct jparser *p, bool with_namespace, struct jnode **ret);
int jparse_target(struct jparser *p, bool with_namespace, struct jnode **ret);
int jparse_filter_chain(struct jparser *p, struct jnode *on, bool first_is_name, struct jnode **ret);
int jparse_call_args(struct jparser *p, const struct jargs **ret);

int jscope_resolve(struct jparser *p);
