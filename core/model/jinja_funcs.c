/* Global functions: jinja2's range, dict and namespace, and what Hugging Face adds to them.
 * Owner: one render. Must not know: the tree; reads no clock, the time is rt->now_s.
 * Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef int func_fn(struct jrt *rt, const struct jcall *args, struct jval *ret);

static int f_range(struct jrt *rt, const struct jcall *args, struct jval *ret)
{
    int64_t v[3] = { 0, 0, 1 };
    if (args->nkw > 0 || args->npos < 1 || args->npos > 3)
        return jfail(rt, "range takes 1 to 3 integers");
    for (uint32_t i = 0; i < args->npos; i++) {
        int r = jwant_int(rt, "range", &args->pos[i], &v[args->npos == 1 ? 1 : i]);
        if (r < 0)
            return r;
    }
    if (v[2] == 0)
        return jfail(rt, "the step of a range cannot be 0");
    __int128 span = v[2] > 0 ? (__int128)v[1] - v[0] : (__int128)v[0] - v[1],
             step = v[2] > 0 ? v[2] : -(__int128)v[2];
    __int128 n = span > 0 ? (span - 1) / step + 1 : 0;
    if (n > JINJA_MAX_RANGE)
        return jfail(rt, "a range of more than %d numbers", JINJA_MAX_RANGE);
    struct jrange *range = jalloc(rt, 1, sizeof *range);
    if (!range)
        return jnomem(rt);
    *range = (struct jrange){ v[0], v[1], v[2] };
    *ret = (struct jval){ .type = J_RANGE, .range = range, .len = (size_t)n };
    return 0;
}

static int add_pair(struct jrt *rt, struct jdict *d, const struct jval *pair, const char *what)
{
    const struct jval *items;
    size_t n;
    int r = jcollect(rt, pair, &items, &n);
    if (r >= 0 && n != 2)
        return jfail(rt, "%s wants pairs", what);
    return r < 0 ? r : jdict_set(rt, d, &items[0], &items[1]);
}

int jdict_update(struct jrt *rt, struct jdict *d, const struct jcall *args, const char *what)
{
    struct jiter it;
    struct jval item, value = jnone();
    int r = 0;
    if (args->npos > 1)
        return jfail(rt, "%s takes at most 1 argument that has no name", what);
    if (args->npos == 1) {
        const struct jval *from = &args->pos[0];
        r = jiter_init(rt, &it, from);
        while (r >= 0 && (r = jiter_next(rt, &it, &item)) == 1) {
            if (!jis_dict(from)) {
                r = add_pair(rt, d, &item, what);
                continue;
            }
            r = jdict_get(rt, from, &item, &value);
            if (r >= 0)
                r = jdict_set(rt, d, &item, &value);
        }
    }
    for (uint32_t i = 0; r >= 0 && i < args->nkw; i++)
        r = jdict_set(rt, d, &args->kwnames[i], &args->kw[i]);
    return r;
}

static int f_dict(struct jrt *rt, const struct jcall *args, struct jval *ret)
{
    struct jdict *d;
    int r = jdict_new(rt, args->nkw, &d);
    if (r >= 0)
        r = jdict_update(rt, d, args, "dict");
    if (r >= 0)
        *ret = (struct jval){ .type = J_DICT, .dict = d };
    return r;
}

static int f_namespace(struct jrt *rt, const struct jcall *args, struct jval *ret)
{
    int r = f_dict(rt, args, ret);
    ret->type = J_NS;
    return r;
}

/* The template's own message, without a line before it. */
static int f_raise(struct jrt *rt, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], s;
    bool have[JARGS_MAX];
    (void)ret;
    int r = jbind(rt, args, "raise_exception", "message", 1, a, have);
    if (r >= 0)
        r = jstr_of(rt, &a[0], &s);
    if (r < 0)
        return r;
    snprintf(rt->err, rt->errlen, "%.*s", (int)(s.len < rt->errlen ? s.len : rt->errlen), s.s);
    return -EINVAL;
}

/* strftime, with what Python adds (%f) and what a time without a zone leaves empty (%z, %Z). */
static int f_strftime(struct jrt *rt, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    char fmt[256], text[1024];
    size_t n = 0;
    struct tm tm;
    time_t now = (time_t)rt->now_s;
    int r = jbind(rt, args, "strftime_now", "format", 1, a, have);
    if (r >= 0)
        r = jwant_str(rt, "strftime_now", &a[0]);
    if (r < 0)
        return r;
    for (size_t i = 0; i < a[0].len; i++) {
        if (n + 8 > sizeof fmt)
            return jfail(rt, "strftime_now takes a format of at most %zu bytes", sizeof fmt - 8);
        char next = a[0].s[i] == '%' && i + 1 < a[0].len ? a[0].s[i + 1] : '\0';
        if (next == 'f' || next == 'z' || next == 'Z') {
            memcpy(fmt + n, "000000", 6);
            n += next == 'f' ? 6 : 0;
            i++;
            continue;
        }
        fmt[n++] = a[0].s[i];
        if (next)
            fmt[n++] = a[0].s[++i];
    }
    fmt[n++] = '\1'; /* so that an empty result is not mistaken for one that does not fit */
    fmt[n] = '\0';
    if (!gmtime_r(&now, &tm))
        return jfail(rt, "strftime_now: a time that no calendar holds");
    size_t len = strftime(text, sizeof text, fmt, &tm);
    if (len == 0)
        return jfail(rt, "strftime_now makes more than %zu bytes", sizeof text);
    char *copy = jalloc(rt, len, 1);
    if (!copy)
        return jnomem(rt);
    memcpy(copy, text, len);
    *ret = jstr(copy, len - 1);
    ret->flags = JF_ARENA;
    return jcharge(rt, 100);
}

static const struct {
    const char *name;
    func_fn *fn;
} funcs[] = {
    { "range", f_range },           { "dict", f_dict },
    { "namespace", f_namespace },   { "raise_exception", f_raise },
    { "strftime_now", f_strftime },
};

bool jfunc_find(const char *name, struct jval *ret)
{
    for (uint16_t i = 0; i < sizeof funcs / sizeof funcs[0]; i++) {
        if (strcmp(funcs[i].name, name) == 0) {
            *ret = (struct jval){ .type = J_FUNC, .aux = i };
            return true;
        }
    }
    return false;
}

int jfunc_call(struct jrt *rt, uint16_t which, const struct jcall *args, struct jval *ret)
{
    return funcs[which].fn(rt, args, ret);
}
