/* Jinja: what all files of the chat renderer share: bounds, arena, values.
 * Private to core/model/jinja_*.c and chat.c. The tree is written once by the parser and only read after;
 * a render owns everything else, so any number of threads render one template. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- bounds: what a hostile or broken template can cost */
#define JINJA_MAX_TEMPLATE (256u << 10)   /* bytes of source */
#define JINJA_MAX_TREE_MEMORY (15u << 20) /* published ones need less than 1 MiB */
#define JINJA_MAX_MEMORY (16u << 20)      /* tree, values and text of one render together, and */
#define JINJA_MEMORY_PER_BYTE 3u          /* so much more for every byte of text the caller gives */
#define JINJA_MAX_STEPS 2000000u          /* a node evaluated, or some bytes handled: at most ~50 ns each */
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
