/* Page: the static help page at "/". Self-contained: no script, no other files. Tests:
 * tests/e2e/test_admin.py */
#include "api/private.h"
#include <string.h>

/* $HOST stands where the server's own address goes. */
static const char page[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>berth</title><style>"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 "
    "1rem;color-scheme:light dark}"
    "pre{overflow-x:auto;padding:.8rem;border:1px solid #8886;border-radius:6px}"
    "td{padding:.15rem 1rem .15rem 0;vertical-align:top}code,pre{font:14px ui-monospace,monospace}"
    "</style></head><body><h1>berth</h1>"
    "<p>This server runs a language model and keeps conversations, so that the next turn reads only what is "
    "new.</p>"
    "<h2>Ask it something</h2><pre>curl -N http://$HOST/v1/chat/completions \\\n"
    "  -H 'Content-Type: application/json' \\\n"
    "  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is a berth?\"}], \"stream\": true}'</pre>"
    "<p>With OpenAI's SDK: <code>OpenAI(base_url=\"http://$HOST/v1\", api_key=\"none\")</code></p>"
    "<h2>What it answers</h2><table>"
    "<tr><td><code>POST /v1/chat/completions</code></td><td>messages in, an answer out; <code>stream</code> "
    "or whole</td></tr>"
    "<tr><td><code>POST /v1/completions</code></td><td>plain text or token ids in, text out</td></tr>"
    "<tr><td><code><a href=\"/v1/models\">GET /v1/models</a></code></td><td>the model, its size and "
    "context</td></tr>"
    "<tr><td><code>POST /tokenize /detokenize</code></td><td>text to tokens and back</td></tr>"
    "<tr><td><code>POST /apply-template</code></td><td>the prompt that messages become</td></tr>"
    "<tr><td><code><a href=\"/props\">GET /props</a> <a href=\"/slots\">/slots</a> <a "
    "href=\"/events\">/events</a></code></td>"
    "<td>settings, what each slot holds, and where the last requests ran</td></tr>"
    "<tr><td><code><a href=\"/ready\">GET /ready</a> <a href=\"/health\">/health</a> <a "
    "href=\"/live\">/live</a></code></td>"
    "<td>whether it can serve</td></tr>"
    "<tr><td><code><a href=\"/metrics\">GET /metrics</a></code></td>"
    "<td>figures as JSON; <a href=\"/metrics?format=prometheus\">for Prometheus</a></td></tr>"
    "</table></body></html>\n";

/* The name by which the client reached us, as long as it can stand in a page and in a shell line as it is. */
static const char *host_of(const struct http_request *r)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:[]";
    const char *host = http_header(r, "Host");
    size_t len = host ? strlen(host) : 0;
    return len && len < 256 && strspn(host, allowed) == len ? host : "localhost";
}

void api_on_page(struct http_request *r, void *api)
{
    static const char mark[] = "$HOST";
    const char *host = host_of(r), *at = page;
    struct buf b = { 0 };
    (void)api;
    for (const char *next; (next = strstr(at, mark)); at = next + sizeof mark - 1) {
        buf_append(&b, at, (size_t)(next - at));
        buf_puts(&b, host);
    }
    buf_puts(&b, at);
    if (b.failed)
        http_reply_error(r, 500, "server_error", "out of memory", NULL, NULL);
    else
        http_reply(r, 200, "text/html; charset=utf-8", b.data, b.len);
    buf_free(&b);
    http_done(r);
}
