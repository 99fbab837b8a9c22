/* Jinja: what the files of the chat renderer share: arena, tree, values, the state of one render.
 * Private to core/model/jinja_*.c and chat.c. The tree is written once by the parser and only read after;
 * a render owns everything else, so any number of threads render one template. */
#pragma once
#include "util/buf.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- bounds: what a hostile or broken template can cost */
#define JINJA_MAX_TEMPLATE (256u << 10)   /* bytes of source */
#define JINJA_MAX_TREE_MEMORY (64u << 20) /* what a template of that size can need */
#define JINJA_MAX_MEMORY (16u << 20)      /* values of one render, and separately its text */
#define JINJA_MAX_STEPS                                                                                      \
    3000000u                   /* one step is one node evaluated, or 16..64 bytes handled: at most ~30 ns    \
                                */
#define JINJA_MAX_NEST 100u    /* brackets, blocks and operators inside one another in the source */
#define JINJA_MAX_TREE 400u    /* height of the tree: chains of operators make it high without nesting */
#define JINJA_MAX_DEPTH 2000u  /* evaluations inside one another: macros that call themselves */
#define JINJA_MAX_NAMES 4096u  /* different names in one template */
#define JINJA_MAX_RANGE 100000 /* jinja2's sandbox has the same */

/* ---- arena (jinja_arena.c) */
struct jchunk;
struct jarena {
    struct jchunk *top;
    size_t total; /* bytes held in chunks */
    size_t max;
    bool full; /* the last NULL was the bound, not the system */
};
struct jmark {
    struct jchunk *chunk;
    size_t used;
};
void *jarena_alloc(struct jarena *a, size_t size); /* 16-aligned; NULL when full or out of memory */
char *jarena_strndup(struct jarena *a, const char *text, size_t len);
struct jmark jarena_mark(const struct jarena *a);
void jarena_release(struct jarena *a, struct jmark m); /* drops everything allocated after the mark */
void jarena_free(struct jarena *a);

/* ---- values */
enum jtype {
    J_MISSING, /* a variable that holds nothing; never seen by operators */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_JLIST, /* a json array from the caller, from element `off` on */
    J_JDICT, /* a json object from the caller */
    J_RANGE,
    J_VIEW, /* dict.keys(), .values(), .items() */
    J_GEN,  /* a generator: consumed as it is read, like Python's */
    J_NS,
    J_LOOP,
    J_MACRO,
    J_FUNC,   /* a global function */
    J_METHOD, /* a method bound to its value */
};

enum {
    JF_ARENA = 1,  /* string bytes lie in the render's arena */
    JF_GROW = 2,   /* ... in a block with room after it: see jstr_concat */
    JF_MARKUP = 4, /* passed through |safe: adding to it escapes the other side, as markupsafe does */
    JF_JSON = 8,   /* a J_VIEW over a json object */
    JF_GROUP = 16, /* a tuple from |groupby: has .grouper and .list */
};

struct jval {
    uint8_t type;  /* enum jtype */
    uint8_t flags; /* JF_* */
    uint16_t aux;  /* J_UNDEF: enum jundef; J_VIEW: enum jview; J_FUNC, J_METHOD: which */
    uint32_t off;  /* J_JLIST: first element; J_UNDEF: type of the object asked */
    union {
        int64_t i;
        double f;
        const char *s;
        const struct jval *items;
        struct jdict *dict; /* J_DICT, J_NS, J_VIEW */
        json_t *json;
        const struct jrange *range;
        struct jgen *gen;
        struct jloop *loop;
        const struct jmacro *macro;
        const struct jval *self; /* J_METHOD */
    };
    size_t len; /* bytes of a string, elements of a list, tuple, json array or range */
};

enum jundef { JU_NAME, JU_ATTR, JU_ITEM, JU_TEXT }; /* s/len: the name, or the whole text */
enum jview { JV_KEYS, JV_VALUES, JV_ITEMS };

struct jpair {
    struct jval k, v;
};
struct jdict {
    size_t n, cap;
    struct jpair *pairs;
};
struct jrange {
    int64_t start, stop, step;
};

/* ---- tree */
enum jkind {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_TUPLE,
    JN_LIST,
    JN_DICT,  /* kids: key, value, key, value, ... */
    JN_ATTR,  /* a.name */
    JN_ITEM,  /* a[b] */
    JN_SLICE, /* a[kids[0]:kids[1]:kids[2]], each may be NULL */
    JN_CALL,
    JN_FILTER, /* a may be NULL: the captured text of a block */
    JN_TEST,
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_BINARY,
    JN_AND,
    JN_OR,
    JN_CONCAT,  /* kids */
    JN_COMPARE, /* a, then kids with ops in `text` */
    JN_COND,    /* a if b else c */
    JN_NSREF,   /* assignment target a.name */
    /* statements */
    JN_DATA,
    JN_OUTPUT,
    JN_SET,
    JN_SETBLOCK,
    JN_FOR,
    JN_IF, /* kids: test, body, test, body, ..., c: else */
    JN_MACRO,
    JN_CALLBLOCK,
    JN_FILTERBLOCK,
    JN_WITH,
    JN_SCOPE, /* {% generation %} */
    JN_BREAK,
    JN_CONTINUE,
    JN_BODY, /* kids */
};

enum jop { JO_ADD, JO_SUB, JO_MUL, JO_DIV, JO_FLOORDIV, JO_MOD, JO_POW };
enum jcmp { JC_EQ, JC_NE, JC_LT, JC_LE, JC_GT, JC_GE, JC_IN, JC_NOTIN };

#define JSLOT_GLOBAL UINT16_MAX

struct jname {
    const char *text; /* ends with a zero byte */
    size_t len;
    uint32_t id;
};

struct jargs {
    struct jnode **pos;
    struct jnode **kw;
    const struct jname **kwnames;
    struct jnode *star, *starstar;
    uint32_t npos, nkw;
};

/* A variable of a scope and what it holds when the scope is entered. */
enum jload { JL_MISSING, JL_PARAM, JL_OUTER, JL_GLOBAL };
struct jslot {
    const struct jname *name;
    uint8_t load; /* enum jload */
    uint8_t stored;
    uint16_t up, slot; /* JL_OUTER: where; JL_GLOBAL: slot is the global */
};
struct jscope {
    struct jscope *up;
    struct jslot *slots;
    uint32_t nslots, cap;
};

enum { JM_CALLER = 1, JM_KWARGS = 2, JM_VARARGS = 4, JM_LOOP = 8 };

struct jnode {
    uint8_t kind; /* enum jkind */
    uint8_t op;   /* JN_BINARY: enum jop; JN_FOR, JN_MACRO: JM_* that the body mentions */
    uint16_t height;
    uint32_t line;
    uint32_t nkids;
    int32_t index;     /* JN_FILTER, JN_TEST: row of the table, -1 unknown; JN_MACRO: number of parameters */
    uint16_t up, slot; /* JN_NAME, JN_NSREF: the variable */
    struct jnode **kids;
    struct jnode *a, *b, *c;
    struct jnode *body, *orelse, *test;
    const struct jname *name;
    const struct jargs *args;
    const uint8_t *text;                    /* JN_COMPARE: enum jcmp for each kid */
    struct jscope *scope, *scope2, *scope3; /* body; else; test */
    struct jval value;                      /* JN_CONST, JN_DATA */
};

/* JN_MACRO, JN_CALLBLOCK: kids[0..index) are parameter names, kids[index..2*index) their defaults or NULL.
 * JN_WITH: kids are target, value, target, value, ... */

struct chat_template {
    struct jarena mem;
    struct jnode *root;
    struct jscope *scope;
    const struct jname **globals; /* names looked up in the caller's variables, then among the functions */
    uint32_t nglobals;
};

/* ---- parsing (jinja_lex.c, jinja_parse.c, jinja_expr.c, jinja_scope.c) */
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
int jparse_target(struct jparser *p, bool with_namespace, struct jnode **ret);
int jparse_filter_chain(struct jparser *p, struct jnode *on, bool first_is_name, struct jnode **ret);
int jparse_call_args(struct jparser *p, const struct jargs **ret);

int jscope_resolve(struct jparser *p);

/* ---- one render */
struct jframe { /* a scope that has been entered */
    struct jframe *up;
    struct jval slots[];
};

struct jiter {
    struct jval src;
    size_t pos;
    void *json_pos;
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

struct jcall {
    const struct jval *pos;
    uint32_t npos, nkw;
    const struct jval *kwnames; /* strings */
    const struct jval *kw;
};

struct jrt {
    const struct chat_template *t;
    const json_t *vars;
    int64_t now_s;
    struct buf out;
    struct jarena mem;
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
void *jalloc(struct jrt *rt, size_t n, size_t size); /* NULL: error is set, see jerror_code */
int jnomem(struct jrt *rt);                          /* the code that goes with it */
int jout(struct jrt *rt, const char *s, size_t len);
int jout_check(struct jrt *rt);
/* Text written to rt->out since `start` becomes a string value and leaves rt->out. */
int jcapture(struct jrt *rt, size_t start, struct jval *ret);
void jdiscard(struct jrt *rt, size_t start);

/* jinja_value.c */
#define JVAL(t_, ...) ((struct jval){ .type = (t_), __VA_ARGS__ })
struct jval jstr(const char *s, size_t len);
struct jval jstrz(const char *s);
struct jval jint(int64_t i);
struct jval jbool(bool b);
struct jval jfloat(double f);
struct jval jnone(void);
struct jval jundef(enum jundef why, const char *s, size_t len);
struct jval jfrom_json(const json_t *json);
const char *jtype_name(const struct jval *v); /* Python's: "str", "list", "dict", ... */
bool jis_number(const struct jval *v);        /* int, float or bool */
bool jis_seq(const struct jval *v);           /* list, tuple or json array */
bool jis_dict(const struct jval *v);
bool jin_arena(const struct jval *v);
bool jtruth(const struct jval *v);
int64_t jlen(const struct jval *v); /* -1: has no length */
int64_t jint_of(const struct jval *v);
double jnum_of(const struct jval *v);
struct jval jseq_get(const struct jval *v, size_t i);
int jequal(struct jrt *rt, const struct jval *a, const struct jval *b); /* 1, 0, error */
int jless(struct jrt *rt, const struct jval *a, const struct jval *b);  /* 1, 0, error */
int jcontains(struct jrt *rt, const struct jval *seq, const struct jval *item);
int jundef_fail(struct jrt *rt, const struct jval *v);

/* jinja_access.c: dicts, attributes, items, slices, iteration */
int jdict_new(struct jrt *rt, size_t cap, struct jdict **ret);
int jdict_set(struct jrt *rt, struct jdict *d, const struct jval *k, const struct jval *v);
int jdict_get(struct jrt *rt, const struct jval *dict, const struct jval *k, struct jval *ret); /* 1 found */
int jgetattr(struct jrt *rt, const struct jval *v, const char *name, size_t len, struct jval *ret);
int jgetitem(struct jrt *rt, const struct jval *v, const struct jval *key, struct jval *ret);
int jslice(struct jrt *rt, const struct jval *v, const struct jval part[3], struct jval *ret);
int jiter_init(struct jrt *rt, struct jiter *it, const struct jval *v);
int jiter_next(struct jrt *rt, struct jiter *it, struct jval *ret); /* 1 item, 0 end, error */
int jcollect(struct jrt *rt, const struct jval *v, const struct jval **ret_items, size_t *ret_n);
int jgen_items(struct jrt *rt, const struct jval *items, size_t n, struct jval *ret);
int jtuple2(struct jrt *rt, const struct jval *a, const struct jval *b, struct jval *ret);

/* jinja_gen.c: generators that filters return */
enum jgen_kind { JG_MAP, JG_ATTR, JG_SELECT, JG_LOOP };
enum { JGEN_TRUTH = -1, JGEN_ALL = -2 }; /* instead of a test */
struct jgen {
    uint8_t kind;
    bool reject, by_attr;
    int32_t index; /* JG_MAP: filter; JG_SELECT: test */
    struct jiter it;
    struct jcall args;        /* of the filter or test */
    struct jval attr, dflt;   /* JG_ATTR, by_attr */
    const struct jnode *loop; /* JG_LOOP: its condition decides */
    struct jframe *frame;     /* ... in this scope */
};
int jgen_next(struct jrt *rt, struct jgen *g, struct jval *ret);
int jget_path(struct jrt *rt, const struct jval *v, const struct jval *path, const struct jval *dflt,
              struct jval *ret);

/* jinja_text.c: values as text */
int jstr_of(struct jrt *rt, const struct jval *v, struct jval *ret); /* Python's str() */
int jwrite_str(struct jrt *rt, const struct jval *v);                /* the same, appended to rt->out */
int jwrite_repr(struct jrt *rt, const struct jval *v);
int jstr_concat(struct jrt *rt, const struct jval *parts, size_t n, struct jval *ret);
int jwrite_escaped(struct jrt *rt, const struct jval *v); /* & < > " ' as HTML */
size_t jfloat_repr(double f, char dst[40]);

/* jinja_json.c */
struct jjson {
    bool ascii, sort;
    const char *indent; /* NULL: one line */
    size_t indent_len;
    const char *item_sep, *key_sep;
    size_t item_len, key_len;
};
int jwrite_json(struct jrt *rt, const struct jval *v, const struct jjson *how, unsigned level);

/* jinja_string.c: text in code points */
enum { JS_LEFT = 1, JS_RIGHT = 2 };
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_CAPITALIZE, JCASE_TITLE, JCASE_SWAP, JCASE_PYTITLE };
size_t jstr_count(const char *s, size_t len);             /* code points */
size_t jstr_offset(const char *s, size_t len, size_t cp); /* byte where code point cp starts, or len */
bool jis_space(uint32_t cp);
struct jval jsub(const struct jval *s, size_t from, size_t to); /* bytes */
struct jval jstr_strip(const struct jval *s, const struct jval *chars, unsigned sides);
int jstr_case(struct jrt *rt, const struct jval *s, enum jcase how, struct jval *ret);
int jstr_replace(struct jrt *rt, const struct jval *s, const struct jval *from, const struct jval *to,
                 int64_t max, struct jval *ret);
int jstr_split(struct jrt *rt, const struct jval *s, const struct jval *sep, int64_t max, bool right,
               struct jval *ret);
int jstr_lines(struct jrt *rt, const struct jval *s, bool keep, struct jval *ret);
const char *jstr_find(const char *s, size_t len, const char *what, size_t wlen, bool last);
int jstr_join(struct jrt *rt, const struct jval *sep, const struct jval *items, bool strict,
              struct jval *ret);
int jstr_repeat(struct jrt *rt, const struct jval *s, int64_t times, struct jval *ret);

/* jinja_case.c: Unicode tables. Full mappings: one code point may become up to three. */
unsigned jcase_upper(uint32_t cp, uint32_t dst[3]);
unsigned jcase_lower(uint32_t cp, uint32_t dst[3]);
unsigned jcase_title(uint32_t cp, uint32_t dst[3]);

/* jinja_format.c */
int jformat_percent(struct jrt *rt, const struct jval *fmt, const struct jval *args, struct jval *ret);
int jformat_braces(struct jrt *rt, const struct jval *fmt, const struct jcall *args, struct jval *ret);

/* jinja_number.c */
int jbinary(struct jrt *rt, enum jop op, const struct jval *a, const struct jval *b, struct jval *ret);
int jnegate(struct jrt *rt, const struct jval *v, bool positive, struct jval *ret);
bool jparse_int(const struct jval *s, int64_t base, int64_t *ret); /* Python's int(text, base) */
bool jparse_float(const struct jval *s, double *ret);              /* Python's float(text) */
int jto_int(struct jrt *rt, const struct jval *v, int64_t base, const struct jval *dflt, struct jval *ret);
bool jfit_int(double f, int64_t *ret); /* toward zero; false: NaN or beyond 64 bits */
int jround(struct jrt *rt, const struct jval *v, int64_t digits, const struct jval *method, struct jval *ret);

/* jinja_filters.c, jinja_filters_seq.c, jinja_tests.c, jinja_methods.c, jinja_funcs.c */
#define JARGS_MAX 6
/* Fits a call to at most JARGS_MAX parameters ("a b=c" style list: names separated by spaces); have[i] says
 * which were given. `need` of them must be. */
int jbind(struct jrt *rt, const struct jcall *call, const char *what, const char *params, unsigned need,
          struct jval dst[JARGS_MAX], bool have[JARGS_MAX]);
int jwant_int(struct jrt *rt, const char *what, const struct jval *v, int64_t *ret);
int jwant_str(struct jrt *rt, const char *what, const struct jval *v);
typedef int jfilter_fn(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret);
struct jfilter {
    const char *name;
    jfilter_fn *fn;
};
extern const struct jfilter jfilters_text[], jfilters_seq[]; /* each ends with a NULL name */
int jfilter_find(const char *name, size_t len);              /* -1: none */
int jfilter_apply(struct jrt *rt, int index, const struct jval *in, const struct jcall *args,
                  struct jval *ret);
int jtest_find(const char *name, size_t len);
int jtest_apply(struct jrt *rt, int index, const struct jval *in, const struct jcall *args); /* 1, 0, error */
bool jmethod_find(const struct jval *v, const char *name, size_t len, uint16_t *ret_which);
int jmethod_call(struct jrt *rt, const struct jval *self, uint16_t which, const struct jcall *args,
                 struct jval *ret);
bool jfunc_find(const char *name, struct jval *ret);
int jfunc_call(struct jrt *rt, uint16_t which, const struct jcall *args, struct jval *ret);
int jdict_update(struct jrt *rt, struct jdict *d, const struct jcall *args, const char *what);

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
