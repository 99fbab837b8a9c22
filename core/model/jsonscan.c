/* Jsonscan: see jsonscan.h. A pushdown automaton; each state is one function. */
#include "model/jsonscan.h"
#include <string.h>

enum {
    VALUE,       /* a value must begin */
    FIRST_VALUE, /* a value, or the end of an array */
    FIRST_KEY,   /* a key, or the end of an object */
    KEY,
    COLON,
    NEXT, /* a comma or the end of the container */
    STRING,
    ESCAPE,
    HEX,
    LOW_SLASH, /* the second half of a pair must follow: its backslash */
    LOW_U,     /* its u */
    NUMBER,
    LITERAL,
};

/* Where in a number; those from which it may end are marked. */
enum { MINUS, ZERO, INTEGER, POINT, FRACTION, EXPONENT, EXPONENT_SIGN, EXPONENT_DIGITS };

void jsonscan_init(struct jsonscan *s)
{
    *s = (struct jsonscan){ .state = VALUE };
}

enum jsonscan_place jsonscan_place(const struct jsonscan *s)
{
    return s->state <= FIRST_VALUE ? JSONSCAN_VALUE
           : s->state <= KEY       ? JSONSCAN_KEY
           : s->state == COLON     ? JSONSCAN_COLON
           : s->state == NEXT      ? JSONSCAN_NEXT
                                   : JSONSCAN_INSIDE;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* A value is complete. */
static enum jsonscan_result value_ends(struct jsonscan *s)
{
    s->state = NEXT;
    return s->depth ? JSONSCAN_MORE : JSONSCAN_DONE;
}

static enum jsonscan_result open_container(struct jsonscan *s, char c)
{
    if (s->depth == JSONSCAN_DEPTH)
        return JSONSCAN_BAD;
    s->stack[s->depth++] = (uint8_t)c;
    s->state = c == '{' ? FIRST_KEY : FIRST_VALUE;
    return JSONSCAN_MORE;
}

static enum jsonscan_result close_container(struct jsonscan *s, char c)
{
    if (!s->depth || s->stack[s->depth - 1] != (c == '}' ? '{' : '['))
        return JSONSCAN_BAD;
    s->depth--;
    return value_ends(s);
}

static enum jsonscan_result begin_value(struct jsonscan *s, char c)
{
    if (c == '{' || c == '[')
        return open_container(s, c);
    if (c == '"') {
        s->state = STRING;
        s->is_key = false;
        return JSONSCAN_MORE;
    }
    if (c == '-' || is_digit(c)) {
        s->state = NUMBER;
        s->number = c == '-' ? MINUS : c == '0' ? ZERO : INTEGER;
        return JSONSCAN_MORE;
    }
    s->literal = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : NULL;
    s->state = LITERAL;
    return s->literal ? JSONSCAN_MORE : JSONSCAN_BAD;
}

static enum jsonscan_result between(struct jsonscan *s, char c)
{
    switch (s->state) {
    case FIRST_VALUE:
        return c == ']' ? close_container(s, c) : begin_value(s, c);
    case FIRST_KEY:
    case KEY:
        if (c == '}' && s->state == FIRST_KEY)
            return close_container(s, c);
        s->state = STRING;
        s->is_key = true;
        return c == '"' ? JSONSCAN_MORE : JSONSCAN_BAD;
    case COLON:
        s->state = VALUE;
        return c == ':' ? JSONSCAN_MORE : JSONSCAN_BAD;
    case NEXT:
        if (c != ',')
            return close_container(s, c);
        s->state = s->stack[s->depth - 1] == '{' ? KEY : VALUE;
        return JSONSCAN_MORE;
    default:
        return begin_value(s, c);
    }
}

static enum jsonscan_result string_ends(struct jsonscan *s)
{
    if (!s->is_key)
        return value_ends(s);
    s->state = COLON;
    return JSONSCAN_MORE;
}

static enum jsonscan_result in_string(struct jsonscan *s, char c, struct buf *out)
{
    static const char named[] = "b\bf\fn\nr\rt\t";
    if (c == '"') {
        buf_putc(out, c);
        return string_ends(s);
    }
    if (c == '\\') {
        s->state = ESCAPE; /* written with what follows */
    } else if ((unsigned char)c >= 0x20) {
        buf_putc(out, c);
    } else {
        const char *name = c ? strchr(named, c) : NULL;
        if (name)
            buf_printf(out, "\\%c", name[-1]);
        else
            buf_printf(out, "\\u%04x", (unsigned)c);
    }
    return JSONSCAN_MORE;
}

static enum jsonscan_result in_escape(struct jsonscan *s, char c, struct buf *out)
{
    s->state = STRING;
    if (c == 'u') {
        buf_puts(out, "\\u");
        s->state = HEX;
        s->digits = 4;
        s->unit = 0;
        return JSONSCAN_MORE;
    }
    if (c && strchr("\"\\/bfnrt", c)) {
        buf_putc(out, '\\');
        buf_putc(out, c);
        return JSONSCAN_MORE;
    }
    if (c == '\'') { /* as other languages quote */
        buf_putc(out, c);
        return JSONSCAN_MORE;
    }
    buf_puts(out, "\\\\");
    return in_string(s, c, out);
}

static enum jsonscan_result in_hex(struct jsonscan *s, char c, struct buf *out)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    if (!at)
        return JSONSCAN_BAD;
    buf_putc(out, c);
    s->unit = (uint16_t)(s->unit << 4 | (at - digits));
    if (--s->digits)
        return JSONSCAN_MORE;
    bool is_low = s->unit >= 0xdc00 && s->unit <= 0xdfff,
         is_high = s->unit >= 0xd800 && !is_low && s->unit < 0xdc00;
    if (is_low != (s->high != 0))
        return JSONSCAN_BAD; /* half a character */
    s->high = is_high ? s->unit : 0;
    s->state = is_high ? LOW_SLASH : STRING;
    return JSONSCAN_MORE;
}

static enum jsonscan_result in_pair(struct jsonscan *s, char c, struct buf *out)
{
    if (c != (s->state == LOW_SLASH ? '\\' : 'u'))
        return JSONSCAN_BAD;
    buf_putc(out, c);
    s->state = s->state == LOW_SLASH ? LOW_U : HEX;
    s->digits = 4;
    s->unit = 0;
    return JSONSCAN_MORE;
}

static bool number_goes_on(struct jsonscan *s, char c)
{
    uint8_t at = s->number;
    if (is_digit(c)) {
        if (at == ZERO)
            return false;
        s->number = at == MINUS                             ? (c == '0' ? ZERO : INTEGER)
                    : at == POINT                           ? FRACTION
                    : at == EXPONENT || at == EXPONENT_SIGN ? EXPONENT_DIGITS
                                                            : at;
        return true;
    }
    if (c == '.' && (at == ZERO || at == INTEGER))
        s->number = POINT;
    else if ((c == 'e' || c == 'E') && (at == ZERO || at == INTEGER || at == FRACTION))
        s->number = EXPONENT;
    else if ((c == '+' || c == '-') && at == EXPONENT)
        s->number = EXPONENT_SIGN;
    else
        return false;
    return true;
}

static enum jsonscan_result in_number(struct jsonscan *s, char c, struct buf *out)
{
    if (number_goes_on(s, c)) {
        buf_putc(out, c);
        return JSONSCAN_MORE;
    }
    uint8_t at = s->number;
    if (at == MINUS || at == POINT || at == EXPONENT || at == EXPONENT_SIGN)
        return JSONSCAN_BAD;
    if (value_ends(s) == JSONSCAN_DONE)
        return JSONSCAN_BEFORE;
    return jsonscan_byte(s, c, out);
}

enum jsonscan_result jsonscan_byte(struct jsonscan *s, char c, struct buf *out)
{
    switch (s->state) {
    case STRING:
        return in_string(s, c, out);
    case ESCAPE:
        return in_escape(s, c, out);
    case HEX:
        return in_hex(s, c, out);
    case LOW_SLASH:
    case LOW_U:
        return in_pair(s, c, out);
    case NUMBER:
        return in_number(s, c, out);
    case LITERAL:
        buf_putc(out, c);
        if (*s->literal != c)
            return JSONSCAN_BAD;
        return *++s->literal ? JSONSCAN_MORE : value_ends(s);
    default:
        buf_putc(out, c);
        return jsonscan_is_space(c) ? JSONSCAN_MORE : between(s, c);
    }
}
