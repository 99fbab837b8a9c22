/* Scan: follows the bytes of one request beside evhttp's own parser, for what that parser does not bound or
 * tell: where the header ends and how long it is, and, in chunked bodies, the length of a size line and the
 * sum of the chunks. It never changes what evhttp sees; it only says when a connection should be refused.
 * Pure; any thread. Tests: tests/unit/test_http_scan.c */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum http_scan_state {
    SCAN_HEADER,
    SCAN_BODY,       /* not chunked: evhttp counts it by its Content-Length */
    SCAN_CHUNK_SIZE, /* in the line that gives a chunk's size */
    SCAN_CHUNK_DATA,
    SCAN_TRAILER,
};

struct http_scan {
    enum http_scan_state state;
    bool cr, chunked, ext;
    unsigned matched; /* bytes of "transfer-encoding:" this line began with */
    uint32_t line;    /* bytes of the present line */
    uint64_t header;  /* bytes of the header so far */
    uint64_t chunk;   /* size being read, or what is left of the chunk */
    uint64_t body;    /* sum of chunk sizes */
    unsigned digits;
};

void http_scan_reset(struct http_scan *s);
/* How many of the next n bytes need not be looked at; they are counted as seen. */
size_t http_scan_skip(struct http_scan *s, size_t n);
/* Takes the next bytes. Returns 0, or the status to refuse with: 431 (header longer than max_header), 413
 * (chunks beyond max_body), 400 (a chunk size that is none). After an error the state is meaningless. */
int http_scan_feed(struct http_scan *s, const unsigned char *data, size_t len, uint64_t max_header,
                   uint64_t max_body);
