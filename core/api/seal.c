/* Seal: see calls.h. Pure. Tests: tests/e2e/test_responses.py */
#include "api/private.h"
#include "util/utf8.h"
#include <string.h>

static const char mark[] = "berth-1.";
static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void reasoning_seal(const char *text, size_t len, struct buf *out)
{
    buf_puts(out, mark);
    for (size_t i = 0; i < len; i += 3) {
        uint32_t three = 0;
        for (size_t k = 0; k < 3; k++)
            three = three << 8 | (i + k < len ? (unsigned char)text[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            buf_putc(out, i + k > len ? '=' : letters[three >> (18 - 6 * k) & 63]);
    }
}

bool reasoning_unseal(const char *sealed, struct buf *out)
{
    uint32_t bits = 0;
    unsigned n = 0;
    if (strncmp(sealed, mark, sizeof mark - 1) != 0)
        return false;
    for (const char *p = sealed + sizeof mark - 1; *p && *p != '='; p++) {
        const char *at = strchr(letters, *p);
        if (!at)
            break;
        bits = bits << 6 | (uint32_t)(at - letters);
        n += 6;
        if (n >= 8) {
            n -= 8;
            buf_putc(out, (char)(bits >> n & 255));
        }
    }
    if (out->len && !utf8_valid(out->data, out->len)) /* it was tampered with */
        buf_clear(out);
    return true;
}
