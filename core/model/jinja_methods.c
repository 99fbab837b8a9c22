/* Methods of text, dicts and lists that templates may call: Python's, without those that change something.
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <string.h>

typedef int method_fn(struct jrt *rt, const struct jval *self, const struct jcall *args, struct jval *ret);

#define METHOD(name)                                                                                         \
    static int name(struct jrt *rt, const struct jval *self, const struct jcall *args, struct jval *ret)

static int none_wanted(struct jrt *rt, const struct jcall *args, const char *what)
{
    return args->npos + args->nkw == 0 ? 0 : jfail(rt, "%s takes no arguments", what);
}

/* ---- text */

static int strip(struct jrt *rt, const struct jval *self, const struct jcall *args, const char *what,
                 unsigned sides, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, what, "chars", 0, a, have);
    if (r >= 0 && a[0].type != J_NONE)
        r = jwant_str(rt, what, &a[0]);
    return r < 0 ? r : jstr_strip_charged(rt, self, a[0].type == J_NONE ? NULL : &a[0], sides, ret);
}

METHOD(m_strip)
{
    return strip(rt, self, args, "strip()", JS_LEFT | JS_RIGHT, ret);
}

METHOD(m_lstrip)
{
    return strip(rt, self, args, "lstrip()", JS_LEFT, ret);
}

METHOD(m_rstrip)
{
    return strip(rt, self, args, "rstrip()", JS_RIGHT, ret);
}

METHOD(m_upper)
{
    int r = none_wanted(rt, args, "upper()");
    return r < 0 ? r : jstr_case(rt, self, JCASE_UPPER, ret);
}

METHOD(m_lower)
{
    int r = none_wanted(rt, args, "lower()");
    return r < 0 ? r : jstr_case(rt, self, JCASE_LOWER, ret);
}

METHOD(m_title)
{
    int r = none_wanted(rt, args, "title()");
    return r < 0 ? r : jstr_case(rt, self, JCASE_PYTITLE, ret);
}

METHOD(m_capitalize)
{
    int r = none_wanted(rt, args, "capitalize()");
    return r < 0 ? r : jstr_case(rt, self, JCASE_CAPITALIZE, ret);
}

METHOD(m_swapcase)
{
    int r = none_wanted(rt, args, "swapcase()");
    return r < 0 ? r : jstr_case(rt, self, JCASE_SWAP, ret);
}

static int split(struct jrt *rt, const struct jval *self, const struct jcall *args, bool right,
                 struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int64_t max = -1;
    int r = jbind(rt, args, right ? "rsplit()" : "split()", "sep maxsplit", 0, a, have);
    if (r >= 0 && a[0].type != J_NONE)
        r = jwant_str(rt, "split()", &a[0]);
    if (r >= 0 && have[1])
        r = jwant_int(rt, "split()", &a[1], &max);
    return r < 0 ? r
                 : jstr_split(rt, self, a[0].type == J_NONE ? NULL : &a[0], max < 0 ? -1 : max, right, ret);
}

METHOD(m_split)
{
    return split(rt, self, args, false, ret);
}

METHOD(m_rsplit)
{
    return split(rt, self, args, true, ret);
}

METHOD(m_splitlines)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "splitlines()", "keepends", 0, a, have);
    return r < 0 ? r : jstr_lines(rt, self, jtruth(&a[0]), ret);
}

static int partition(struct jrt *rt, const struct jval *self, const struct jcall *args, bool right,
                     struct jval *ret)
{
    struct jval a[JARGS_MAX], *part;
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "partition()", "sep", 1, a, have);
    if (r >= 0)
        r = jwant_str(rt, "partition()", &a[0]);
    if (r >= 0 && a[0].len == 0)
        return jfail(rt, "partition() by an empty text");
    part = r < 0 ? NULL : jalloc(rt, 3, sizeof *part);
    if (!part)
        return r < 0 ? r : jnomem(rt);
    const char *hit = NULL;
    r = jcharge_find(rt, self->len, a[0].len);
    if (r >= 0 && right)
        r = jstr_rfind(rt, self->s, self->len, a[0].s, a[0].len, &hit);
    else if (r >= 0)
        hit = jstr_find(self->s, self->len, a[0].s, a[0].len);
    size_t at = hit ? (size_t)(hit - self->s) : right ? 0 : self->len;
    size_t behind = hit ? at + a[0].len : at;
    part[0] = jsub(self, 0, at);
    part[1] = jsub(self, at, behind);
    part[2] = jsub(self, behind, self->len);
    *ret = (struct jval){ .type = J_TUPLE, .items = part, .len = 3 };
    return r;
}

METHOD(m_partition)
{
    return partition(rt, self, args, false, ret);
}

METHOD(m_rpartition)
{
    return partition(rt, self, args, true, ret);
}

/* The part of self between characters a[0] and a[1] (none: the ends). *base: where it starts, in characters.
 * false: start lies behind the end, where nothing is found, not even an empty text. */
static int window(struct jrt *rt, const struct jval *self, const struct jval *a, struct jval *ret,
                  int64_t *base, bool *ok)
{
    int64_t n = (int64_t)jstr_count(self->s, self->len), at[2] = { 0, n };
    int r = jcharge(rt, self->len / 8);
    for (int i = 0; r >= 0 && i < 2; i++) {
        if (a[i].type == J_NONE)
            continue;
        r = jwant_int(rt, "a position in text", &a[i], &at[i]);
        if (at[i] < 0)
            at[i] = at[i] + n < 0 ? 0 : at[i] + n;
        if (i == 1 && at[i] > n)
            at[i] = n;
    }
    *ok = at[0] <= at[1];
    *base = *ok ? at[0] : 0;
    size_t from = *ok ? jstr_offset(self->s, self->len, (size_t)at[0]) : 0;
    size_t to = *ok ? jstr_offset(self->s, self->len, (size_t)at[1]) : 0;
    *ret = jsub(self, from, to);
    return r;
}

static int find(struct jrt *rt, const struct jval *self, const struct jcall *args, const char *what,
                bool last, bool must, struct jval *ret)
{
    struct jval a[JARGS_MAX], in;
    bool have[JARGS_MAX], ok = false;
    int64_t base = 0;
    int r = jbind(rt, args, what, "sub start end", 1, a, have);
    if (r >= 0)
        r = jwant_str(rt, what, &a[0]);
    if (r >= 0)
        r = window(rt, self, &a[1], &in, &base, &ok);
    const char *hit = NULL;
    if (r >= 0 && ok)
        r = jcharge_find(rt, in.len, a[0].len);
    if (r >= 0 && ok && last)
        r = jstr_rfind(rt, in.s, in.len, a[0].s, a[0].len, &hit);
    else if (r >= 0 && ok)
        hit = jstr_find(in.s, in.len, a[0].s, a[0].len);
    if (r < 0)
        return r;
    if (!hit && must)
        return jfail(rt, "%s did not find the text", what);
    *ret = jint(hit ? base + (int64_t)jstr_count(in.s, (size_t)(hit - in.s)) : -1);
    return 0;
}

METHOD(m_find)
{
    return find(rt, self, args, "find()", false, false, ret);
}

METHOD(m_rfind)
{
    return find(rt, self, args, "rfind()", true, false, ret);
}

METHOD(m_index)
{
    return find(rt, self, args, "index()", false, true, ret);
}

METHOD(m_rindex)
{
    return find(rt, self, args, "rindex()", true, true, ret);
}

METHOD(m_count)
{
    struct jval a[JARGS_MAX], in;
    bool have[JARGS_MAX], ok = false;
    int64_t base, n = 0;
    int r = jbind(rt, args, "count()", "sub start end", 1, a, have);
    if (r >= 0)
        r = jwant_str(rt, "count()", &a[0]);
    if (r >= 0)
        r = window(rt, self, &a[1], &in, &base, &ok);
    if (r >= 0)
        r = jcharge_find(rt, in.len, a[0].len);
    if (r >= 0 && a[0].len == 0)
        n = ok ? (int64_t)jstr_count(in.s, in.len) + 1 : 0;
    for (size_t at = 0; r >= 0 && a[0].len > 0 && at < in.len; n++) {
        const char *hit = jstr_find(in.s + at, in.len - at, a[0].s, a[0].len);
        if (!hit)
            break;
        at = (size_t)(hit - in.s) + a[0].len;
        r = jcharge(rt, 1);
    }
    *ret = jint(n);
    return r;
}

static int affix(struct jrt *rt, const struct jval *self, const struct jcall *args, const char *what,
                 bool end, struct jval *ret)
{
    struct jval a[JARGS_MAX], in, one = jnone(), list;
    bool have[JARGS_MAX], ok = false, found = false;
    int64_t base;
    int r = jbind(rt, args, what, "affix start end", 1, a, have);
    if (r >= 0 && a[0].type != J_TUPLE)
        r = jwant_str(rt, what, &a[0]);
    if (r >= 0)
        r = have[1] || have[2] ? window(rt, self, &a[1], &in, &base, &ok) : 0;
    if (!have[1] && !have[2]) {
        in = *self;
        ok = true;
    }
    one = a[0];
    list = a[0].type == J_TUPLE ? a[0] : (struct jval){ .type = J_TUPLE, .items = &one, .len = 1 };
    for (size_t i = 0; r >= 0 && ok && !found && i < list.len; i++) {
        const struct jval *x = &list.items[i];
        r = jwant_str(rt, what, x);
        if (r >= 0)
            r = jcharge(rt, x->len / 64);
        if (r >= 0 && x->len <= in.len)
            found = x->len == 0 || memcmp(end ? in.s + in.len - x->len : in.s, x->s, x->len) == 0;
    }
    *ret = jbool(found);
    return r;
}

METHOD(m_startswith)
{
    return affix(rt, self, args, "startswith()", false, ret);
}

METHOD(m_endswith)
{
    return affix(rt, self, args, "endswith()", true, ret);
}

static int remove_affix(struct jrt *rt, const struct jval *self, const struct jcall *args, bool end,
                        struct jval *ret)
{
    struct jval found, a = args->npos ? args->pos[0] : jstr("", 0);
    int r = affix(rt, self, args, end ? "removesuffix()" : "removeprefix()", end, &found);
    if (r >= 0)
        r = jwant_str(rt, "removeprefix()", &a);
    size_t n = r >= 0 && found.i ? a.len : 0;
    *ret = jsub(self, end ? 0 : n, end ? self->len - n : self->len);
    return r;
}

METHOD(m_removeprefix)
{
    return remove_affix(rt, self, args, false, ret);
}

METHOD(m_removesuffix)
{
    return remove_affix(rt, self, args, true, ret);
}

METHOD(m_replace)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int64_t count = -1;
    int r = jbind(rt, args, "replace()", "old new count", 2, a, have);
    if (r >= 0)
        r = jwant_str(rt, "replace()", &a[0]);
    if (r >= 0)
        r = jwant_str(rt, "replace()", &a[1]);
    if (r >= 0 && have[2])
        r = jwant_int(rt, "replace()", &a[2], &count);
    return r < 0 ? r : jstr_replace(rt, self, &a[0], &a[1], count, ret);
}

METHOD(m_join)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "join()", "iterable", 1, a, have);
    return r < 0 ? r : jstr_join(rt, self, &a[0], true, ret);
}

METHOD(m_format)
{
    return jformat_braces(rt, self, args, ret);
}

static int justify(struct jrt *rt, const struct jval *self, const struct jcall *args, const char *what,
                   int mode, struct jval *ret)
{
    struct jval a[JARGS_MAX], space = jstrz(" "), parts[3];
    bool have[JARGS_MAX];
    int64_t width;
    int r = jbind(rt, args, what, "width fillchar", 1, a, have);
    if (r >= 0)
        r = jwant_int(rt, what, &a[0], &width);
    if (r >= 0 && have[1]) {
        space = a[1];
        r = jwant_str(rt, what, &space);
        if (r >= 0 && jstr_count(space.s, space.len) != 1)
            return jfail(rt, "%s fills with one character", what);
    }
    if (r >= 0)
        r = jcharge(rt, self->len / 32);
    if (r < 0)
        return r;
    int64_t have_n = (int64_t)jstr_count(self->s, self->len), room = width > have_n ? width - have_n : 0;
    int64_t left = mode < 0 ? 0 : mode > 0 ? room : room / 2 + (room & width & 1);
    parts[1] = *self;
    r = jstr_repeat(rt, &space, left, &parts[0]);
    if (r >= 0)
        r = jstr_repeat(rt, &space, room - left, &parts[2]);
    return r < 0 ? r : jstr_concat(rt, parts, 3, ret);
}

METHOD(m_ljust)
{
    return justify(rt, self, args, "ljust()", -1, ret);
}

METHOD(m_rjust)
{
    return justify(rt, self, args, "rjust()", 1, ret);
}

METHOD(m_center)
{
    return justify(rt, self, args, "center()", 0, ret);
}

METHOD(m_zfill)
{
    struct jval a[JARGS_MAX], zero = jstrz("0"), parts[3];
    bool have[JARGS_MAX];
    int64_t width;
    int r = jbind(rt, args, "zfill()", "width", 1, a, have);
    if (r >= 0)
        r = jwant_int(rt, "zfill()", &a[0], &width);
    if (r >= 0)
        r = jcharge(rt, self->len / 32);
    if (r < 0)
        return r;
    size_t sign = self->len && (self->s[0] == '-' || self->s[0] == '+');
    parts[0] = jsub(self, 0, sign);
    parts[2] = jsub(self, sign, self->len);
    r = jstr_repeat(rt, &zero, width - (int64_t)jstr_count(self->s, self->len), &parts[1]);
    return r < 0 ? r : jstr_concat(rt, parts, 3, ret);
}

/* Letters beyond ASCII that are known here: those with a case, and the common ones of East Asia. */
static bool is_letter(uint32_t cp)
{
    return jcase_cased(cp) || (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30a1 && cp <= 0x30fa) ||
           (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0xac00 && cp <= 0xd7a3);
}

/* The is...() family: what every character must be. */
static int all_chars(struct jrt *rt, const struct jval *self, const struct jcall *args, const char *what,
                     int (*is)(int), struct jval *ret)
{
    bool all = self->len > 0;
    int r = none_wanted(rt, args, what);
    if (r >= 0)
        r = jcharge(rt, self->len / 2);
    for (size_t i = 0; r >= 0 && all && i < self->len; i++) {
        uint32_t cp = 0;
        size_t n = utf8_decode(self->s + i, self->len - i, &cp);
        i += n ? n - 1 : 0;
        if (cp < 0x80)
            all = is((int)cp) != 0;
        else if (jis_space(cp))
            all = false;
        else if (is_letter(cp))
            all = is('a') != 0;
        else
            return jfail(rt, "%s does not know the character U+%04X", what, cp);
    }
    *ret = jbool(all);
    return r;
}

METHOD(m_isdigit)
{
    return all_chars(rt, self, args, "isdigit()", isdigit, ret);
}

METHOD(m_isalpha)
{
    return all_chars(rt, self, args, "isalpha()", isalpha, ret);
}

METHOD(m_isalnum)
{
    return all_chars(rt, self, args, "isalnum()", isalnum, ret);
}

METHOD(m_isspace)
{
    struct jval rest = jstr_strip(self, NULL, JS_LEFT);
    int r = none_wanted(rt, args, "isspace()");
    *ret = jbool(self->len > 0 && rest.len == 0);
    return r < 0 ? r : jcharge(rt, (self->len - rest.len) / 8);
}

static int case_test(struct jrt *rt, const struct jval *self, const struct jcall *args, const char *test,
                     struct jval *ret)
{
    int r = jtest_apply(rt, jtest_find(test, 5), self, args);
    *ret = jbool(r == 1);
    return r < 0 ? r : 0;
}

METHOD(m_isupper)
{
    return case_test(rt, self, args, "upper", ret);
}

METHOD(m_islower)
{
    return case_test(rt, self, args, "lower", ret);
}

/* ---- dicts and lists */

METHOD(m_get)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    if (args->nkw > 0)
        return jfail(rt, "get() takes no keyword arguments");
    int r = jbind(rt, args, "get()", "key default", 1, a, have);
    if (r >= 0 && !jhashable(&a[0]))
        return jfail(rt, "a %s cannot be the key of a dict", jtype_name(&a[0]));
    if (r >= 0)
        r = jdict_get(rt, self, &a[0], ret);
    if (r == 0)
        *ret = a[1];
    return r < 0 ? r : 0;
}

static int view(struct jrt *rt, const struct jval *self, const struct jcall *args, enum jview which,
                struct jval *ret)
{
    *ret = *self;
    ret->flags = self->type == J_JDICT ? JF_JSON : 0;
    ret->type = J_VIEW;
    ret->aux = (uint16_t)which;
    return none_wanted(rt, args, "keys(), values() or items()");
}

METHOD(m_keys)
{
    return view(rt, self, args, JV_KEYS, ret);
}

METHOD(m_values)
{
    return view(rt, self, args, JV_VALUES, ret);
}

METHOD(m_items)
{
    return view(rt, self, args, JV_ITEMS, ret);
}

METHOD(m_copy)
{
    *ret = *self;
    return none_wanted(rt, args, "copy()");
}

METHOD(m_seq_count)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int64_t n = 0;
    int r = jbind(rt, args, "count()", "value", 1, a, have);
    for (size_t i = 0; r >= 0 && i < self->len; i++) {
        struct jval item = jseq_get(self, i);
        r = jcharge(rt, 1);
        if (r >= 0)
            r = jequal(rt, &item, &a[0]);
        n += r == 1;
    }
    *ret = jint(n);
    return r < 0 ? r : 0;
}

METHOD(m_seq_index)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "index()", "value", 1, a, have);
    for (size_t i = 0; r >= 0 && i < self->len; i++) {
        struct jval item = jseq_get(self, i);
        r = jcharge(rt, 1);
        if (r >= 0)
            r = jequal(rt, &item, &a[0]);
        if (r == 1) {
            *ret = jint((int64_t)i);
            return 0;
        }
    }
    return r < 0 ? r : jfail(rt, "index() did not find the value");
}

enum { OF_STR = 1, OF_DICT = 2, OF_LIST = 4, OF_TUPLE = 8, OF_RANGE = 16 };

static const struct {
    const char *name;
    method_fn *fn;
    unsigned of;
} methods[] = {
    { "capitalize", m_capitalize, OF_STR },
    { "center", m_center, OF_STR },
    { "count", m_count, OF_STR },
    { "endswith", m_endswith, OF_STR },
    { "find", m_find, OF_STR },
    { "format", m_format, OF_STR },
    { "index", m_index, OF_STR },
    { "isalnum", m_isalnum, OF_STR },
    { "isalpha", m_isalpha, OF_STR },
    { "isdecimal", m_isdigit, OF_STR },
    { "isdigit", m_isdigit, OF_STR },
    { "islower", m_islower, OF_STR },
    { "isnumeric", m_isdigit, OF_STR },
    { "isspace", m_isspace, OF_STR },
    { "isupper", m_isupper, OF_STR },
    { "join", m_join, OF_STR },
    { "ljust", m_ljust, OF_STR },
    { "lower", m_lower, OF_STR },
    { "lstrip", m_lstrip, OF_STR },
    { "partition", m_partition, OF_STR },
    { "removeprefix", m_removeprefix, OF_STR },
    { "removesuffix", m_removesuffix, OF_STR },
    { "replace", m_replace, OF_STR },
    { "rfind", m_rfind, OF_STR },
    { "rindex", m_rindex, OF_STR },
    { "rjust", m_rjust, OF_STR },
    { "rpartition", m_rpartition, OF_STR },
    { "rsplit", m_rsplit, OF_STR },
    { "rstrip", m_rstrip, OF_STR },
    { "split", m_split, OF_STR },
    { "splitlines", m_splitlines, OF_STR },
    { "startswith", m_startswith, OF_STR },
    { "strip", m_strip, OF_STR },
    { "swapcase", m_swapcase, OF_STR },
    { "title", m_title, OF_STR },
    { "upper", m_upper, OF_STR },
    { "zfill", m_zfill, OF_STR },
    { "get", m_get, OF_DICT },
    { "keys", m_keys, OF_DICT },
    { "values", m_values, OF_DICT },
    { "items", m_items, OF_DICT },
    { "copy", m_copy, OF_DICT | OF_LIST },
    { "count", m_seq_count, OF_LIST | OF_TUPLE | OF_RANGE },
    { "index", m_seq_index, OF_LIST | OF_TUPLE | OF_RANGE },
};

bool jmethod_find(const struct jval *v, const char *name, size_t len, uint16_t *ret_which)
{
    unsigned of = jis_seq(v) ? OF_LIST : jis_dict(v) ? OF_DICT : 0;
    if (v->type == J_STR)
        of = OF_STR;
    else if (v->type == J_TUPLE)
        of = OF_TUPLE;
    else if (v->type == J_RANGE)
        of = OF_RANGE;
    for (uint16_t i = 0; of && i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].of & of && methods[i].name[0] == (len ? name[0] : 0) &&
            strlen(methods[i].name) == len && memcmp(methods[i].name, name, len) == 0) {
            *ret_which = i;
            return true;
        }
    }
    return false;
}

int jmethod_call(struct jrt *rt, const struct jval *self, uint16_t which, const struct jcall *args,
                 struct jval *ret)
{
    struct jval v = *self; /* ret may be self */
    return methods[which].fn(rt, &v, args, ret);
}
