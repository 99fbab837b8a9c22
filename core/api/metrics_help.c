/* Metrics for people: the table as text and as Markdown, for --help-metrics and conf/README.md.
 * Tests: tests/e2e/test_metrics.py */
#include "api/metrics.h"
#include "util/wrap.h"
#include <string.h>

static bool again(size_t i, const char *name)
{
    return i && metrics_table[i - 1].name && strcmp(metrics_table[i - 1].name, name) == 0;
}

static void put_names(FILE *out, const struct metric *m, const char *quote, const char *between)
{
    const char *const names[][2] = { { "berth_", m->name },
                                     { "vllm:", m->vllm },
                                     { "llamacpp:", m->llamacpp } };
    bool any = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!names[i][1])
            continue;
        fprintf(out, "%s%s%s%s%s", any ? between : "", quote, names[i][0], names[i][1], quote);
        any = true;
    }
    if (!any)
        fputs("-", out);
}

static void put_json(FILE *out, const struct metric *m, const char *quote)
{
    if (m->section && (m->key || m->kind == METRIC_WRITE))
        fprintf(out, "%s%s%s%s%s%s", quote, m->section, m->by && m->by->inside ? ".*" : "", m->key ? "." : "",
                m->key ? m->key : "", quote);
    else
        fputs("-", out);
}

static void put_text(FILE *out, const struct metric *m)
{
    char text[512];
    snprintf(text, sizeof text, "%s%s%s%s", m->help, m->by ? " By " : "", m->by ? m->by->label : "",
             m->by ? "." : "");
    wrap_words(out, text, 4, 4);
}

static void put_cells(FILE *out, const struct metric *m)
{
    fputs("| ", out);
    put_json(out, m, "`");
    fputs(" | ", out);
    put_names(out, m, "`", "<br>");
    fprintf(out, " | %s | %s%s%s%s |\n", m->type ? m->type : "-", m->help, m->by ? " By " : "",
            m->by ? m->by->label : "", m->by ? "." : "");
}

void api_metrics_help(FILE *out, bool markdown)
{
    if (markdown)
        fputs("| JSON | Prometheus | kind | what it is |\n| --- | --- | --- | --- |\n", out);
    for (size_t i = 0; i < metrics_n; i++) {
        const struct metric *m = &metrics_table[i];
        if (!m->help || (m->name && again(i, m->name) && !m->key))
            continue;
        if (markdown) {
            put_cells(out, m);
            continue;
        }
        put_json(out, m, "");
        fputs("  ", out);
        put_names(out, m, "", "\n      ");
        fprintf(out, "  (%s)\n    ", m->type ? m->type : "-");
        put_text(out, m);
    }
}
