/* Utf8: well-formed sequences are those of table 3-7 of the Unicode standard; the second byte decides about
 * overlong forms, surrogates and the upper end, so one range check on it is enough. Pure; any thread. Tests:
 * tests/unit/test_util.c (against Python's table of borders, and by brute force over two and three bytes) */
#include "util/utf8.h"
#include <string.h>

struct lead {
    unsigned len;            /* of the sequence; 0: not a first byte */
    unsigned char low, high; /* allowed second byte */
};

static struct lead lead_of(unsigned char c)
{
    if (c < 0x80)
        return (struct lead){ 1, 0, 0 };
    if (c < 0xC2)
        return (struct lead){ 0, 0, 0 };
    if (c < 0xE0)
        return (struct lead){ 2, 0x80, 0xBF };
    if (c < 0xF0)
        return (struct lead){ 3, c == 0xE0 ? 0xA0 : 0x80, c == 0xED ? 0x9F : 0xBF };
    if (c < 0xF5)
        return (struct lead){ 4, c == 0xF0 ? 0x90 : 0x80, c == 0xF4 ? 0x8F : 0xBF };
    return (struct lead){ 0, 0, 0 };
}

static bool is_continuation(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

unsigned utf8_decode(const char *text, size_t len, uint32_t *ret_cp)
{
    const unsigned char *p = (const unsigned char *)text;
    struct lead lead = lead_of(p[0]);
    uint32_t cp;

    if (lead.len == 0 || lead.len > len)
        return 0;
    if (lead.len == 1) {
        *ret_cp = p[0];
        return 1;
    }
    if (p[1] < lead.low || p[1] > lead.high)
        return 0;
    cp = p[0] & (0x7Fu >> lead.len);
    for (unsigned i = 1; i < lead.len; i++) {
        if (!is_continuation(p[i]))
            return 0;
        cp = cp << 6 | (p[i] & 0x3Fu);
    }
    *ret_cp = cp;
    return lead.len;
}

unsigned utf8_encode(uint32_t cp, char dst[4])
{
    if (cp < 0x80) {
        dst[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        dst[0] = (char)(0xC0 | cp >> 6);
        dst[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        dst[0] = (char)(0xE0 | cp >> 12);
        dst[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        dst[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    dst[0] = (char)(0xF0 | cp >> 18);
    dst[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    dst[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    dst[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_valid(const char *text, size_t len)
{
    size_t i = 0;

    while (i < len) {
        uint32_t cp;
        unsigned n = (unsigned char)text[i] < 0x80 ? 1 : utf8_decode(text + i, len - i, &cp);

        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

void utf8_mend(char *text)
{
    uint32_t cp;

    for (size_t len = strlen(text), n; len; text += n, len -= n) {
        n = utf8_decode(text, len, &cp);
        if (n == 0) {
            *text = '?';
            n = 1;
        }
    }
}

size_t utf8_incomplete_tail(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;

    for (size_t n = 1; n <= 3 && n <= len; n++) {
        const unsigned char *start = p + len - n;
        struct lead lead;

        if (is_continuation(*start))
            continue;
        lead = lead_of(*start);
        if (lead.len <= n || (n > 1 && (start[1] < lead.low || start[1] > lead.high)))
            return 0;
        return n;
    }
    return 0;
}
