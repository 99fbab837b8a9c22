/* Tests: what may stand behind `is`, and in select and reject.
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

typedef int test_fn(struct jrt *rt, const struct jval *v, const struct jval *arg);

static int remainder_is(struct jrt *rt, const struct jval *v, const struct jval *by, int64_t wanted)
{
    struct jval rest, want = jint(wanted);
    int r = jbinary(rt, JO_MOD, v, by, &rest);
    return r < 0 ? r : jequal(rt, &rest, &want);
}

static int t_odd(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    struct jval two = jint(2);
    (void)arg;
    return remainder_is(rt, v, &two, 1);
}

static int t_even(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    struct jval two = jint(2);
    (void)arg;
    return remainder_is(rt, v, &two, 0);
}

static int t_divisibleby(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return remainder_is(rt, v, arg, 0);
}

#define TYPE_TEST(name, condition)                                                                           \
    static int name(struct jrt *rt, const struct jval *v, const struct jval *arg)                            \
    {                                                                                                        \
        (void)rt;                                                                                            \
        (void)arg;                                                                                           \
        return condition;                                                                                    \
    }

TYPE_TEST(t_defined, v->type != J_UNDEF)
TYPE_TEST(t_undefined, v->type == J_UNDEF)
TYPE_TEST(t_none, v->type == J_NONE)
TYPE_TEST(t_boolean, v->type == J_BOOL)
TYPE_TEST(t_true, v->type == J_BOOL && v->i)
TYPE_TEST(t_false, v->type == J_BOOL && !v->i)
TYPE_TEST(t_integer, v->type == J_INT)
TYPE_TEST(t_float, v->type == J_FLOAT)
TYPE_TEST(t_number, jis_number(v))
TYPE_TEST(t_string, v->type == J_STR)
TYPE_TEST(t_mapping, jis_dict(v))
TYPE_TEST(t_callable, v->type == J_FUNC || v->type == J_METHOD || v->type == J_MACRO || v->type == J_UNDEF)
TYPE_TEST(t_escaped, v->type == J_STR && v->flags & JF_MARKUP)
/* Python asks for len() and [ ] only, which an undefined value answers as well */
TYPE_TEST(t_sequence,
          v->type == J_STR || jis_seq(v) || jis_dict(v) || v->type == J_RANGE || v->type == J_UNDEF)

static int t_iterable(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    (void)rt;
    (void)arg;
    return v->type == J_STR || jis_seq(v) || jis_dict(v) || v->type == J_RANGE || v->type == J_VIEW ||
           v->type == J_GEN || v->type == J_UNDEF || v->type == J_LOOP;
}

/* Whether all cased letters of v have one case, and there is one. */
static int one_case(struct jrt *rt, const struct jval *v, enum jcase how)
{
    struct jval s, same, other;
    int r = jstr_of(rt, v, &s);
    if (r >= 0)
        r = jstr_case(rt, &s, how, &same);
    if (r >= 0)
        r = jstr_case(rt, &s, JCASE_SWAP, &other);
    if (r < 0)
        return r;
    s.flags = same.flags = other.flags = 0;
    r = jequal(rt, &s, &same);
    if (r == 1)
        r = jequal(rt, &s, &other) == 0;
    return r;
}

static int t_lower(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    (void)arg;
    return one_case(rt, v, JCASE_LOWER);
}

static int t_upper(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    (void)arg;
    return one_case(rt, v, JCASE_UPPER);
}

static int t_filter(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    (void)rt;
    (void)arg;
    return v->type == J_STR && jfilter_find(v->s, v->len) >= 0;
}

static int t_test(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    (void)rt;
    (void)arg;
    return v->type == J_STR && jtest_find(v->s, v->len) >= 0;
}

/* Python's `is`, as far as values that are copied about can answer it. */
static int t_sameas(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    if (v->type != arg->type)
        return 0;
    return jis_number(v) || v->type == J_NONE ? jequal(rt, v, arg)
                                              : v->items == arg->items && v->len == arg->len;
}

static int t_in(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return jcontains(rt, arg, v);
}

static int t_eq(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return jequal(rt, v, arg);
}

static int t_ne(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    int r = jequal(rt, v, arg);
    return r < 0 ? r : !r;
}

static int t_lt(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return jless(rt, v, arg);
}

static int t_gt(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return jless(rt, arg, v);
}

static int less_or_equal(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    int r = jless(rt, a, b);
    return r == 0 ? jequal(rt, a, b) : r;
}

static int t_le(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return less_or_equal(rt, v, arg);
}

static int t_ge(struct jrt *rt, const struct jval *v, const struct jval *arg)
{
    return less_or_equal(rt, arg, v);
}

static const struct {
    const char *name;
    test_fn *fn;
    const char *param; /* NULL: none */
} tests[] = {
    { "!=", t_ne, "other" },
    { "<", t_lt, "other" },
    { "<=", t_le, "other" },
    { "==", t_eq, "other" },
    { ">", t_gt, "other" },
    { ">=", t_ge, "other" },
    { "boolean", t_boolean, NULL },
    { "callable", t_callable, NULL },
    { "defined", t_defined, NULL },
    { "divisibleby", t_divisibleby, "num" },
    { "eq", t_eq, "other" },
    { "equalto", t_eq, "other" },
    { "escaped", t_escaped, NULL },
    { "even", t_even, NULL },
    { "false", t_false, NULL },
    { "filter", t_filter, NULL },
    { "float", t_float, NULL },
    { "ge", t_ge, "other" },
    { "greaterthan", t_gt, "other" },
    { "gt", t_gt, "other" },
    { "in", t_in, "seq" },
    { "integer", t_integer, NULL },
    { "iterable", t_iterable, NULL },
    { "le", t_le, "other" },
    { "lessthan", t_lt, "other" },
    { "lower", t_lower, NULL },
    { "lt", t_lt, "other" },
    { "mapping", t_mapping, NULL },
    { "ne", t_ne, "other" },
    { "none", t_none, NULL },
    { "number", t_number, NULL },
    { "odd", t_odd, NULL },
    { "sameas", t_sameas, "other" },
    { "sequence", t_sequence, NULL },
    { "string", t_string, NULL },
    { "test", t_test, NULL },
    { "true", t_true, NULL },
    { "undefined", t_undefined, NULL },
    { "upper", t_upper, NULL },
};

int jtest_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strlen(tests[i].name) == len && memcmp(tests[i].name, name, len) == 0)
            return (int)i;
    return -1;
}

int jtest_apply(struct jrt *rt, int index, const struct jval *in, const struct jcall *args)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    const char *param = tests[index].param;
    if (args->npos + args->nkw == 0 && !param)
        return tests[index].fn(rt, in, NULL);
    int r = jbind(rt, args, tests[index].name, param ? param : "", param != NULL, a, have);
    return r < 0 ? r : tests[index].fn(rt, in, &a[0]);
}
