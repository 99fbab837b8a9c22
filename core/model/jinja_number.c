/* Arithmetic as Python's: floor division, the sign of %, exact integers (of 64 bits: more is an error), and
 * what +, * and % mean for text and lists. Pure but for memory. Must not know: the tree. Tests:
 * tests/unit/test_chat.c, tests/e2e/test_render.py */
#include "model/jinja_run.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char op_names[][3] = { "+", "-", "*", "/", "//", "%", "**" };

static int too_big(struct jrt *rt)
{
    return jfail(rt, "an integer beyond 64 bits");
}

static int int_pow(struct jrt *rt, int64_t base, int64_t exp, struct jval *ret)
{
    int64_t v = 1;
    if (exp < 0) {
        if (base == 0)
            return jfail(rt, "0 to a negative power");
        *ret = jfloat(pow((double)base, (double)exp));
        return 0;
    }
    while (exp > 0) {
        if (exp & 1 && __builtin_mul_overflow(v, base, &v))
            return too_big(rt);
        exp >>= 1;
        if (exp > 0 && __builtin_mul_overflow(base, base, &base))
            return too_big(rt);
    }
    *ret = jint(v);
    return 0;
}

static int int_binary(struct jrt *rt, enum jop op, int64_t a, int64_t b, struct jval *ret)
{
    int64_t v = 0;
    bool over = false;
    if ((op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD) && b == 0)
        return jfail(rt, "division by zero");
    switch (op) {
    case JO_ADD:
        over = __builtin_add_overflow(a, b, &v);
        break;
    case JO_SUB:
        over = __builtin_sub_overflow(a, b, &v);
        break;
    case JO_MUL:
        over = __builtin_mul_overflow(a, b, &v);
        break;
    case JO_DIV:
        *ret = jfloat((double)((long double)a / (long double)b));
        return 0;
    case JO_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        v = over ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
        break;
    case JO_MOD:
        v = b == -1 ? 0 : a % b;
        if (v != 0 && (v < 0) != (b < 0))
            v += b;
        break;
    case JO_POW:
        return int_pow(rt, a, b, ret);
    }
    if (over)
        return too_big(rt);
    *ret = jint(v);
    return 0;
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return m != 0 ? m : copysign(0.0, b);
}

static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0))
        q -= 1.0;
    if (q == 0)
        return copysign(0.0, a / b);
    double f = floor(q);
    return q - f > 0.5 ? f + 1.0 : f;
}

static int float_binary(struct jrt *rt, enum jop op, double a, double b, struct jval *ret)
{
    double v = 0;
    if ((op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD) && b == 0)
        return jfail(rt, "division by zero");
    switch (op) {
    case JO_ADD:
        v = a + b;
        break;
    case JO_SUB:
        v = a - b;
        break;
    case JO_MUL:
        v = a * b;
        break;
    case JO_DIV:
        v = a / b;
        break;
    case JO_FLOORDIV:
        v = float_floordiv(a, b);
        break;
    case JO_MOD:
        v = float_mod(a, b);
        break;
    case JO_POW:
        if ((a == 0 && b < 0) || (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)))
            return jfail(rt, "a power that is not a real number");
        v = pow(a, b);
        if (isinf(v) && isfinite(a) && isfinite(b))
            return jfail(rt, "a power beyond the range of floats");
        break;
    }
    *ret = jfloat(v);
    return 0;
}

static int add_text(struct jrt *rt, const struct jval *a, const struct jval *b, struct jval *ret)
{
    struct jval parts[2] = { *a, *b };
    uint8_t markup = (a->flags | b->flags) & JF_MARKUP;
    for (int i = 0; markup && i < 2; i++) {
        size_t start = rt->out.len;
        int r = jwrite_escaped(rt, &parts[i]);
        if (r >= 0)
            r = jcapture(rt, start, &parts[i]);
        if (r < 0)
            return r;
    }
    int r = jstr_concat(rt, parts, 2, ret);
    ret->flags |= markup;
    return r;
}

static int add_seq(struct jrt *rt, const struct jval *a, const struct jval *b, struct jval *ret)
{
    size_t n = a->len + b->len;
    int r = jcharge(rt, n / 8);
    struct jval *items = r < 0 ? NULL : jalloc(rt, n, sizeof *items);
    if (!items)
        return r < 0 ? r : jnomem(rt);
    for (size_t i = 0; i < a->len; i++)
        items[i] = jseq_get(a, i);
    for (size_t i = 0; i < b->len; i++)
        items[a->len + i] = jseq_get(b, i);
    *ret = (struct jval){ .type = a->type == J_TUPLE ? J_TUPLE : J_LIST, .items = items, .len = n };
    return 0;
}

static int repeat_seq(struct jrt *rt, const struct jval *v, int64_t times, struct jval *ret)
{
    size_t n;
    if (times < 0)
        times = 0;
    if (__builtin_mul_overflow(v->len, (size_t)times, &n))
        n = SIZE_MAX;
    int r = jcharge(rt, n / 8);
    struct jval *items = r < 0 ? NULL : jalloc(rt, n, sizeof *items);
    if (!items)
        return r < 0 ? r : jnomem(rt);
    for (size_t i = 0; i < n; i++)
        items[i] = jseq_get(v, i % v->len);
    *ret = (struct jval){ .type = v->type == J_TUPLE ? J_TUPLE : J_LIST, .items = items, .len = n };
    return 0;
}

static bool is_count(const struct jval *v)
{
    return v->type == J_INT || v->type == J_BOOL;
}

/* What the operators mean where not both sides are numbers. 0 in *done: nothing. */
static int other_binary(struct jrt *rt, enum jop op, const struct jval *a, const struct jval *b,
                        struct jval *ret, bool *done)
{
    *done = true;
    if (op == JO_MOD && a->type == J_STR)
        return jformat_percent(rt, a, b, ret);
    if (op == JO_ADD && a->type == J_STR && b->type == J_STR)
        return add_text(rt, a, b, ret);
    if (op == JO_ADD && jis_seq(a) && jis_seq(b) && (a->type == J_TUPLE) == (b->type == J_TUPLE))
        return add_seq(rt, a, b, ret);
    if (op == JO_MUL && is_count(a) && (b->type == J_STR || jis_seq(b)))
        return other_binary(rt, op, b, a, ret, done);
    if (op == JO_MUL && a->type == J_STR && is_count(b))
        return jstr_repeat(rt, a, b->i, ret);
    if (op == JO_MUL && jis_seq(a) && is_count(b))
        return repeat_seq(rt, a, b->i, ret);
    *done = false;
    return 0;
}

int jbinary(struct jrt *rt, enum jop op, const struct jval *a, const struct jval *b, struct jval *ret)
{
    bool done;
    if (jis_number(a) && jis_number(b)) {
        if (a->type == J_FLOAT || b->type == J_FLOAT)
            return float_binary(rt, op, jnum_of(a), jnum_of(b), ret);
        return int_binary(rt, op, a->i, b->i, ret);
    }
    int r = other_binary(rt, op, a, b, ret, &done);
    if (r < 0 || done)
        return r;
    if (a->type == J_UNDEF || b->type == J_UNDEF)
        return jundef_fail(rt, a->type == J_UNDEF ? a : b);
    return jfail(rt, "%s does not work between %s and %s", op_names[op], jtype_name(a), jtype_name(b));
}

int jnegate(struct jrt *rt, const struct jval *v, bool positive, struct jval *ret)
{
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    if (!jis_number(v))
        return jfail(rt, "a sign before a %s", jtype_name(v));
    if (v->type == J_FLOAT) {
        *ret = jfloat(positive ? v->f : -v->f);
        return 0;
    }
    if (!positive && v->i == INT64_MIN)
        return too_big(rt);
    *ret = jint(positive ? v->i : -v->i);
    return 0;
}

/* ---- numbers from text */

static unsigned digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    c = (char)(c | 32);
    return c >= 'a' && c <= 'z' ? (unsigned)(c - 'a') + 10 : 99;
}

/* Skips 0x, 0o, 0b where the base allows it; base 0 learns the base from it. */
static const char *int_prefix(const char *p, const char *end, int64_t *base)
{
    static const char marks[] = "xob";
    static const int64_t bases[] = { 16, 8, 2 };
    const char *mark = end - p > 2 && p[0] == '0' ? strchr(marks, p[1] | 32) : NULL;
    if (mark && (*base == 0 || *base == bases[mark - marks])) {
        *base = bases[mark - marks];
        return p[2] == '_' ? p + 3 : p + 2;
    }
    if (*base == 0)
        *base = 10;
    return p;
}

bool jparse_int(const struct jval *s, int64_t base, int64_t *ret)
{
    struct jval t = jstr_strip(s, NULL, JS_LEFT | JS_RIGHT);
    const char *p = t.s, *end = t.s + t.len;
    bool minus = p < end && *p == '-';
    int64_t v = 0;
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    p = int_prefix(p, end, &base);
    if (p == end)
        return false;
    for (bool digit = false; p < end; p++) {
        if (*p == '_' && digit) {
            digit = false;
            continue;
        }
        unsigned d = digit_of(*p);
        if (d >= (uint64_t)base || __builtin_mul_overflow(v, base, &v) ||
            (minus ? __builtin_sub_overflow(v, (int64_t)d, &v) : __builtin_add_overflow(v, (int64_t)d, &v)))
            return false;
        digit = true;
    }
    *ret = v;
    return end[-1] != '_';
}

bool jparse_float(const struct jval *s, double *ret)
{
    struct jval t = jstr_strip(s, NULL, JS_LEFT | JS_RIGHT);
    char text[400], *stop;
    size_t n = 0;
    if (t.len == 0 || t.len >= sizeof text)
        return false;
    for (size_t i = 0; i < t.len; i++) {
        bool between = i > 0 && i + 1 < t.len && isdigit((unsigned char)t.s[i - 1]) &&
                       isdigit((unsigned char)t.s[i + 1]);
        if (t.s[i] == '_' && between)
            continue;
        /* strtod also reads hexadecimal and nan(...), Python does not */
        if (t.s[i] == '\0' || strchr("xX()pP_", t.s[i]))
            return false;
        text[n++] = t.s[i];
    }
    text[n] = '\0';
    *ret = strtod(text, &stop);
    return stop != text && *stop == '\0';
}

bool jfit_int(double f, int64_t *ret)
{
    if (!(f > -9223372036854775809.0 && f < 9223372036854775808.0))
        return false;
    *ret = (int64_t)f;
    return true;
}

int jto_int(struct jrt *rt, const struct jval *v, int64_t base, const struct jval *dflt, struct jval *ret)
{
    int64_t i;
    double f;
    *ret = *dflt;
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    if (v->type == J_INT || v->type == J_BOOL) {
        *ret = jint(v->i);
    } else if (v->type == J_FLOAT) {
        if (isnan(v->f))
            return 0;
        if (!jfit_int(v->f, &i))
            return too_big(rt);
        *ret = jint(i);
    } else if (v->type == J_STR) {
        if (jparse_int(v, base, &i) || (jparse_float(v, &f) && jfit_int(f, &i)))
            *ret = jint(i);
    }
    return 0;
}

/* ---- rounding */

static int round_int(struct jrt *rt, int64_t v, int64_t digits, struct jval *ret)
{
    *ret = jint(v);
    if (digits >= 0)
        return 0;
    if (digits < -18) {
        *ret = jint(0);
        return 0;
    }
    int64_t unit = 1;
    for (; digits < 0; digits++)
        unit *= 10;
    int64_t rest = v % unit, down = v - rest;
    if (rest < 0) {
        rest += unit;
        if (__builtin_sub_overflow(down, unit, &down))
            return too_big(rt);
    }
    bool up = rest > unit - rest || (rest == unit - rest && (down / unit) % 2 != 0);
    if (up && __builtin_add_overflow(down, unit, &down))
        return too_big(rt);
    *ret = jint(down);
    return 0;
}

/* To the nearest, ties (of the exact binary value) to even, as Python's round(). */
static double round_float(double f, int64_t digits)
{
    char text[360];
    if (!isfinite(f) || digits > 323)
        return f;
    if (digits < -308)
        return copysign(0.0, f);
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)(digits > 30 ? 30 : digits), f);
        return digits > 30 && fabs(f) > 1e-10 ? f : strtod(text, NULL);
    }
    double unit = pow(10.0, (double)-digits);
    return rint(f / unit) * unit;
}

int jround(struct jrt *rt, const struct jval *v, int64_t digits, const struct jval *method, struct jval *ret)
{
    bool common = method->type == J_STR && method->len == 6 && memcmp(method->s, "common", 6) == 0;
    bool up = method->type == J_STR && method->len == 4 && memcmp(method->s, "ceil", 4) == 0;
    bool down = method->type == J_STR && method->len == 5 && memcmp(method->s, "floor", 5) == 0;
    if (!common && !up && !down)
        return jfail(rt, "round wants the method 'common', 'ceil' or 'floor'");
    if (v->type == J_UNDEF)
        return jundef_fail(rt, v);
    if (!jis_number(v))
        return jfail(rt, "round wants a number, not %s", jtype_name(v));
    if (common) {
        if (v->type != J_FLOAT)
            return round_int(rt, v->i, digits, ret);
        *ret = jfloat(round_float(v->f, digits));
        return jcharge(rt, 20);
    }
    double unit = pow(10.0, (double)digits), f = jnum_of(v) * unit;
    *ret = jfloat((up ? ceil(f) : floor(f)) / unit);
    return isfinite(ret->f) ? 0 : jfail(rt, "round to %lld digits", (long long)digits);
}
