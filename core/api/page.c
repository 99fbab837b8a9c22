/* Page: the static help page at "/". Self-contained: no script, no other files. Tests:
 * tests/e2e/test_admin.py, tests/e2e/test_metrics.py */
#include "api/metrics.h"
#include <string.h>

/* $HOST stands where the server's own address goes. */
static const char page[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>berth</title><style>"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 "
    "1rem;color-scheme:light dark}"
    "pre{overflow-x:auto;padding:.8rem;border:1px solid #8886;border-radius:6px}"
    "td{padding:.15rem 1rem .15rem 0;vertical-align:top}code,pre{font:14px ui-monospace,monospace}"
    "p code{overflow-wrap:anywhere}@media(min-width:46rem){td:first-child{white-space:nowrap}}"
    "@media(max-width:46rem){code{overflow-wrap:anywhere}td{display:block;padding:0}"
    "td+td{padding:0 0 .6rem}}"
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
    "<tr><td><code>POST /v1/messages</code></td><td>the same for Anthropic's clients; "
    "<code>/v1/messages/count_tokens</code> counts</td></tr>"
    "<tr><td><code>POST /v1/responses</code></td><td>the same as typed events, stateless</td></tr>"
    "<tr><td><code>POST /v1/completions</code></td><td>plain text or token ids in, text out</td></tr>"
    "<tr><td><code><a href=\"/v1/models\">GET /v1/models</a> /v1/models/ID</code></td><td>the model, its "
    "size "
    "and context; also without <code>/v1</code></td></tr>"
    "<tr><td><code>POST /tokenize /detokenize</code></td><td>text to tokens and back</td></tr>"
    "<tr><td><code>POST /apply-template</code></td><td>the prompt that messages become</td></tr>"
    "<tr><td><code><a href=\"/props\">GET /props</a> <a href=\"/slots\">/slots</a></code></td>"
    "<td>settings, and what each slot holds</td></tr>"
    "<tr><td><code>POST /slots/ID?action=save</code>, <code>restore</code>, <code>erase</code></td>"
    "<td>a slot's conversation to a file and back, and out</td></tr>"
    "<tr><td><code>GET /events</code></td>"
    "<td>where requests run and what is lost, as it happens; <a href=\"/events?format=json\">the last "
    "96</a></td></tr>"
    "<tr><td><code>GET /placements/ID</code></td>"
    "<td>why a request ran where it did, by its <code>X-Request-Id</code></td></tr>"
    "<tr><td><code><a href=\"/ready\">GET /ready</a> <a href=\"/health\">/health</a> <a "
    "href=\"/live\">/live</a> /api/hello</code></td>"
    "<td>whether it can serve</td></tr>"
    "<tr><td><code><a href=\"/metrics\">GET /metrics</a></code></td>"
    "<td>figures as JSON; <a href=\"/metrics?format=prometheus\">for Prometheus</a></td></tr>"
    "<tr><td><code>POST /admin/reload</code></td>"
    "<td>reads the configuration again, the policy too, while requests run</td></tr>"
    "<tr><td><code><a href=\"/admin/policy\">GET /admin/policy</a></code></td>"
    "<td>the policy in use, its settings, shadows and reloads</td></tr>"
    "</table>"
    "<h2>Watch it</h2><pre>curl -N http://$HOST/events\n"
    "curl 'http://$HOST/metrics?format=prometheus'\n"
    "curl -s http://$HOST/metrics | python3 -m json.tool\n"
    "curl http://$HOST/placements/ID</pre>"
    "<p>With keys these want the admin key: <code>-H 'Authorization: Bearer KEY'</code>. Lengths, ages and "
    "times only: no text of any conversation is told.</p>"
    "<h2>What the figures are called</h2><table class=\"names\">";
static const char page_end[] = "</table></body></html>\n";
/* The name by which the client reached us, as long as it can stand in a page and in a shell line as it is. */
static const char *host_of(const struct http_request *r)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_:[]";
    const char *host = http_header(r, "Host");
    size_t len = host ? strlen(host) : 0;
    return len && len < 256 && strspn(host, allowed) == len ? host : "localhost";
}

/* One row for each family of figures, from the table that /metrics is made from. */
static void put_names(struct buf *b)
{
    const char *last = "";
    for (size_t i = 0; i < metrics_n; i++) {
        const struct metric *m = &metrics_table[i];
        if (!m->name || !m->help || strcmp(m->name, last) == 0)
            continue;
        last = m->name;
        buf_printf(b, "<tr><td><code>berth_%s", m->name);
        if (m->vllm)
            buf_printf(b, "<br>vllm:%s", m->vllm);
        if (m->llamacpp)
            buf_printf(b, "<br>llamacpp:%s", m->llamacpp);
        buf_printf(b, "</code></td><td>%s</td></tr>\n", m->help);
    }
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
    put_names(&b);
    buf_puts(&b, page_end);
    if (b.failed)
        http_reply_error(r, 500, "server_error", "out of memory", NULL, NULL);
    else
        http_reply(r, 200, "text/html; charset=utf-8", b.data, b.len);
    buf_free(&b);
    http_done(r);
}
