/* The scanner beside evhttp: header end and length, chunk sizes and sums, whatever way the bytes are cut. */
#include "http/scan.h"

#include <criterion/criterion.h>
#include <string.h>

enum { MAX_HEADER = 64, MAX_BODY = 100 };

/* Feeds in pieces of `step` bytes; the status, or 0. */
static int feed(struct http_scan *s, const char *text, size_t len, size_t step)
{
    http_scan_reset(s);
    for (size_t i = 0; i < len; i += step) {
        size_t n = len - i < step ? len - i : step;
        int r = http_scan_feed(s, (const unsigned char *)text + i, n, MAX_HEADER, MAX_BODY);

        if (r)
            return r;
    }
    return 0;
}

static void expect(const char *text, int status, enum http_scan_state state, uint64_t body)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        struct http_scan s;

        cr_assert_eq(feed(&s, text, strlen(text), step), status, "%s in steps of %zu", text, step);
        if (status)
            continue;
        cr_assert_eq((int)s.state, (int)state, "%s in steps of %zu", text, step);
        cr_assert_eq(s.body, body, "%s in steps of %zu", text, step);
    }
}

Test(http_scan, a_blank_line_ends_the_header)
{
    expect("GET / HTTP/1.1\r\nA: b\r\n", 0, SCAN_HEADER, 0);
    expect("GET / HTTP/1.1\r\nA: b\r\n\r\n", 0, SCAN_BODY, 0);
    expect("GET / HTTP/1.1\nA: b\n\n", 0, SCAN_BODY, 0);
    expect("GET / HTTP/1.1\r\nA: b\r\n\rX\r\n", 0, SCAN_HEADER, 0);
    expect("GET / HTTP/1.1\r\nA: b\r\n\r\r\n", 0, SCAN_HEADER, 0);
}

Test(http_scan, a_header_beyond_the_limit_is_refused_at_the_first_byte_too_many)
{
    char text[MAX_HEADER + 1];
    struct http_scan s;

    memset(text, 'a', sizeof text);
    cr_expect_eq(feed(&s, text, MAX_HEADER, 7), 0);
    cr_expect_eq(feed(&s, text, MAX_HEADER + 1, 7), 431);
}

Test(http_scan, only_a_line_that_begins_with_the_name_makes_a_body_chunked)
{
    expect("P\r\ntransfer-ENCODING: chunked\r\n\r\n", 0, SCAN_CHUNK_SIZE, 0);
    expect("P\r\nTransfer-Encoding:x\r\n\r\n", 0, SCAN_CHUNK_SIZE, 0);
    expect("P\r\nX-Transfer-Encoding: chunked\r\n\r\n", 0, SCAN_BODY, 0);
    expect("P\r\n Transfer-Encoding: chunked\r\n\r\n", 0, SCAN_BODY, 0);
    expect("P\r\nTransfer-Encoding : chunked\r\n\r\n", 0, SCAN_BODY, 0);
}

#define CHUNKED "P\r\nTransfer-Encoding: chunked\r\n\r\n"

Test(http_scan, chunks_are_followed_and_summed)
{
    expect(CHUNKED "3\r\nabc\r\n", 0, SCAN_CHUNK_SIZE, 3);
    expect(CHUNKED "3\r\nabc\r\n1A\r\n\n\n0123456789012345678901\r\n\r\n", 0, SCAN_CHUNK_SIZE, 29);
    expect(CHUNKED "3\r\nabc\r\n0\r\nX: y\r\n\r\n", 0, SCAN_TRAILER, 3);
    expect(CHUNKED "3 ;name=value\r\nabc\r\n000\r\n", 0, SCAN_TRAILER, 3);
    expect(CHUNKED "3\r\nab", 0, SCAN_CHUNK_DATA, 3);
}

Test(http_scan, chunks_beyond_the_limit_are_refused_when_their_size_is_read)
{
    expect(CHUNKED "64\r\n", 0, SCAN_CHUNK_DATA, 100);
    expect(CHUNKED "65\r\n", 413, SCAN_HEADER, 0);
    expect(CHUNKED "3\r\nabc\r\n62\r\n", 413, SCAN_HEADER, 0);
    expect(CHUNKED "fffffffffffffff\r\n", 413, SCAN_HEADER, 0);
    expect(CHUNKED "0000000000000003\r\n", 413, SCAN_HEADER, 0);
}

Test(http_scan, a_size_that_is_none_is_refused)
{
    expect(CHUNKED "x\r\n", 400, SCAN_HEADER, 0);
    expect(CHUNKED "-3\r\n", 400, SCAN_HEADER, 0);
    expect(CHUNKED " 3\r\n", 400, SCAN_HEADER, 0);
    expect(CHUNKED "0x3\r\n", 400, SCAN_HEADER, 0);
    expect(CHUNKED "3;a=b\r\n", 400, SCAN_HEADER, 0);
    expect(CHUNKED "3\rx\n", 400, SCAN_HEADER, 0);
}

Test(http_scan, a_size_line_without_end_is_refused)
{
    char text[400] = CHUNKED "3 ";
    struct http_scan s;

    memset(text + strlen(text), 'a', 300);
    cr_expect_eq(feed(&s, text, strlen(CHUNKED) + 302, 13), 400);
}

Test(http_scan, what_need_not_be_looked_at_is_skipped)
{
    struct http_scan s;

    cr_assert_eq(feed(&s, CHUNKED "20\r\nab", strlen(CHUNKED "20\r\nab"), 5), 0);
    cr_expect_eq(http_scan_skip(&s, 10), 10);
    cr_expect_eq(http_scan_skip(&s, 100), 20);
    cr_expect_eq(http_scan_skip(&s, 100), 0, "the next size line must be seen");
    cr_expect_eq((int)s.state, SCAN_CHUNK_SIZE);
}
