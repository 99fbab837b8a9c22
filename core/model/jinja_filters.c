/* Filters on text, numbers and single values, and how filters are found and get their arguments. Filters on
 * lists are in jinja_filters_seq.c. Owner: one render. Must not know: the tree. Tests:
 * tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- arguments */

/* Length of the i-th name in a list separated by spaces; *at moves past it. */
static size_t next_param(const char **at, const char **name)
{
    while (**at == ' ')
        (*at)++;
    *name = *at;
    size_t n = strcspn(*at, " ");
    *at += n;
    return n;
}

static int bind_keyword(struct jrt *rt, const struct jcall *call, uint32_t k, const char *what,
                        const char *params, struct jval dst[JARGS_MAX], bool have[JARGS_MAX])
{
    const struct jval *key = &call->kwnames[k];
    const char *name;
    size_t n;
    for (unsigned i = 0; i < JARGS_MAX && (n = next_param(&params, &name)) > 0; i++) {
        if (n != key->len || memcmp(name, key->s, n) != 0)
            continue;
        if (have[i])
            return jfail(rt, "%s got its argument '%.*s' twice", what, (int)n, name);
        dst[i] = call->kw[k];
        have[i] = true;
        return 0;
    }
    return jfail(rt, "%s has no argument '%.*s'", what, (int)(key->len < 60 ? key->len : 60), key->s);
}

int jbind(struct jrt *rt, const struct jcall *call, const char *what, const char *params, unsigned need,
          struct jval dst[JARGS_MAX], bool have[JARGS_MAX])
{
    unsigned n = 0;
    const char *p = params, *name;
    while (next_param(&p, &name) > 0)
        n++;
    for (unsigned i = 0; i < JARGS_MAX; i++) {
        dst[i] = jnone();
        have[i] = false;
    }
    if (call->npos > n)
        return jfail(rt, "%s takes at most %u argument%s, got %u", what, n, n == 1 ? "" : "s", call->npos);
    for (uint32_t i = 0; i < call->npos; i++) {
        dst[i] = call->pos[i];
        have[i] = true;
    }
    int r = 0;
    for (uint32_t k = 0; r >= 0 && k < call->nkw; k++)
        r = bind_keyword(rt, call, k, what, params, dst, have);
    for (unsigned i = 0; r >= 0 && i < need; i++)
        if (!have[i])
            r = jfail(rt, "%s wants %u argument%s at least", what, need, need == 1 ? "" : "s");
    return r;
}

int jwant_int(struct jrt *rt, const char *what, const struct jval *v, int64_t *ret)
{
    if (v->type != J_INT && v->type != J_BOOL)
        return jfail(rt, "%s wants an integer, not %s", what, jtype_name(v));
    *ret = v->i;
    return 0;
}

int jwant_str(struct jrt *rt, const char *what, const struct jval *v)
{
    return v->type == J_STR ? 0 : jfail(rt, "%s wants text, not %s", what, jtype_name(v));
}

static int no_args(struct jrt *rt, const struct jcall *args, const char *what)
{
    return args->npos + args->nkw == 0 ? 0 : jfail(rt, "%s takes no arguments", what);
}

/* ---- plain text */

static int text_case(struct jrt *rt, const struct jval *in, const struct jcall *args, const char *what,
                     enum jcase how, struct jval *ret)
{
    struct jval s;
    int r = no_args(rt, args, what);
    if (r >= 0)
        r = jstr_of(rt, in, &s);
    return r < 0 ? r : jstr_case(rt, &s, how, ret);
}

static int f_upper(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return text_case(rt, in, args, "upper", JCASE_UPPER, ret);
}

static int f_lower(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return text_case(rt, in, args, "lower", JCASE_LOWER, ret);
}

static int f_capitalize(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return text_case(rt, in, args, "capitalize", JCASE_CAPITALIZE, ret);
}

static int f_title(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    return text_case(rt, in, args, "title", JCASE_TITLE, ret);
}

static int f_string(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    int r = no_args(rt, args, "string");
    return r < 0 ? r : jstr_of(rt, in, ret);
}

static int f_safe(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    int r = f_string(rt, in, args, ret);
    ret->flags |= JF_MARKUP;
    return r;
}

static int f_escape(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    size_t start = rt->out.len;
    int r = no_args(rt, args, "escape");
    if (r >= 0)
        r = jwrite_escaped(rt, in);
    if (r >= 0)
        r = jcapture(rt, start, ret);
    ret->flags |= JF_MARKUP;
    return r;
}

static int f_forceescape(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval s;
    int r = jstr_of(rt, in, &s);
    s.flags &= (uint8_t)~JF_MARKUP;
    return r < 0 ? r : f_escape(rt, &s, args, ret);
}

static int f_trim(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], s;
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "trim", "chars", 0, a, have);
    if (r >= 0 && a[0].type != J_NONE)
        r = jwant_str(rt, "trim", &a[0]);
    if (r >= 0)
        r = jstr_of(rt, in, &s);
    return r < 0 ? r
                 : jstr_strip_charged(rt, &s, a[0].type == J_NONE ? NULL : &a[0], JS_LEFT | JS_RIGHT, ret);
}

static int f_replace(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], s;
    bool have[JARGS_MAX];
    int64_t count = -1;
    int r = jbind(rt, args, "replace", "old new count", 2, a, have);
    if (r >= 0 && a[2].type != J_NONE)
        r = jwant_int(rt, "the count of replace", &a[2], &count);
    if (r >= 0)
        r = jstr_of(rt, in, &s);
    if (r >= 0)
        r = jstr_of(rt, &a[0], &a[0]);
    if (r >= 0)
        r = jstr_of(rt, &a[1], &a[1]);
    if (r >= 0)
        r = jstr_replace(rt, &s, &a[0], &a[1], count, ret);
    if (r >= 0)
        ret->flags &= (uint8_t)~JF_MARKUP;
    return r;
}

static int f_center(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], s, b = jstrz(" ");
    bool have[JARGS_MAX];
    int64_t width = 80;
    int r = jbind(rt, args, "center", "width", 0, a, have);
    if (r >= 0 && have[0])
        r = jwant_int(rt, "center", &a[0], &width);
    if (r >= 0)
        r = jstr_of(rt, in, &s);
    if (r < 0)
        return r;
    int64_t room = width - (int64_t)jstr_count(s.s, s.len), left = room / 2 + (room & width & 1);
    struct jval parts[3] = { b, s, b };
    r = room > 0 ? jstr_repeat(rt, &b, left, &parts[0]) : 0;
    if (r >= 0 && room > 0)
        r = jstr_repeat(rt, &b, room - left, &parts[2]);
    if (room <= 0)
        parts[0] = parts[2] = jstr("", 0);
    if (r >= 0)
        r = jcharge(rt, s.len / 32);
    return r < 0 ? r : jstr_concat(rt, parts, 3, ret);
}

static int indent_lines(struct jrt *rt, const struct jval *lines, const struct jval *by, bool first,
                        bool blank)
{
    int r = 0;
    for (size_t i = 0; r >= 0 && i < lines->len; i++) {
        const struct jval *line = &lines->items[i];
        if (i > 0)
            r = jout(rt, "\n", 1);
        if (r >= 0 && (i == 0 ? first : blank || line->len > 0))
            r = jout(rt, by->s, by->len);
        if (r >= 0)
            r = jout(rt, line->s, line->len);
    }
    return r;
}

static int f_indent(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], lines, by = jstrz("    "), parts[2] = { *in, jstrz("\n") }, text;
    bool have[JARGS_MAX];
    int64_t width = 0;
    int r = jbind(rt, args, "indent", "width first blank", 0, a, have);
    if (r >= 0)
        r = in->type == J_UNDEF ? jundef_fail(rt, in) : jwant_str(rt, "indent", in);
    if (r >= 0 && have[0] && a[0].type == J_STR) {
        by = a[0];
    } else if (r >= 0 && have[0]) {
        struct jval space = jstrz(" ");
        r = jwant_int(rt, "indent", &a[0], &width);
        if (r >= 0)
            r = jstr_repeat(rt, &space, width, &by);
    }
    if (r >= 0)
        r = jstr_concat(rt, parts, 2, &text);
    if (r >= 0)
        r = jstr_lines(rt, &text, false, &lines);
    size_t start = rt->out.len;
    if (r >= 0)
        r = indent_lines(rt, &lines, &by, jtruth(&a[1]), jtruth(&a[2]));
    return r < 0 ? r : jcapture(rt, start, ret);
}

static int f_truncate(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], end = jstrz("..."), part, parts[2];
    bool have[JARGS_MAX];
    int64_t length = 255, leeway = 5;
    int r = jbind(rt, args, "truncate", "length killwords end leeway", 0, a, have);
    if (r >= 0 && have[0])
        r = jwant_int(rt, "truncate", &a[0], &length);
    if (r >= 0 && have[2]) {
        end = a[2];
        r = jwant_str(rt, "truncate", &end);
    }
    if (r >= 0 && a[3].type != J_NONE)
        r = jwant_int(rt, "truncate", &a[3], &leeway);
    if (r < 0)
        return r;
    int64_t tail = (int64_t)jstr_count(end.s, end.len);
    if (length < tail || leeway < 0)
        return jfail(rt, "truncate wants a length of at least %lld and no negative leeway", (long long)tail);
    r = jcharge(rt, in->type == J_STR ? in->len / 32 : 0);
    if (r < 0)
        return r;
    int64_t have_n = jlen(in); /* what is short enough passes, text or not */
    *ret = *in;
    if (have_n >= 0 && have_n - leeway <= length)
        return 0;
    r = jwant_str(rt, "truncate", in);
    if (r < 0)
        return r;
    part = jsub(in, 0, jstr_offset(in->s, in->len, (size_t)(length - tail)));
    const char *space = NULL;
    r = jtruth(&a[1]) ? 0 : jstr_rfind(rt, part.s, part.len, " ", 1, &space);
    if (r < 0)
        return r;
    parts[0] = space ? jsub(&part, 0, (size_t)(space - part.s)) : part;
    parts[1] = end;
    return jstr_concat(rt, parts, 2, ret);
}

static int f_wordcount(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval s;
    int64_t n = 0;
    bool inside = false;
    int r = no_args(rt, args, "wordcount");
    if (r >= 0)
        r = jstr_of(rt, in, &s);
    if (r >= 0)
        r = jcharge(rt, s.len / 16);
    for (size_t i = 0; r >= 0 && i < s.len; i++) {
        bool word = isalnum((unsigned char)s.s[i]) || s.s[i] == '_' || (unsigned char)s.s[i] >= 0x80;
        n += word && !inside;
        inside = word;
    }
    *ret = jint(n);
    return r;
}

static int f_urlencode(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval s;
    size_t start = rt->out.len;
    int r = no_args(rt, args, "urlencode");
    if (r >= 0 && (jis_seq(in) || jis_dict(in)))
        return jfail(rt, "urlencode wants text here, not %s", jtype_name(in));
    if (r >= 0)
        r = jstr_of(rt, in, &s);
    if (r >= 0)
        r = jcharge(rt, s.len);
    start = rt->out.len;
    for (size_t i = 0; r >= 0 && i < s.len; i++) {
        unsigned char c = (unsigned char)s.s[i];
        if (isalnum(c) || (c && strchr("_.-~/", c)))
            buf_putc(&rt->out, (char)c);
        else
            jout_hex(rt, "%", c, 2, true);
    }
    if (r >= 0)
        r = jout_check(rt);
    return r < 0 ? r : jcapture(rt, start, ret);
}

static int f_format(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval s, values = { .type = J_TUPLE, .items = args->pos, .len = args->npos };
    struct jdict *d;
    int r = jstr_of(rt, in, &s);
    if (r >= 0 && args->nkw > 0) {
        if (args->npos > 0)
            return jfail(rt, "format takes values or names, not both");
        r = jdict_new(rt, args->nkw, &d);
        for (uint32_t i = 0; r >= 0 && i < args->nkw; i++)
            r = jdict_set(rt, d, &args->kwnames[i], &args->kw[i]);
        values = (struct jval){ .type = J_DICT, .dict = d };
    }
    return r < 0 ? r : jformat_percent(rt, &s, &values, ret);
}

/* ---- JSON */

static int json_separators(struct jrt *rt, const struct jval *v, struct jjson *how)
{
    if (!jis_seq(v) || v->len != 2)
        return jfail(rt, "the separators of tojson are two texts");
    struct jval item = jseq_get(v, 0), key = jseq_get(v, 1);
    int r = jwant_str(rt, "tojson", &item);
    if (r >= 0)
        r = jwant_str(rt, "tojson", &key);
    how->item_sep = item.s;
    how->item_len = item.len;
    how->key_sep = key.s;
    how->key_len = key.len;
    return r;
}

static int f_tojson(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], indent = jnone(), space = jstrz(" ");
    bool have[JARGS_MAX];
    struct jjson how = { .item_sep = ", ", .item_len = 2, .key_sep = ": ", .key_len = 2 };
    int64_t width = 0;
    int r = jbind(rt, args, "tojson", "ensure_ascii indent separators sort_keys", 0, a, have);
    if (r >= 0 && a[1].type == J_STR) {
        indent = a[1];
    } else if (r >= 0 && a[1].type != J_NONE) {
        r = jwant_int(rt, "the indent of tojson", &a[1], &width);
        if (r >= 0)
            r = jstr_repeat(rt, &space, width, &indent);
    }
    if (r < 0)
        return r;
    if (indent.type == J_STR) {
        how.indent = indent.s;
        how.indent_len = indent.len;
        how.item_len = 1;
    }
    how.ascii = jtruth(&a[0]);
    how.sort = jtruth(&a[3]);
    if (a[2].type != J_NONE)
        r = json_separators(rt, &a[2], &how);
    size_t start = rt->out.len;
    if (r >= 0)
        r = jwrite_json(rt, in, &how, 0);
    return r < 0 ? r : jcapture(rt, start, ret);
}

/* ---- numbers and single values */

static int f_default(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "default", "default_value boolean", 0, a, have);
    bool use = in->type == J_UNDEF || (r >= 0 && jtruth(&a[1]) && !jtruth(in));
    *ret = !use ? *in : have[0] ? a[0] : jstr("", 0);
    return r;
}

static int f_abs(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    int r = no_args(rt, args, "abs");
    if (r >= 0 && (in->type == J_UNDEF || !jis_number(in)))
        return in->type == J_UNDEF ? jundef_fail(rt, in)
                                   : jfail(rt, "abs wants a number, not %s", jtype_name(in));
    if (r < 0 || (in->type == J_FLOAT ? !signbit(in->f) : in->i >= 0))
        *ret = in->type == J_BOOL ? jint(in->i) : *in;
    else
        r = jnegate(rt, in, false, ret);
    return r;
}

static int f_int(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], dflt = jint(0);
    bool have[JARGS_MAX];
    int64_t base = 10;
    int r = jbind(rt, args, "int", "default base", 0, a, have);
    if (r >= 0 && have[0])
        dflt = a[0];
    if (r >= 0 && have[1])
        r = jwant_int(rt, "the base of int", &a[1], &base);
    if (r >= 0 && base != 0 && (base < 2 || base > 36))
        return jfail(rt, "the base of int is 0 or 2 to 36");
    if (r >= 0 && in->type == J_STR)
        r = jcharge(rt, in->len / 4);
    return r < 0 ? r : jto_int(rt, in, base, &dflt, ret);
}

static int f_float(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX];
    bool have[JARGS_MAX];
    double f;
    int r = jbind(rt, args, "float", "default", 0, a, have);
    if (r >= 0 && in->type == J_UNDEF)
        return jundef_fail(rt, in);
    if (r >= 0 && in->type == J_STR)
        r = jcharge(rt, in->len / 4);
    *ret = r >= 0 && have[0] ? a[0] : jfloat(0.0);
    if (jis_number(in))
        *ret = jfloat(jnum_of(in));
    else if (in->type == J_STR && jparse_float(in, &f))
        *ret = jfloat(f);
    return r;
}

static int f_round(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], common = jstrz("common");
    bool have[JARGS_MAX];
    int64_t digits = 0;
    int r = jbind(rt, args, "round", "precision method", 0, a, have);
    if (r >= 0 && have[0])
        r = jwant_int(rt, "round", &a[0], &digits);
    return r < 0 ? r : jround(rt, in, digits, have[1] ? &a[1] : &common, ret);
}

static int f_attr(struct jrt *rt, const struct jval *in, const struct jcall *args, struct jval *ret)
{
    struct jval a[JARGS_MAX], got;
    bool have[JARGS_MAX];
    int r = jbind(rt, args, "attr", "name", 1, a, have);
    if (r >= 0)
        r = jwant_str(rt, "attr", &a[0]);
    if (r < 0)
        return r;
    /* what a dict holds is not an attribute of it */
    if (jis_dict(in) && jdict_get(rt, in, &a[0], &got) == 1) {
        *ret = jundef(JU_ATTR, a[0].s, a[0].len);
        return 0;
    }
    return jgetattr(rt, in, a[0].s, a[0].len, ret);
}

const struct jfilter jfilters_text[] = {
    { "abs", f_abs },
    { "attr", f_attr },
    { "capitalize", f_capitalize },
    { "center", f_center },
    { "d", f_default },
    { "default", f_default },
    { "e", f_escape },
    { "escape", f_escape },
    { "float", f_float },
    { "forceescape", f_forceescape },
    { "format", f_format },
    { "indent", f_indent },
    { "int", f_int },
    { "lower", f_lower },
    { "replace", f_replace },
    { "round", f_round },
    { "safe", f_safe },
    { "string", f_string },
    { "title", f_title },
    { "tojson", f_tojson },
    { "trim", f_trim },
    { "truncate", f_truncate },
    { "upper", f_upper },
    { "urlencode", f_urlencode },
    { "wordcount", f_wordcount },
    { NULL, NULL },
};

/* ---- the table: filters on text first, then those on lists */

enum { SEQ_BASE = 1000 };

int jfilter_find(const char *name, size_t len)
{
    for (int i = 0; jfilters_text[i].name; i++)
        if (strlen(jfilters_text[i].name) == len && memcmp(jfilters_text[i].name, name, len) == 0)
            return i;
    for (int i = 0; jfilters_seq[i].name; i++)
        if (strlen(jfilters_seq[i].name) == len && memcmp(jfilters_seq[i].name, name, len) == 0)
            return SEQ_BASE + i;
    return -1;
}

int jfilter_apply(struct jrt *rt, int index, const struct jval *in, const struct jcall *args,
                  struct jval *ret)
{
    const struct jfilter *f = index >= SEQ_BASE ? &jfilters_seq[index - SEQ_BASE] : &jfilters_text[index];
    struct jval v = *in; /* ret may be in */
    return f->fn(rt, &v, args, ret);
}
