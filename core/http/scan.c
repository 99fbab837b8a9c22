/* Scan: a small automaton over a request's bytes. Owner: the connection whose bytes it sees.
 * Must not know: evhttp, sockets. Tests: tests/unit/test_http_scan.c */
#include "http/scan.h"

#include <string.h>

static const char coding_name[] = "transfer-encoding:";
enum {
    NAME_LEN = sizeof coding_name - 1,
    MAX_SIZE_LINE =
        256, /* evhttp takes a size line of any length and searches it from the start at each read */
    MAX_SIZE_DIGITS = 15,
};

void http_scan_reset(struct http_scan *s)
{
    memset(s, 0, sizeof *s);
}

size_t http_scan_skip(struct http_scan *s, size_t n)
{
    size_t skip = 0;

    if (s->state == SCAN_BODY || s->state == SCAN_TRAILER)
        return n;
    if (s->state == SCAN_CHUNK_DATA) {
        skip = s->chunk < n ? (size_t)s->chunk : n;
        s->chunk -= skip;
        if (s->chunk == 0) {
            s->state = SCAN_CHUNK_SIZE;
            s->line = s->digits = 0;
            s->ext = false;
        }
    }
    return skip;
}

static void header_byte(struct http_scan *s, unsigned char ch)
{
    s->header++;
    if (ch == '\n') {
        if (s->line == 0 || (s->line == 1 && s->cr)) {
            s->state = s->chunked ? SCAN_CHUNK_SIZE : SCAN_BODY;
            s->digits = 0;
            s->ext = false;
        }
        s->line = 0;
        s->matched = 0;
        s->cr = false;
        return;
    }
    if (s->line == s->matched && s->matched < NAME_LEN) {
        unsigned char lower = ch >= 'A' && ch <= 'Z' ? (unsigned char)(ch | 0x20) : ch;

        if (lower == (unsigned char)coding_name[s->matched] && ++s->matched == NAME_LEN)
            s->chunked = true;
    }
    s->cr = ch == '\r';
    s->line++;
}

static int hex_value(unsigned char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    ch |= 0x20;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* The line after a chunk's data is empty; evhttp skips empty lines here, and so do we. */
static int size_line_end(struct http_scan *s, uint64_t max_body)
{
    bool empty = s->line == 0 || (s->line == 1 && s->cr);

    s->line = 0;
    s->cr = false;
    if (empty)
        return 0;
    if (s->digits == 0)
        return 400;
    s->digits = 0;
    s->ext = false;
    if (s->chunk > max_body - s->body)
        return 413;
    s->body += s->chunk;
    s->state = s->chunk ? SCAN_CHUNK_DATA : SCAN_TRAILER;
    return 0;
}

static int size_byte(struct http_scan *s, unsigned char ch, uint64_t max_body)
{
    int digit = hex_value(ch);

    if (ch == '\n')
        return size_line_end(s, max_body);
    if (++s->line > MAX_SIZE_LINE)
        return 400;
    if (s->cr)
        return 400;
    if (ch == '\r') {
        s->cr = true;
        return 0;
    }
    if (s->ext)
        return 0;
    if (digit >= 0) {
        if (s->digits == 0)
            s->chunk = 0;
        if (++s->digits > MAX_SIZE_DIGITS)
            return 413;
        s->chunk = s->chunk << 4 | (unsigned)digit;
        return 0;
    }
    if (s->digits == 0 || ch != ' ')
        return 400;
    s->ext = true;
    return 0;
}

int http_scan_feed(struct http_scan *s, const unsigned char *data, size_t len, uint64_t max_header,
                   uint64_t max_body)
{
    for (size_t i = 0; i < len;) {
        int r = 0;

        if (s->state == SCAN_HEADER) {
            header_byte(s, data[i++]);
            if (s->header > max_header)
                return 431;
        } else if (s->state == SCAN_CHUNK_SIZE) {
            r = size_byte(s, data[i++], max_body);
        } else {
            i += http_scan_skip(s, len - i);
        }
        if (r)
            return r;
    }
    return 0;
}
