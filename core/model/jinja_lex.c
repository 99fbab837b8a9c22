/* Lexer of chat templates: text, tags and what whitespace control leaves of the text between them, as jinja2
 * cuts it with trim_blocks and lstrip_blocks. Owner: one parse. Must not know: the grammar, values. Tests:
 * tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_calls.h"
#include "model/jinja_parse.h"
#include "util/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT, BLOCK, VARIABLE };

void jlex_init(struct jlex *lx, const char *src, size_t len, struct jarena *mem, char *err, size_t errlen)
{
    *lx = (struct jlex){ .src = src, .len = len, .line = 1, .line_starting = true, .mem = mem };
    lx->err = err;
    lx->errlen = errlen;
}

int jlex_fail(struct jlex *lx, size_t pos, const char *fmt, ...)
{
    size_t line = 1, start = 0;
    if (pos > lx->len)
        pos = lx->len;
    for (size_t i = 0; i < pos; i++) {
        if (lx->src[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    int n = snprintf(lx->err, lx->errlen, "line %zu column %zu: ", line,
                     jstr_count(lx->src + start, pos - start) + 1);
    if (n < 0 || (size_t)n >= lx->errlen)
        return -EINVAL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(lx->err + n, lx->errlen - (size_t)n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

/* ---- looking at the source */

/* 0 past the end: source bytes of zero are refused before lexing. */
static char at(const struct jlex *lx, size_t pos)
{
    return pos < lx->len ? lx->src[pos] : '\0';
}

/* Bytes of the whitespace character at pos, 0 when it is none (Python's \s, beyond ASCII too). */
static size_t space_at(const struct jlex *lx, size_t pos)
{
    if (pos >= lx->len)
        return 0;
    uint32_t cp = 0;
    unsigned n = utf8_decode(lx->src + pos, lx->len - pos, &cp);
    return n && jis_space(cp) ? n : 0;
}

static size_t skip_space(const struct jlex *lx, size_t pos)
{
    size_t n;
    while ((n = space_at(lx, pos)) != 0)
        pos += n;
    return pos;
}

/* Where the tag that ends with close[2] ends when it does so at pos: its end includes the whitespace that "-"
 * or trim_blocks eat. 0: it does not end here. */
static size_t tag_end(const struct jlex *lx, size_t pos, const char *close, bool block)
{
    char c = at(lx, pos);
    size_t p = c == '-' || (c == '+' && block) ? pos + 1 : pos;
    if (at(lx, p) != close[0] || at(lx, p + 1) != close[1])
        return 0;
    p += 2;
    if (c == '-')
        return skip_space(lx, p);
    if (c != '+' && block && at(lx, p) == '\n')
        p++;
    return p;
}

static void move_to(struct jlex *lx, size_t pos)
{
    for (size_t i = lx->pos; i < pos; i++)
        lx->line += lx->src[i] == '\n';
    lx->pos = pos;
}

/* Moves past something that matched as a whole; what it ends with decides whether lstrip may cut the next
 * text. */
static void match_to(struct jlex *lx, size_t pos)
{
    if (pos > lx->pos)
        lx->line_starting = lx->src[pos - 1] == '\n';
    move_to(lx, pos);
}

/* ---- text */

/* End of the text [from, to) after the sign of the tag that follows it has cut its end. */
static size_t cut_text(const struct jlex *lx, size_t from, size_t to, char sign, bool variable)
{
    if (sign == '+' || (sign != '-' && variable))
        return to;
    size_t line = from;
    if (sign != '-') {
        for (size_t i = from; i < to; i++)
            if (lx->src[i] == '\n')
                line = i + 1;
        if (line == from && !lx->line_starting)
            return to;
        return skip_space(lx, line) >= to ? line : to;
    }
    /* Longest run of whitespace at the end: found going forward, since a byte alone does not tell. */
    size_t end = from;
    for (size_t i = from; i < to;) {
        size_t n = space_at(lx, i);
        if (n) {
            i += n;
            continue;
        }
        uint32_t cp;
        i += utf8_decode(lx->src + i, lx->len - i, &cp);
        end = i;
    }
    return end;
}

static size_t find_tag(const struct jlex *lx, size_t pos)
{
    while (pos + 1 < lx->len) {
        const char *p = memchr(lx->src + pos, '{', lx->len - pos - 1);
        if (!p)
            return lx->len;
        if (p[1] == '{' || p[1] == '%' || p[1] == '#')
            return (size_t)(p - lx->src);
        pos = (size_t)(p - lx->src) + 1;
    }
    return lx->len;
}

/* {% word %} at pos: returns where it ends, 0 when something else is there. */
static size_t bare_tag(const struct jlex *lx, size_t pos, const char *word, bool trim, char *ret_sign)
{
    if (at(lx, pos) != '{' || at(lx, pos + 1) != '%')
        return 0;
    char sign = at(lx, pos + 2);
    size_t p = sign == '-' || sign == '+' ? pos + 3 : pos + 2;
    size_t n = strlen(word);
    p = skip_space(lx, p);
    if (lx->len - p < n || memcmp(lx->src + p, word, n) != 0)
        return 0;
    p = skip_space(lx, p + n);
    if (!trim && at(lx, p) == '+')
        return 0;
    size_t end = tag_end(lx, p, "%}", true);
    /* the opening tag of a raw block keeps the newline after it */
    if (end && !trim && at(lx, p) != '-')
        end = p + 2;
    *ret_sign = sign;
    return end;
}

static int read_raw(struct jlex *lx, size_t begin_end, struct jtok *tok)
{
    size_t opened = lx->pos;
    match_to(lx, begin_end);
    for (size_t p = lx->pos; p < lx->len; p++) {
        char sign = 0;
        size_t end = lx->src[p] == '{' ? bare_tag(lx, p, "endraw", true, &sign) : 0;
        if (!end)
            continue;
        size_t cut = cut_text(lx, lx->pos, p, sign, false);
        *tok = (struct jtok){ .type = JT_DATA, .line = lx->line, .pos = lx->pos };
        tok->s = lx->src + lx->pos;
        tok->len = cut - lx->pos;
        match_to(lx, end);
        return 0;
    }
    return jlex_fail(lx, opened, "the raw block that starts here has no {%% endraw %%}");
}

static int skip_comment(struct jlex *lx)
{
    size_t p = lx->pos + 2;
    if (at(lx, p) == '-' || at(lx, p) == '+')
        p++;
    for (; p < lx->len; p++) {
        size_t end = tag_end(lx, p, "#}", true);
        if (end) {
            match_to(lx, end);
            return 0;
        }
    }
    return jlex_fail(lx, lx->pos, "the comment that starts here has no #}");
}

static int lex_text(struct jlex *lx, struct jtok *tok)
{
    for (;;) {
        *tok = (struct jtok){ .line = lx->line, .pos = lx->pos };
        if (!lx->at_tag) {
            size_t tag = find_tag(lx, lx->pos);
            char sign = at(lx, tag + 2);
            size_t end = tag == lx->len ? tag : cut_text(lx, lx->pos, tag, sign, at(lx, tag + 1) == '{');
            tok->type = JT_DATA;
            tok->s = lx->src + lx->pos;
            tok->len = end - lx->pos;
            move_to(lx, tag);
            lx->at_tag = tag < lx->len;
            if (tok->len > 0)
                return 0;
        }
        if (!lx->at_tag) {
            tok->type = JT_EOF;
            return 0;
        }
        lx->at_tag = false;
        *tok = (struct jtok){ .line = lx->line, .pos = lx->pos };
        char kind = at(lx, lx->pos + 1), sign = at(lx, lx->pos + 2);
        size_t raw = kind == '%' ? bare_tag(lx, lx->pos, "raw", false, &sign) : 0;
        if (raw || kind == '#') {
            int r = raw ? read_raw(lx, raw, tok) : skip_comment(lx);
            if (r < 0 || (raw && tok->len > 0))
                return r;
            continue;
        }
        match_to(lx, lx->pos + (sign == '-' || sign == '+' ? 3 : 2));
        lx->state = kind == '%' ? BLOCK : VARIABLE;
        tok->type = kind == '%' ? JT_BLOCK_BEGIN : JT_VAR_BEGIN;
        return 0;
    }
}

/* ---- tokens inside tags */

static unsigned hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 16;
}

/* Reads exactly n hex digits at *pos. */
static int read_hex(struct jlex *lx, size_t *pos, unsigned n, uint32_t *ret)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < n; i++, (*pos)++) {
        unsigned d = hex_digit(at(lx, *pos));
        if (d > 15)
            return jlex_fail(lx, *pos, "an escape with %u hexadecimal digits is wanted here", n);
        v = v * 16 + d;
    }
    *ret = v;
    return 0;
}

static int escape_number(struct jlex *lx, size_t *pos, unsigned digits, char **dst)
{
    size_t start = *pos;
    uint32_t cp = 0, low = 0;
    int r = read_hex(lx, pos, digits, &cp);
    if (r < 0)
        return r;
    if (cp >= 0xd800 && cp < 0xdc00 && at(lx, *pos) == '\\' && at(lx, *pos + 1) == 'u') {
        *pos += 2;
        r = read_hex(lx, pos, 4, &low);
        if (r < 0)
            return r;
        if (low >= 0xdc00 && low < 0xe000)
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return jlex_fail(lx, start, "this escape is no code point that text can hold");
    *dst += utf8_encode(cp, *dst);
    return 0;
}

/* One escape at *pos (behind the backslash). Unknown ones stay as they are, backslash and all, as in Python.
 */
static int unescape(struct jlex *lx, size_t *pos, char **dst)
{
    static const char names[] = "abfnrtv\\'\"", codes[] = "\a\b\f\n\r\t\v\\'\"";
    char c = at(lx, (*pos)++);
    const char *name = c ? strchr(names, c) : NULL;
    if (name) {
        *(*dst)++ = codes[name - names];
        return 0;
    }
    if (c == '\n')
        return 0;
    if (c == 'x' || c == 'u' || c == 'U')
        return escape_number(lx, pos, c == 'x' ? 2 : c == 'u' ? 4 : 8, dst);
    if (c == 'N')
        return jlex_fail(lx, *pos - 2, "\\N escapes are not read here: write the character or \\u");
    if (c >= '0' && c <= '7') {
        uint32_t v = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && at(lx, *pos) >= '0' && at(lx, *pos) <= '7'; i++)
            v = v * 8 + (uint32_t)(at(lx, (*pos)++) - '0');
        *dst += utf8_encode(v, *dst);
        return 0;
    }
    *(*dst)++ = '\\';
    *(*dst)++ = c;
    return 0;
}

static int lex_string(struct jlex *lx, struct jtok *tok)
{
    char quote = lx->src[lx->pos];
    size_t end = lx->pos + 1;
    while (end < lx->len && lx->src[end] != quote)
        end += lx->src[end] == '\\' ? 2 : 1;
    if (end >= lx->len)
        return jlex_fail(lx, lx->pos, "the string that starts here has no closing %c", quote);

    size_t p = lx->pos + 1;
    tok->type = JT_STRING;
    tok->s = lx->src + p;
    tok->len = end - p;
    if (memchr(tok->s, '\\', tok->len)) {
        char *text = jarena_alloc(lx->mem, tok->len + 4), *dst = text;
        if (!text)
            return -ENOMEM;
        while (p < end) {
            if (lx->src[p] != '\\') {
                *dst++ = lx->src[p++];
                continue;
            }
            p++;
            int r = unescape(lx, &p, &dst);
            if (r < 0)
                return r;
        }
        tok->s = text;
        tok->len = (size_t)(dst - text);
    }
    match_to(lx, end + 1);
    return 0;
}

/* Digits that may have single underscores between them; returns where they end. */
static size_t digits_end(const struct jlex *lx, size_t p)
{
    while (isdigit((unsigned char)at(lx, p)) || (at(lx, p) == '_' && isdigit((unsigned char)at(lx, p + 1))))
        p++;
    return p;
}

static int lex_float(struct jlex *lx, size_t end, struct jtok *tok)
{
    char text[64];
    size_t n = 0;
    for (size_t i = lx->pos; i < end; i++) {
        if (lx->src[i] == '_')
            continue;
        if (n + 1 >= sizeof text)
            return jlex_fail(lx, lx->pos, "a number of more than %zu digits", sizeof text);
        text[n++] = lx->src[i];
    }
    text[n] = '\0';
    tok->type = JT_FLOAT;
    tok->f = strtod(text, NULL);
    match_to(lx, end);
    return 0;
}

static int lex_integer(struct jlex *lx, struct jtok *tok)
{
    char mark = (char)(at(lx, lx->pos + 1) | 32);
    unsigned base = at(lx, lx->pos) != '0' ? 10 : mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    size_t p = base == 10 ? lx->pos : lx->pos + 2;
    int64_t v = 0;
    tok->type = JT_INT;
    for (;; p++) {
        if (at(lx, p) == '_' && hex_digit(at(lx, p + 1)) < base)
            p++;
        unsigned d = hex_digit(at(lx, p));
        if (d >= base)
            break;
        if (__builtin_mul_overflow(v, (int64_t)base, &v) || __builtin_add_overflow(v, (int64_t)d, &v))
            return jlex_fail(lx, lx->pos, "this integer does not fit in 64 bits");
    }
    tok->i = v;
    match_to(lx, p);
    return 0;
}

static int lex_number(struct jlex *lx, struct jtok *tok)
{
    size_t end = digits_end(lx, lx->pos), e = end;
    bool is_float = false;
    /* after a dot a number is an index: a.0.1 is not a[0.1] */
    if (lx->pos == 0 || lx->src[lx->pos - 1] != '.') {
        if (at(lx, e) == '.' && isdigit((unsigned char)at(lx, e + 1))) {
            e = digits_end(lx, e + 1);
            is_float = true;
            end = e;
        }
        if ((at(lx, e) | 32) == 'e') {
            size_t d = at(lx, e + 1) == '+' || at(lx, e + 1) == '-' ? e + 2 : e + 1;
            if (isdigit((unsigned char)at(lx, d))) {
                end = digits_end(lx, d);
                is_float = true;
            }
        }
    }
    return is_float ? lex_float(lx, end, tok) : lex_integer(lx, tok);
}

static bool name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static int lex_bracket(struct jlex *lx, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *which = strchr(open, c);
    if (which) {
        if (lx->nbrackets == JINJA_MAX_NEST)
            return jlex_fail(lx, lx->pos, "blocks and brackets inside one another: at most %u",
                             JINJA_MAX_NEST);
        lx->brackets[lx->nbrackets++] = close[which - open];
        return 0;
    }
    if (!strchr(close, c))
        return 0;
    if (lx->nbrackets == 0)
        return jlex_fail(lx, lx->pos, "unexpected '%c'", c);
    char wanted = lx->brackets[--lx->nbrackets];
    return c == wanted ? 0 : jlex_fail(lx, lx->pos, "unexpected '%c', expected '%c'", c, wanted);
}

static int lex_operator(struct jlex *lx, struct jtok *tok)
{
    static const char pairs[][3] = { "//", "**", "==", "!=", ">=", "<=" };
    char c = at(lx, lx->pos);
    tok->type = JT_OP;
    for (unsigned i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (c == pairs[i][0] && at(lx, lx->pos + 1) == pairs[i][1]) {
            tok->op = (uint8_t)(JT2_FLOORDIV + i);
            match_to(lx, lx->pos + 2);
            return 0;
        }
    }
    if (!c || !strchr("+-/*%~[](){}<>=.:|,;", c))
        return jlex_fail(lx, lx->pos, "unexpected character '%.*s'",
                         (int)(jstr_offset(lx->src + lx->pos, lx->len - lx->pos, 1)), lx->src + lx->pos);
    int r = lex_bracket(lx, c);
    if (r < 0)
        return r;
    tok->op = (uint8_t)c;
    match_to(lx, lx->pos + 1);
    return 0;
}

static int lex_tag(struct jlex *lx, struct jtok *tok)
{
    bool block = lx->state == BLOCK;
    for (;;) {
        *tok = (struct jtok){ .line = lx->line, .pos = lx->pos };
        if (lx->pos >= lx->len) {
            tok->type = JT_EOF;
            return 0;
        }
        size_t end = lx->nbrackets ? 0 : tag_end(lx, lx->pos, block ? "%}" : "}}", block);
        if (end) {
            match_to(lx, end);
            lx->state = TEXT;
            tok->type = block ? JT_BLOCK_END : JT_VAR_END;
            return 0;
        }
        size_t blank = skip_space(lx, lx->pos);
        if (blank == lx->pos)
            break;
        match_to(lx, blank);
    }
    char c = at(lx, lx->pos);
    if (isdigit((unsigned char)c))
        return lex_number(lx, tok);
    if (c == '\'' || c == '"')
        return lex_string(lx, tok);
    if (!name_byte(c))
        return lex_operator(lx, tok);
    size_t p = lx->pos;
    while (p < lx->len && name_byte(lx->src[p]) && !(lx->src[p] & 0x80 && space_at(lx, p)))
        p++;
    tok->type = JT_NAME;
    tok->s = lx->src + lx->pos;
    tok->len = p - lx->pos;
    match_to(lx, p);
    return 0;
}

int jlex_next(struct jlex *lx, struct jtok *tok)
{
    return lx->state == TEXT ? lex_text(lx, tok) : lex_tag(lx, tok);
}
