/* Values as text: Python's str() and repr(), concatenation, HTML escapes for |e.
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shortest decimal that reads back as the same double, laid out as Python does. The C locale is taken for
 * granted. */
size_t jfloat_repr(double f, char dst[40])
{
    char text[40], *e;
    if (isnan(f))
        return (size_t)snprintf(dst, 40, "nan");
    if (isinf(f))
        return (size_t)snprintf(dst, 40, f < 0 ? "-inf" : "inf");
    /* 15 digits hold every decimal that short, so the shortest is among 15, 16 and 17 less their zeros; the
     * subnormals have fewer digits than that. */
    for (int digits = fabs(f) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, f);
        if (strtod(text, NULL) == f)
            break;
    }
    e = strchr(text, 'e');
    int exp = atoi(e + 1);
    *e = '\0';
    size_t n = 0, sign = text[0] == '-';
    /* digits without the point, then the point where the exponent puts it */
    char digits[32];
    size_t nd = 0;
    for (char *c = text + sign; *c; c++)
        if (*c != '.')
            digits[nd++] = *c;
    while (nd > 1 && digits[nd - 1] == '0')
        nd--;
    if (sign)
        dst[n++] = '-';
    if (exp < -4 || exp >= 16) {
        n += (size_t)snprintf(dst + n, 40 - n, "%c%s%.*s", digits[0], nd > 1 ? "." : "", (int)nd - 1,
                              digits + 1);
        return n + (size_t)snprintf(dst + n, 40 - n, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
    }
    if (exp < 0) {
        n += (size_t)snprintf(dst + n, 40 - n, "0.%.*s%.*s", -exp - 1, "0000", (int)nd, digits);
        return n;
    }
    for (size_t i = 0; i <= (size_t)exp; i++)
        dst[n++] = i < nd ? digits[i] : '0';
    dst[n++] = '.';
    if (nd <= (size_t)exp + 1)
        dst[n++] = '0';
    for (size_t i = (size_t)exp + 1; i < nd; i++)
        dst[n++] = digits[i];
    dst[n] = '\0';
    return n;
}

/* ---- repr */

/* What Python's repr() writes as an escape: control, format, private and separator characters. Code points
 * that no version of Unicode has assigned are taken for printable. */
static bool printable(uint32_t cp)
{
    static const uint32_t ranges[][2] = {
        { 0x7f, 0xa0 },        { 0xad, 0xad },       { 0x600, 0x605 },     { 0x61c, 0x61c },
        { 0x6dd, 0x6dd },      { 0x70f, 0x70f },     { 0x890, 0x891 },     { 0x8e2, 0x8e2 },
        { 0x1680, 0x1680 },    { 0x180e, 0x180e },   { 0x2000, 0x200f },   { 0x2028, 0x202f },
        { 0x205f, 0x206f },    { 0x3000, 0x3000 },   { 0xd800, 0xf8ff },   { 0xfeff, 0xfeff },
        { 0xfff0, 0xfffb },    { 0xfffe, 0xffff },   { 0x110bd, 0x110bd }, { 0x110cd, 0x110cd },
        { 0x13430, 0x1343f },  { 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a }, { 0xe0000, 0xe00ff },
        { 0xe01f0, 0x10ffff },
    };
    if (cp < 0x20)
        return false;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (cp >= ranges[i][0] && cp <= ranges[i][1])
            return false;
    return true;
}

static void repr_char(struct jrt *rt, const char *s, size_t n, uint32_t cp, char quote)
{
    static const char names[] = "\n\r\t", codes[] = "nrt";
    const char *named = cp < 0x80 && cp ? strchr(names, (int)cp) : NULL;
    if (named) {
        buf_printf(&rt->out, "\\%c", codes[named - names]);
    } else if (cp == '\\' || cp == (unsigned char)quote) {
        buf_putc(&rt->out, '\\');
        buf_putc(&rt->out, (char)cp);
    } else if (printable(cp)) {
        buf_append(&rt->out, s, n);
    } else {
        jout_hex(rt,
                 cp < 0x100     ? "\\x"
                 : cp < 0x10000 ? "\\u"
                                : "\\U",
                 cp,
                 cp < 0x100     ? 2
                 : cp < 0x10000 ? 4
                                : 8,
                 false);
    }
}

static int repr_str(struct jrt *rt, const struct jval *v)
{
    bool single = v->len && memchr(v->s, '\'', v->len), dbl = v->len && memchr(v->s, '"', v->len);
    char quote = single && !dbl ? '"' : '\'';
    int r = jcharge(rt, 2 + v->len / 2);
    if (r < 0)
        return r;
    if (v->flags & JF_MARKUP)
        buf_puts(&rt->out, "Markup(");
    buf_putc(&rt->out, quote);
    for (size_t i = 0; i < v->len;) {
        size_t run = i;
        while (run < v->len && v->s[run] >= 0x20 && v->s[run] < 0x7f && v->s[run] != '\\' &&
               v->s[run] != quote)
            run++;
        buf_append(&rt->out, v->s + i, run - i);
        i = run;
        if (i == v->len)
            break;
        uint32_t cp = 0;
        unsigned n = utf8_decode(v->s + i, v->len - i, &cp);
        repr_char(rt, v->s + i, n ? n : 1, cp, quote);
        i += n ? n : 1;
    }
    buf_putc(&rt->out, quote);
    if (v->flags & JF_MARKUP)
        buf_putc(&rt->out, ')');
    return jout_check(rt);
}

static int repr_seq(struct jrt *rt, const struct jval *v)
{
    bool tuple = v->type == J_TUPLE;
    int r = jout(rt, tuple ? "(" : "[", 1);
    for (size_t i = 0; r >= 0 && i < v->len; i++) {
        struct jval item = jseq_get(v, i);
        if (i > 0)
            r = jout(rt, ", ", 2);
        if (r >= 0)
            r = jwrite_repr(rt, &item);
    }
    if (r >= 0 && tuple && v->len == 1)
        r = jout(rt, ",", 1);
    return r < 0 ? r : jout(rt, tuple ? ")" : "]", 1);
}

static int repr_dict(struct jrt *rt, const struct jval *v)
{
    struct jiter it;
    struct jval k, item;
    int r = jout(rt, "{", 1);
    if (r >= 0)
        r = jiter_init(rt, &it, v);
    for (bool first = true; r >= 0 && (r = jiter_pair(rt, &it, &k, &item)) == 1; first = false) {
        r = first ? 0 : jout(rt, ", ", 2);
        if (r >= 0)
            r = jwrite_repr(rt, &k);
        if (r >= 0)
            r = jout(rt, ": ", 2);
        if (r >= 0)
            r = jwrite_repr(rt, &item);
    }
    return r < 0 ? r : jout(rt, "}", 1);
}

static int repr_view(struct jrt *rt, const struct jval *v)
{
    struct jval list = { .type = J_LIST };
    buf_printf(&rt->out, "%s(", jtype_name(v));
    int r = jcollect(rt, v, &list.items, &list.len);
    if (r >= 0)
        r = repr_seq(rt, &list);
    return r < 0 ? r : jout(rt, ")", 1);
}

static int repr_namespace(struct jrt *rt, const struct jval *v)
{
    struct jval d = *v;
    d.type = J_DICT;
    int r = jout(rt, "<Namespace ", 11);
    if (r >= 0)
        r = repr_dict(rt, &d);
    return r < 0 ? r : jout(rt, ">", 1);
}

static int write_other(struct jrt *rt, const struct jval *v)
{
    const struct jrange *g;
    switch (v->type) {
    case J_RANGE:
        g = v->range;
        buf_printf(&rt->out, "range(%lld, %lld", (long long)g->start, (long long)g->stop);
        if (g->step != 1)
            buf_printf(&rt->out, ", %lld", (long long)g->step);
        buf_putc(&rt->out, ')');
        break;
    case J_MACRO:
        if (v->macro->node->name)
            buf_printf(&rt->out, "<Macro '%s'>", v->macro->node->name->text);
        else
            buf_puts(&rt->out, "<Macro anonymous>");
        break;
    case J_LOOP:
        buf_printf(&rt->out, "<LoopContext %zu>", v->loop->index0 + 1);
        break;
    default:
        buf_printf(&rt->out, "<%s object>", jtype_name(v));
        break;
    }
    return jout_check(rt);
}

static int write_plain(struct jrt *rt, const struct jval *v)
{
    char text[40];
    int r;
    switch (v->type) {
    case J_NONE:
        return jout(rt, "None", 4);
    case J_BOOL:
        return v->i ? jout(rt, "True", 4) : jout(rt, "False", 5);
    case J_INT:
        r = jcharge(rt, 3);
        return r < 0 ? r : jout(rt, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)v->i));
    case J_FLOAT:
        r = jcharge(rt, 80);
        return r < 0 ? r : jout(rt, text, jfloat_repr(v->f, text));
    case J_LIST:
    case J_TUPLE:
    case J_JLIST:
        return repr_seq(rt, v);
    case J_DICT:
    case J_JDICT:
        return repr_dict(rt, v);
    case J_VIEW:
        return repr_view(rt, v);
    case J_NS:
        return repr_namespace(rt, v);
    default:
        return write_other(rt, v);
    }
}

int jwrite_repr(struct jrt *rt, const struct jval *v)
{
    if (v->type == J_UNDEF)
        return jout(rt, "Undefined", 9);
    if (v->type == J_STR)
        return repr_str(rt, v);
    int r = jenter(rt);
    if (r < 0)
        return r;
    r = write_plain(rt, v);
    rt->depth--;
    return r;
}

/* ---- str */

int jwrite_str(struct jrt *rt, const struct jval *v)
{
    if (v->type == J_STR)
        return jout(rt, v->s, v->len);
    return v->type == J_UNDEF ? 0 : jwrite_repr(rt, v);
}

int jstr_of(struct jrt *rt, const struct jval *v, struct jval *ret)
{
    if (v->type == J_STR) {
        *ret = *v;
        return 0;
    }
    if (v->type == J_UNDEF) {
        *ret = jstr("", 0);
        return 0;
    }
    size_t start = rt->out.len;
    int r = jwrite_repr(rt, v);
    return r < 0 ? r : jcapture(rt, start, ret);
}

int jwrite_escaped(struct jrt *rt, const struct jval *v)
{
    static const char special[] = "&<>'\"";
    static const char *const names[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    struct jval s;
    int r = jstr_of(rt, v, &s);
    if (r < 0 || s.flags & JF_MARKUP)
        return r < 0 ? r : jout(rt, s.s, s.len);
    r = jcharge(rt, s.len / 2);
    for (size_t i = 0; r >= 0 && i < s.len; i++) {
        const char *which = s.s[i] ? strchr(special, s.s[i]) : NULL;
        if (which)
            buf_puts(&rt->out, names[which - special]);
        else
            buf_putc(&rt->out, s.s[i]);
    }
    return r < 0 ? r : jout_check(rt);
}

/* ---- concatenation
 *
 * Texts are built piece by piece (ns.text = ns.text ~ part), which would cost the square of their length. A
 * long result therefore lies at the start of a block with room behind it; adding to it again, when nobody has
 * added to it in between, writes into that room and shares the beginning, which never changes. */

struct grow {
    size_t used, cap;
    char text[];
};

#define GROW_FROM 128

static bool extend(struct jval *left, const struct jval *parts, size_t n, size_t more)
{
    if (!(left->flags & JF_GROW))
        return false;
    struct grow *g = (struct grow *)(uintptr_t)(left->s - offsetof(struct grow, text));
    if (g->used != left->len || g->cap - g->used < more)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].len)
            memcpy(g->text + g->used, parts[i].s, parts[i].len);
        g->used += parts[i].len;
    }
    left->len = g->used;
    return true;
}

static int concat_new(struct jrt *rt, const struct jval *parts, size_t n, size_t len, struct jval *ret)
{
    bool grows = len >= GROW_FROM;
    size_t cap = !grows ? len : len < (1u << 20) ? len * 2 : len + len / 2;
    struct grow *g = jalloc(rt, cap + (grows ? sizeof *g : 1), 1);
    if (!g)
        return jnomem(rt);
    char *text = grows ? g->text : (char *)g, *dst = text;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].len)
            memcpy(dst, parts[i].s, parts[i].len);
        dst += parts[i].len;
    }
    if (grows)
        *g = (struct grow){ .used = len, .cap = cap };
    *ret = jstr(text, len);
    ret->flags = grows ? JF_ARENA | JF_GROW : JF_ARENA;
    return 0;
}

int jstr_concat(struct jrt *rt, const struct jval *parts, size_t n, struct jval *ret)
{
    size_t len = 0, more = 0;
    for (size_t i = 0; i < n; i++)
        len += parts[i].len;
    if (n > 0)
        more = len - parts[0].len;
    if (len > JINJA_MAX_MEMORY) {
        rt->mem.full = true;
        return jnomem(rt);
    }
    if (n > 0 && more == 0) {
        *ret = parts[0];
        ret->flags &= (uint8_t)~JF_MARKUP;
        return 0;
    }
    struct jval left = n > 0 ? parts[0] : jstr("", 0);
    if (extend(&left, parts + 1, n ? n - 1 : 0, more)) {
        left.flags &= (uint8_t)~JF_MARKUP;
        *ret = left;
        return jcharge(rt, more / 64);
    }
    int r = jcharge(rt, len / 64);
    return r < 0 ? r : concat_new(rt, parts, n, len, ret);
}
