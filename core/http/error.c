/* Error: the words and JSON of the errors that this room answers itself, in the two shapes clients know.
 * Pure. Must not know: connections. Tests: tests/e2e/test_http_raw.py */
#include "http/internal.h"
#include "util/buf.h"
#include "util/utf8.h"

#include <string.h>

static const struct {
    int status;
    const char *phrase;
    const char *openai, *anthropic; /* types for an error that was given none */
} statuses[] = {
    { 200, "OK", NULL, NULL },
    { 201, "Created", NULL, NULL },
    { 202, "Accepted", NULL, NULL },
    { 204, "No Content", NULL, NULL },
    { 304, "Not Modified", NULL, NULL },
    { 400, "Bad Request", "invalid_request_error", "invalid_request_error" },
    { 401, "Unauthorized", "invalid_request_error", "authentication_error" },
    { 403, "Forbidden", "invalid_request_error", "permission_error" },
    { 404, "Not Found", "invalid_request_error", "not_found_error" },
    { 405, "Method Not Allowed", "invalid_request_error", "invalid_request_error" },
    { 408, "Request Timeout", "invalid_request_error", "invalid_request_error" },
    { 409, "Conflict", "invalid_request_error", "invalid_request_error" },
    { 413, "Content Too Large", "invalid_request_error", "request_too_large" },
    { 415, "Unsupported Media Type", "invalid_request_error", "invalid_request_error" },
    { 417, "Expectation Failed", "invalid_request_error", "invalid_request_error" },
    { 422, "Unprocessable Content", "invalid_request_error", "invalid_request_error" },
    { 429, "Too Many Requests", "rate_limit_error", "rate_limit_error" },
    { 431, "Request Header Fields Too Large", "invalid_request_error", "invalid_request_error" },
    { 500, "Internal Server Error", "server_error", "api_error" },
    { 501, "Not Implemented", "server_error", "api_error" },
    { 503, "Service Unavailable", "server_error", "overloaded_error" },
    { 504, "Gateway Timeout", "server_error", "api_error" },
    { 507, "Insufficient Storage", "server_error", "api_error" },
    { 529, "Overloaded", "server_error", "overloaded_error" },
};

static size_t status_index(int status)
{
    size_t i = 0, n = sizeof statuses / sizeof statuses[0];

    while (i < n && statuses[i].status != status)
        i++;
    return i;
}

const char *status_phrase(int status)
{
    size_t i = status_index(status);

    if (i < sizeof statuses / sizeof statuses[0])
        return statuses[i].phrase;
    return status < 400 ? "OK" : status < 500 ? "Client Error" : "Server Error";
}

/* A JSON string; bytes that are not UTF-8 become U+FFFD, for paths and header values come from anywhere. */
static void put_string(struct buf *b, const char *text)
{
    size_t len = text ? strlen(text) : 0;

    if (!text) {
        buf_puts(b, "null");
        return;
    }
    buf_putc(b, '"');
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        unsigned n = utf8_decode(text + i, len - i, &cp);

        if (n == 0)
            buf_puts(b, "\\ufffd");
        else if (cp == '"' || cp == '\\')
            buf_printf(b, "\\%c", (int)cp);
        else if (cp < 0x20 || cp == 0x7f)
            buf_printf(b, "\\u%04x", cp);
        else
            buf_append(b, text + i, n);
        i += n ? n : 1;
    }
    buf_putc(b, '"');
}

void error_body(struct buf *b, bool anthropic, int status, const char *type, const char *message,
                const char *param, const char *code, const char *id)
{
    size_t i = status_index(status);
    bool known = i < sizeof statuses / sizeof statuses[0];

    if (anthropic) {
        const char *own = known && statuses[i].anthropic ? statuses[i].anthropic : NULL;

        buf_puts(b, "{\"type\":\"error\",\"error\":{\"type\":");
        put_string(b, own ? own : status < 500 ? "invalid_request_error" : "api_error");
        buf_puts(b, ",\"message\":");
        put_string(b, message ? message : "");
        buf_puts(b, "},\"request_id\":");
        put_string(b, id);
        buf_puts(b, "}\n");
        return;
    }
    if (!type)
        type = known && statuses[i].openai ? statuses[i].openai
               : status < 500              ? "invalid_request_error"
                                           : "server_error";
    buf_puts(b, "{\"error\":{\"message\":");
    put_string(b, message ? message : "");
    buf_puts(b, ",\"type\":");
    put_string(b, type);
    buf_puts(b, ",\"param\":");
    put_string(b, param);
    buf_puts(b, ",\"code\":");
    put_string(b, code);
    buf_puts(b, "}}\n");
}
