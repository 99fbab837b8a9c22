/* Jinja tree: what the parser makes of a template and the evaluator walks. Lies in the template's arena;
 * written once. Private to core/model/jinja_*.c and chat.c. */
#pragma once
#include "model/jinja.h"

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
