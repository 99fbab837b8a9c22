/* Generators: what map, select, reject, items, a loop's condition and others return. Each element is worked
 * out when it is asked for, once, as in Python. Owner: one render. Must not know: who reads them. Tests:
 * tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

int jgen_items(struct jrt *rt, const struct jval *items, size_t n, struct jval *ret)
{
    struct jgen *g = jalloc(rt, 1, sizeof *g);
    if (!g)
        return jnomem(rt);
    struct jval list = { .type = J_LIST, .items = items, .len = n };
    *g = (struct jgen){ .kind = JG_SELECT, .index = JGEN_ALL };
    *ret = (struct jval){ .type = J_GEN, .gen = g };
    return jiter_init(rt, &g->it, &list);
}

/* "a.b.0" looks up a, then b, then item 0; a number is an index; none is the value itself. */
int jget_path(struct jrt *rt, const struct jval *v, const struct jval *path, const struct jval *dflt,
              struct jval *ret)
{
    *ret = *v;
    if (path->type == J_NONE)
        return 0;
    if (path->type != J_STR)
        return jgetitem(rt, v, path, ret);
    int r = jcharge(rt, path->len / 32);
    for (size_t at = 0; r >= 0 && at <= path->len;) {
        const char *dot = memchr(path->s + at, '.', path->len - at);
        size_t end = dot ? (size_t)(dot - path->s) : path->len;
        struct jval key = jsub(path, at, end), of = *ret;
        bool digits = key.len > 0;
        int64_t i;
        for (size_t k = 0; k < key.len; k++)
            digits &= key.s[k] >= '0' && key.s[k] <= '9';
        if (digits && jparse_int(&key, 10, &i))
            key = jint(i);
        r = jgetitem(rt, &of, &key, ret);
        if (r >= 0 && dflt && ret->type == J_UNDEF)
            *ret = *dflt;
        at = end + 1;
    }
    return r;
}

static int passes(struct jrt *rt, struct jgen *g, const struct jval *item)
{
    struct jval v = *item;
    int r = jcharge(rt, 2);
    if (r < 0)
        return r;
    r = g->by_attr ? jget_path(rt, item, &g->attr, NULL, &v) : 0;
    if (r < 0)
        return r;
    if (g->index == JGEN_ALL)
        return 1;
    r = g->index == JGEN_TRUTH ? jtruth(&v) : jtest_apply(rt, g->index, &v, &g->args);
    return r < 0 ? r : (r != 0) != g->reject;
}

/* What the variables of a loop hold, as the loop is handed it. */
static int repack(struct jrt *rt, const struct jnode *target, const struct jframe *frame, struct jval *ret)
{
    if (target->kind == JN_NAME) {
        *ret = frame->slots[target->slot];
        return 0;
    }
    struct jval *items = jalloc(rt, target->nkids, sizeof *items);
    int r = items ? 0 : jnomem(rt);
    for (uint32_t i = 0; r >= 0 && i < target->nkids; i++)
        r = repack(rt, target->kids[i], frame, &items[i]);
    *ret = (struct jval){ .type = J_TUPLE, .items = items, .len = target->nkids };
    return r;
}

/* The condition of a loop: its variables are set, then it is evaluated. */
static int holds(struct jrt *rt, struct jgen *g, struct jval *item)
{
    struct jframe *frame = rt->frame;
    struct jval v;
    rt->frame = g->frame;
    int r = jassign(rt, g->loop->a, item, g->frame);
    if (r >= 0)
        r = jeval(rt, g->loop->test, &v);
    rt->frame = frame;
    if (r < 0 || !jtruth(&v))
        return r < 0 ? r : 0;
    r = repack(rt, g->loop->a, g->frame, item);
    return r < 0 ? r : 1;
}

static int start_later(struct jrt *rt, struct jgen *g)
{
    struct jval list;
    int r = g->later(rt, &g->attr, &g->args, &list);
    if (r >= 0)
        r = jiter_init(rt, &g->it, &list);
    g->kind = JG_SELECT;
    g->index = JGEN_ALL;
    g->by_attr = false;
    rt->escapes++;
    return r;
}

int jgen_next(struct jrt *rt, struct jgen *g, struct jval *ret)
{
    struct jval item;
    int r = jenter(rt);
    if (r < 0)
        return r;
    if (g->kind == JG_LATER)
        r = start_later(rt, g);
    while (r >= 0 && (r = jiter_next(rt, &g->it, &item)) == 1) {
        if (g->kind == JG_MAP) {
            r = jfilter_apply(rt, g->index, &item, &g->args, ret);
            r = r < 0 ? r : 1;
            break;
        }
        if (g->kind == JG_ATTR) {
            r = jget_path(rt, &item, &g->attr, g->dflt.type == J_NONE ? NULL : &g->dflt, ret);
            r = r < 0 ? r : 1;
            break;
        }
        r = g->kind == JG_LOOP ? holds(rt, g, &item) : passes(rt, g, &item);
        if (r == 0)
            continue;
        *ret = item;
        break;
    }
    rt->depth--;
    return r;
}
