/* Bounds and errors of one render: steps, depth, memory, text, and how a failure is worded.
 * Owner: one render. Must not know: what is evaluated. Tests: tests/unit/test_chat.c */
#include "model/jinja_run.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int jfail(struct jrt *rt, const char *fmt, ...)
{
    int n = snprintf(rt->err, rt->errlen, "line %u: ", rt->line);
    if (n < 0 || (size_t)n >= rt->errlen)
        return -EINVAL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(rt->err + n, rt->errlen - (size_t)n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

int jcharge(struct jrt *rt, size_t steps)
{
    if (steps <= rt->steps) {
        rt->steps -= steps;
        return 0;
    }
    rt->steps = 0;
    jfail(rt, "the template takes more than %u steps", JINJA_MAX_STEPS);
    return -E2BIG;
}

int jenter(struct jrt *rt)
{
    if (rt->steps == 0)
        return jcharge(rt, 1);
    rt->steps--;
    if (rt->depth >= JINJA_MAX_DEPTH) {
        jfail(rt, "evaluation goes deeper than %u levels (a macro that calls itself?)", JINJA_MAX_DEPTH);
        return -E2BIG;
    }
    rt->depth++;
    return 0;
}

int jnomem(struct jrt *rt)
{
    if (!rt->mem.full)
        return -ENOMEM;
    jfail(rt, "the template's values need more than %zu MiB", rt->max >> 20);
    return -E2BIG;
}

/* What the tree, the values and the text together leave of the bound. */
static size_t room(const struct jrt *rt)
{
    size_t used = rt->t->mem.total + rt->mem.total + rt->out.len;
    return used < rt->max ? rt->max - used : 0;
}

void *jalloc(struct jrt *rt, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        bytes = SIZE_MAX;
    rt->mem.max = rt->mem.total + room(rt);
    return jarena_alloc(&rt->mem, bytes ? bytes : 1);
}

static int too_much_text(struct jrt *rt)
{
    jfail(rt, "the template writes more than %zu MiB", rt->max >> 20);
    return -E2BIG;
}

int jout_check(struct jrt *rt)
{
    if (rt->out.failed)
        return -ENOMEM;
    return room(rt) ? 0 : too_much_text(rt);
}

int jout(struct jrt *rt, const char *s, size_t len)
{
    if (len == 0)
        return 0;
    if (len > room(rt))
        return too_much_text(rt);
    buf_append(&rt->out, s, len);
    if (rt->out.failed)
        return -ENOMEM;
    return jcharge(rt, len / 64);
}

void jout_hex(struct jrt *rt, const char *prefix, uint32_t value, unsigned digits, bool upper)
{
    const char *set = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char text[8];
    for (unsigned i = 0; i < digits; i++)
        text[i] = set[value >> (4 * (digits - 1 - i)) & 15];
    buf_puts(&rt->out, prefix);
    buf_append(&rt->out, text, digits);
}

void jdiscard(struct jrt *rt, size_t start)
{
    rt->out.len = start;
    if (rt->out.data)
        rt->out.data[start] = '\0';
}

int jcapture(struct jrt *rt, size_t start, struct jval *ret)
{
    size_t len = rt->out.len - start;
    char *text = jalloc(rt, len + 1, 1);
    if (!text)
        return jnomem(rt);
    if (len > 0)
        memcpy(text, rt->out.data + start, len);
    text[len] = '\0';
    jdiscard(rt, start);
    *ret = jstr(text, len);
    ret->flags = JF_ARENA;
    return jcharge(rt, len / 64);
}
