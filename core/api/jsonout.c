/* Jsonout: see jsonout.h. */
#include "api/jsonout.h"
#include "util/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *short_escape(unsigned char c)
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    default:
        return NULL;
    }
}

void jsonout_escape(struct buf *b, const char *text, size_t len)
{
    size_t done = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        buf_append(b, text + done, i - done);
        done = i + 1;
        const char *s = short_escape(c);
        if (s)
            buf_puts(b, s);
        else
            buf_printf(b, "\\u%04x", c);
    }
    buf_append(b, text + done, len - done);
}

void jsonout_str(struct buf *b, const char *text, size_t len)
{
    buf_putc(b, '"');
    jsonout_escape(b, text, len);
    buf_putc(b, '"');
}

void jsonout_bytes_str(struct buf *b, const char *bytes, size_t len)
{
    size_t done = 0, i = 0;
    uint32_t cp;
    buf_putc(b, '"');
    while (i < len) {
        unsigned n = utf8_decode(bytes + i, len - i, &cp);
        if (n) {
            i += n;
            continue;
        }
        jsonout_escape(b, bytes + done, i - done);
        buf_puts(b, "\xef\xbf\xbd");
        done = ++i;
    }
    jsonout_escape(b, bytes + done, len - done);
    buf_putc(b, '"');
}

void jsonout_int(struct buf *b, int64_t v)
{
    char text[24];
    char *p = text + sizeof text;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    buf_append(b, p, (size_t)(text + sizeof text - p));
}

void jsonout_real(struct buf *b, double v, int digits)
{
    if (isfinite(v))
        buf_printf(b, "%.*g", digits, v);
    else
        buf_puts(b, "null");
}

void jsonout_short(struct buf *b, double v)
{
    double size = fabs(v);
    if (!(size < 1e9) || (size > 0 && size < 1e-3)) {
        jsonout_real(b, v, size < 1 ? 6 : 15);
        return;
    }
    /* By hand: printf takes ten times as long, and a server has a thousand slots. */
    int64_t millionths = llround(v * 1e6);
    uint64_t rest = (uint64_t)(millionths < 0 ? -millionths : millionths) % 1000000;
    if (millionths < 0 && millionths > -1000000)
        buf_putc(b, '-');
    jsonout_int(b, millionths / 1000000);
    if (!rest)
        return;
    char digits[8] = ".";
    int n = 7;
    for (int i = 6; i > 0; i--, rest /= 10)
        digits[i] = (char)('0' + rest % 10);
    while (digits[n - 1] == '0')
        n--;
    buf_append(b, digits, (size_t)n);
}
