/* Access to values: dicts, attributes, items, slices and iteration, as jinja2's sandbox grants them.
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <errno.h>
#include <string.h>

static bool is_name(const char *name, size_t len, const char *wanted)
{
    return strlen(wanted) == len && memcmp(name, wanted, len) == 0;
}

/* ---- dicts: pairs in the order of insertion; templates make small ones, so a search is a walk */

int jdict_new(struct jrt *rt, size_t cap, struct jdict **ret)
{
    struct jdict *d = jalloc(rt, 1, sizeof *d);
    if (!d)
        return jnomem(rt);
    *d = (struct jdict){ .cap = cap ? cap : 4 };
    d->pairs = jalloc(rt, d->cap, sizeof *d->pairs);
    if (!d->pairs)
        return jnomem(rt);
    *ret = d;
    return 0;
}

bool jhashable(const struct jval *k)
{
    if (k->type == J_TUPLE && k->len > 0 && k->len <= 8)
        for (size_t i = 0; i < k->len; i++)
            if (!jhashable(&k->items[i]))
                return false;
    return k->type != J_LIST && k->type != J_JLIST && k->type != J_DICT && k->type != J_JDICT;
}

static int find_pair(struct jrt *rt, const struct jdict *d, const struct jval *k, size_t *ret)
{
    int r = jcharge(rt, d->n / 8);
    for (size_t i = 0; r >= 0 && i < d->n; i++) {
        const struct jval *have = &d->pairs[i].k;
        if (k->type == J_STR && have->type == J_STR && k->len != have->len)
            continue;
        r = jequal(rt, have, k);
        if (r == 1) {
            *ret = i;
            return 1;
        }
    }
    return r;
}

int jdict_set(struct jrt *rt, struct jdict *d, const struct jval *k, const struct jval *v)
{
    size_t i = 0;
    if (!jhashable(k))
        return jfail(rt, "a %s cannot be the key of a dict", jtype_name(k));
    int r = find_pair(rt, d, k, &i);
    if (r < 0)
        return r;
    if (r == 1) {
        d->pairs[i].v = *v;
        return 0;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap * 2;
        struct jpair *pairs = jalloc(rt, cap, sizeof *pairs);
        if (!pairs)
            return jnomem(rt);
        memcpy(pairs, d->pairs, d->n * sizeof *pairs);
        d->pairs = pairs;
        d->cap = cap;
        rt->escapes++;
    }
    d->pairs[d->n++] = (struct jpair){ *k, *v };
    return 0;
}

static json_t *json_get(const json_t *object, const char *key, size_t len)
{
#if JANSSON_VERSION_HEX >= 0x020e00
    return json_object_getn(object, key, len);
#else
    char name[256];
    if (len >= sizeof name || memchr(key, '\0', len))
        return NULL;
    memcpy(name, key, len);
    name[len] = '\0';
    return json_object_get(object, name);
#endif
}

int jdict_get(struct jrt *rt, const struct jval *dict, const struct jval *k, struct jval *ret)
{
    if (dict->type == J_JDICT) {
        if (k->type != J_STR)
            return 0;
        int r = jcharge(rt, k->len / 16);
        const json_t *v = json_get(dict->json, k->s, k->len);
        if (r < 0 || !v)
            return r;
        *ret = jfrom_json(v);
        return 1;
    }
    size_t i = 0;
    int r = jhashable(k) ? find_pair(rt, dict->dict, k, &i) : 0;
    if (r == 1)
        *ret = dict->dict->pairs[i].v;
    return r;
}

/* ---- attributes and items */

static struct jval missing(const struct jval *v, enum jundef why, const char *name, size_t len)
{
    struct jval u = jundef(why, name, len);
    u.off = jis_dict(v) ? 0 : v->type == J_LIST || v->type == J_JLIST ? 1 : v->type == J_STR ? 2 : 3;
    return u;
}

/* What would change a list or dict: jinja2's immutable sandbox refuses it, and values here are shared. */
static bool changes(const struct jval *v, const char *name, size_t len)
{
    static const char *const list[] = { "append", "clear",  "pop",    "reverse", "insert",
                                        "sort",   "extend", "remove", NULL };
    static const char *const dict[] = { "clear", "pop", "popitem", "setdefault", "update", NULL };
    const char *const *names = jis_dict(v) ? dict : v->type == J_LIST || v->type == J_JLIST ? list : NULL;
    for (; names && *names; names++)
        if (is_name(name, len, *names))
            return true;
    return false;
}

static int bind_method(struct jrt *rt, const struct jval *v, uint16_t which, struct jval *ret)
{
    struct jval *self = jalloc(rt, 1, sizeof *self);
    if (!self)
        return jnomem(rt);
    *self = *v;
    *ret = (struct jval){ .type = J_METHOD, .aux = which, .self = self };
    return 1;
}

/* Python's getattr(): 1 when v has the attribute. */
static int own_attribute(struct jrt *rt, const struct jval *v, const char *name, size_t len, struct jval *ret)
{
    uint16_t which;
    if (v->type == J_NS) {
        struct jval d = *v, key = jstr(name, len);
        d.type = J_DICT;
        return jdict_get(rt, &d, &key, ret);
    }
    if (v->type == J_LOOP)
        return jloop_attr(rt, v, name, len, ret);
    if (v->type == J_TUPLE && v->flags & JF_GROUP &&
        (is_name(name, len, "grouper") || is_name(name, len, "list"))) {
        *ret = v->items[is_name(name, len, "list")];
        return 1;
    }
    if (v->type == J_MACRO && is_name(name, len, "name")) {
        const struct jname *n = v->macro->node->name;
        *ret = n ? jstr(n->text, n->len) : jnone();
        return 1;
    }
    if (changes(v, name, len)) {
        static const char text[] =
            "templates may not call what changes a list or dict (append, pop, update, ...)";
        *ret = jundef(JU_TEXT, text, sizeof text - 1);
        return 1;
    }
    return jmethod_find(v, name, len, &which) ? bind_method(rt, v, which, ret) : 0;
}

int jgetattr(struct jrt *rt, const struct jval *v, const char *name, size_t len, struct jval *ret)
{
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    int r = own_attribute(rt, v, name, len, ret);
    if (r == 0 && jis_dict(v)) {
        struct jval key = jstr(name, len);
        r = jdict_get(rt, v, &key, ret);
    }
    if (r == 0)
        *ret = missing(v, JU_ATTR, name, len);
    return r < 0 ? r : 0;
}

/* Index i, from the end when negative, of n. false: outside. */
static bool place_index(int64_t i, size_t n, size_t *ret)
{
    if (i < 0)
        i += (int64_t)n;
    *ret = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

static int char_at(struct jrt *rt, const struct jval *v, int64_t i, struct jval *ret)
{
    size_t at, n = jstr_count(v->s, v->len);
    int r = jcharge(rt, v->len / 16);
    if (r < 0 || !place_index(i, n, &at))
        return r;
    size_t from = jstr_offset(v->s, v->len, at);
    *ret = jsub(v, from, from + jstr_offset(v->s + from, v->len - from, 1));
    return 1;
}

/* Python's v[key]: 1 when it is there, 0 for a KeyError, IndexError or TypeError. */
static int subscript(struct jrt *rt, const struct jval *v, const struct jval *key, struct jval *ret)
{
    size_t at;
    if (jis_dict(v))
        return jdict_get(rt, v, key, ret);
    if (key->type != J_INT && key->type != J_BOOL)
        return 0;
    if (v->type == J_STR)
        return char_at(rt, v, key->i, ret);
    if ((!jis_seq(v) && v->type != J_RANGE) || !place_index(key->i, v->len, &at))
        return 0;
    *ret = jseq_get(v, at);
    return 1;
}

int jgetitem(struct jrt *rt, const struct jval *v, const struct jval *key, struct jval *ret)
{
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    int r = subscript(rt, v, key, ret);
    if (r == 0 && key->type == J_STR)
        r = own_attribute(rt, v, key->s, key->len, ret);
    if (r == 0 && key->type == J_STR)
        *ret = missing(v, JU_ATTR, key->s, key->len);
    else if (r == 0)
        *ret = missing(v, JU_ITEM, NULL, 0);
    return r < 0 ? r : 0;
}

/* ---- slices */

static int slice_bound(struct jrt *rt, const struct jval *v, int64_t dflt, int64_t *ret)
{
    if (v->type == J_NONE) {
        *ret = dflt;
        return 0;
    }
    if (v->type != J_INT && v->type != J_BOOL)
        return jfail(rt, "a slice wants integers or none, not %s", jtype_name(v));
    *ret = v->i;
    return 0;
}

static int64_t clamp_bound(int64_t i, int64_t n, bool down)
{
    if (i < 0)
        i = i + n < 0 ? (down ? -1 : 0) : i + n;
    else if (i >= n)
        i = down ? n - 1 : n;
    return i;
}

/* Start, step and number of elements of a slice of n, by Python's rules. */
static int place_slice(struct jrt *rt, const struct jval part[3], int64_t n, int64_t *start, int64_t *step,
                       int64_t *count)
{
    int64_t stop = 0;
    int r = slice_bound(rt, &part[2], 1, step);
    if (r < 0)
        return r;
    if (*step == 0)
        return jfail(rt, "the step of a slice cannot be 0");
    bool down = *step < 0;
    r = slice_bound(rt, &part[0], down ? INT64_MAX : 0, start);
    if (r >= 0)
        r = slice_bound(rt, &part[1], INT64_MAX, &stop);
    if (r < 0)
        return r;
    *start = clamp_bound(*start, n, down);
    stop = part[1].type == J_NONE && down ? -1 : clamp_bound(stop, n, down);
    if (*step == INT64_MIN)
        *step = -INT64_MAX;
    if (down)
        *count = *start > stop ? (*start - stop - 1) / -*step + 1 : 0;
    else
        *count = *start < stop ? (stop - *start - 1) / *step + 1 : 0;
    return 0;
}

/* Byte of the character `step` characters away from the one at `at`, which is there. */
static size_t move_chars(const struct jval *v, size_t at, int64_t step)
{
    for (; step > 0; step--)
        at += jstr_offset(v->s + at, v->len - at, 1);
    for (; step < 0; step++) {
        at--;
        while (at > 0 && ((unsigned char)v->s[at] & 0xc0) == 0x80)
            at--;
    }
    return at;
}

static int slice_text(struct jrt *rt, const struct jval *v, int64_t start, int64_t step, int64_t count,
                      struct jval *ret)
{
    int r = jcharge(rt, step == 1 ? v->len / 16 : v->len / 2);
    if (r < 0)
        return r;
    if (step == 1 || count <= 1) {
        size_t from = jstr_offset(v->s, v->len, (size_t)start);
        *ret = count == 0 ? jsub(v, 0, 0)
                          : jsub(v, from, from + jstr_offset(v->s + from, v->len - from, (size_t)count));
        return 0;
    }
    char *text = jalloc(rt, v->len, 1), *dst = text;
    if (!text)
        return jnomem(rt);
    size_t at = jstr_offset(v->s, v->len, (size_t)start);
    for (int64_t i = 0; i < count; i++) {
        size_t n = jstr_offset(v->s + at, v->len - at, 1);
        memcpy(dst, v->s + at, n);
        dst += n;
        at = i + 1 < count ? move_chars(v, at, step) : at;
    }
    *ret = jstr(text, (size_t)(dst - text));
    ret->flags = JF_ARENA | (v->flags & JF_MARKUP);
    return 0;
}

static int slice_seq(struct jrt *rt, const struct jval *v, int64_t start, int64_t step, int64_t count,
                     struct jval *ret)
{
    *ret = *v;
    ret->flags = 0;
    ret->len = (size_t)count;
    if (step == 1 || count == 0) {
        if (v->type == J_JLIST)
            ret->off = v->off + (uint32_t)(count ? start : 0);
        else if (count)
            ret->items = v->items + start;
        return 0;
    }
    struct jval *items = jalloc(rt, (size_t)count, sizeof *items);
    int r = jcharge(rt, (size_t)count / 4);
    if (!items || r < 0)
        return items ? r : jnomem(rt);
    for (int64_t i = 0, at = start; i < count; i++, at += step)
        items[i] = jseq_get(v, (size_t)at);
    ret->type = v->type == J_TUPLE ? J_TUPLE : J_LIST;
    ret->items = items;
    return 0;
}

int jslice(struct jrt *rt, const struct jval *v, const struct jval part[3], struct jval *ret)
{
    int64_t start = 0, step = 0, count = 0;
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    if (!jis_seq(v) && v->type != J_STR && v->type != J_RANGE)
        return jfail(rt, "a %s cannot be sliced", jtype_name(v));
    int r = place_slice(rt, part, jlen(v), &start, &step, &count);
    if (r < 0)
        return r;
    if (v->type == J_STR)
        return slice_text(rt, v, start, step, count, ret);
    if (v->type != J_RANGE)
        return slice_seq(rt, v, start, step, count, ret);
    struct jrange *range = jalloc(rt, 1, sizeof *range);
    if (!range)
        return jnomem(rt);
    range->start = v->range->start + start * v->range->step;
    if (__builtin_mul_overflow(v->range->step, step, &range->step))
        range->step = step > 0 ? 1 : -1; /* longer than any range: at most one element is left */
    range->stop = range->start + (count <= 1 ? count * (range->step > 0 ? 1 : -1) : count * range->step);
    *ret = (struct jval){ .type = J_RANGE, .range = range, .len = (size_t)count };
    return 0;
}

/* ---- iteration */

int jiter_init(struct jrt *rt, struct jiter *it, const struct jval *v)
{
    *it = (struct jiter){ .src = *v };
    switch (v->type) {
    case J_VIEW:
        if (!(v->flags & JF_JSON))
            return 0;
        /* fall through */
    case J_JDICT:
        it->json_pos = json_object_iter(v->json);
        return 0;
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_JLIST:
    case J_RANGE:
    case J_GEN:
        return 0;
    default:
        return jfail(rt, "'%s' object is not iterable", jtype_name(v));
    }
}

int jtuple2(struct jrt *rt, const struct jval *a, const struct jval *b, struct jval *ret)
{
    struct jval *items = jalloc(rt, 2, sizeof *items);
    if (!items)
        return jnomem(rt);
    items[0] = *a;
    items[1] = *b;
    *ret = (struct jval){ .type = J_TUPLE, .items = items, .len = 2 };
    return 0;
}

/* The next key and value of a dict or a view of one. */
int jiter_pair(struct jrt *rt, struct jiter *it, struct jval *k, struct jval *v)
{
    int r = jcharge(rt, 1);
    if (r < 0)
        return r;
    if (it->src.type == J_JDICT || it->src.flags & JF_JSON) {
        if (!it->json_pos)
            return 0;
        *k = jstrz(json_object_iter_key(it->json_pos));
        *v = jfrom_json(json_object_iter_value(it->json_pos));
        it->json_pos = json_object_iter_next(it->src.json, it->json_pos);
    } else {
        const struct jdict *d = it->src.dict;
        if (it->pos >= d->n)
            return 0;
        *k = d->pairs[it->pos].k;
        *v = d->pairs[it->pos++].v;
    }
    return 1;
}

static int next_pair(struct jrt *rt, struct jiter *it, struct jval *ret)
{
    struct jval k, v;
    int r = jiter_pair(rt, it, &k, &v);
    if (r != 1)
        return r;
    unsigned what = it->src.type == J_VIEW ? it->src.aux : JV_KEYS;
    if (what == JV_ITEMS) {
        r = jtuple2(rt, &k, &v, ret);
        return r < 0 ? r : 1;
    }
    *ret = what == JV_KEYS ? k : v;
    return 1;
}

int jiter_next(struct jrt *rt, struct jiter *it, struct jval *ret)
{
    const struct jval *v = &it->src;
    if (rt->steps == 0)
        return jcharge(rt, 1);
    rt->steps--;
    switch (v->type) {
    case J_LIST:
    case J_TUPLE:
    case J_JLIST:
    case J_RANGE:
        if (it->pos >= v->len)
            return 0;
        *ret = jseq_get(v, it->pos++);
        return 1;
    case J_STR:
        if (it->pos >= v->len)
            return 0;
        size_t n = jstr_offset(v->s + it->pos, v->len - it->pos, 1);
        *ret = jsub(v, it->pos, it->pos + n);
        ret->flags &= (uint8_t)~JF_MARKUP;
        it->pos += n;
        return 1;
    case J_GEN:
        return jgen_next(rt, v->gen, ret);
    case J_UNDEF:
        return 0;
    case J_DICT:
    case J_JDICT:
    case J_VIEW:
        return next_pair(rt, it, ret);
    default:
        return jfail(rt, "'%s' object is not iterable", jtype_name(v));
    }
}

int jcollect(struct jrt *rt, const struct jval *v, const struct jval **ret_items, size_t *ret_n)
{
    struct jiter it;
    struct jval item, *items = NULL;
    size_t n = 0, cap = 0;
    if (v->type == J_LIST || v->type == J_TUPLE) {
        *ret_items = v->items;
        *ret_n = v->len;
        return 0;
    }
    int r = jiter_init(rt, &it, v);
    while (r >= 0 && (r = jiter_next(rt, &it, &item)) == 1) {
        if (n == cap) {
            size_t more = cap ? cap * 2 : jlen(v) > 0 ? (size_t)jlen(v) : 8;
            struct jval *bigger = jalloc(rt, more, sizeof *bigger);
            if (!bigger)
                return jnomem(rt);
            if (n > 0)
                memcpy(bigger, items, n * sizeof *items);
            items = bigger;
            cap = more;
        }
        items[n++] = item;
    }
    *ret_items = items;
    *ret_n = n;
    return r;
}
