/* Formatting: Python's "..." % values and "...".format(values).
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* How one value is laid out; both syntaxes are read into this. */
struct spec {
    char fill[4];
    unsigned fill_len;
    char align; /* < > = ^ or 0 */
    char sign;  /* + - space or 0 */
    bool alt, comma, underscore;
    char type;                /* 0: none given */
    int64_t width, precision; /* precision -1: none */
};

#define MAX_WIDTH 100000

static int pad(struct jrt *rt, const struct spec *s, int64_t n)
{
    int r = 0;
    for (int64_t i = 0; r >= 0 && i < n; i++)
        r = jout(rt, s->fill, s->fill_len);
    return r;
}

/* Writes `prefix` (sign, 0x) and body with padding; width counts characters. */
static int lay_out(struct jrt *rt, const struct spec *s, char dflt, const char *prefix, const char *body,
                   size_t len)
{
    char align = s->align ? s->align : dflt;
    int64_t have = (int64_t)(strlen(prefix) + jstr_count(body, len));
    int64_t room = s->width > have ? s->width - have : 0, left = 0;
    if (align == '>')
        left = room;
    else if (align == '^')
        left = room / 2;
    int r = jcharge(rt, (size_t)room / 4);
    if (r >= 0 && align != '=')
        r = pad(rt, s, left);
    if (r >= 0)
        r = jout(rt, prefix, strlen(prefix));
    if (r >= 0 && align == '=')
        r = pad(rt, s, room);
    if (r >= 0)
        r = jout(rt, body, len);
    return r >= 0 && align != '=' ? pad(rt, s, room - left) : r;
}

static const char *sign_of(const struct spec *s, bool negative)
{
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

/* Puts separators between groups of digits; text has room. */
static size_t group(char *text, size_t len, unsigned every, char sep)
{
    size_t digits = 0;
    while (digits < len && isxdigit((unsigned char)text[digits]))
        digits++;
    if (digits == 0)
        return len;
    size_t more = (digits - 1) / every;
    memmove(text + digits + more, text + digits, len - digits);
    for (size_t from = digits, to = digits + more, n = 0; from > 0; n++) {
        if (n > 0 && n % every == 0)
            text[--to] = sep;
        text[--to] = text[--from];
    }
    return len + more;
}

static int format_int(struct jrt *rt, const struct spec *s, int64_t v)
{
    static const char digits[] = "0123456789abcdef";
    char text[160], prefix[8];
    size_t at = sizeof text / 2, end = at;
    char type = (char)tolower((unsigned char)s->type);
    unsigned base = type == 'x' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        text[--at] = digits[u % base];
        u /= base;
    } while (u > 0);
    size_t len = end - at;
    memmove(text, text + at, len);
    for (size_t i = 0; s->type == 'X' && i < len; i++)
        text[i] = (char)toupper((unsigned char)text[i]);
    if (s->comma || s->underscore)
        len = group(text, len, base == 10 ? 3 : 4, s->comma ? ',' : '_');
    snprintf(prefix, sizeof prefix, "%s%s", sign_of(s, v < 0),
             s->alt && base != 10 ? (const char[]){ '0', s->type, '\0' } : "");
    return lay_out(rt, s, '>', prefix, text, len);
}

static int format_float(struct jrt *rt, const struct spec *s, double f)
{
    char text[900];
    double a = signbit(f) ? -f : f;
    int precision = (int)(s->precision < 0 ? 6 : s->precision > 400 ? 400 : s->precision);
    size_t len;
    if (s->precision > 400)
        return jfail(rt, "a precision above 400");
    if (!isfinite(f)) {
        len = (size_t)snprintf(text, sizeof text, "%s", isnan(f) ? "nan" : "inf");
        for (size_t i = 0; isupper((unsigned char)s->type) && i < len; i++)
            text[i] = (char)toupper((unsigned char)text[i]);
    } else if (s->type == 0 && s->precision < 0) {
        len = jfloat_repr(a, text);
    } else {
        char type = s->type == '%' ? 'f' : s->type ? s->type : 'g';
        char fmt[] = { '%', '#', '.', '*', type, '\0' }, *from = fmt;
        if (!s->alt) {
            fmt[1] = '%';
            from++;
        }
        a = s->type == '%' ? a * 100 : a;
        len = (size_t)snprintf(text, sizeof text, from, type == 'g' && precision == 0 ? 1 : precision, a);
        if (s->type == 0 && !strpbrk(text, ".e"))
            len += (size_t)snprintf(text + len, sizeof text - len, ".0");
        if (s->type == '%')
            len += (size_t)snprintf(text + len, sizeof text - len, "%%");
    }
    if ((s->comma || s->underscore) && isfinite(f))
        len = group(text, len, 3, s->comma ? ',' : '_');
    int r = jcharge(rt, 50);
    return r < 0 ? r : lay_out(rt, s, '>', sign_of(s, signbit(f) && !isnan(f)), text, len);
}

static int format_text(struct jrt *rt, const struct spec *s, const struct jval *v)
{
    struct jval t;
    int r = jstr_of(rt, v, &t);
    if (r < 0)
        return r;
    size_t len = s->precision >= 0 ? jstr_offset(t.s, t.len, (size_t)s->precision) : t.len;
    return lay_out(rt, s, '<', "", t.s, len);
}

static int repr_of(struct jrt *rt, const struct jval *v, struct jval *ret)
{
    size_t start = rt->out.len;
    int r = jwrite_repr(rt, v);
    return r < 0 ? r : jcapture(rt, start, ret);
}

/* ---- % */

struct reader {
    const char *p, *end;
};

static int read_number(struct jrt *rt, struct reader *in, int64_t *ret)
{
    int64_t n = 0;
    for (; in->p < in->end && isdigit((unsigned char)*in->p); in->p++) {
        n = n * 10 + (*in->p - '0');
        if (n > MAX_WIDTH)
            return jfail(rt, "a width or precision above %d in a format", MAX_WIDTH);
    }
    *ret = n;
    return 0;
}

struct percent_args {
    const struct jval *args; /* what stands behind % */
    size_t used, n;
    bool mapping;
};

static int next_value(struct jrt *rt, struct percent_args *a, struct jval *ret)
{
    if (a->used >= a->n)
        return jfail(rt, "not enough values for the format");
    *ret = a->args->type == J_TUPLE ? a->args->items[a->used] : *a->args;
    a->used++;
    return 0;
}

static int star_or_number(struct jrt *rt, struct reader *in, struct percent_args *a, int64_t *ret)
{
    struct jval v = { .type = J_NONE };
    if (in->p == in->end || *in->p != '*')
        return read_number(rt, in, ret);
    in->p++;
    int r = next_value(rt, a, &v);
    if (r >= 0 && v.type != J_INT)
        return jfail(rt, "* in a format wants an integer");
    if (r >= 0 && (v.i > MAX_WIDTH || v.i < -MAX_WIDTH))
        return jfail(rt, "a width or precision above %d in a format", MAX_WIDTH);
    *ret = r < 0 ? 0 : v.i;
    return r;
}

/* %[(key)][flags][width][.precision]type, behind the % */
static int read_percent(struct jrt *rt, struct reader *in, struct percent_args *a, struct spec *s,
                        struct jval *key)
{
    *s = (struct spec){ .fill = " ", .fill_len = 1, .align = '>', .precision = -1 };
    key->type = J_MISSING;
    if (in->p < in->end && *in->p == '(') {
        const char *close = memchr(in->p, ')', (size_t)(in->end - in->p));
        if (!close)
            return jfail(rt, "a key without ) in a format");
        *key = jstr(in->p + 1, (size_t)(close - in->p - 1));
        in->p = close + 1;
    }
    bool zero = false, left = false;
    for (; in->p < in->end && strchr("-+ #0", *in->p) && *in->p; in->p++) {
        zero |= *in->p == '0';
        left |= *in->p == '-';
        s->alt |= *in->p == '#';
        if (*in->p == '+' || (*in->p == ' ' && !s->sign))
            s->sign = *in->p;
    }
    int r = star_or_number(rt, in, a, &s->width);
    if (r >= 0 && s->width < 0) {
        left = true;
        s->width = -s->width;
    }
    if (r >= 0 && in->p < in->end && *in->p == '.') {
        in->p++;
        r = star_or_number(rt, in, a, &s->precision);
        if (s->precision < 0)
            s->precision = 0;
    }
    while (in->p < in->end && strchr("hlL", *in->p) && *in->p)
        in->p++;
    if (r >= 0 && in->p == in->end)
        return jfail(rt, "a format ends in the middle of a %% place");
    if (r < 0)
        return r;
    s->type = *in->p++;
    s->align = left ? '<' : zero && !strchr("srac", s->type) ? '=' : '>';
    if (s->align == '=')
        s->fill[0] = '0';
    return 0;
}

static int percent_number(struct jrt *rt, struct spec *s, const struct jval *v)
{
    int64_t i = v->i;
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    if (!jis_number(v))
        return jfail(rt, "%%%c wants a number, not %s", s->type, jtype_name(v));
    if (strchr("eEfFgG", s->type))
        return format_float(rt, s, jnum_of(v));
    if (v->type == J_FLOAT && (strchr("oxX", s->type) || !jfit_int(v->f, &i)))
        return jfail(rt, "%%%c wants an integer", s->type);
    s->type = strchr("diu", s->type) ? 'd' : s->type;
    return format_int(rt, s, i);
}

static int percent_value(struct jrt *rt, struct spec *s, const struct jval *v)
{
    struct jval t;
    char c[4];
    switch (s->type) {
    case 's':
        return format_text(rt, s, v);
    case 'r':
    case 'a':
        return repr_of(rt, v, &t) < 0 ? -EINVAL : format_text(rt, s, &t);
    case 'c':
        s->precision = -1;
        if (v->type == J_STR && jstr_count(v->s, v->len) == 1)
            return format_text(rt, s, v);
        if (v->type != J_INT || v->i < 0 || v->i > 0x10ffff || (v->i >= 0xd800 && v->i < 0xe000))
            return jfail(rt, "%%c wants a character");
        t = jstr(c, utf8_encode((uint32_t)v->i, c));
        return format_text(rt, s, &t);
    default:
        if (s->type && strchr("diuoxXeEfFgG", s->type))
            return percent_number(rt, s, v);
        return jfail(rt, "a format with the unknown type '%c'",
                     isprint((unsigned char)s->type) ? s->type : '?');
    }
}

static int percent_place(struct jrt *rt, struct reader *in, struct percent_args *a, bool markup)
{
    struct spec s;
    struct jval v, key;
    int r = read_percent(rt, in, a, &s, &key);
    if (r < 0)
        return r;
    if (s.type == '%')
        return jout(rt, "%", 1);
    if (key.type != J_MISSING) {
        if (!a->mapping)
            return jfail(rt, "a format with names wants a dict");
        r = jdict_get(rt, a->args, &key, &v);
        if (r == 0)
            return jfail(rt, "the dict has no '%.*s', which the format wants",
                         (int)(key.len < 60 ? key.len : 60), key.s);
    } else {
        r = next_value(rt, a, &v);
    }
    if (r >= 0 && markup && s.type == 's') {
        size_t start = rt->out.len;
        r = jwrite_escaped(rt, &v);
        if (r >= 0)
            r = jcapture(rt, start, &v);
    }
    return r < 0 ? r : percent_value(rt, &s, &v);
}

int jformat_percent(struct jrt *rt, const struct jval *fmt, const struct jval *args, struct jval *ret)
{
    struct reader in = { fmt->s, fmt->s + fmt->len };
    struct percent_args a = { .args = args,
                              .n = args->type == J_TUPLE ? args->len : 1,
                              .mapping = jis_dict(args) };
    size_t start = rt->out.len;
    int r = 0;
    while (r >= 0 && in.p < in.end) {
        const char *mark = memchr(in.p, '%', (size_t)(in.end - in.p));
        r = jout(rt, in.p, (size_t)((mark ? mark : in.end) - in.p));
        in.p = mark ? mark + 1 : in.end;
        if (r >= 0 && mark)
            r = jcharge(rt, 1);
        if (r >= 0 && mark)
            r = percent_place(rt, &in, &a, fmt->flags & JF_MARKUP);
    }
    /* Python takes whatever has [ ] for a dict here, and dicts may go unused */
    bool indexed = a.mapping || args->type == J_LIST || args->type == J_JLIST || args->type == J_RANGE ||
                   args->type == J_UNDEF;
    if (r >= 0 && a.used < a.n && !indexed)
        return jfail(rt, "more values than the format has places");
    if (r >= 0)
        r = jcapture(rt, start, ret);
    if (r >= 0)
        ret->flags |= fmt->flags & JF_MARKUP;
    return r;
}

/* ---- {} */

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static int read_spec(struct jrt *rt, struct reader *in, struct spec *s)
{
    size_t left = (size_t)(in->end - in->p);
    *s = (struct spec){ .fill = " ", .fill_len = 1, .precision = -1 };
    size_t first = jstr_offset(in->p, left, 1);
    if (first < left && strchr("<>=^", in->p[first]) && in->p[first]) {
        memcpy(s->fill, in->p, first);
        s->fill_len = (unsigned)first;
        s->align = in->p[first];
        in->p += first + 1;
    } else if (left && strchr("<>=^", *in->p) && *in->p) {
        s->align = *in->p++;
    }
    if (in->p < in->end && strchr("+- ", *in->p) && *in->p)
        s->sign = *in->p++;
    if (in->p < in->end && *in->p == '#') {
        s->alt = true;
        in->p++;
    }
    if (in->p < in->end && *in->p == '0') {
        if (!s->align) {
            s->align = '=';
            s->fill[0] = '0';
        }
        in->p++;
    }
    int r = read_number(rt, in, &s->width);
    if (r >= 0 && in->p < in->end && (*in->p == ',' || *in->p == '_')) {
        s->comma = *in->p == ',';
        s->underscore = !s->comma;
        in->p++;
    }
    if (r >= 0 && in->p < in->end && *in->p == '.') {
        in->p++;
        r = read_number(rt, in, &s->precision);
    }
    if (r >= 0 && in->p < in->end)
        s->type = *in->p++;
    if (r >= 0 && in->p < in->end)
        return jfail(rt, "a format that cannot be read: '%.*s'", (int)(left < 60 ? left : 60),
                     in->end - left);
    return r;
}

static int brace_value(struct jrt *rt, struct spec *s, const struct jval *v)
{
    bool given = s->width || s->precision >= 0 || s->type || s->align || s->sign || s->alt || s->comma;
    if (v->type == J_UNDEF && given)
        return jundef_fail(rt, v);
    if (v->type == J_STR || (v->type == J_BOOL && !s->type && !given) || !jis_number(v)) {
        if (v->type != J_STR && given)
            return jfail(rt, "a %s takes no format", jtype_name(v));
        if ((s->type && s->type != 's') || s->sign || s->align == '=' || s->comma)
            return jfail(rt, "a format for numbers on text");
        return format_text(rt, s, v);
    }
    if (s->type && strchr("eEfFgG%", s->type))
        return format_float(rt, s, jnum_of(v));
    if (v->type == J_FLOAT && (s->type == 0 || s->type == 'n'))
        return format_float(rt, s, v->f);
    if (v->type == J_FLOAT || (s->type && !strchr("dxXobn", s->type)) || s->precision >= 0)
        return jfail(rt, "the format '%c' does not fit a %s", s->type ? s->type : '.', jtype_name(v));
    return format_int(rt, s, v->i);
}

struct brace_args {
    const struct jcall *call;
    uint32_t next;
    bool automatic, numbered;
};

static int named_field(struct jrt *rt, struct brace_args *a, const char *name, size_t len, struct jval *ret)
{
    struct jval text = jstr(name, len);
    int64_t i;
    bool number = len > 0 && isdigit((unsigned char)name[0]) && jparse_int(&text, 10, &i);
    if (len == 0 || number) {
        a->automatic |= len == 0;
        a->numbered |= len > 0;
        if (a->automatic && a->numbered)
            return jfail(rt, "a format with places both numbered and not");
        i = number ? i : a->next++;
        if (i >= a->call->npos)
            return jfail(rt, "not enough values for the format");
        *ret = a->call->pos[i];
        return 0;
    }
    for (uint32_t k = 0; k < a->call->nkw; k++) {
        const struct jval *n = &a->call->kwnames[k];
        if (n->len == len && memcmp(n->s, name, len) == 0) {
            *ret = a->call->kw[k];
            return 0;
        }
    }
    return jfail(rt, "no value named '%.*s' for the format", (int)(len < 60 ? len : 60), name);
}

/* name, then .attribute and [item] as often as they come */
static int field_value(struct jrt *rt, struct brace_args *a, struct reader *in, struct jval *ret)
{
    const char *start = in->p;
    while (in->p < in->end && *in->p != '.' && *in->p != '[')
        in->p++;
    int r = named_field(rt, a, start, (size_t)(in->p - start), ret);
    while (r >= 0 && in->p < in->end) {
        bool attr = *in->p++ == '.';
        start = in->p;
        while (in->p < in->end && (attr ? *in->p != '.' && *in->p != '[' : *in->p != ']'))
            in->p++;
        struct jval of = *ret, key = jstr(start, (size_t)(in->p - start));
        int64_t i;
        if (!attr && in->p++ >= in->end)
            return jfail(rt, "an item without ] in a format");
        if (attr) {
            r = jgetattr(rt, &of, key.s, key.len, ret);
        } else {
            if (jparse_int(&key, 10, &i))
                key = jint(i);
            r = jgetitem(rt, &of, &key, ret);
        }
    }
    return r;
}

/* Up to the } that closes the place; nested {} may only stand in the format behind the colon. */
static const char *place_end(const char *p, const char *end)
{
    unsigned depth = 1;
    for (; p < end; p++) {
        depth += *p == '{';
        depth -= *p == '}';
        if (depth == 0)
            return p;
    }
    return NULL;
}

static int expand(struct jrt *rt, struct brace_args *a, struct reader *in, unsigned level);

static int brace_place(struct jrt *rt, struct brace_args *a, const char *p, const char *end, unsigned level)
{
    const char *colon = memchr(p, ':', (size_t)(end - p)), *head_end = colon ? colon : end;
    const char *bang = memchr(p, '!', (size_t)(head_end - p));
    struct reader field = { p, bang ? bang : head_end };
    struct jval v, t;
    struct spec s;
    int r = field_value(rt, a, &field, &v);
    if (r >= 0 && bang) {
        if (head_end - bang != 2 || !strchr("rsa", bang[1]))
            return jfail(rt, "a format with a conversion that is not !r, !s or !a");
        r = bang[1] == 's' ? jstr_of(rt, &v, &t) : repr_of(rt, &v, &t);
        v = r < 0 ? v : t;
    }
    if (r < 0)
        return r;
    size_t start = rt->out.len;
    struct reader spec = { colon ? colon + 1 : end, end };
    t = jstr("", 0);
    if (spec.p < spec.end) {
        r = expand(rt, a, &spec, level + 1);
        if (r >= 0)
            r = jcapture(rt, start, &t);
    }
    spec = (struct reader){ t.s, t.s + t.len };
    if (r >= 0)
        r = read_spec(rt, &spec, &s);
    return r < 0 ? r : brace_value(rt, &s, &v);
}

static int expand(struct jrt *rt, struct brace_args *a, struct reader *in, unsigned level)
{
    int r = 0;
    if (level > 1)
        return jfail(rt, "a format inside a format inside a format");
    while (r >= 0 && in->p < in->end) {
        const char *start = in->p;
        while (in->p < in->end && *in->p != '{' && *in->p != '}')
            in->p++;
        r = jout(rt, start, (size_t)(in->p - start));
        if (r >= 0)
            r = jcharge(rt, 1);
        if (r < 0 || in->p == in->end)
            break;
        char c = *in->p++;
        if (in->p < in->end && *in->p == c) {
            in->p++;
            r = jout(rt, &c, 1);
            continue;
        }
        const char *close = c == '{' ? place_end(in->p, in->end) : NULL;
        if (!close)
            return jfail(rt, "a single %c in a format", c);
        r = brace_place(rt, a, in->p, close, level);
        in->p = close + 1;
    }
    return r;
}

int jformat_braces(struct jrt *rt, const struct jval *fmt, const struct jcall *args, struct jval *ret)
{
    struct brace_args a = { .call = args };
    struct reader in = { fmt->s, fmt->s + fmt->len };
    size_t start = rt->out.len;
    int r = expand(rt, &a, &in, 0);
    return r < 0 ? r : jcapture(rt, start, ret);
}
