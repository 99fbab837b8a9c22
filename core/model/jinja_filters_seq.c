/* Filters on lists and dicts. Those that are generators in jinja2 are generators here (jinja_gen.c).
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

static int list_of(const struct jval *items, size_t n, struct jval *ret)
{
    *ret = (struct jval){ .type = J_LIST, .items = items, .len = n };
    return 0;
}

static int f_length(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    if (args->npos + args->nkw > 0)
        return jfail(rt, "length takes no arguments");
    int64_t n = in->type == J_LOOP ? -1 : jlen(in);
    if (n < 0)
        return jfail(rt, "a %s has no length", jtype_name(in));
    *ret = jint(n);
    return jcharge(rt, in->type == J_STR ? in->len / 32 : 0);
}

static int f_list(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    const struct jval *items;
    size_t n;
    if (args->npos + args->nkw > 0)
        return jfail(rt, "list takes no arguments");
    int r = jcollect(rt, in, &items, &n);
    return r < 0 ? r : list_of(items, n, ret);
}

static int f_first(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jiter it;
    static const char none[] = "the first item of an empty sequence";
    if (args->npos + args->nkw > 0)
        return jfail(rt, "first takes no arguments");
    int r = jiter_init(rt, &it, in);
    if (r >= 0)
        r = jiter_next(rt, &it, ret);
    if (r == 0)
        *ret = jundef(JU_TEXT, none, sizeof none - 1);
    return r < 0 ? r : 0;
}

static int f_last(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    static const char none[] = "the last item of an empty sequence";
    struct jval at = jint(-1);
    const struct jval *items;
    size_t n;
    if (args->npos + args->nkw > 0)
        return jfail(rt, "last takes no arguments");
    if (in->type == J_GEN)
        return jfail(rt, "last does not work on a generator: put |list before it");
    if (jlen(in) == 0) {
        *ret = jundef(JU_TEXT, none, sizeof none - 1);
        return 0;
    }
    if (in->type == J_STR || jis_seq(in) || in->type == J_RANGE)
        return jgetitem(rt, in, &at, ret);
    int r = jcollect(rt, in, &items, &n);
    if (r >= 0)
        *ret = items[n - 1];
    return r;
}

static int f_join(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], sep = jstr("", 0), items = *in;
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "join", "d attribute", 0, a, have);
    if (r >= 0 && have[0])
        r = jstr_of(rt, &a[0], &sep);
    if (r >= 0 && a[1].type != J_NONE) {
        struct jgen *g = jalloc(rt, 1, sizeof *g);
        if (!g)
            return jnomem(rt);
        *g = (struct jgen){ .kind = JG_ATTR, .attr = a[1], .dflt = jnone() };
        r = jiter_init(rt, &g->it, in);
        items = (struct jval){ .type = J_GEN, .gen = g };
    }
    return r < 0 ? r : jstr_join(rt, &sep, &items, false, ret);
}

/* ---- generators that make their list when the first element is asked for */

static int copy_args(struct jrt *rt, const struct jcall *args, uint32_t skip, struct jcall *ret)
{
    struct jval *v = jalloc(rt, args->npos + 2u * args->nkw, sizeof *v);
    if (!v)
        return jnomem(rt);
    *ret = (struct jcall){ .npos = args->npos > skip ? args->npos - skip : 0, .nkw = args->nkw };
    for (uint32_t i = 0; i < ret->npos; i++)
        v[i] = args->pos[skip + i];
    ret->pos = v;
    ret->kwnames = v + ret->npos;
    ret->kw = v + ret->npos + args->nkw;
    for (uint32_t i = 0; i < args->nkw; i++) {
        v[ret->npos + i] = args->kwnames[i];
        v[ret->npos + args->nkw + i] = args->kw[i];
    }
    return 0;
}

static int later(struct jrt *rt, const struct jval *in, const struct jcall *args, jfilter_fn *fn,
                 struct jval *ret)
{
    struct jgen *g = jalloc(rt, 1, sizeof *g);
    if (!g)
        return jnomem(rt);
    *g = (struct jgen){ .kind = JG_LATER, .later = fn, .attr = *in };
    *ret = (struct jval){ .type = J_GEN, .gen = g };
    return copy_args(rt, args, 0, &g->args);
}

static int items_of_no_dict(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    (void)args;
    (void)ret;
    return jfail(rt, "items wants a dict, not %s", jtype_name(in));
}

static int f_items(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    if (args->npos + args->nkw > 0)
        return jfail(rt, "items takes no arguments");
    if (!jis_dict(in) && in->type != J_UNDEF)
        return later(rt, in, args, items_of_no_dict, ret);
    struct jgen *g = jalloc(rt, 1, sizeof *g);
    if (!g)
        return jnomem(rt);
    struct jval view = *in;
    if (in->type != J_UNDEF) {
        view.flags = in->type == J_JDICT ? JF_JSON : 0;
        view.type = J_VIEW;
        view.aux = JV_ITEMS;
    }
    *g = (struct jgen){ .kind = JG_SELECT, .index = JGEN_ALL };
    int r = jiter_init(rt, &g->it, &view);
    *ret = (struct jval){ .type = J_GEN, .gen = g };
    return r;
}

/* ---- sorting: stable, on keys worked out once */

struct keyed {
    struct jval key, item;
};

static int lower_key(struct jrt *rt, struct jval *key)
{
    struct jval v = *key;
    return v.type == J_STR ? jstr_case(rt, &v, JCASE_LOWER, key) : 0;
}

/* Merges runs of growing length; `reverse` keeps equal elements in their order, as Python does. */
static int sort_keyed(struct jrt *rt, struct keyed *v, size_t n, bool reverse)
{
    struct keyed *other = jalloc(rt, n, sizeof *other), *from = v, *to = other;
    if (!other)
        return jnomem(rt);
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t start = 0; start < n; start += 2 * run) {
            size_t a = start, mid = start + run < n ? start + run : n, b = mid;
            size_t end = start + 2 * run < n ? start + 2 * run : n;
            for (size_t k = start; k < end; k++) {
                int r = 0;
                if (a < mid && b < end)
                    r = reverse ? jless(rt, &from[a].key, &from[b].key)
                                : jless(rt, &from[b].key, &from[a].key);
                if (r >= 0 && jcharge(rt, 1) < 0)
                    r = -E2BIG;
                if (r < 0)
                    return r;
                to[k] = b < end && (a >= mid || r == 1) ? from[b++] : from[a++];
            }
        }
        struct keyed *t = from;
        from = to;
        to = t;
    }
    if (from != v && n > 0)
        memcpy(v, from, n * sizeof *v);
    return 0;
}

/* The value(s) of `attribute` ("a.b,c" for several), in lower case unless case counts. */
static int sort_key(struct jrt *rt, const struct jval *item, const struct jval *attribute, bool cased,
                    struct jval *ret)
{
    struct jval comma = jstrz(","), paths = { .type = J_LIST, .items = attribute, .len = 1 };
    int r = 0;
    if (attribute->type == J_STR && memchr(attribute->s, ',', attribute->len))
        r = jstr_split(rt, attribute, &comma, -1, false, &paths);
    struct jval *keys = r < 0 ? NULL : jalloc(rt, paths.len, sizeof *keys);
    if (!keys)
        return r < 0 ? r : jnomem(rt);
    for (size_t i = 0; r >= 0 && i < paths.len; i++) {
        r = jget_path(rt, item, &paths.items[i], NULL, &keys[i]);
        if (r >= 0 && !cased)
            r = lower_key(rt, &keys[i]);
    }
    *ret = (struct jval){ .type = J_LIST, .items = keys, .len = paths.len };
    return r;
}

static int keyed_items(struct jrt *rt, const struct jval *in, const struct jval *attribute, bool cased,
                       struct keyed **ret, size_t *ret_n)
{
    const struct jval *items;
    size_t n;
    int r = jcollect(rt, in, &items, &n);
    struct keyed *v = r < 0 ? NULL : jalloc(rt, n, sizeof *v);
    if (!v)
        return r < 0 ? r : jnomem(rt);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        v[i].item = items[i];
        r = sort_key(rt, &items[i], attribute, cased, &v[i].key);
    }
    *ret = v;
    *ret_n = n;
    return r;
}

static int unkeyed(struct jrt *rt, const struct keyed *v, size_t n, struct jval *ret)
{
    struct jval *items = jalloc(rt, n, sizeof *items);
    if (!items)
        return jnomem(rt);
    for (size_t i = 0; i < n; i++)
        items[i] = v[i].item;
    return list_of(items, n, ret);
}

static int f_sort(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    struct keyed *v = NULL;
    size_t n = 0;
    int r = jbind(rt, args, "sort", "reverse case_sensitive attribute", 0, a, have);
    if (r >= 0)
        r = keyed_items(rt, in, &a[2], jtruth(&a[1]), &v, &n);
    if (r >= 0)
        r = sort_keyed(rt, v, n, jtruth(&a[0]));
    return r < 0 ? r : unkeyed(rt, v, n, ret);
}

static int f_dictsort(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], view = *in, pair;
    bool have[JARGS_MAX];
    struct jiter it;
    size_t n = 0;
    int r = jbind(rt, args, "dictsort", "case_sensitive by reverse", 0, a, have);
    if (r < 0)
        return r;
    bool by_value = have[1] && a[1].type == J_STR && a[1].len == 5 && memcmp(a[1].s, "value", 5) == 0;
    bool by_key = !have[1] || (a[1].type == J_STR && a[1].len == 3 && memcmp(a[1].s, "key", 3) == 0);
    if (!by_value && !by_key)
        return jfail(rt, "dictsort sorts by 'key' or 'value'");
    if (!jis_dict(in))
        return in->type == J_UNDEF ? jundef_fail(rt, in)
                                   : jfail(rt, "dictsort wants a dict, not %s", jtype_name(in));
    struct keyed *v = jalloc(rt, (size_t)jlen(in), sizeof *v);
    if (!v)
        return jnomem(rt);
    view.flags = in->type == J_JDICT ? JF_JSON : 0;
    view.type = J_VIEW;
    view.aux = JV_ITEMS;
    r = jiter_init(rt, &it, &view);
    while (r >= 0 && (r = jiter_next(rt, &it, &pair)) == 1) {
        v[n] = (struct keyed){ pair.items[by_value], pair };
        if (!jtruth(&a[0]))
            r = lower_key(rt, &v[n].key);
        n++;
    }
    if (r >= 0)
        r = sort_keyed(rt, v, n, jtruth(&a[2]));
    return r < 0 ? r : unkeyed(rt, v, n, ret);
}

static int f_groupby(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], *groups;
    bool have[JARGS_MAX];
    struct keyed *v;
    const struct jval *items;
    size_t n, out = 0;
    int r = jbind(rt, args, "groupby", "attribute default case_sensitive", 1, a, have);
    if (r >= 0)
        r = jcollect(rt, in, &items, &n);
    if (r < 0)
        return r;
    v = jalloc(rt, n, sizeof *v);
    groups = jalloc(rt, n, sizeof *groups);
    if (!v || !groups)
        return jnomem(rt);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        v[i].item = items[i];
        r = jget_path(rt, &items[i], &a[0], have[1] ? &a[1] : NULL, &v[i].key);
        if (r >= 0 && !jtruth(&a[2]))
            r = lower_key(rt, &v[i].key);
    }
    if (r >= 0)
        r = sort_keyed(rt, v, n, false);
    for (size_t from = 0, to; r >= 0 && from < n; from = to) {
        struct jval list, key;
        for (to = from + 1; to < n && (r = jequal(rt, &v[from].key, &v[to].key)) == 1; to++)
            ;
        if (r >= 0)
            r = unkeyed(rt, v + from, to - from, &list);
        if (r >= 0) /* the key as the first of the group has it, not in lower case */
            r = jget_path(rt, &v[from].item, &a[0], have[1] ? &a[1] : NULL, &key);
        if (r >= 0)
            r = jtuple2(rt, &key, &list, &groups[out]);
        if (r >= 0)
            groups[out++].flags |= JF_GROUP;
    }
    return r < 0 ? r : list_of(groups, out, ret);
}

static int extreme(struct jrt *rt, const struct jval *in, const struct jcall *args, bool max,
                   struct jval *ret)
{
    static const char none[] = "the smallest or largest of an empty sequence";
    struct jval a[JARGS_MAX], item, key, best = jnone();
    bool have[JARGS_MAX], any = false;
    struct jiter it;
    int r = jbind(rt, args, max ? "max" : "min", "case_sensitive attribute", 0, a, have);
    if (r >= 0)
        r = jiter_init(rt, &it, in);
    *ret = jundef(JU_TEXT, none, sizeof none - 1);
    while (r >= 0 && (r = jiter_next(rt, &it, &item)) == 1) {
        r = jget_path(rt, &item, &a[1], NULL, &key);
        if (r >= 0 && !jtruth(&a[0]))
            r = lower_key(rt, &key);
        if (r < 0)
            return r;
        r = any ? (max ? jless(rt, &best, &key) : jless(rt, &key, &best)) : 1;
        if (r == 1) {
            best = key;
            *ret = item;
        }
        any = true;
    }
    return r;
}

static int f_min(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return extreme(rt, in, args, false, ret);
}

static int f_max(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return extreme(rt, in, args, true, ret);
}

static int f_sum(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], item, part, total = jint(0);
    bool have[JARGS_MAX];
    struct jiter it;
    int r = jbind(rt, args, "sum", "attribute start", 0, a, have);
    if (r >= 0 && have[1])
        total = a[1];
    if (r >= 0 && total.type == J_STR)
        return jfail(rt, "sum does not add text: use join");
    if (r >= 0)
        r = jiter_init(rt, &it, in);
    while (r >= 0 && (r = jiter_next(rt, &it, &item)) == 1) {
        r = jget_path(rt, &item, &a[0], NULL, &part);
        if (r >= 0) {
            struct jval left = total;
            r = jbinary(rt, JO_ADD, &left, &part, &total);
        }
    }
    *ret = total;
    return r;
}

/* ---- cutting lists into lists */

static int make_batch(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], *rows;
    bool have[JARGS_MAX];
    const struct jval *items;
    size_t n, out = 0;
    int64_t width;
    int r = jbind(rt, args, "batch", "linecount fill_with", 1, a, have);
    if (r >= 0)
        r = jwant_int(rt, "batch", &a[0], &width);
    if (r >= 0)
        r = jcollect(rt, in, &items, &n);
    if (r >= 0 && width < 1)
        return jfail(rt, "batch wants at least 1");
    if (r < 0)
        return r;
    size_t w = (size_t)width;
    rows = jalloc(rt, n / w + 1, sizeof *rows);
    if (!rows)
        return jnomem(rt);
    for (size_t at = 0; at < n; at += w) {
        size_t have_n = n - at < w ? n - at : w;
        rows[out] = (struct jval){ .type = J_LIST, .items = items + at, .len = have_n };
        if (have_n < w && a[1].type != J_NONE) {
            struct jval *full = jalloc(rt, w, sizeof *full);
            if (!full)
                return jnomem(rt);
            for (size_t i = 0; i < w; i++)
                full[i] = i < have_n ? items[at + i] : a[1];
            rows[out] = (struct jval){ .type = J_LIST, .items = full, .len = w };
        }
        out++;
    }
    return list_of(rows, out, ret);
}

static int f_batch(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "batch", "linecount fill_with", 1, a, have);
    return r < 0 ? r : later(rt, in, args, make_batch, ret);
}

static int make_slice(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], *columns;
    bool have[JARGS_MAX];
    const struct jval *items;
    size_t n, at = 0;
    int64_t slices;
    int r = jbind(rt, args, "slice", "slices fill_with", 1, a, have);
    if (r >= 0)
        r = jwant_int(rt, "slice", &a[0], &slices);
    if (r >= 0)
        r = jcollect(rt, in, &items, &n);
    if (r >= 0 && (slices < 1 || slices > JINJA_MAX_RANGE))
        return jfail(rt, "slice wants 1 to %d slices", JINJA_MAX_RANGE);
    if (r < 0)
        return r;
    size_t k = (size_t)slices;
    columns = jalloc(rt, k, sizeof *columns);
    if (!columns)
        return jnomem(rt);
    for (size_t i = 0; i < k; i++) {
        bool filled = a[1].type != J_NONE && i >= n % k;
        size_t len = n / k + (i < n % k);
        struct jval *column = jalloc(rt, len + 1, sizeof *column);
        if (!column)
            return jnomem(rt);
        for (size_t j = 0; j < len; j++)
            column[j] = items[at + j];
        column[len] = a[1];
        at += len;
        columns[i] = (struct jval){ .type = J_LIST, .items = column, .len = len + filled };
    }
    return list_of(columns, k, ret);
}

static int f_slice(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "slice", "slices fill_with", 1, a, have);
    return r < 0 ? r : later(rt, in, args, make_slice, ret);
}

static int make_unique(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], item, key, *kept, none = jnone();
    bool have[JARGS_MAX];
    const struct jval *items;
    struct jdict *seen;
    size_t n, out = 0;
    int r = jbind(rt, args, "unique", "case_sensitive attribute", 0, a, have);
    if (r >= 0)
        r = jcollect(rt, in, &items, &n);
    if (r >= 0)
        r = jdict_new(rt, n, &seen);
    if (r < 0)
        return r;
    kept = jalloc(rt, n, sizeof *kept);
    if (!kept)
        return jnomem(rt);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        item = items[i];
        size_t before = seen->n;
        r = jget_path(rt, &item, &a[1], NULL, &key);
        if (r >= 0 && !jtruth(&a[0]))
            r = lower_key(rt, &key);
        if (r >= 0)
            r = jdict_set(rt, seen, &key, &none);
        if (r >= 0 && seen->n > before)
            kept[out++] = item;
    }
    return r < 0 ? r : list_of(kept, out, ret);
}

static int f_unique(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "unique", "case_sensitive attribute", 0, a, have);
    return r < 0 ? r : later(rt, in, args, make_unique, ret);
}

static int f_reverse(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval part[3] = { jnone(), jnone(), jint(-1) }, *items;
    const struct jval *from;
    size_t n;
    if (args->npos + args->nkw > 0)
        return jfail(rt, "reverse takes no arguments");
    if (in->type == J_STR)
        return jslice(rt, in, part, ret);
    int r = jcollect(rt, in, &from, &n);
    if (r >= 0)
        r = jcharge(rt, n / 4);
    if (r < 0)
        return r;
    items = jalloc(rt, n, sizeof *items);
    if (!items)
        return jnomem(rt);
    for (size_t i = 0; i < n; i++)
        items[i] = from[n - 1 - i];
    /* a generator has no reversed(): jinja2 makes a list of it, of the others an iterator */
    return in->type == J_GEN ? list_of(items, n, ret) : jgen_items(rt, items, n, ret);
}

/* ---- map, select and their relatives */

static bool keyword(const struct jcall *args, const char *name, struct jval *ret)
{
    for (uint32_t i = 0; i < args->nkw; i++) {
        const struct jval *k = &args->kwnames[i];
        if (k->len == strlen(name) && memcmp(k->s, name, k->len) == 0) {
            *ret = args->kw[i];
            return true;
        }
    }
    return false;
}

static int f_map(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jgen *g = jalloc(rt, 1, sizeof *g);
    struct jval source = jtruth(in) ? *in : jundef(JU_TEXT, NULL, 0), name;
    int r = 0;
    if (!g)
        return jnomem(rt);
    *g = (struct jgen){ .kind = JG_ATTR, .dflt = jnone() };
    if (args->npos == 0 && keyword(args, "attribute", &g->attr)) {
        bool dflt = keyword(args, "default", &g->dflt);
        if (args->nkw > 1u + dflt)
            return jfail(rt, "map takes attribute and default");
    } else if (args->npos == 0) {
        return jfail(rt, "map wants the name of a filter or attribute=");
    } else {
        name = args->pos[0];
        r = jwant_str(rt, "map", &name);
        if (r < 0)
            return r;
        g->kind = JG_MAP;
        g->index = jfilter_find(name.s, name.len);
        if (g->index < 0)
            return jfail(rt, "there is no filter '%.*s'", (int)(name.len < 60 ? name.len : 60), name.s);
        r = copy_args(rt, args, 1, &g->args);
    }
    /* what cannot be iterated over fails when the first element is asked for */
    if (r >= 0 && jiter_init(rt, &g->it, &source) < 0)
        g->it = (struct jiter){ .src = source };
    *ret = (struct jval){ .type = J_GEN, .gen = g };
    return r;
}

static int select_items(struct jrt *rt, const struct jval *in, const struct jcall *args, const char *what,
                        bool reject, bool by_attr, struct jval *ret)
{
    struct jgen *g = jalloc(rt, 1, sizeof *g);
    struct jval source = jtruth(in) ? *in : jundef(JU_TEXT, NULL, 0);
    uint32_t off = by_attr;
    if (!g)
        return jnomem(rt);
    *g = (struct jgen){ .kind = JG_SELECT, .reject = reject, .by_attr = by_attr, .index = JGEN_TRUTH };
    if (by_attr && args->npos == 0)
        return jfail(rt, "%s wants the name of an attribute", what);
    if (by_attr)
        g->attr = args->pos[0];
    int r = 0;
    if (args->npos > off) {
        const struct jval *name = &args->pos[off];
        r = jwant_str(rt, what, name);
        if (r < 0)
            return r;
        g->index = jtest_find(name->s, name->len);
        if (g->index < 0)
            return jfail(rt, "there is no test '%.*s'", (int)(name->len < 60 ? name->len : 60), name->s);
        r = copy_args(rt, args, off + 1, &g->args);
    }
    /* what cannot be iterated over fails when the first element is asked for */
    if (r >= 0 && jiter_init(rt, &g->it, &source) < 0)
        g->it = (struct jiter){ .src = source };
    *ret = (struct jval){ .type = J_GEN, .gen = g };
    return r;
}

static int f_select(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return select_items(rt, in, args, "select", false, false, ret);
}

static int f_reject(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return select_items(rt, in, args, "reject", true, false, ret);
}

static int f_selectattr(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return select_items(rt, in, args, "selectattr", false, true, ret);
}

static int f_rejectattr(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return select_items(rt, in, args, "rejectattr", true, true, ret);
}

const struct jfilter jfilters_seq[] = {
    { "batch", f_batch },     { "count", f_length },    { "dictsort", f_dictsort },
    { "first", f_first },     { "groupby", f_groupby }, { "items", f_items },
    { "join", f_join },       { "last", f_last },       { "length", f_length },
    { "list", f_list },       { "map", f_map },         { "max", f_max },
    { "min", f_min },         { "reject", f_reject },   { "rejectattr", f_rejectattr },
    { "reverse", f_reverse }, { "select", f_select },   { "selectattr", f_selectattr },
    { "slice", f_slice },     { "sort", f_sort },       { "sum", f_sum },
    { "unique", f_unique },   { NULL, NULL },
};
