/* Jinja values: what can be done with them whatever the template: compare, look into, iterate, calculate.
 * Private to core/model/jinja_*.c and chat.c. Functions that can fail return a negative errno with the error
 * set. */
#pragma once
#include "model/jinja.h"

struct jrt;
struct jnode;

struct jiter {
    struct jval src;
    size_t pos;
    void *json_pos;
};

struct jcall {
    const struct jval *pos;
    uint32_t npos, nkw;
    const struct jval *kwnames; /* strings */
    const struct jval *kw;
};

/* jinja_value.c */
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
bool jhashable(const struct jval *k);
int jdict_new(struct jrt *rt, size_t cap, struct jdict **ret);
int jdict_set(struct jrt *rt, struct jdict *d, const struct jval *k, const struct jval *v);
int jdict_get(struct jrt *rt, const struct jval *dict, const struct jval *k, struct jval *ret); /* 1 found */
int jgetattr(struct jrt *rt, const struct jval *v, const char *name, size_t len, struct jval *ret);
int jgetitem(struct jrt *rt, const struct jval *v, const struct jval *key, struct jval *ret);
int jslice(struct jrt *rt, const struct jval *v, const struct jval part[3], struct jval *ret);
int jiter_init(struct jrt *rt, struct jiter *it, const struct jval *v);
int jiter_next(struct jrt *rt, struct jiter *it, struct jval *ret); /* 1 item, 0 end, error */
int jiter_pair(struct jrt *rt, struct jiter *it, struct jval *k, struct jval *v);
int jcollect(struct jrt *rt, const struct jval *v, const struct jval **ret_items, size_t *ret_n);
int jgen_items(struct jrt *rt, const struct jval *items, size_t n, struct jval *ret);
int jtuple2(struct jrt *rt, const struct jval *a, const struct jval *b, struct jval *ret);

/* jinja_gen.c: generators that filters return */
typedef int jfilter_fn(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret);
enum jgen_kind { JG_MAP, JG_ATTR, JG_SELECT, JG_LOOP, JG_LATER };
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
    jfilter_fn *later; /* JG_LATER: makes the whole list of `attr` when the first element is asked for */
};
int jgen_next(struct jrt *rt, struct jgen *g, struct jval *ret);
int jget_path(struct jrt *rt, const struct jval *v, const struct jval *path, const struct jval *dflt,
              struct jval *ret);

/* jinja_number.c */
enum jop { JO_ADD, JO_SUB, JO_MUL, JO_DIV, JO_FLOORDIV, JO_MOD, JO_POW };
int jbinary(struct jrt *rt, enum jop op, const struct jval *a, const struct jval *b, struct jval *ret);
int jnegate(struct jrt *rt, const struct jval *v, bool positive, struct jval *ret);
bool jparse_int(const struct jval *s, int64_t base, int64_t *ret); /* Python's int(text, base) */
bool jparse_float(const struct jval *s, double *ret);              /* Python's float(text) */
int jto_int(struct jrt *rt, const struct jval *v, int64_t base, const struct jval *dflt, struct jval *ret);
bool jfit_int(double f, int64_t *ret); /* toward zero; false: NaN or beyond 64 bits */
int jround(struct jrt *rt, const struct jval *v, int64_t digits, const struct jval *method, struct jval *ret);
