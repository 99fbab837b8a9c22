/* Values as JSON: |tojson as Hugging Face defines it, which is Python's json.dumps().
 * Owner: one render. Must not know: the tree. Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void escape_unit(struct jrt *rt, uint32_t unit)
{
    jout_hex(rt, "\\u", unit, 4, false);
}

static void json_char(struct jrt *rt, const char *s, size_t n, uint32_t cp, bool ascii)
{
    static const char special[] = "\"\\\n\r\t\b\f", codes[] = "\"\\nrtbf";
    const char *which = cp && cp < 0x80 ? strchr(special, (int)cp) : NULL;
    if (which) {
        buf_putc(&rt->out, '\\');
        buf_putc(&rt->out, codes[which - special]);
    } else if (cp < 0x20 || (ascii && cp > 0x7e && cp < 0x10000)) {
        escape_unit(rt, cp);
    } else if (ascii && cp >= 0x10000) {
        escape_unit(rt, 0xd800 + ((cp - 0x10000) >> 10));
        escape_unit(rt, 0xdc00 + ((cp - 0x10000) & 0x3ff));
    } else {
        buf_append(&rt->out, s, n);
    }
}

static bool plain_byte(char c)
{
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x7f && c != '"' && c != '\\';
}

static int json_str(struct jrt *rt, const char *s, size_t len, bool ascii)
{
    int r = jcharge(rt, 1 + len / 8);
    if (r < 0)
        return r;
    size_t special = 0;
    buf_putc(&rt->out, '"');
    for (size_t i = 0; i < len;) {
        size_t run = i;
        while (run < len && plain_byte(s[run]))
            run++;
        if (run > i) {
            buf_append(&rt->out, s + i, run - i);
            i = run;
            continue;
        }
        uint32_t cp = 0;
        unsigned n = utf8_decode(s + i, len - i, &cp);
        json_char(rt, s + i, n ? n : 1, cp, ascii);
        i += n ? n : 1;
        special++;
    }
    buf_putc(&rt->out, '"');
    r = jcharge(rt, ascii ? special * 4 : special);
    return r < 0 ? r : jout_check(rt);
}

static int json_break(struct jrt *rt, const struct jjson *how, unsigned level)
{
    int r = 0;
    if (!how->indent)
        return 0;
    r = jcharge(rt, level / 4);
    if (r >= 0)
        r = jout(rt, "\n", 1);
    for (unsigned i = 0; r >= 0 && i < level; i++)
        r = jout(rt, how->indent, how->indent_len);
    return r;
}

static int json_list(struct jrt *rt, const struct jval *v, const struct jjson *how, unsigned level)
{
    if (v->len == 0)
        return jout(rt, "[]", 2);
    int r = jout(rt, "[", 1);
    for (size_t i = 0; r >= 0 && i < v->len; i++) {
        struct jval item = jseq_get(v, i);
        if (i > 0)
            r = jout(rt, how->item_sep, how->item_len);
        if (r >= 0)
            r = json_break(rt, how, level + 1);
        if (r >= 0)
            r = jwrite_json(rt, &item, how, level + 1);
    }
    if (r >= 0)
        r = json_break(rt, how, level);
    return r < 0 ? r : jout(rt, "]", 1);
}

static int json_key(struct jrt *rt, const struct jval *k, const struct jjson *how)
{
    if (k->type == J_STR)
        return json_str(rt, k->s, k->len, how->ascii);
    if (!jis_number(k) && k->type != J_NONE)
        return jfail(rt, "a %s as a key cannot be written as JSON", jtype_name(k));
    int r = jout(rt, "\"", 1);
    if (r >= 0)
        r = jwrite_json(rt, k, how, 0);
    return r < 0 ? r : jout(rt, "\"", 1);
}

/* Sorts what is to be written; few elements, and `sort_keys` is rare. */
static int sort_pairs(struct jrt *rt, struct jpair *p, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct jpair x = p[i];
        size_t at = i;
        for (; at > 0; at--) {
            int r = jless(rt, &x.k, &p[at - 1].k);
            if (r >= 0 && jcharge(rt, 1) < 0)
                r = -E2BIG;
            if (r < 0)
                return r;
            if (r == 0)
                break;
            p[at] = p[at - 1];
        }
        p[at] = x;
    }
    return 0;
}

static int json_pair(struct jrt *rt, const struct jpair *p, bool first, const struct jjson *how,
                     unsigned level)
{
    int r = first ? 0 : jout(rt, how->item_sep, how->item_len);
    if (r >= 0)
        r = json_break(rt, how, level);
    if (r >= 0)
        r = json_key(rt, &p->k, how);
    if (r >= 0)
        r = jout(rt, how->key_sep, how->key_len);
    return r < 0 ? r : jwrite_json(rt, &p->v, how, level);
}

static int json_sorted(struct jrt *rt, const struct jval *v, const struct jjson *how, unsigned level)
{
    size_t n = (size_t)jlen(v), i = 0;
    struct jiter it;
    struct jpair *pairs = jalloc(rt, n, sizeof *pairs);
    if (!pairs)
        return jnomem(rt);
    int r = jiter_init(rt, &it, v);
    while (r >= 0 && i < n && (r = jiter_pair(rt, &it, &pairs[i].k, &pairs[i].v)) == 1)
        i++;
    if (r >= 0)
        r = sort_pairs(rt, pairs, n);
    for (i = 0; r >= 0 && i < n; i++)
        r = json_pair(rt, &pairs[i], i == 0, how, level);
    return r;
}

static int json_dict(struct jrt *rt, const struct jval *v, const struct jjson *how, unsigned level)
{
    struct jiter it;
    struct jpair p;
    if (jlen(v) == 0)
        return jout(rt, "{}", 2);
    int r = jout(rt, "{", 1);
    if (r >= 0 && how->sort) {
        r = json_sorted(rt, v, how, level + 1);
    } else if (r >= 0) {
        r = jiter_init(rt, &it, v);
        for (bool first = true; r >= 0 && (r = jiter_pair(rt, &it, &p.k, &p.v)) == 1; first = false)
            r = json_pair(rt, &p, first, how, level + 1);
    }
    if (r >= 0)
        r = json_break(rt, how, level);
    return r < 0 ? r : jout(rt, "}", 1);
}

int jwrite_json(struct jrt *rt, const struct jval *v, const struct jjson *how, unsigned level)
{
    int r = jenter(rt);
    if (r < 0)
        return r;
    if (v->type == J_STR)
        r = json_str(rt, v->s, v->len, how->ascii);
    else if (v->type == J_NONE)
        r = jout(rt, "null", 4);
    else if (v->type == J_BOOL)
        r = jout(rt, v->i ? "true" : "false", v->i ? 4 : 5);
    else if (v->type == J_FLOAT && !isfinite(v->f))
        r = isnan(v->f) ? jout(rt, "NaN", 3) : v->f < 0 ? jout(rt, "-Infinity", 9) : jout(rt, "Infinity", 8);
    else if (jis_number(v))
        r = jwrite_repr(rt, v);
    else if (jis_seq(v))
        r = json_list(rt, v, how, level);
    else if (jis_dict(v))
        r = json_dict(rt, v, how, level);
    else
        r = jfail(rt, "a value of type %s cannot be written as JSON", jtype_name(v));
    rt->depth--;
    return r;
}
