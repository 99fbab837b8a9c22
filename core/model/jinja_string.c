/* Text in code points: Python's string methods that filters and methods share.
 * Owner: one render. Must not know: the tree. Text is valid UTF-8; what it is cut from is shared, not copied.
 * Tests: tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include "util/utf8.h"
#include <errno.h>
#include <string.h>

size_t jstr_count(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

size_t jstr_offset(const char *s, size_t len, size_t cp)
{
    size_t i = 0;
    while (cp > 0 && i < len) {
        i++;
        while (i < len && ((unsigned char)s[i] & 0xc0) == 0x80)
            i++;
        cp--;
    }
    return i;
}

bool jis_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

struct jval jsub(const struct jval *s, size_t from, size_t to)
{
    struct jval v = jstr(s->s + from, to - from);
    v.flags = s->flags & (JF_ARENA | JF_MARKUP);
    return v;
}

/* Code point that ends at `end` (> 0). */
static size_t char_before(const char *s, size_t end, uint32_t *cp)
{
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80)
        at--;
    utf8_decode(s + at, end - at, cp);
    return at;
}

static bool in_set(const struct jval *chars, const char *s, size_t n, uint32_t cp)
{
    if (!chars)
        return jis_space(cp);
    return jstr_find(chars->s, chars->len, s, n) != NULL;
}

int jstr_strip_charged(struct jrt *rt, const struct jval *s, const struct jval *chars, unsigned sides,
                       struct jval *ret)
{
    size_t each = chars ? 1 + chars->len / 16 : 1;
    int r = jcharge(rt, each);
    *ret = jstr_strip(s, chars, sides);
    return r < 0 ? r : jcharge(rt, (s->len - ret->len) / 8 * each);
}

struct jval jstr_strip(const struct jval *s, const struct jval *chars, unsigned sides)
{
    size_t from = 0, to = s->len;
    uint32_t cp = 0;
    while (!chars && sides & JS_LEFT && from < to && (unsigned char)s->s[from] < 0x80 &&
           jis_space((unsigned char)s->s[from]))
        from++;
    while (!chars && sides & JS_RIGHT && from < to && (unsigned char)s->s[to - 1] < 0x80 &&
           jis_space((unsigned char)s->s[to - 1]))
        to--;
    while (sides & JS_LEFT && from < to) {
        size_t n = utf8_decode(s->s + from, to - from, &cp);
        if (n == 0 || !in_set(chars, s->s + from, n, cp))
            break;
        from += n;
    }
    while (sides & JS_RIGHT && to > from) {
        size_t at = char_before(s->s, to, &cp);
        if (!in_set(chars, s->s + at, to - at, cp))
            break;
        to = at;
    }
    return jsub(s, from, to);
}

const char *jstr_find(const char *s, size_t len, const char *what, size_t wlen)
{
    if (wlen > len)
        return NULL;
    if (wlen == 0)
        return s;
    return wlen == 1 ? memchr(s, what[0], len) : memmem(s, len, what, wlen);
}

/* memmem looks at up to 256 bytes of a short pattern again and again before it turns to something linear. */
int jcharge_find(struct jrt *rt, size_t len, size_t wlen)
{
    return jcharge(rt, len / 8 * (1 + (wlen < 256 ? wlen : 256) / 64));
}

int jstr_rfind(struct jrt *rt, const char *s, size_t len, const char *what, size_t wlen, const char **ret)
{
    *ret = wlen == 0 ? s + len : NULL;
    if (wlen == 0 || wlen > len)
        return 0;
    int r = jcharge(rt, len / 32);
    for (size_t at = len - wlen + 1; r >= 0 && at > 0;) {
        const char *p = memrchr(s, what[0], at);
        r = jcharge(rt, 1 + wlen / 32);
        if (!p || memcmp(p, what, wlen) == 0) {
            *ret = p;
            break;
        }
        at = (size_t)(p - s);
    }
    return r;
}

/* ---- case */

/* Greek sigma at the end of a word has a small letter of its own. */
static bool final_sigma(const struct jval *s, size_t at, size_t n)
{
    uint32_t before = ' ', after = ' ';
    if (at > 0)
        char_before(s->s, at, &before);
    if (at + n < s->len)
        utf8_decode(s->s + at + n, s->len - at - n, &after);
    return jcase_cased(before) && !jcase_cased(after);
}

static bool starts_word(uint32_t cp)
{
    return cp < 0x80 ? cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || jis_space(cp)
                     : jis_space(cp);
}

static enum jcase char_case(enum jcase how, uint32_t cp, bool first)
{
    uint32_t low[3], up[3], title[3];
    switch (how) {
    case JCASE_CAPITALIZE:
    case JCASE_PYTITLE:
        return first ? JCASE_TITLE : JCASE_LOWER;
    case JCASE_TITLE: /* the filter: upper case, not title case */
        return first ? JCASE_UPPER : JCASE_LOWER;
    case JCASE_SWAP:
        jcase_lower(cp, low);
        jcase_title(cp, title);
        if (low[0] != cp && title[0] == cp)
            return jcase_upper(cp, up) == 1 && up[0] == cp ? JCASE_LOWER
                                                           : JCASE_NONE; /* a title case letter stays */
        return low[0] != cp ? JCASE_LOWER : JCASE_UPPER;
    default:
        return how;
    }
}

static unsigned map_case(enum jcase how, uint32_t cp, uint32_t to[3])
{
    switch (how) {
    case JCASE_UPPER:
        return jcase_upper(cp, to);
    case JCASE_TITLE:
        return jcase_title(cp, to);
    case JCASE_LOWER:
        return jcase_lower(cp, to);
    default:
        to[0] = cp;
        return 1;
    }
}

int jstr_case(struct jrt *rt, const struct jval *s, enum jcase how, struct jval *ret)
{
    size_t start = rt->out.len;
    bool first = true;
    int r = jcharge(rt, s->len);
    if (r < 0)
        return r;
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = 0, to[3] = { 0 };
        unsigned n = utf8_decode(s->s + i, s->len - i, &cp);
        enum jcase c = char_case(how, cp, first);
        unsigned k = map_case(c, cp, to);
        if (c == JCASE_LOWER && cp == 0x3a3 && final_sigma(s, i, n))
            to[0] = 0x3c2;
        for (unsigned j = 0; j < k; j++) {
            char bytes[4];
            buf_append(&rt->out, bytes, utf8_encode(to[j], bytes));
        }
        first = how == JCASE_TITLE ? starts_word(cp) : how == JCASE_PYTITLE && !jcase_cased(cp);
        i += n ? n : 1;
    }
    r = jout_check(rt);
    if (r >= 0)
        r = jcapture(rt, start, ret);
    if (r >= 0)
        ret->flags |= s->flags & JF_MARKUP;
    return r;
}

/* ---- replace, join, repeat */

int jstr_replace(struct jrt *rt, const struct jval *s, const struct jval *from, const struct jval *to,
                 int64_t max, struct jval *ret)
{
    size_t start = rt->out.len, at = 0;
    int r = jcharge_find(rt, s->len, from->len);
    while (r >= 0 && max != 0) {
        const char *hit = at > s->len ? NULL : jstr_find(s->s + at, s->len - at, from->s, from->len);
        if (!hit)
            break;
        size_t pos = (size_t)(hit - s->s);
        r = jcharge(rt, 1);
        if (r >= 0)
            r = jout(rt, s->s + at, pos - at);
        if (r >= 0)
            r = jout(rt, to->s, to->len);
        at = pos + from->len;
        if (from->len == 0) { /* between all characters and at both ends */
            size_t n = jstr_offset(s->s + at, s->len - at, 1);
            if (r >= 0)
                r = jout(rt, s->s + at, n);
            at += n ? n : 1;
        }
        max -= max > 0;
    }
    if (r >= 0 && at == 0) {
        *ret = *s;
        return 0;
    }
    if (r >= 0 && at < s->len)
        r = jout(rt, s->s + at, s->len - at);
    return r < 0 ? r : jcapture(rt, start, ret);
}

int jstr_join(struct jrt *rt, const struct jval *sep, const struct jval *items, bool strict, struct jval *ret)
{
    struct jiter it;
    struct jval item;
    size_t start = rt->out.len;
    bool first = true;
    int r = jiter_init(rt, &it, items);
    while (r >= 0 && (r = jiter_next(rt, &it, &item)) == 1) {
        if (strict && item.type != J_STR)
            return jfail(rt, "join() wants text, not %s", jtype_name(&item));
        r = first ? 0 : jout(rt, sep->s, sep->len);
        if (r >= 0)
            r = jwrite_str(rt, &item);
        first = false;
    }
    return r < 0 ? r : jcapture(rt, start, ret);
}

int jstr_repeat(struct jrt *rt, const struct jval *s, int64_t times, struct jval *ret)
{
    if (s->len == 0 || times <= 0) {
        *ret = jsub(s, 0, 0);
        return 0;
    }
    if ((uint64_t)times > JINJA_MAX_MEMORY / s->len)
        times = (int64_t)(JINJA_MAX_MEMORY / s->len) + 1; /* more than the arena gives */
    char *text = jalloc(rt, s->len * (size_t)times, 1);
    if (!text)
        return jnomem(rt);
    size_t total = s->len * (size_t)times;
    memcpy(text, s->s, s->len);
    for (size_t have = s->len; have < total; have *= 2)
        memcpy(text + have, text, have < total - have ? have : total - have);
    *ret = jstr(text, total);
    ret->flags = JF_ARENA | (s->flags & JF_MARKUP);
    return jcharge(rt, total / 64);
}

/* ---- split */

struct pieces {
    struct jval *v;
    size_t n, cap;
};

static int push(struct jrt *rt, struct pieces *p, struct jval v)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 8;
        struct jval *bigger = jalloc(rt, cap, sizeof *bigger);
        if (!bigger)
            return jnomem(rt);
        if (p->n > 0)
            memcpy(bigger, p->v, p->n * sizeof *bigger);
        p->v = bigger;
        p->cap = cap;
    }
    p->v[p->n++] = v;
    return jcharge(rt, 3);
}

static int split_blank(struct jrt *rt, const struct jval *s, int64_t max, struct pieces *p)
{
    struct jval rest = jstr_strip(s, NULL, JS_LEFT);
    int r = 0;
    while (r >= 0 && rest.len > 0) {
        size_t end = 0;
        uint32_t cp;
        while (max != 0 && end < rest.len) {
            size_t n = utf8_decode(rest.s + end, rest.len - end, &cp);
            if (jis_space(cp))
                break;
            end += n ? n : 1;
        }
        if (max == 0)
            end = rest.len;
        r = push(rt, p, jsub(&rest, 0, end));
        struct jval tail = jsub(&rest, end, rest.len);
        rest = jstr_strip(&tail, NULL, JS_LEFT);
        max -= max > 0;
    }
    return r;
}

static int split_blank_right(struct jrt *rt, const struct jval *s, int64_t max, struct pieces *p)
{
    struct jval rest = jstr_strip(s, NULL, JS_RIGHT);
    int r = 0;
    while (r >= 0 && rest.len > 0) {
        size_t from = rest.len;
        uint32_t cp;
        while (max != 0 && from > 0) {
            size_t at = char_before(rest.s, from, &cp);
            if (jis_space(cp))
                break;
            from = at;
        }
        if (max == 0)
            from = 0;
        r = push(rt, p, jsub(&rest, from, rest.len));
        struct jval head = jsub(&rest, 0, from);
        rest = jstr_strip(&head, NULL, JS_RIGHT);
        max -= max > 0;
    }
    return r;
}

static int split_at(struct jrt *rt, const struct jval *s, const struct jval *sep, int64_t max, bool right,
                    struct pieces *p)
{
    size_t from = 0, to = s->len;
    int r = 0;
    while (r >= 0 && max != 0) {
        const char *hit = NULL;
        if (right)
            r = jstr_rfind(rt, s->s + from, to - from, sep->s, sep->len, &hit);
        else
            hit = jstr_find(s->s + from, to - from, sep->s, sep->len);
        if (!hit || r < 0)
            break;
        size_t at = (size_t)(hit - s->s);
        r = push(rt, p, right ? jsub(s, at + sep->len, to) : jsub(s, from, at));
        if (right)
            to = at;
        else
            from = at + sep->len;
        max -= max > 0;
    }
    return r < 0 ? r : push(rt, p, jsub(s, from, to));
}

int jstr_split(struct jrt *rt, const struct jval *s, const struct jval *sep, int64_t max, bool right,
               struct jval *ret)
{
    struct pieces p = { 0 };
    int r = jcharge_find(rt, s->len, sep ? sep->len : 0);
    if (r < 0)
        return r;
    if (sep && sep->len == 0)
        return jfail(rt, "split() by an empty text");
    if (!sep)
        r = jcharge(rt, s->len / 8);
    if (r < 0)
        return r;
    if (sep)
        r = split_at(rt, s, sep, max, right, &p);
    else
        r = right ? split_blank_right(rt, s, max, &p) : split_blank(rt, s, max, &p);
    for (size_t i = 0; right && i < p.n / 2; i++) {
        struct jval t = p.v[i];
        p.v[i] = p.v[p.n - 1 - i];
        p.v[p.n - 1 - i] = t;
    }
    *ret = (struct jval){ .type = J_LIST, .items = p.v, .len = p.n };
    return r;
}

/* Bytes of the line break at s, 0 when there is none: all that Python's splitlines() knows. */
static size_t line_break(const char *s, size_t len)
{
    uint32_t cp = 0;
    size_t n = utf8_decode(s, len, &cp);
    if (cp == '\r' && len > 1 && s[1] == '\n')
        return 2;
    bool is =
        (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
    return is ? n : 0;
}

int jstr_lines(struct jrt *rt, const struct jval *s, bool keep, struct jval *ret)
{
    struct pieces p = { 0 };
    size_t from = 0, i = 0;
    int r = jcharge(rt, s->len / 4);
    while (r >= 0 && i < s->len) {
        size_t n = line_break(s->s + i, s->len - i);
        if (n == 0) {
            i++;
            while (i < s->len && ((unsigned char)s->s[i] & 0xc0) == 0x80)
                i++;
            continue;
        }
        r = push(rt, &p, jsub(s, from, keep ? i + n : i));
        i += n;
        from = i;
    }
    if (r >= 0 && from < s->len)
        r = push(rt, &p, jsub(s, from, s->len));
    *ret = (struct jval){ .type = J_LIST, .items = p.v, .len = p.n };
    return r;
}
