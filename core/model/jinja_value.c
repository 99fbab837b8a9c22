/* Values of the chat renderer: Python's types, truth, equality and order.
 * Owner: one render. Must not know: the tree. Values never change once made (namespaces and loops do), so
 * they are shared freely. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <errno.h>
#include <string.h>

struct jval jstr(const char *s, size_t len)
{
    return (struct jval){ .type = J_STR, .s = s, .len = len };
}

struct jval jstrz(const char *s)
{
    return jstr(s, strlen(s));
}

struct jval jint(int64_t i)
{
    return (struct jval){ .type = J_INT, .i = i };
}

struct jval jbool(bool b)
{
    return (struct jval){ .type = J_BOOL, .i = b };
}

struct jval jfloat(double f)
{
    return (struct jval){ .type = J_FLOAT, .f = f };
}

struct jval jnone(void)
{
    return (struct jval){ .type = J_NONE };
}

struct jval jundef(enum jundef why, const char *s, size_t len)
{
    return (struct jval){ .type = J_UNDEF, .aux = (uint16_t)why, .s = s, .len = len };
}

struct jval jfrom_json(const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_STRING:
        return jstr(json_string_value(json), json_string_length(json));
    case JSON_OBJECT:
        return (struct jval){ .type = J_JDICT, .json = (json_t *)(uintptr_t)json };
    case JSON_ARRAY:
        return (
            struct jval){ .type = J_JLIST, .json = (json_t *)(uintptr_t)json, .len = json_array_size(json) };
    case JSON_INTEGER:
        return jint(json_integer_value(json));
    case JSON_REAL:
        return jfloat(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return jbool(json_is_true(json));
    default:
        return jnone();
    }
}

const char *jtype_name(const struct jval *v)
{
    static const char *const names[] = {
        [J_MISSING] = "Undefined", [J_UNDEF] = "Undefined", [J_NONE] = "NoneType", [J_BOOL] = "bool",
        [J_INT] = "int",           [J_FLOAT] = "float",     [J_STR] = "str",       [J_LIST] = "list",
        [J_TUPLE] = "tuple",       [J_DICT] = "dict",       [J_JLIST] = "list",    [J_JDICT] = "dict",
        [J_RANGE] = "range",       [J_VIEW] = "dict_view",  [J_GEN] = "generator", [J_NS] = "Namespace",
        [J_LOOP] = "LoopContext",  [J_MACRO] = "Macro",     [J_FUNC] = "function", [J_METHOD] = "method",
    };
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    return v->type == J_VIEW ? views[v->aux] : names[v->type];
}

bool jis_number(const struct jval *v)
{
    return v->type == J_INT || v->type == J_FLOAT || v->type == J_BOOL;
}

bool jis_seq(const struct jval *v)
{
    return v->type == J_LIST || v->type == J_TUPLE || v->type == J_JLIST;
}

bool jis_dict(const struct jval *v)
{
    return v->type == J_DICT || v->type == J_JDICT;
}

/* Whether v points to memory of the render's arena, so that releasing the arena could take it away. */
bool jin_arena(const struct jval *v)
{
    switch (v->type) {
    case J_STR:
        return v->flags & JF_ARENA;
    case J_VIEW:
        return !(v->flags & JF_JSON);
    case J_MISSING:
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
    case J_JLIST:
    case J_JDICT:
    case J_FUNC:
        return false;
    default:
        return true;
    }
}

int64_t jint_of(const struct jval *v)
{
    return v->i;
}

double jnum_of(const struct jval *v)
{
    return v->type == J_FLOAT ? v->f : (double)v->i;
}

/* len() in Python's sense, but in bytes for text: callers that want characters count them. */
int64_t jlen(const struct jval *v)
{
    switch (v->type) {
    case J_UNDEF:
        return 0;
    case J_STR:
        return (int64_t)jstr_count(v->s, v->len);
    case J_LIST:
    case J_TUPLE:
    case J_JLIST:
    case J_RANGE:
        return (int64_t)v->len;
    case J_DICT:
        return (int64_t)v->dict->n;
    case J_JDICT:
        return (int64_t)json_object_size(v->json);
    case J_VIEW:
        return v->flags & JF_JSON ? (int64_t)json_object_size(v->json) : (int64_t)v->dict->n;
    default:
        return -1;
    }
}

bool jtruth(const struct jval *v)
{
    switch (v->type) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
    case J_INT:
        return v->i != 0;
    case J_FLOAT:
        return v->f != 0;
    case J_STR:
        return v->len != 0;
    default:
        return jlen(v) != 0;
    }
}

struct jval jseq_get(const struct jval *v, size_t i)
{
    if (v->type == J_RANGE)
        return jint(v->range->start + v->range->step * (int64_t)i);
    if (v->type == J_JLIST)
        return jfrom_json(json_array_get(v->json, v->off + i));
    return v->items[i];
}

/* ---- equality */

static int text_order(const struct jval *a, const struct jval *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->s, b->s, n) : 0;
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

/* Exact whatever the types: a long double holds every int64 and every double. -2: not comparable (NaN). */
static int number_order(const struct jval *a, const struct jval *b)
{
    if (a->type != J_FLOAT && b->type != J_FLOAT)
        return (a->i > b->i) - (a->i < b->i);
    long double x = a->type == J_FLOAT ? (long double)a->f : (long double)a->i;
    long double y = b->type == J_FLOAT ? (long double)b->f : (long double)b->i;
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : -2;
}

static int seq_equal(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    if ((a->type == J_TUPLE) != (b->type == J_TUPLE) || a->len != b->len)
        return 0;
    for (size_t i = 0; i < a->len; i++) {
        struct jval x = jseq_get(a, i), y = jseq_get(b, i);
        int r = jcharge(rt, 1);
        if (r >= 0)
            r = jequal(rt, &x, &y);
        if (r != 1)
            return r;
    }
    return 1;
}

static int dict_equal(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    struct jiter it;
    struct jval k, x, y;
    if (jlen(a) != jlen(b))
        return 0;
    int r = jiter_init(rt, &it, a);
    while (r >= 0 && (r = jiter_pair(rt, &it, &k, &x)) == 1) {
        r = jdict_get(rt, b, &k, &y);
        if (r == 1)
            r = jequal(rt, &x, &y);
        if (r != 1)
            return r;
    }
    return r < 0 ? r : 1;
}

static int deep_equal(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    if (jis_seq(a) && jis_seq(b))
        return seq_equal(rt, a, b);
    if (jis_dict(a) && jis_dict(b))
        return dict_equal(rt, a, b);
    if (a->type != b->type)
        return 0;
    if (a->type == J_RANGE) {
        const struct jrange *x = a->range, *y = b->range;
        return a->len == b->len &&
               (a->len == 0 || (x->start == y->start && (a->len == 1 || x->step == y->step)));
    }
    if (a->type == J_FUNC)
        return a->aux == b->aux;
    if (a->type == J_METHOD)
        return a->aux == b->aux && a->self == b->self;
    return a->items == b->items;
}

int jequal(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    if (a->type == J_STR && b->type == J_STR) {
        if (a->len != b->len)
            return 0;
        int r = jcharge(rt, a->len / 64);
        return r < 0 ? r : a->len == 0 || memcmp(a->s, b->s, a->len) == 0;
    }
    if (jis_number(a) && jis_number(b))
        return number_order(a, b) == 0;
    if (a->type == J_UNDEF || b->type == J_UNDEF || a->type == J_NONE || b->type == J_NONE)
        return a->type == b->type;
    int r = jenter(rt);
    if (r < 0)
        return r;
    r = deep_equal(rt, a, b);
    rt->depth--;
    return r;
}

/* ---- order */

static int seq_less(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    for (size_t i = 0; i < a->len && i < b->len; i++) {
        struct jval x = jseq_get(a, i), y = jseq_get(b, i);
        int r = jcharge(rt, 1);
        if (r >= 0)
            r = jequal(rt, &x, &y);
        if (r < 0)
            return r;
        if (r == 0)
            return jless(rt, &x, &y);
    }
    return a->len < b->len;
}

int jundef_fail(struct jrt *rt, const struct jval *v)
{
    static const char *const types[] = { "dict object", "list object", "str object" };
    int n = (int)(v->len < 200 ? v->len : 200);
    const char *of = v->off < 3 ? types[v->off] : "value";
    switch (v->aux) {
    case JU_NAME:
        return jfail(rt, "'%.*s' is undefined", n, v->s);
    case JU_ATTR:
        return jfail(rt, "'%s' has no attribute '%.*s'", of, n, v->s);
    case JU_ITEM:
        return jfail(rt, "%s has no such element", of);
    default:
        return jfail(rt, "%.*s", n, v->s);
    }
}

int jless(struct jrt *rt, const struct jval *a, const struct jval *b)
{
    if (a->type == J_STR && b->type == J_STR) {
        int r = jcharge(rt, (a->len < b->len ? a->len : b->len) / 64);
        return r < 0 ? r : text_order(a, b) < 0;
    }
    if (jis_number(a) && jis_number(b))
        return number_order(a, b) == -1;
    if (a->type == J_UNDEF || b->type == J_UNDEF)
        return jundef_fail(rt, a->type == J_UNDEF ? a : b);
    if (jis_seq(a) && jis_seq(b) && (a->type == J_TUPLE) == (b->type == J_TUPLE)) {
        int r = jenter(rt);
        if (r < 0)
            return r;
        r = seq_less(rt, a, b);
        rt->depth--;
        return r;
    }
    return jfail(rt, "%s and %s have no order", jtype_name(a), jtype_name(b));
}

/* ---- `in` */

static int scan(struct jrt *rt, const struct jval *seq, const struct jval *item)
{
    struct jiter it;
    struct jval v;
    int r = jiter_init(rt, &it, seq);
    while (r >= 0 && (r = jiter_next(rt, &it, &v)) == 1) {
        r = jequal(rt, &v, item);
        if (r != 0)
            return r;
    }
    return r;
}

static int range_has(const struct jval *v, int64_t i)
{
    if (v->len == 0)
        return 0;
    __int128 from = (__int128)i - v->range->start, step = v->range->step;
    return from % step == 0 && from / step >= 0 && from / step < (__int128)v->len;
}

int jcontains(struct jrt *rt, const struct jval *seq, const struct jval *item)
{
    struct jval got;
    switch (seq->type) {
    case J_STR:
        if (item->type != J_STR)
            return jfail(rt, "only text can be looked for in text, not %s", jtype_name(item));
        int r = jcharge_find(rt, seq->len, item->len);
        return r < 0 ? r : jstr_find(seq->s, seq->len, item->s, item->len) != NULL;
    case J_RANGE:
        if (item->type != J_INT && item->type != J_BOOL)
            return scan(rt, seq, item);
        return range_has(seq, item->i);
    case J_DICT:
    case J_JDICT:
        break;
    case J_VIEW:
        if (seq->aux == JV_KEYS)
            break;
        return scan(rt, seq, item);
    default:
        return scan(rt, seq, item);
    }
    if (!jhashable(item))
        return jfail(rt, "a %s cannot be the key of a dict", jtype_name(item));
    struct jval d = *seq;
    if (seq->type == J_VIEW)
        d.type = seq->flags & JF_JSON ? J_JDICT : J_DICT;
    return jdict_get(rt, &d, item, &got);
}
