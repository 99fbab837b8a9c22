/* The `loop` variable: where a loop stands. Looking ahead (last, nextitem, length) reads the source early, as
 * in jinja2. Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c,
 * tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

int jloop_next(struct jrt *rt, struct jloop *l, struct jval *ret)
{
    int r = 1;
    if (l->has_after && l->after_end)
        return 0;
    if (l->has_after)
        *ret = l->after;
    else
        r = jiter_next(rt, &l->it, ret);
    if (r != 1)
        return r;
    l->has_after = false;
    l->index0++;
    l->before = l->current;
    l->current = *ret;
    return 1;
}

static int peek(struct jrt *rt, struct jloop *l)
{
    if (l->has_after)
        return 0;
    int r = jiter_next(rt, &l->it, &l->after);
    if (r < 0)
        return r;
    l->has_after = true;
    l->after_end = r == 0;
    if (r == 1 && jin_arena(&l->after))
        rt->escapes++;
    return 0;
}

/* Length of the source; one that does not know it is read to its end. */
static int length(struct jrt *rt, struct jloop *l, size_t *ret)
{
    if (!l->known) {
        const struct jval *src = &l->it.src;
        int r = jcharge(rt, src->type == J_STR ? src->len / 32 : 0);
        int64_t n = r < 0 ? 0 : jlen(src);
        if (r < 0)
            return r;
        l->length = (size_t)n;
        if (n < 0) {
            struct jval rest = { .type = J_LIST };
            r = jcollect(rt, &l->it.src, &rest.items, &rest.len);
            if (r >= 0)
                r = jiter_init(rt, &l->it, &rest);
            if (r < 0)
                return r;
            rt->escapes++;
            l->length = rest.len + l->index0 + 1 + (l->has_after && !l->after_end);
        }
        l->known = true;
    }
    *ret = l->length;
    return 0;
}

static bool is(const char *name, size_t len, const char *wanted)
{
    return strlen(wanted) == len && memcmp(name, wanted, len) == 0;
}

static int neighbour(struct jrt *rt, struct jloop *l, bool next, struct jval *ret)
{
    static const char none[] = "there is no item before the first or behind the last";
    int r = next ? peek(rt, l) : 0;
    bool there = next ? !l->after_end : l->index0 > 0;
    if (r >= 0)
        *ret = !there ? jundef(JU_TEXT, none, sizeof none - 1) : next ? l->after : l->before;
    return r < 0 ? r : 1;
}

static int from_end(struct jrt *rt, struct jloop *l, size_t back, struct jval *ret)
{
    size_t n;
    int r = length(rt, l, &n);
    if (r >= 0)
        *ret = jint((int64_t)n - (int64_t)back);
    return r < 0 ? r : 1;
}

enum { CYCLE, CHANGED };

static int method(struct jrt *rt, const struct jval *loop, uint16_t which, struct jval *ret)
{
    struct jval *self = jalloc(rt, 1, sizeof *self);
    if (!self)
        return jnomem(rt);
    *self = *loop;
    *ret = (struct jval){ .type = J_METHOD, .aux = which, .self = self };
    return 1;
}

int jloop_attr(struct jrt *rt, const struct jval *loop, const char *name, size_t len, struct jval *ret)
{
    struct jloop *l = loop->loop;
    int r;
    *ret = jnone();
    if (is(name, len, "index"))
        *ret = jint((int64_t)l->index0 + 1);
    else if (is(name, len, "index0"))
        *ret = jint((int64_t)l->index0);
    else if (is(name, len, "first"))
        *ret = jbool(l->index0 == 0);
    else if (is(name, len, "previtem"))
        return neighbour(rt, l, false, ret);
    else if (is(name, len, "nextitem"))
        return neighbour(rt, l, true, ret);
    else if (is(name, len, "length"))
        return from_end(rt, l, 0, ret);
    else if (is(name, len, "revindex"))
        return from_end(rt, l, l->index0, ret);
    else if (is(name, len, "revindex0"))
        return from_end(rt, l, l->index0 + 1, ret);
    else if (is(name, len, "depth") || is(name, len, "depth0"))
        *ret = jint(len == 5);
    else if (is(name, len, "cycle"))
        return method(rt, loop, CYCLE, ret);
    else if (is(name, len, "changed"))
        return method(rt, loop, CHANGED, ret);
    else if (is(name, len, "last")) {
        r = peek(rt, l);
        *ret = jbool(l->after_end);
        return r < 0 ? r : 1;
    } else {
        return 0;
    }
    return 1;
}

int jloop_call(struct jrt *rt, struct jloop *l, uint16_t which, const struct jcall *args, struct jval *ret)
{
    if (args->nkw > 0)
        return jfail(rt, "loop.cycle() and loop.changed() take no keyword arguments");
    if (which == CYCLE) {
        if (args->npos == 0)
            return jfail(rt, "loop.cycle() wants something to cycle through");
        *ret = args->pos[l->index0 % args->npos];
        return 0;
    }
    struct jval now = { .type = J_TUPLE, .items = args->pos, .len = args->npos };
    int r = l->has_changed ? jequal(rt, &l->changed, &now) : 0;
    if (r == 0) {
        l->changed = now;
        l->has_changed = true;
        rt->escapes++;
    }
    *ret = jbool(r == 0);
    return r < 0 ? r : 0;
}
