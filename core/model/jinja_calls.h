/* Jinja calls: filters, tests, methods and global functions: how they are found, get their arguments, and
 * run. Private to core/model/jinja_*.c and chat.c. */
#pragma once
#include "model/jinja_text.h"

#define JARGS_MAX 6
/* Fits a call to at most JARGS_MAX parameters ("a b=c" style list: names separated by spaces); have[i] says
 * which were given. `need` of them must be. */
int jbind(struct jrt *rt, const struct jcall *call, const char *what, const char *params, unsigned need,
          struct jval dst[JARGS_MAX], bool have[JARGS_MAX]);
int jwant_int(struct jrt *rt, const char *what, const struct jval *v, int64_t *ret);
int jwant_str(struct jrt *rt, const char *what, const struct jval *v);
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
